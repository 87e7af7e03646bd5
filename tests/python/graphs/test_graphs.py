# SPDX-License-Identifier: BSD-3-Clause
"""Graphs: a capture leaves nothing behind, a replay runs all of it. The names follow PyTorch's test_graph_* where it has the behaviour."""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from capturing import captured

D = "openreg"


def test_a_capture_leaves_nothing_and_replays_run_all() -> None:
    "Static inputs are read, and static outputs written, by each replay and not before."
    x = torch.ones(8, device=D)
    total = torch.zeros(8, device=D)

    def work() -> torch.Tensor:
        y = x * 2 + 1
        total.add_(y)
        return y.relu().view(2, 4).sum(1)

    made, out = captured(work)
    assert total.tolist() == [0] * 8
    made.replay()
    assert (total.tolist(), out.tolist()) == ([3] * 8, [12, 12])
    address = out.data_ptr()
    x.fill_(5)
    made.replay()
    assert (total.tolist(), out.tolist(), out.data_ptr()) == ([14] * 8, [44, 44], address)


def test_accelerator_graph() -> None:
    "torch.accelerator.Graph captures the current stream."
    x = torch.zeros(4, device=D)
    made = torch.accelerator.Graph()
    with torch.Stream(D), made:
        x += 1
        assert torch.accelerator.current_stream().is_capturing()
    assert x.tolist() == [0] * 4
    made.replay()
    made.replay()
    assert x.tolist() == [2] * 4


def test_graph_is_current_stream_capturing() -> None:
    "A stream is captured between begin and end, and only that one."
    other = torch.openreg.Stream()
    assert not torch.openreg.is_current_stream_capturing()
    made = torch.openreg.OpenRegGraph()
    with torch.openreg.graph(made):
        assert torch.openreg.is_current_stream_capturing()
        with torch.openreg.stream(other):
            assert not torch.openreg.is_current_stream_capturing()
    assert not torch.openreg.is_current_stream_capturing()


def test_work_on_another_stream_runs() -> None:
    "A stream that has not joined the capture is not part of it."
    a, b = torch.zeros(3, device=D), torch.zeros(3, device=D)
    made = torch.openreg.OpenRegGraph()
    with torch.openreg.graph(made):
        a += 1
        with torch.openreg.stream(torch.openreg.Stream()):
            b += 1
    torch.openreg.synchronize()
    assert (a.tolist(), b.tolist()) == ([0] * 3, [1] * 3)


def test_graph_cuda_side_stream_by_events() -> None:
    "A stream that waits for an event of the capture joins it, and its work is replayed."
    x = torch.ones(4, device=D)
    side = torch.openreg.Stream()

    def work() -> torch.Tensor:
        y = x + 1
        side.wait_stream(torch.openreg.current_stream())
        with torch.openreg.stream(side):
            assert torch.openreg.is_current_stream_capturing()
            z = y * 3
        torch.openreg.current_stream().wait_stream(side)
        return z + y

    made, out = captured(work)
    x.fill_(2)
    made.replay()
    assert out.tolist() == [12] * 4


def test_an_unjoined_fork_is_an_error() -> None:
    "The first stream must wait for all that joined; afterwards everything works."
    x, side = torch.ones(4, device=D), torch.openreg.Stream()
    with (
        pytest.raises(RuntimeError, match="has not waited for the work of stream"),
        torch.openreg.graph(torch.openreg.OpenRegGraph()),
    ):
        side.wait_stream(torch.openreg.current_stream())
        with torch.openreg.stream(side):
            x += 1
    made, _ = captured(lambda: x.add_(1))
    made.replay()
    assert x.tolist() == [2] * 4


@pytest.mark.parametrize("waits", [False, True])
def test_branches_that_race_are_told(waits: bool) -> None:
    "When the capture ends, and only where nothing orders them."
    x, side = torch.ones(4, device=D), torch.openreg.Stream()

    def work() -> None:
        current = torch.openreg.current_stream()
        side.wait_stream(current)
        x.add_(1)
        if waits:
            side.wait_stream(current)
        with torch.openreg.stream(side):
            x.mul_(2)
        current.wait_stream(side)

    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        captured(work)
    told = [str(one.message) for one in given if "graph has a race" in str(one.message)]
    assert len(told) == (0 if waits else 1)
    assert waits or "nothing orders aten::add_" in told[0]


def test_graph_capture_of_default_stream_is_an_error() -> None:
    "Other streams would wait for it."
    with pytest.raises(RuntimeError, match="other than the default one"):
        torch.openreg.OpenRegGraph().capture_begin()


def test_graph_error_second_capture() -> None:
    "One capture at a time on a stream; the first has failed, too."
    first, second = torch.openreg.OpenRegGraph(), torch.openreg.OpenRegGraph()
    with torch.openreg.stream(torch.openreg.Stream()):
        first.capture_begin()
        with pytest.raises(RuntimeError, match="is being captured already"):
            second.capture_begin()
        with pytest.raises(RuntimeError, match="a second capture was begun"):
            first.capture_end()


def synchronize_event(x: torch.Tensor) -> None:
    event = torch.openreg.Event()
    event.record()
    event.synchronize()


WHAT_CANT_BE_CAPTURED = {
    "item": (lambda x: x.sum().item(), "aten::_local_scalar_dense"),
    "nonzero": (lambda x: x.nonzero(), "aten::nonzero"),
    "mask": (lambda x: x[x > 0], "aten::index.Tensor"),
    "cpu": (lambda x: x.cpu(), "aten::copy_"),
    "from pageable memory": (lambda x: x.copy_(torch.ones(4)), "aten::copy_"),
    "synchronize": (lambda x: torch.openreg.synchronize(), "synchronizing the device"),
    "stream": (lambda x: torch.openreg.current_stream().synchronize(), "synchronizing the stream"),
    "query": (lambda x: torch.openreg.current_stream().query(), "querying the stream"),
    "event": (synchronize_event, "synchronizing the event"),
}


@pytest.mark.parametrize("name", WHAT_CANT_BE_CAPTURED)
def test_graph_error(name: str) -> None:
    "Named with its line; the capture has failed, and stream, allocator and generator are usable."
    work, call = WHAT_CANT_BE_CAPTURED[name]
    x = torch.ones(4, device=D)
    torch.openreg.manual_seed(3)
    stream = torch.openreg.Stream()
    with pytest.raises(RuntimeError, match="The capture of a graph has failed: ") as failed:
        with torch.openreg.graph(torch.openreg.OpenRegGraph(), stream=stream):
            x.mul_(2)
            torch.rand(3, device=D)
            with pytest.raises(RuntimeError, match=call + ".* can't be captured"):
                work(x)
            with pytest.raises(RuntimeError, match="is invalid"):
                x.add_(1)
    assert call in str(failed.value)
    if sys.version_info < (3, 14):
        assert "test_graphs.py:" in str(failed.value)
    assert x.tolist() == [1] * 4
    with torch.openreg.stream(stream):
        drawn = torch.rand(3, device=D)
        stream.synchronize()
    torch.openreg.manual_seed(3)
    assert torch.equal(drawn, torch.rand(3, device=D))


def test_an_error_of_the_program_leaves_the_capture_valid() -> None:
    "Wrong shapes are refused while capturing, and what was captured before stays."
    x = torch.zeros(4, device=D)
    made = torch.openreg.OpenRegGraph()
    with torch.openreg.graph(made):
        x += 1
        with pytest.raises(RuntimeError, match="size|shape"):
            x.add_(torch.empty(3, device=D))
    made.replay()
    assert x.tolist() == [1] * 4


def test_graph_rng_functional() -> None:
    "Each replay draws new numbers, those that eager calls would draw, and a seed repeats them."
    x = torch.ones(64, device=D)
    made, out = captured(lambda: (torch.nn.functional.dropout(x, 0.5), torch.rand(5, device=D)))

    def draw() -> list[torch.Tensor]:
        made.replay()
        return [tensor.clone() for tensor in out]

    torch.openreg.manual_seed(7)
    first, second = draw(), draw()
    assert not torch.equal(first[1], second[1])
    torch.openreg.manual_seed(7)
    assert all(map(torch.equal, first + second, draw() + draw()))
    torch.openreg.manual_seed(7)
    assert torch.equal(torch.nn.functional.dropout(x, 0.5), first[0])


def test_graph_rng_of_a_generator() -> None:
    "A program's own generator is drawn from, and moves on."
    generator = torch.Generator(D).manual_seed(1)
    expected = [torch.rand(4, device=D, generator=generator) for _ in range(2)]
    made = torch.openreg.OpenRegGraph()
    made.register_generator_state(generator)
    with torch.openreg.graph(made):
        out = torch.empty(4, device=D).uniform_(generator=generator)
    generator.manual_seed(1)
    for tensor in expected:
        made.replay()
        assert torch.equal(out, tensor)
    with pytest.raises(ValueError, match="Expected a generator"):
        made.register_generator_state(torch.Generator())


def test_graph_memory_stats_and_reset() -> None:
    "Memory that is freed while capturing is used again there; the pool's memory stays until reset()."
    x = torch.ones(1 << 20, device=D)

    def chain() -> torch.Tensor:
        y = x
        for _ in range(10):
            y = y + 1
        return y

    made, out = captured(chain)
    pool = made.pool()

    def reserved() -> int:
        segments = torch.openreg.memory_snapshot()
        return sum(one["total_size"] for one in segments if tuple(one["segment_pool_id"]) == pool)

    during = reserved()
    assert 0 < during < 6 * x.nbytes
    made.replay()
    assert out[0].item() == 11
    del out
    torch.openreg.empty_cache()
    assert reserved() == during
    made.replay()
    made.reset()
    assert reserved() == 0
    with torch.openreg.graph(made):
        x += 1
    made.replay()
    assert x[0].item() == 2


def test_cached_memory_is_a_graphs_when_it_needs_it(python: Callable[..., Any]) -> None:
    "A capture gives back nothing that the program has cached, unless the device is full."
    python(
        """
        import torch
        cached = torch.empty(40 << 20, dtype=torch.uint8, device="openreg")
        del cached
        graph = torch.openreg.OpenRegGraph()
        with torch.openreg.graph(graph):
            x = torch.zeros(20 << 20, dtype=torch.uint8, device="openreg")
        assert torch.openreg.memory_reserved() == 60 << 20
        del x
        graph = torch.openreg.OpenRegGraph()
        with torch.openreg.graph(graph):
            x = torch.zeros(50 << 20, dtype=torch.uint8, device="openreg")
        graph.replay()
        assert x[-1].item() == 0
        """,
        OPENREG_SIM_MEMORY=str(64 << 20),
    )


def test_graph_two_successive_of_one_pool() -> None:
    "Graphs may share a pool, whose memory is there until both are reset."
    x = torch.ones(4, device=D)
    first, a = captured(lambda: x + 1)
    second, b = captured(lambda: a * 10, pool=first.pool())
    assert first.pool() == second.pool()
    handle = torch.openreg.graph_pool_handle()
    third, c = captured(lambda: b + 1, pool=handle)
    assert third.pool() == handle != first.pool()
    x.fill_(3)
    for made in (first, second, third):
        made.replay()
    assert c.tolist() == [41] * 4
    first.reset()
    second.replay()
    assert b.tolist() == [40] * 4


def test_graph_memory_of_inputs_is_kept() -> None:
    "A tensor that a graph reads lives as long as the graph."
    x = torch.full((4,), 3.0, device=D)
    made, out = captured(functools.partial(torch.add, x, 1))
    del x
    torch.full((4,), 9.0, device=D)
    made.replay()
    assert out.tolist() == [4] * 4


def test_graph_record_stream() -> None:
    "Inside of a capture, on a stream that joined, as outside."
    side = torch.openreg.Stream()

    def work() -> torch.Tensor:
        y = torch.ones(4, device=D)
        side.wait_stream(torch.openreg.current_stream())
        with torch.openreg.stream(side):
            z = y + 1
            y.record_stream(side)
        torch.openreg.current_stream().wait_stream(side)
        return z

    made, out = captured(work)
    made.replay()
    assert out.tolist() == [2] * 4


def test_graph_pinned_copies() -> None:
    "From and to pinned memory, without waiting."
    source, target = torch.arange(4.0).pin_memory(), torch.zeros(4).pin_memory()

    def work() -> None:
        x = source.to(D, non_blocking=True) * 2
        target.copy_(x, non_blocking=True)

    made, _ = captured(work)
    for factor in (1, 2):
        made.replay()
        torch.openreg.synchronize()
        assert target.tolist() == [0, 2 * factor, 4 * factor, 6 * factor]
        source.mul_(2)


def test_graph_keep_graph() -> None:
    "instantiate() is the program's with keep_graph, and of no use without."
    made = torch.openreg.OpenRegGraph(keep_graph=True)
    x = torch.zeros(2, device=D)
    with pytest.raises(RuntimeError, match="without a capture"):
        made.replay()
    with pytest.raises(RuntimeError, match="without a capture"):
        made.instantiate()
    with torch.openreg.graph(made):
        x += 1
    made.instantiate()
    made.replay()
    assert x.tolist() == [1, 1]
    other, _ = captured(lambda: x.add_(1))
    with pytest.raises(RuntimeError, match="keep_graph=True"):
        other.instantiate()
    with pytest.raises(RuntimeError, match="holds a capture already"), torch.openreg.stream(torch.openreg.Stream()):
        other.capture_begin()


def test_graph_debug_dump(tmp_path: Any) -> None:
    "Nodes and edges, also between streams."
    x, side = torch.ones(2, device=D), torch.openreg.Stream()
    made = torch.openreg.OpenRegGraph()
    made.enable_debug_mode()
    with torch.openreg.graph(made):
        y = x + 1
        side.wait_stream(torch.openreg.current_stream())
        with torch.openreg.stream(side):
            y.mul_(2)
        torch.openreg.current_stream().wait_stream(side)
        y.add_(1)
    made.debug_dump(str(tmp_path / "graph.dot"))
    text = (tmp_path / "graph.dot").read_text()
    assert text.startswith("digraph")
    for part in ("aten::add", "n0 -> n1", "n1 -> n2"):
        assert part in text


def test_graph_empty() -> None:
    "Nothing captured is a graph, too."
    made, _ = captured(lambda: None)
    made.replay()


def test_a_graph_in_a_graph() -> None:
    "A replay while another graph is captured is part of that one, also when its own graph has gone."
    x = torch.ones(2, device=D)
    made = [captured(lambda: x + 1)]

    def work() -> torch.Tensor:
        x.mul_(2)
        made[0][0].replay()
        return made[0][1] * 10

    outer, out = captured(work)
    assert x.tolist() == [1, 1]
    outer.replay()
    assert out.tolist() == [30, 30]
    made.clear()
    torch.full((64,), 7.0, device=D)
    outer.replay()
    assert out.tolist() == [50, 50]


def test_a_graph_that_goes_while_it_is_captured() -> None:
    "Its capture ends with it."
    x = torch.ones(2, device=D)
    torch.openreg.synchronize()
    with torch.openreg.stream(torch.openreg.Stream()):
        made = torch.openreg.OpenRegGraph()
        made.capture_begin()
        x += 1
        del made
        assert not torch.openreg.is_current_stream_capturing()
        x += 1
    torch.openreg.synchronize()
    assert x.tolist() == [2, 2]


@pytest.mark.parametrize("mode", ["thread_local", "global"])
def test_graph_another_thread_waits(mode: str) -> None:
    "Whether another thread's wait fails the capture depends on the mode."
    refused: list[BaseException | None] = []

    def capture() -> None:
        with (
            ThreadPoolExecutor() as pool,
            torch.openreg.graph(torch.openreg.OpenRegGraph(), capture_error_mode=mode),
        ):
            refused.append(pool.submit(torch.openreg.synchronize).exception())

    if mode == "thread_local":
        capture()
        assert refused == [None]
    else:
        with pytest.raises(RuntimeError, match="has failed: synchronizing the device"):
            capture()
        assert "synchronizing the device" in str(refused[0])


def test_a_custom_operator() -> None:
    "It needs no kernel but its own."
    with torch.library._scoped_library("openreg_graphs", "DEF") as library:
        library.define("plus(Tensor x) -> Tensor")
        library.impl("plus", lambda x: x + 1, "CPU")
        x = torch.ones(3, device=D)
        made, out = captured(lambda: torch.ops.openreg_graphs.plus(x))
        x.fill_(5)
        made.replay()
        assert out.tolist() == [6] * 3


def test_tools_see_a_replay() -> None:
    "Its operators are counted, are rows of a profile, and race with other streams' work as eager ones do."
    x = torch.ones(4, device=D)
    made, _ = captured(lambda: x.sin_())
    torch.openreg.reset_operator_stats()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.PrivateUse1]) as profile:
        made.replay()
    stats = torch.openreg.operator_stats()
    assert stats["aliased_calls"] + stats["staged_calls"] == 1
    rows = {event.name for event in profile.events()}
    assert rows & {"aten::sin_ [aliased]", "Memcpy HtoD"}  # the latter where it is staged
    torch.openreg.synchronize()
    with torch.openreg.detect_races() as found:
        x.add_(1)
        # It raises besides where OPENREG_RACES says so.
        with contextlib.suppress(torch.openreg.RaceError), torch.openreg.stream(torch.openreg.Stream()):
            made.replay()
    assert found and found[0].second.operator == "aten::sin_"
