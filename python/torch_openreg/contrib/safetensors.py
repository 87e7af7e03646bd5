# SPDX-License-Identifier: BSD-3-Clause
"""Makes the names of openreg's devices known to safetensors.

safetensors reads device names from a list in which openreg is missing; an index means the accelerator of the process.
Importing this module has ``safe_open()`` take "openreg", "openreg:1" and torch.device("openreg:1"), and with it
``load_file()``, ``load_model()`` and the libraries that are imported by then. ``disable()`` takes it back.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import safetensors.torch
import torch
from _torch_openreg_device_name import device_name

from torch_openreg.contrib._replacements import Connection

__all__ = ["disable", "enable", "is_enabled"]

_NAMES = (device_name(), "privateuseone")
# Libraries that have imported safe_open() under a name of their own.
_USERS = ("accelerate", "diffusers", "peft", "safetensors", "sentence_transformers", "skorch", "timm", "transformers")
_real_safe_open = safetensors.safe_open


def _translate(device: Any) -> Any:
    """The index of an openreg device; anything else as it is."""
    name = str(device) if isinstance(device, (str, torch.device)) else ""
    redirection = sys.modules.get("torch_openreg.contrib.cuda_to_openreg")
    if redirection is not None and redirection.is_enabled() and name.partition(":")[0] == "cuda":
        name = device_name() + name[4:]
    if not connection.is_on or name.partition(":")[0] not in _NAMES:
        return device
    index = torch.device(name).index
    return torch.openreg.current_device() if index is None else index


@functools.wraps(_real_safe_open, updated=())
def _safe_open(filename: Any, framework: str, device: Any = "cpu", **keywords: Any) -> Any:
    return _real_safe_open(filename, framework, device=_translate(device), **keywords)


def _replace(replaced: Connection) -> None:
    replaced.everywhere(_real_safe_open, _safe_open, *_USERS)


connection = Connection("safetensors", _replace)
enable, disable, is_enabled = connection.enable, connection.disable, connection.is_enabled


if __name__ == "__main__":
    from torch_openreg.contrib import _script

    _script.main(__spec__)
else:
    enable()
