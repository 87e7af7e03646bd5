# SPDX-License-Identifier: BSD-3-Clause
"""Streams and events from Python."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch


def test_types() -> None:
    stream, event = torch.openreg.Stream(), torch.openreg.Event()
    assert isinstance(stream, torch.Stream)
    assert isinstance(event, torch.Event)
    assert isinstance(torch.openreg.current_stream(), torch.openreg.Stream)
    assert isinstance(stream.record_event(), torch.openreg.Event)


def test_default_and_current_stream() -> None:
    for index in (0, 1):
        default = torch.openreg.default_stream(index)
        assert default.device == torch.device("openreg", index)
        assert default.stream_id == 0
        assert torch.openreg.current_stream(index) == default
        assert torch.accelerator.current_stream(index) == default
    assert torch.openreg.current_stream().device.index == 0
    torch.openreg.set_device(1)
    assert torch.openreg.current_stream().device.index == 1


@pytest.mark.parametrize("function", ["current_stream", "default_stream", "Stream", "Event"])
@pytest.mark.parametrize("index", [2, 127, 255, -2])
def test_out_of_range(function: str, index: int) -> None:
    with pytest.raises(RuntimeError, match="out of range"):
        getattr(torch.openreg, function)(index)
    with pytest.raises(ValueError, match="Expected an openreg device"):
        getattr(torch.openreg, function)("cpu")


def test_stream_context() -> None:
    there = torch.openreg.Stream("openreg:1")
    with torch.openreg.stream(there):
        assert torch.openreg.current_device() == 1
        assert torch.openreg.current_stream() == there
        with torch.openreg.stream(torch.openreg.default_stream(0)):
            assert torch.openreg.current_device() == 0
        assert torch.openreg.current_stream() == there
        with torch.openreg.stream(None):
            assert torch.openreg.current_stream() == there
    assert torch.openreg.current_device() == 0
    assert torch.openreg.current_stream(1) == torch.openreg.default_stream(1)
    with pytest.raises(KeyError), torch.openreg.stream(there):
        raise KeyError
    assert torch.openreg.current_device() == 0
    assert torch.openreg.current_stream(1) == torch.openreg.default_stream(1)


def test_a_stream_is_a_context_manager_itself() -> None:
    there = torch.openreg.Stream(1)
    with there:
        assert torch.accelerator.current_stream() == there
    assert torch.openreg.current_device() == 0
    assert torch.openreg.current_stream(1).stream_id == 0


def test_set_stream() -> None:
    there = torch.openreg.Stream(1)
    torch.openreg.set_stream(there)
    assert torch.openreg.current_stream(1) == there
    assert torch.openreg.current_device() == 1
    torch.openreg.set_stream(None)
    assert torch.openreg.current_stream(1) == there
    with pytest.raises(TypeError, match="Expected a stream"):
        torch.openreg.set_stream(1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Expected a stream"):
        torch.openreg.stream("openreg:1")  # type: ignore[arg-type]


# the pool hands streams out in turn, and a stream is known by its number
def test_pool_and_identity() -> None:
    streams = [torch.openreg.Stream(0) for _ in range(5)]
    assert len({stream.stream_id for stream in streams}) == 5
    again = torch.openreg.Stream(
        stream_id=streams[0].stream_id, device_index=0, device_type=int(torch._C._autograd.DeviceType.PrivateUse1)
    )
    assert again == streams[0]
    assert hash(again) == hash(streams[0])
    assert again != streams[1]
    for priority in (-100, 0, 100):
        assert torch.openreg.Stream(priority=priority).query()


def test_events_order_streams() -> None:
    source = torch.randn(1 << 20).pin_memory()
    first, second = torch.openreg.Stream(0), torch.openreg.Stream(0)
    device = torch.empty(1 << 20, device="openreg:0")
    for _ in range(20):
        with torch.openreg.stream(first):
            device.copy_(source, non_blocking=True)
            event = first.record_event()
        second.wait_event(event)
        with torch.openreg.stream(second):
            back = device.to("cpu")
        assert torch.equal(back, source)
        first.wait_stream(second)
        source.neg_()


def test_event_queries() -> None:
    event = torch.openreg.Event()
    assert event.query()
    event.synchronize()  # never recorded: nothing to wait for
    event.record()
    event.synchronize()
    assert event.query()
    with torch.openreg.stream(torch.openreg.Stream(0)) as _:
        event.wait()
        event.record()
    event.synchronize()


def test_elapsed_time() -> None:
    start, end = torch.openreg.Event(enable_timing=True), torch.openreg.Event(enable_timing=True)
    before = time.monotonic()
    start.record()
    start.synchronize()
    time.sleep(0.05)
    end.record()
    end.synchronize()
    assert 50 <= start.elapsed_time(end) <= 1e3 * (time.monotonic() - before)
    plain = torch.openreg.Event()
    plain.record()
    for other in (plain, torch.openreg.Event(enable_timing=True)):
        with pytest.raises((RuntimeError, ValueError)):
            start.elapsed_time(other)
    with pytest.raises(TypeError):
        start.elapsed_time(1)  # type: ignore[arg-type]


# a stream or event of another device
def test_an_event_belongs_to_its_device() -> None:
    event = torch.openreg.Event(0)
    event.record(torch.openreg.default_stream(0))
    with pytest.raises(RuntimeError):
        event.record(torch.openreg.Stream(1))
    torch.openreg.Stream(1).wait_event(event)  # waiting across devices is allowed
    refused = pytest.raises(NotImplementedError, match="can't be shared between processes. Synchronize it")
    with refused:
        torch.openreg.Event(interprocess=True)
    with refused:
        event.ipc_handle()
    with refused:
        torch.openreg.Event.from_ipc_handle("openreg:0", b"")


def test_record_stream_keeps_the_block() -> None:
    side = torch.openreg.Stream(0)
    x = torch.ones(1 << 16, device="openreg:0")
    side.wait_stream(torch.openreg.current_stream(0))
    with torch.openreg.stream(side):
        x.record_stream(side)
        y = x + 1
    del x
    side.synchronize()
    assert y.sum().item() == 2 << 16


# a tensor may be recorded on streams of another device, as on CUDA: its default one is no stream of the tensor's own device
@pytest.mark.parametrize("is_default", [True, False])
def test_record_stream_of_another_device(is_default: bool) -> None:
    there = torch.openreg.default_stream(1) if is_default else torch.openreg.Stream(1)
    source = torch.ones(1 << 16, device="openreg:1")
    torch.openreg.empty_cache()
    before = torch.openreg.memory_stats(0)["active.all.current"]
    x = torch.empty(1 << 16, device="openreg:0")
    there.wait_stream(torch.openreg.default_stream(1))
    with torch.openreg.stream(there):
        x.copy_(source, non_blocking=True)
    x.record_stream(there)
    y = x + 1
    del x
    there.synchronize()
    torch.openreg.empty_cache()  # waits for recorded streams
    assert torch.openreg.memory_stats(0)["active.all.current"] == before + 1  # y
    assert y.sum().item() == 2 << 16


# a tensor with a lazy conj or neg bit is recorded itself: PyTorch would record a copy, and write that back
def test_record_stream_with_lazy_bits() -> None:
    side = torch.openreg.Stream(0)
    for x in (
        torch._neg_view(torch.ones(3, device="openreg:0")),
        torch.ones(3, dtype=torch.complex64, device="openreg:0").conj(),
    ):
        allocated = torch.openreg.memory_stats(0)["allocation.all.allocated"]
        for view in (x, x.expand(2, 3)):
            view.record_stream(side)
        assert torch.openreg.memory_stats(0)["allocation.all.allocated"] == allocated


def test_many_streams_from_many_threads() -> None:
    wrong: list[Any] = []

    def work(number: int) -> None:
        index = number % 2
        torch.openreg.set_device(index)
        for turn in range(30):
            with torch.openreg.stream(torch.openreg.Stream(index)):
                x = torch.full((64,), float(turn), device="openreg")
                if (x * 2).sum().item() != 128.0 * turn:
                    wrong.append((number, turn))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# as in torch.cuda: (least, most) urgent, and a stream knows its own, clamped into that
def test_priorities() -> None:
    least, most = torch.openreg.Stream.priority_range()
    assert (least, most) == (0, -1)
    assert torch.openreg.Stream.priority_range("openreg:1") == (least, most)
    assert [torch.openreg.Stream(priority=p).priority for p in (5, 0, -1, -9)] == [least, 0, most, most]
    assert torch.openreg.default_stream(1).priority == 0
    with pytest.raises(RuntimeError, match="out of range"):
        torch.openreg.Stream.priority_range(2)


def test_repr() -> None:
    stream = torch.openreg.Stream(1)
    assert repr(stream) == f"<torch.openreg.Stream device=openreg:1 stream_id={stream.stream_id:#x}>"


# a native handle leads back to its stream, and to no other; a foreign one is refused
def test_external_stream() -> None:
    for stream in (torch.openreg.Stream(1), torch.openreg.Stream(1, priority=-1), torch.openreg.default_stream(1)):
        external = torch.openreg.ExternalStream(stream.native_handle, "openreg:1")
        assert isinstance(external, torch.openreg.Stream)
        assert external == stream
        with torch.openreg.stream(external):
            assert torch.openreg.current_stream() == stream
    assert torch.openreg.ExternalStream(0).stream_id == 0
    with pytest.raises(NotImplementedError, match="0x8 is not a stream that was made on openreg:0"):
        torch.openreg.ExternalStream(8)
    with pytest.raises(NotImplementedError, match="is not a stream that was made on openreg:0"):
        torch.openreg.ExternalStream(torch.openreg.Stream(1).native_handle, 0)  # of the other device
    with pytest.raises(RuntimeError, match="out of range"):
        torch.openreg.ExternalStream(0, 2)


# torch.Stream and torch.Event, of no subclass of ours, serve wherever ours do
def test_generic_streams_and_events() -> None:
    generic, own = torch.Stream("openreg:1"), torch.openreg.Stream(1)
    event, own_event = torch.Event("openreg:1"), torch.openreg.Event()
    event.record(own)
    own_event.record(generic)
    for stream in (generic, own):
        for mark in (event, own_event):
            stream.wait_event(mark)
            mark.wait(stream)
        for other in (generic, own):
            stream.wait_stream(other)
        assert stream.record_event(torch.Event("openreg:1")) is not None
        stream.synchronize()
        assert stream.query()
    assert own.record_event(event) is event
    event.synchronize()
    assert event.query()
    torch.openreg.set_stream(generic)
    assert torch.openreg.current_stream(1) == generic
    with torch.openreg.stream(torch.Stream("openreg:0")) as nothing:
        assert nothing is None
        assert torch.openreg.current_device() == 0
    torch.ones(3, device="openreg:1").record_stream(generic)


# the backward of what ran on a stream runs on that stream, in whatever thread
def test_backward_runs_on_the_stream_of_the_forward() -> None:
    seen: list[int] = []

    class Note(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            seen.append(torch.openreg.current_stream(gradients[0].device).stream_id)
            return gradients[0] * 2

    x = torch.ones(1000, device="openreg:1", requires_grad=True)
    stream = torch.openreg.Stream(1)
    stream.wait_stream(torch.openreg.current_stream(1))
    with torch.openreg.stream(stream):
        y = Note.apply(x).sum()
    y.backward()
    assert seen == [stream.stream_id]
    assert x.grad is not None
    assert x.grad.tolist() == [2.0] * 1000


# the copy is queued, not made: a pinned block whose tensor has gone is not given out while a stream reads it
def test_a_pinned_copy_keeps_its_source() -> None:
    stream = torch.openreg.Stream(0)
    sinks = []
    with torch.openreg.stream(stream):
        for number in range(20):
            source = torch.full((1 << 18,), float(number)).pin_memory()
            sinks.append(torch.empty(1 << 18, device="openreg:0"))
            sinks[-1].copy_(source, non_blocking=True)
            del source
            torch.full((1 << 18,), -1.0).pin_memory()  # would be given the block
    stream.synchronize()
    assert [sink[[0, -1]].tolist() for sink in sinks] == [[float(n)] * 2 for n in range(20)]


# a non-blocking copy returns before it is made where the memory is pinned
def test_non_blocking_copies_return_early() -> None:
    stream = torch.openreg.Stream(0)
    sink = torch.empty(1 << 24, device="openreg:0")
    pinned = torch.zeros(1 << 24).pin_memory()
    with torch.openreg.stream(stream):
        unfinished = 0
        for _ in range(10):
            sink.copy_(pinned, non_blocking=True)
            unfinished += not stream.query()
            stream.synchronize()
    assert unfinished > 0


# work on one stream does not wait for copies that another has queued
def test_streams_overlap() -> None:
    side = torch.openreg.Stream(0)
    source = torch.ones(1 << 24).pin_memory()
    sink = torch.empty_like(source, device="openreg:0")
    factor = torch.ones(8, 8, device="openreg:0")
    factor @ factor  # what a first call does takes long
    with torch.openreg.stream(side):
        for _ in range(20):
            sink.copy_(source, non_blocking=True)
    total = (factor @ factor).sum().item()
    assert not side.query()
    side.synchronize()
    assert total == 512.0
    assert sink.sum().item() == float(1 << 24)
