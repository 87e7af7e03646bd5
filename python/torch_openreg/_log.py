# SPDX-License-Identifier: BSD-3-Clause
"""Sends the runtime's log lines to ``logging.getLogger("torch_openreg")``.

Which lines the runtime writes at all is set by ``OPENREG_LOG_LEVEL`` (debug, info, warning, error; default warning).
"""

from __future__ import annotations

import atexit
import logging

from torch_openreg import _C

_logger = logging.getLogger("torch_openreg")
_installed = False


def _write(level: int, message: str) -> None:
    _logger.log(level, "%s", message)


def install() -> None:
    """Connects the logger, until the interpreter ends. Repeating it changes nothing."""
    global _installed
    if not _installed:
        _installed = True
        _C._set_log_callback(_write)
        atexit.register(_C._set_log_callback, None)
