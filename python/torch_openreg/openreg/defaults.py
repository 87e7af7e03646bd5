# SPDX-License-Identifier: BSD-3-Clause
"""The device and the dtype that a function uses when its caller names none.

Three rules, in this order: the argument, if it is given; else what a tensor among the arguments has; else the default
of the process, which is the CPU until ``set_default_device()`` says otherwise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from _torch_openreg_device_name import device_name
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from torch_openreg import _C
from torch_openreg.openreg._utils import Device, _get_device_index, _index_of_name, _raise_out_of_range

__all__ = ["as_device", "default_device", "default_dtype", "dev", "set_default_device"]

_TYPE = device_name()
# A device of the process; one without an index is the calling thread's current device. None: the CPU.
_process_default: torch.device | None = None


def as_device(device: Device) -> torch.device:
    """Returns the torch.device that a device-like argument names.

    Args:
        device: "cpu", the device's name, "gpu" (the devices of the GPU that would be chosen), the latter two also with
            an index; an index; a torch.device of the CPU or of this type.

    Returns:
        The device; one without an index is the calling thread's current device.

    Raises:
        RuntimeError: There is no such device. For "gpu" it is a DeviceSelectionError if there is no GPU.
        ValueError: Another kind of device, or a malformed string.
        TypeError: Not a device at all.
    """
    index: int | None
    if isinstance(device, torch.device) and device.type == "cpu":
        return device
    if isinstance(device, str) and device == "cpu":
        return torch.device("cpu")
    if isinstance(device, str):
        index = _index_of_name(device)
    elif isinstance(device, torch.device) and device.type == _TYPE and device.index is None:
        index = None
    else:
        index = _get_device_index(device)
    if index is None:
        return torch.device(_TYPE)
    if not 0 <= index < _C._get_device_count():
        _raise_out_of_range(index)
    return torch.device(_TYPE, index)


def set_default_device(device: Device) -> None:
    """Sets the device of functions whose caller names none, for the whole process.

    It also calls ``torch.set_default_device()``, which reaches PyTorch's own factories, in the calling thread alone.

    Args:
        device: As for ``as_device()``. Without an index it follows each thread's current device. None: the CPU again.

    Raises:
        RuntimeError, ValueError, TypeError: As ``as_device()``. Nothing is changed then.
    """
    global _process_default
    resolved = None if device is None else as_device(device)
    torch.set_default_device(resolved)
    _process_default = resolved


def _first_tensor(item: Any) -> torch.Tensor | None:
    """Finds a tensor in nested containers, in their order."""
    if isinstance(item, torch.Tensor):
        return item
    values: Iterable[Any] = ()
    if isinstance(item, Mapping):
        values = item.values()
    elif isinstance(item, (list, tuple, set, frozenset)):
        values = item
    elif dataclasses.is_dataclass(item) and not isinstance(item, type):
        values = (getattr(item, field.name) for field in dataclasses.fields(item))
    return next((found for found in map(_first_tensor, values) if found is not None), None)


def dev(x: torch.Tensor) -> torch.device:
    """Returns the device of a tensor.

    Args:
        x: The tensor.

    Raises:
        TypeError: Not a tensor.
    """
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"Expected a tensor, but got {type(x).__name__}: {x!r}.")
    return x.device


def default_device(device: Device = None, *, item: Any = None) -> torch.device:
    """Returns the device to use.

    Args:
        device: What the caller asked for, as for ``as_device()``; it wins. None: nothing.
        item: A tensor, or nested containers with tensors: the first one decides. Without any, the default does: that
            of ``with torch.device(...)`` or ``torch.set_default_device()`` in this thread, else that of the process.

    Returns:
        A device; one of this type always with an index.

    Raises:
        RuntimeError, ValueError, TypeError: As ``as_device()``.
    """
    if device is not None:
        chosen = as_device(device)
    else:
        tensor = _first_tensor(item)
        if tensor is not None:
            return tensor.device
        if any(isinstance(mode, DeviceContext) for mode in _get_current_function_mode_stack()):
            chosen = torch.get_default_device()
        else:
            chosen = _process_default or torch.device("cpu")
    if chosen.type == _TYPE and chosen.index is None:
        return torch.device(_TYPE, _C._get_device())
    return chosen


def default_dtype(dtype: torch.dtype | None = None, *, item: Any = None) -> torch.dtype:
    """Returns the dtype to use: the argument, else that of the first tensor in ``item``, else torch's default.

    Args:
        dtype: What the caller asked for. None: nothing.
        item: A tensor, or nested containers with tensors.
    """
    if dtype is not None:
        return dtype
    tensor = _first_tensor(item)
    return torch.get_default_dtype() if tensor is None else tensor.dtype
