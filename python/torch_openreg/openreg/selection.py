# SPDX-License-Identifier: BSD-3-Clause
"""Choosing a driver: automatically, for this run, or by a stored preference.

Which driver the numbered devices belong to is decided by the first of these that applies:

1. :func:`use_driver`: what it names, or an error
2. the variable ``OPENREG_DRIVERS``: what it names, or an error; a stored preference is then ignored
3. the stored preference (:func:`set_preferred_driver`), if it works; else there is a warning, and the next rule
4. the driver of highest priority that works; in the end that is the simulated one, ``sim``
"""

from __future__ import annotations

import logging
import threading
import warnings
from typing import Any

import torch
from _torch_openreg_device_name import a_device_name, device_name

from torch_openreg import _C, _after_fork
from torch_openreg._discovery import preferences
from torch_openreg._integration import exit
from torch_openreg.openreg import _lazy, _utils
from torch_openreg.openreg.defaults import as_device
from torch_openreg.openreg.drivers import Driver, _canonical, _name_of, _records, driver_errors, get_device_driver

__all__ = [
    "DeviceSelectionError",
    "canonical_name",
    "cpu_device",
    "driver_device",
    "get_preferred_driver",
    "gpu_device",
    "is_functional",
    "is_loaded",
    "reset_gpu_device",
    "same_device",
    "set_preferred_driver",
    "supported_drivers",
    "supported_gpu_drivers",
    "use_driver",
]

_logger = logging.getLogger("torch_openreg")

_CPU = torch.device("cpu")
_ACCELERATOR = torch.device(device_name())  # without an index: it follows the thread's current device

_lock = threading.RLock()
_after_fork.renew(globals(), _lock=threading.RLock)
_gpu_device: torch.device | None = None  # what gpu_device() has found
_gpu_device_of = -1  # the selection's "requests" when it had


class DeviceSelectionError(RuntimeError):
    """No device was found that counts as a GPU."""


def canonical_name(name: str) -> str:
    """Returns a driver's name in lower case, with synonyms resolved: "AMDGPU" gives "hip".

    Args:
        name: A name; it need not be known.

    Raises:
        ValueError: No driver can have that name.
    """
    try:
        return _C._canonical_driver_name(name)
    except RuntimeError as error:
        raise ValueError(str(error)) from None


def supported_gpu_drivers() -> tuple[str, ...]:
    """Returns the GPU drivers that are known, in the order in which they are tried.

    These are not the ones that work on this machine, but the ones that torch_openreg supports: "cuda" and "hip",
    whether this build has them or not, and plugins. See :func:`is_functional`. Opens nothing.
    """
    return tuple(record["name"] for record in _records() if record["is_gpu"])


def supported_drivers() -> tuple[str, ...]:
    """Returns all drivers that are known, the simulated one too, in the order in which they are tried.

    Opens nothing, and does not depend on the hardware.
    """
    return tuple(record["name"] for record in _records())


def is_loaded(name: str) -> bool:
    """Returns whether a driver's library, and the vendor's library that it needs, can be loaded here.

    Why not is in :func:`driver_errors`. It says nothing of devices. Opens a driver only where that alone can tell.
    Never raises.

    Args:
        name: Name of the driver; of a group one member must load.
    """
    return any(_is_one_loaded(member) for member in _C._expand_driver(str(name)))


def _is_one_loaded(name: str) -> bool:
    try:
        _lazy._prepare()
        record = _C._find_driver(name)
    except RuntimeError:
        return False
    if record["is_untried"] or (record["state"] not in ("open", "failed") and not _is_describable(name)):
        _open(name)  # so that the failure is remembered
        record = _C._find_driver(name)
    if record["state"] == "failed":
        return bool(record["has_table"] and not record["is_unloadable"])
    return True


def _is_describable(name: str) -> bool:
    """Whether a driver, unopened, says what devices there are, or is at least loaded and can't say."""
    try:
        _C._driver_topology(name, "", {})
    except NotImplementedError:
        return bool(_C._find_driver(name)["has_table"])
    except RuntimeError:
        return False
    return True


def _open(name: str) -> bool:
    """Opens a driver. Returns whether it works; a failure is remembered and not tried again."""
    try:
        _C._open_driver(name)
    except (RuntimeError, NotImplementedError, MemoryError):
        return False
    return True


def is_functional(name: str) -> bool:
    """Returns whether a driver is loaded, can be opened and has a device. Opens that driver alone. Never raises.

    A failure is remembered, and not tried again until :func:`reset_gpu_device`. Why not is in
    :func:`driver_errors`.

    Args:
        name: Name of the driver; of a group one member must work.
    """
    try:
        _lazy._prepare()
    except RuntimeError:
        return False
    return any(_open(member) for member in _C._expand_driver(str(name)))


def use_driver(*names: str | Driver) -> None:
    """Chooses the active drivers of this process and opens them. Devices 0, 1, ... are then theirs.

    It goes before ``OPENREG_DRIVERS`` and the stored preference. All or nothing: after an error the drivers before
    are still active.

    Args:
        names: Drivers; their devices come one driver after the other. None at all: the choice is taken back, and made
            by the other rules.

    Raises:
        RuntimeError: One of them is unknown or doesn't work, or there are live tensors or events of other devices.
    """
    _lazy._prepare()
    if any(not _name_of(name).strip() for name in names):
        raise RuntimeError("The name of a driver is empty.")
    _C._use_drivers(",".join(_name_of(name) for name in names) or None)
    if names:
        _lazy._lazy_init()
    exit.warn_of_devices_without_thread()


def cpu_device() -> torch.device:
    """Returns the CPU, as ``torch.device("cpu")``. Opens no driver."""
    return _CPU


def gpu_device(*, force_gpu_usage: bool = False, driver: str | Driver | None = None) -> torch.device:
    """Chooses a GPU, or the CPU if there is none, and keeps the answer until :func:`reset_gpu_device`.

    A driver counts as a GPU if it drives one, and if it was chosen explicitly: by :func:`use_driver`,
    ``OPENREG_DRIVERS`` or the stored preference, ``sim`` too.

    The answer has no index, so it isn't equal to the device of a tensor; see :func:`same_device`.

    Args:
        force_gpu_usage: The CPU is no answer, but an error.
        driver: The first device of this driver, or an error; not kept. Where no driver is active yet and
            ``OPENREG_DRIVERS`` is not set it is chosen, as by :func:`use_driver`.

    Returns:
        This device type as a torch.device, which means the thread's current device, or ``torch.device("cpu")`` with a
        warning. With ``driver`` a device with an index.

    Raises:
        DeviceSelectionError: There is no GPU, and ``force_gpu_usage`` is set, or ``driver`` doesn't work. The text says
            why for each driver.
        RuntimeError: A driver that the program or the environment names doesn't work.
    """
    if driver is not None:
        return driver_device(driver)
    global _gpu_device, _gpu_device_of
    found = _known_gpu_device(force_gpu_usage)
    if found is not None:
        return found
    _lazy._prepare()  # before the lock, which a driver's factory must not wait for
    with _lock:
        found = _known_gpu_device(force_gpu_usage)
        if found is not None:
            return found
        if _find_gpu():
            found = _ACCELERATOR
        elif force_gpu_usage:
            raise DeviceSelectionError(_no_gpu_text())
        else:
            found = _CPU
            _warn_cpu()
        _gpu_device, _gpu_device_of = found, _C._selection()["requests"]
        return found


def driver_device(driver: str | Driver, index: int = 0) -> torch.device:
    """Returns a device of a driver, where several drivers are active, too.

    Args:
        driver: The driver, which must be active; where none is active yet and ``OPENREG_DRIVERS`` is not set it is
            chosen, as by :func:`use_driver`.
        index: Number of the device among the driver's devices.

    Returns:
        A device with an index.

    Raises:
        DeviceSelectionError: The driver is unknown, doesn't work, or isn't active. The text says why, or what to call.
        RuntimeError: It has no such device.
    """
    name = _name_of(driver)
    if not _C._is_initialized():
        try:
            if _C._variable("OPENREG_DRIVERS"):  # it decides, whatever is called first
                _lazy._lazy_init()
            else:
                use_driver(name)
        except RuntimeError as error:
            raise DeviceSelectionError(str(error)) from error
    records = [record for record in _records() if record["name"] in _C._expand_driver(name)]
    active = next((record for record in records if record["is_active"]), None)
    if active is None:
        raise DeviceSelectionError(_inactive_text(name))
    if not 0 <= index < active["device_count"]:
        count = active["device_count"]
        raise RuntimeError(
            f"The index is out of range. Driver '{active['name']}' has {count} device(s), but got {index}."
        )
    return torch.device(device_name(), active["first_device"] + index)


def _inactive_text(name: str) -> str:
    """Why a driver's devices can't be used now, and what to call."""
    now = [record["name"] for record in sorted(_records(), key=lambda r: r["first_device"]) if record["is_active"]]
    if not is_functional(name):
        reasons = driver_errors()
        members = [member for member in _C._expand_driver(name) or [name] if member in reasons]
        why = "; ".join(reasons[member] for member in members) or f"it is none of {supported_drivers()}"
        return f"Driver '{name}' can't be used: {why}"
    wish = ", ".join(repr(each) for each in [*now, name])
    return (
        f"Driver '{name}' is not active: the devices are those of {now}. While no tensor is live, "
        f"torch.{device_name()}.use_driver({name!r}) or torch.{device_name()}.use_driver({wish}) chooses it."
    )


def same_device(a: Any, b: Any) -> bool:
    """Returns whether two devices are the same one now: one without an index is the thread's current device.

    ``x.device == gpu_device()`` is False, because a tensor's device has an index; ``same_device(x, gpu_device())`` is
    what is meant.

    Args:
        a: A device, what ``as_device()`` takes, or a tensor, for its device.
        b: Another one.

    Raises:
        RuntimeError, ValueError, TypeError: As ``as_device()``.
    """
    return _with_index(a) == _with_index(b)


def _with_index(device: Any) -> torch.device:
    if isinstance(device, torch.Tensor):
        found = device.device
    else:
        found = device if isinstance(device, torch.device) else as_device(device)
    if found.index is not None:
        return torch.device(found.type) if found.type == "cpu" else found
    return torch.device(device_name(), _C._get_device()) if found.type == device_name() else found


def _known_gpu_device(force_gpu_usage: bool) -> torch.device | None:
    """What was found before, if it is an answer and nothing has changed since."""
    if _gpu_device is None or (force_gpu_usage and _gpu_device == _CPU):
        return None
    return _gpu_device if _gpu_device_of == _C._selection()["requests"] else None


def reset_gpu_device() -> None:
    """Forgets what :func:`gpu_device` has found, and failures of drivers, so that both are tried again.

    The next :func:`gpu_device` chooses again, also where a GPU was found: a driver that was registered since may go
    before it. Open drivers stay open, and the stored preference stays as this process read it first. Opens nothing.

    Raises:
        RuntimeError: A GPU was chosen automatically, and has live tensors or events. Nothing is forgotten.
    """
    _C._reset_gpu()


def _find_gpu() -> bool:
    """Opens a GPU and makes it active. Leaves the simulated driver alone where it would only be opened by this."""
    found = _C._select_gpu()
    if found:
        _lazy._lazy_init()
        exit.warn_of_devices_without_thread()
    return found


def _no_gpu_text() -> str:
    reasons = driver_errors()
    lines = [f"  {name}: {reasons.get(name, 'not tried')}" for name in supported_gpu_drivers()]
    return "\n".join(["No functional GPU device found!!", *lines])


def _warn_cpu() -> None:
    _logger.info("No GPU is available. Using CPU.")
    selection = _C._selection()
    text = "No functional GPU device found! Defaulting to CPU."
    if selection["live_objects"] > 0:
        text += (
            f" {selection['live_objects']} live allocation(s) on driver '{selection['default_driver']}' keep another "
            "driver from being chosen."
        )
    warnings.warn(text, UserWarning, stacklevel=3)


def set_preferred_driver(driver: Any = "") -> None:
    """Stores which driver to choose, in ``LocalPreferences.toml``; it takes effect when Python is restarted.

    The file is ``$OPENREG_PREFERENCES`` if that is set, else the one in the current folder. All else in it stays.
    The driver need not work on this machine.

    Args:
        driver: A name, a Driver, a torch.device of this type for its driver, or anything whose text is a name. "" and
            None remove the preference.

    Raises:
        ValueError: No such driver is known, it is a device of another type, or the file is not valid TOML.
        OSError: The file can't be read or written.
    """
    name = _preference_from(driver)
    if name is None:
        if preferences.write(None):
            _logger.info("The preferred driver has been removed. Restart Python to choose automatically.")
        return
    valid = supported_drivers()
    if name not in valid:
        raise ValueError(f"'driver' must be one of {valid}, got {str(driver)!r}")
    if preferences.write(name):
        _logger.info("driver has been set to %s. Restart Python to use the new driver.", name)
    else:
        _logger.info("driver is already set to %s. No action is required.", name)


def _preference_from(driver: Any) -> str | None:
    if isinstance(driver, torch.device):
        if driver.type != device_name():
            raise ValueError(f"Expected {a_device_name()} device, but got {driver}.")
        return get_device_driver(driver).name
    text = "" if driver is None else _name_of(driver)
    return _canonical(text) if text.strip() else None


def get_preferred_driver() -> str | None:
    """Returns the driver that is stored as preferred, or None. This process may have started with another one."""
    preferences.snapshot()
    name = preferences.read()
    return None if name is None else _canonical(name)


_utils._set_gpu_choice(lambda: gpu_device(force_gpu_usage=True))
