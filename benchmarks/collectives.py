# SPDX-License-Identifier: BSD-3-Clause
"""Collectives between two processes, of openreg tensors and of the CPU's in turns: a part of bench.py.

The file is also the program of the second process.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

MIB = 1 << 20
ROUNDS = 7


def seconds(work: Callable[[], object]) -> float:
    """Of one call that both processes begin together."""
    dist.barrier()
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def times(rank: int, store: Path) -> dict[str, float]:
    """Runs what is timed, in both processes.

    Args:
        rank: 0 or 1.
        store: A file that both name and that doesn't exist yet.

    Returns:
        The least seconds of each, by name.
    """
    dist.init_process_group("gloo", rank=rank, world_size=2, store=dist.FileStore(str(store), 2))
    device = torch.device("openreg", 0)
    large = {where: torch.ones(16 * MIB, device=where) for where in ("cpu", device)}
    small = {where: torch.ones(16, device=where) for where in ("cpu", device)}
    factor = torch.randn(256, 256, device=device)

    def reduced(tensor: torch.Tensor, count: int = 1) -> Callable[[], object]:
        def run() -> None:
            for _ in range(count):
                dist.all_reduce(tensor)
            torch.openreg.synchronize(device)

        return run

    def products(count: int) -> None:
        for _ in range(count):
            torch.mm(factor, factor)

    reduce_alone = min(seconds(reduced(large[device])) for _ in range(3))
    product = min(seconds(lambda: products(20)) for _ in range(3)) / 20
    # As many as take about as long as the collective. Run in one process they leave the other's core to both collectives.
    counts = [None, None]
    dist.all_gather_object(counts, max(1, round(reduce_alone / product)))
    count = counts[0]

    def in_turns(count: int) -> Callable[[], object]:
        def run() -> None:
            reduced(large[device])()
            products(count)

        return run

    def at_once(count: int) -> Callable[[], object]:
        def run() -> None:
            work = dist.all_reduce(large[device], async_op=True)
            products(count)
            work.wait()
            torch.openreg.synchronize(device)

        return run

    own = count if rank == 0 else 0

    wanted = {
        "large on the CPU": reduced(large["cpu"]),
        "large": reduced(large[device]),
        "small on the CPU": reduced(small["cpu"], 100),
        "small": reduced(small[device], 100),
        "in turns": in_turns(count),
        "at once": at_once(count),
        "in turns, in one": in_turns(own),
        "at once, in one": at_once(own),
    }
    least = dict.fromkeys(wanted, float("inf"))
    for _ in range(ROUNDS):
        for name, work in wanted.items():
            least[name] = min(least[name], seconds(work))
    dist.barrier()
    dist.destroy_process_group()
    return least


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
