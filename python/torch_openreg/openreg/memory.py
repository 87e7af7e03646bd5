"""Memory of the devices: statistics of the caching allocator, and what it gives back.

`allocated` is what tensors hold, `reserved` what the allocator has taken from the device: the difference is cached
for later tensors. Sizes are in bytes.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any

from torch_openreg import _C
from torch_openreg.openreg._utils import Device, _get_valid_index


def memory_stats(device: Device = None) -> dict[str, Any]:
    """Returns the statistics of the caching allocator, under the names of torch.cuda.memory_stats().

    Such as ``allocated_bytes.all.current``: a quantity (allocation, segment, active, inactive_split, their ``_bytes``,
    requested_bytes), a pool (all, small_pool, large_pool) and a figure (current, peak, allocated, freed).

    Args:
        device: The device; the current one if None.

    Raises:
        RuntimeError: There is no such device.
    """
    return OrderedDict(sorted(_C._memory_stats(_get_valid_index(device)).items()))


def memory_allocated(device: Device = None) -> int:
    """Returns the bytes that tensors hold, each tensor rounded up to 512.

    Args:
        device: The device; the current one if None.

    Raises:
        RuntimeError: There is no such device.
    """
    return _C._memory_stats(_get_valid_index(device))["allocated_bytes.all.current"]


def max_memory_allocated(device: Device = None) -> int:
    """Returns the most that memory_allocated() has been since the start or reset_peak_memory_stats().

    Args:
        device: The device; the current one if None.

    Raises:
        RuntimeError: There is no such device.
    """
    return _C._memory_stats(_get_valid_index(device))["allocated_bytes.all.peak"]


def memory_reserved(device: Device = None) -> int:
    """Returns the bytes that the allocator has taken from the device.

    Args:
        device: The device; the current one if None.

    Raises:
        RuntimeError: There is no such device.
    """
    return _C._memory_stats(_get_valid_index(device))["reserved_bytes.all.current"]


def max_memory_reserved(device: Device = None) -> int:
    """Returns the most that memory_reserved() has been since the start or reset_peak_memory_stats().

    Args:
        device: The device; the current one if None.

    Raises:
        RuntimeError: There is no such device.
    """
    return _C._memory_stats(_get_valid_index(device))["reserved_bytes.all.peak"]


def reset_peak_memory_stats(device: Device = None) -> None:
    """Sets every ``peak`` of memory_stats() to ``current``.

    Args:
        device: The device; the current one if None.

    Raises:
        RuntimeError: There is no such device.
    """
    _C._reset_peak_memory_stats(_get_valid_index(device))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Sets every ``allocated`` and ``freed`` of memory_stats(), and the counters, to 0.

    Args:
        device: The device; the current one if None.

    Raises:
        RuntimeError: There is no such device.
    """
    _C._reset_accumulated_memory_stats(_get_valid_index(device))


def ipc_collect() -> None:
    """Frees blocks whose last user was another process, after it has released them.

    It happens too when memory is short, when empty_cache() is called, and when something is shared or freed.
    """
    _C._collect_exports()


def empty_cache() -> None:
    """Gives the memory that no tensor holds back, on every device. Tensors are not affected."""
    _C._empty_cache()


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Returns the free and the total bytes, as the driver sees them: cached memory counts as used.

    Args:
        device: The device; the current one if None.

    Raises:
        RuntimeError: There is no such device.
    """
    return _C._mem_get_info(_get_valid_index(device))


def memory_snapshot(device: Device = None) -> list[dict[str, Any]]:
    """Returns every segment of the allocator with its blocks, under the names of torch.cuda.memory_snapshot().

    Args:
        device: The device; all devices if None.

    Raises:
        RuntimeError: There is no such device.
    """
    indices = range(_C._get_device_count()) if device is None else (_get_valid_index(device),)
    return [segment for index in indices for segment in _C._memory_snapshot(index)]


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
    """Returns the statistics as a table for people.

    Args:
        device: The device; the current one if None.
        abbreviated: Leaves out the lines of the single pools.

    Raises:
        RuntimeError: There is no such device.
    """
    index = _get_valid_index(device)
    stats = memory_stats(index)
    width = 79
    lines = [
        "=" * width,
        f"  openreg:{index} memory summary, out of memory: {stats['num_ooms']}, retries: {stats['num_alloc_retries']}",
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
