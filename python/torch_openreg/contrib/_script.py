# SPDX-License-Identifier: BSD-3-Clause
"""Runs a script that imports no connection: ``python -m torch_openreg.contrib.NAME [-m module | script.py] ...``."""

from __future__ import annotations

import importlib
import os
import runpy
import sys
from typing import Any


def main(spec: Any) -> None:
    """Imports a module of this package, which switches it on, and runs a script or a module with its arguments.

    Args:
        spec: ``__spec__`` of the module that was run as a program.

    Raises:
        SystemExit: 2 without a script.
    """
    words = sys.argv[1:]
    is_module = words[:1] == ["-m"]
    if len(words) < 1 + is_module or words[0] in ("-h", "--help"):
        print(f"Usage: python -m {spec.name} [-m module | script.py] arguments ...", file=sys.stderr)
        raise SystemExit(2)
    importlib.import_module(spec.name)
    sys.argv = words[is_module:]
    if is_module:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
        runpy.run_path(sys.argv[0], run_name="__main__")
