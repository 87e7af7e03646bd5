# SPDX-License-Identifier: BSD-3-Clause
"""Memory of the devices: statistics of the caching allocator, and functions that release cached memory.

`allocated` is what tensors hold, `reserved` what the allocator has taken from the device: the difference is cached
for later tensors. Sizes are in bytes.

A parameter ``device`` is an index, a string, a torch.device, or None for the thread's current device; a device that
does not exist raises RuntimeError. Functions below document it only where it means more than that.
"""

from __future__ import annotations

import math
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, SupportsIndex

import torch
from _torch_openreg_device_name import device_name
from typing_extensions import deprecated

from torch_openreg import _C
from torch_openreg.openreg._memory_history import *  # noqa: F403  # what tools look up by the names of torch.cuda.memory
from torch_openreg.openreg._memory_pools import MemPool, use_mem_pool
from torch_openreg.openreg._utils import Device, _get_valid_index

_NAME = device_name()

__all__ = [
    "MemPool",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "caching_allocator_disabled",
    "caching_allocator_enable",
    "change_current_allocator",
    "empty_cache",
    "empty_host_cache",
    "get_allocator_backend",
    "get_per_process_memory_fraction",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "ipc_collect",
    "list_gpu_processes",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_host_memory_stats",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
    "use_mem_pool",
]


def _flatten(nested: dict[Any, Any], prefix: str = "") -> Iterator[tuple[str, int]]:
    """The entries of a nested dictionary under dotted names; a pool's id (0, 1) is "0_1" there."""
    for key, value in nested.items():
        name = prefix + ("_".join(str(part) for part in key) if isinstance(key, tuple) else key)
        if isinstance(value, dict):
            yield from _flatten(value, name + ".")
        else:
            yield name, value


def memory_stats_as_nested_dict(device: Device = None) -> dict[str, Any]:
    """Returns memory_stats() as nested dictionaries."""
    return _C._memory_stats(_get_valid_index(device))


def memory_stats(device: Device = None) -> dict[str, Any]:
    """Returns the statistics of the caching allocator, under the names of torch.cuda.memory_stats().

    Such as ``allocated_bytes.all.current``: a quantity (allocation, segment, active, inactive_split, their ``_bytes``,
    requested_bytes), a pool (all, small_pool, large_pool) and a figure (current, peak, allocated, freed). Private
    pools add ``reserved_bytes_by_private_pools.0_1.all.current`` and so on.
    """
    return OrderedDict(sorted(_flatten(memory_stats_as_nested_dict(device))))


def memory_allocated(device: Device = None) -> int:
    """Returns the bytes that tensors hold, each tensor rounded up to 512."""
    return _C._memory_totals(_get_valid_index(device))[0]


def max_memory_allocated(device: Device = None) -> int:
    """Returns the most that memory_allocated() has been since the start or reset_peak_memory_stats()."""
    return _C._memory_totals(_get_valid_index(device))[1]


def memory_reserved(device: Device = None) -> int:
    """Returns the bytes that the allocator has taken from the device."""
    return _C._memory_totals(_get_valid_index(device))[2]


def max_memory_reserved(device: Device = None) -> int:
    """Returns the most that memory_reserved() has been since the start or reset_peak_memory_stats()."""
    return _C._memory_totals(_get_valid_index(device))[3]


def reset_peak_memory_stats(device: Device = None) -> None:
    """Sets every ``peak`` of memory_stats() to ``current``."""
    _C._reset_peak_memory_stats(_get_valid_index(device))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Sets every ``allocated`` and ``freed`` of memory_stats(), and the counters, to 0."""
    _C._reset_accumulated_memory_stats(_get_valid_index(device))


def reset_max_memory_allocated(device: Device = None) -> None:
    """Calls reset_peak_memory_stats(), with the warning that torch.cuda gives."""
    _reset_maximum("allocated", device)


def reset_max_memory_cached(device: Device = None) -> None:
    """Calls reset_peak_memory_stats(), with the warning that torch.cuda gives."""
    _reset_maximum("cached", device)


def _reset_maximum(of: str, device: Device) -> None:
    warnings.warn(
        f"torch.{_NAME}.reset_max_memory_{of} now calls torch.{_NAME}.reset_peak_memory_stats, "
        "which resets /all/ peak memory stats.",
        FutureWarning,
        stacklevel=3,
    )
    reset_peak_memory_stats(device)


@deprecated(
    f"`torch.{_NAME}.memory_cached` has been renamed to `torch.{_NAME}.memory_reserved`", category=FutureWarning
)
def memory_cached(device: Device = None) -> int:
    """Deprecated name of memory_reserved(), as in torch.cuda."""
    return memory_reserved(device)


@deprecated(
    f"`torch.{_NAME}.max_memory_cached` has been renamed to `torch.{_NAME}.max_memory_reserved`", category=FutureWarning
)
def max_memory_cached(device: Device = None) -> int:
    """Deprecated name of max_memory_reserved(), as in torch.cuda."""
    return max_memory_reserved(device)


def ipc_collect() -> None:
    """Frees blocks whose last user was another process, after it has released them.

    It happens too when memory is short, when empty_cache() is called, and when something is shared or freed.
    """
    _C._collect_exports()


def empty_cache() -> None:
    """Returns memory that no tensor uses to the drivers, on every device. Tensors and private pools are unaffected.

    The host memory that is kept for staged operators goes back to the system too.
    """
    _C._empty_cache()
    _C._release_staging_buffers()


def empty_host_cache() -> None:
    """Returns pinned memory that no tensor uses to the driver."""
    _C._empty_host_cache()


def host_memory_stats_as_nested_dict() -> dict[str, Any]:
    """Returns host_memory_stats() as nested dictionaries."""
    return _C._host_memory_stats()


def host_memory_stats() -> dict[str, Any]:
    """Returns the statistics of pinned memory, under the names of torch.cuda.host_memory_stats().

    ``allocations`` and ``allocated_bytes`` count the blocks that the allocator has from the driver,
    ``active_requests`` and ``active_bytes`` those that are in use; each has current, peak, allocated and freed.
    ``host_alloc_time`` and ``host_free_time`` are in microseconds: total, max, min, count and avg of driver calls.
    """
    return OrderedDict(sorted(_flatten(host_memory_stats_as_nested_dict())))


def reset_accumulated_host_memory_stats() -> None:
    """Sets every ``allocated`` and ``freed`` of host_memory_stats(), and the counters, to 0."""
    _C._reset_accumulated_host_memory_stats()


def reset_peak_host_memory_stats() -> None:
    """Sets every ``peak`` of host_memory_stats() to ``current``."""
    _C._reset_peak_host_memory_stats()


def caching_allocator_alloc(
    size: int, device: Device = None, stream: torch.Stream | SupportsIndex | None = None
) -> int:
    """Allocates memory without a tensor, for libraries other than PyTorch.

    Args:
        size: In bytes.
        device: The device; the current one if None.
        stream: The stream that uses it, or its ``stream_id``; the device's current stream if None.

    Returns:
        The device address, for caching_allocator_delete(). 0 for a size of 0.

    Raises:
        OutOfMemoryError: The device has no room for it.
        RuntimeError: There is no such device or stream.
        TypeError: The stream is neither.
    """
    index = _get_valid_index(device)
    if stream is None:
        stream = torch.accelerator.current_stream(index)
    if isinstance(stream, torch.Stream):
        if stream.device.type != _NAME or stream.device.index != index:
            raise RuntimeError(f"The stream belongs to {stream.device}, but the memory is to be on {_NAME}:{index}.")
        stream = stream.stream_id
    if not isinstance(stream, int):
        raise TypeError(
            f"Invalid type for stream argument, must be a torch.Stream or an int, but is {type(stream).__name__}."
        )
    return _C._raw_alloc(index, size, stream)


def caching_allocator_delete(mem_ptr: int) -> None:
    """Frees what caching_allocator_alloc() has returned. 0 is accepted.

    Args:
        mem_ptr: The address.

    Raises:
        RuntimeError: No live block starts there.
    """
    _C._raw_delete(mem_ptr)


def caching_allocator_enable(value: bool = True) -> None:
    """Switches caching on or off, for all devices. It is on at the start.

    Without it every tensor has a segment of its own, in multiples of 2 MiB, which goes back to the device as soon as
    the tensor is gone: for debugging the use of memory.

    Args:
        value: Whether it is on from now on.
    """
    _C._set_caching(bool(value))


@contextmanager
def caching_allocator_disabled() -> Iterator[None]:
    """Switches caching off for a while; see caching_allocator_enable()."""
    before = _C._set_caching(False)
    try:
        yield
    finally:
        _C._set_caching(before)


def set_per_process_memory_fraction(fraction: float, device: Device = None) -> None:
    """Limits what this process may take from a device. Beyond it, OutOfMemoryError is raised.

    Args:
        fraction: The part of the device's memory, between 0 and 1.
        device: The device; the current one if None.

    Raises:
        TypeError: The fraction is not a float.
        ValueError: It is not between 0 and 1.
        RuntimeError: There is no such device.
    """
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    _C._set_memory_fraction(_get_valid_index(device), fraction)


def get_per_process_memory_fraction(device: Device = None) -> float:
    """Returns the part of a device's memory that this process may use; 1.0 at the start."""
    return _C._get_memory_fraction(_get_valid_index(device))


def get_allocator_backend() -> str:
    """Returns "native": there is one allocator."""
    return "native"


def change_current_allocator(allocator: object) -> None:
    """Exists because torch.cuda has it.

    Args:
        allocator: What torch.cuda would take.

    Raises:
        NotImplementedError: Always. A driver brings its own memory, so another allocator belongs there.
    """
    raise NotImplementedError(f"{_NAME} has no other allocators, but {allocator!r} is to be used. Write a driver.")


def list_gpu_processes(device: Device = None) -> str:
    """Exists because torch.cuda has it.

    Raises:
        NotImplementedError: Always, for a device that there is: drivers don't say which processes use it.
        RuntimeError: There is no such device.
    """
    index = _get_valid_index(device)
    raise NotImplementedError(
        f"The driver of {_NAME}:{index} does not say which processes use the device. mem_get_info() says what is free."
    )


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Returns the free and the total bytes, as the driver sees them: cached memory counts as used.

    Where the driver doesn't say how much memory its device has, the total is 2**47, more than an allocation can have,
    and free is that less what is reserved: no limit is known.
    """
    return _C._mem_get_info(_get_valid_index(device))


def memory_snapshot(
    device: Device | tuple[int, int] = None, *, mempool_id: tuple[int, int] | None = None, include_traces: bool = True
) -> list[dict[str, Any]]:
    """Returns every segment of the allocator with its blocks, under the names of torch.cuda.memory_snapshot().

    Args:
        device: The device; all devices if None. A tuple is a `mempool_id`, which comes first in torch.cuda.
        mempool_id: A MemPool's id: its segments alone.
        include_traces: As by torch.cuda: the result has no traces either way; _snapshot() has.
    """
    if isinstance(device, tuple):
        device, mempool_id = None, device
    indices = range(_C._get_device_count()) if device is None else (_get_valid_index(device),)
    segments = _C._memory_snapshot(list(indices), False)["segments"]
    return [segment for segment in segments if mempool_id is None or segment["segment_pool_id"] == mempool_id]


def _format_size(size: int) -> str:
    unit = 0 if abs(size) < 1024 else min(int(math.log(abs(size), 1024)), 5)
    number = f"{size:d}" if unit == 0 else f"{size / 1024**unit:.1f}"
    return f"{number:>7} {('B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB')[unit]:<3}"


def _format_count(count: int) -> str:
    return f"{count:>7d}    "


_BYTES = (
    ("allocated_bytes", "Allocated memory"),
    ("active_bytes", "Active memory"),
    ("requested_bytes", "Requested memory"),
    ("reserved_bytes", "Reserved memory"),
    ("inactive_split_bytes", "Non-releasable memory"),
)
_COUNTS = (
    ("allocation", "Allocations"),
    ("active", "Active allocations"),
    ("segment", "Reserved segments"),
    ("inactive_split", "Non-releasable blocks"),
)
_POOLS = (("all", ""), ("large_pool", "  from large pool"), ("small_pool", "  from small pool"))
_FIGURES = ("current", "peak", "allocated", "freed")


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """Returns the statistics as a readable table.

    Args:
        device: The device; the current one if None.
        abbreviated: Leaves out the lines of the single pools.
    """
    index = _get_valid_index(device)
    stats = memory_stats(index)
    width = 79
    lines = [
        "=" * width,
        f"  {_NAME}:{index} memory summary, out of memory: {stats['num_ooms']}, retries: {stats['num_alloc_retries']}",
        "=" * width,
        f" {'Metric':<22} | {'Current':^11} | {'Peak':^11} | {'Total alloc':^11} | {'Total freed':^11}",
    ]
    for quantities, form in ((_BYTES, _format_size), (_COUNTS, _format_count)):
        for key, title in quantities:
            lines.append("-" * width)
            for pool, pool_title in _POOLS[:1] if abbreviated else _POOLS:
                cells = " | ".join(form(stats[f"{key}.{pool}.{figure}"]) for figure in _FIGURES)
                lines.append(f" {pool_title or title:<22} | {cells}")
    lines.append("=" * width)
    return "".join(f"|{line:<{width}}|\n" for line in lines)
