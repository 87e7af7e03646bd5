# SPDX-License-Identifier: BSD-3-Clause
"""What devices do, and when, without PyTorch's profiler: a list of ranges.

``torch.profiler`` shows the same ranges among the operators that asked for them: give it
``ProfilerActivity.PrivateUse1``. Times are nanoseconds of ``time.monotonic_ns()``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch_openreg import _C

__all__ = ["Range", "trace"]

_KINDS = {1: "copy", 2: "fill", 3: "operator", 4: "wait"}
_TIMES = {0: "none", 1: "measured", 2: "host", 3: "assumed"}


@dataclass(frozen=True)
class Range:
    """One piece of work of a device, or a time that the host has waited for one.

    Attributes:
        kind: "copy", "fill", "operator" or "wait".
        name: Name of the operator, with the way that it ran: "aten::mm [native]", "aten::add [aliased]". Operators that
            run on copies in host memory are recorded as these copies.
        device: Index of the device that did the work or was waited for; -1 for the host.
        stream: Number of the stream, 0 for the default stream.
        source: Index of the device that a copy reads, -1 for the host.
        destination: Index of the device that a copy or fill writes, -1 for the host.
        bytes: Size of a copy or fill.
        times: Where begin and end come from: "measured" by the driver's events, "host" did the work itself, "assumed"
            (those of the call: the driver can't time), or "none" for a wait, whose begin and end are 0.
        begin: Begin of the work, nanoseconds.
        end: End of the work, nanoseconds.
        call: Function of the C API that was called, or "" for an operator that the host ran.
        call_begin: Begin of that call, nanoseconds.
        call_end: End of that call, nanoseconds.
        thread: The system's number of the thread that called.
    """

    kind: str
    name: str
    device: int
    stream: int
    source: int
    destination: int
    bytes: int
    times: str
    begin: int
    end: int
    call: str
    call_begin: int
    call_end: int
    thread: int

    @classmethod
    def _of(cls, fields: dict[str, Any]) -> Range:
        return cls(
            kind=_KINDS[fields["kind"]],
            times=_TIMES[fields["timing"]],
            begin=fields["device_begin"],
            end=fields["device_end"],
            call_begin=fields["host_begin"],
            call_end=fields["host_end"],
            **{key: fields[key] for key in ("name", "device", "stream", "source", "destination")},
            **{key: fields[key] for key in ("bytes", "call", "thread")},
        )


@contextmanager
def trace() -> Iterator[list[Range]]:
    """Context manager: notes what the devices do inside ``with``, in all threads.

    Yields:
        A list, empty until the end of the block, which waits for the work begun in it; then the ranges by their begin.

    Raises:
        RuntimeError: The devices are being profiled already, here or by torch.profiler.
    """
    ranges: list[Range] = []
    _C._trace_start()
    try:
        yield ranges
    finally:
        ranges.extend(map(Range._of, _C._trace_stop()))
