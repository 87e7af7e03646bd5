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

from torch_openreg.contrib import transformers as _transformers
from torch_openreg.contrib._replacements import Connection

__all__ = ["disable", "enable", "is_enabled"]

_real_infer_device = peft.utils.other.infer_device


@functools.wraps(_real_infer_device)
def _infer_device() -> str:
    device: str = _real_infer_device()
    return device_name() if _connection.is_on and device == "cpu" and torch.openreg.is_available() else device


def _replace(connection: Connection) -> None:
    connection.everywhere(_real_infer_device, _infer_device, "peft")


_connection = Connection("peft", _replace)


def is_enabled() -> bool:
    """Returns whether PEFT knows openreg now."""
    return _connection.is_on


def enable() -> None:
    """Makes openreg known to PEFT and the libraries below it. Importing the module has done so.

    Raises:
        AttributeError: A version of a library is another than those that are known here.
    """
    _transformers.enable()
    _connection.turn_on()


def disable() -> None:
    """Takes everything back that ``enable()`` has replaced, in the libraries below PEFT too."""
    _connection.turn_off()
    _transformers.disable()


if __name__ == "__main__":
    from torch_openreg.contrib import _script

    _script.main(__spec__)
else:
    enable()
