# SPDX-License-Identifier: BSD-3-Clause
"""What else a tensor can be: the tensors of a sample as ZeroTensors, conjugated, negated, expanded and empty ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

Change = Callable[[torch.Tensor], torch.Tensor]


def _zero(tensor: torch.Tensor) -> torch.Tensor:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor  # autograd makes them of what has gradients
    return torch._efficientzerotensor(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def _conjugated(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.conj().resolve_conj().conj() if tensor.is_complex() else tensor


def _negated(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dtype == torch.bool else torch._neg_view(torch.neg(tensor))


def _expanded(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[:1].expand(tensor.shape) if tensor.dim() > 0 and tensor.shape[0] > 1 else tensor


def _empty(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[:0] if tensor.dim() > 0 else tensor


KINDS: dict[str, Change] = {
    "zero": _zero,
    "conjugated": _conjugated,
    "negated": _negated,
    "expanded": _expanded,
    "empty": _empty,
}
"""By the name that ``run.py --kind`` takes."""

UNDEFINED = {
    ("zero", "op/masked.median"),  # reads memory that nothing has written: each call on the CPU gives another number
}
"""Kinds and operators for which the CPU's own result is undefined."""


def changed(kind: str, value: Any) -> Any:
    """`value` with every dense tensor in it of that kind; gradients are wanted as before."""

    def leaf(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout != torch.strided or tensor.is_nested:
            return tensor
        with torch.no_grad():
            made = KINDS[kind](tensor.detach())
        return made.requires_grad_(tensor.requires_grad)

    return tree_map_only(torch.Tensor, leaf, value)
