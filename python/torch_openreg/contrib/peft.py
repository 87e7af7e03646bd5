# SPDX-License-Identifier: BSD-3-Clause
"""Makes openreg known to PEFT, and to Transformers and Accelerate below it.

Importing this module lets ``infer_device()``, by which PEFT chooses the device of adapters that it loads, say openreg
where it would say the CPU. ``disable()`` takes it back.
"""

from __future__ import annotations

import functools

import peft.utils.other
import torch
from _torch_openreg_device_name import device_name

from torch_openreg.contrib._replacements import Connection
from torch_openreg.contrib.transformers import connection as _transformers

__all__ = ["disable", "enable", "is_enabled"]

_real_infer_device = peft.utils.other.infer_device


@functools.wraps(_real_infer_device)
def _infer_device() -> str:
    device: str = _real_infer_device()
    return device_name() if connection.is_on and device == "cpu" and torch.openreg.is_available() else device


def _replace(replaced: Connection) -> None:
    replaced.everywhere(_real_infer_device, _infer_device, "peft")


connection = Connection("peft", _replace, _transformers)
enable, disable, is_enabled = connection.enable, connection.disable, connection.is_enabled


if __name__ == "__main__":
    from torch_openreg.contrib import _script

    _script.main(__spec__)
else:
    enable()
