# SPDX-License-Identifier: BSD-3-Clause
"""A collective is work of a stream: wait() makes a stream wait and not the host, and who forgets it reads old data."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from two_ranks import WORLD, Checks, Peer, assert_ended_well, assert_passed, reports_of

CHECKS = Checks("gloo")
check = CHECKS.check("gloo")
HELD_BACK = 0.3  # seconds, where time is measured


@check
def forgotten_wait(rank: int, device: torch.device) -> None:
    """A program that reads the result before wait() has the old data; afterwards it has the new."""
    x = torch.full((1000,), 1.0 + rank, device=device)
    peer = Peer(rank)
    work = dist.all_reduce(x, async_op=True)
    early = x.clone()
    work.wait()
    if rank == 0:
        peer.come()
        assert early.tolist() == [1.0] * 1000
    assert x.tolist() == [3.0] * 1000


@check
def result_of_another_tensor(rank: int, device: torch.device) -> None:
    """Outputs that are other tensors than the inputs are as late."""
    out = torch.zeros(2 * WORLD, device=device)
    peer = Peer(rank)
    work = dist.all_gather_into_tensor(out, torch.full((2,), 1.0 + rank, device=device), async_op=True)
    early = out[2:].clone()
    work.wait()
    if rank == 0:
        peer.come()
        assert early.tolist() == [0.0] * 2
    assert out.tolist() == [1.0, 1.0, 2.0, 2.0]


@check
def host_goes_on(rank: int, device: torch.device) -> None:
    """Neither the collective nor wait() holds the host up; the copy to the host does, and has the result."""
    x = torch.full((1000,), 1.0 + rank, device=device)
    peer = Peer(rank)
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    if rank == 0:
        assert not work.is_completed()
        peer.come()  # only now: a wait() that holds the host up never ends
    assert x.tolist() == [3.0] * 1000
    assert work.is_completed()
    assert work.is_success()


@check
def host_goes_on_behind_calls_that_wait(rank: int, device: torch.device) -> None:
    """Without async_op=True, too: such a call holds the host up for a moment at most."""
    x, part = torch.full((4,), 1.0 + rank, device=device), torch.zeros(2, device=device)
    calls = [
        lambda: dist.all_reduce(x),
        lambda: dist.broadcast(x, 1),
        lambda: dist.reduce_scatter_tensor(part, x),
        lambda: dist.all_gather_into_tensor(x, part),
    ]
    for call in calls:
        peer = Peer(rank)
        call()
        if rank == 0:
            peer.come()
    assert x.tolist() == [6.0] * 4
    assert part.tolist() == [6.0] * 2


@check
def result_after_wait(rank: int, device: torch.device) -> None:
    """Behind wait() the results can be had before they are there; in order with the stream. Before wait() they can't."""
    x = torch.full((3,), 1.0 + rank, device=device)
    peer = Peer(rank)
    work = dist.all_reduce(x, async_op=True)
    if rank == 0:
        with pytest.raises(RuntimeError, match=r"before calling result\(\)"):
            work.result()
    work.wait()
    (result,) = work.result()
    if rank == 0:
        peer.come()
    assert result.tolist() == [3.0] * 3


@check
def future_after_wait(rank: int, device: torch.device) -> None:
    """Behind wait() the future has its value, though the host didn't wait there: DDP asks for it with uneven inputs."""
    for _ in range(20):
        x = torch.full((3,), 1.0 + rank, device=device)
        peer = Peer(rank)
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        if rank == 0:
            peer.come()
        (value,) = work.get_future().value()
        assert value.tolist() == [3.0] * 3


@check
def reduce_scatter_goes_on(rank: int, device: torch.device) -> None:
    """Of a collective that gloo itself ends in its wait(), too."""
    out = torch.zeros(3, device=device)
    whole = torch.arange(6.0, device=device) + rank
    peer = Peer(rank)
    work = dist.reduce_scatter_tensor(out, whole, async_op=True)
    early = out.clone()
    if rank == 0:
        with pytest.raises(RuntimeError, match=r"timed out!?\nIn reduce_scatter_tensor in rank 0 of 2: float32"):
            work.wait(datetime.timedelta(milliseconds=10))
    work.wait()
    if rank == 0:
        assert not work.is_completed()
        peer.come()
        assert early.tolist() == [0.0] * 3
    assert out.tolist() == [2.0 * i + 1 for i in range(3 * rank, 3 * rank + 3)]
    assert work.is_completed()
    assert work.is_success()
    assert work.wait(datetime.timedelta(seconds=60))
    assert [x.tolist() for x in work.result()] == [out.tolist()]


@check
def messages_go_on(rank: int, device: torch.device) -> None:
    """wait() of a message makes the stream wait that is current then, and not the host; others go on."""
    x = torch.zeros(1000, device=device)
    peer = Peer(rank)
    if rank == 1:
        for value in (2.0, 3.0):
            dist.send(torch.full((1000,), value, device=device), 0)
        return
    work = dist.irecv(x, 1)
    assert work is not None
    early = x.clone()
    work.wait()
    assert not work.is_completed()
    with torch.openreg.stream(torch.openreg.Stream(device)):
        assert torch.ones(3, device=device).sum().item() == 3.0
    peer.come()
    later = torch.zeros(1000, device=device)
    dist.recv(later, 1)
    assert (early[7].item(), x[7].item(), later[7].item()) == (0.0, 2.0, 3.0)
    assert work.is_completed()
    assert work.is_success()
    assert work.wait(datetime.timedelta(seconds=60))


@check
def many_messages(rank: int, device: torch.device) -> None:
    """Pending ones in both directions, tags in another order than the sender's, tensors that nobody keeps; no thread for each."""
    before = len(os.listdir("/proc/self/task"))
    works = [dist.isend(torch.full((100,), float(i + rank), device=device), 1 - rank, tag=i) for i in range(100)]
    got = {tag: torch.zeros(100, device=device) for tag in reversed(range(100))}
    works += [dist.irecv(x, 1 - rank, tag=tag) for tag, x in got.items()]
    for work in works[100:] + works[:100]:
        assert work is not None
        work.wait()
    assert len(os.listdir("/proc/self/task")) < before + 20
    assert [got[tag][99].item() for tag in range(100)] == [float(i + 1 - rank) for i in range(100)]


@check
def reduce_scatters_in_a_row(rank: int, device: torch.device) -> None:
    """Many of them beside other collectives, in lists and as one tensor, with inputs that nobody keeps."""
    works, results = [], []
    for i in range(20):
        out = torch.empty(10, device=device)
        works.append(dist.reduce_scatter_tensor(out, torch.full((20,), float(i + rank), device=device), async_op=True))
        results.append(out)
        out = torch.empty(10, device=device)
        parts = [torch.full((10,), float(i), device=device) for _ in range(WORLD)]
        works.append(dist.reduce_scatter(out, parts, async_op=True))
        results.append(out)
        works.append(dist.all_reduce(torch.ones(5, device=device), async_op=True))
    for work in reversed(works):
        work.wait()
    assert [x[9].item() for x in results] == [value for i in range(20) for value in (2.0 * i + 1, 2.0 * i)]


@check
def pending_reduce_scatters_share_a_thread(rank: int, device: torch.device) -> None:
    """A hundred that wait for a peer don't take a hundred threads."""
    results = [torch.zeros(2, device=device) for _ in range(100)]
    peer = Peer(rank)
    before = len(os.listdir("/proc/self/task"))
    works = [dist.reduce_scatter_tensor(x, torch.ones(4, device=device), async_op=True) for x in results]
    if rank == 0:
        assert not any(work.is_completed() for work in works)
        assert len(os.listdir("/proc/self/task")) < before + 20  # gloo's and the runtime's may begin meanwhile
        peer.come()
    for work in works:
        work.wait()
    assert [x.tolist() for x in results] == [[2.0] * 2] * 100


@check
def another_stream_waits(rank: int, device: torch.device) -> None:
    """wait() makes the stream wait that is current then; others go on, and may wait for its events."""
    side, x, y = torch.openreg.Stream(device), torch.full((8,), 1.0 + rank, device=device), torch.ones(8).pin_memory()
    side.wait_stream(torch.openreg.current_stream(device))
    peer = Peer(rank)
    work = dist.all_reduce(x, async_op=True)
    with torch.openreg.stream(side):
        work.wait()
        done = side.record_event()
    assert y.to(device, non_blocking=True).sum().item() == 8
    if rank == 0:
        assert not done.query()
        peer.come()
    torch.openreg.current_stream(device).wait_event(done)
    assert x.tolist() == [3.0] * 8


@check
def events_measure_it(rank: int, device: torch.device) -> None:
    """Events around a collective whose peer is held back are as far apart as that takes."""
    first, second = (torch.openreg.Event(enable_timing=True) for _ in range(2))
    x = torch.full((8,), 1.0 + rank, device=device)
    peer = Peer(rank)
    first.record()
    dist.all_reduce(x)
    second.record()
    if rank == 0:
        first.synchronize()
        time.sleep(HELD_BACK)
        peer.come()
    second.synchronize()
    if rank == 0 and "OPENREG_SIM_SEED" not in os.environ:  # with a seed time is made of the work, and has no delays
        assert first.elapsed_time(second) > 0.9e3 * HELD_BACK


@check
def a_device_waits_for_its_collectives(rank: int, device: torch.device) -> None:
    """synchronize() waits for a collective whose work nobody waits for, also where its peer comes late."""
    if rank == 1:
        time.sleep(HELD_BACK)
    x = torch.full((1000,), 1.0 + rank, device=device)
    work = dist.all_reduce(x, async_op=True)
    torch.openreg.synchronize(device)
    assert x[0].item() == 3.0
    work.wait()


@check
def works_in_a_row(rank: int, device: torch.device) -> None:
    """Many works at once, in two groups, with inputs that nobody keeps, waited for in another order."""
    groups = [dist.group.WORLD, dist.new_group()]
    works, results = [], []
    for i in range(40):
        x = torch.full((100 + i,), float(i + rank), device=device)
        works.append(dist.all_reduce(x, group=groups[i % 2], async_op=True))
        results.append(x)
        works.append(dist.broadcast(torch.full((50,), float(i), device=device), 0, group=groups[i % 2], async_op=True))
        del x
    for work in reversed(works):
        work.wait()
    assert [x[0].item() for x in results] == [2.0 * i + 1 for i in range(40)]


@check
def results_outlive_their_works(rank: int, device: torch.device) -> None:
    """A work that is dropped before the peer has come brings its result all the same; memory comes back."""
    torch.openreg.synchronize(device)
    before = torch.openreg.memory_allocated(device)
    x = torch.full((1 << 18,), 1.0 + rank, device=device)
    peer = Peer(rank)
    dist.all_reduce(x, async_op=True)
    dist.all_reduce(torch.ones(1 << 18, device=device), async_op=True)
    peer.come()
    dist.barrier()
    torch.openreg.synchronize(device)
    assert x[0].item() == 3.0
    del x
    deadline = time.monotonic() + 5
    while torch.openreg.memory_allocated(device) > before:
        assert time.monotonic() < deadline, torch.openreg.memory_allocated(device) - before
        time.sleep(0.01)


# The simulated devices' own order, copies of the results on the way, and a schedule in which only what a wait needs runs.
SETTINGS = {
    "as they come": {},
    "staged": {"OPENREG_OPERATORS": "staged"},
    "under a seed": {"OPENREG_SIM_SEED": "0"},
}


@pytest.fixture(scope="module", params=["as they come", "under a seed", pytest.param("staged", marks=pytest.mark.long)])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return reports_of(__file__, tmp_path_factory.mktemp("ranks"), **SETTINGS[request.param])


# acceptance 5.9
@pytest.mark.parametrize("name", list(CHECKS.names()))
def test_two_ranks(ranks: list[dict[str, Any]], name: str) -> None:
    assert_passed(ranks, name)


def test_ranks_end_well(ranks: list[dict[str, Any]]) -> None:
    assert_ended_well(ranks)


# OPENREG_BLOCKING_WAIT=1: wait() holds the host up and has the error of a peer that is gone; another value is refused
def test_blocking_wait(tmp_path: Path) -> None:
    program = """
import datetime, os, sys, torch, torch.distributed as dist
rank = int(sys.argv[1])
store = dist.FileStore(sys.argv[2], 2)
dist.init_process_group("gloo", rank=rank, world_size=2, store=store, timeout=datetime.timedelta(seconds=20))
x = torch.ones(3, device="openreg")
dist.all_reduce(x)
print(x.tolist())
if rank == 0:
    work = dist.all_reduce(x, async_op=True)
    try:
        work.wait()
    except RuntimeError as error:
        print("In all_reduce in rank 0 of 2: float32[3] on openreg:0." in str(error))
    os.environ["OPENREG_BLOCKING_WAIT"] = "yes"
    try:
        work.wait()
    except RuntimeError as error:
        print("OPENREG_BLOCKING_WAIT must be '0' or '1', but is 'yes'." in str(error))
sys.stdout.flush()
os._exit(0)
"""
    environment = os.environ | {"OPENREG_BLOCKING_WAIT": "1"}
    command = [sys.executable, "-c", program]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE, text=True, env=environment
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=100)[0] for process in processes]
    assert outputs == ["[2.0, 2.0, 2.0]\nTrue\nTrue\n", "[2.0, 2.0, 2.0]\n"]


# a process that ends behind a collective ends well, and its peer, who comes later, has the result: gloo's thread lets go of a
# tensor and wants the GIL, which the main thread holds until the interpreter ends (aborted two times in three)
@pytest.mark.parametrize(("last", "expected"), [("all_reduce", "4.0 0.0\n"), ("reduce_scatter", "4.0 8.0\n")])
def test_ending_behind_a_collective(tmp_path: Path, last: str, expected: str) -> None:
    program = """
import sys, time, torch, torch.distributed as dist
rank = int(sys.argv[1])
dist.init_process_group("gloo", rank=rank, world_size=2, store=dist.FileStore(sys.argv[2], 2))
x, out = torch.ones(1 << 16, device="openreg"), torch.zeros(1 << 15, device="openreg")
dist.all_reduce(x)
x.cpu()
if rank == 1:
    time.sleep(0.5)
sys.setswitchinterval(1000)
dist.all_reduce(x)
if sys.argv[3] == "reduce_scatter":
    dist.reduce_scatter_tensor(out, x)
if rank == 1:
    print(x[0].item(), out[0].item())
end = time.monotonic() + 1.5
while rank == 0 and time.monotonic() < end:
    pass
"""
    command = [sys.executable, "-W", "ignore", "-c", program]
    processes = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store"), last], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=100)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert outputs == ["", expected]


if __name__ == "__main__":
    CHECKS.main()
