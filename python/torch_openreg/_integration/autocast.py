# SPDX-License-Identifier: BSD-3-Clause
"""Autocast where PyTorch has it for the devices of a list of its own.

``torch.is_autocast_enabled()`` without a device answers for CUDA alone; by that PyTorch's attention and transformer
layers choose kernels that autocast doesn't reach. And ``torch.cond()`` and its like have no kernel under autocast.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from _torch_openreg_device_name import device_name

from torch_openreg._integration import higher_order

_MARK = "_of_openreg"


def install() -> None:
    """Replaces the function, and has higher-order operators call what is below autocast. Repeating changes nothing."""
    real: Any = torch.is_autocast_enabled
    if hasattr(real, _MARK):
        return

    @functools.wraps(real)
    def is_autocast_enabled(*arguments: Any, **keywords: Any) -> bool:
        return bool(real(*arguments, **keywords)) or (not arguments and not keywords and bool(real(device_name())))

    setattr(is_autocast_enabled, _MARK, True)
    is_autocast_enabled._dynamo_marked_constant = True  # type: ignore[attr-defined]  # its guards see changes
    operator = torch.jit._builtins._builtin_table and torch.jit._builtins._find_builtin(real)
    if operator is not None:  # TorchScript knows functions by identity, those that torch has when it is first used
        torch.jit._builtins._register_builtin(is_autocast_enabled, operator)
    torch.is_autocast_enabled = is_autocast_enabled
    higher_order.pass_over(torch._C._dispatch_key_parse("AutocastPrivateUse1"))
