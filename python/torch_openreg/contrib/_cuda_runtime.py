# SPDX-License-Identifier: BSD-3-Clause
"""What ``torch.cuda.cudart()`` returns while "cuda" means openreg: the functions of CUDA's runtime that PyTorch shows.

Nothing listens to the profiler's. Memory that a program registers is host memory as before: copies are right, and
``is_pinned()`` is false.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch_openreg.openreg import memory


class cudaError(int):
    """A status of CUDA's runtime."""

    success: ClassVar[cudaError]


cudaError.success = cudaError(0)


def cudaGetErrorString(error: cudaError) -> str:
    """The status in words."""
    return "no error" if error == cudaError.success else f"CUDA error {int(error)}"


def _succeed(*arguments: Any) -> cudaError:
    return cudaError.success


cudaProfilerStart = cudaProfilerStop = cudaHostRegister = cudaHostUnregister = _succeed
cudaMemGetInfo = memory.mem_get_info
