# SPDX-License-Identifier: BSD-3-Clause
"""What the calling thread runs for others just now: a driver's factory, or the function of a plugin."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class _ThreadState(threading.local):
    """Of the calling thread."""

    in_factory = False  # another thread may be waiting for the factory while it holds a lock
    in_plugin = False  # discovery is calling its function


thread = _ThreadState()


@contextlib.contextmanager
def during(what: str) -> Iterator[None]:
    """While a driver's factory ("in_factory") or a plugin's function ("in_plugin") is called."""
    outer = getattr(thread, what)
    setattr(thread, what, True)
    try:
        yield
    finally:
        setattr(thread, what, outer)
