# SPDX-License-Identifier: BSD-3-Clause
"""Tensors and generators on the default device, where PyTorch's own functions do not look at it.

``torch.zeros()`` and its like follow ``torch.set_default_device()``; ``torch.from_numpy()``, ``torch.frombuffer()`` and
``torch.Generator()`` do not, and ``torch.as_tensor()`` moves a tensor away from the device that it is on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from torch_openreg.openreg._device_handling import handle_device
from torch_openreg.openreg._utils import Device
from torch_openreg.openreg.defaults import default_device, default_dtype

__all__ = ["Generator", "as_tensor", "from_buffer", "from_numpy", "full"]

if TYPE_CHECKING:
    import numpy as np


@handle_device
def as_tensor(data: Any, *, dtype: torch.dtype | None = None, device: Device = None) -> torch.Tensor:
    """Returns ``data`` as a tensor; itself if it is one of that device and dtype.

    Args:
        data: A tensor, a number, nested sequences of them, an array.
        dtype: dtype of the result; that of ``data`` if None.
        device: Device of the result. None: that of a tensor in ``data``, else the default device.

    Raises:
        RuntimeError, ValueError, TypeError: No such device, or no tensor can be made of ``data``.
    """
    return torch.as_tensor(data, dtype=dtype, device=device)


@handle_device
def full(
    size: int | Sequence[int], fill_value: Any, *, dtype: torch.dtype | None = None, device: Device = None
) -> torch.Tensor:
    """Returns a tensor of one value.

    Args:
        size: Shape, or the length of a vector.
        fill_value: A number, or a tensor with one element.
        dtype: dtype of the result. None: that of ``fill_value`` if it is a tensor, else what ``torch.full()`` takes.
        device: Device of the result. None: that of ``fill_value`` if it is a tensor, else the default device.

    Raises:
        RuntimeError, ValueError, TypeError: No such device, or a bad size or value.
    """
    shape = (size,) if isinstance(size, int) else tuple(size)
    if isinstance(fill_value, torch.Tensor):
        value = fill_value.reshape(()).to(device=device, dtype=default_dtype(dtype, item=fill_value))
        return value.expand(shape).clone(memory_format=torch.contiguous_format)
    return torch.full(shape, fill_value, dtype=dtype, device=device)


@handle_device
def from_numpy(array: np.ndarray[Any, Any], *, dtype: torch.dtype | None = None, device: Device = None) -> torch.Tensor:
    """Returns a tensor with the values of an array. On the CPU, and in the same dtype, it shares the array's memory.

    Args:
        array: The array.
        dtype: dtype of the result; that of the array if None.
        device: Device of the result; the default device if None.

    Raises:
        RuntimeError, ValueError, TypeError: No such device, not an array, or a dtype that PyTorch lacks.
    """
    return torch.from_numpy(array).to(device=default_device(device), dtype=dtype)


@handle_device
def from_buffer(
    buffer: Any, *, dtype: torch.dtype | None = None, count: int = -1, offset: int = 0, device: Device = None
) -> torch.Tensor:
    """Returns a one-dimensional tensor with the values in a buffer. On the CPU it shares the buffer's memory.

    Args:
        buffer: An object with Python's buffer interface.
        dtype: dtype of the elements; torch's default dtype if None.
        count: Number of elements; -1: all.
        offset: Bytes to skip at the start.
        device: Device of the result; the default device if None.

    Raises:
        RuntimeError, ValueError, TypeError: No such device, or the buffer is too short or none.
    """
    values = torch.frombuffer(buffer, dtype=default_dtype(dtype), count=count, offset=offset)
    return values.to(default_device(device))


@handle_device
def Generator(*, device: Device = None) -> torch.Generator:
    """Returns a new random number generator of a device; of the default device if None.

    Args:
        device: Device of the generator.

    Raises:
        RuntimeError, ValueError, TypeError: No such device.
    """
    return torch.Generator(device=default_device(device))
