# SPDX-License-Identifier: BSD-3-Clause
"""OPENREG_AS_CUDA=a100: what torch.cuda says of the devices, to libraries that choose by it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from finished import finished

ANSWERS = """
import torch
capability = torch.cuda.get_device_capability()
properties = torch.cuda.get_device_properties("cuda:0")
assert (properties.major, properties.minor) == capability
assert torch.cuda.get_device_name() == properties.name
assert torch.cuda.mem_get_info()[1] == properties.total_memory
# every attribute of PyTorch's class, and what its C++ has beside
for name in (*torch._C._CudaDeviceProperties.__annotations__,) if hasattr(torch._C, "_CudaDeviceProperties") else ():
    getattr(properties, name)
for name in ("is_integrated", "L2_cache_size", "gcnArchName", "warp_size", "regs_per_multiprocessor", "uuid", "pci_bus_id"):
    getattr(properties, name)
print(*capability, properties.multi_processor_count, properties.total_memory >> 30, torch.version.cuda, *torch.cuda.get_arch_list(),
      torch.cuda.is_bf16_supported(including_emulation=False), torch.cuda.is_tf32_supported(), torch.cuda.is_bf16_supported())
"""


@pytest.mark.parametrize(
    ("persona", "memory", "says"),
    [
        ("a100", None, "8 0 108 79 12.8 sm_80 True True True\n"),
        ("H100", None, "9 0 132 79 12.8 sm_90 True True True\n"),
        ("l4", None, "8 9 58 22 12.8 sm_89 True True True\n"),
        ("t4", None, "7 5 40 14 12.8 sm_75 False False True\n"),
        ("v100", None, "7 0 80 31 12.8 sm_70 False False True\n"),
        ("a100", "2G", "8 0 108 2 12.8 sm_80 True True True\n"),
        ("1", "3G", f"1 0 2 3 {torch.version.cuda} True False True\n"),
    ],
)
def test_devices_say_which_gpu_they_are(python: Any, persona: str, memory: str | None, says: str) -> None:
    """Without a persona they are the driver's; memory that the program has set is theirs."""
    assert python(ANSWERS, OPENREG_AS_CUDA=persona, OPENREG_SIM_MEMORY=memory).stdout == says


def test_a_gpu_that_is_not_known(python: Any) -> None:
    done = python("import torch_openreg", status=1, OPENREG_AS_CUDA="a1000")
    assert "OPENREG_AS_CUDA=a1000: expected 1, 0 or one of v100, t4, a100, l4, h100" in done.stderr


SENSORS = """
import torch
x = torch.empty(2**30, dtype=torch.uint8, device="cuda")
print(torch.cuda.utilization(), torch.cuda.temperature("cuda:1"), torch.cuda.power_draw(0), torch.cuda.clock_rate(),
      torch.cuda.memory_usage(0), torch.cuda.nccl.version())
for ask in (torch.cuda.utilization, torch.cuda.memory_usage):
    try:
        ask(7)
    except RuntimeError as error:
        assert "out of range" in str(error)
"""


def test_sensors_of_an_idle_gpu(python: Any) -> None:
    """What PyTorch would ask NVIDIA's management library."""
    assert python(SENSORS, OPENREG_AS_CUDA="a100", OPENREG_SIM_MEMORY="4G").stdout == "0 30 60000 1410 25 (2, 27, 3)\n"


COMPILES = """
import torch
for device in ("cpu", "cuda"):
    x = torch.arange(4.0, device=device)
    print(torch.compile(lambda x: (x * 2 - 3).relu())(x).tolist())

def moved(x):
    is_cpu = isinstance(x.device, torch.device) and torch.device("cpu") == x.device
    return x.to(torch.device("cuda", 0)) + 1, is_cpu and not isinstance(x, torch.Stream)
print(torch.compile(moved, fullgraph=True)(torch.ones(1))[1])
"""


@pytest.mark.parametrize("persona", ["1", "a100"])
def test_programs_compile(python: Any, persona: str) -> None:
    """On the CPU too: Inductor asks torch.cuda what the GPU is."""
    assert python(COMPILES, OPENREG_AS_CUDA=persona).stdout == "[0.0, 0.0, 1.0, 3.0]\n" * 2 + "True\n"


CHILDREN = """
import multiprocessing, os, sys, torch
def say(queue):
    x = torch.ones(1, device="cuda")
    queue.put([x.device.type, str(x.device), torch.cuda.get_device_capability(), torch.cuda.get_device_properties(0).total_memory >> 30])
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=say, args=(queue,))
    child.start()
    print(queue.get())
    child.join()
"""


def test_processes_of_a_program(tmp_path: Path) -> None:
    """A child that is spawned sees the same GPU."""
    program = tmp_path / "program.py"
    program.write_text(CHILDREN)
    done = finished([sys.executable, program], env=os.environ | {"OPENREG_AS_CUDA": "a100"}, timeout=200)
    assert done.stdout == "['cuda', 'cuda:0', (8, 0), 79]\n", done.stderr


GROUPS = """
import torch, torch.distributed as dist
from torch.distributed import init_process_group, new_group
init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
import torch_openreg.contrib.cuda_to_openreg as cuda
mixed = new_group(backend="cpu:gloo,cuda:nccl")
gloo = new_group(backend="gloo")
x = torch.ones(2, device="cuda")
for group in (None, mixed):
    dist.all_reduce(x, group=group)
mesh = torch.distributed.device_mesh.init_device_mesh("cuda", (1,), mesh_dim_names=("dp",))
print(dist.get_backend(), dist.get_backend(gloo), dist.is_nccl_available(), mesh.device_type, x.tolist())
with cuda.disabled():
    print(dist.get_backend(), dist.is_nccl_available(), mesh.device_type)
dist.destroy_process_group()
"""


def test_groups_are_of_nccl(python: Any) -> None:
    """By names that modules hold, too: groups, mixed ones and meshes."""
    done = python(GROUPS, OPENREG_AS_CUDA="a100")
    assert done.stdout == f"nccl gloo True cuda [1.0, 1.0]\nopenreg_gloo {dist.is_nccl_available()} openreg\n"
