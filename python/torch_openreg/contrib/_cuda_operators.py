# SPDX-License-Identifier: BSD-3-Clause
"""Operators that CUDA alone has, by those of the CPU: products with weights of four bits, as torchao packs them."""

from __future__ import annotations

import torch


def _convert_weight_to_int4pack(weight: torch.Tensor, tiles: int) -> torch.Tensor:
    """Packs weights.

    Args:
        weight: uint8, of shape [n, k / 2]: two numbers in a byte, the first one in its upper half.
        tiles: How many tiles of 16 columns lie together.

    Returns:
        int32, of CUDA's shape [n / 8, k / (16 * tiles), 32, tiles / 2]; the bytes are in the CPU's order.
    """
    numbers = torch.stack((weight >> 4, weight & 15), dim=-1).flatten(1)
    rows, columns = numbers.shape
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(numbers.int(), tiles)
    return packed.view(torch.int32).view(rows // 8, columns // (16 * tiles), 32, tiles // 2)


def _weight_int4pack_mm(x: torch.Tensor, packed: torch.Tensor, group: int, scales: torch.Tensor) -> torch.Tensor:
    """The product of a matrix [m, k] with packed weights, whose ``scales`` are [k / group, n, 2]: of shape [m, n]."""
    weight = packed.view(torch.uint8).view(packed.shape[0] * 8, -1)
    return torch.ops.aten._weight_int4pack_mm_for_cpu(x, weight, group, scales)


def register() -> torch.library.Library:
    """Registers them for the device, until ``_destroy()`` of the result."""
    library = torch.library.Library("aten", "IMPL")
    for function in (_convert_weight_to_int4pack, _weight_int4pack_mm):
        library.impl(function.__name__, function, "PrivateUse1")
    return library
