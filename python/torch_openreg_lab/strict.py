# SPDX-License-Identifier: BSD-3-Clause
"""``--openreg-strict``: finds code that implicitly makes a GPU's host wait, or copies to it.

While a test runs these are errors in the code under test:

- operators that would run staged, over copies on the host (the policy of ``OPENREG_OPERATORS_POLICY``);
- operators whose result's size the host must know: ``nonzero``, ``masked_select``, ``unique``;
- an index of bool, which is a ``nonzero``, and an index on the CPU, which is copied to the device;
- ``bool(x)``, ``int(x)``, ``float(x)``, ``complex(x)`` and ``range(x)``, which copy an element and wait for it.

The last two are found by methods of ``torch.Tensor`` that are replaced for as long, and are allowed in the test's own
file, in conftest.py and in ``torch.testing``: a test must look at results. ``item()``, ``tolist()``, ``cpu()`` and
``to("cpu")`` say what they do, and are allowed everywhere.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from _torch_openreg_device_name import device_name

from torch_openreg import openreg
from torch_openreg.contrib._replacements import Replacements

_SIZED_BY_DATA = ("nonzero", "masked_select", "_unique", "_unique2", "unique_dim", "unique_consecutive")
_CONVERSIONS = ("__bool__", "__int__", "__float__", "__complex__", "__index__")
_TESTING = os.path.join(os.path.dirname(torch.__file__), "testing") + os.sep


class HiddenCopyError(RuntimeError):
    """Code under test waits for the device, or copies to the host, without saying so."""


def _is_allowed(test_file: str) -> bool:
    """Whether the caller of a replaced method may look at results."""
    file = sys._getframe(2).f_code.co_filename
    return file == test_file or os.path.basename(file) == "conftest.py" or file.startswith(_TESTING)


def _is_on_device(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == device_name()


def _conversion(real: Callable[..., Any], name: str, test_file: str) -> Callable[..., Any]:
    what = name.strip("_")

    @functools.wraps(real)
    def checked(self: torch.Tensor) -> Any:
        if _is_on_device(self) and not _is_allowed(test_file):
            raise HiddenCopyError(
                f"{what}() of a tensor on {self.device} copies it to the host and waits for the device; item() says so."
            )
        return real(self)

    return checked


def _hidden_copy(index: Any, device: torch.device) -> str | None:
    for part in index if isinstance(index, tuple) else (index,):
        if isinstance(part, torch.Tensor) and part.dtype in (torch.bool, torch.uint8) and part.dim() > 0:
            return "an index of bool, whose number of hits the host must know; torch.where() and masks multiply"
        if isinstance(part, torch.Tensor) and part.device.type == "cpu" and part.dim() > 0:
            return f"an index on the CPU, which is copied to {device} each time"
    return None


def _indexing(real: Callable[..., Any], test_file: str) -> Callable[..., Any]:
    @functools.wraps(real)
    def checked(self: torch.Tensor, index: Any, *value: Any) -> Any:
        if _is_on_device(self) and not _is_allowed(test_file):
            found = _hidden_copy(index, self.device)
            if found is not None:
                raise HiddenCopyError(f"A tensor on {self.device} has {found}.")
        return real(self, index, *value)

    return checked


@contextmanager
def hidden_copies_are_errors(test_file: str) -> Iterator[None]:
    """Context manager around a test.

    Args:
        test_file: Where the test is: what that file does with results is allowed.
    """
    replaced = Replacements()
    try:
        for name in _CONVERSIONS:
            replaced.set(torch.Tensor, name, _conversion(getattr(torch.Tensor, name), name, test_file))
        for name in ("__getitem__", "__setitem__"):
            replaced.set(torch.Tensor, name, _indexing(getattr(torch.Tensor, name), test_file))
        operators = [f"aten::{name}" for name in _SIZED_BY_DATA]
        with openreg.operator_policy("forbid", mode="aliased", operators=operators):
            yield
    finally:
        replaced.take_back()
