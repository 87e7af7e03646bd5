# SPDX-License-Identifier: BSD-3-Clause
"""The command ``openreg-check`` of an installed package: runs the C program of that name.

A module of its own, so that the command works, and is quick, where torch or the package's import is what is broken.
"""

from __future__ import annotations

from _openreg_info import run


def main() -> None:
    """Replaces this process by the C program."""
    run("openreg-check")
