# SPDX-License-Identifier: BSD-3-Clause
"""Makes openreg known to Accelerate, which has a list of devices and no way to enter another.

Importing this module lets ``Accelerator()`` take openreg where it would take the CPU, in one process or in several that
torchrun starts, ``mixed_precision="fp16"`` be accepted, ``device_map="auto"`` count the devices' memory, and
safetensors take openreg's names.
``disable()`` undoes it. An explicit choice stays (``Accelerator(cpu=True)``, ``ACCELERATE_TORCH_DEVICE``), and so does
an available device that Accelerate itself knows. A script needs no import in it::

    torchrun --nproc-per-node 2 -m torch_openreg.contrib.accelerate train.py --epochs 3
"""

from __future__ import annotations

import functools
import os
import threading
import types
from typing import Any

import accelerate
import accelerate.state
import accelerate.utils
import accelerate.utils.modeling
import torch
from _torch_openreg_device_name import device_name
from accelerate.utils import DistributedType

import torch_openreg  # noqa: F401
from torch_openreg.contrib._replacements import Connection
from torch_openreg.contrib.safetensors import connection as _safetensors

__all__ = ["disable", "enable", "is_enabled"]

_real_max_memory = accelerate.utils.modeling.get_max_memory
_real_default_device = accelerate.state.PartialState.default_device
_real_prepare_backend = accelerate.state.PartialState._prepare_backend
_real_accelerator = accelerate.Accelerator.__init__
_real_device = accelerate.Accelerator.device
_real_grad_scaler = accelerate.utils.modeling.get_grad_scaler


def _default_device(self: Any) -> torch.device:
    """The device of a process that is alone: the current one of openreg where Accelerate finds none of its own."""
    device = _real_default_device.fget(self)
    if connection.is_on and device.type == "cpu" and torch.openreg.is_available():
        return torch.device(device_name(), torch.openreg.current_device())
    return device


@functools.wraps(_real_prepare_backend)
def _prepare_backend(self: Any, cpu: bool = False, sagemaker_dp: bool = False, backend: str | None = None) -> Any:
    """The transport of several processes: gloo, each process on its device.

    Their kind is that of GPUs where process and device have the same number, as Accelerate takes it: inputs are moved
    to the device, uneven ones are joined. Else it is that of processes on the CPU.
    """
    chosen, kind = _real_prepare_backend(self, cpu, sagemaker_dp, backend)
    rank = int(os.environ.get("LOCAL_RANK", -1))
    if connection.is_on and kind is DistributedType.NO and not cpu and rank >= 0 and torch.openreg.is_available():
        if self.device is None:
            self.device = torch.device(device_name(), rank % torch.openreg.device_count())
            torch.openreg.set_device(self.device)
        if self.device.type == device_name():
            return (
                chosen or "gloo",
                DistributedType.MULTI_GPU if self.device.index == rank else DistributedType.MULTI_CPU,
            )
    return chosen, kind


@functools.wraps(_real_max_memory)
def _get_max_memory(max_memory: Any = None) -> Any:
    found = _real_max_memory(max_memory)
    if not connection.is_on or max_memory is not None or any(isinstance(device, int) for device in found):
        return found
    free = {index: torch.openreg.mem_get_info(index)[0] for index in range(torch.openreg.device_count())}
    return free | found  # devices first: they are filled in this order


# ------------------------------------------------------------------------------------------------------- fp16


class _KnownType(str):
    """The type of a device that counts as one of those with float16: Accelerate has a list of them in a function."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other) is True or other == "cuda"

    __hash__ = str.__hash__


_making = threading.local()  # `accelerator`: an Accelerator that is being made with fp16 in this thread


def _device_of(self: Any) -> Any:
    """``Accelerator.device``; for its own constructor, of a type that may have fp16."""
    device = _real_device.fget(self)
    if getattr(_making, "accelerator", None) is self and device.type == device_name():
        return types.SimpleNamespace(type=_KnownType(device.type), index=device.index)
    return device


@functools.wraps(_real_accelerator)
def _make_accelerator(self: Any, *arguments: Any, **keywords: Any) -> None:
    outer = getattr(_making, "accelerator", None)
    _making.accelerator = self if connection.is_on else None
    try:
        _real_accelerator(self, *arguments, **keywords)
    finally:
        _making.accelerator = outer


@functools.wraps(_real_grad_scaler)
def _get_grad_scaler(distributed_type: Any = None, **keywords: Any) -> Any:
    device = accelerate.state.PartialState._shared_state.get("device")
    if (
        connection.is_on
        and device is not None
        and device.type == device_name()
        and distributed_type != DistributedType.FSDP
    ):
        return torch.amp.GradScaler(device_name(), **keywords)
    return _real_grad_scaler(distributed_type, **keywords)


def _replace(replaced: Connection) -> None:
    state = accelerate.state.PartialState
    replaced.set(state, "default_device", property(_default_device))
    replaced.set(state, "_prepare_backend", _prepare_backend)
    replaced.everywhere(_real_max_memory, _get_max_memory, "accelerate", "transformers", "peft")
    replaced.set(accelerate.Accelerator, "device", property(_device_of))
    replaced.set(accelerate.Accelerator, "__init__", _make_accelerator)
    replaced.everywhere(_real_grad_scaler, _get_grad_scaler, "accelerate", "transformers")


connection = Connection("accelerate", _replace, _safetensors)
enable, disable, is_enabled = connection.enable, connection.disable, connection.is_enabled


if __name__ == "__main__":
    from torch_openreg.contrib import _script

    _script.main(__spec__)
else:
    enable()
