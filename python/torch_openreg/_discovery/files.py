# SPDX-License-Identifier: BSD-3-Clause
"""Reads small files that users write, whose names come from a variable or are looked for in the current folder."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_MOST_BYTES = 1 << 20


def read_text(path: Path) -> str:
    """Reads a file of at most 1 MiB, or a device such as ``/dev/null``; line ends stay as they are. Never waits.

    Args:
        path: The file, or a link to it.

    Raises:
        OSError: It can't be read, is a FIFO, a socket or a folder, or is larger.
        UnicodeDecodeError: It is not UTF-8.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        kind = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(kind) and not stat.S_ISCHR(kind):
            raise OSError(f"'{path}' is not a regular file")
        content = file.read(_MOST_BYTES + 1)
    if content is None:  # a terminal
        raise OSError(f"'{path}' has nothing to read")
    if len(content) > _MOST_BYTES:
        raise OSError(f"'{path}' is larger than {_MOST_BYTES} bytes")
    return content.decode("utf-8")
