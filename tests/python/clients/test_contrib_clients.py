# SPDX-License-Identifier: BSD-3-Clause
"""torch_openreg.contrib for Accelerate, Transformers and PEFT: openreg by itself after one import, and taken back."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("accelerate")
pytest.importorskip("transformers")
pytest.importorskip("safetensors")

import accelerate
import accelerate.utils
import safetensors
import safetensors.torch
import transformers
from accelerate.state import AcceleratorState, PartialState
from transformers import GPT2Config, GPT2LMHeadModel, Pipeline, Trainer, TrainingArguments

import torch_openreg.contrib.accelerate
import torch_openreg.contrib.transformers

CONTRIB = torch_openreg.contrib
CONTRIB.transformers.disable()  # importing has enabled it; each test does so for itself

WORDS = 61
OPENREG = torch.device("openreg:0")

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def _known() -> Iterator[None]:
    AcceleratorState._reset_state(True)
    CONTRIB.transformers.enable()
    yield
    CONTRIB.transformers.disable()
    AcceleratorState._reset_state(True)


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    special = {"bos_token_id": 0, "eos_token_id": WORDS - 1, "pad_token_id": WORDS - 1}
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=WORDS, n_positions=32, n_embd=32, n_layer=2, n_head=2, **special, **off)
    )


class Data(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words = torch.arange(index, index + 6)
        return {"input_ids": words, "labels": words}


def trainer(folder: Path, **settings: Any) -> Trainer:
    arguments = {"max_steps": 3, "logging_steps": 1, "report_to": [], "disable_tqdm": True, "save_strategy": "no"}
    return Trainer(gpt2(), TrainingArguments(output_dir=str(folder), **arguments, **settings), train_dataset=Data())


def losses(trained: Trainer) -> list[float]:
    trained.train()
    return [entry["loss"] for entry in trained.state.log_history if "loss" in entry]


class Echo(Pipeline):
    """A pipeline without a tokenizer."""

    def _sanitize_parameters(self, **keywords: Any) -> Any:
        return {}, {}, {}

    def preprocess(self, inputs: Any, **keywords: Any) -> Any:
        return {"input_ids": torch.tensor([[inputs]])}

    def _forward(self, inputs: Any, **keywords: Any) -> Any:
        return {"device": str(inputs["input_ids"].device), "logits": self.model(**inputs).logits}

    def postprocess(self, outputs: Any, **keywords: Any) -> Any:
        return outputs["device"]


def test_accelerator_takes_the_device() -> None:
    """Without a word about devices; the current device, and what a program asks for instead."""
    assert accelerate.Accelerator().device == OPENREG
    AcceleratorState._reset_state(True)
    torch.openreg.set_device(1)
    accelerator = accelerate.Accelerator(mixed_precision="bf16")
    assert accelerator.device == torch.device("openreg:1")
    model = accelerator.prepare(nn.Linear(4, 2))
    assert model.weight.device == accelerator.device
    for settings, variable in (({"cpu": True}, None), ({}, "cpu")):
        AcceleratorState._reset_state(True)
        with pytest.MonkeyPatch.context() as patch:
            if variable:
                patch.setenv("ACCELERATE_TORCH_DEVICE", variable)
            assert accelerate.Accelerator(**settings).device == torch.device("cpu")


def test_trainer_takes_the_device(tmp_path: Path) -> None:
    """The losses are the CPU's; with bf16=True the autocast of the device gives others."""
    expected = losses(trainer(tmp_path, use_cpu=True))
    AcceleratorState._reset_state(True)
    mine = trainer(tmp_path)
    assert mine.args.device == OPENREG
    assert losses(mine) == pytest.approx(expected, rel=1e-5)
    assert {p.device for p in mine.model.parameters()} == {OPENREG}
    AcceleratorState._reset_state(True)
    half = losses(trainer(tmp_path, bf16=True))
    assert half == pytest.approx(expected, rel=5e-2)
    assert half != losses(mine)


def test_device_map_auto(tmp_path: Path) -> None:
    """Weights go to the devices, as many as their memory holds; results are the CPU's."""
    model = gpt2().eval()
    words = torch.arange(6).reshape(1, 6)
    expected = model(words).logits
    model.save_pretrained(tmp_path)
    loaded = GPT2LMHeadModel.from_pretrained(tmp_path, device_map="auto")
    assert {p.device.type for p in loaded.parameters()} == {"openreg"}
    torch.testing.assert_close(loaded(words.to(OPENREG)).logits.cpu(), expected)
    free = accelerate.utils.get_max_memory()
    assert [key for key in free if isinstance(key, int)] == list(range(torch.openreg.device_count()))
    assert 0 < free[1] <= torch.openreg.mem_get_info(1)[1]
    assert list(accelerate.utils.get_max_memory({"cpu": "1GB"})) == ["cpu"]
    safetensors.torch.save_file({"weight": torch.eye(2), "bias": torch.ones(2)}, tmp_path / "layer.safetensors")
    layer = accelerate.load_checkpoint_and_dispatch(
        nn.Linear(2, 2), str(tmp_path / "layer.safetensors"), device_map={"": "openreg:1"}
    )
    assert layer(torch.ones(2, device="openreg:1")).tolist() == [2.0, 2.0] and layer.weight.device == torch.device(
        "openreg:1"
    )
    assert accelerate.infer_auto_device_map(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))) == {"": 0}


def test_pipelines_take_the_device() -> None:
    """By default and by an index; a name and the CPU's index are what they say."""
    for settings, device in (
        ({}, "openreg:0"),
        ({"device": 0}, "openreg:0"),
        ({"device": 1}, "openreg:1"),
        ({"device": "cpu"}, "cpu"),
        ({"device": -1}, "cpu"),
        ({"device": torch.device("openreg:1")}, "openreg:1"),
    ):
        made = Echo(gpt2().eval(), **settings)
        assert str(made.device) == device
        assert made(3) == device


def test_infer_device() -> None:
    """PEFT's function, by every name under which it is imported; adapters come to the device."""
    peft = pytest.importorskip("peft")
    from peft.utils import save_and_load

    import torch_openreg.contrib.peft

    assert torch_openreg.contrib.peft.is_enabled()
    try:
        assert peft.utils.infer_device() == save_and_load.infer_device() == "openreg"
        model = peft.get_peft_model(gpt2().to(OPENREG), peft.LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True))
        model(torch.arange(6, device=OPENREG).reshape(1, 6)).logits.sum().backward()
        assert any(p.grad is not None for name, p in model.named_parameters() if "lora" in name)
    finally:
        torch_openreg.contrib.peft.disable()
    assert peft.utils.infer_device() == save_and_load.infer_device() == "cpu"
    assert not CONTRIB.transformers.is_enabled()


def test_disable_takes_everything_back(tmp_path: Path) -> None:
    """Attributes are those of the libraries again, and enabling twice is as once."""

    def attributes() -> list[Any]:
        return [
            vars(PartialState)["default_device"],
            vars(PartialState)["_prepare_backend"],
            vars(TrainingArguments)["_setup_devices"],
            vars(Pipeline)["__init__"],
            accelerate.utils.get_max_memory,
            accelerate.utils.modeling.get_max_memory,
            transformers.integrations.accelerate.accelerate_max_memory,
            vars(accelerate.Accelerator)["device"],
            vars(accelerate.Accelerator)["__init__"],
            accelerate.utils.get_grad_scaler,
            accelerate.accelerator.get_grad_scaler,
            transformers.training_args.is_torch_bf16_gpu_available,
            safetensors.safe_open,
        ]

    on = attributes()
    kept = accelerate.utils.get_max_memory
    CONTRIB.transformers.enable()
    assert attributes() == on
    CONTRIB.transformers.disable()
    off = attributes()
    assert all(before is not after for before, after in zip(on, off, strict=True))
    assert not CONTRIB.transformers.is_enabled() and not CONTRIB.accelerate.is_enabled()
    assert list(kept()) == ["cpu"]  # a module that imported it meanwhile
    assert accelerate.Accelerator().device == torch.device("cpu")
    assert Echo(gpt2(), device=0).device == torch.device("cpu")
    AcceleratorState._reset_state(True)
    assert trainer(tmp_path).args.device == torch.device("cpu")


def test_another_version_of_a_library() -> None:
    """An attribute that a library has lost is an error with its name, and nothing stays replaced."""
    CONTRIB.transformers.disable()
    before = vars(PartialState)["default_device"]
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(PartialState, "_prepare_backend")
        with pytest.raises(AttributeError, match="This version of accelerate has no '_prepare_backend'"):
            CONTRIB.accelerate.enable()
        assert vars(PartialState)["default_device"] is before
        assert not CONTRIB.accelerate.is_enabled()


def test_nothing_is_replaced_without_the_import(python: Any) -> None:
    """torch_openreg alone changes none of the libraries."""
    python(
        """
        import sys, accelerate, torch_openreg
        assert accelerate.Accelerator().device.type == "cpu"
        assert not any(name.startswith("torch_openreg.contrib") for name in sys.modules)
        """
    )


# fp16 is refused by a list of devices in Accelerate; with the connection it scales losses and casts, as on a GPU
def test_fp16() -> None:
    accelerator = accelerate.Accelerator(mixed_precision="fp16")
    model = nn.Linear(4, 4)
    weight = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    x = torch.ones(2, 4, device=OPENREG)
    with accelerator.autocast():
        assert (x @ model.weight).dtype == torch.float16
    accelerator.backward(model(x).mean())
    optimizer.step()
    assert accelerator.scaler.is_enabled() and accelerator.scaler.get_scale() == 65536.0
    torch.testing.assert_close(model.weight.detach().cpu(), weight - 0.025)
    assert type(accelerator.device) is torch.device and accelerator.device == OPENREG
    CONTRIB.accelerate.disable()
    AcceleratorState._reset_state(True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACCELERATE_TORCH_DEVICE", "openreg")
        with pytest.raises(ValueError, match="fp16 mixed precision requires a device in"):
            accelerate.Accelerator(mixed_precision="fp16")


# no script, and no such module: a line that says how it is called, and Python's own error
def test_runner(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_openreg.contrib import _script

    spec = types.SimpleNamespace(name="torch_openreg.contrib.accelerate")
    for words in (["program"], ["program", "--help"], ["program", "-m"]):
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as ended:
            _script.main(spec)
        assert ended.value.code == 2
        usage = "Usage: python -m torch_openreg.contrib.accelerate [-m module | script.py] arguments ...\n"
        assert capsys.readouterr().err == usage
    monkeypatch.setattr(sys, "argv", ["program", "-m", "no.such.module"])
    with pytest.raises(ImportError, match="no"):
        _script.main(spec)


SCRIPT = """
import sys, json
import torchvision_operators
import torch
from accelerate import Accelerator

accelerator = Accelerator()
torch.manual_seed(0)
model = accelerator.prepare(torch.nn.Linear(4, 2))
rank = accelerator.process_index
accelerator.backward(model(torch.full((3, 4), 1.0 + rank)).sum())  # inputs are moved, as to GPUs
report = {
    "device": str(accelerator.device),
    "processes": accelerator.num_processes,
    "kind": accelerator.distributed_type.value,
    "sum": accelerator.reduce(torch.tensor([rank + 1.0], device=accelerator.device), "sum").tolist(),
    "gradient": accelerator.unwrap_model(model).weight.grad.tolist(),
}
with open(f"{sys.argv[1]}.{rank}", "w") as file:
    json.dump(report, file)
"""


def test_processes_of_torchrun(script: Any, tmp_path: Path) -> None:
    """Each process has its device, gradients are averaged over gloo, and the script names neither."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    script(SCRIPT, str(tmp_path / "report"), launcher=(*launcher, "-m", "torch_openreg.contrib.accelerate"))
    for rank in (0, 1):
        assert json.loads((tmp_path / f"report.{rank}").read_text()) == {
            "device": f"openreg:{rank}",
            "processes": 2,
            "kind": "MULTI_GPU",
            "sum": [3.0],
            "gradient": [[4.5] * 4] * 2,
        }
