# SPDX-License-Identifier: BSD-3-Clause
"""Makes fake tensors of openreg come out of a convolution as real ones do: in the memory format of the CPU's kernels.

Convolutions run as the CPU's (docs/operators.md). PyTorch takes every device of this kind for one that computes in
contiguous memory, and torch.compile would then trace a view of a result that has none.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

_NAME = "openreg"
_CPU = torch.device("cpu")
_OPERATORS = ("convolution.default", "_convolution.default", "_convolution.deprecated", "convolution_backward.default")


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


def _on_cpu(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a rule for fake tensors: those of openreg are the CPU's while it runs, and its results are openreg's."""

    @functools.wraps(rule)
    def wrapper(mode: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
        leaves = tree_leaves((args, kwargs))
        ours = {id(t): t for t in leaves if isinstance(t, FakeTensor) and t.fake_device.type == _NAME}
        if not ours:
            return rule(mode, operator, *args, **kwargs)
        tensors = list(ours.values())
        device = tensors[0].fake_device
        with _as_on_cpu(tensors):
            results = rule(mode, operator, *args, **kwargs)
        for result in tree_leaves(results):
            if isinstance(result, FakeTensor):
                result.fake_device = device
        return results

    wrapper._openreg = True  # type: ignore[attr-defined]
    return wrapper


def install() -> None:
    """Wraps PyTorch's rules for convolutions. Repeating it changes nothing."""
    rules: dict[Any, Callable[..., Any]] = fake_impls.op_implementations_dict
    for operator, rule in list(rules.items()):
        name = str(operator).removeprefix("aten.")
        if name in _OPERATORS and not hasattr(rule, "_openreg"):
            rules[operator] = _on_cpu(rule)
