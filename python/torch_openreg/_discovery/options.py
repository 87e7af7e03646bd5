# SPDX-License-Identifier: BSD-3-Clause
"""Options of a driver: from Python values to the texts that a driver gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def _as_text(key: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, list) and all(isinstance(item, int) and not isinstance(item, bool) for item in value):
        return ",".join(str(item) for item in value)
    raise TypeError(
        f"The option '{key}' must be a str, int, float, bool or list of int, but is {type(value).__name__}: {value!r}."
    )


def options_as_text(options: Mapping[str, Any] | None) -> dict[str, str]:
    """Writes options as a driver reads them, texts by key: a list as "3,1", a bool as "1" or "0".

    Raises:
        TypeError: A key is no str, or a value of another type; the text names the key.
    """
    texts = {}
    for key, value in (options or {}).items():
        if not isinstance(key, str):
            raise TypeError(f"The key of an option must be a str, but is {type(key).__name__}: {key!r}.")
        texts[key] = _as_text(key, value)
    return texts
