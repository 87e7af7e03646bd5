# SPDX-License-Identifier: BSD-3-Clause
"""Collectives between two processes, of openreg tensors and of the CPU's in turns: a part of bench.py.

The file is also the program of the second process.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

MIB = 1 << 20
ROUNDS = 42
LONG_ROUNDS = 7  # of what takes tens of milliseconds

# Bytes of each process's part, with the calls that are timed as one.
SIZES = {"64 B": (64, 50), "64 KiB": (64 << 10, 20), "64 MiB": (64 * MIB, 1)}
NAMES = ("all_reduce", "broadcast", "all_gather_single", "reduce_scatter_single", "send, recv")


def is_short(name: str) -> bool:
    return any(size in name for size in ("64 B", "64 KiB"))


def seconds(work: Callable[[], object]) -> float:
    """Of one call that both processes begin together."""
    dist.barrier()
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def collective(name: str, rank: int, where: torch.device, size: int, calls: int) -> Callable[[], object]:
    """Some calls of a collective over `size` bytes of float32, and the wait for them."""
    part = torch.ones(size // 4, device=where)
    both = torch.ones(2 * size // 4, device=where) if name.endswith("_single") else part
    one = {
        "all_reduce": lambda: dist.all_reduce(part),
        "broadcast": lambda: dist.broadcast(part, 0),
        "all_gather_single": lambda: dist.all_gather_single(both, part),
        "reduce_scatter_single": lambda: dist.reduce_scatter_single(part, both),
        "send, recv": lambda: dist.send(part, 1) if rank == 0 else dist.recv(part, 0),
    }[name]

    def run() -> None:
        for _ in range(calls):
            one()
        torch.openreg.synchronize(0)

    return run


def times(rank: int, store: Path) -> dict[str, float]:
    """Runs what is timed, in both processes.

    Args:
        rank: 0 or 1.
        store: A file that both name and that doesn't exist yet.

    Returns:
        The median of the seconds of each, by name: how long a thread takes to wake differs from round to round.
    """
    dist.init_process_group("gloo", rank=rank, world_size=2, store=dist.FileStore(str(store), 2))
    device = torch.device("openreg", 0)
    large = torch.ones(16 * MIB, device=device)
    factor = torch.randn(256, 256, device=device)

    def reduced() -> None:
        dist.all_reduce(large)
        torch.openreg.synchronize(device)

    def products(count: int) -> None:
        for _ in range(count):
            torch.mm(factor, factor)

    reduce_alone = min(seconds(reduced) for _ in range(3))
    product = min(seconds(lambda: products(20)) for _ in range(3)) / 20
    # As many as take about as long as the collective. Run in one process they leave the other's core to both collectives.
    counts = [None, None]
    dist.all_gather_object(counts, max(1, round(reduce_alone / product)))
    count = counts[0]

    def in_turns(count: int) -> Callable[[], object]:
        def run() -> None:
            reduced()
            products(count)

        return run

    def at_once(count: int) -> Callable[[], object]:
        def run() -> None:
            work = dist.all_reduce(large, async_op=True)
            products(count)
            work.wait()
            torch.openreg.synchronize(device)

        return run

    own = count if rank == 0 else 0

    wanted: dict[str, Callable[[], object]] = {
        "in turns": in_turns(count),
        "at once": at_once(count),
        "in turns, in one": in_turns(own),
        "at once, in one": at_once(own),
    }
    for name in NAMES:
        for size, (amount, calls) in SIZES.items():
            for where, title in ((torch.device("cpu"), " on the CPU"), (device, "")):
                wanted[f"{name}, {size}{title}"] = collective(name, rank, where, amount, calls)
    took: dict[str, list[float]] = {name: [] for name in wanted}
    for i in range(ROUNDS):
        for name, work in wanted.items():
            if i < LONG_ROUNDS or is_short(name):
                took[name].append(seconds(work))
    dist.barrier()
    dist.destroy_process_group()
    return {name: statistics.median(each) for name, each in took.items()}


def with_a_peer() -> dict[str, float]:
    """times() of this process, with another one."""
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        command = [sys.executable, __file__, str(store), str(torch.get_num_threads())]
        peer = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            return times(0, store)
        finally:
            peer.wait(60)


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[2]))
    times(1, Path(sys.argv[1]))
