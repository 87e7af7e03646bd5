# SPDX-License-Identifier: BSD-3-Clause
"""Programs of the checkout that no package holds, as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def load(file: str) -> ModuleType:
    """The module of a Python file, whose path begins at the checkout's folder."""
    path = Path(__file__).resolve().parents[2] / file
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
