# SPDX-License-Identifier: BSD-3-Clause
"""Registers the code generators with Inductor. Imported after torch._inductor.codegen.common.

That module is imported by those from which ours are derived, so the classes that are registered are place holders:
they import the real ones when Inductor makes the first of them.
"""

from __future__ import annotations

from typing import Any

from _torch_openreg_device_name import device_name
from torch._inductor.codegen.common import (
    DeviceOpOverrides,
    register_backend_for_device,
    register_device_op_overrides,
)

from torch_openreg._compile import config
from torch_openreg._compile.graph_pass import NameDevices

_NAME = device_name()


class OpenRegOverrides(DeviceOpOverrides):
    """Pieces of Python code for generated wrappers."""

    def import_get_raw_stream_as(self, name: str) -> str:
        """Returns code that defines a function of a device index.

        Args:
            name: The function's name.
        """
        return f"from torch_openreg._compile.kernels import raw_stream as {name}"

    def set_device(self, device_idx: int) -> str:
        """Returns code that makes a device current."""
        return f"torch.{_NAME}.set_device({device_idx})"

    def synchronize(self) -> str:
        """Returns code that waits for the current device."""
        return f"torch.{_NAME}.synchronize()"

    def device_guard(self, device_idx: int) -> str:
        """Returns code of a context manager that makes a device current."""
        return f"torch.{_NAME}.device({device_idx})"

    def current_stream(self) -> str:
        """Returns code of the current stream."""
        return f"torch.{_NAME}.current_stream()"

    def cpp_kernel_type(self) -> str:
        """Returns the C++ type of a kernel."""
        return "void*"


class LazyScheduling:
    """In the place of scheduling.OpenRegScheduling, which its constructor returns."""

    def __new__(cls, scheduler: Any) -> Any:
        from torch_openreg._compile.scheduling import OpenRegScheduling

        return OpenRegScheduling(scheduler)


class LazyWrapper:
    """In the place of wrapper.OpenRegWrapper, which create() returns."""

    supports_caching = True

    @staticmethod
    def create(*args: Any, **kwargs: Any) -> Any:
        """Returns the generator of a graph's Python code."""
        from torch_openreg._compile.wrapper import OpenRegWrapper

        return OpenRegWrapper.create(*args, **kwargs)


class LazyCppWrapper:
    """In the place of cpp_wrapper.OpenRegCppWrapper, which create() returns."""

    supports_caching = True

    @staticmethod
    def create(*args: Any, **kwargs: Any) -> Any:
        """Returns the generator of a graph's C++ code."""
        from torch_openreg._compile.cpp_wrapper import OpenRegCppWrapper

        return OpenRegCppWrapper.create(*args, **kwargs)


def register() -> None:
    """Registers code generation for the device. Repeating it changes nothing."""
    register_device_op_overrides(_NAME, OpenRegOverrides())
    register_backend_for_device(
        _NAME,
        LazyScheduling,
        LazyWrapper,
        LazyCppWrapper,
        device_custom_pass=NameDevices(),
        device_custom_config=config,
    )
