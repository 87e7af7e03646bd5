"""Automatic mixed precision on openreg."""

from __future__ import annotations

from typing import Any

import torch


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Returns the types that ``torch.autocast("openreg")`` may lower to."""
    return [torch.float16, torch.bfloat16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Returns whether torch.bfloat16 tensors work.

    Args:
        including_emulation: As in torch.cuda; makes no difference here.
    """
    return True


class autocast(torch.amp.autocast_mode.autocast):
    """``torch.autocast("openreg", ...)``.

    Args:
        enabled: Whether it has an effect.
        dtype: torch.bfloat16 or torch.float16.
        cache_enabled: Whether casts of parameters are kept inside the region.
    """

    def __init__(self, enabled: bool = True, dtype: torch.dtype = torch.bfloat16, cache_enabled: bool = True) -> None:
        super().__init__("openreg", enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)

    def __enter__(self) -> Any:
        return super().__enter__()

    def __exit__(self, *exc_info: Any) -> Any:
        return super().__exit__(*exc_info)

    def __call__(self, func: Any) -> Any:  # noqa: D102
        return super().__call__(func)
