# SPDX-License-Identifier: BSD-3-Clause
"""Follows PyTorch's error for ``device="openreg"`` by a hint, where the device has a vendor's name.

PyTorch refuses the string in C++, where nothing can be registered; the hint comes where an uncaught error is printed.
"""

from __future__ import annotations

import re
import sys
from types import TracebackType

from _torch_openreg_device_name import DEFAULT, VARIABLE, device_name

_REFUSED = re.compile(rf"device string: '?{DEFAULT}(:\d+)?'?\b")
_installed = False


def hint_for(error: BaseException | None) -> str | None:
    """What is to be said of an error, or None.

    Args:
        error: The error.
    """
    if not isinstance(error, RuntimeError) or _REFUSED.search(str(error)) is None:
        return None
    name = device_name()
    return (
        f"hint: the device is named '{name}' here (torch.{DEFAULT} is torch.{name}). Say device='{name}', or set "
        f"{VARIABLE}={DEFAULT}."
    )


def install() -> None:
    """Wraps ``sys.excepthook`` unless the device is named openreg. Repeating it changes nothing."""
    global _installed
    if _installed or device_name() == DEFAULT:
        return
    _installed = True
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        before(kind, error, traceback)
        hint = hint_for(error)
        if hint is not None and sys.stderr is not None:
            print(hint, file=sys.stderr)

    sys.excepthook = hook
