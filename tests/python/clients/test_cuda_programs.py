# SPDX-License-Identifier: BSD-3-Clause
"""Programs for CUDA, unchanged, on simulated devices: Transformers' Trainer, Accelerate's own tests, and whole scripts under
torchrun and `accelerate launch`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("accelerate")
AS_CUDA = ("-m", "torch_openreg.contrib.cuda_to_openreg")

TRAINER = """
import json, sys
import torchvision_operators
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        words = torch.arange(index, index + 6)
        return {"input_ids": words, "labels": words}

path, *settings = sys.argv[1:]
special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2, **special, **off))
arguments = TrainingArguments(output_dir=path + ".out", max_steps=3, logging_steps=1, report_to=[], disable_tqdm=True,
                              save_strategy="no", **json.loads(settings[0]))
trainer = Trainer(model, arguments, train_dataset=Data())
trainer.train()
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
peaks = [torch.cuda.max_memory_allocated(i) for i in range(torch.cuda.device_count())]
with open(path, "w") as file:
    json.dump([losses, arguments.n_gpu, type(trainer.model_wrapped).__name__, peaks], file)
"""


# two devices in one process are nn.DataParallel to the Trainer; the losses are the CPU's on the same batches
@pytest.mark.long
def test_trainer_on_two_devices(script: Any, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    report = tmp_path / "report"
    script(TRAINER, str(report), '{"per_device_train_batch_size": 4}', launcher=AS_CUDA, OPENREG_SIM_DEVICES="2")
    losses, count, model, peaks = json.loads(report.read_text())
    assert (count, model) == (2, "DataParallel")
    assert min(peaks) > 0
    script(TRAINER, str(report), '{"per_device_train_batch_size": 8, "use_cpu": true}')
    assert losses == pytest.approx(json.loads(report.read_text())[0], rel=1e-4)


# Accelerate's test of collectives, as pip ships it: a process for each device, over gloo. The others: `make library-suites`
@pytest.mark.long
def test_accelerate_own_test(script: Any) -> None:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *AS_CUDA)
    program = (
        "import runpy, sys, torchvision_operators; runpy.run_module(sys.argv[1], run_name='__main__', alter_sys=True)"
    )
    connections = ("-m", "torch_openreg.contrib.accelerate")
    script(
        program, "accelerate.test_utils.scripts.test_ops", launcher=(*launcher, *connections), OPENREG_SIM_DEVICES="2"
    )


# What a script for several GPUs has in it. The batch of all ranks is the same twelve rows, so the losses are one process's.
TORCHRUN = """
import json, os, sys
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

@torch.jit.script
def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * torch.ones([1], device=x.device)

def network() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))

def train(model, optimizer, x, y, steps=4):
    losses = []
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.mse_loss(scaled(model(x)), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        losses.append(mean.item())
    return losses

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
device = torch.device("cuda", torch.cuda.current_device())
torch.manual_seed(1)
x, y = (whole.chunk(world)[rank].pin_memory().to(device, non_blocking=True) for whole in (torch.randn(12, 8), torch.randn(12, 4)))
report = {"device": device.type, "backend": dist.get_backend(), "world": world}

start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
start.record()
model = DDP(network().cuda(), device_ids=[device.index])
report["ddp"] = train(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01), x, y)
end.record()
torch.cuda.synchronize()
assert start.elapsed_time(end) > 0 and torch.cuda.max_memory_allocated() > 0

model, scaler = DDP(network().cuda(), device_ids=[device.index]), torch.amp.GradScaler("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
report["amp"] = []
for _ in range(3):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = torch.nn.functional.mse_loss(model(x).float(), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    report["amp"].append(loss.item())
assert report["amp"][-1] < report["amp"][0]
del report["amp"]

mesh = init_device_mesh("cuda", (world,))
model = network().cuda()
for layer in (model[0], model[2], model):
    fully_shard(layer, mesh=mesh, mp_policy=MixedPrecisionPolicy())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
report["fsdp"] = train(model, optimizer, x, y)
checkpoint.save({"model": model.state_dict()}, checkpoint_id=sys.argv[1] + ".checkpoint")
again = network().cuda()
for layer in (again[0], again[2], again):
    fully_shard(layer, mesh=mesh)
state = {"model": again.state_dict()}
checkpoint.load(state, checkpoint_id=sys.argv[1] + ".checkpoint")
again.load_state_dict(state["model"])
for one, other in zip(model.parameters(), again.parameters()):
    assert torch.equal(one.full_tensor(), other.full_tensor())
if rank == 0:
    with open(sys.argv[1], "w") as file:
        json.dump(report, file)
dist.destroy_process_group()
"""

ACCELERATE = """
import json, os, sys
import torchvision_operators
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
data = TensorDataset(torch.randn(24, 8), torch.randn(24, 4))
loader = DataLoader(data, batch_size=12 // accelerator.num_processes)
model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01), loader)
losses = []
for _ in range(2):
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        losses.append(accelerator.reduce(loss.detach(), "mean").item())
accelerator.save_state(sys.argv[1] + ".state")
accelerator.wait_for_everyone()
before = {name: value.full_tensor() if hasattr(value, "full_tensor") else value.clone()
          for name, value in model.state_dict().items()}
with torch.no_grad():
    for value in model.parameters():
        value.zero_()
accelerator.load_state(sys.argv[1] + ".state")
for name, value in model.state_dict().items():
    assert torch.equal(value.full_tensor() if hasattr(value, "full_tensor") else value, before[name]), name
if accelerator.is_main_process:
    report = {"device": accelerator.device.type, "kind": accelerator.distributed_type.value, "losses": losses,
              "world": accelerator.num_processes, "model": type(model).__name__}
    with open(sys.argv[1], "w") as file:
        json.dump(report, file)
accelerator.end_training()
"""

PROCESSES = (1, 2, 3, 4)


def as_cuda(script: Any, code: str, report: Path, launcher: tuple[str, ...]) -> dict[str, Any]:
    script(code, str(report), launcher=launcher, timeout=400, OPENREG_AS_CUDA="1", OPENREG_SIM_DEVICES="4")
    return json.loads(report.read_text())


# DDP with a sharded optimizer, mixed precision, FSDP2 and a checkpoint of it, TorchScript: the losses are those of one process
@pytest.mark.long
def test_script_under_torchrun(script: Any, tmp_path: Path) -> None:
    found = {}
    for count in PROCESSES:
        launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}")
        found[count] = as_cuda(script, TORCHRUN, tmp_path / f"report{count}", launcher)
        assert (found[count]["device"], found[count]["world"]) == ("cuda", count)
        assert found[count]["ddp"] == pytest.approx(found[1]["ddp"], rel=1e-4)
        assert found[count]["fsdp"] == pytest.approx(found[1]["fsdp"], rel=1e-4)
        assert found[count]["fsdp"][-1] < found[count]["fsdp"][0]


# the same for Accelerate's own way: DDP and FSDP2, and its checkpoints
@pytest.mark.long
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_script_under_accelerate_launch(script: Any, tmp_path: Path, kind: str) -> None:
    found = {}
    for count in PROCESSES:
        launcher = ("-m", "accelerate.commands.launch", f"--num_processes={count}", "--num_machines=1")
        launcher += ("--dynamo_backend=no", "--mixed_precision=no", "--main_process_port=0")
        if kind == "fsdp":
            launcher += ("--use_fsdp", "--fsdp_version=2", "--fsdp_state_dict_type=SHARDED_STATE_DICT")
            launcher += ("--fsdp_auto_wrap_policy=NO_WRAP",)
        elif count > 1:
            launcher += ("--multi_gpu",)
        found[count] = as_cuda(script, ACCELERATE, tmp_path / f"report{count}", launcher)
        assert (found[count]["device"], found[count]["world"]) == ("cuda", count)
        assert found[count]["losses"] == pytest.approx(found[1]["losses"], rel=1e-4)
        expected = "FSDP" if kind == "fsdp" else "MULTI_GPU" if count > 1 else "NO"
        assert found[count]["kind"] == expected
