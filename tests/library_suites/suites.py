# SPDX-License-Identifier: BSD-3-Clause
"""The suites of other projects, their commits and selections, and what is known to fail on openreg, with the reason."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Suite:
    """Tests of a repository at a commit."""

    name: str
    repository: str
    commit: str
    selection: str  # of tests, in words
    tests: tuple[str, ...]  # files or folders, below `folder`
    folder: str = "."  # of the repository, in which pytest runs
    imported: tuple[str, ...] = (".",)  # folders of the repository that are imported from
    packages: tuple[str, ...] = ()  # what pip installs for it in the repository, without what these depend on
    preloaded: tuple[str, ...] = ()  # modules that a server of forks imports once, for all of its children
    every: int = 1  # of the test functions
    only_first_parameters: bool = False
    skipped_on_cpu: str = ""  # only tests that the CPU skips for a reason in which this regular expression is found
    most_ranks: int = 0  # only tests of classes that have a ``world_size``, of at most that
    devices: int = 2
    gpu: str = "1"  # OPENREG_AS_CUDA
    variables: dict[str, str] = field(default_factory=dict)
    limit: int = 300  # seconds without a result, which end a test
    apart: bool = False  # a process for each test
    clone: str = ""  # the name of its clone under --sources, where that isn't the suite's
    known: dict[str, str] = field(default_factory=dict)  # regular expressions of ids, and why these fail
    not_run: dict[str, str] = field(default_factory=dict)  # the same, of what isn't run


_ALL = [
    Suite(
        name="accelerate",
        repository="https://github.com/huggingface/accelerate",
        commit="16cb6eb80dd9aa8b4df1a63ef57863e455d53b83",
        selection="ten files: devices, hooks, models in parts, offloading, programs of two ranks",
        tests=(
            "tests/test_accelerator.py",
            "tests/test_big_modeling.py",
            "tests/test_hooks.py",
            "tests/test_kwargs_handlers.py",
            "tests/test_memory_utils.py",
            "tests/test_modeling_utils.py",
            "tests/test_multidevice.py",
            "tests/test_offload.py",
            "tests/test_optimizer.py",
            "tests/test_utils.py",
        ),
        imported=("src", "."),
        packages=("parameterized", "torchdata"),
        gpu="a100",
        known={"test_setting_cpu_affinity": "asks NVML itself for the processors near a GPU"},
    ),
    Suite(
        name="ignite",
        repository="https://github.com/pytorch/ignite",
        commit="de08e799cfb55a6cf4aa778575d6bad725385453",
        selection="every third function of engines and metrics, with its first parameters",
        tests=("tests/ignite/engine", "tests/ignite/metrics"),
        every=3,
        only_first_parameters=True,
        not_run={"metrics/gan/test_utils": "downloads a model"},
    ),
    Suite(
        name="lightning",
        repository="https://github.com/Lightning-AI/pytorch-lightning",
        commit="7f0c3436cd3f6ad3753125672024fc415cbcb414",
        selection="Fabric's that need GPUs",
        tests=("tests/tests_fabric",),
        imported=("src", "tests"),
        skipped_on_cpu=r"GPUs(?!.*Standalone)",
        gpu="a100",
        known={r"test_collective_operations\[devices0-_test_all_reduce\]": "an average of integers, which gloo lacks"},
    ),
    Suite(
        name="lightning-standalone",
        repository="https://github.com/Lightning-AI/pytorch-lightning",
        commit="7f0c3436cd3f6ad3753125672024fc415cbcb414",
        selection="Fabric's that need GPUs and a process each",
        tests=("tests/tests_fabric",),
        imported=("src", "tests"),
        packages=("deepspeed==0.19.8", "hjson", "ninja", "py-cpuinfo", "msgpack", "einops"),
        skipped_on_cpu=r"GPUs.*Standalone",
        gpu="a100",
        devices=4,
        variables={"PL_RUN_STANDALONE_TESTS": "1"},
        apart=True,
        clone="lightning",
        known={
            "test_reapply_compile": "Python lists autograd's thread of a device, as a GPU's",
            r"test_tensor_parallel\[True": "the same; and Inductor leaves a variable of the environment behind",
            "test_deepspeed_custom_activation_checkpointing_params": "DeepSpeed 0.19.8 asks for the number of layers, too",
        },
        not_run={r"test_clip_gradients\[norm": "Lightning leaves it out"},
    ),
    Suite(
        name="torchao",
        repository="https://github.com/pytorch/ao",
        commit="36027d82d1ad9949597ea16002ff4940374b1b94",
        selection="low-bit optimizers, the API of quantization and its primitives",
        tests=(
            "test/test_low_bit_optim.py",
            "test/quantization/test_quant_api.py",
            "test/quantization/test_quant_primitives.py",
        ),
        packages=("parameterized",),
        gpu="a100",
    ),
    Suite(
        name="peft",
        repository="https://github.com/huggingface/peft",
        commit="5d602fdbff04c33c1c4de55cda9d4ae1d7cb7e40",
        selection="every twenty-fifth function of custom models",
        tests=("tests/test_custom_models.py",),
        imported=("src", "."),
        packages=("parameterized", "datasets", "dill", "pyarrow", "pandas", "multiprocess"),
        every=25,
        not_run={
            "test_delete_adapter_multiple_adapters_with_trainable_token_indices": "downloads a model",
            "test_gpt2_dora_merge_and_unload": "downloads a model",
        },
    ),
    Suite(
        name="deepspeed",
        repository="https://github.com/deepspeedai/DeepSpeed",
        commit="edaa7221267243c7be7fb49c5d5f5c4fb97b4641",
        folder="tests",
        selection="every third function of those for at most two ranks, with its first parameters",
        tests=("unit",),
        imported=("tests",),
        preloaded=("torch", "deepspeed"),
        packages=(
            ".",  # its checkpoints ask for its version
            "hjson",
            "ninja",
            "py-cpuinfo",
            "msgpack",
            "einops",
            "pytest<8.4",  # classes as fixtures
        ),
        every=3,
        only_first_parameters=True,
        most_ranks=2,
        gpu="a100",
        variables={"CUDA_VISIBLE_DEVICES": "0,1", "DS_BUILD_OPS": "0"},
        known={
            "v1/compile": "DeepCompile's kernels are CUDA's",
            "v1/moe/test_autoep": "kernels of Triton",
            "test_qwen2_tp_plan_with_uneven_vocab": "Transformers 5.23 has a style of plan that it lacks",
        },
        not_run={
            "half_precision/onebit": "needs CuPy, which needs a GPU",
            "monitor/test_monitor": "needs packages of three services",
            "TestLowCpuMemUsage|TestAutoTensorParallelism|TestUlyssesSPHF(PEFT|AttnImplMismatch)?::": "downloads a model",
        },
    ),
]
SUITES = {suite.name: suite for suite in _ALL}
