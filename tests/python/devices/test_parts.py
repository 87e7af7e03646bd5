# SPDX-License-Identifier: BSD-3-Clause
"""Parts of the shim are libraries of their own, which a process loads when it first uses them."""

from __future__ import annotations

from pathlib import Path

import pytest
from compiled_drivers import compile_driver

LOADED = """
import torch

def loaded():
    with open("/proc/self/maps") as maps:
        names = {line.split("/")[-1].strip() for line in maps if ".so" in line}
    parts = {name.split(".")[0] for name in names if "libtorch_openreg_" in name or name.startswith("_C_")}
    return sorted(part.removeprefix("libtorch_openreg") for part in parts)

import torch.distributed as dist
"""


# autoload by `import torch`, an import, tensors and their gradients need no part
@pytest.mark.parametrize("statement", ["", "import torch_openreg"])
def test_nothing_is_loaded_at_first(statement, python) -> None:
    python(
        LOADED
        + f"""
{statement}
assert loaded() == [], loaded()
import torch_openreg
x = torch.ones(3, device="openreg", requires_grad=True)
(x * 2).sum().backward()
assert x.grad.tolist() == [2, 2, 2]
assert loaded() == [], loaded()
"""
    )


# each way to torch.distributed loads its part: the backend without a name, by name, and ours
@pytest.mark.parametrize("backend", [None, "gloo", "cpu:gloo,openreg:gloo", "openreg_gloo"])
def test_a_process_group_loads_its_part(backend, python) -> None:
    python(
        LOADED
        + f"""
group = dict(store=dist.HashStore(), rank=0, world_size=1)
assert loaded() == [], loaded()
dist.init_process_group({backend!r}, **group)
x = torch.ones(3, device="openreg")
dist.all_reduce(x)
assert x.tolist() == [1, 1, 1]
assert loaded() == ["_C_distributed", "_distributed"], loaded()
"""
    )


# a group that was there before the package: its first collective of openreg tensors loads the part
def test_a_group_that_was_there_before(python) -> None:
    python(
        LOADED
        + """
group = dict(store=dist.HashStore(), rank=0, world_size=1)
dist.init_process_group("gloo", **group)
y = torch.ones(3)
dist.all_reduce(y)
import torch_openreg
dist.all_reduce(y)
assert loaded() == [], loaded()
x = torch.ones(3, device="openreg")
dist.all_reduce(x)
assert x.tolist() == [1, 1, 1]
assert loaded() == ["_distributed"], loaded()
""",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )


# a profile that asks for the device loads the profiler's part, and has the device's rows
@pytest.mark.skipif("not hasattr(__import__('torch').profiler.ProfilerActivity, 'PrivateUse1')")
def test_a_profile_loads_its_part(python) -> None:
    python(
        LOADED
        + """
from torch.profiler import ProfilerActivity, profile
x = torch.ones(3, device="openreg")
assert loaded() == [], loaded()
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as run:
    x + 1
assert any("aten::add" in event.name and event.device_type.name != "CPU" for event in run.events())
assert loaded() == ["_profile"], loaded()
"""
    )


# torch.compile loads the part of compiled graphs
def test_a_compiled_graph_loads_its_part(python) -> None:
    python(
        LOADED
        + """
assert loaded() == [], loaded()
got = torch.compile(lambda x: x * 2 + 1)(torch.ones(3, device="openreg"))
assert got.tolist() == [3, 3, 3]
assert loaded() == ["_C_compile", "_compile"], loaded()
"""
    )


# the first graph loads its part; asking whether a stream is captured does not
@pytest.mark.skipif("not hasattr(__import__('torch')._C, '_acceleratorGraph')")
def test_a_captured_graph_loads_its_part(python) -> None:
    python(
        LOADED
        + """
x = torch.ones(3, device="openreg")
assert not torch.openreg.is_current_stream_capturing()
assert loaded() == [], loaded()
graph = torch.openreg.OpenRegGraph()
with torch.openreg.graph(graph):
    x += 1
graph.replay()
assert x.tolist() == [2, 2, 2]
assert loaded() == ["_graph"], loaded()
"""
    )


# a driver with kernels of its own: the first operator on its device loads the part that calls them
def test_a_driver_with_kernels_loads_their_part(python, tmp_path: Path) -> None:
    library = compile_driver(tmp_path, "kernels_driver.c")
    python(
        LOADED
        + """
x = torch.empty(3, device="openreg")
assert loaded() == [], loaded()
x.fill_(2)
assert (x + x).tolist() == [4, 4, 4]
assert loaded() == ["_kernels"], loaded()
""",
        OPENREG_DRIVER_LIBRARIES=f"kernels:{library}",
    )
