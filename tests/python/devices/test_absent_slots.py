# SPDX-License-Identifier: BSD-3-Clause
"""A driver may leave out each optional slot (driver.h): a program that uses every part still ends, with the same results."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

LAYER = Path(os.environ.get("OPENREG_BUILD_DIR", "build"), "tests/drivers/without_layer.so").resolve()

# Names of slots, and of groups of slots that come together (driver_slots.h).
SLOTS = ("device_info", "fill", "stream", "stream_wait", "event", "event_elapsed", "host_func", "device_active")
SLOTS += ("device_bind", "host memory", "mem_info", "host_alias", "stream_native", "describe", "extension")

# What each program imports is there before it, without openreg.
START = """
import os
import sys
import tempfile
import traceback

import torch
import torch._inductor  # the profiler does
import torch.distributed as dist
import torch.distributed._functional_collectives
from torch.profiler import ProfilerActivity, profile

torch.set_num_threads(1)


def run(slots):
    os.environ["OPENREG_SIM_WITHOUT"] = slots
    import torch_openreg

    exec(PROGRAM, globals())


for slots in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            run(slots)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    if os.waitpid(child, 0)[1] != 0:
        sys.exit(f"without {slots}")
"""

PROGRAM = """
store = tempfile.mktemp()
other = os.fork()
rank = int(other != 0)
device = torch.device("openreg", rank)
torch.openreg.set_device(device)
here, there = torch.ones(1000, device=device), torch.ones(1000, device=f"openreg:{1 - rank}")

# streams, events, copies, pinned memory
side, start, end = torch.Stream(device), torch.Event(device, enable_timing=True), torch.Event(device, enable_timing=True)
start.record()
with side:
    side.wait_event(start)
    total = here.to(there.device, non_blocking=True).to(device, non_blocking=True) + here
    end.record()
torch.accelerator.current_stream().wait_stream(side)
end.synchronize()
assert side.query() and end.query() and start.elapsed_time(end) >= 0
pinned = torch.ones(1000).pin_memory()
total += pinned.to(device, non_blocking=True)
assert total.tolist() == [3.0] * 1000 and torch.zeros(3, device=device).tolist() == [0.0] * 3
torch.accelerator.synchronize()

# a graph
x, graph = torch.ones(8, device=device), torch.openreg.OpenRegGraph()
with torch.openreg.graph(graph):
    y = x * 2 + torch.randn_like(x) * 0
x.fill_(3)
graph.replay()
assert y.tolist() == [6.0] * 8

# collectives: several at once, one that the other rank comes to late, messages in both directions
dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as profiled:
    sums = [torch.full((1000,), 1.0 + rank, device=device) for _ in range(4)]
    works = [dist.all_reduce(x, async_op=True) for x in sums]
    for work in works:
        work.wait()
    if rank == 0:
        torch.openreg.synchronize()
    gathered = torch.zeros(4, device=device)
    stream = torch.Stream(device)
    stream.wait_stream(torch.accelerator.current_stream())  # `gathered` is filled there
    with stream:
        dist.all_gather_into_tensor(gathered, torch.full((2,), 1.0 + rank, device=device))
    torch.accelerator.current_stream().wait_stream(stream)
    got = torch.zeros(3, device=device)
    calls = [dist.P2POp(dist.isend, sums[0][:3], 1 - rank), dist.P2POp(dist.irecv, got, 1 - rank)]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
assert all(x.tolist() == [3.0] * 1000 for x in sums) and gathered.tolist() == [1.0, 1.0, 2.0, 2.0]
assert got.tolist() == [3.0] * 3
assert any(event.name == "aten::fill_" for event in profiled.events())
dist.destroy_process_group()
torch.accelerator.synchronize()

if rank == 1:
    _, status = os.waitpid(other, 0)
    assert status == 0, status
"""


def run(python: Callable[..., Any], slots: Iterable[str]) -> None:
    code = f"PROGRAM = {PROGRAM!r}\n{START}"
    layer = {"OPENREG_DRIVERS": "sim", "OPENREG_LAYERS": f"without:{LAYER}", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    python("import sys; sys.argv[1:] = " + repr(list(slots)) + "\n" + code, timeout=600, **layer)


@pytest.mark.fresh
def test_a_driver_without_one_of_them(python: Callable[..., Any]) -> None:
    run(python, SLOTS)


@pytest.mark.long
@pytest.mark.fresh
def test_a_driver_without_two_of_them(python: Callable[..., Any]) -> None:
    run(python, map(",".join, itertools.combinations(SLOTS, 2)))


# every optional slot of the ABI is in the list
def test_all_slots_are_tried(root: Path) -> None:
    text = (root / "runtime/src/driver/driver_slots.h").read_text(encoding="utf-8")
    rows = [line.split("X(")[1].split(")")[0].split(", ") for line in text.splitlines() if line.startswith("    X(")]
    assert {group.strip('"') or name for name, group in rows if group != "OPENREG_SLOT_REQUIRED"} == set(SLOTS)
