# SPDX-License-Identifier: BSD-3-Clause
"""Makes openreg known to Sentence Transformers, and to Transformers and Accelerate below it.

Importing this module lets a ``SentenceTransformer`` without a device take openreg where it would take the CPU.
``disable()`` takes it back.
"""

from __future__ import annotations

import functools

import sentence_transformers.base.model
import sentence_transformers.util
import torch
from _torch_openreg_device_name import device_name

from torch_openreg.contrib._replacements import Connection
from torch_openreg.contrib.transformers import connection as _transformers

__all__ = ["disable", "enable", "is_enabled"]

_real_device_name = sentence_transformers.util.get_device_name


@functools.wraps(_real_device_name)
def _get_device_name() -> str:
    device: str = _real_device_name()
    if not connection.is_on or device != "cpu" or not torch.openreg.is_available():
        return device
    return f"{device_name()}:{torch.openreg.current_device()}"


def _replace(replaced: Connection) -> None:
    replaced.everywhere(_real_device_name, _get_device_name, "sentence_transformers")


connection = Connection("sentence_transformers", _replace, _transformers)
enable, disable, is_enabled = connection.enable, connection.disable, connection.is_enabled


if __name__ == "__main__":
    from torch_openreg.contrib import _script

    _script.main(__spec__)
else:
    enable()
