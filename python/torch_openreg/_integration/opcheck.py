# SPDX-License-Identifier: BSD-3-Clause
"""``torch.library.opcheck()`` of tensors on the device, which PyTorch's check of autograd registration doesn't know.

Imported when PyTorch has executed ``torch.testing._internal.optests.autograd_registration``.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from _torch_openreg_device_name import device_name
from torch.testing._internal.optests import autograd_registration
from torch.utils._pytree import tree_leaves

_KEYS = ("AutogradPrivateUse1", "Autograd", "CompositeImplicitAutograd")


def _tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]


def register() -> None:
    """Has the check of PyTorch answer for the device, too. Once."""
    known = autograd_registration.autograd_registration_check

    @functools.wraps(known)
    def check(op: Any, args: Any, kwargs: Any) -> None:
        given = _tensors((args, kwargs))
        needs_grad = any(tensor.requires_grad for tensor in given)
        if not needs_grad or all(tensor.device.type != device_name() for tensor in given):
            known(op, args, kwargs)
            return
        if any(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key) for key in _KEYS):
            return
        with autograd_registration.set_autograd_fallback_mode("nothing"):
            results = _tensors(op(*args, **kwargs))
        if any(result.requires_grad and all(result is not one for one in given) for result in results):
            raise AssertionError(
                f"{op.name()}: a result requires a gradient, but the operator has no kernel at an autograd key. "
                'Register its torch.autograd.Function with "Autograd", not with a device.'
            )

    autograd_registration.autograd_registration_check = check
