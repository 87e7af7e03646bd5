# SPDX-License-Identifier: BSD-3-Clause
"""JSON files that describe a driver library, named by ``OPENREG_DRIVER_LIBRARIES=name:path.json,...``.

Such a file holds ``library_path``, relative to the file itself, and may hold ``create_options``: options for the
driver, of type str, int, float, bool or list of int. Items with another kind of path are the runtime's.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch_openreg import _C

_logger = logging.getLogger("torch_openreg")

VARIABLE = "OPENREG_DRIVER_LIBRARIES"
_OPTIONS = "create_options"
_OPTIONS_TOO = "create_option"


def _items() -> Iterator[tuple[str, Path]]:
    """Name and path of each JSON file in the variable."""
    for item in (_C._variable(VARIABLE) or "").split(","):
        name, _, path = item.strip().partition(":")
        if path.strip().lower().endswith(".json"):
            yield name.strip(), Path(path.strip())


def _options_in(manifest: dict[str, Any], path: Path) -> Any:
    if _OPTIONS in manifest and _OPTIONS_TOO in manifest:
        _logger.warning("'%s' has both '%s' and '%s'; the former is used.", path, _OPTIONS, _OPTIONS_TOO)
    options = manifest.get(_OPTIONS, manifest.get(_OPTIONS_TOO, {}))
    if not isinstance(options, dict):
        raise TypeError(f"'{_OPTIONS}' in '{path}' must be an object, but is {options!r}.")
    return options


def read(path: Path) -> tuple[Path, dict[str, Any]]:
    """Reads a file.

    Args:
        path: The file.

    Returns:
        Path of the library, and the options.

    Raises:
        OSError: The file can't be read.
        ValueError: It is no JSON, is nested too deeply, or has no "library_path".
        TypeError: Its options are no object.
    """
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError(f"'{path}' is nested too deeply.") from error
    if not isinstance(manifest, dict) or not isinstance(manifest.get("library_path"), str):
        raise ValueError(f"OpenReg plugin config file should contain \"library_path\" field. ('{path}')")
    return path.parent / manifest["library_path"], _options_in(manifest, path)


def register_all() -> None:
    """Registers the driver of each JSON file in the variable. One that fails is logged, and the others go on."""
    from torch_openreg.openreg.plugins import _register_plugin  # the package imports this module

    for name, path in _items():
        try:
            library, options = read(path)
            _register_plugin(name, library_path=library, options=options, source=VARIABLE)
        except Exception:
            _logger.exception("invalid value %s:%s in env var %s", name, path, VARIABLE)
