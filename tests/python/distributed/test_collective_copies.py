# SPDX-License-Identifier: BSD-3-Clause
"""How many elements a collective copies for gloo: none where gloo works on the memory, else each input once.

Copies are the profiler's `aten::copy_`; gloo's own and those of results that are brought back by a call are not among them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from two_ranks import Checks, assert_ended_well, assert_passed, fixture_of

CHECKS = Checks("gloo")
check = CHECKS.check("gloo")
N = 12
IS_STAGED = os.environ.get("OPENREG_OPERATORS") == "staged"


def is_in_another(event: Any) -> bool:
    """Whether the copy is a part of one."""
    parent = event.cpu_parent
    return parent is not None and (parent.name == "aten::copy_" or is_in_another(parent))


def copied(call: Callable[[], Any]) -> int:
    """The elements that a call copies in the caller's thread."""
    first = call()  # what is made once; gloo cancels a message that is dropped before somebody has waited
    if first is not None:
        first.wait()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiled:
        work = call()
        if work is not None:
            work.wait()
        torch.openreg.synchronize()
    events = [event for event in profiled.events() if event.name == "aten::copy_" and not is_in_another(event)]
    return sum(math.prod(event.input_shapes[0]) for event in events)


def assert_copied(call: Callable[[], Any], in_place: int, staged: int) -> None:
    """Compares what a call copies where gloo works on the memory, and where it gets copies."""
    counted = copied(call)
    expected = staged if IS_STAGED else in_place
    assert counted == expected, f"{counted} elements are copied, not {expected}"


@check
def one_tensor(rank: int, device: torch.device) -> None:
    """To the host, but for what a rank only takes; a message is brought back by who waits."""
    x = torch.ones(N, device=device)
    assert_copied(lambda: dist.all_reduce(x, async_op=True), 0, N)
    for root in range(2):
        assert_copied(lambda root=root: dist.broadcast(x, root, async_op=True), 0, N if rank == root else 0)
        assert_copied(lambda root=root: dist.reduce(x, root, async_op=True), 0, N)
    assert_copied(lambda: dist.isend(x, 1) if rank == 0 else dist.irecv(x, 0), 0, N)


@check
def into_one_tensor(rank: int, device: torch.device) -> None:
    """Inputs to the host. A sum of parts is made in a copy."""
    x, both = torch.ones(N, device=device), torch.ones(2 * N, device=device)
    assert_copied(lambda: dist.all_gather_into_tensor(both, x, async_op=True), 0, N)
    assert_copied(lambda: dist.reduce_scatter_tensor(x, both, async_op=True), 2 * N, 2 * N)
    other = torch.ones(2 * N, device=device)
    assert_copied(lambda: dist.all_to_all_single(both, other, async_op=True), 0, 2 * N)


@check
def lists(rank: int, device: torch.device) -> None:
    """As for one tensor; all_to_all() goes through one piece of memory."""
    x, parts = torch.ones(N, device=device), [torch.ones(N, device=device) for _ in range(2)]
    own = parts if rank == 0 else None
    assert_copied(lambda: dist.all_gather(parts, x, async_op=True), 0, N)
    assert_copied(lambda: dist.gather(x, own, 0, async_op=True), 0, N)
    assert_copied(lambda: dist.scatter(x, own, 0, async_op=True), 0, 2 * N if rank == 0 else 0)
    assert_copied(lambda: dist.reduce_scatter(x, parts, async_op=True), 2 * N, 2 * N)
    others = [torch.ones(N, device=device) for _ in range(2)]
    assert_copied(lambda: dist.all_to_all(others, parts, async_op=True), 2 * N, 2 * N)


@check
def uneven_lists(rank: int, device: torch.device) -> None:
    """gloo reduces in the memory of inputs, so each is copied, once; of all_gather() the own one, to where it belongs."""
    parts = [torch.ones(N * (i + 1), device=device) for i in range(2)]
    own = torch.ones(N * (rank + 1), device=device)
    assert_copied(lambda: dist.reduce_scatter(own, parts, async_op=True), 3 * N, 3 * N)
    assert_copied(lambda: dist.all_gather(parts, own, async_op=True), own.numel(), own.numel())


@check
def inputs_with_gaps(rank: int, device: torch.device) -> None:
    """Such a tensor is copied whatever the way of operators, once."""
    x, both = torch.ones(N, 2, device=device)[:, 0], torch.ones(2 * N, device=device)
    assert_copied(lambda: dist.all_gather_into_tensor(both, x, async_op=True), N, N)


@pytest.mark.parametrize("name", list(CHECKS.names()))
def test_two_ranks(ranks: list[dict[str, Any]], name: str) -> None:
    assert_passed(ranks, name)


def test_ranks_end_well(ranks: list[dict[str, Any]]) -> None:
    assert_ended_well(ranks)


ranks = fixture_of(__file__, "auto", "staged")

if __name__ == "__main__":
    CHECKS.main()
