# SPDX-License-Identifier: BSD-3-Clause
"""What fails once in many runs: how processes end, profilers around collectives, DDP.join() under the race detector, and
what grows with the number of calls or groups.

The file is also the program: `test_many_times.py NAME COUNT` imports torch once and makes a copy of itself for each of two
ranks of each run, which ends as a program does, through the interpreter's own end.
"""

from __future__ import annotations

import datetime
import gc
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from two_ranks import WORLD

LIMIT = 120  # seconds for a run

# Called in both ranks of each run, with the rank, its device and the number of the run or, where there is one run, the count.
Scenario = Callable[[int, torch.device, int], None]
RUNS: dict[str, Scenario] = {}  # as many pairs of processes
CALLS: dict[str, Scenario] = {}  # one pair, which does something so often


def scenario(table: dict[str, Scenario]) -> Callable[[Scenario], Scenario]:
    def register(function: Scenario) -> Scenario:
        table[function.__name__] = function
        return function

    return register


def begin_and_wait(device: torch.device) -> None:
    """A collective that is over: both ranks are connected, and their libraries are loaded."""
    x = torch.ones(1000, device=device)
    dist.all_reduce(x)
    assert x[0].item() == WORLD


def begin(rank: int, device: torch.device, index: int) -> list[Any]:
    """Collectives that the peer never makes, of a kind that the number chooses, with tensors that nobody keeps."""
    x, part = torch.ones(1000, device=device), torch.ones(500, device=device)
    kinds: list[Callable[[], Any]] = [
        lambda: dist.all_reduce(x, async_op=True),
        lambda: dist.reduce_scatter_tensor(part, x, async_op=True),
        lambda: dist.irecv(x, 1 - rank),
        lambda: dist.broadcast(x, 1 - rank, async_op=True),
        lambda: dist.all_gather_into_tensor(x, part, async_op=True),
    ]
    return [kinds[index % len(kinds)]() for _ in range(3)]


@scenario(RUNS)
def ends_with_pending(rank: int, device: torch.device, index: int) -> None:
    """The process ends while collectives wait for a peer that has ended; works are kept, dropped, or waited for by streams."""
    begin_and_wait(device)
    if rank == 0:
        works = begin(rank, device, index)
        if index % 3 == 0:
            globals()["kept"] = works
        elif index % 3 == 1:
            for work in works:
                work.wait()  # of the stream: nothing of it is read


@scenario(RUNS)
def ends_aborted(rank: int, device: torch.device, index: int) -> None:
    """The group is aborted with collectives in it, by one rank or both."""
    begin_and_wait(device)
    works = begin(rank, device, index) if rank == 0 else []
    if rank == 0 or index % 2 == 0:
        dist.distributed_c10d._abort_process_group()
    del works


@scenario(RUNS)
def ends_without_destroy(rank: int, device: torch.device, index: int) -> None:
    """Nobody destroys the group, or others that were made, whose collectives are over, or nearly."""
    group = dist.new_group() if index % 2 == 0 else dist.group.WORLD
    x = torch.ones(5000, device=device)
    for _ in range(5):
        dist.all_reduce(x, group=group, async_op=True)
    if index % 3 == 0:
        x.cpu()
    if index % 3 == 1:
        globals()["kept"] = (group, x)


@scenario(RUNS)
def profiled(rank: int, device: torch.device, index: int) -> None:
    """A profile of the process that is its first one: each call is one event, in order, and takes no negative time."""
    from test_collective_profiles import CALLS as KINDS
    from test_collective_profiles import named, profilers
    from torch.autograd import profiler

    makers = list(profilers().values())
    x, y = torch.ones(6, device=device), torch.ones(3, device=device)
    with makers[index % len(makers)]() as profile:
        with profiler.record_function("step"):
            for call in KINDS.values():
                for _ in range(10):
                    call(x, y)
            works = [dist.all_reduce(torch.ones(5000, device=device), async_op=True) for _ in range(10)]
    if index % 2 == 0:
        for work in works:
            work.wait()
    (step,) = named(profile, "step")
    for name in KINDS:
        events = named(profile, f"gloo:{name}")
        assert len(events) == (20 if name == "all_reduce" else 10), (name, len(events))
        assert all(event.cpu_time_total >= 0 for event in events), name
        assert all(step.time_range.start <= event.time_range.start <= step.time_range.end for event in events), name
    dist.destroy_process_group()


@scenario(RUNS)
def joined(rank: int, device: torch.device, index: int) -> None:
    """DDP.join() with inputs that end early in one rank, under a race detector that raises."""
    assert os.environ["OPENREG_SIM_RACES"] == "raise"
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(50, 50), torch.nn.ReLU(), torch.nn.Linear(50, 5)).to(device)
    ddp = torch.nn.parallel.DistributedDataParallel(model, device_ids=[device], bucket_cap_mb=0.001)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    with ddp.join(divide_by_initial_world_size=index % 2 == 0):
        for _ in range(5 + rank * (1 + index % 7)):
            ddp(torch.ones(4, 50, device=device)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    torch.openreg.synchronize(device)
    weights = [torch.zeros_like(model[2].weight) for _ in range(WORLD)]
    dist.all_gather(weights, model[2].weight.detach())
    assert torch.equal(weights[0].cpu(), weights[1].cpu())
    dist.destroy_process_group()


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def files() -> int:
    return len(os.listdir("/proc/self/fd"))


def resident() -> int:
    """Bytes of memory that the process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@scenario(CALLS)
def pending_reduce_scatters(rank: int, device: torch.device, count: int) -> None:
    """All of them wait for a peer, in one thread, and have their results when it comes."""
    begin_and_wait(device)
    dist.barrier()
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["come"], datetime.timedelta(seconds=LIMIT))
    before = threads()
    results = [torch.zeros(2, device=device) for _ in range(count)]
    works = [dist.reduce_scatter_tensor(x, torch.ones(4, device=device), async_op=True) for x in results]
    if rank == 0:
        assert not any(work.is_completed() for work in works)
        print(f"{count} pending, {threads() - before} threads more", flush=True)
        assert threads() < before + 20
        store.set("come", "now")
    for work in works:
        work.wait()
    assert [x.tolist() for x in results] == [[2.0] * 2] * count
    dist.destroy_process_group()


@scenario(CALLS)
def groups(rank: int, device: torch.device, count: int) -> None:
    """Groups that are made, used and destroyed leave no thread, file or memory once the device has all of its streams."""
    x = torch.ones(100, device=device)
    before = (0, 0, 0)
    early = 40  # streams of a device are 32, in turn, and a simulated one has a thread
    for i in range(count):
        group = dist.new_group()
        work = dist.all_reduce(x, group=group, async_op=True)  # on a stream, however soon it ends
        work.wait()
        dist.all_reduce(torch.ones(3), group=group)
        dist.destroy_process_group(group)
        del group, work
        if i == early:
            torch.openreg.synchronize(device)
            before = (threads(), files(), resident())
    torch.openreg.synchronize(device)
    after = (threads(), files(), resident())
    print(f"rank {rank}: threads, files, bytes after {early} groups {before}, after {count} {after}", flush=True)
    assert after[0] <= before[0] + 2 and after[1] <= before[1] + 2
    assert after[2] <= before[2] + (4 << 20) + 8000 * count  # torch.distributed knows names of groups for ever
    dist.destroy_process_group()


def run_rank(function: Scenario, rank: int, folder: Path, number: int) -> None:
    """The program of a rank, up to the end of the interpreter."""
    torch.set_num_threads(1)
    torch.openreg.set_device(rank)
    store = dist.FileStore(str(folder / "store"), WORLD)
    timeout = datetime.timedelta(seconds=LIMIT)
    dist.init_process_group("gloo", rank=rank, world_size=WORLD, store=store, timeout=timeout)
    function(rank, torch.device("openreg", rank), number)
    (folder / f"done{rank}").touch()


def run_pair(function: Scenario, number: int) -> list[str] | None:
    """A run in two copies of this process, which it waits for. None: this is a copy, whose program is over.

    Returns:
        What went wrong.
    """
    folder = Path(tempfile.mkdtemp())
    processes = []
    sys.stdout.flush()
    for rank in range(WORLD):
        process = os.fork()
        if process == 0:
            run_rank(function, rank, folder, number)
            return None
        processes.append(process)
    errors: list[str] = []
    deadline = time.monotonic() + LIMIT
    for rank, process in enumerate(processes):
        found, status = 0, 0
        while found == 0 and time.monotonic() < deadline:
            found, status = os.waitpid(process, os.WNOHANG)
            time.sleep(0.01)
        if found == 0:
            os.kill(process, 9)
            os.waitpid(process, 0)
            errors.append(f"rank {rank} did not end within {LIMIT} s")
        elif status != 0 or not (folder / f"done{rank}").exists():
            errors.append(f"rank {rank} ended with {os.waitstatus_to_exitcode(status)}")
    shutil.rmtree(folder)
    return [f"run {number}: {error}" for error in errors]


def main() -> None:
    """Runs a scenario as often as the command line says."""
    name, count = sys.argv[1], int(sys.argv[2])
    warnings.simplefilter("ignore")
    gc.freeze()  # what is imported is not looked through at the end of each copy, which takes most of its time
    runs = [(CALLS[name], count)] if name in CALLS else [(RUNS[name], number) for number in range(count)]
    failures: list[str] = []
    begin_time = time.monotonic()
    for function, number in runs:
        errors = run_pair(function, number)
        if errors is None:
            return
        failures += errors
    print(f"{name}: {count}, {len(failures)} failures, {time.monotonic() - begin_time:.0f} s")
    print("\n".join(failures))
    sys.exit(1 if failures else 0)


# The numbers that a release is tried with: OPENREG_TEST_TIMES=10 pytest -m long (OPENREG_TEST_LONG=1).
COUNTS = dict.fromkeys(RUNS, 20) | {"pending_reduce_scatters": 300, "groups": 100}


@pytest.mark.long
@pytest.mark.parametrize("name", list(COUNTS))
def test_many_times(name: str) -> None:
    count = COUNTS[name] * int(os.environ.get("OPENREG_TEST_TIMES", "1"))
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("OPENREG_", "TORCH_DISTRIBUTED_"))}
    settings = {"OPENREG_SIM_DEVICES": "2", "OPENREG_PREFERENCES": os.devnull}
    if name == "joined":
        settings["OPENREG_SIM_RACES"] = "raise"
    command = [sys.executable, "-W", "ignore", __file__, name, str(count)]
    done = subprocess.run(
        command, env=kept | settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    print(done.stdout[-5000:])
    assert done.returncode == 0, done.stdout[-5000:]


if __name__ == "__main__":
    main()
