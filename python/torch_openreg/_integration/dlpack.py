# SPDX-License-Identifier: BSD-3-Clause
"""Tells DLPack what an openreg tensor's device is.

DLPack's name for a device that it does not know by name is kDLExtDev. ``Tensor.__dlpack__()`` says so in its capsule,
but ``Tensor.__dlpack_device__()`` looks for a device type spelt "privateuse1", which no renamed
backend has, and raises ValueError; ``torch.from_dlpack(tensor)`` asks it first. PyTorch has no registration for it, and
overriding the method for subclasses or with a TorchFunctionMode would slow down every operator. So this one method is
wrapped: it asks PyTorch first, and answers only where PyTorch has no answer and the tensor is on openreg.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from _torch_openreg_device_name import device_name
from torch.utils.dlpack import DLDeviceType


def _wrap(asked: Any) -> Any:
    @functools.wraps(asked)
    def __dlpack_device__(self: torch.Tensor) -> tuple[Any, int]:
        try:
            return asked(self)
        except ValueError:
            if self.device.type != device_name():
                raise
            return (DLDeviceType.kDLExtDev, self.device.index)

    __dlpack_device__._of_openreg = True  # type: ignore[attr-defined]
    return __dlpack_device__


def install() -> None:
    """Wraps the method. Repeating it changes nothing."""
    found = torch.Tensor.__dlpack_device__
    if not getattr(found, "_of_openreg", False):
        torch.Tensor.__dlpack_device__ = _wrap(found)
