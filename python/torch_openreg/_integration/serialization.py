# SPDX-License-Identifier: BSD-3-Clause
"""Lets ``map_location="privateuseone:1"`` and files with that tag be loaded: torch knows the renamed type only."""

from __future__ import annotations

from typing import Any

import torch

_OTHER_NAME = "privateuseone"
_PRIORITY = 19  # before torch's own entries, which come from 20 on
_installed = False


def _tag(storage: Any) -> None:
    """Leaves tagging to torch, which writes "openreg:1"."""


def _load(storage: Any, location: str) -> Any:
    if location != _OTHER_NAME and not location.startswith(_OTHER_NAME + ":"):
        return None
    return torch.serialization.default_restore_location(storage, "openreg" + location[len(_OTHER_NAME) :])


def install() -> None:
    """Registers with torch.load(). Repeating it changes nothing."""
    global _installed
    if not _installed:
        _installed = True
        torch.serialization.register_package(_PRIORITY, _tag, _load)
