# SPDX-License-Identifier: BSD-3-Clause
"""torch.profiler on openreg: rows of copies, fills and operators, in the trace and the tables, tied to the host's operators."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from compiled_drivers import compile_driver
from torch.profiler import ProfilerActivity, profile, record_function

D = torch.device("openreg:1")
BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
HAS_KINETO_ROWS = ProfilerActivity.PrivateUse1 in torch.profiler.supported_activities()
needs_kineto = pytest.mark.skipif(not HAS_KINETO_ROWS, reason="this PyTorch's profiler takes no rows of other devices")

Event = dict[str, Any]


def rows(profiled: profile, folder: Path) -> list[Event]:
    """The Chrome trace's events."""
    path = folder / "trace.json"
    profiled.export_chrome_trace(str(path))
    events: list[Event] = json.loads(path.read_text())["traceEvents"]
    return events


def of(events: list[Event], category: str) -> list[Event]:
    return [event for event in events if event.get("cat") == category]


def device_time(profiled: profile, name: str) -> float:
    """Microseconds on the device of the operators of that name, as the table has it."""
    return float(sum(event.device_time_total for event in profiled.key_averages() if event.key == name))


@pytest.fixture(autouse=True)
def _opened() -> None:
    torch.openreg.init()


@needs_kineto
@pytest.mark.parametrize(
    ("name", "make", "size"),
    [
        ("Memcpy HtoD", lambda host, there: host.to(D), 4096),
        ("Memcpy DtoH", lambda host, there: there.cpu(), 4096),
        ("Memcpy DtoD", lambda host, there: there.clone(), 4096),
        ("Memcpy PtoP", lambda host, there: there.to("openreg:0"), 4096),
        ("Memcpy DtoH", lambda host, there: there[0].item(), 4),
        ("Memset (Device)", lambda host, there: there.zero_(), 4096),
    ],
    ids=["HtoD", "DtoH", "DtoD", "PtoP", "item", "zero_"],
)
def test_bytes_that_move_are_rows_with_their_size(name: str, make: Any, size: int, tmp_path: Path) -> None:
    """Each copy or fill is one row of the device, with its bytes, inside the time of the operator that made it."""
    host = torch.ones(1024)
    there = host.to(D)
    with profile(activities=BOTH) as profiled:
        make(host, there)
    events = rows(profiled, tmp_path)
    found = [event for event in of(events, "gpu_memcpy") + of(events, "gpu_memset") if event["name"] == name]
    assert [event["args"]["bytes"] for event in found] == [size]
    (row,) = found
    assert row["args"]["device"] in (0, 1)
    assert row["dur"] > 0
    operators = [event for event in of(events, "cpu_op") if event["args"]["External id"] == row["args"]["External id"]]
    assert len(operators) == 1
    (operator,) = operators
    assert operator["ts"] - 1 <= row["ts"]
    assert row["ts"] + row["dur"] <= operator["ts"] + operator["dur"] + 1


@needs_kineto
def test_operators_are_rows_of_their_device_and_count_as_its_time(tmp_path: Path) -> None:
    """A matmul is a kernel of openreg:1; its time stands in the column of the device of aten::mm, and of its callers."""
    a = torch.randn(128, 128).to(D)
    with profile(activities=BOTH) as profiled:
        torch.nn.functional.linear(a, a).sum()
    kernels = {event["name"]: event for event in of(rows(profiled, tmp_path), "kernel")}
    assert {"aten::mm [aliased]", "aten::sum [aliased]"} <= kernels.keys()
    assert {event["pid"] for event in kernels.values()} == {1}
    for operator in ("aten::mm", "aten::sum"):
        time_of_row = kernels[f"{operator} [aliased]"]["dur"]
        assert device_time(profiled, operator) == pytest.approx(time_of_row, rel=0.01, abs=0.01)
    assert device_time(profiled, "aten::linear") >= device_time(profiled, "aten::mm")
    table = profiled.key_averages().table(sort_by="self_device_time_total")
    assert "Self OPENREG" in table
    assert "aten::mm [aliased]" in table


@needs_kineto
def test_streams_are_lanes_and_queued_work_is_tied_to_its_call(tmp_path: Path) -> None:
    """Copies on two streams stand in two lanes, with the driver's times, each linked to the function that queued it."""
    pinned = torch.ones(1 << 18).pin_memory()
    streams = [torch.Stream(device=D), torch.Stream(device=D)]
    with profile(activities=BOTH) as profiled:
        for stream in streams:
            with stream:
                pinned.to(D, non_blocking=True)
        torch.openreg.synchronize(D)
    events = rows(profiled, tmp_path)
    copies = of(events, "gpu_memcpy")
    assert len(copies) == 2
    assert len({copy["tid"] for copy in copies}) == 2
    calls = {event["args"]["correlation"]: event for event in of(events, "privateuse1_runtime")}
    for copy in copies:
        assert copy["args"]["times"] == "measured by the driver"
        call = calls[copy["args"]["correlation"]]
        assert call["name"] == "openreg_memcpy_async"
        assert copy["ts"] >= call["ts"] - 0.01
    flows = [(event["ph"], event["id"]) for event in of(events, "ac2g")]
    assert sorted(flows) == sorted((end, copy["args"]["correlation"]) for copy in copies for end in "sf")
    assert "openreg_device_synchronize" in {event["name"] for event in of(events, "privateuse1_runtime")}
    named = [event for event in events if event["name"] == "thread_name" and event["pid"] == 1]
    assert {event["tid"] for event in named} >= {copy["tid"] for copy in copies}


@needs_kineto
def test_correlation_ids_are_those_of_no_other_event() -> None:
    """PyTorch joins work to host events by these numbers: a wait is given no operator's kernels, nor those of a profile before."""
    a = torch.ones(16, 16, device=D)
    seen: set[int] = set()
    for _ in range(2):
        with profile(activities=BOTH) as profiled:
            for _ in range(20):
                a @ a
                torch.openreg.synchronize(D)
        events = profiled.events()
        assert events is not None
        ours = {event.id for event in events if event.name.startswith("openreg_") or "[aliased]" in event.name}
        operators = {event.id for event in events if event.name == "aten::mm"}
        waits = [event for event in events if event.name == "openreg_device_synchronize"]
        assert len(operators) == 20
        assert len(waits) >= 20
        assert not [wait for wait in waits if wait.kernels]
        assert not ours & (seen | operators)
        assert min(ours) > 0
        seen |= ours
        kernels = [event for event in events if event.name == "aten::mm [aliased]"]
        assert sorted(event.linked_correlation_id for event in kernels) == sorted(operators)
        on_device = sum(event.device_time_total for event in kernels)
        counted = sum(kernel.duration for event in events for kernel in event.kernels)
        assert counted == pytest.approx(on_device)


@needs_kineto
def test_a_range_of_the_user_spans_its_work_on_the_device(tmp_path: Path) -> None:
    """record_function() shows on the lane of the device too, from the first to the last piece of its work."""
    a = torch.ones(64, 64, device=D)
    with profile(activities=BOTH) as profiled:
        with record_function("my range"):
            b = a @ a
            b += 1
        a.sum()
    events = rows(profiled, tmp_path)
    (row,) = [event for event in of(events, "gpu_user_annotation") if event["name"] == "my range"]
    inside = [event for event in of(events, "kernel") if event["name"].startswith(("aten::mm", "aten::add_"))]
    assert len(inside) == 2
    assert row["ts"] == pytest.approx(min(event["ts"] for event in inside), abs=0.01)
    assert row["ts"] + row["dur"] == pytest.approx(max(event["ts"] + event["dur"] for event in inside), abs=0.01)
    assert (row["pid"], row["tid"]) == (1, 0)


@needs_kineto
def test_backward_counts_as_time_of_the_device(tmp_path: Path) -> None:
    """Kernels of autograd's own thread belong to the operators that ran there."""
    weight = torch.randn(64, 64, device=D, requires_grad=True)
    with profile(activities=BOTH) as profiled:
        (weight @ weight).sum().backward()
    assert len([event for event in of(rows(profiled, tmp_path), "kernel") if event["name"].startswith("aten::mm")]) == 3
    assert device_time(profiled, "MmBackward0") > 0


@needs_kineto
def test_the_device_alone_and_the_host_alone(tmp_path: Path) -> None:
    """Each activity is shown where it was asked for, and not otherwise."""
    a = torch.ones(64, device=D)
    with profile(activities=[ProfilerActivity.PrivateUse1]) as profiled:
        a + a
    events = rows(profiled, tmp_path)
    assert [event["name"] for event in of(events, "kernel")] == ["aten::add [aliased]"]
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        a + a
    events = rows(profiled, tmp_path)
    assert of(events, "kernel") == []
    assert [event["name"] for event in of(events, "cpu_op")] == ["aten::add"]


@needs_kineto
def test_a_schedule_profiles_its_steps_only() -> None:
    """With wait, warmup and active steps each cycle has the rows of its active steps."""
    a = torch.ones(64, device=D)
    seen: list[int] = []

    def keep(profiled: profile) -> None:
        seen.append(sum(event.count for event in profiled.key_averages() if event.key == "aten::exp [aliased]"))

    plan = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=2)
    with profile(activities=BOTH, schedule=plan, on_trace_ready=keep) as profiled:
        for _ in range(8):
            a.exp()
            profiled.step()
    assert seen == [2, 2]


def test_memory_of_the_device() -> None:
    """profile_memory=True gives the bytes that an operator took on the device, and those that it gave back."""
    activities = BOTH if HAS_KINETO_ROWS else [ProfilerActivity.CPU]
    with profile(activities=activities, profile_memory=True) as profiled:
        with record_function("takes"):
            block = torch.empty(1 << 18, device=D)
        with record_function("gives"):
            del block
    events = {event.key: event for event in profiled.key_averages() if event.self_device_time_total == 0}
    assert events["takes"].device_memory_usage == 1 << 20
    assert events["gives"].device_memory_usage == -(1 << 20)


@pytest.mark.parametrize("size", [1 << 40, 1 << 60])
def test_a_request_that_is_out_of_memory_is_an_event(size: int, tmp_path: Path) -> None:
    """With its size and its device."""
    with profile(profile_memory=True) as profiled, pytest.raises(torch.OutOfMemoryError):
        torch.empty(size, dtype=torch.uint8, device="openreg:1")
    (event,) = [event for event in rows(profiled, tmp_path) if event["name"] == "[OutOfMemory]"]
    assert (event["args"]["Bytes"], event["args"]["Device Id"]) == (size, 1)


def test_the_older_way() -> None:
    """Without Kineto each operator is timed by events before and behind it."""
    a = torch.randn(256, 256).to(D)
    torch.openreg.set_device(D)
    with torch.autograd.profiler.profile(use_device="openreg", use_kineto=False, use_cpu=True) as profiled:
        a @ a
    (mm,) = [event for event in profiled.key_averages() if event.key == "aten::mm"]
    assert 0 < mm.device_time_total <= mm.cpu_time_total * 1.5 + 100


@needs_kineto
def test_two_profilers_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    """One trace at a time: torch.profiler warns and has no rows of the device while another trace is on."""
    a = torch.ones(8, device=D)
    with torch.openreg.profiler.trace() as ranges:
        with pytest.raises(RuntimeError, match="is being profiled already"):
            with torch.openreg.profiler.trace():
                pass
        with profile(activities=BOTH) as profiled:
            a + a
    assert "The profile has no rows of openreg devices: openreg is being profiled already" in capfd.readouterr().err
    assert [entry.name for entry in ranges if entry.kind == "operator"] == ["aten::add [aliased]"]
    assert not [event for event in profiled.key_averages() if "[aliased]" in event.key]
    with profile(activities=BOTH) as profiled:
        a + a
    assert [event for event in profiled.key_averages() if "[aliased]" in event.key]


def test_ranges_without_torchs_profiler() -> None:
    """torch.openreg.profiler.trace() gives what the devices did, of every thread, in order, on time.monotonic_ns()."""
    before = time.monotonic_ns()
    with torch.openreg.profiler.trace() as ranges:
        a = torch.ones(1024).to(D)
        worker = threading.Thread(target=lambda: a.exp())
        worker.start()
        worker.join()
        torch.openreg.synchronize(D)
    after = time.monotonic_ns()
    assert [(entry.kind, entry.name) for entry in ranges] == [
        ("copy", ""),
        ("operator", "aten::exp [aliased]"),
        ("wait", ""),
    ]
    copy, exp, wait = ranges
    assert (copy.source, copy.destination, copy.device, copy.stream, copy.bytes) == (-1, 1, 1, 0, 4096)
    assert copy.thread != exp.thread
    assert before <= copy.begin <= copy.end <= exp.begin <= exp.end <= wait.call_begin <= wait.call_end <= after
    assert (wait.times, wait.begin, wait.end, wait.call) == ("none", 0, 0, "openreg_device_synchronize")
    a + a
    assert len(ranges) == 3


def test_counts_of_operators_are_as_without_a_trace() -> None:
    """A trace watches aliased calls; the counts that operator_stats() gives don't change by that."""
    a = torch.ones(8, device=D)
    torch.openreg.reset_operator_stats()
    with torch.openreg.profiler.trace():
        a + a
    stats = torch.openreg.operator_stats()
    assert stats["aliased_calls"] == 1
    assert stats["aliased"] == {}


@needs_kineto
def test_kernels_of_a_driver_and_staged_operators(tmp_path: Path, python: Any) -> None:
    """A driver's kernel is a row by its name; an operator that runs on copies is seen by its copies, with their bytes."""
    library = compile_driver(tmp_path, "kernels_driver.c")
    code = """
    import torch
    from torch.profiler import ProfilerActivity, profile
    a = torch.ones(64, 64, device="openreg:1")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as profiled:
        a @ a
        a.exp()
    rows = [(e.name, e.device_index) for e in profiled.events() if "PrivateUse1" in repr(e.device_type).title()
            or "openreg" in str(e.device_type).lower()]
    assert ("aten::mm [native]", 1) in rows, rows
    assert [name for name, _ in rows].count("Memcpy DtoH") >= 1, rows
    assert [name for name, _ in rows].count("Memcpy HtoD") >= 1, rows
    assert not [name for name, _ in rows if "exp" in name], rows
    (mm,) = [e for e in profiled.key_averages() if e.key == "aten::mm"]
    assert mm.device_time_total > 0
    """
    python(code, OPENREG_DRIVER_LIBRARIES=f"kernels:{library}", OPENREG_DRIVERS="kernels")
