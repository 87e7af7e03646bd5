# SPDX-License-Identifier: BSD-3-Clause
"""``FloatTensor`` and its like: the legacy types of tensors.

``isinstance(x, FloatTensor)`` asks for the device and the type of the elements, and a call makes a tensor
as ``torch.FloatTensor`` does. New programs name ``dtype=`` and ``device=`` instead.
"""

from __future__ import annotations

from typing import Any

import torch
from _torch_openreg_device_name import device_name

from torch_openreg.openreg._utils import _get_valid_index

_NAME = device_name()


class _TensorType(type):
    dtype: torch.dtype

    @property
    def __name__(cls) -> str:  # type: ignore[override]
        return cls.__qualname__

    def __instancecheck__(cls, instance: object) -> bool:
        return (
            isinstance(instance, torch.Tensor)
            and instance.device.type == _NAME
            and instance.dtype == cls.dtype
            and instance.layout == torch.strided
        )

    def __call__(cls, *arguments: Any, device: Any = None) -> Any:
        name = cls.__name__
        if len(arguments) == 1 and isinstance(arguments[0], torch.Tensor):
            (given,) = arguments
            if not isinstance(given, cls):
                raise TypeError(f"torch.{_NAME}.{name} expected a {given.type()} of its own type; use Tensor.to()")
            return given.view_as(given)
        return getattr(torch, name)(*arguments).to(torch.device(_NAME, _get_valid_index(device)))


# Of PyTorch's own types, by which Dynamo knows them.
_TensorType.__module__, _TensorType.__qualname__ = "torch", "tensortype"


def _make(name: str, dtype: torch.dtype) -> _TensorType:
    members = {"dtype": dtype, "__qualname__": name, "__doc__": f"Dense {_NAME} tensors of {dtype}."}
    made = _TensorType(f"torch.{_NAME}.{name}", (), members)  # the whole name: Tensor.type() reads it in C
    made.__module__ = f"torch.{_NAME}"
    return made


BFloat16Tensor = _make("BFloat16Tensor", torch.bfloat16)
BoolTensor = _make("BoolTensor", torch.bool)
ByteTensor = _make("ByteTensor", torch.uint8)
CharTensor = _make("CharTensor", torch.int8)
DoubleTensor = _make("DoubleTensor", torch.float64)
FloatTensor = _make("FloatTensor", torch.float32)
HalfTensor = _make("HalfTensor", torch.float16)
IntTensor = _make("IntTensor", torch.int32)
LongTensor = _make("LongTensor", torch.int64)
ShortTensor = _make("ShortTensor", torch.int16)

__all__ = [
    "BFloat16Tensor",
    "BoolTensor",
    "ByteTensor",
    "CharTensor",
    "DoubleTensor",
    "FloatTensor",
    "HalfTensor",
    "IntTensor",
    "LongTensor",
    "ShortTensor",
]
