# SPDX-License-Identifier: BSD-3-Clause
"""Profilers around collectives: each call is one event, in order and of no negative time, whenever gloo is done with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.autograd import DeviceType, profiler, profiler_legacy
from two_ranks import NIGHTLY_STAGED, Checks, assert_ended_well, assert_passed, fixture_of

CHECKS = Checks("gloo")
check = CHECKS.check("gloo")

CALLS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "all_reduce": lambda x, y: dist.all_reduce(y),
    "broadcast": lambda x, y: dist.broadcast(y, 0),
    "reduce": lambda x, y: dist.reduce(y, 0),
    "all_gather": lambda x, y: dist.all_gather_into_tensor(x, y),
    "reduce_scatter": lambda x, y: dist.reduce_scatter_tensor(y, x),
    "all_to_all": lambda x, y: dist.all_to_all_single(x, x.clone()),
}


def profilers() -> dict[str, Callable[[], Any]]:
    return {
        "legacy": lambda: profiler_legacy.profile(record_shapes=True),
        "without Kineto": lambda: profiler.profile(use_kineto=False, record_shapes=True),
        "Kineto": lambda: profiler.profile(record_shapes=True),
        "torch.profiler": lambda: torch.profiler.profile(record_shapes=True),
    }


def named(profiled: Any, name: str) -> list[Any]:
    """The host's events; a range of the user with work on the device has a row there, too."""
    events = profiled.events() if isinstance(profiled, torch.profiler.profile) else profiled.function_events
    found = [event for event in events if event.name == name and event.device_type == DeviceType.CPU]
    return sorted(found, key=lambda event: event.time_range.start)


@check
def every_call_once(rank: int, device: torch.device) -> None:
    """Ten calls of each kind are ten events, with their shapes, where nobody waits for gloo before the profiler stops."""
    x, y = torch.ones(6, device=device), torch.ones(3, device=device)
    for kind, make in profilers().items():
        for name, call in CALLS.items():
            with make() as profiled:
                for _ in range(10):
                    call(x, y)
            events = named(profiled, f"gloo:{name}")
            assert len(events) == 10, (kind, name, len(events))
            assert all(event.cpu_time_total >= 0 for event in events), (kind, name)
            expected = [[6]] if name in ("reduce_scatter", "all_to_all") else [[3]]
            assert all(event.input_shapes == expected for event in events), (kind, name, events[0].input_shapes)


@check
def many_short_profiles(rank: int, device: torch.device) -> None:
    """Collectives that are pending when the profiler stops, two hundred times: no event ends in a profiler that has gone."""
    x = torch.ones(5000, device=device)
    makers = list(profilers().values())[:3]
    for i in range(200):
        with makers[i % 3]() as profiled:
            with profiler.record_function("step"):
                works = [dist.all_reduce(x, async_op=True) for _ in range(5)]
        (step,) = named(profiled, "step")
        events = named(profiled, "gloo:all_reduce")
        assert len(events) == 5, (i, len(events))
        assert all(event.cpu_time_total >= 0 for event in events), i
        assert all(step.time_range.start <= event.time_range.start <= step.time_range.end for event in events), i
        if i % 2 == 0:
            for work in works:
                assert work is not None
                work.wait()
    torch.openreg.synchronize(device)


@check
def events_are_asynchronous(rank: int, device: torch.device) -> None:
    """As those of every backend, which PyTorch's tools look for."""
    x = torch.ones(3, device=device)
    with profiler.profile() as profiled:
        work = dist.all_reduce(x, async_op=True)
    assert work is not None
    work.wait()
    assert [event.is_async for event in named(profiled, "gloo:all_reduce")] == [True]


@check
def collectives_of_the_cpu(rank: int, device: torch.device) -> None:
    """Those are gloo's own events, once each."""
    x = torch.ones(3)
    with profiler.profile() as profiled:
        for _ in range(10):
            dist.all_reduce(x)
    assert len(named(profiled, "gloo:all_reduce")) == 10


ranks = fixture_of(__file__, "auto", NIGHTLY_STAGED)


@pytest.mark.parametrize("name", list(CHECKS.names()))
def test_two_ranks(ranks: list[dict[str, Any]], name: str) -> None:
    assert_passed(ranks, name)


def test_ranks_end_well(ranks: list[dict[str, Any]]) -> None:
    assert_ended_well(ranks)


if __name__ == "__main__":
    CHECKS.main()
