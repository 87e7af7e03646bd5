# SPDX-License-Identifier: BSD-3-Clause
"""What the runtime is given of a driver that comes from outside: a C table, a library, or a function that makes one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch_openreg import _C
from torch_openreg._discovery import callbacks
from torch_openreg._discovery.options import options_as_text

PLUGIN_PRIORITY = 400

# What factories returned that describe their devices in Python, by driver.
descriptions: dict[str, Any] = {}


@dataclass(frozen=True)
class DriverRegistration:
    """A registered driver.

    Attributes:
        name: Its name.
        factory: The function that makes it, or None.
        priority: The driver of highest priority that works is chosen.
        fail_quietly: A failure is remembered, and other drivers are tried. Else it is an error.
        experimental: A warning is logged when the driver is opened.
        library_path: Path of its library, or "".
        c_api: Address or capsule of its C table, or None.
        options: What it is opened with.
    """

    name: str
    factory: Callable[[], Any] | None = None
    priority: int = 0
    fail_quietly: bool = False
    experimental: bool = False
    library_path: str = ""
    c_api: Any = None
    options: Mapping[str, str] = field(default_factory=dict)


def register(
    registration: DriverRegistration, source: str | None = None, *, keep_failed: bool = False, named: bool = False
) -> DriverRegistration:
    """Hands a registration to the runtime; `source` says in messages where it comes from.

    With `keep_failed` a library that can't be loaded is no error here: the driver is known as a failed one. With
    `named` somebody has named it for this run: each failure is an error.

    Raises:
        RuntimeError: The runtime refuses it.
    """
    _C._register_driver(
        registration.name,
        source,
        table=registration.c_api,
        library_path=registration.library_path or None,
        factory=None if registration.factory is None else _guarded(registration.name, registration.factory),
        options=dict(registration.options),
        priority=registration.priority,
        required=not registration.fail_quietly,
        experimental=registration.experimental,
        keep_failed=keep_failed,
        named=named,
    )
    return registration


def _guarded(name: str, factory: Callable[[], Any]) -> Callable[[], Any]:
    """A factory that remembers what describes its devices, and can't wait for what waits for it."""

    def call() -> Any:
        with callbacks.during("in_factory"):
            found = factory()
        if hasattr(found, "device_count"):
            descriptions[name] = found
        else:
            descriptions.pop(name, None)
        return found

    return call


def register_described(name: str, library: os.PathLike[str], options: Mapping[str, Any], source: str) -> None:
    """Registers the library of a JSON file that a variable names. What is wrong with it every selection reports."""
    registration = DriverRegistration(
        name, priority=PLUGIN_PRIORITY, library_path=os.fspath(library), options=options_as_text(options)
    )
    register(registration, source, keep_failed=True, named=True)


def register_failure(name: str, failure: Exception, source: str) -> None:
    """Registers a driver that a variable names and that can't be made, so that every selection reports why."""

    def fail() -> None:
        raise failure

    register(DriverRegistration(name, fail, PLUGIN_PRIORITY), source, named=True)
