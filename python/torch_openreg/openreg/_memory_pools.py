# SPDX-License-Identifier: BSD-3-Clause
"""Private pools of the allocator: memory that serves its own tensors alone."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Iterator
from typing import Any

from _torch_openreg_device_name import device_name

from torch_openreg import _C
from torch_openreg.openreg._utils import Device, _get_valid_index

_NAME = device_name()

_numbers = itertools.count(1)


def _release(devices: list[int], pool_id: tuple[int, int]) -> None:
    for device in devices:
        # Raised if the driver has been closed since, which ended the pool, too.
        with contextlib.suppress(RuntimeError):
            _C._memory_pool_release(device, pool_id)


class MemPool:
    """A pool of memory: what is allocated from it under use_mem_pool() shares no segment with anything else.

    When the last reference to it is dropped, its cached memory returns to the device at once, and that of its live
    tensors when they are freed.
    """

    def __init__(self, allocator: None = None, use_on_oom: bool = False, no_split: bool = False) -> None:
        """Makes an empty pool on the current device.

        Args:
            allocator: Must be None: there are no other allocators.
            use_on_oom: Its free memory serves any request before that fails for lack of memory.
            no_split: Every tensor gets a segment of its own.

        Raises:
            NotImplementedError: An allocator is given.
        """
        if allocator is not None:
            raise NotImplementedError(f"{_NAME} has no other allocators, but a MemPool is to use {allocator!r}.")
        self._id = (0, next(_numbers))
        self._flags = (bool(use_on_oom), bool(no_split))
        self._devices: list[int] = []
        self._device = _get_valid_index(None)
        self._retain(self._device)
        # At exit nothing is to be freed, and the driver may be gone.
        weakref.finalize(self, _release, self._devices, self._id).atexit = False

    def _retain(self, device: int) -> None:
        """The pool exists on the devices where it was used; this object is a use of it on each."""
        if device not in self._devices:
            _C._memory_pool_retain(device, self._id, *self._flags)
            self._devices.append(device)

    @property
    def id(self) -> tuple[int, int]:
        """The pool's name: two numbers."""
        return self._id

    @property
    def device(self) -> int:
        """Index of the device that was current when it was made."""
        return self._device

    @property
    def allocator(self) -> None:
        """None: the allocator that every tensor uses."""
        return None

    def use_count(self) -> int:
        """Returns the number of its uses on its device: this object, and every use_mem_pool() that is entered."""
        return _C._memory_pool_uses(self._device, self._id)

    def snapshot(self, include_traces: bool = True) -> list[dict[str, Any]]:
        """Returns the segments of the pool with their blocks, on all devices; see memory_snapshot().

        Args:
            include_traces: As by torch.cuda: the result has no traces either way.
        """
        segments = _C._memory_snapshot(list(range(_C._get_device_count())), False)["segments"]
        return [segment for segment in segments if segment["segment_pool_id"] == self._id]


@contextlib.contextmanager
def use_mem_pool(pool: MemPool, device: Device = None) -> Iterator[None]:
    """Takes the memory of tensors that this thread makes from a pool.

    Other threads are not affected, so neither is what autograd makes in its own. Where pools are nested, the innermost
    counts.

    Args:
        pool: The pool.
        device: The device whose tensors come from it; the current one if None.

    Raises:
        RuntimeError: There is no such device, or this thread uses the pool there already.
        TypeError: It is not a MemPool.
    """
    if not isinstance(pool, MemPool):
        raise TypeError(f"Expected a torch.{_NAME}.MemPool, but got {type(pool).__name__}: {pool!r}.")
    index = _get_valid_index(device)
    pool._retain(index)
    _C._memory_pool_enter(index, pool.id)
    try:
        yield
    finally:
        _C._memory_pool_leave(index, pool.id)
