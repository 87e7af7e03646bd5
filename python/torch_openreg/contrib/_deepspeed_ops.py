# SPDX-License-Identifier: BSD-3-Clause
"""DeepSpeed's compiled operators, by their names and arguments, over PyTorch's own.

The optimizers' arithmetic is float32 whatever the tensors are; results are rounded when they are stored. Differences
to the kernels are those of rounding.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torch_openreg.contrib import _deepspeed_quantizer as _quantizer


def _store(values: tuple[Tensor, ...], places: tuple[Tensor, ...]) -> None:
    for value, place in zip(values, places, strict=True):
        if value is not place:
            place.copy_(value)


def _corrections(step: int, beta1: float, beta2: float, wanted: Any) -> tuple[float, float]:
    return (1 - beta1**step, 1 - beta2**step) if wanted else (1.0, 1.0)


def _average(average: Tensor, gradient: Tensor, beta: float) -> None:
    average.mul_(beta).add_(gradient, alpha=1 - beta)


def _adam(
    tensors: tuple[Tensor, Tensor, Tensor, Tensor],
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    step: int,
    decoupled: Any,
    bias_correction: Any,
    decay: float,
) -> None:
    gradient, parameter, mean, square = (tensor.float() for tensor in tensors)
    if decay and not decoupled:
        gradient = gradient.add(parameter, alpha=decay)
    _average(mean, gradient, beta1)
    square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    correction1, correction2 = _corrections(step, beta1, beta2, bias_correction)
    update = (mean / correction1).div_((square / correction2).sqrt_().add_(eps))
    if decay and decoupled:
        update.add_(parameter, alpha=decay)
    parameter.sub_(update, alpha=lr)
    _store((parameter, mean, square), tensors[1:])


def _lion(
    tensors: tuple[Tensor, Tensor, Tensor],
    lr: float,
    beta1: float,
    beta2: float,
    decay: float,
    is_up: Any,
) -> None:
    gradient, parameter, mean = (tensor.float() for tensor in tensors)
    step = torch.where(is_up(mean * beta1 + gradient * (1 - beta1)), -lr, lr)
    parameter.mul_(1 - lr * decay).add_(step)
    _average(mean, gradient, beta2)
    _store((parameter, mean), tensors[1:])


# ------------------------------------------------------------------------------------------------- on the device


def _multi_tensor_adam(
    chunk: int,
    overflow: Tensor,
    lists: list[list[Tensor]],
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    step: int,
    mode: int,
    bias_correction: int,
    decay: float,
) -> None:
    """One step of Adam for lists of gradients, parameters, means and squares; mode 1 decouples the weight decay."""
    for tensors in zip(*lists, strict=True):
        _adam(tensors, lr, beta1, beta2, eps, step, mode, bias_correction, decay)


def _multi_tensor_lion(
    chunk: int,
    overflow: Tensor,
    lists: list[list[Tensor]],
    lr: float,
    beta1: float,
    beta2: float,
    step: int,
    decay: float,
) -> None:
    """One step of Lion for lists of gradients, parameters and means."""
    for tensors in zip(*lists, strict=True):
        _lion(tensors, lr, beta1, beta2, decay, lambda value: value > 0)


def _lamb(
    parameter: Tensor,
    copy: Tensor,
    mean: Tensor,
    square: Tensor,
    gradient: Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    max_coeff: float,
    min_coeff: float,
    eps: float,
    scale: float,
    step: int,
    mode: int,
    bias_correction: int,
    decay: float,
) -> Tensor:
    """One step of LAMB for a tensor. ``copy`` gets a float16 parameter; in mode 0 ``eps`` is inside of the root.

    Returns:
        The coefficient, a tensor with one element.

    Raises:
        RuntimeError: A data type that the kernel has not.
    """
    if gradient.dtype == torch.bfloat16:
        raise RuntimeError("\"lamb_cuda_kernel\" not implemented for 'BFloat16'")
    if gradient.dtype == torch.float16 and parameter.dtype != torch.float32:
        raise RuntimeError("expected parameter to be of float type")
    scaled = gradient.to(parameter.dtype) / scale
    _average(mean, scaled, beta1)
    square.mul_(beta2).addcmul_(scaled, scaled, value=1 - beta2)
    root = (square + eps).sqrt() if mode == 0 else square.sqrt() + eps
    update = mean / root + parameter * decay
    weight, length = parameter.norm(), update.norm()
    found = (weight / length).clamp(min_coeff, max_coeff)
    coefficient = torch.where((weight != 0) & (length != 0), found, 1.0)
    correction1, correction2 = _corrections(step, beta1, beta2, bias_correction)
    parameter.sub_(update.mul_(coefficient), alpha=lr * correction2**0.5 / correction1)
    if copy.numel() and gradient.dtype == torch.float16:
        copy.copy_(parameter)
    return coefficient.reshape(1)


# --------------------------------------------------------------- on the CPU, where ZeRO-Offload keeps the states

_decoupled: dict[int, bool] = {}  # optimizers of Adam by number


def _create_adam(
    number: int, lr: float, beta1: float, beta2: float, eps: float, decay: float, decoupled: bool, log: bool
) -> None:
    _decoupled[number] = decoupled


def _adam_update(
    number: int,
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
    bias_correction: bool,
    *tensors: Tensor,
) -> None:
    parameter, gradient, mean, square = tensors
    group = (gradient, parameter, mean, square)
    _adam(group, lr, beta1, beta2, eps, step, _decoupled[number], bias_correction, decay)


def _adam_rollback(
    number: int,
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
    bias_correction: bool,
    *tensors: Tensor,
) -> None:
    """Undoes a step. As DeepSpeed's, it assumes decoupled weight decay and bias correction for every optimizer."""
    parameter, gradient, mean, square = tensors
    correction1, correction2 = _corrections(step, beta1, beta2, True)
    update = (mean / correction1).div_((square / correction2).sqrt_().add_(eps))
    parameter.add_(update, alpha=lr).div_(1 - lr * decay).nan_to_num_(0.0, 0.0, 0.0)
    mean.sub_(gradient, alpha=1 - beta1).div_(beta1)
    square.addcmul_(gradient, gradient, value=beta2 - 1).div_(beta2)


def _lion_update(
    number: int,
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    decay: float,
    parameter: Tensor,
    gradient: Tensor,
    mean: Tensor,
) -> None:
    _lion((gradient, parameter, mean), lr, beta1, beta2, decay, lambda value: ~value.signbit())


def _adagrad_update(
    number: int, step: int, lr: float, eps: float, decay: float, parameter: Tensor, gradient: Tensor, square: Tensor
) -> None:
    tensors = (parameter, gradient, square)
    value, slope, total = (tensor.float() for tensor in tensors)
    slope.add_(value, alpha=decay)
    total.addcmul_(slope, slope)
    slope.div_(total.sqrt().add_(eps)).mul_(-lr)  # the kernel leaves the update there, too
    value.add_(slope)
    _store((value, slope, total), tensors)


def _nothing(*arguments: Any) -> None:
    """Makes or frees what only the compiled operator has."""


class _Module:
    """Stands for the extension that a builder loads."""

    def __init__(self, **functions: Any) -> None:
        for name, function in functions.items():
            setattr(self, name, torch.no_grad()(function))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"'{name}' is compiled code of DeepSpeed's, for which torch_openreg has nothing in Python")


OPS = {
    "fused_adam": _Module(multi_tensor_adam=_multi_tensor_adam),
    "fused_lion": _Module(multi_tensor_lion=_multi_tensor_lion),
    "fused_lamb": _Module(lamb=_lamb),
    "cpu_adam": _Module(
        create_adam=_create_adam,
        destroy_adam=lambda number: _decoupled.pop(number, None),
        adam_update=_adam_update,
        adam_rollback=_adam_rollback,
    ),
    "cpu_lion": _Module(create_lion=_nothing, destroy_lion=_nothing, lion_update=_lion_update),
    "quantizer": _Module(
        quantize=_quantizer.quantize,
        dequantize=_quantizer.dequantize,
        dequantize_fp32=_quantizer.dequantize_fp32,
        dequantize_int4_to_half_experimental=_quantizer.dequantize_int4_to_half_experimental,
        dequantize_int8_to_half_experimental=_quantizer.dequantize_int8_to_half_experimental,
        swizzle_quant=_quantizer.swizzle_quant,
        quantized_reduction=_quantizer.quantized_reduction,
    ),
    "cpu_adagrad": _Module(create_adagrad=_nothing, destroy_adagrad=_nothing, adagrad_update=_adagrad_update),
}
for _name in ("Symmetric", "Asymmetric"):
    setattr(OPS["quantizer"], _name, _quantizer.QuantizationType[_name])
