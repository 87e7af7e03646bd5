# SPDX-License-Identifier: BSD-3-Clause
"""Lets files be loaded whose tensors were on the device under another name than it has here.

torch knows the name that the device has. ``privateuseone`` is PyTorch's own name of it. Others are those of programs
where it is named otherwise, and come last: a tag unknown to all others is taken for one of them. That holds for a
file's own tags alone: what `map_location` names, and nobody knows, is misspelt.
"""

from __future__ import annotations

import functools
import re
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from _torch_openreg_device_name import DEFAULT, device_name

_OWN_NAMES = ("privateuseone", DEFAULT)
_TAG = re.compile(r"([a-z][a-z_]*)(:\d+)?")
_FIRST = 19  # before torch's own entries, which come from 20 on
_LAST = 1 << 20
_installed = False
_Restore = Callable[[Any, Any], Any]


class _Restoring(threading.local):
    """What the calling thread restores just now."""

    tag: str | None = None  # that of the file, unless map_location is a device


_restoring = _Restoring()


def _tag(storage: Any) -> None:
    """Leaves tagging to torch, which writes "openreg:1"."""


def _load(storage: Any, location: str) -> Any:
    match = _TAG.fullmatch(location)
    if match is None or match[1] not in _OWN_NAMES or match[1] == device_name():
        return None
    return torch.serialization.default_restore_location(storage, device_name() + (match[2] or ""))


def _load_unknown(storage: Any, location: str) -> Any:
    match = _TAG.fullmatch(location)
    if match is None or match[1] == device_name() or location != _restoring.tag:
        return None
    try:
        torch.device(match[1])
    except RuntimeError:
        return torch.serialization.default_restore_location(storage, device_name() + (match[2] or ""))
    return None  # a device of PyTorch's that isn't there


def _noting_tags(get_restore_location: Callable[[Any], _Restore]) -> Callable[[Any], _Restore]:
    """PyTorch's function that makes the function which restores a storage by its tag."""

    @functools.wraps(get_restore_location)
    def get(map_location: Any) -> _Restore:
        restore = get_restore_location(map_location)
        if isinstance(map_location, (str, bytes, torch.device)):
            return restore

        def noting(storage: Any, location: Any) -> Any:
            before, _restoring.tag = _restoring.tag, location
            try:
                return restore(storage, location)
            finally:
                _restoring.tag = before

        return noting

    return get


def install() -> None:
    """Registers with torch.load(). Repeating it changes nothing."""
    global _installed
    if not _installed:
        _installed = True
        name = "_get_restore_location"
        real = getattr(torch.serialization, name)
        for module in (torch.serialization, sys.modules.get("torch.package.package_importer")):
            if module is not None:
                setattr(module, name, _noting_tags(real))
        torch.serialization.register_package(_FIRST, _tag, _load)
        torch.serialization.register_package(_LAST, _tag, _load_unknown)
