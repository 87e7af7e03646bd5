# SPDX-License-Identifier: BSD-3-Clause
"""FlexAttention: PyTorch lets no device use it that isn't in a list of its own. Imported after its module.

Its own formulation in plain operators, forward and backward, is for each device; flex_attention_lowering.py has that
compiled by Inductor.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.attention.flex_attention as public
from _torch_openreg_device_name import device_name
from torch._C import DispatchKeySet
from torch._higher_order_ops.flex_attention import _flex_attention_autocast_impl, flex_attention

_NAME = device_name()


def register() -> None:
    """Extends PyTorch's functions. Once in a process."""
    module: Any = public
    validate = module._validate_device
    forward: Any = flex_attention
    autocast = torch._C._dispatch_key_parse("AutocastPrivateUse1")

    def validate_device(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        if query.device.type != _NAME:  # which is traced: device_name() has a cache
            validate(query, key, value)

    @forward.py_impl(autocast)  # type: ignore[untyped-decorator]
    def in_autocasts_type(*arguments: Any) -> Any:
        buffers = ((), ())[len(arguments) - 7 :]  # the last two may be absent: of score_mod and of mask_mod
        with torch._C._ExcludeDispatchKeyGuard(DispatchKeySet(autocast)):
            return _flex_attention_autocast_impl(*arguments, *buffers)

    module._validate_device = validate_device
