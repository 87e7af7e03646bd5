# SPDX-License-Identifier: BSD-3-Clause
"""DeepSpeed's operator ``quantizer``, which ZeRO++ communicates with, over PyTorch's own.

Groups of float16 values become whole numbers of 8 or 4 bits, two of these in a byte, the first one in its upper half.
A group has the factor that gives the values back, and an offset where its type is Asymmetric.
"""

from __future__ import annotations

import enum

import torch
from torch import Tensor


class QuantizationType(enum.IntEnum):
    """Whether a group is around zero or around the middle of its values."""

    Symmetric = 0
    Asymmetric = 1


def _packed(values: Tensor, bits: int) -> Tensor:
    if bits == 8:
        return values
    return values[..., 0::2].bitwise_left_shift(4).bitwise_or(values[..., 1::2].bitwise_and(15))


def _unpacked(data: Tensor, bits: int) -> Tensor:
    if bits == 8:
        return data
    lower = data.bitwise_left_shift(4).bitwise_right_shift(4)  # of int8, which keeps the sign
    return torch.stack((data.bitwise_right_shift(4), lower), -1).flatten(-2)


def _quantized(groups: Tensor, bits: int, kind: int) -> tuple[Tensor, Tensor]:
    """Packed values and parameters of a tensor's rows.

    Raises:
        RuntimeError: Values of another type than float16, whose bytes the kernel would take for such.
    """
    if groups.dtype != torch.float16:
        raise RuntimeError(f"DeepSpeed's quantizer takes float16, not {groups.dtype}")
    values = groups.float()
    if kind == QuantizationType.Symmetric:
        size = 2 * values.abs().amax(1, keepdim=True)
    else:
        largest, smallest = values.amax(1, keepdim=True), values.amin(1, keepdim=True)
        size, offset = largest - smallest, (largest + smallest) / 2
        values = values - offset
    scale = torch.where(size == 0, 1.0, 2**bits / size)
    whole = (values * scale).round_().clamp_(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1).to(torch.int8)
    factor = 1 / scale
    return _packed(whole, bits), factor if kind == QuantizationType.Symmetric else torch.cat((factor, offset), 1)


def _restored(data: Tensor, parameters: Tensor, bits: int, kind: int) -> Tensor:
    """The values of packed groups, in the last dimension, with their parameters before it."""
    values = _unpacked(data, bits).float()
    if kind == QuantizationType.Symmetric:
        return values * parameters.reshape(*values.shape[:-1], 1)
    factor, offset = parameters.reshape(*values.shape[:-1], 2).split(1, -1)
    return values * factor + offset


def quantize(values: Tensor, groups: int, bits: int, kind: int) -> list[Tensor]:
    """Quantizes a tensor's groups. Returns the data, in the tensor's form, and the parameters."""
    data, parameters = _quantized(values.reshape(groups, -1), bits, kind)
    return [data.reshape(*values.shape[:-1], values.shape[-1] * bits // 8), parameters]


def dequantize_fp32(data: Tensor, parameters: Tensor, groups: int, bits: int, kind: int) -> Tensor:
    """The values of ``quantize()``'s data."""
    restored = _restored(data.reshape(groups, -1), parameters, bits, kind)
    return restored.reshape(*data.shape[:-1], data.shape[-1] * 8 // bits)


def dequantize(data: Tensor, parameters: Tensor, groups: int, bits: int, kind: int) -> Tensor:
    """The same in float16."""
    return dequantize_fp32(data, parameters, groups, bits, kind).half()


def dequantize_int8_to_half_experimental(
    data: Tensor, scale: Tensor, smallest: Tensor, groups: int, size: int
) -> Tensor:
    """The values of bytes, by the factor of each group that made them and its smallest value."""
    return data.reshape(groups, size).half() / scale.reshape(groups, 1) + smallest.reshape(groups, 1)


def dequantize_int4_to_half_experimental(
    data: Tensor, scale: Tensor, smallest: Tensor, groups: int, size: int
) -> Tensor:
    """The same of half bytes without a sign."""
    halves = torch.stack((data.bitwise_right_shift(4), data.bitwise_and(15)), -1)
    return dequantize_int8_to_half_experimental(halves, scale, smallest, groups, size)


def swizzle_quant(
    values: Tensor, groups: int, bits: int, kind: int, slices: int, nodes: int, devices: int
) -> list[Tensor]:
    """Quantizes groups and orders them by slice of a partition, device and node, as the exchange sends them."""
    data, parameters = _quantized(values.reshape(groups, -1), bits, kind)

    def ordered(rows: Tensor) -> Tensor:
        return rows.reshape(nodes, devices, slices, -1).permute(2, 1, 0, 3)

    return [ordered(data).reshape(-1), ordered(parameters).reshape(groups, -1)]


def quantized_reduction(
    data: Tensor, parameters: Tensor, groups: int, groups_out: int, bits: int, kind: int, devices: int
) -> list[Tensor]:
    """The sum of the devices' tensors, which are behind each other, quantized anew."""
    values = _restored(data.reshape(groups, -1), parameters, bits, kind).half().reshape(devices, -1)
    total = values[0].clone()
    for value in values[1:]:
        total += value
    reduced, scales = _quantized(total.reshape(groups_out, -1), bits, kind)
    return [reduced.reshape(*data.shape[:-1], data.shape[-1] // devices), scales]
