# SPDX-License-Identifier: BSD-3-Clause
"""Makes openreg known to Transformers, and to Accelerate below it (contrib/accelerate.py).

Importing this module lets ``Trainer`` take openreg where it would take the CPU, ``TrainingArguments(bf16=True)`` mean
the autocast of openreg, ``device_map="auto"`` spread a model over the devices, and a ``pipeline()`` without a device or
with an index run there. ``disable()`` takes it back. Names of devices and ``use_cpu=True`` mean what they say.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import torch
import transformers.pipelines.base
import transformers.training_args
import transformers.utils.import_utils
from _torch_openreg_device_name import device_name

from torch_openreg.contrib._replacements import Connection
from torch_openreg.contrib.accelerate import connection as _accelerate

__all__ = ["disable", "enable", "is_enabled"]

_real_pipeline = transformers.pipelines.base.Pipeline.__init__
_real_has_bfloat16 = transformers.utils.import_utils.is_torch_bf16_gpu_available
_real_devices = vars(transformers.training_args.TrainingArguments)["_setup_devices"]


def _is_on() -> bool:
    return connection.is_on and torch.openreg.is_available() and not torch.cuda.is_available()


def _devices(self: Any) -> torch.device:
    """The device of TrainingArguments, where the program has not asked for the CPU."""
    device: torch.device = _real_devices.func(self)
    if _is_on() and device.type == "cpu" and not self.use_cpu and "ACCELERATE_TORCH_DEVICE" not in os.environ:
        device = torch.device(device_name(), torch.openreg.current_device())
        self._n_gpu = 1
    return device


@functools.wraps(_real_has_bfloat16)
def _has_bfloat16() -> bool:
    return _is_on() or _real_has_bfloat16()


@functools.wraps(_real_pipeline)
def _make_pipeline(self: Any, model: Any, *arguments: Any, **keywords: Any) -> None:
    device = keywords.get("device")
    if _is_on() and getattr(model, "hf_device_map", None) is None:
        if device is None and len(arguments) < 7:
            device = 0  # Transformers' default, of its own devices
        if isinstance(device, int) and not isinstance(device, bool) and device >= 0:
            keywords["device"] = torch.device(device_name(), device)
    _real_pipeline(self, model, *arguments, **keywords)
    first = next(iter(getattr(model, "hf_device_map", None) or ()), None)
    if _is_on() and first is not None and isinstance(first := model.hf_device_map[first], int):
        self.device = torch.device(device_name(), first)  # a number is the CPU for Transformers


def _replace(replaced: Connection) -> None:
    devices = functools.cached_property(_devices)
    devices.__set_name__(transformers.training_args.TrainingArguments, "_setup_devices")
    replaced.set(transformers.training_args.TrainingArguments, "_setup_devices", devices)
    replaced.set(transformers.pipelines.base.Pipeline, "__init__", _make_pipeline)
    replaced.everywhere(_real_has_bfloat16, _has_bfloat16, "transformers")


connection = Connection("transformers", _replace, _accelerate)
enable, disable, is_enabled = connection.enable, connection.disable, connection.is_enabled


if __name__ == "__main__":
    from torch_openreg.contrib import _script

    _script.main(__spec__)
else:
    enable()
