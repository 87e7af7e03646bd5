# SPDX-License-Identifier: BSD-3-Clause
"""Says how the device is named here where a program uses another name of it: openreg, or one that a driver declares.

``torch.device()`` and ``torch.<name>`` have the hint in their error. A string elsewhere is refused by PyTorch in C++,
where nothing can be registered; the hint then comes where an uncaught error is printed.
"""

from __future__ import annotations

import functools
import re
import sys
from types import TracebackType
from typing import Any

import torch
from _torch_openreg_device_name import DEFAULT, VARIABLE, declared, device_name

from torch_openreg import _C

_REFUSED = re.compile(r"device string: '?([a-z_]+)(:\d+)?'?\s*$")
_installed = False


# Read once, as the device keeps its name: torch.compile asks torch for thousands of names that it hasn't.
_declared = functools.cache(declared)


def _hint(word: str) -> str | None:
    """What is to be said of a word that is no device's name here, or None."""
    name, others = device_name(), _declared()
    if word == name or word not in (DEFAULT, *others):
        return None
    is_same = f" (torch.{DEFAULT} is torch.{name})" if word == DEFAULT else ""
    if name == DEFAULT:
        listed = ", ".join(f"{other} ({source})" for other, source in sorted(others.items()))
        return f"hint: several drivers name the device, so it is '{name}' here: {listed}. Set {VARIABLE}={word}."
    return f"hint: the device is named '{name}' here{is_same}. Say device='{name}', or set {VARIABLE}={word}."


def hint_for(error: BaseException | None) -> str | None:
    """What is to be said of an error that has no hint yet, or None."""
    refused = _REFUSED.search(str(error)) if isinstance(error, RuntimeError) else None
    return None if refused is None else _hint(refused[1])


def install() -> None:
    """Adds the hints, unless the device is openreg and no driver wants another name. Repeating it changes nothing."""
    global _installed
    if _installed or (device_name() == DEFAULT and not _declared()):
        return
    _installed = True
    before, attribute = sys.excepthook, vars(torch)["__getattr__"]

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        before(kind, error, traceback)
        hint = hint_for(error)
        if hint is not None and sys.stderr is not None:
            print(hint, file=sys.stderr)

    @functools.wraps(attribute)
    def find(name: str) -> Any:
        try:
            return attribute(name)
        except AttributeError as error:
            hint = _hint(name)
            if hint is None:
                raise
            raise AttributeError(f"{error}\n{hint}", name=name, obj=torch) from None

    sys.excepthook = hook
    vars(torch)["__getattr__"] = find
    _C._hint_devices(torch.device, hint_for)
