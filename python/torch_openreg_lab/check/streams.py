# SPDX-License-Identifier: BSD-3-Clause
"""Streams, events and memory, as a program of PyTorch's uses them."""

from __future__ import annotations

import gc
import itertools
import time

import torch
from _torch_openreg_device_name import device_name

from torch_openreg_lab.check.registry import Failure, Limits, Skip, check, expect

COUNT = 1 << 20  # elements of a copy that takes a while
ROUNDS = 12


def _pinned(value: float) -> torch.Tensor:
    return torch.full((COUNT,), value).pin_memory()


@check(
    "streams.operators",
    "An operator on a stream begins when what was queued on it before has ended, and ends before what is queued later.",
    "A kernel queues its work on the stream of the call, not on the default one.",
)
def operators(limits: Limits) -> None:
    """A copy, an operator that reads it and writes, and a copy back, on a stream of their own."""
    stream = torch.openreg.Stream()
    x = torch.zeros(COUNT, device=device_name())
    back = torch.empty(COUNT).pin_memory()
    sources = [_pinned(float(value)) for value in range(1, 4)]
    torch.openreg.synchronize()
    for round_ in range(ROUNDS):
        source, earlier = sources[round_ % 3], sources[(round_ + 1) % 3]
        with torch.openreg.stream(stream):
            for _ in range(8):
                x.copy_(earlier, non_blocking=True)
            x.copy_(source, non_blocking=True)  # the last: an operator that doesn't wait for all of them sees another's
            y = x + 1
            y.add_(x)
            back.copy_(y, non_blocking=True)
        stream.synchronize()
        wrong = int((back != 2 * source + 1).sum())
        expect(wrong == 0, f"round {round_}: {wrong} of {COUNT} elements are not those of the copy before the operator")


@check(
    "streams.wait",
    "A stream that waits for another one sees what that has written; of two devices too.",
    "Stream.wait_stream() records an event on the one and lets the other wait for it: driver.h, stream_wait().",
)
def wait(limits: Limits) -> None:
    """Written on one stream, read on another."""
    devices = range(min(2, torch.openreg.device_count()))
    for reader_device in devices:
        writer, reader = torch.openreg.Stream(0), torch.openreg.Stream(reader_device)
        x = torch.zeros(COUNT, device=f"{device_name()}:0")
        back = torch.empty(COUNT).pin_memory()
        for round_ in range(ROUNDS):
            source = _pinned(float(round_ + 1))
            torch.openreg.synchronize(0)
            with torch.openreg.stream(writer):
                for _ in range(4):
                    x.copy_(source, non_blocking=True)
                x.mul_(2)
            reader.wait_stream(writer)
            with torch.openreg.stream(reader):
                y = x.to(f"{device_name()}:{reader_device}", non_blocking=True) if reader_device else x + 0
                back.copy_(y, non_blocking=True)
            reader.synchronize()
            wrong = int((back != 2.0 * (round_ + 1)).sum())
            expect(wrong == 0, f"device {reader_device}, round {round_}: {wrong} of {COUNT} elements are older ones")


@check(
    "streams.events",
    "An event is complete behind what was queued before it, and times between events are in milliseconds.",
    "driver.h, event_query() and event_elapsed().",
)
def events(limits: Limits) -> None:
    """Two events around copies, and the time between."""
    first, second = (torch.openreg.Event(enable_timing=True) for _ in range(2))
    x, source = torch.zeros(COUNT, device=device_name()), _pinned(1.0)
    torch.openreg.synchronize()
    begin = time.perf_counter()
    first.record()
    for _ in range(8):
        x.copy_(source, non_blocking=True)
    second.record()
    second.synchronize()
    passed = 1000 * (time.perf_counter() - begin)
    expect(first.query() and second.query(), "an event that was waited for is not complete")
    expect(bool((x.cpu() == 1).all()), "an event was complete before the copies before it")
    milliseconds = first.elapsed_time(second)
    # Clocks of devices are another thing than the host's: a little more, or less, is no failure.
    expect(0 <= milliseconds < 1.5 * passed + 1, f"{milliseconds} ms between events, {passed:.3f} on the host")
    begin = time.perf_counter()
    time.sleep(0.02)
    passed = 1000 * (time.perf_counter() - begin)
    second.record()
    second.synchronize()
    milliseconds = first.elapsed_time(second)
    expect(milliseconds > passed / 1.5, f"{milliseconds} ms between events, {passed:.3f} on the host")


@check(
    "memory.reuse",
    "Memory that a stream still uses is not given to another tensor (record_stream).",
    "A block is used again when the event behind its last use is complete: driver.h, event_query().",
)
def reuse(limits: Limits) -> None:
    """A tensor of one stream, freed by the program while another stream reads it."""
    side = torch.openreg.Stream()
    back = torch.empty(COUNT).pin_memory()
    slow, fast = _pinned(0.0), _pinned(-1.0)
    other = torch.zeros(COUNT, device=device_name())
    for round_ in range(ROUNDS):
        x = torch.full((COUNT,), float(round_), device=device_name())
        side.wait_stream(torch.openreg.current_stream())
        with torch.openreg.stream(side):
            for _ in range(4):
                other.copy_(slow, non_blocking=True)
            back.copy_(x, non_blocking=True)
        x.record_stream(side)
        del x
        y = torch.empty(COUNT, device=device_name()).copy_(fast, non_blocking=True)
        side.synchronize()
        wrong = int((back != round_).sum())
        expect(wrong == 0, f"round {round_}: {wrong} of {COUNT} elements belong to a tensor made later")
        del y


@check(
    "memory.exhaustion",
    "Out of memory is torch.OutOfMemoryError, and the device works afterwards.",
    "mem_alloc() returns OPENREG_E_NOMEM, and nothing else then.",
)
def exhaustion(limits: Limits) -> None:
    """More than there is."""
    if torch.openreg.get_device_properties(0).total_memory == 0:
        raise Skip("the driver does not say how much memory a device has")
    size = 2 * torch.openreg.get_device_properties(0).total_memory
    try:
        torch.empty(size, dtype=torch.uint8, device=device_name())
    except torch.OutOfMemoryError:
        pass
    else:
        raise Failure(f"{size} bytes were allocated, twice what the device has")
    expect(torch.ones(3, device=device_name()).sum().item() == 3, "the device computes wrongly afterwards")


@check(
    "memory.returned",
    "Freed tensors return their memory to the cache, and empty_cache() returns it to the driver.",
    "mem_free() of the driver; torch.openreg.memory_snapshot() shows live memory.",
)
def returned(limits: Limits) -> None:
    """Allocations of many sizes, then none; several times, as other programs may use the device too."""
    gc.collect()
    before = torch.openreg.memory_allocated()
    free: list[int] = []
    for _ in range(4):
        for size in (1, 1000, 1 << 16, 1 << 22):
            tensors = [torch.empty(size, device=device_name()) + 1 for _ in range(8)]
            del tensors
        torch.openreg.synchronize()
        gc.collect()
        alive = torch.openreg.memory_allocated() - before
        expect(alive == 0, f"{alive} bytes are still allocated")
        torch.openreg.empty_cache()
        reserved = torch.openreg.memory_reserved()
        expect(before > 0 or reserved == 0, f"{reserved} bytes stay reserved after empty_cache()")
        free.append(torch.openreg.mem_get_info()[0])
    falls = all(later < earlier for earlier, later in itertools.pairwise(free))
    expect(not falls, f"the device has fewer free bytes after each round, though all memory was freed: {free}")
