# SPDX-License-Identifier: BSD-3-Clause
"""The command ``openreg-info`` of an installed package: runs the C program of that name.

A module of its own, so that the command works, and is quick, where torch or the package's import is what is broken.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import NoReturn


def run(name: str) -> NoReturn:
    """Replaces this process by a C program of the package."""
    spec = find_spec("torch_openreg")
    if spec is None or not spec.submodule_search_locations:
        sys.exit(f"{name}: the package torch_openreg is not installed")
    program = os.path.join(spec.submodule_search_locations[0], "bin", name)
    try:
        os.execv(program, [program, *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"{name}: {program}: {error.strerror}")


def main() -> None:
    """Runs ``openreg-info``."""
    run("openreg-info")
