# SPDX-License-Identifier: BSD-3-Clause
"""What a device can do, as ``torch.cuda`` asks for it."""

from __future__ import annotations

from _torch_openreg_device_name import device_name

from torch_openreg.openreg._device import get_device_properties
from torch_openreg.openreg._utils import Device, _get_valid_index

__all__ = [
    "can_device_access_peer",
    "device_memory_used",
    "get_arch_list",
    "get_gencode_flags",
    "get_sync_debug_mode",
    "has_half",
    "has_magma",
    "is_tf32_supported",
    "set_sync_debug_mode",
]

_NAME = device_name()

has_half = True  # torch.float16 works on every device
has_magma = False  # linear algebra is that of the CPU build of PyTorch

_SYNC_MODES = {"default": 0, "warn": 1, "error": 2}


def get_arch_list() -> list[str]:
    """Returns the architectures that this build holds kernels for: none, a driver brings its own."""
    return []


def get_gencode_flags() -> str:
    """Returns compiler flags for ``get_arch_list()``: none."""
    return ""


def is_tf32_supported() -> bool:
    """Returns whether float32 products are computed in TF32: never, they are exact to float32."""
    return False


def can_device_access_peer(device: Device, peer_device: Device) -> bool:
    """Returns whether kernels of one device reach the memory of another one directly, without a copy.

    Copies work between any two devices. Devices of different drivers don't reach each other; of one driver, its
    ``describe`` says so, and a driver without that function is taken to have no such way.

    Args:
        device: The device that would read and write.
        peer_device: The device that owns the memory.

    Raises:
        RuntimeError: There is no such device.
        ValueError: A device of another type.
    """
    from torch_openreg.openreg.drivers import driver_topology

    indices = _get_valid_index(device), _get_valid_index(peer_device)
    one, other = get_device_properties(indices[0]), get_device_properties(indices[1])
    if indices[0] == indices[1] or one.driver != other.driver:
        return False
    try:
        peers = driver_topology(one.driver).peers
    except NotImplementedError:
        return False
    return max(one.ordinal, other.ordinal) < len(peers) and peers[one.ordinal][other.ordinal]


def device_memory_used(device: Device = None) -> int:
    """Returns the bytes of a device that are in use, by this process and others, as its driver counts.

    Args:
        device: The device; the current one if None.

    Raises:
        RuntimeError: There is no such device.
    """
    from torch_openreg.openreg.memory import mem_get_info

    free, total = mem_get_info(device)
    return total - free


def get_sync_debug_mode() -> int:
    """Returns what happens at an operation that waits for the device: 0, nothing."""
    return 0


def set_sync_debug_mode(debug_mode: int | str) -> None:
    """Sets what happens at an operation that waits for the device.

    Args:
        debug_mode: "default" or 0. ``profiler.trace()`` shows waits.

    Raises:
        NotImplementedError: "warn", 1, "error" or 2.
        RuntimeError: Another text.
        ValueError: Another number.
    """
    if isinstance(debug_mode, str):
        if debug_mode not in _SYNC_MODES:
            raise RuntimeError(
                f"invalid value of debug_mode, expected one of `default`, `warn`, `error`, but got '{debug_mode}'"
            )
        debug_mode = _SYNC_MODES[debug_mode]
    if debug_mode not in _SYNC_MODES.values():
        raise ValueError(f"debug_mode must be 0, 1 or 2, but got {debug_mode!r}")
    if debug_mode != 0:
        raise NotImplementedError(
            f"{_NAME} can't warn of operations that wait for the device; torch.{_NAME}.profiler.trace() shows them."
        )
