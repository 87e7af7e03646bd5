# SPDX-License-Identifier: BSD-3-Clause
"""Automatic mixed precision on the device."""

from __future__ import annotations

from typing import Any

import torch
from _torch_openreg_device_name import device_name
from torch.amp import custom_bwd as _custom_bwd
from torch.amp import custom_fwd as _custom_fwd

_NAME = device_name()


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Returns the types that ``torch.autocast()`` of the device may lower to."""
    return [torch.float16, torch.bfloat16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Returns whether torch.bfloat16 tensors work.

    Args:
        including_emulation: As in torch.cuda; makes no difference here.
    """
    return True


class autocast(torch.amp.autocast_mode.autocast):
    """``torch.autocast()`` with this device type.

    Args:
        enabled: Whether it has an effect.
        dtype: torch.bfloat16 or torch.float16.
        cache_enabled: Whether casts of parameters are kept inside the region.
    """

    def __init__(self, enabled: bool = True, dtype: torch.dtype = torch.bfloat16, cache_enabled: bool = True) -> None:
        super().__init__(_NAME, enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """``torch.amp.GradScaler()`` with this device type.

    Args:
        init_scale: The scale at first.
        growth_factor: By what it is multiplied after `growth_interval` steps without inf or NaN.
        backoff_factor: By what it is multiplied after a step with inf or NaN.
        growth_interval: Number of steps.
        enabled: Whether it has an effect.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        super().__init__(_NAME, init_scale, growth_factor, backoff_factor, growth_interval, enabled)


def custom_fwd(fwd: Any = None, *, cast_inputs: torch.dtype | None = None) -> Any:
    """``torch.amp.custom_fwd()`` with this device type, for ``forward`` of an autograd function.

    Args:
        fwd: The function; without it a decorator is returned.
        cast_inputs: Type to which floating-point inputs on the device are cast under autocast; None: they are not.
    """
    return _custom_fwd(fwd, device_type=_NAME, cast_inputs=cast_inputs)


def custom_bwd(bwd: Any = None) -> Any:
    """``torch.amp.custom_bwd()`` with this device type, for ``backward`` of an autograd function; a decorator, too."""
    return _custom_bwd(bwd, device_type=_NAME)
