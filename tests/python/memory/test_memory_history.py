# SPDX-License-Identifier: BSD-3-Clause
"""The allocator's history: stacks, snapshots that torch.cuda._memory_viz reads, observers of running out of memory."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.cuda import _memory_viz

MIB = 1 << 20
memory = torch.openreg.memory


@pytest.fixture(autouse=True)
def ends_recording() -> Iterator[None]:
    """No test leaves a recording behind."""
    yield
    memory._record_memory_history(None)
    torch.openreg.empty_cache()


def allocate_here(size: int = 3 * MIB) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="openreg:0")


def events_of(address: int, snapshot: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    trace = (snapshot or memory._snapshot())["device_traces"][0]
    return [event for event in trace if event.get("addr") == address and not event["action"].startswith("segment")]


def test_events_in_order() -> None:
    """A tensor's life is three events with its size and time; a new segment and its return are two."""
    torch.openreg.empty_cache()
    memory._record_memory_history(clear_history=True)
    x = allocate_here(30 * MIB)
    address = x.data_ptr()
    del x
    torch.openreg.empty_cache()
    trace = memory._snapshot()["device_traces"][0]
    actions = [event["action"] for event in trace if event.get("addr") == address]
    assert actions == ["segment_alloc", "alloc", "free_requested", "free_completed", "segment_free"]
    assert {event["size"] for event in trace if event.get("addr") == address} == {30 * MIB}
    assert trace[-1]["action"] == "snapshot"
    times = [event["time_us"] for event in trace]
    assert times == sorted(times)
    assert times[0] > 1_600_000_000_000_000  # since 1970
    assert len(memory._snapshot()["device_traces"]) == torch.openreg.device_count()


def test_stacks_name_the_code() -> None:
    """The stack of a live block, of its events and of its segment has this function, and those of C++ if asked for."""
    torch.openreg.empty_cache()
    memory._record_memory_history(stacks="all", clear_history=True)
    x = allocate_here(30 * MIB)
    snapshot = memory._snapshot()
    segment = next(s for s in snapshot["segments"] if s["address"] == x.data_ptr())
    block = segment["blocks"][0]
    event = events_of(x.data_ptr(), snapshot)[0]
    for frames in (segment["frames"], block["frames"], event["frames"], memory._allocation_traceback(x.data_ptr())):
        assert frames is not None
        mine = next(frame for frame in frames if frame["name"] == "allocate_here")
        assert mine["filename"] == __file__
        assert mine["line"] == allocate_here.__code__.co_firstlineno + 1
        assert any(frame["name"] == "test_stacks_name_the_code" for frame in frames)
        assert len([frame for frame in frames if "::" in frame["name"]]) > 3  # of C++
    assert memory._allocation_traceback(x.data_ptr() + 512) is None
    assert memory._allocation_traceback(16) is None


@pytest.mark.parametrize("context", [None, "state", "alloc", "all"])
def test_levels_of_context(context: str | None) -> None:
    """Each level adds the stacks that it names."""
    memory._record_memory_history(context=context, stacks="python", clear_history=True)
    x = allocate_here()
    address = x.data_ptr()
    blocks = [block for segment in memory._snapshot()["segments"] for block in segment["blocks"]]
    live = next(block for block in blocks if block["address"] == address)
    assert bool(live["frames"]) == (context is not None)
    assert all(frame["filename"] for frame in live["frames"])

    def free_here() -> None:
        nonlocal x
        del x

    free_here()
    alloc, requested, completed = events_of(address)
    assert bool(alloc["frames"]) == (context in ("alloc", "all"))
    for event in (requested, completed):
        assert any(frame["name"] == "free_here" for frame in event["frames"]) == (context == "all")


def test_state_and_limits() -> None:
    """ "state" keeps no history, max_entries the last events, skip_actions leaves some out, None forgets."""
    memory._record_memory_history("state", stacks="python")
    x = allocate_here()
    assert len(memory._snapshot()["device_traces"][0]) <= 1
    assert memory._allocation_traceback(x.data_ptr())
    memory._record_memory_history(max_entries=5, context=None, clear_history=True)
    for _ in range(10):
        allocate_here()
    assert len(memory._snapshot()["device_traces"][0]) == 5
    memory._record_memory_history(context=None, skip_actions=["free_requested"], clear_history=True)
    allocate_here()
    assert [e["action"] for e in memory._snapshot()["device_traces"][0]] == ["alloc", "free_completed", "snapshot"]
    memory._record_memory_history(context=None)  # goes on
    assert memory._snapshot()["device_traces"][0][0]["action"] == "alloc"
    memory._record_memory_history(None)
    allocate_here()
    assert memory._snapshot()["device_traces"][0] == []
    assert memory._allocation_traceback(x.data_ptr()) is None


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"enabled": "some"}, "enabled must be one of"),
        ({"context": "none"}, "context must be one of"),
        ({"stacks": "c"}, "stacks must be one of"),
        ({"skip_actions": ["sleep"]}, "an action of skip_actions must be one of .* 'sleep'"),
        ({"max_entries": -1}, "must not be negative"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        memory._record_memory_history(**arguments)


def test_what_is_not_recorded_is_refused() -> None:
    for name in ("compile_context", "global_record_annotations"):
        with pytest.raises(NotImplementedError, match=name):
            memory._record_memory_history(**{name: True})
    with pytest.raises(NotImplementedError, match="record_pinned_host_memory"):
        memory._record_memory_history(record_pinned_host_memory=True)
    with pytest.raises(NotImplementedError, match="record_openreg=False"):
        memory._record_memory_history(record_openreg=False)


def test_dump_opens_with_memory_viz(tmp_path: Path) -> None:
    """The file of a training step passes through every view that needs no network."""
    memory._record_memory_history(clear_history=True)
    model = torch.nn.Linear(1000, 1000).to("openreg:0")
    model(torch.randn(64, 1000, device="openreg:0")).sum().backward()
    keep = allocate_here(25 * MIB)
    path = tmp_path / "snapshot.pickle"
    memory._dump_snapshot(str(path))
    data = pickle.loads(path.read_bytes())
    summary = _memory_viz.segsum(data)
    assert f"segments: {len(data['segments'])}" in summary
    assert "25.0MiB allocated" in summary or "26.0MiB allocated" in summary
    text = _memory_viz.trace(data)
    assert "Device 0" in text
    assert " entries" in text
    for page in (
        _memory_viz.trace_plot(data),
        _memory_viz.trace_plot(data, plot_segments=True),
        _memory_viz.trace_plot(pickle.loads(path.read_bytes()), filter_freed=True),
        _memory_viz.segment_plot(data),
    ):
        assert "snapshot.pickle" in page
        assert "<html>" in page
    lines: list[str] = []
    _memory_viz.segments(data, format_flamegraph=lines.append)
    _memory_viz.memory(data, format_flamegraph=lines.append)
    assert all("allocate_here" in graph for graph in lines)
    assert data["allocator_settings"]["max_split_size"] == -1
    assert keep.numel() == 25 * MIB


def test_profile_plot() -> None:
    """A memory profile of openreg tensors becomes a timeline."""
    with torch.profiler.profile(profile_memory=True, record_shapes=True, with_stack=True) as profile:
        x = torch.ones(1000, 1000, device="openreg:0", requires_grad=True)
        (x * 2).sum().backward()
    assert "snapshot.pickle" in _memory_viz.profile_plot(profile)


def test_recording_beside_other_threads() -> None:
    """Threads allocate and free, with stacks, while snapshots are taken: events of each block alternate."""
    # A backward pass before may still end.
    blocks = (block for segment in memory._snapshot()["segments"] for block in segment["blocks"])
    earlier = {block["address"] for block in blocks if block["state"] == "active_allocated"}
    memory._record_memory_history(stacks="python", clear_history=True)

    def work() -> None:
        for _ in range(50):
            tensors = [allocate_here(1 << shift) for shift in range(8, 20)]
            del tensors

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        memory._snapshot()
    for thread in threads:
        thread.join()
    live: set[int] = set()
    for event in memory._snapshot()["device_traces"][0]:
        if event["action"] == "alloc":
            assert event["addr"] not in live
            live.add(event["addr"])
        elif event["action"] == "free_completed":
            (live if event["addr"] in live else earlier).remove(event["addr"])
    assert not live


def test_metadata() -> None:
    """Events carry the text of their thread."""
    memory._record_memory_history(context=None, clear_history=True)
    memory._set_memory_metadata("step 3")
    assert memory._get_memory_metadata() == "step 3"
    thread = threading.Thread(target=allocate_here)
    thread.start()
    thread.join()
    x = allocate_here()
    memory._set_memory_metadata({"step": 4})
    assert memory._get_memory_metadata() == '{"step": 4}'
    assert memory._memory_metadata_supported()
    memory._set_memory_metadata("")
    del x
    texts = [(event["action"], event["user_metadata"]) for event in memory._snapshot()["device_traces"][0]]
    assert ("alloc", "step 3") in texts
    assert ("alloc", "") in texts
    assert texts[-2] == ("free_completed", "")


def test_annotations() -> None:
    """A text for memory in use is an event of its own, with the caller's stack; a view's is that of its storage."""
    memory._record_memory_history(stacks="python", clear_history=True)
    x = torch.empty(3 * MIB, dtype=torch.uint8, device="openreg:0")
    memory._annotate_tensor(x[MIB:], "packed")
    (event,) = [event for event in events_of(x.untyped_storage().data_ptr()) if event["action"] == "annotate"]
    assert event["user_metadata"] == "packed"
    assert any(frame["name"] == "test_annotations" for frame in event["frames"])
    assert "packed" in _memory_viz.trace(memory._snapshot())
    memory._record_memory_history(skip_actions=["annotate"], clear_history=True)
    memory._annotate_tensor(x, "again")
    memory._record_memory_history(None)
    memory._annotate_tensor(x, "unrecorded")
    assert not [event for event in memory._snapshot()["device_traces"][0] if event["action"] == "annotate"]
    with pytest.raises(ValueError, match="Expected an openreg tensor, but got one on cpu"):
        memory._annotate_tensor(torch.empty(1), "elsewhere")
    with pytest.raises(TypeError):
        memory._annotate_tensor(x, 3)  # type: ignore[arg-type]


def test_out_of_memory_observer(python: Any) -> None:
    """An observer is told the figures before the error comes; one that raises is printed and changes nothing."""
    out = python(
        """
        import torch
        seen = []
        memory = torch.openreg.memory
        memory._record_memory_history(stacks="python")
        memory._attach_out_of_memory_observer(lambda *figures: seen.append(figures))
        memory._attach_out_of_memory_observer(lambda *figures: 1 / 0)
        keep = torch.empty(32 << 20, dtype=torch.uint8, device="openreg:1")
        torch.openreg.set_per_process_memory_fraction(0.75, 1)
        for _ in range(2):
            try:
                torch.empty(60 << 20, dtype=torch.uint8, device="openreg:1")
            except torch.OutOfMemoryError:
                print("raised")
        assert seen == [(1, 60 << 20, 48 << 20, 32 << 20)] * 2, seen
        event = [e for e in memory._snapshot()["device_traces"][1] if e["action"] == "oom"][0]
        assert event["size"] == 60 << 20 and event["device_free"] == 32 << 20, event
        assert event["frames"]
        print(torch.cuda._memory_viz.trace(memory._snapshot()).count("OutOfMemoryError"))
        try:
            memory._attach_out_of_memory_observer(3)
        except TypeError as error:
            print(error)
        """,
        OPENREG_SIM_MEMORY="64M",
    )
    lines = out.stdout.splitlines()
    assert lines[:3] == ["raised", "raised", "2"]
    assert "must be callable" in lines[3]
    assert out.stderr.count("ZeroDivisionError: ") == 2


def test_events_at_exit(python: Any) -> None:
    """A process that ends while it records, with tensors alive, ends well."""
    out = python(
        """
        import torch
        torch.openreg.memory._record_memory_history()
        keep = torch.ones(1 << 20, device="openreg:0")
        print("end")
        """
    )
    assert out.stdout.strip() == "end"
