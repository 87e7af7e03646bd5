# SPDX-License-Identifier: BSD-3-Clause
"""The last calls of drivers: see docs/laboratory.md."""

from __future__ import annotations

import os

from torch_openreg import _C

__all__ = ["dump_flight_recorder", "record_flight"]


def record_flight(calls: int = 4096) -> None:
    """Keeps the last calls of drivers, and the operators, from now on; what was kept is forgotten.

    They are written when a call fails with an error of the device, and by :func:`dump_flight_recorder`. The variable
    ``OPENREG_FLIGHT_RECORDER=4096`` does the same from the start of a program, and writes them in a fatal signal too.

    Args:
        calls: How many, rounded up to a power of two; 0 ends it.

    Raises:
        TypeError: It is not an int.
        RuntimeError: More than 1048576.
    """
    _C._flight_recorder_start(calls)


def dump_flight_recorder(path: str | os.PathLike[str] | None = None) -> None:
    """Writes the calls that were kept, as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open.

    Args:
        path: The file. None: ``openreg_flight_recorder.<process>.json``, where errors are written, or what
            ``OPENREG_FLIGHT_RECORDER_FILE`` says instead of the first part.

    Raises:
        RuntimeError: Nothing is being recorded, or the file can't be written.
    """
    _C._flight_recorder_write(None if path is None else os.fspath(path))
