# SPDX-License-Identifier: BSD-3-Clause
"""Programs that a test runs to their end."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Program = Callable[..., "subprocess.CompletedProcess[str]"]
"""Runs code in a process of its own and returns the finished process: the fixture `python`, and those that add to it."""


def finished(
    command: Sequence[str | Path], *, status: int | None = 0, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Runs a program with `options` of subprocess.run(), and fails the test if it ends with another status than `status`."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert status is None or done.returncode == status, done.stdout[-8000:] + done.stderr[-8000:]
    return done
