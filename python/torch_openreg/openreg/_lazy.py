# SPDX-License-Identifier: BSD-3-Clause
"""Initialisation on first use: importing opens no driver."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable

from _torch_openreg_device_name import device_name

from torch_openreg import _C, _after_fork
from torch_openreg._discovery import callbacks, process, search

_lock = threading.RLock()
_after_fork.renew(globals(), _lock=threading.RLock)
_initializing = False  # only the owner of the lock sees True
# Calls that need the devices but must not open them (a seed set beforehand), run when the devices are opened.
_waiting: list[Callable[[], None]] = []


def _is_in_bad_fork() -> bool:
    """Whether this process is a fork of one that had opened the devices; they can't be used in it."""
    return _C._isInBadFork()


def is_initialized() -> bool:
    """Returns whether the devices have been opened by this process. Never raises, opens nothing."""
    return _C._is_initialized()


def init() -> None:
    """Opens the driver and its devices. Every function that needs them does so itself; repeating it changes nothing.

    Raises:
        RuntimeError: No driver could be opened (the message says why, for each), or this process was forked from one
            that had opened the devices.
    """
    _lazy_init()


def _prepare() -> None:
    """What comes before everything that chooses, opens or lists drivers.

    Raises:
        RuntimeError: This process can't use devices after a fork(), or the caller is a driver's factory.
    """
    if _is_in_bad_fork():
        _C._init()  # raises
    if callbacks.thread.in_factory:
        raise RuntimeError(
            f"A driver's factory can't use torch.{device_name()}: it is called while drivers are being opened."
        )
    search.discover()
    process.tell_runtime()


def _open_laboratory() -> None:
    """Loads what gives reports of races their lines, where a variable asks for them. By name: it is above."""
    if any(_C._variable(name) for name in ("OPENREG_RACES", "OPENREG_SIM_RACES")):
        importlib.import_module("torch_openreg_lab.races")


def _lazy_init() -> None:
    """What init() does. PyTorch's C++ calls it by this name at the first use of the device from Python."""
    global _initializing
    if is_initialized() and not _waiting:
        return
    _prepare()
    with _lock:
        if _initializing:  # what is below came back here through PyTorch
            return
        _initializing = True
        try:
            _open_laboratory()
            _C._init()
            while _waiting:
                try:
                    _waiting[0]()
                finally:
                    del _waiting[0]  # only now: another thread that finds none goes on without waiting
        finally:
            _initializing = False


def _lazy_call(call: Callable[[], None], replaces_waiting: bool = False) -> None:
    """Runs a call now if the devices are open, else as soon as they are.

    `replaces_waiting`: it undoes what every call that still waits would do, so these are dropped.
    """
    with _lock:
        if not is_initialized():
            if replaces_waiting:
                _waiting.clear()
            _waiting.append(call)
            _C._require_init()  # the devices may have been open before: PyTorch would not ask again
            return
    call()


def _shutdown() -> None:
    """Closes the drivers, so that the next use reads the environment again.

    Raises:
        RuntimeError: There are live tensors, streams or events.
    """
    with _lock:
        _C._shutdown()
