# SPDX-License-Identifier: BSD-3-Clause
"""Accelerate: one process on the device it is told, launched scripts, mixed precision, saved states, two processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip("accelerate")

from accelerate import Accelerator, cpu_offload, dispatch_model, init_empty_weights, load_checkpoint_and_dispatch
from accelerate.state import AcceleratorState
from accelerate.utils import set_seed

DEV = "openreg:1"

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


@pytest.fixture(autouse=True)
def _fresh_state() -> Iterator[None]:
    """Accelerate decides once a process on its device; here each test does."""
    AcceleratorState._reset_state(True)
    yield
    AcceleratorState._reset_state(True)


def accelerator_for(device: str, **settings: Any) -> Accelerator:
    AcceleratorState._reset_state(True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACCELERATE_TORCH_DEVICE", device)
        return Accelerator(**settings)


def parts() -> tuple[nn.Module, torch.optim.Optimizer, DataLoader, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.0), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x = torch.randn(32, 8)
    loader = DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=8)
    return model, optimizer, loader, torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)


def train(accelerator: Accelerator) -> tuple[list[float], list[torch.Tensor]]:
    """An epoch with clipping and a schedule; returns the losses and the weights on the host."""
    model, optimizer, loader, schedule = accelerator.prepare(*parts())
    found = []
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        assert x.device == torch.device(accelerator.device)
        found.append(loss.item())
    return found, [p.detach().cpu() for p in accelerator.unwrap_model(model).parameters()]


# what prepare() makes of model, optimizer, data and schedule trains as on the CPU, bit for bit
@pytest.mark.parametrize("settings", [{}, {"gradient_accumulation_steps": 2}], ids=["plain", "accumulation"])
def test_training_equals_the_cpu(settings: dict[str, Any]) -> None:
    expected, weights = train(accelerator_for("cpu", **settings))
    accelerator = accelerator_for(DEV, **settings)
    assert accelerator.device == torch.device(DEV)
    got, there = train(accelerator)
    assert got == expected
    assert all(torch.equal(a, b) for a, b in zip(there, weights, strict=True))


# autocast of the device, not of the CPU or CUDA; the results come out in float32
def test_mixed_precision() -> None:
    full, _ = train(accelerator_for("cpu"))
    accelerator = accelerator_for(DEV, mixed_precision="bf16")
    with accelerator.autocast():
        x = torch.ones(2, 2, device=DEV)
        assert (x @ x).dtype == torch.bfloat16
    got, weights = train(accelerator)
    assert got == pytest.approx(full, abs=2e-2) and got != full
    assert {w.dtype for w in weights} == {torch.float32}
    with pytest.raises(ValueError, match="fp16 mixed precision requires"):
        accelerator_for(DEV, mixed_precision="fp16")  # Accelerate's own list of devices


# gathering, reducing and padding with one process, and objects that hold tensors
def test_collecting_with_one_process() -> None:
    accelerator = accelerator_for(DEV)
    x = torch.arange(3.0, device=DEV)
    for collected in (
        accelerator.gather(x),
        accelerator.gather_for_metrics(x),
        accelerator.reduce(x, "sum"),
        accelerator.pad_across_processes(x),
    ):
        assert collected.device == torch.device(DEV) and collected.cpu().tolist() == [0.0, 1.0, 2.0]
    assert accelerator.gather({"a": [x]})["a"][0].device == torch.device(DEV)


# a saved state brings weights, optimizer and schedule back
def test_states_are_saved_and_loaded(tmp_path: Path) -> None:
    accelerator = accelerator_for(DEV)
    model, optimizer, loader, schedule = accelerator.prepare(*parts())
    x, y = next(iter(loader))

    def step() -> float:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        schedule.step()
        return loss.item()

    step()
    accelerator.save_state(str(tmp_path))
    first = [step() for _ in range(3)]
    accelerator.load_state(str(tmp_path))
    assert [step() for _ in range(3)] == first
    assert {p.device for p in model.parameters()} == {torch.device(DEV)}


# weights that were never on the host, layers spread over devices, and layers that stay on the host till they are used
def test_large_model_tools(tmp_path: Path) -> None:
    model = parts()[0].eval()
    accelerator_for("cpu").save_model(model, str(tmp_path), safe_serialization=True)
    x = torch.randn(4, 8)
    expected = model(x)
    with init_empty_weights():
        shell = parts()[0].eval()
    assert {p.device.type for p in shell.parameters()} == {"meta"}
    loaded = load_checkpoint_and_dispatch(
        shell, str(tmp_path / "model.safetensors"), device_map={"0": 0, "1": 1, "2": 1, "3": 1}
    )
    assert [p.device.index for p in loaded.parameters()] == [0, 0, 1, 1]
    assert torch.equal(loaded(x.to("openreg:0")).cpu(), expected)

    again = parts()[0].eval()
    again.load_state_dict(model.state_dict())
    spread = dispatch_model(again, {"0": DEV, "1": "openreg:0", "2": "openreg:0", "3": "openreg:0"}, main_device=DEV)
    assert torch.equal(spread(x).cpu(), expected)

    offloaded = parts()[0].eval()
    offloaded.load_state_dict(model.state_dict())
    cpu_offload(offloaded, execution_device=DEV)
    result = offloaded(x)
    assert torch.equal(result.cpu(), expected)


# Accelerate's seed is the devices' too
def test_the_seed() -> None:
    accelerator_for(DEV)
    drawn = []
    for _ in range(2):
        set_seed(5)
        drawn.append(torch.rand(3, device=DEV))
    assert torch.equal(drawn[0], drawn[1])


SCRIPT = """
import sys, json
import torchvision_operators
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu="several" in sys.argv)
torch.manual_seed(0)
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(32, 8)
loader = DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x, y in loader:
    optimizer.zero_grad()
    accelerator.backward(torch.nn.functional.cross_entropy(model(x), y))
    optimizer.step()
rank = accelerator.process_index
report = {
    "device": str(x.device),
    "precision": accelerator.mixed_precision,
    "processes": accelerator.num_processes,
    "gathered": accelerator.gather(torch.tensor([rank + 1.0], device=accelerator.device)).tolist(),
    "summed": accelerator.reduce(torch.tensor([rank + 1.0], device=accelerator.device), "sum").tolist(),
    "weight": accelerator.unwrap_model(model).weight.tolist(),
}
with open(f"{sys.argv[1]}.{rank}", "w") as file:
    json.dump(report, file)
"""


# `accelerate launch script.py` (the module behind that command) with the device in the environment
@pytest.mark.long
def test_accelerate_launch(script: Any, tmp_path: Path) -> None:
    launcher = ("-m", "accelerate.commands.launch", "--num_processes=1", "--num_machines=1", "--dynamo_backend=no")
    report = str(tmp_path / "report")
    script(SCRIPT, report, launcher=(*launcher, "--mixed_precision=bf16"), ACCELERATE_TORCH_DEVICE=DEV)
    found = json.loads(Path(f"{report}.0").read_text())
    assert found["device"] == DEV and found["precision"] == "bf16" and found["processes"] == 1


# two processes that torchrun starts: gradients are averaged over gloo, as on the CPU; cpu=True names that transport
@pytest.mark.long
def test_two_processes_equal_two_on_the_cpu(script: Any, tmp_path: Path) -> None:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    found = {}
    for device in ("cpu", DEV):
        report = str(tmp_path / device)
        environment = {"ACCELERATE_TORCH_DEVICE": device}
        script(SCRIPT, report, "several", launcher=launcher, **environment)
        found[device] = [json.loads(Path(f"{report}.{rank}").read_text()) for rank in (0, 1)]
    for got, expected in zip(found[DEV], found["cpu"], strict=True):
        assert got == expected | {"device": DEV}
        assert got["gathered"] == [1.0, 2.0] and got["summed"] == [3.0] and got["processes"] == 2
