# SPDX-License-Identifier: BSD-3-Clause
"""Programs on the CUDA driver over a fake of CUDA's runtime, with and without a stand-in for PyTorch's library for CUDA.

Both are built beside the C++ tests (tests/drivers/gpu, tests/shim/fake_torch_cuda.cc). The stand-in has to be in the
process before PyTorch is, so each program has a process of its own: forked from an interpreter that has both.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from finished import finished
from warm_interpreter import WarmInterpreter

for folder in ("tools", "tests/opinfo"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[3] / folder))

Program = Callable[..., "subprocess.CompletedProcess[str]"]

START = """
import ctypes, os, sys, warnings
from pathlib import Path

torch_libraries = Path(os.environ["TORCH_LIBRARIES"])
if "FAKE_TORCH_CUDA" in os.environ:
    for name in ("libc10.so", "libtorch_cpu.so"):
        ctypes.CDLL(str(torch_libraries / name))
    fake = ctypes.CDLL(os.environ["FAKE_TORCH_CUDA"])
    fake.fake_torch_cuda_last_stream.restype = ctypes.c_int64
    fake.fake_torch_cuda_current_stream.restype = ctypes.c_int64
    fake.fake_torch_cuda_record_pinned.argtypes = [ctypes.c_void_p]

import pytest
import torch

D = torch.device("openreg:0")


def figures(way="staged"):
    return {name: count["calls"] for name, count in torch.openreg.operator_stats()[way].items() if count["calls"]}


def all_on_gpu():
    "Whether every operator since the counts were reset ran a kernel of the GPU."
    stats = torch.openreg.operator_stats()
    return stats["staged_calls"] == 0 and stats["aliased_calls"] > 0
"""


def built(root: Path, path: str) -> Path:
    """A library of the build; the test is skipped where it is missing."""
    library = Path(os.environ.get("OPENREG_BUILD_DIR", root / "build")) / "tests" / path
    if not library.exists():
        pytest.skip(f"{library} is not built: it takes CUDA's headers, and `cmake --build build`")
    return library


@pytest.fixture
def driver_environment(root: Path) -> dict[str, str]:
    """Makes the CUDA driver over the fake the only one."""
    driver = str(built(root, "drivers/libopenreg_cuda_fake.so"))
    spec = find_spec("torch")
    assert spec is not None and spec.origin is not None
    return {
        "OPENREG_DRIVER_LIBRARIES": f"cuda:{driver}",
        "OPENREG_DRIVERS": "cuda",
        "FAKE_GPU_MEMORY": str(1 << 30),
        "FAKE_TORCH_CUDA_DRIVER": driver,
        "TORCH_LIBRARIES": str(Path(spec.origin).parent / "lib"),
    }


@pytest.fixture
def torch_cuda(root: Path, driver_environment: dict[str, str]) -> dict[str, str]:
    """Puts the stand-in for PyTorch's library for CUDA into the process."""
    if Path(driver_environment["TORCH_LIBRARIES"], "libtorch_cuda.so").exists():
        pytest.skip(
            "this torch is built for CUDA: it is linked to its own libtorch_cuda.so, which no stand-in replaces"
        )
    return {"FAKE_TORCH_CUDA": str(built(root, "shim/libtorch_cuda.so"))}


_warm: dict[str | None, WarmInterpreter] = {}


@pytest.fixture(scope="session", autouse=True)
def _interpreters() -> Iterator[None]:
    yield
    for interpreter in _warm.values():
        interpreter.close()


def warm(environment: dict[str, str]) -> WarmInterpreter:
    """The interpreter with the stand-in of these variables, or with none."""
    stand_in = environment.get("FAKE_TORCH_CUDA")
    if stand_in not in _warm:
        folder = Path(environment["TORCH_LIBRARIES"])
        libraries = [str(folder / "libc10.so"), str(folder / "libtorch_cpu.so"), stand_in] if stand_in else []
        names = ("FAKE_TORCH_CUDA", "FAKE_TORCH_CUDA_DRIVER", "TORCH_LIBRARIES")
        _warm[stand_in] = WarmInterpreter(libraries, {n: environment[n] for n in names if n in environment})
    return _warm[stand_in]


def run_program(code: str, environment: dict[str, str], timeout: float = 240) -> subprocess.CompletedProcess[str]:
    """Runs code after START; a status other than 0 fails the test."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("OPENREG_", "FAKE_", "PYTEST_"))}
    variables = {**inherited, "OPENREG_PREFERENCES": os.devnull, **environment}
    code = START + textwrap.dedent(code)
    interpreter = warm(environment)
    if interpreter.fits(variables):
        done = interpreter.run(code, variables, None, timeout)
    else:
        command = [sys.executable, "-c", code]
        done = finished(command, status=None, env=variables, timeout=timeout)
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
    return done


@pytest.fixture
def gpu(driver_environment: dict[str, str], torch_cuda: dict[str, str]) -> Program:
    """Runs a program whose PyTorch has kernels for GPUs."""

    def run(code: str, timeout: float = 240, **environment: str) -> subprocess.CompletedProcess[str]:
        return run_program(code, {**driver_environment, **torch_cuda, **environment}, timeout)

    return run


@pytest.fixture
def triton_gpu(driver_environment: dict[str, str], torch_cuda: dict[str, str], root: Path, tmp_path: Path) -> Program:
    """Runs a program whose PyTorch, beside kernels, has torch.cuda and Triton: `gpu` is its fake_triton_gpu.Gpu."""
    if find_spec("triton") is None:
        pytest.skip("needs triton: pip install -r requirements-clients.txt")
    libcuda = built(root, "shim/libcuda/libcuda.so.1")
    start = """
        sys.path.insert(0, os.environ["GPU_TESTS"])
        from fake_triton_gpu import Gpu
        gpu = Gpu(fake, os.environ["FAKE_LIBCUDA"])
        """
    settings = {
        "GPU_TESTS": str(Path(__file__).parent),
        "FAKE_LIBCUDA": str(libcuda),
        "TRITON_LIBCUDA_PATH": str(libcuda.parent),
        "TRITON_CACHE_DIR": str(tmp_path / "triton"),
        "TORCHINDUCTOR_USE_STATIC_CUDA_LAUNCHER": "0",  # PyTorch's own launcher is in its library for CUDA
    }

    def run(code: str, timeout: float = 240, **environment: str) -> subprocess.CompletedProcess[str]:
        both = textwrap.dedent(start) + textwrap.dedent(code)
        return run_program(both, {**driver_environment, **torch_cuda, **settings, **environment}, timeout)

    return run


@pytest.fixture
def without_kernels(driver_environment: dict[str, str]) -> Program:
    """Runs a program on the GPU of the same driver with a PyTorch that has no kernels for it."""

    def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return run_program(code, {**driver_environment, **environment})

    return run
