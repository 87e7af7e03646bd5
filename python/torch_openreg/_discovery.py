# SPDX-License-Identifier: BSD-3-Clause
"""Finds drivers that are installed as Python packages, once per process, before the runtime looks at its drivers.

A plugin is a module in the namespace package ``torch_openreg_plugins``, or what an entry point of the group
``torch_openreg.drivers`` names: a module, or a function. A module's function ``initialize()``, or the function itself,
registers drivers (``torch.openreg.register_driver_plugin()``) and must not do more than that: it runs in every program
that uses openreg. A plugin that fails is logged, and the others go on.

Then come the JSON files of ``OPENREG_DRIVER_LIBRARIES``, which so override plugins, and the stored preference.

Everything runs under a lock that is taken before those of the runtime.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.metadata
import logging
import pkgutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from torch_openreg import _C, _after_fork, _manifests, _preferences, _process

_logger = logging.getLogger("torch_openreg")

NAMESPACE = "torch_openreg_plugins"
GROUP = "torch_openreg.drivers"
_FUNCTION = "initialize"
_SLOW_SECONDS = 1.0

_lock = threading.RLock()
_is_running = False  # only the owner of the lock sees True
_is_finished = False
_installed = False


@dataclass
class Plugin:
    """A plugin that was found.

    Attributes:
        module: Name of its module.
        function: Name of the function that registers its drivers.
        found_by: "namespace package" or "entry point".
        error: Why it failed, or "".
    """

    module: str
    function: str
    found_by: str
    error: str = ""


_plugins: dict[tuple[str, str], Plugin] = {}  # those that were tried


@_after_fork.in_child
def _remake_lock() -> None:
    global _lock, _is_running
    _lock = threading.RLock()
    _is_running = False


def found_plugins() -> list[Plugin]:
    """The plugins that discovery has tried, in order. Empty before it ran."""
    return list(_plugins.values())


def _namespace() -> ModuleType | None:
    try:
        return importlib.import_module(NAMESPACE)
    except ModuleNotFoundError as error:
        if error.name == NAMESPACE:
            _logger.debug("No %s namespace packages available", NAMESPACE)
        else:
            _logger.error("Failed to import %s: %s", NAMESPACE, error)
    except Exception as error:
        _logger.error("Failed to import %s: %s", NAMESPACE, error)
    return None


def _in_namespace() -> Iterator[Plugin]:
    package = _namespace()
    for module in pkgutil.iter_modules(package.__path__, NAMESPACE + ".") if package is not None else ():
        _logger.debug("Discovered path based torch_openreg plugin: %s", module.name)
        yield Plugin(module.name, _FUNCTION, "namespace package")


def _in_entry_points() -> Iterator[Plugin]:
    for entry in importlib.metadata.entry_points(group=GROUP):
        _logger.debug("Discovered entry-point based torch_openreg plugin: %s", entry.value)
        module, _, function = entry.value.partition("[")[0].strip().partition(":")
        yield Plugin(module.strip(), function.strip() or _FUNCTION, "entry point")


def _is_missing(error: ModuleNotFoundError, module: str) -> bool:
    """Whether it is the module itself, or a package that it is in, that does not exist."""
    return error.name is not None and (module + ".").startswith(error.name + ".")


def _import(plugin: Plugin) -> ModuleType | None:
    _logger.debug("Loading plugin module %s", plugin.module)
    try:
        return importlib.import_module(plugin.module)
    except Exception as error:
        plugin.error = f"{type(error).__name__}: {error}"
        if isinstance(error, ModuleNotFoundError) and _is_missing(error, plugin.module):
            _logger.warning("torch_openreg plugin configuration error: Plugin module %s does not exist", plugin.module)
        else:
            _logger.exception(
                "torch_openreg plugin configuration error: Plugin module %s could not be loaded", plugin.module
            )
    return None


def _resolve(module: ModuleType, function: str) -> Callable[[], Any]:
    target: Any = module
    for part in function.split("."):
        target = getattr(target, part)
    if isinstance(target, ModuleType):  # an entry point "package:module"
        target = getattr(target, _FUNCTION)
    return target


def _initialize(plugin: Plugin) -> None:
    module = _import(plugin)
    if module is None:
        return
    start = time.monotonic()
    try:
        _resolve(module, plugin.function)()
    except Exception as error:
        plugin.error = f"{type(error).__name__}: {error}"
        _logger.exception(
            "torch_openreg plugin configuration error: Exception when calling %s.%s()", plugin.module, plugin.function
        )
    seconds = time.monotonic() - start
    if seconds > _SLOW_SECONDS:
        _logger.debug("%s.%s() took %.1f s; it should only register", plugin.module, plugin.function, seconds)


def _load_plugins() -> None:
    found: dict[tuple[str, str], Plugin] = {}
    for plugin in (*_in_namespace(), *_in_entry_points()):
        found.setdefault((plugin.module, plugin.function), plugin)
    for key in sorted(found):
        if key not in _plugins:  # Ctrl-C may have ended an earlier attempt
            _plugins[key] = found[key]
            _initialize(found[key])


def known_drivers() -> list[dict[str, Any]]:
    """The record of each driver that is known so far, by preference. Opens nothing."""
    records = [record for record in _C._driver_records() if record["state"] != "shadowed"]
    return sorted(records, key=lambda record: -record["priority"])  # stable: equal ones stay in order of age


def _hand_over_preference() -> None:
    name = _preferences.snapshot()
    try:
        _C._prefer_driver(name)
    except RuntimeError:  # no name at all; of one that nobody knows the runtime says so itself
        valid = tuple(record["name"] for record in known_drivers())
        _logger.warning("driver '%s' set via preferences is not a valid driver. Valid drivers are %s", name, valid)


def is_finished() -> bool:
    """Whether discovery has run to its end."""
    return _is_finished


def discover() -> bool:
    """Registers what is found, unless that has been done. Other threads wait until it has.

    Returns:
        Whether it is done: False inside of discovery itself, and in a process that can't use devices after a fork().
    """
    global _is_running, _is_finished
    if _is_finished:
        return True
    if _C._isInBadFork():
        return False
    with _lock:
        if _is_finished or _is_running:
            return _is_finished
        _is_running = True
        try:
            _load_plugins()
            _manifests.register_all()
            _hand_over_preference()
            _process.tell_runtime()
            _is_finished = True
        finally:
            _is_running = False
    return _is_finished


def install() -> None:
    """Makes the runtime call discover() by itself, until the interpreter ends. Repeating it changes nothing."""
    global _installed
    if not _installed:
        _installed = True
        _C._set_discovery(discover)
        atexit.register(_C._set_discovery, None)
