# SPDX-License-Identifier: BSD-3-Clause
"""Lowers operators for openreg as for the CPU where Inductor asks for the name of the device.

Its C++ kernels are those of the CPU; but what suits them, or what only they and Triton's can do, it knows by the name
of the device. Imported after torch._inductor.lowering, which keeps a register of lowerings that take precedence over
its own: one that returns None leaves the operator to those.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from _torch_openreg_device_name import device_name
from sympy import Integer  # type: ignore[import-untyped]
from torch._inductor import config, ir, lowering
from torch._inductor.virtualized import V, ops
from torch._prims.rng_prims import graphsafe_run_with_rng_state
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, get_computation_dtype

from torch_openreg._compile.flex_attention_lowering import FLEX_ATTENTION

_NAME = device_name()
_aten = torch.ops.aten

Lowering = Callable[..., Any]


def _is_ours(*values: Any) -> bool:
    return all(isinstance(x, ir.TensorBox) and x.get_device().type == _NAME for x in values)


def _cat(inputs: Sequence[Any], dim: int = 0) -> Any:
    """One loop an input, as a loop over the result would choose the input for each element."""
    if (
        len(inputs) < 2
        or not _is_ours(*inputs)
        or any(len(x.get_size()) == 1 for x in inputs) != all(len(x.get_size()) == 1 for x in inputs)
    ):
        return None
    dtype = lowering.get_promoted_dtype(*inputs, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT)
    dim = lowering._validate_dim(inputs[0], dim, 0)
    return ir.TensorBox(ir.ConcatKernel.create([lowering.to_dtype(x, dtype) for x in inputs], dim))


def _constant_pad_nd(x: Any, padding: Sequence[Any], fill_value: float = 0) -> Any:
    """One loop over the result, no cat() with a tensor of the fill value: for that, widths must be Python's ints."""
    if not _is_ours(x) or not any(padding):
        return None
    return lowering.lowerings[_aten.constant_pad_nd.default](x, [Integer(p) for p in padding], fill_value)


def _index_of_extreme(target: Any) -> Lowering:
    """Of a whole tensor: the place in the order of its dimensions, whatever the order in memory that it is read in."""

    def lower(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
        if dim is not None or not _is_ours(x) or len(x.get_size()) < 2:
            return None
        found = lowering.lowerings[target](lowering.view(x, [-1]), 0, False)
        return lowering.view(found, [1] * len(x.get_size())) if keepdim else found

    return lower


def _div(x: Any, divisor: Any) -> Any:
    """A division by a number: the product with its reciprocal rounds in another way."""
    if not isinstance(divisor, int | float) or not _is_ours(x):
        return _pointwise(_aten.div.Tensor)(x, divisor)
    dtype = V.graph.current_node.meta["val"].dtype
    divide = lowering.make_pointwise(lambda a: ops.truediv(a, ops.constant(divisor, dtype)))
    return _kept_if_heavy(divide(lowering.to_dtype(x, dtype)))


def _variance(with_mean: bool) -> Lowering:
    """In two steps, mean and squares, where there is little to sum up."""

    def lower(x: Any, axis: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
        if not _is_ours(x):
            return None
        sizes = x.get_size()
        reduced = lowering._validate_reduction_axis(x, axis)
        count = math.prod(sizes[i] for i in reduced)
        one_result = all(size == 1 for i, size in enumerate(sizes) if i not in reduced)
        if not isinstance(count, int | Integer) or count > config.cpp.use_two_step_variance_threshold or one_result:
            return None
        dtype = x.get_dtype()
        wide = lowering.to_dtype(x, get_computation_dtype(dtype), copy=False)
        found = lowering.var_mean_sum_(wide, axis, correction, keepdim, with_mean)
        results = tuple(lowering.to_dtype(result, dtype, copy=False) for result in found)
        return results if with_mean else results[0]

    return lower


def _is_read_again(node: torch.fx.Node) -> bool:
    """Whether elements of a result are read more than once: by several operators, or by one that expands it."""

    def elements(other: torch.fx.Node) -> int:
        value = other.meta.get("val")
        count = value.numel() if isinstance(value, torch.Tensor) else 0
        return count if isinstance(count, int) else 0

    return len(node.users) > 1 or any(elements(user) > elements(node) > 0 for user in node.users)


def _kept_if_heavy(result: Any) -> Any:
    """What takes long to compute is kept where it is read more than once, and not computed again."""
    if _is_ours(result) and _is_read_again(V.graph.current_node):
        value = result.data.data if isinstance(result.data, ir.StorageBox) else None
        if isinstance(value, ir.Pointwise) and not _HEAVY.isdisjoint(value.inner_fn_opcount().used_ops):
            result.realize()
    return result


def _pointwise(target: Any) -> Lowering:
    def lower(*args: Any, **kwargs: Any) -> Any:
        return _kept_if_heavy(lowering.lowerings[target](*args, **kwargs))

    return lower


def _with_random_state(*args: Any, rng_state: Any = None, **kwargs: Any) -> Any:
    """A random operator that draws again what it drew before, as under checkpointing, from the state that it is handed.

    Of such a state PyTorch's own lowering asserts that it is CUDA's or XPU's, and of other objects of a graph nothing.
    """
    if not isinstance(rng_state, ir.GeneratorState) or rng_state.device.type != _NAME:
        return None
    example = torch.get_device_module(_NAME).default_generators[rng_state.device.index].clone_state()
    state = ir.OpaqueObjectState(name=rng_state.name, value=example)
    return lowering.lowerings[graphsafe_run_with_rng_state](*args, rng_state=state, **kwargs)


_HEAVY = frozenset({"exp", "log", "log10", "log1p", "log2", "sigmoid", "tanh"})  # as in ir.StorageBox


def register() -> None:
    """Registers the lowerings. Repeating it changes nothing."""
    registered: dict[Any, Lowering] = lowering.user_lowerings
    pointwise = [
        target
        for target in lowering.lowerings
        if isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags
    ]
    ours: dict[Any, Lowering] = {
        **{target: _pointwise(target) for target in pointwise},
        _aten.div.Tensor: _div,
        _aten.cat.default: _cat,
        _aten.constant_pad_nd.default: _constant_pad_nd,
        **{op.default: _index_of_extreme(op.default) for op in (_aten.argmax, _aten.argmin)},
        _aten.var.correction: _variance(with_mean=False),
        _aten.var_mean.correction: _variance(with_mean=True),
        graphsafe_run_with_rng_state: _with_random_state,
        **FLEX_ATTENTION,
    }
    for target, lower in ours.items():
        registered.setdefault(target, lower)
