# SPDX-License-Identifier: BSD-3-Clause
"""What gloo can't do is refused at the call, in every rank that has such a tensor, as NCCL does."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from two_ranks import NIGHTLY_STAGED, WORLD, Checks, assert_ended_well, assert_passed, fixture_of, reports_of

CHECKS = Checks("gloo")
check = CHECKS.check("gloo")

LACKING = (torch.int16, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn)
OPS = dist.ReduceOp

# Each is called with a function that makes a tensor of so many elements, and the rank.
Maker = Callable[[int], torch.Tensor]
MOVING: dict[str, Callable[[Maker, int, int], Any]] = {
    "broadcast": lambda t, n, rank: dist.broadcast(t(n), 0, async_op=True),
    "all_gather": lambda t, n, rank: dist.all_gather([t(n), t(n)], t(n), async_op=True),
    "all_gather_into_tensor": lambda t, n, rank: dist.all_gather_into_tensor(t(2 * n), t(n), async_op=True),
    "gather": lambda t, n, rank: dist.gather(t(n), [t(n), t(n)] if rank == 0 else None, 0, async_op=True),
    "scatter": lambda t, n, rank: dist.scatter(t(n), [t(n), t(n)] if rank == 0 else None, 0, async_op=True),
    "all_to_all": lambda t, n, rank: dist.all_to_all([t(n), t(n)], [t(n), t(n)], async_op=True),
    "all_to_all_single": lambda t, n, rank: dist.all_to_all_single(t(2 * n), t(2 * n), async_op=True),
}
REDUCING: dict[str, Callable[[Maker, int, Any], Any]] = {
    "all_reduce": lambda t, n, op: dist.all_reduce(t(n), op, async_op=True),
    "all_reduce_coalesced": lambda t, n, op: dist.all_reduce_coalesced([t(n), t(n)], op, async_op=True),
    "reduce": lambda t, n, op: dist.reduce(t(n), 1, op, async_op=True),
    "reduce_scatter": lambda t, n, op: dist.reduce_scatter(t(n), [t(n), t(n)], op, async_op=True),
    "reduce_scatter_tensor": lambda t, n, op: dist.reduce_scatter_tensor(t(n), t(2 * n), op, async_op=True),
}


def making(device: torch.device, dtype: torch.dtype = torch.float32) -> Maker:
    return lambda n: torch.zeros(n, dtype=dtype).to(device)


def assert_group_is_well(device: torch.device) -> None:
    """Nothing is pending in gloo that a rank alone has begun."""
    x = torch.ones(3, device=device)
    dist.all_reduce(x)
    assert x.tolist() == [float(WORLD)] * 3


@check
def types(rank: int, device: torch.device) -> None:
    """A type that gloo lacks, of tensors without elements too."""
    for dtype in LACKING:
        make = making(device, dtype)
        for n in (3, 0):
            for name, call in MOVING.items():
                with pytest.raises(TypeError, match=r"Invalid scalar type"):
                    call(make, n, rank)
                    pytest.fail(name)
            for name, reduce in REDUCING.items():
                with pytest.raises(TypeError, match=r"Invalid scalar type"):
                    reduce(make, n, OPS.SUM)
                    pytest.fail(name)
    with pytest.raises(TypeError, match=r"Invalid scalar type"):
        MOVING["gather"](making(device, torch.complex64), 3, rank)
    assert_group_is_well(device)


@check
def types_of_messages(rank: int, device: torch.device) -> None:
    """Messages have any type."""
    for dtype in LACKING:
        x = torch.full((3,), 2).to(dtype).to(device)
        out = torch.zeros(3, dtype=dtype).to(device)
        for work in [dist.isend(x, 1 - rank), dist.irecv(out, 1 - rank)]:
            assert work is not None
            work.wait()
        assert out.cpu().float().tolist() == [2.0] * 3


@check
def reductions(rank: int, device: torch.device) -> None:
    """Bits of what has none, averages of integers, premultiplied sums of them, an order of complex numbers."""
    premultiplied = dist._make_nccl_premul_sum(2.0)
    refused = [(torch.float32, op, "non-integral") for op in (OPS.BAND, OPS.BOR, OPS.BXOR)]
    refused += [(torch.int64, premultiplied, "PREMUL_SUM")]
    refused += [(torch.int64, OPS.AVG, "AVG is for"), (torch.bool, OPS.AVG, "AVG is for")]
    for dtype, op, text in refused:
        for name, reduce in REDUCING.items():
            with pytest.raises(RuntimeError, match=text):
                reduce(making(device, dtype), 3, op)
                pytest.fail(name)
    for name in ("reduce", "reduce_scatter", "reduce_scatter_tensor"):
        with pytest.raises(RuntimeError, match="complex"):
            REDUCING[name](making(device, torch.complex64), 3, OPS.MAX)
    assert_group_is_well(device)


@check
def premultiplied_sums(rank: int, device: torch.device) -> None:
    """What gloo lacks and NCCL has: a sum of what is multiplied first, by a number or a tensor; the inputs stay as they are."""

    def make(n: int) -> torch.Tensor:
        return torch.full((n,), 2.0 + rank, device=device)

    for factor in (0.5, torch.full((1,), 0.5, device=device)):
        op = dist._make_nccl_premul_sum(factor)
        one, several, root = torch.nn.Parameter(make(3)), [make(1), make(2)], make(3)
        dist.all_reduce(one, op)
        dist.all_reduce_coalesced(several, op)
        dist.reduce(root, 1, op)
        assert torch.cat([one.detach(), *several]).tolist() == [2.5] * 6
        assert root.tolist() == [2.5 if rank == 1 else 2.0] * 3
        inputs, outputs = [make(3), make(3)], [torch.zeros(3, device=device) for _ in range(2)]
        dist.reduce_scatter(outputs[0], inputs, op)
        dist.reduce_scatter_tensor(outputs[1], torch.cat(inputs), op)
        assert torch.cat(outputs).tolist() == [2.5] * 6
        assert torch.cat(inputs).tolist() == [2.0 + rank] * 6
    assert_group_is_well(device)


@check
def parts(rank: int, device: torch.device) -> None:
    """Parts that don't add up to the tensor, or are negative."""
    x, y = torch.zeros(4, device=device), torch.zeros(4, device=device)
    for received, sent in (([3, 3], [2, 2]), ([2, 2], [3, 3]), ([5, -1], [5, -1]), ([4], [4])):
        with pytest.raises(RuntimeError, match=r"[Ss]plit"):
            dist.all_to_all_single(x, y, received, sent, async_op=True)
    with pytest.raises(RuntimeError, match="divide equally"):
        dist.all_to_all_single(torch.zeros(5, device=device), torch.zeros(5, device=device), async_op=True)
    with pytest.raises(RuntimeError, match="outputs of all ranks: 8, and not 5"):
        dist.reduce_scatter_tensor(x, torch.zeros(5, device=device), async_op=True)
    assert_group_is_well(device)


@check
def own_parts(rank: int, device: torch.device) -> None:
    """What a rank gives to itself isn't what it has room for: in lists of other sizes for each rank, and in all_to_all."""
    make = making(device)
    uneven = [make(i + 1) for i in range(WORLD)]
    long = [make(5 if i == rank else 3) for i in range(WORLD)]
    calls: dict[str, Callable[[], Any]] = {
        "all_gather": lambda: dist.all_gather(uneven, make(5), async_op=True),
        "reduce_scatter": lambda: dist.reduce_scatter(make(5), uneven, async_op=True),
        "all_to_all": lambda: dist.all_to_all(long, [make(3), make(3)], async_op=True),
        "all_to_all_single": lambda: dist.all_to_all_single(
            make(6), make(6), [4, 2] if rank == 0 else [2, 4], [3, 3], async_op=True
        ),
    }
    for name, call in calls.items():
        with pytest.raises(RuntimeError, match="that is its own"):
            call()
            pytest.fail(name)
    assert_group_is_well(device)


@check
def one_type(rank: int, device: torch.device) -> None:
    """Tensors of other types in one call, where gloo moves bytes and compares none; torch.distributed itself sees lists only."""
    group, make, whole = dist.group.WORLD, making(device), making(device, torch.int32)
    assert group is not None
    for n in (3, 4):  # even and uneven ones
        mixed = [make(3), whole(n)] if rank == 0 else [whole(n), make(3)]
        calls: dict[str, Callable[[], Any]] = {
            "all_gather": lambda mixed=mixed: group.allgather([mixed], [make(3)]),
            "reduce_scatter": lambda mixed=mixed: group.reduce_scatter([make(3)], [mixed]),
            "all_to_all": lambda n=n: group.alltoall([whole(3), whole(n)], [make(3), make(n)]),
            "reduce_scatter_tensor": lambda: group._reduce_scatter_base(make(3), whole(6)),
            "all_to_all_single": lambda: group.alltoall_base(whole(4), make(4), [], []),
        }
        for name, call in calls.items():
            # an even all_gather is compared by gloo
            with pytest.raises((TypeError, RuntimeError), match="one type|invalid tensor type"):
                call()
                pytest.fail(name)
    assert_group_is_well(device)


@check
def peers(rank: int, device: torch.device) -> None:
    """A peer that the group doesn't have, and the rank itself."""
    group, x = dist.group.WORLD, torch.zeros(3, device=device)
    assert group is not None
    for peer in (WORLD, -2, rank):
        with pytest.raises(RuntimeError, match=f"rank {peer} of its group"):
            group.send([x], peer, 0)
        with pytest.raises(RuntimeError, match=f"rank {peer} of its group"):
            group.recv([x], peer, 0)
    assert_group_is_well(device)


@check
def devices(rank: int, device: torch.device) -> None:
    """A tensor of the CPU among openreg's: wait() would make a stream wait, and whoever reads it there would be early."""
    x, y = torch.ones(2, device=device), torch.ones(4, device=device)
    calls: list[Callable[[], Any]] = [
        lambda: dist.all_gather([torch.zeros(2), torch.zeros(2)], x, async_op=True),
        lambda: dist.all_gather_into_tensor(torch.zeros(4), x, async_op=True),
        lambda: dist.reduce_scatter_tensor(x, torch.zeros(4), async_op=True),
        lambda: dist.all_to_all_single(torch.zeros(4), y, async_op=True),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="must all be of openreg or all of the CPU"):
            call()
    assert_group_is_well(device)


# What ranks alone can't know: TORCH_DISTRIBUTED_DEBUG=DETAIL has them compare their calls first, as with every backend.
DETAILED = Checks("gloo")


@DETAILED.check("gloo")
def calls_that_disagree(rank: int, device: torch.device) -> None:
    """Other sizes, types and calls in another rank are refused in both, at once, and the group is well."""
    make, other = making(device), making(device, torch.int32)
    calls: dict[str, Callable[[], Any]] = {
        "size": lambda: dist.all_reduce(make(3 + rank)),
        "type": lambda: dist.all_reduce((make, other)[rank](3)),
        "call": lambda: dist.all_reduce(make(3)) if rank == 0 else dist.broadcast(make(3), 0),
    }
    for name, call in calls.items():
        with pytest.raises(RuntimeError, match="Detected mismatch between collectives"):
            call()
            pytest.fail(name)
    assert_group_is_well(device)


@DETAILED.check("gloo")
def cpu_and_device_apart(rank: int, device: torch.device) -> None:
    """Collectives of CPU and of openreg tensors in other orders don't meet there, either."""
    dist.barrier()
    results: list[float] = []

    def on_the_cpu() -> None:
        for i in range(30):
            x = torch.full((7,), float(i + rank))
            dist.all_reduce(x)
            results.append(x[0].item())

    worker = threading.Thread(target=on_the_cpu)
    worker.start()
    for i in range(30):
        y = torch.full((5,), float(2 * i + rank), device=device)
        dist.all_reduce(y)
        assert y[4].item() == 4.0 * i + 1
    worker.join()
    assert results == [2.0 * i + 1 for i in range(30)]


def test_calls_that_are_compared(tmp_path: Path) -> None:
    reports = reports_of(__file__, tmp_path, TORCH_DISTRIBUTED_DEBUG="DETAIL")
    for name in DETAILED.names():
        assert_passed(reports, name)
    assert_ended_well(reports)


ranks = fixture_of(__file__, "auto", NIGHTLY_STAGED)


# acceptance 5.9
@pytest.mark.parametrize("name", list(CHECKS.names()))
def test_two_ranks(ranks: list[dict[str, Any]], name: str) -> None:
    assert_passed(ranks, name)


def test_ranks_end_well(ranks: list[dict[str, Any]]) -> None:
    assert_ended_well(ranks)


# a group that there are no descriptors for: the error says the limit and what to raise, wherever gloo noticed
@pytest.mark.parametrize("left", [2, *(pytest.param(n, marks=pytest.mark.long) for n in (4, 6))])
def test_too_few_descriptors(left: int) -> None:
    program = """
import os, resource, sys, torch, torch.distributed as dist
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
torch.ones(1, device="openreg")
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
limit = len(os.listdir("/proc/self/fd")) + int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
groups = []
try:
    while True:
        groups.append(dist.new_group())
except RuntimeError as error:
    text = str(error)
assert f"This process may have {limit} files open" in text, text
assert "`ulimit -n" in text and "resource.RLIMIT_NOFILE" in text, text
resource.setrlimit(resource.RLIMIT_NOFILE, (limit + 100, hard))
x = torch.ones(3, device="openreg")
dist.all_reduce(x, group=dist.new_group())
print(x.tolist())
"""
    command = [sys.executable, "-W", "ignore", "-c", program, str(left)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout == "[1.0, 1.0, 1.0]\n", done.stderr[-3000:]


if __name__ == "__main__":
    (DETAILED if os.environ.get("TORCH_DISTRIBUTED_DEBUG") else CHECKS).main()
