# SPDX-License-Identifier: BSD-3-Clause
"""The command ``openreg-check`` of an installed package: runs the C program of that name.

A module of its own, so that the command works, and is quick, where torch or the package's import is what is broken.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec


def main() -> None:
    """Replaces this process by the C program."""
    spec = find_spec("torch_openreg")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("openreg-check: the package torch_openreg is not installed")
    program = os.path.join(spec.submodule_search_locations[0], "bin", "openreg-check")
    try:
        os.execv(program, [program, *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"openreg-check: {program}: {error.strerror}")
