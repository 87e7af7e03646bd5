# SPDX-License-Identifier: BSD-3-Clause
"""Lets DeepSpeed, a program for CUDA, train on openreg without nvcc: ``OPENREG_AS_CUDA=1`` connects it.

DeepSpeed compiles its optimizers' kernels when a configuration names one. Importing this module has its builders give
those of _deepspeed_ops.py, in Python over PyTorch's own, with the same arguments and formulas, for the optimizers of
the CPU (ZeRO-Offload) too: no compiler is asked for. Kernels without such a counterpart count as incompatible, and
float16 as supported. ``disable()`` takes it back. While "cuda" does not mean openreg, nothing is changed.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import deepspeed.ops.op_builder.builder as _builder
from deepspeed.accelerator.cuda_accelerator import CUDA_Accelerator as _Accelerator

from torch_openreg.contrib import _deepspeed_ops
from torch_openreg.contrib._replacements import Connection

__all__ = ["disable", "enable", "is_enabled"]

_real_load = _builder.OpBuilder.load
_real_is_compatible = _builder.CUDAOpBuilder.is_compatible


def _is_wanted() -> bool:
    """Whether "cuda" means openreg; asking the module for it would make it so."""
    as_cuda = sys.modules.get("torch_openreg.contrib.cuda_to_openreg")
    return connection.is_on and as_cuda is not None and bool(as_cuda.is_enabled())


@functools.wraps(_real_load)
def _load(self: Any, verbose: bool = False) -> Any:
    if _is_wanted() and self.name in _deepspeed_ops.OPS:
        return _deepspeed_ops.OPS[self.name]
    return _real_load(self, verbose)


@functools.wraps(_real_is_compatible)
def _is_compatible(self: Any, verbose: bool = False) -> bool:
    if not _is_wanted():
        return bool(_real_is_compatible(self, verbose))
    is_known = self.name in _deepspeed_ops.OPS
    self.error_log = None if is_known else f"'{self.name}' is a kernel for CUDA, which torch_openreg doesn't run."
    return is_known


def _replace(replaced: Connection) -> None:
    def answering(name: str, answer: bool) -> None:
        real = getattr(_Accelerator, name)
        replaced.set(_Accelerator, name, lambda self: answer if _is_wanted() else real(self))

    replaced.set(_builder.OpBuilder, "load", _load)
    replaced.set(_builder.CUDAOpBuilder, "is_compatible", _is_compatible)
    answering("is_fp16_supported", True)  # by the capability, which is (1, 0) without a persona
    answering("is_triton_supported", False)  # likewise, and an A100 would have it


connection = Connection("deepspeed", _replace)
enable, disable, is_enabled = connection.enable, connection.disable, connection.is_enabled


if __name__ == "__main__":
    from torch_openreg.contrib import _script

    _script.main(__spec__)
else:
    enable()
