# SPDX-License-Identifier: BSD-3-Clause
"""Small programs with a race each, and what each is without it.

From the notes of torch.cuda, from the tests of PyTorch's sanitizer for CUDA, and from what goes wrong in prefetchers,
pipelines, optimizers and caches. A program is a function of ``fixed``: whether the line that it lacks is there.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

DEVICE = "openreg"


@dataclass(frozen=True)
class Program:
    """A program, what kind of report it gives, and whether the method of torch.cuda._sanitizer finds its race."""

    run: Callable[[bool], None]
    kind: str
    by_csan: bool

    @property
    def name(self) -> str:
        """The function's name."""
        return self.run.__name__


PROGRAMS: list[Program] = []


def _racy(kind: str, *, csan: bool) -> Callable[[Callable[[bool], None]], Callable[[bool], None]]:
    def add(run: Callable[[bool], None]) -> Callable[[bool], None]:
        PROGRAMS.append(Program(run, kind, csan))
        return run

    return add


def _side() -> torch.openreg.Stream:
    return torch.openreg.Stream()


def _main() -> torch.openreg.Stream:
    return torch.openreg.current_stream()


@contextlib.contextmanager
def _on(stream: torch.openreg.Stream, *, waits: bool) -> Iterator[None]:
    """Work of a stream, which waits for the current one first or does not."""
    if waits:
        stream.wait_stream(_main())
    with torch.openreg.stream(stream):
        yield


# ------------------------------------------------------------------------------------------ the notes of torch.cuda


@_racy("read-write", csan=True)
def notes_sum_before_normal_ends(fixed: bool) -> None:
    """Sums on another stream what normal_() may still be writing."""
    side = _side()
    a = torch.empty((100, 100), device=DEVICE).normal_(0.0, 1.0)
    with _on(side, waits=fixed):
        torch.sum(a)


@_racy("reuse", csan=False)
def notes_record_stream_missing(fixed: bool) -> None:
    """Frees a tensor while another stream reads it; the next one of the first stream gets its memory."""
    side = _side()
    a = torch.ones(5000, device=DEVICE)
    with _on(side, waits=True):
        b = a * 2
    if fixed:
        a.record_stream(side)
    address = a.data_ptr()
    del a
    c = torch.zeros(5000, device=DEVICE)
    if not fixed:
        assert c.data_ptr() == address
    _main().wait_stream(side)
    del b


@_racy("reuse", csan=True)
def record_stream_of_another_device_missing(fixed: bool) -> None:
    """Frees a tensor into which a stream of another device copies; its own stream, which waits for neither, gets it again."""
    own, there = _side(), torch.openreg.current_stream("openreg:1")
    source = torch.ones(5000, device="openreg:1")
    with torch.openreg.stream(own):
        a = torch.empty(5000, device="openreg:0")
    a.copy_(source)  # on `there`; the current stream waits for it, and `own` does not
    if fixed:
        a.record_stream(there)
    address = a.data_ptr()
    del a
    with torch.openreg.stream(own):
        b = torch.zeros(5000, device="openreg:0")
    if not fixed:
        assert b.data_ptr() == address


@_racy("read-write", csan=True)
def notes_initial_gradient_on_another_stream(fixed: bool) -> None:
    """Makes the gradient to start from on one stream and calls backward() on another."""
    side = _side()
    x = torch.ones(64, device=DEVICE, requires_grad=True)
    loss = x * 3
    with torch.openreg.stream(side):
        start = torch.full((64,), 2.0, device=DEVICE)
    if fixed:
        _main().wait_stream(side)
    loss.backward(gradient=start)
    if not fixed:
        start.record_stream(_main())


@_racy("write-write", csan=True)
def notes_gradients_used_on_another_stream(fixed: bool) -> None:
    """Uses gradients on a stream that doesn't wait for the one where backward() was called."""
    side = _side()
    x = torch.ones(64, device=DEVICE, requires_grad=True)
    (x * 3).sum().backward()
    with _on(side, waits=fixed):
        x.grad.add_(1)  # type: ignore[union-attr]


@_racy("read-write", csan=True)
def notes_default_stream_does_not_wait(fixed: bool) -> None:
    """The end of a stream's block is no wait for the stream."""
    side = _side()
    a = torch.ones(1000, device=DEVICE)
    with _on(side, waits=True):
        a.mul_(2)
    if fixed:
        _main().wait_stream(side)
    a.sum()


# ---------------------------------------------------------------------------------------- events and waits gone wrong


@_racy("read-write", csan=True)
def event_recorded_too_early(fixed: bool) -> None:
    """Records the event before the work that it is meant for."""
    side, event = _side(), torch.openreg.Event()
    a = torch.zeros(100, device=DEVICE)
    event.record()
    a.fill_(1)
    if fixed:
        event.record()
    side.wait_event(event)
    with torch.openreg.stream(side):
        a.clone()


@_racy("read-write", csan=True)
def event_never_recorded(fixed: bool) -> None:
    """Waits for an event that was never recorded, which waits for nothing."""
    side, event = _side(), torch.openreg.Event()
    a = torch.ones(100, device=DEVICE)
    if fixed:
        event.record()
    side.wait_event(event)
    with torch.openreg.stream(side):
        a.clone()


@_racy("read-write", csan=True)
def event_recorded_on_the_wrong_stream(fixed: bool) -> None:
    """Records the event on a stream that has not done the work."""
    side, other, event = _side(), _side(), torch.openreg.Event()
    a = torch.ones(100, device=DEVICE)
    event.record(_main() if fixed else other)
    side.wait_event(event)
    with torch.openreg.stream(side):
        a.clone()


@_racy("read-write", csan=True)
def event_waited_for_before_its_last_record(fixed: bool) -> None:
    """Waits for an event that is then recorded again: the wait means the record before."""
    side, event = _side(), torch.openreg.Event()
    a = torch.zeros(100, device=DEVICE)
    event.record()
    if not fixed:
        side.wait_event(event)
    a.add_(1)
    event.record()
    if fixed:
        side.wait_event(event)
    with torch.openreg.stream(side):
        a.clone()


@_racy("read-write", csan=True)
def wait_in_the_wrong_direction(fixed: bool) -> None:
    """The producer waits for the consumer."""
    side = _side()
    a = torch.ones(100, device=DEVICE)
    if fixed:
        side.wait_stream(_main())
    else:
        _main().wait_stream(side)
    with torch.openreg.stream(side):
        a.clone()


@_racy("read-write", csan=True)
def wait_for_one_of_two_producers(fixed: bool) -> None:
    """Waits for one of the two streams that it takes from."""
    first, second = _side(), _side()
    with torch.openreg.stream(first):
        a = torch.ones(100, device=DEVICE)
    with torch.openreg.stream(second):
        b = torch.ones(100, device=DEVICE)
    _main().wait_stream(first)
    if fixed:
        _main().wait_stream(second)
    a + b
    a.record_stream(_main())
    b.record_stream(_main())


@_racy("read-write", csan=True)
def wait_before_the_last_write(fixed: bool) -> None:
    """Waits, and then the producer writes once more."""
    side = _side()
    a = torch.ones(100, device=DEVICE)
    side.wait_stream(_main())
    a.add_(1)
    with _on(side, waits=fixed):
        a.clone()


@_racy("read-write", csan=True)
def synchronized_the_other_stream(fixed: bool) -> None:
    """The host waits for a stream, but not for the one that writes."""
    side, other = _side(), _side()
    with torch.openreg.stream(side):
        a = torch.ones(100, device=DEVICE)
    (side if fixed else other).synchronize()
    a.sum()
    a.record_stream(_main())


@_racy("read-write", csan=True)
def priority_is_no_order(fixed: bool) -> None:
    """Takes a stream of high priority to be done first."""
    urgent = torch.openreg.Stream(priority=-1)
    with torch.openreg.stream(urgent):
        a = torch.ones(100, device=DEVICE)
    if fixed:
        _main().wait_stream(urgent)
    a.sum()
    a.record_stream(_main())


# --------------------------------------------------------------------------------------- write after read, and writes


@_racy("read-write", csan=True)
def optimizer_updates_what_evaluation_reads(fixed: bool) -> None:
    """Updates weights while an evaluation on another stream reads them."""
    side = _side()
    weight = torch.ones(64, 64, device=DEVICE)
    with _on(side, waits=True):
        torch.ones(4, 64, device=DEVICE) @ weight
    if fixed:
        _main().wait_stream(side)
    weight.add_(0.1)


@_racy("write-write", csan=True)
def two_streams_add_to_one_tensor(fixed: bool) -> None:
    """Accumulates into one tensor from two streams."""
    first, second = _side(), _side()
    total = torch.zeros(100, device=DEVICE)
    first.wait_stream(_main())
    second.wait_stream(_main())
    with torch.openreg.stream(first):
        total.add_(1)
    if fixed:
        second.wait_stream(first)
    with torch.openreg.stream(second):
        total.add_(2)


@_racy("write-write", csan=True)
def gradients_zeroed_on_another_stream(fixed: bool) -> None:
    """Zeroes gradients on a side stream while backward() adds to them."""
    side = _side()
    weight = torch.ones(64, device=DEVICE, requires_grad=True)
    (weight * 2).sum().backward()
    (weight * 2).sum().backward()
    with _on(side, waits=fixed):
        weight.grad.zero_()  # type: ignore[union-attr]


@_racy("write-write", csan=True)
def two_operators_share_a_result(fixed: bool) -> None:
    """Gives one out= tensor to operators on two streams."""
    side = _side()
    a, out = torch.ones(100, device=DEVICE), torch.empty(100, device=DEVICE)
    side.wait_stream(_main())
    torch.add(a, 1, out=out)
    with _on(side, waits=fixed):
        torch.mul(a, 2, out=out)


@_racy("write-write", csan=True)
def foreach_on_another_stream(fixed: bool) -> None:
    """Updates a list of tensors on a side stream, one of which the main stream is writing."""
    side = _side()
    tensors = [torch.ones(32, device=DEVICE) for _ in range(4)]
    side.wait_stream(_main())
    tensors[2].mul_(3)
    with _on(side, waits=fixed):
        torch._foreach_add_(tensors, 1.0)


@_racy("write-write", csan=True)
def workspace_shared_by_streams(fixed: bool) -> None:
    """Uses one workspace for work on two streams."""
    streams = (_side(), _side())
    workspace = torch.empty(4096, device=DEVICE)
    for number, stream in enumerate(streams):
        if fixed:
            stream.wait_stream(streams[number - 1] if number else _main())
        else:
            stream.wait_stream(_main())
        with torch.openreg.stream(stream):
            workspace.fill_(number)


# ---------------------------------------------------------------------------------------------------- parts of tensors


@_racy("write-write", csan=False)
def halves_that_share_a_row(fixed: bool) -> None:
    """Splits a batch between two streams, one row too many."""
    side = _side()
    batch = torch.zeros(100, 8, device=DEVICE)
    side.wait_stream(_main())
    batch[: 50 if fixed else 51].add_(1)
    with torch.openreg.stream(side):
        batch[50:].add_(2)


@_racy("read-write", csan=False)
def view_written_and_base_read(fixed: bool) -> None:
    """Writes a part of a tensor on one stream and reads all of it on another."""
    side = _side()
    a = torch.zeros(100, device=DEVICE)
    side.wait_stream(_main())
    a[10:20].fill_(1)
    with _on(side, waits=fixed):
        a.sum()


@_racy("write-write", csan=False)
def columns_that_cross_rows(fixed: bool) -> None:
    """Writes columns on one stream and a row on another."""
    side = _side()
    a = torch.zeros(8, 8, device=DEVICE)
    side.wait_stream(_main())
    a[:, 2:4].fill_(1)
    with torch.openreg.stream(side):
        (a[3, 4:] if fixed else a[3]).fill_(2)


@_racy("write-write", csan=False)
def cache_slots_off_by_one(fixed: bool) -> None:
    """Writes two neighbouring slots of a key-value cache from two streams, one token too long."""
    side = _side()
    cache = torch.zeros(4, 16, 8, device=DEVICE)
    side.wait_stream(_main())
    cache.view(64, 8)[: 32 if fixed else 33].fill_(1)
    with torch.openreg.stream(side):
        cache[2].fill_(2)


@_racy("read-write", csan=False)
def flat_buffer_and_its_parameters(fixed: bool) -> None:
    """Reduces a flat buffer on a side stream while a parameter that lies in it is updated."""
    side = _side()
    flat = torch.zeros(1000, device=DEVICE)
    parameter = flat[300:400].view(10, 10)
    with _on(side, waits=True):
        flat.clone()
    if fixed:
        _main().wait_stream(side)
    parameter.add_(1)


# ---------------------------------------------------------------------------------------------------------------- copies


@_racy("read-write", csan=True)
def batch_used_before_its_copy_ends(fixed: bool) -> None:
    """Copies a batch on a side stream and uses it without waiting: a prefetcher's first mistake."""
    side = _side()
    host = torch.ones(256, pin_memory=True)
    with torch.openreg.stream(side):
        batch = host.to(DEVICE, non_blocking=True)
    if fixed:
        _main().wait_stream(side)
    batch * 2
    batch.record_stream(_main())


@_racy("reuse", csan=False)
def prefetcher_without_record_stream(fixed: bool) -> None:
    """The next batch is copied into memory that the main stream still reads: a prefetcher's second mistake."""
    side = _side()
    host = torch.ones(5000, pin_memory=True)
    for _ in range(2):
        with torch.openreg.stream(side):
            batch = host.to(DEVICE, non_blocking=True)
        _main().wait_stream(side)
        if fixed:
            batch.record_stream(_main())
        batch * 2
        del batch


@_racy("write-write", csan=False)
def two_copies_to_one_pinned_buffer(fixed: bool) -> None:
    """Copies two results to one pinned buffer, from two streams."""
    side = _side()
    a, b = torch.ones(64, device=DEVICE), torch.zeros(64, device=DEVICE)
    host = torch.empty(64, pin_memory=True)
    side.wait_stream(_main())
    host.copy_(a, non_blocking=True)
    with _on(side, waits=fixed):
        host.copy_(b, non_blocking=True)
    torch.openreg.synchronize()


@_racy("read-write", csan=False)
def pinned_buffer_sent_on_before_it_is_there(fixed: bool) -> None:
    """Copies to pinned memory on one stream and from there on another."""
    side = _side()
    a = torch.ones(64, device=DEVICE)
    host = torch.empty(64, pin_memory=True)
    host.copy_(a, non_blocking=True)
    with _on(side, waits=fixed):
        host.to(DEVICE, non_blocking=True)
    torch.openreg.synchronize()


@_racy("read-write", csan=True)
def offloaded_while_written(fixed: bool) -> None:
    """Offloads an activation on a side stream that the main stream is writing."""
    side = _side()
    activation = torch.ones(256, device=DEVICE)
    host = torch.empty(256, pin_memory=True)
    with _on(side, waits=fixed):
        host.copy_(activation, non_blocking=True)
    torch.openreg.synchronize()


@_racy("read-write", csan=True)
def peer_read_before_it_is_sent(fixed: bool) -> None:
    """Sends a tensor to another device, and reads it there on a stream that nothing has told."""
    a = torch.ones(64, device="openreg:0")
    b = torch.empty(64, device="openreg:1")
    side = torch.openreg.Stream(device=1)
    b.copy_(a, non_blocking=True)
    if fixed:
        side.wait_stream(torch.openreg.current_stream(1))
    with torch.openreg.stream(side):
        b.sum()
    torch.openreg.synchronize(1)


@_racy("read-write", csan=True)
def source_changed_while_it_is_sent(fixed: bool) -> None:
    """Changes, on another stream, the tensor that is being copied to another device."""
    side = _side()
    a = torch.ones(64, device="openreg:0")
    b = torch.empty(64, device="openreg:1")
    side.wait_stream(_main())
    b.copy_(a, non_blocking=True)
    with _on(side, waits=fixed):
        a.fill_(2)
    torch.openreg.synchronize(1)


@_racy("read-write", csan=False)
def synchronized_the_other_device(fixed: bool) -> None:
    """Waits for a device, but not for the one that works."""
    side = _side()
    with torch.openreg.stream(side):
        a = torch.ones(64, device=DEVICE)
    torch.openreg.synchronize(0 if fixed else 1)
    a.sum()
    a.record_stream(_main())


@_racy("host", csan=False)
def result_read_before_its_copy_ends(fixed: bool) -> None:
    """Reads on the host what a copy without waiting brings."""
    a = torch.ones(64, device=DEVICE)
    host = a.to("cpu", non_blocking=True)
    if fixed:
        torch.openreg.current_stream().synchronize()
    host.sum()
    torch.openreg.synchronize()


@_racy("host", csan=False)
def staging_buffer_filled_again(fixed: bool) -> None:
    """Fills a pinned buffer with the next batch while the last one is still copied from it."""
    host = torch.zeros(64, pin_memory=True)
    for number in range(2):
        host.fill_(number)
        host.to(DEVICE, non_blocking=True)
        if fixed:
            torch.openreg.current_stream().synchronize()
    torch.openreg.synchronize()


@_racy("host", csan=False)
def loss_compared_before_it_is_there(fixed: bool) -> None:
    """Asks whether a loss is finite that is still on its way."""
    host = torch.empty((), pin_memory=True)
    loss, event = torch.ones((), device=DEVICE), torch.openreg.Event()
    host.copy_(loss, non_blocking=True)
    event.record()
    if fixed:
        event.synchronize()
    host.item()
    torch.openreg.synchronize()


# ---------------------------------------------------------------------------------------------------------- allocator


@_racy("reuse", csan=False)
def recorded_on_the_wrong_stream(fixed: bool) -> None:
    """Calls record_stream() with a stream that doesn't use the tensor."""
    side, other = _side(), _side()
    a = torch.ones(5000, device=DEVICE)
    with _on(side, waits=True):
        a.sum()
    a.record_stream(side if fixed else other)
    del a
    torch.zeros(5000, device=DEVICE)


@_racy("reuse", csan=False)
def temporary_handed_to_another_stream(fixed: bool) -> None:
    """Passes a temporary to another stream; nobody keeps it."""
    side = _side()
    out = torch.empty(5000, device=DEVICE)
    temporary = torch.ones(5000, device=DEVICE)
    with _on(side, waits=True):
        out.copy_(temporary)
    if fixed:
        _main().wait_stream(side)
    del temporary
    torch.zeros(5000, device=DEVICE)


@_racy("reuse", csan=False)
def saved_activation_freed_on_its_own_stream(fixed: bool) -> None:
    """Offloads an activation on a side stream and frees it at once."""
    side = _side()
    host = torch.empty(5000, pin_memory=True)
    activation = torch.ones(5000, device=DEVICE)
    with _on(side, waits=True):
        host.copy_(activation, non_blocking=True)
    if fixed:
        activation.record_stream(side)
    del activation
    torch.zeros(5000, device=DEVICE)
    torch.openreg.synchronize()


# ------------------------------------------------------------------------------------------------ threads and programs


@_racy("read-write", csan=False)
def worker_thread_hands_over_a_tensor(fixed: bool) -> None:
    """A thread makes a tensor on its own stream and puts it into a queue: that orders the host, not the streams."""
    made: queue.Queue[tuple[torch.Tensor, torch.openreg.Stream]] = queue.Queue()

    def work() -> None:
        stream = torch.openreg.Stream()
        with torch.openreg.stream(stream):
            made.put((torch.ones(64, device=DEVICE), stream))

    thread = threading.Thread(target=work)
    thread.start()
    tensor, stream = made.get()
    thread.join()
    if fixed:
        _main().wait_stream(stream)
    tensor.sum()
    tensor.record_stream(_main())


@_racy("read-write", csan=True)
def pipeline_of_two_stages(fixed: bool) -> None:
    """The second stage reads what the first has overwritten with the next micro batch."""
    first, second = _side(), _side()
    buffer = torch.zeros(64, device=DEVICE)
    first.wait_stream(_main())
    for batch in range(2):
        if fixed:
            first.wait_stream(second)
        with torch.openreg.stream(first):
            buffer.fill_(batch)
        second.wait_stream(first)
        with torch.openreg.stream(second):
            buffer.sum()


@_racy("read-write", csan=True)
def metric_copied_while_it_is_updated(fixed: bool) -> None:
    """Logs a running metric from a side stream while training adds to it."""
    side = _side()
    metric = torch.zeros((), device=DEVICE)
    side.wait_stream(_main())
    metric.add_(1)
    with _on(side, waits=fixed):
        metric.clone()


@_racy("read-write", csan=True)
def indexed_while_it_is_updated(fixed: bool) -> None:
    """Gathers rows of an embedding on a side stream while the main one scatters gradients into it."""
    side = _side()
    table = torch.ones(16, 4, device=DEVICE)
    rows = torch.tensor([1, 5, 9], device=DEVICE)
    side.wait_stream(_main())
    table.index_add_(0, rows, torch.ones(3, 4, device=DEVICE))
    with _on(side, waits=fixed):
        table.index_select(0, rows)


# ------------------------------------------------------------------------------------------------------ lost devices


@_racy("lost-device", csan=False)
def event_of_a_lost_device(fixed: bool) -> None:
    """Lets the next stage wait for an event of a device that was lost."""
    stage = torch.openreg.Stream("openreg:1")
    x = torch.ones(64, device="openreg:1")
    stage.wait_stream(torch.openreg.current_stream("openreg:1"))
    done = stage.record_event()
    is_lost = False
    with torch.openreg.faults("openreg:1 lost at copy 1"):
        try:
            x.cpu()
        except RuntimeError:
            is_lost = True
        if not (fixed and is_lost):
            with contextlib.suppress(RuntimeError):
                _main().wait_event(done)


@_racy("lost-device", csan=False)
def stream_of_a_lost_device(fixed: bool) -> None:
    """Goes on to give copies to a stream of a device that was lost, and takes each error for a batch's."""
    x = torch.ones(64, device="openreg:1")
    batches = [torch.ones(64, pin_memory=True) for _ in range(3)]
    with torch.openreg.faults("openreg:1 lost at copy 2"):
        for batch in batches:
            try:
                x.copy_(batch, non_blocking=True)
            except RuntimeError:
                if fixed:
                    break
    torch.openreg.synchronize("openreg:1")
