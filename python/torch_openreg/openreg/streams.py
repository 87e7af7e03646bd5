# SPDX-License-Identifier: BSD-3-Clause
"""Streams and events.

A stream is a queue of work of one device, run in order. Each thread has a current stream per device, to which its
work goes; at first it is the default stream, which waits for no other.

A parameter ``device`` is an index, a string, a torch.device, or None for the thread's current device; a device that
does not exist raises RuntimeError.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from _torch_openreg_device_name import a_device_name, device_name

from torch_openreg import _C
from torch_openreg.openreg._device import device as _device_guard
from torch_openreg.openreg._utils import Device, _get_device_index, _get_valid_index

__all__ = [
    "Event",
    "ExternalStream",
    "Stream",
    "StreamContext",
    "current_stream",
    "default_stream",
    "set_stream",
    "stream",
]

_NAME = device_name()

_ANY_DEVICE = torch.device(_NAME)
_DEVICE_TYPE = int(torch._C._autograd.DeviceType.PrivateUse1)


class Stream(torch.Stream):
    """A stream of the device's pool. As a context manager it makes itself current.

    Args:
        device: The device; the current one if None or -1.
        priority: Lower is more urgent. It is clamped into what the device has.
        **kwargs: stream_id, device_index and device_type name an existing stream instead.

    Raises:
        RuntimeError: There is no such device.
        ValueError: A device of another type.
    """

    def __new__(cls, device: Device = None, priority: int = 0, **kwargs: Any) -> Stream:  # noqa: D102
        if "stream_id" in kwargs:
            return super().__new__(cls, priority=priority, **kwargs)
        index = _get_device_index(device, optional=True)
        if index < 0:
            index = _get_valid_index(None)
        return super().__new__(cls, device=torch.device(_NAME, index), priority=priority)

    @staticmethod
    def priority_range(device: Device = None) -> tuple[int, int]:
        """Returns the least and the most urgent priority of a device's streams; both 0 if it has no priorities."""
        return _C._stream_priority_range(_get_valid_index(device))

    @property
    def priority(self) -> int:
        """The stream's priority: the requested one, limited to what the device has."""
        return _C._stream_priority(self.device_index, self.stream_id)

    def __repr__(self) -> str:
        return f"<torch.{_NAME}.Stream device={self.device} stream_id={self.stream_id:#x}>"

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        """Records an event behind the work queued so far.

        Args:
            event: The event; a new one if None.

        Returns:
            The event.
        """
        if event is None:
            event = Event(self.device)
        event.record(self)
        return event

    def wait_event(self, event: torch.Event) -> None:
        """Makes later work of this stream wait for what the event marks now. Returns at once.

        Args:
            event: The event; of any device. One that was never recorded marks nothing.
        """
        super().wait_event(event)

    def wait_stream(self, other: torch.Stream) -> None:
        """Makes later work of this stream wait for the work that another has now. Returns at once.

        Args:
            other: The other stream; of any device.
        """
        super().wait_stream(other)

    def query(self) -> bool:
        """Returns whether all work queued so far has ended."""
        return super().query()

    def synchronize(self) -> None:
        """Waits for all work queued so far.

        Raises:
            RuntimeError: Some of it has failed.
        """
        super().synchronize()


class ExternalStream(Stream):
    """The stream that a vendor's handle is of, such as another library was given by ``Stream.native_handle``.

    Args:
        stream_ptr: The handle, as a number. 0 means the default stream.
        device: The device that the stream is of; the current one if None.

    Raises:
        RuntimeError: There is no such device.
        NotImplementedError: The runtime has not made the stream: a driver can't adopt another library's.
    """

    def __new__(cls, stream_ptr: int, device: Device = None) -> ExternalStream:  # noqa: D102
        index = _get_valid_index(device)
        stream_id = _C._stream_from_native(index, stream_ptr)
        return super().__new__(cls, stream_id=stream_id, device_index=index, device_type=_DEVICE_TYPE)


def _reject_sharing() -> NoReturn:
    raise NotImplementedError(
        f"{_NAME}: an event can't be shared between processes. Synchronize it before you tell the other process."
    )


class Event(torch.Event):
    """A marker in a stream. Recording it again replaces the mark.

    Args:
        device: Its device. If None, it becomes that of the first stream it is recorded on.
        enable_timing: Whether elapsed_time() can be called.
        blocking: As in torch.Event.
        interprocess: As in torch.Event; not supported.

    Raises:
        RuntimeError: There is no such device.
        ValueError: A device of another type.
    """

    _index: int | None = None  # torch.Event keeps no index before the first record

    def __new__(  # noqa: D102
        cls, device: Device = None, *, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> Event:
        if interprocess:
            _reject_sharing()
        event = super().__new__(cls, device=_ANY_DEVICE, enable_timing=enable_timing, blocking=blocking)
        if device is not None:
            event._index = current_stream(device).device_index  # refuses an index that is out of range
        return event

    @property
    def device(self) -> torch.device:
        """The event's device; without an index as long as it has none."""
        return super().device if self._index is None else torch.device(_NAME, self._index)

    def record(self, stream: torch.Stream | None = None) -> None:
        """Marks the end of the work queued on a stream so far.

        Args:
            stream: A stream of the event's device; that device's current one if None.

        Raises:
            RuntimeError: A stream of another device.
        """
        if stream is None:
            stream = current_stream(self._index)
        elif self._index is not None and stream.device != self.device:
            raise RuntimeError(f"An event of {self.device} can't be recorded on a stream of {stream.device}.")
        super().record(stream)

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Makes later work of a stream wait for the mark. Returns at once.

        Args:
            stream: The stream; the current one of the current device if None.
        """
        super().wait(stream)

    def query(self) -> bool:
        """Returns whether the mark was passed, or there is none."""
        return super().query()

    def synchronize(self) -> None:
        """Waits until the mark is passed; returns at once if there is none."""
        super().synchronize()

    def elapsed_time(self, other: torch.Event) -> float:
        """Returns the milliseconds from this mark to another.

        Args:
            other: A later event of the same device. Both need enable_timing, a mark, and to be passed.

        Raises:
            RuntimeError: One of these does not hold.
            ValueError: One has no enable_timing, or no mark.
        """
        return _C._event_elapsed_time(self, other)

    def ipc_handle(self) -> bytes:
        """Refused: events are not shared between processes.

        Raises:
            NotImplementedError: Always.
        """
        _reject_sharing()

    @classmethod
    def from_ipc_handle(cls, device: Any, handle: bytes) -> Event:
        """Refused, as ipc_handle().

        Raises:
            NotImplementedError: Always.
        """
        _reject_sharing()


def current_stream(device: Device = None) -> Stream:
    """Returns this thread's current stream of a device."""
    current = torch._C._accelerator_getStream(_get_valid_index(device))
    return Stream(stream_id=current.stream_id, device_index=current.device_index, device_type=_DEVICE_TYPE)


def default_stream(device: Device = None) -> Stream:
    """Returns the default stream of a device."""
    index = _get_valid_index(device)
    current_stream(index)  # refuses an index that is out of range
    return Stream(stream_id=0, device_index=index, device_type=_DEVICE_TYPE)


def _check(stream: Any) -> None:
    if not isinstance(stream, torch.Stream):
        raise TypeError(f"Expected a stream, but got {type(stream).__name__}: {stream!r}.")
    if stream.device.type != _NAME:
        raise ValueError(f"Expected a stream of {a_device_name()} device, but got one of {stream.device}.")


def set_stream(stream: torch.Stream | None) -> None:
    """Makes a stream current in this thread, and its device too. ``with stream(...)`` is safer.

    Args:
        stream: The stream. None changes nothing.

    Raises:
        ValueError: A stream of another device type.
        TypeError: Not a stream.
    """
    if stream is None:
        return
    _check(stream)
    torch._C._accelerator_setStream(stream)


class StreamContext:
    """Context manager: makes a stream and its device current inside ``with``, and restores both after it.

    Args:
        stream: The stream. None changes nothing.

    Raises:
        ValueError: A stream of another device type.
        TypeError: Not a stream.
    """

    def __init__(self, stream: torch.Stream | None) -> None:
        if stream is not None:
            _check(stream)
        self.stream = stream
        self._guard = _device_guard(None)
        self._previous: torch.Stream | None = None

    def __enter__(self) -> None:
        if self.stream is None:
            return
        index = self.stream.device_index
        self._guard = _device_guard(index)
        self._previous = torch._C._accelerator_getStream(index)
        self._guard.__enter__()
        torch._C._accelerator_setStream(self.stream)

    def __exit__(self, *exc_info: object) -> None:
        if self._previous is not None:
            torch._C._accelerator_setStream(self._previous)
            self._guard.__exit__(*exc_info)


def stream(stream: torch.Stream | None) -> StreamContext:
    """Returns a context manager that makes a stream current; see StreamContext.

    Args:
        stream: The stream. None changes nothing.
    """
    return StreamContext(stream)
