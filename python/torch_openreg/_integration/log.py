# SPDX-License-Identifier: BSD-3-Clause
"""Sends the runtime's log lines to ``logging.getLogger("torch_openreg")``.

The logger decides which lines are shown: ``logging.getLogger("torch_openreg").setLevel(logging.DEBUG)`` is enough. With
``OPENREG_LOG_LEVEL`` (debug, info, warning, error) a program that sets up no logging shows lines from that level on.
"""

from __future__ import annotations

import atexit
import logging

from torch_openreg import _C

_logger = logging.getLogger("torch_openreg")
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_installed = False


def _write(level: int, message: str) -> None:
    _logger.log(level, "%s", message)


def _follow_variable() -> None:
    """Shows what OPENREG_LOG_LEVEL asks for, unless the program says otherwise by a level or a handler of its own."""
    level = _LEVELS.get((_C._variable("OPENREG_LOG_LEVEL") or "").lower())
    if level is None or _logger.level != logging.NOTSET:
        return
    _logger.setLevel(level)
    if not _logger.hasHandlers():
        _logger.addHandler(logging.StreamHandler())


def install() -> None:
    """Connects the logger, until the interpreter ends. Repeating it changes nothing."""
    global _installed
    if not _installed:
        _installed = True
        _C._set_log_level(logging.DEBUG)  # the logger drops what it is not to show
        _follow_variable()
        _C._set_log_callback(_write)
        atexit.register(_C._set_log_callback, None)
