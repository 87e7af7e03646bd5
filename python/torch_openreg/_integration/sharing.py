# SPDX-License-Identifier: BSD-3-Clause
"""Lets torch.multiprocessing send openreg tensors: the memory stays where it is, and a handle of it is sent.

PyTorch's reducers for tensors send a tensor's storage, and the one for storages knows the CPU and refuses the rest. So
only that one is replaced, through ForkingPickler.register(), as PyTorch registered it; it leaves every storage that is
not on openreg to PyTorch's. Who holds the memory is counted by the runtime (openreg/sharing.h).
"""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from _torch_openreg_device_name import device_name
from torch.multiprocessing import reductions

from torch_openreg import _C


def _rebuild_empty(index: int) -> torch.UntypedStorage:
    return torch.UntypedStorage(0, device=torch.device(device_name(), index))


def _rebuild(handle: bytes, key: tuple[Any, ...], size: int) -> torch.UntypedStorage:
    imported = _C._import_storage(handle, size)
    # Of one storage a process has one object, so that tensors which share it there share it here: the one that stands
    # already, or, in the process that sent it, the original.
    known = reductions.storage_from_cache(torch.UntypedStorage, key)
    if known is not None:
        return known
    reductions.shared_cache[key] = reductions.StorageWeakRef(imported)
    return imported


def _reduce(storage: torch.UntypedStorage) -> tuple[Any, ...]:
    if storage.device.type != device_name():
        return reductions.reduce_storage(storage)
    if storage.nbytes() == 0:
        return _rebuild_empty, (storage.device.index,)
    handle, name = _C._export_storage(storage)
    key = (device_name(), *name, storage.nbytes())
    reductions.shared_cache[key] = reductions.StorageWeakRef(storage)
    return _rebuild, (handle, key, storage.nbytes())


def install() -> None:
    """Registers with multiprocessing's pickler. Repeating it changes nothing."""
    ForkingPickler.register(torch.UntypedStorage, _reduce)
