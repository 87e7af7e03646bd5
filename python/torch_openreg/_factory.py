# SPDX-License-Identifier: BSD-3-Clause
"""Whether the calling thread runs a driver's factory."""

from __future__ import annotations

import threading


class _ThreadState(threading.local):
    """Of the calling thread."""

    in_factory = False  # another thread may be waiting for the factory while it holds a lock


thread = _ThreadState()
