# SPDX-License-Identifier: BSD-3-Clause
"""A driver may leave out each optional slot (driver.h): a program that uses every part still ends, with the same results."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

LAYER = Path(os.environ.get("OPENREG_BUILD_DIR", "build"), "tests/drivers/without_layer.so").resolve()

# Names of slots, and of groups of slots that come together (driver_slots.h).
SLOTS = ("device_info", "fill", "stream", "stream_wait", "event", "event_elapsed", "host_func", "device_active")
SLOTS += ("device_bind", "host memory", "mem_info", "host_alias", "stream_native", "describe", "extension")

PROGRAM = """
import os
import sys
import tempfile

store = tempfile.mktemp()
other = os.fork()
rank = int(other != 0)
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

torch.set_num_threads(1)
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


def run(python: Callable[..., Any], slots: str) -> None:
    python(PROGRAM, timeout=60, OPENREG_DRIVERS="sim", OPENREG_LAYERS=f"without:{LAYER}", OPENREG_SIM_WITHOUT=slots)


# a driver without one of them
@pytest.mark.parametrize("slot", SLOTS)
def test_a_driver_without(python: Callable[..., Any], slot: str) -> None:
    run(python, slot)


# without two of them
@pytest.mark.long
@pytest.mark.parametrize("pair", list(itertools.combinations(SLOTS, 2)), ids=" and ".join)
def test_a_driver_without_two(python: Callable[..., Any], pair: tuple[str, str]) -> None:
    run(python, ",".join(pair))


# every optional slot of the ABI is in the list
def test_all_slots_are_tried(root: Path) -> None:
    text = (root / "runtime/src/driver/driver_slots.h").read_text(encoding="utf-8")
    rows = [line.split("X(")[1].split(")")[0].split(", ") for line in text.splitlines() if line.startswith("    X(")]
    assert {group.strip('"') or name for name, group in rows if group != "OPENREG_SLOT_REQUIRED"} == set(SLOTS)
