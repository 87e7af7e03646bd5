# SPDX-License-Identifier: BSD-3-Clause
"""Reads what a caller may give as a device."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any, NoReturn, SupportsIndex, TypeAlias

import torch
from _torch_openreg_device_name import a_device_name, device_name

from torch_openreg import _C

# What every function with a `device` argument accepts: an index, a torch.device, "openreg:1" (or privateuseone, gpu).
Device: TypeAlias = SupportsIndex | str | torch.device | None

_TYPE = device_name()
_TYPES = (_TYPE, "privateuseone")
_GPU = "gpu"  # the devices of the GPU that gpu_device() would choose
_NAME = re.compile(rf"({_TYPE}|privateuseone|gpu)(?::(0|[1-9][0-9]*))?")
_MAX_INDEX = 127  # PyTorch keeps a device index in eight bits


def _raise_out_of_range(index: int) -> NoReturn:
    raise RuntimeError(
        f"The device index is out of range. It must be in [0, {_C._get_device_count()}), but got {index}."
    )


# Makes a GPU the active driver's, or raises. selection.py, which is above this module, sets it when it is imported.
_gpu_choice: Callable[[], object] | None = None


def _set_gpu_choice(choice: Callable[[], object]) -> None:
    global _gpu_choice
    _gpu_choice = choice


def _index_of_name(name: str) -> int | None:
    """Parses a device string here, because torch.device() wraps an index above 127 around without a word."""
    match = _NAME.fullmatch(name)
    if match is not None:
        if match[1] == _GPU:
            assert _gpu_choice is not None, "selection.py has set it"
            _gpu_choice()
        return None if match[2] is None else int(match[2])
    kind = name.partition(":")[0]
    if kind in (*_TYPES, _GPU):
        kind = kind if kind == _GPU else _TYPE
        raise ValueError(f"Invalid device string: '{name}'. Expected '{kind}' or '{kind}:<index>'.")
    raise ValueError(f"Expected {a_device_name()} device, but got '{name}'.")


def _get_device_index(device: Any, optional: bool = False, allow_cpu: bool = False) -> int:
    """Returns the index that a device-like argument names.

    Args:
        device: An index, a string, a torch.device, or None.
        optional: None, "openreg", "privateuseone" and "gpu" mean the current device. Otherwise they are an error.
        allow_cpu: "cpu" and torch.device("cpu") give -1. Otherwise they are an error.

    Returns:
        An index between 0 and 127, or -1 where that was given. Whether there is such a device is not checked.

    Raises:
        RuntimeError: An index below -1 or above 127; for "gpu" a DeviceSelectionError if there is no GPU.
        ValueError: Another kind of device, a malformed string, or no index where one is needed.
        TypeError: Anything else.
    """
    index: int | None
    if type(device) is int:
        index = device
    elif device is None:
        index = None
    elif isinstance(device, torch.device):
        if device.type != _TYPE:
            if allow_cpu and device.type == "cpu":
                return -1
            raise ValueError(f"Expected {a_device_name()} device, but got {device}.")
        index = device.index
    elif isinstance(device, str):
        if allow_cpu and device == "cpu":
            return -1
        index = _index_of_name(device)
    elif isinstance(device, bool) or not hasattr(device, "__index__"):
        raise TypeError(
            f"A device must be an int, a string, a torch.device or None, but got {type(device).__name__}: {device!r}."
        )
    else:
        index = operator.index(device)

    if index is None:
        if optional:
            return _C._get_device()
        raise ValueError(f"Expected a device with an index, such as '{_TYPE}:0', but got {device!r}.")
    if not -1 <= index <= _MAX_INDEX:
        _raise_out_of_range(index)
    return index


def _get_valid_index(device: Any) -> int:
    """As _get_device_index(device, optional=True), for functions to which -1 means nothing."""
    index = _get_device_index(device, optional=True)
    if index < 0:
        _raise_out_of_range(index)
    return index
