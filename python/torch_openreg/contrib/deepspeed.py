# SPDX-License-Identifier: BSD-3-Clause
"""Lets DeepSpeed, a program for CUDA, train on openreg without nvcc: ``OPENREG_AS_CUDA=1`` connects it.

DeepSpeed compiles its optimizers' kernels when a configuration names one. Importing this module has its builders return
those of _deepspeed_ops.py, in Python over PyTorch's own, with the same arguments and formulas, for the optimizers of
the CPU (ZeRO-Offload) too: no compiler is needed. Kernels without such a counterpart count as incompatible, and
float16 as supported. ``disable()`` undoes it. While "cuda" does not mean openreg, nothing is changed.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import deepspeed.ops.op_builder.builder  # noqa: F401
from deepspeed.accelerator.cuda_accelerator import CUDA_Accelerator as _Accelerator

from torch_openreg.contrib import _deepspeed_ops
from torch_openreg.contrib._replacements import Connection

__all__ = ["disable", "enable", "is_enabled"]

_BUILDERS = ("deepspeed.ops.op_builder.builder", "op_builder.builder")  # the second one in a clone of the repository


def _is_wanted() -> bool:
    """Whether "cuda" means openreg; asking the module for it would make it so."""
    as_cuda = sys.modules.get("torch_openreg.contrib.cuda_to_openreg")
    return connection.is_on and as_cuda is not None and bool(as_cuda.is_enabled())


def _replace_builders(replaced: Connection, module: Any) -> None:
    real_load, real_is_compatible = module.OpBuilder.load, module.CUDAOpBuilder.is_compatible

    @functools.wraps(real_load)
    def load(self: Any, verbose: bool = False) -> Any:
        if _is_wanted() and self.name in _deepspeed_ops.OPS:
            return _deepspeed_ops.OPS[self.name]
        return real_load(self, verbose)

    @functools.wraps(real_is_compatible)
    def is_compatible(self: Any, verbose: bool = False) -> bool:
        if not _is_wanted():
            return bool(real_is_compatible(self, verbose))
        is_known = self.name in _deepspeed_ops.OPS
        self.error_log = None if is_known else f"'{self.name}' is a kernel for CUDA, which torch_openreg doesn't run."
        return is_known

    replaced.set(module.OpBuilder, "load", load)
    replaced.set(module.CUDAOpBuilder, "is_compatible", is_compatible)


def _replace(replaced: Connection) -> None:
    def answer(name: str, value: bool) -> None:
        real = getattr(_Accelerator, name)
        replaced.set(_Accelerator, name, lambda self: value if _is_wanted() else real(self))

    for builders in _BUILDERS:
        if builders in sys.modules:
            _replace_builders(replaced, sys.modules[builders])
    answer("is_fp16_supported", True)  # DeepSpeed queries the capability, which is (1, 0) without a persona
    answer("is_triton_supported", False)  # DeepSpeed queries the capability, and that of a persona may suffice


def extend() -> None:
    """Replaces again: further modules of DeepSpeed have been imported."""
    if connection.is_on:
        disable()
        enable()


connection = Connection("deepspeed", _replace)
enable, disable, is_enabled = connection.enable, connection.disable, connection.is_enabled


if __name__ == "__main__":
    from torch_openreg.contrib import _script

    _script.main(__spec__)
else:
    enable()
