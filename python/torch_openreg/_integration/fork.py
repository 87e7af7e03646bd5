# SPDX-License-Identifier: BSD-3-Clause
"""Warns when a process with open drivers forks: the child can't use them."""

from __future__ import annotations

import os
import sys
import warnings
from types import FrameType

from _torch_openreg_device_name import device_name

from torch_openreg import _C
from torch_openreg._discovery import search

# Worker processes of a DataLoader are forked by the most ordinary training loop, prepare batches on the CPU, and get
# a clear error where they do use a device.
_HARMLESS = "torch.utils.data.dataloader"

_installed = False


def _is_harmless() -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == _HARMLESS:
            return True
        frame = frame.f_back
    return False


def _before_fork() -> None:
    if _C._isInBadFork() or not (_C._is_initialized() or search.is_finished()):
        return  # in the latter case nothing can be open, and to ask would start discovery
    if _is_harmless():
        return
    names = [r["name"] for r in _C._driver_records() if r["state"] == "open" and not r["is_fork_safe"]]
    if names:
        warnings.warn(
            f"os.fork() was called while the {device_name()} driver(s) {', '.join(names)} are open. They can't be used "
            "in the child, and threads of theirs may hold locks there. Use the 'spawn' start method of "
            "multiprocessing.",
            RuntimeWarning,
            stacklevel=2,
        )


def install() -> None:
    """Registers the warning. Repeating it changes nothing."""
    global _installed
    if not _installed and hasattr(os, "register_at_fork"):
        _installed = True
        os.register_at_fork(before=_before_fork)
