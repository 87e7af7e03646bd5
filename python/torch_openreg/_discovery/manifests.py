# SPDX-License-Identifier: BSD-3-Clause
"""JSON files that describe a driver library, named by ``OPENREG_DRIVER_LIBRARIES=name:path.json,...``.

Such a file holds ``library_path``, relative to the file itself, and may hold ``create_options``: options for the
driver, of type str, int, float, bool or list of int. The runtime reads the variable, and loads the other paths itself.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from _torch_openreg_device_name import shown

from torch_openreg import _C
from torch_openreg._discovery import registrations
from torch_openreg._discovery.files import read_text

_logger = logging.getLogger("torch_openreg")

VARIABLE = "OPENREG_DRIVER_LIBRARIES"
_OPTIONS = "create_options"
_OPTIONS_TOO = "create_option"


def _options_in(manifest: dict[str, Any], path: Path) -> Any:
    if _OPTIONS in manifest and _OPTIONS_TOO in manifest:
        _logger.warning("'%s' has both '%s' and '%s'; the former is used.", shown(path), _OPTIONS, _OPTIONS_TOO)
    options = manifest.get(_OPTIONS, manifest.get(_OPTIONS_TOO, {}))
    if not isinstance(options, dict):
        raise TypeError(f"'{_OPTIONS}' must be an object, but is {options!r}.")
    return options


def read(path: Path) -> tuple[Path, dict[str, Any]]:
    """Reads a file: the path of the library, and the options.

    Raises:
        OSError: The file can't be read.
        ValueError: It is no JSON, is nested too deeply, or has no "library_path".
        TypeError: Its options are no object.
    """
    try:
        manifest = json.loads(read_text(path))
    except RecursionError as error:
        raise ValueError(f"'{path}' is nested too deeply.") from error
    except ValueError as error:
        raise ValueError(f"'{path}' is not valid JSON: {type(error).__name__}: {error}") from error
    if not isinstance(manifest, dict) or not isinstance(manifest.get("library_path"), str):
        raise ValueError(f"OpenReg plugin config file should contain \"library_path\" field. ('{path}')")
    return path.parent / manifest["library_path"], _options_in(manifest, path)


def register_all() -> None:
    """Registers the driver of each JSON file in the variable.

    It was named for this run: what is wrong with one is the error of every selection, with the file's name.
    """
    for name, path in _C._driver_descriptions():
        try:
            library, options = read(Path(path))
            registrations.register_described(name, library, options, VARIABLE)
        except TypeError as error:
            registrations.register_failure(name, TypeError(f"'{path}': {error}"), VARIABLE)
        except (OSError, ValueError) as error:
            registrations.register_failure(name, error, VARIABLE)
