# SPDX-License-Identifier: BSD-3-Clause
"""Gives a function that creates tensors its device, before its own code runs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from torch_openreg.openreg.defaults import default_device

_P = ParamSpec("_P")
_R = TypeVar("_R")

# Not touched at all: they make no tensor.
NON_WRAPPED_FUNCTIONS = frozenset({"Generator"})
# They get `device` as the caller gave it, and call default_device() themselves: their data are on the host, whatever
# tensors are among the arguments.
NON_DEV_WRAPPED_FUNCTIONS = frozenset({"from_buffer", "from_numpy"})


def handle_device(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorates a function with a keyword-only argument ``device``: it always receives a torch.device with an index.

    The three rules of ``default_device()`` decide which, over the positional arguments first, then the others.
    """
    if function.__name__ in NON_WRAPPED_FUNCTIONS | NON_DEV_WRAPPED_FUNCTIONS:
        return function

    @functools.wraps(function)
    def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        others = {name: value for name, value in kwargs.items() if name != "device"}
        kwargs["device"] = default_device(kwargs.get("device"), item=(args, others))
        return function(*args, **kwargs)

    return wrapper
