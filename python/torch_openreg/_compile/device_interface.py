# SPDX-License-Identifier: BSD-3-Clause
"""What Dynamo and Inductor ask of the device outside of kernels. Imported after torch._dynamo.device_interface."""

from __future__ import annotations

from typing import Any

import torch
from _torch_openreg_device_name import device_name
from torch._dynamo.device_interface import DeviceInterface, register_interface_for_device

from torch_openreg import openreg
from torch_openreg.openreg._device import _exchange_device, _maybe_exchange_device
from torch_openreg.openreg._lazy import _lazy_call

_NAME = device_name()


def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
    openreg.set_stream(torch.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type))


def _raw_stream(device: int) -> int:
    return openreg.current_stream(device).stream_id


class OpenRegInterface(DeviceInterface):
    """torch.openreg by the names of Dynamo's interface of a device."""

    device = openreg.device
    Event = openreg.Event
    Stream = openreg.Stream

    class Worker:
        """The same for Inductor's worker processes, which compile and open no device."""

        _device: int | None = None

        @classmethod
        def set_device(cls, device: int) -> None:
            """Notes the device that is current in a worker."""
            cls._device = device

        @classmethod
        def current_device(cls) -> int:
            """Returns the index of the current device."""
            return openreg.current_device() if cls._device is None else cls._device

        @staticmethod
        def get_device_properties(device: torch.types.Device = None) -> Any:
            """Returns what torch.openreg.get_device_properties() returns."""
            return openreg.get_device_properties(device)

    current_device = staticmethod(openreg.current_device)
    set_device = staticmethod(openreg.set_device)
    device_count = staticmethod(openreg.device_count)
    exchange_device = staticmethod(_exchange_device)
    maybe_exchange_device = staticmethod(_maybe_exchange_device)
    stream = staticmethod(openreg.stream)
    current_stream = staticmethod(openreg.current_stream)
    set_stream = staticmethod(openreg.set_stream)
    synchronize = staticmethod(openreg.synchronize)
    memory_allocated = staticmethod(openreg.memory_allocated)
    _set_stream_by_id = staticmethod(_set_stream_by_id)
    get_raw_stream = staticmethod(_raw_stream)

    @staticmethod
    def is_available() -> bool:
        """Whether a device is in use: nothing that Dynamo wants to know for others' sake opens a driver."""
        return openreg.is_initialized() and openreg.is_available()

    @staticmethod
    def is_bf16_supported(including_emulation: bool = False) -> bool:
        """Whether tensors of bfloat16 can be computed with: as the CPU's kernels do."""
        return True

    @staticmethod
    def get_compute_capability(device: torch.types.Device = None) -> str:
        """Returns the CPU's answer: its kernels are what is compiled."""
        return ""


def _register_indexed_names() -> None:
    # PyTorch up to 2.14 has one entry for each device beside that of the type.
    for index in range(openreg.device_count()):
        register_interface_for_device(f"{_NAME}:{index}", OpenRegInterface)


def register() -> None:
    """Registers the interface; by indexed names too once the devices are known. Repeating it changes nothing."""
    for name in (_NAME, "privateuseone"):  # the latter is that of packages (cpp_wrapper.py)
        register_interface_for_device(name, OpenRegInterface)
    _lazy_call(_register_indexed_names)
