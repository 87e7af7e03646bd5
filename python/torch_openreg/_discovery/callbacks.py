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
def in_factory() -> Iterator[None]:
    """While a driver's factory is called."""
    outer = thread.in_factory
    thread.in_factory = True
    try:
        yield
    finally:
        thread.in_factory = outer


@contextlib.contextmanager
def in_plugin() -> Iterator[None]:
    """While a plugin's function is called."""
    thread.in_plugin = True
    try:
        yield
    finally:
        thread.in_plugin = False
