# SPDX-License-Identifier: BSD-3-Clause
"""Finds drivers that are installed as Python packages, once per process, before the runtime looks at its drivers.

A plugin is a module in the namespace package ``torch_openreg_plugins``, or what an entry point of the group
``torch_openreg.drivers`` names: a module, or a function. A module's function ``initialize()``, or the function itself,
registers drivers (``torch.openreg.register_driver_plugin()``) and must not do more than that: it runs in every program
that uses the device. A plugin that fails is logged, and the others go on.

Then come the JSON files of ``OPENREG_DRIVER_LIBRARIES``, which so override plugins, and the stored preference.

No lock is held while a plugin's module is imported: another thread may be importing it just then, hold Python's lock of
that module, and ask for devices. Its function is called under a lock, once; a thread that is in the middle of an import
waits for that only for a while, since what the function imports may be what this thread is importing.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import importlib.metadata
import logging
import pkgutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Any

from _torch_openreg_device_name import shown

from torch_openreg import _C, _after_fork
from torch_openreg._discovery import callbacks, manifests, preferences, process, variables

_logger = logging.getLogger("torch_openreg")

NAMESPACE = "torch_openreg_plugins"
GROUP = "torch_openreg.drivers"
_FUNCTION = "initialize"
_SLOW_SECONDS = 1.0
_PATIENCE_SECONDS = 10.0  # of a thread that is in the middle of an import

_lock = threading.RLock()  # of what follows; held while a plugin's function is called
_is_finished = False
_installed = False
_thread = threading.local()  # is_discovering
_after_fork.renew(globals(), _lock=threading.RLock, _thread=threading.local)


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


def found_plugins() -> list[Plugin]:
    """The plugins that discovery has tried, in order. Empty before it ran."""
    return list(_plugins.values())


def _namespace() -> ModuleType | None:
    try:
        return importlib.import_module(NAMESPACE)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == NAMESPACE:
            _logger.debug("No %s namespace packages available", NAMESPACE)
        else:
            _logger.error("Failed to import %s: %s", NAMESPACE, shown(error))
    return None


def _in_namespace() -> Iterator[Plugin]:
    package = _namespace()
    for module in pkgutil.iter_modules(package.__path__, NAMESPACE + ".") if package is not None else ():
        _logger.debug("Discovered path based torch_openreg plugin: %s", shown(module.name))
        yield Plugin(module.name, _FUNCTION, "namespace package")


def _in_entry_points() -> Iterator[Plugin]:
    for entry in importlib.metadata.entry_points(group=GROUP):
        _logger.debug("Discovered entry-point based torch_openreg plugin: %s", shown(entry.value))
        module, _, function = entry.value.partition("[")[0].strip().partition(":")
        yield Plugin(module.strip(), function.strip() or _FUNCTION, "entry point")


def _is_missing(error: ModuleNotFoundError, module: str) -> bool:
    """Whether it is the module itself, or a package that it is in, that does not exist."""
    return error.name is not None and (module + ".").startswith(error.name + ".")


class _BeingImported(Exception):
    """This very thread is importing the plugin's module: it can't be called yet."""


def _import(plugin: Plugin) -> ModuleType | Exception:
    """The plugin's module, or why it can't be imported. Without a lock held."""
    try:
        module = importlib.import_module(plugin.module)
    except Exception as error:
        return error
    if getattr(module.__spec__, "_initializing", False):
        raise _BeingImported
    return module


def _tell_of_import(plugin: Plugin, error: Exception) -> None:
    plugin.error, name = f"{type(error).__name__}: {error}", shown(plugin.module)
    if isinstance(error, ModuleNotFoundError) and _is_missing(error, plugin.module):
        _logger.warning("torch_openreg plugin configuration error: Plugin module %s does not exist", name)
    else:
        text = "torch_openreg plugin configuration error: Plugin module %s could not be loaded"
        _logger.error(text, name, exc_info=error)


def _resolve(module: ModuleType, function: str) -> Callable[[], Any]:
    target: Any = module
    for part in function.split("."):
        target = getattr(target, part)
    if isinstance(target, ModuleType):  # an entry point "package:module"
        target = getattr(target, _FUNCTION)
    return target


def _initialize(plugin: Plugin, module: ModuleType) -> None:
    start, name = time.monotonic(), shown(f"{plugin.module}.{plugin.function}")
    try:
        with callbacks.during("in_plugin"):
            _resolve(module, plugin.function)()
    except Exception as error:
        plugin.error = f"{type(error).__name__}: {error}"
        _logger.exception("torch_openreg plugin configuration error: Exception when calling %s()", name)
    seconds = time.monotonic() - start
    if seconds > _SLOW_SECONDS:
        _logger.debug("%s() took %.1f s; it should only register", name, seconds)


def _is_importing() -> bool:
    """Whether the calling thread is in the middle of an import, and so holds Python's lock of a module."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == "importlib._bootstrap":
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def _locked() -> Iterator[bool]:
    """Holds the lock. False: it can't be had in time, by a thread that another one may be waiting for."""
    if not _lock.acquire(timeout=_PATIENCE_SECONDS if _is_importing() else -1):
        _logger.warning("Drivers are looked for in another thread, which takes long: an import goes on without them.")
        yield False
        return
    try:
        yield True
    finally:
        _lock.release()


def _find_plugins() -> list[Plugin]:
    found: dict[tuple[str, str], Plugin] = {}
    for plugin in (*_in_namespace(), *_in_entry_points()):
        found.setdefault((plugin.module, plugin.function), plugin)
    return [found[key] for key in sorted(found)]


def _load(plugin: Plugin) -> bool:
    """Imports a plugin and calls its function, unless that has been done. Returns whether it has."""
    key = plugin.module, plugin.function
    if key in _plugins:
        with _locked() as has_lock:  # another thread may be calling it
            return has_lock
    _logger.debug("Loading plugin module %s", shown(plugin.module))
    module = _import(plugin)
    with _locked() as has_lock:
        if has_lock and key not in _plugins:
            _plugins[key] = plugin  # first: after Ctrl-C it isn't called again
            if isinstance(module, Exception):
                _tell_of_import(plugin, module)
            else:
                _initialize(plugin, module)
            if plugin.error:
                _C._note_plugin_failure(shown(plugin.module), shown(plugin.error))
        return has_lock


def known_drivers() -> list[dict[str, Any]]:
    """The record of each driver that is known so far, by preference. Opens nothing."""
    records = [record for record in _C._driver_records() if record["state"] != "shadowed"]
    return sorted(records, key=lambda record: -record["priority"])  # stable: equal ones stay in order of age


def _hand_over_preference() -> None:
    name = preferences.snapshot()
    try:
        _C._prefer_driver(name)
    except (RuntimeError, ValueError):  # no name at all; of one that nobody knows the runtime says so itself
        valid = tuple(record["name"] for record in known_drivers())
        _logger.warning(
            "driver '%s' set via preferences is not a valid driver. Valid drivers are %s", shown(name), valid
        )


def is_finished() -> bool:
    """Whether discovery has run to its end."""
    return _is_finished


def discover() -> bool:
    """Registers what is found, unless that has been done. Other threads wait until it has.

    Returns:
        Whether it is done: False inside of discovery itself, in a thread that is importing a plugin's module, and in a
        process that can't use devices after a fork().
    """
    if _is_finished:
        return True
    if _C._isInBadFork() or getattr(_thread, "is_discovering", False):
        return False
    _thread.is_discovering = True
    try:
        return all(_load(plugin) for plugin in _find_plugins()) and _finish()
    except _BeingImported:
        return False
    finally:
        _thread.is_discovering = False


def _finish() -> bool:
    global _is_finished
    with _locked() as has_lock:
        if has_lock and not _is_finished:
            manifests.register_all()
            _hand_over_preference()
            process.tell_runtime()
            variables.warn()
            _is_finished = True
    return _is_finished


def install() -> None:
    """Makes the runtime call discover() by itself, until the interpreter ends. Repeating it changes nothing."""
    global _installed
    if not _installed:
        _installed = True
        _C._set_discovery(discover)
        atexit.register(_C._set_discovery, None)
