# SPDX-License-Identifier: BSD-3-Clause
"""Devices: how many, which one is current, what they are.

A parameter ``device`` is an index, a string, a torch.device, or None for the thread's current device; a device that
does not exist raises RuntimeError.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from _torch_openreg_device_name import device_name

from torch_openreg import _C
from torch_openreg.openreg._utils import Device, _get_device_index, _get_valid_index

__all__ = [
    "DeviceProperties",
    "current_device",
    "device",
    "device_count",
    "device_of",
    "driver_records",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "is_available",
    "set_device",
    "synchronize",
]

_NAME = device_name()

if TYPE_CHECKING:
    from torch_openreg.openreg.drivers import Driver

_get_device = _C._get_device
_exchange_device = _C._exchange_device
_maybe_exchange_device = _C._maybe_exchange_device


def device_count(driver: str | Driver | None = None) -> int:
    """Returns the number of devices of this process. Without an argument it creates no device context.

    Args:
        driver: A driver, which is opened if need be. None: the active drivers; 0 if none works, never an error.
    """
    if driver is None:
        return _C._get_device_count()
    from torch_openreg.openreg.drivers import local_device_count

    return local_device_count(driver)


def is_available() -> bool:
    """Returns whether there is at least one device. Never raises and creates no device context.

    So it asks the driver without opening it. A driver that has failed to open in this process has no devices from then
    on.
    """
    return _C._get_device_count() > 0


def current_device() -> int:
    """Returns the index of this thread's current device; it is 0 in a new thread."""
    return _get_device()


# LITERALINCLUDE START: PYTHON SET DEVICE FUNCTION
def set_device(device: Device) -> None:
    """Makes a device current in this thread.

    Args:
        device: An index, a string such as "privateuseone:1", or a torch.device with an index. -1 changes nothing.

    Raises:
        RuntimeError: There is no such device. The current device stays as it was.
        ValueError: A device of another type, or one without an index.
        TypeError: Not a device at all.
    """
    index = _get_device_index(device)
    if index >= 0:
        _C._set_device(index)


# LITERALINCLUDE END: PYTHON SET DEVICE FUNCTION


class device:
    """Context manager: makes a device current inside ``with``, and the one before current again after it.

    Args:
        device: An index, a string or a torch.device. None, -1 and a device without an index change nothing.

    Raises:
        RuntimeError: There is no such device (raised on entry; the current device stays as it was).
        ValueError: A device of another type.
        TypeError: Not a device at all.
    """

    __slots__ = ("idx", "prev_idx")

    def __init__(self, device: Device) -> None:
        if device is None or device in (_NAME, "privateuseone"):
            self.idx = -1
        elif isinstance(device, torch.device) and device.index is None:
            self.idx = -1 if device.type == _NAME else _get_device_index(device)
        else:
            self.idx = _get_device_index(device)
        self.prev_idx = -1

    def __index__(self) -> int:
        return self.idx  # functions that take a device take this, as in torch.cuda: memory_allocated(device(1))

    def __enter__(self) -> None:
        if self.idx >= 0:
            self.prev_idx = _exchange_device(self.idx)

    def __exit__(self, *exc_info: object) -> None:
        if self.prev_idx >= 0:
            _maybe_exchange_device(self.prev_idx)


class device_of(device):
    """Context manager: makes the device of a tensor or storage current; does nothing if it has another device type."""

    __slots__ = ()

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.get_device() if obj.device.type == _NAME else None)


def synchronize(device: Device = None) -> None:
    """Waits for all work of a device, on all its streams.

    Raises:
        RuntimeError: There is no such device, or work on it has failed.
    """
    _C._synchronize(_get_valid_index(device))


@dataclass(frozen=True)
class DeviceProperties:
    """Properties of a device, as its driver reports them. Numbers are 0 and texts are empty where it does not know.

    Attributes:
        name: Name of the device.
        driver: Name of the driver that has it ("sim", "cuda", ...).
        driver_version: Version of that driver.
        ordinal: Number of the device inside its driver.
        total_memory: Bytes.
        max_allocation: Most bytes of one allocation; 0: no such limit.
        multi_processor_count: Number of multiprocessors.
        major: Compute capability, or its counterpart.
        minor: Compute capability, or its counterpart.
        uuid: 16 bytes as 32 hexadecimal digits.
        is_simulated: The device is simulated on the host.
        is_host_visible: The host can read and write the device's memory, through a second address.
        torch_device_type: Device type of PyTorch whose kernels work on its memory, or "".
    """

    name: str
    driver: str
    driver_version: str
    ordinal: int
    total_memory: int
    max_allocation: int
    multi_processor_count: int
    major: int
    minor: int
    uuid: str
    is_simulated: bool
    is_host_visible: bool
    torch_device_type: str


def get_device_properties(device: Device = None) -> DeviceProperties:
    """Returns the properties of a device, as its driver reports them."""
    return DeviceProperties(**_C._get_device_properties(_get_valid_index(device)))


def get_device_name(device: Device = None) -> str:
    """Returns the name of a device."""
    return get_device_properties(device).name


def get_device_capability(device: Device = None) -> tuple[int, int]:
    """Returns the compute capability of a device, or its counterpart, as (major, minor); (0, 0) if it has none."""
    properties = get_device_properties(device)
    return properties.major, properties.minor


def driver_records() -> list[dict[str, Any]]:
    """Returns what is known of each driver: name, state, source, path, version, and why it failed. Opens nothing."""
    return _C._driver_records()
