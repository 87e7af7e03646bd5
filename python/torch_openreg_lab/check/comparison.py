# SPDX-License-Identifier: BSD-3-Clause
"""How results of the device are compared: bits where PyTorch's kernels for the CPU ran, tolerances where others did."""

from __future__ import annotations

import torch

from torch_openreg_lab.check.paired_tensors import Comparison, exactly, within

TOLERANCES = {
    torch.float64: (1e-7, 1e-7),
    torch.float32: (1e-4, 1e-4),
    torch.float16: (1e-2, 1e-2),
    torch.bfloat16: (4e-2, 4e-2),
    torch.complex64: (1e-4, 1e-4),
    torch.complex128: (1e-7, 1e-7),
}
"""Relative and absolute, of the results of a driver's own kernels and of a GPU's: sums have another order there."""

MOVES_BYTES = ("aten::zero_", "aten::fill_", "aten::copy_")


def native_calls() -> int:
    """Calls of a driver's own kernels so far that compute."""
    stats = torch.openreg.operator_stats()
    if stats["gpu_allocator"] is not None:
        return -1
    return sum(count["calls"] for name, count in stats["native"].items() if name not in MOVES_BYTES)


def fits(expected: torch.Tensor, actual: torch.Tensor) -> str | None:
    """Within the tolerance of the type; integers and bools exactly."""
    if expected.dtype not in TOLERANCES:
        return exactly(expected, actual)
    return within(*TOLERANCES[expected.dtype])(expected, actual)


def comparison_since(calls: int) -> Comparison:
    """The comparison for what ran since :func:`native_calls` gave `calls`."""
    return exactly if calls >= 0 and native_calls() == calls else fits
