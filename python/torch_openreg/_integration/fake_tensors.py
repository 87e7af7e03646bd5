# SPDX-License-Identifier: BSD-3-Clause
"""Makes fake tensors of openreg come out of operators as real ones do: with sizes and strides of the CPU's kernels.

Operators run as the CPU's (docs/operators.md). Where kernels of the CPU and of other devices differ, PyTorch's rules
for fake tensors ask for the device and take openreg for one of the others: a convolution's result would be contiguous,
``nonzero_static``'s transposed. torch.compile would then trace views that real results don't have.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from _torch_openreg_device_name import device_name
from torch._decomp import decomposition_table, meta_table
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves

from torch_openreg import _C

_NAME = device_name()
_CPU = torch.device("cpu")
_CONVOLUTIONS = (
    "convolution.default",
    "_convolution.default",
    "_convolution.deprecated",
    "convolution_backward.default",
)
# Those whose rules ask for the CPU; a test looks for more in each version of PyTorch.
_BY_DEVICE = (
    "_batch_norm_with_update",
    "_embedding_bag",
    "_embedding_bag_forward_only",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training",
    "grid_sampler_3d",  # since 2.15
    "grid_sampler_3d_backward",
    "histc",
    "native_batch_norm",
    "native_group_norm",
    "native_layer_norm",
    "nonzero_static",
    "pixel_shuffle",
)


@contextmanager
def _as_on_cpu(tensors: list[FakeTensor]) -> Iterator[None]:
    devices = [tensor.fake_device for tensor in tensors]
    try:
        for tensor in tensors:
            tensor.fake_device = _CPU
        yield
    finally:
        for tensor, device in zip(tensors, devices, strict=True):
            tensor.fake_device = device


def _on_cpu(rule: Callable[..., Any], otherwise: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Wraps a rule for fake tensors: those of openreg are the CPU's while it runs, and its results are openreg's.

    `otherwise` is called where there are none of openreg: the rule, if None.
    """

    @functools.wraps(rule)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        leaves = tree_leaves((args, kwargs))
        ours = {id(t): t for t in leaves if isinstance(t, FakeTensor) and t.fake_device.type == _NAME}
        if not ours:
            return (otherwise or rule)(*args, **kwargs)
        tensors = list(ours.values())
        device = tensors[0].fake_device
        with _as_on_cpu(tensors):
            results = rule(*args, **kwargs)
        for result in tree_leaves(results):
            if isinstance(result, FakeTensor):
                result.fake_device = device
        return results

    wrapper._openreg = True  # type: ignore[attr-defined]
    return wrapper


def _usual_way(mode: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
    with mode:
        return operator(*args, **kwargs)


def _no_rule(*_args: Any, **_kwargs: Any) -> Any:
    return NotImplemented


def _unless_traced(decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """A decomposition that serves as a rule. Where it is traced its operators are the program's, and stay so."""
    as_rule = _on_cpu(decomposition)

    @functools.wraps(decomposition)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        from torch.fx.experimental.proxy_tensor import get_proxy_mode

        return (decomposition if get_proxy_mode() is not None else as_rule)(*args, **kwargs)

    wrapper._openreg = True  # type: ignore[attr-defined]
    return wrapper


def _with_index(make: Callable[..., Any]) -> Callable[..., Any]:
    """Puts the current device into the key under which a fake result is kept, where the call names no index."""

    @functools.wraps(make)
    def cache_key(self: Any, state: Any, func: Any, args: Any, kwargs: Any) -> Any:
        key = make(self, state, func, args, kwargs)
        given = (*(args or ()), *(kwargs or {}).values())
        if any(isinstance(each, torch.device) and each.type == _NAME and each.index is None for each in given):
            return type(key)((*key.key, _C._get_device()))
        return key

    cache_key._openreg = True  # type: ignore[attr-defined]
    return cache_key


def install() -> None:
    """Wraps PyTorch's rules for convolutions, adds rules where its usual way asks for the device, and mends its cache.

    Repeating it changes nothing.
    """
    if not hasattr(FakeTensorMode._cache_key, "_openreg"):
        FakeTensorMode._cache_key = _with_index(FakeTensorMode._cache_key)
    rules: dict[Any, Callable[..., Any]] = fake_impls.op_implementations_dict
    for operator, rule in list(rules.items()):
        name = str(operator).removeprefix("aten.")
        if name in _CONVOLUTIONS and not hasattr(rule, "_openreg"):
            rules[operator] = _on_cpu(rule)
    for name in _BY_DEVICE:
        packet = getattr(torch.ops.aten, name, None)
        for overload in packet.overloads() if packet is not None else ():
            operator = getattr(packet, overload)
            decomposition = decomposition_table.get(operator)
            if operator not in meta_table and decomposition is not None and not hasattr(decomposition, "_openreg"):
                decomposition_table[operator] = _unless_traced(decomposition)
            given = rules.get(operator)
            if given is None:
                rules[operator] = _on_cpu(_usual_way, otherwise=_no_rule)
            elif not hasattr(given, "_openreg"):
                rules[operator] = _on_cpu(given)
