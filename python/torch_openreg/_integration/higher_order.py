# SPDX-License-Identifier: BSD-3-Clause
"""Dispatch keys that higher-order operators, as ``torch.cond()``, have no kernel for: they call what is below."""

from __future__ import annotations

import torch


def pass_over(key: torch._C.DispatchKey) -> None:
    """Has the operators that there are, and those that will be defined, pass over a key.

    Args:
        key: A dispatch key.
    """
    torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS.append(key)
    for operator in torch._ops._higher_order_ops.values():
        operator.fallthrough(key)
