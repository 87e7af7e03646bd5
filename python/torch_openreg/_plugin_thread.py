# SPDX-License-Identifier: BSD-3-Clause
"""Whether the calling thread is inside of a plugin that is being initialised."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

_thread = threading.local()


def is_initializing() -> bool:
    """Whether discovery is calling a plugin's function in this thread."""
    return getattr(_thread, "is_initializing", False)


@contextlib.contextmanager
def initializing() -> Iterator[None]:
    """While a plugin's function is called."""
    _thread.is_initializing = True
    try:
        yield
    finally:
        _thread.is_initializing = False
