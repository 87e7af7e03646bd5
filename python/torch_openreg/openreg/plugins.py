# SPDX-License-Identifier: BSD-3-Clause
"""Registration of drivers that come from outside: C tables, libraries, and Python functions that make drivers."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from torch_openreg import _C
from torch_openreg._discovery import callbacks
from torch_openreg._discovery.options import options_as_text
from torch_openreg._discovery.registrations import PLUGIN_PRIORITY, DriverRegistration, register

if TYPE_CHECKING:
    from torch_openreg.openreg.drivers import DeviceInfo

__all__ = ["DriverRegistration", "register_driver_factory", "register_driver_plugin"]

_logger = logging.getLogger("torch_openreg")

# Functions of topology, by driver.
_topologies: dict[str, Callable[..., Iterable[DeviceInfo] | None]] = {}


def register_driver_factory(
    name: str,
    factory: Callable[[], Any],
    *,
    priority: int = 0,
    fail_quietly: bool = True,
    experimental: bool = False,
    make_topology: Callable[..., Iterable[DeviceInfo] | None] | None = None,
) -> None:
    """Registers a function that makes a driver. It is called when the driver is first opened.

    The function takes no arguments and returns one of these:

    - the address of a driver's C table (an int), or a PyCapsule with the name "openreg_driver" that holds it; the
      table must stay valid until the process ends
    - the path of a driver library
    - an object with ``device_count`` (a number or a function) and, if it likes, ``version`` (a text) and ``devices``
      (a list of names, or a function that returns one): such a driver can be queried, but its devices can't be used
    - None: the driver is not available here

    It must not use the device's module. What it raises is remembered as the reason of the driver's failure.

    Args:
        name: Name of the driver. The last registration of a name is the valid one. One that is made while devices are
            in use takes effect when drivers are chosen again.
        factory: The function.
        priority: The driver of highest priority that works is chosen; built-in GPU drivers have 200, ``sim`` 0.
        fail_quietly: A failure is remembered, and other drivers are tried. Else it is an error.
        experimental: A warning is logged when the driver is opened.
        make_topology: Function of ``(topology_name, **options)`` that returns the DeviceInfo of each device without
            opening the driver, for driver_topology(); or None, if it can't.

    Raises:
        RuntimeError: The name is malformed, or a driver of that name is open.
        TypeError: The factory can't be called.
    """
    if not callable(factory):
        raise TypeError(f"A factory must be a function, but is {type(factory).__name__}: {factory!r}.")
    key = _C._canonical_driver_name(str(name))
    register(DriverRegistration(key, factory, priority, fail_quietly, experimental))
    if make_topology is not None:
        _topologies[key] = make_topology
    else:
        _topologies.pop(key, None)


def register_driver_plugin(
    name: str,
    *,
    priority: int = PLUGIN_PRIORITY,
    fail_quietly: bool = False,
    experimental: bool = False,
    library_path: str | os.PathLike[str] | None = None,
    options: Mapping[str, Any] | None = None,
    c_api: Any = None,
) -> DriverRegistration | None:
    """Registers a driver that is a C library, or the C table of one. It is loaded now and opened on first use.

    A driver that has no device here, or whose library or vendor's library is not on this machine, is left out, with one
    line in the log and the reason in driver_errors(). Any other failure is an error wherever drivers are chosen, since
    somebody has installed it. Where the driver is named for this run (``OPENREG_DRIVERS``, use_driver()) each failure
    is. Giving both a library and a table, or neither, is logged as an error and registers nothing.

    Args:
        name: Name of the driver. The last registration of a name is the valid one.
        priority: The driver of highest priority that works is chosen.
        fail_quietly: Any failure leaves the driver out.
        experimental: A warning is logged when the driver is opened.
        library_path: Path of the library; it exports ``openreg_driver_query_v1``.
        options: What the driver is opened with: str, int, float, bool or list of int by key. Variables
            ``OPENREG_<NAME>_<KEY>`` override them.
        c_api: Address of a ``const openreg_driver``, or a PyCapsule with the name "openreg_driver" that holds it. It
            must stay valid until the process ends.

    Returns:
        What was registered, or None.

    Raises:
        RuntimeError: The name is malformed, the library or table is unfit, or a driver of that name is open. A plugin
            that is being discovered gets no error for its library: the driver is known as one that has failed.
        TypeError: An option of another type.
    """
    if library_path is not None and c_api is not None:
        _logger.error("Both library_path and c_api are provided when registering plugin %s", name)
        return None
    if library_path is None and c_api is None:
        _logger.error("Neither library_path nor c_api provided when registering plugin %s", name)
        return None
    key = _C._canonical_driver_name(str(name))
    registration = DriverRegistration(
        key,
        priority=priority,
        fail_quietly=fail_quietly,
        experimental=experimental,
        library_path="" if library_path is None else os.fspath(library_path),
        c_api=c_api,
        options=options_as_text(options),
    )
    _topologies.pop(key, None)
    _logger.debug("registering driver plugin %s from %s", key, registration.library_path or "a C table")
    return register(registration, keep_failed=callbacks.thread.in_plugin)
