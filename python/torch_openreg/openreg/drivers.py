# SPDX-License-Identifier: BSD-3-Clause
"""Drivers and their devices: which there are, which work, and why the others don't.

A driver provides devices. Several may be open at once; the devices 0, 1, ... are those of the *active* ones,
as a rule of one. Names are case-insensitive; ``rocm`` and ``amdgpu`` mean ``hip``, and ``gpu`` means the first of
``cuda`` and ``hip`` that works.

A parameter ``driver`` is a name or a Driver; None is the default driver, unless a function says otherwise. A
driver that does not exist or doesn't work raises RuntimeError.
A parameter ``name`` is that of a driver, or an alias.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from _torch_openreg_device_name import device_name

from torch_openreg import _C
from torch_openreg._discovery import process, registrations, search
from torch_openreg._discovery.options import options_as_text
from torch_openreg.openreg import _lazy
from torch_openreg.openreg._utils import Device, _get_valid_index
from torch_openreg.openreg.plugins import _topologies

__all__ = [
    "DeviceInfo",
    "Driver",
    "Topology",
    "canonicalize_driver",
    "default_driver",
    "devices",
    "driver_api_version",
    "driver_errors",
    "driver_info",
    "driver_topology",
    "drivers",
    "drivers_are_initialized",
    "expand_driver_alias",
    "get_device_driver",
    "get_driver",
    "global_device_count",
    "is_gpu_driver",
    "is_known_driver",
    "local_device_count",
    "local_devices",
    "process_count",
    "process_index",
    "using_driver_c_api",
]

_logger = logging.getLogger("torch_openreg")

_C_API = "OpenReg C API"


@dataclass(frozen=True)
class DeviceInfo:
    """A device of a driver, active or not. Numbers are 0 and texts are empty where the driver does not know.

    Attributes:
        index: Its index among the driver's devices.
        name: Name of the device.
        driver: Name of the driver.
        process_index: The process that has it.
        torch_device: The device in PyTorch, or None if the driver is not active.
        ordinal: Its number inside the driver, of which some may be hidden.
        total_memory: Bytes.
        multi_processor_count: Number of multiprocessors.
        major: Compute capability, or its counterpart.
        minor: Compute capability, or its counterpart.
        uuid: 16 bytes as 32 hexadecimal digits, or "".
        is_simulated: The device is simulated on the host.
    """

    index: int
    name: str
    driver: str
    process_index: int = 0
    torch_device: torch.device | None = None
    ordinal: int = 0
    total_memory: int = 0
    multi_processor_count: int = 0
    major: int = 0
    minor: int = 0
    uuid: str = ""
    is_simulated: bool = False


class Topology(list[DeviceInfo]):
    """The devices of a driver that need not be open.

    Attributes:
        peers: ``peers[i][j]`` is whether device i copies to device j directly. Empty if that is not known.
    """

    peers: list[list[bool]]

    def __init__(self, devices: Any = (), peers: list[list[bool]] | None = None) -> None:
        super().__init__(devices)
        self.peers = peers or []


@dataclass(frozen=True)
class Driver:
    """A driver that is open.

    Attributes:
        name: Its name.
        version: Name and version; of a C driver also that of its interface: "sim 1.0 (OpenReg C API 1.1)".
        source: Where it comes from: "built in", "bundled", "registered", ...
        path: Path of its library, or "".
        priority: The driver of highest priority that works is chosen.
        simulated: Its devices are simulated on the host.
        experimental: It was registered as such.
        is_gpu: It counts as a GPU.
        device_count: Number of its visible devices.
        api_version: Version of the interface that it was compiled against, or None without a C interface.
    """

    name: str
    version: str
    source: str
    path: str
    priority: int
    simulated: bool
    experimental: bool
    is_gpu: bool
    device_count: int
    api_version: tuple[int, int] | None

    def devices(self) -> list[DeviceInfo]:
        """Returns its devices.

        Raises:
            RuntimeError: The driver is not open any more.
        """
        return [_device_info(self, index) for index in range(self.device_count)]


def _records() -> list[dict[str, Any]]:
    """The record of each known driver, by preference. Opens nothing."""
    search.discover()
    return search.known_drivers()


def _name_of(driver: str | Driver) -> str:
    return driver.name if isinstance(driver, Driver) else str(driver)


def _canonical(name: str) -> str:
    """The canonical name, or the text itself if no driver can have that name."""
    try:
        return _C._canonical_driver_name(name)
    except RuntimeError:
        return name


def _view(record: dict[str, Any]) -> Driver:
    is_c = record["has_table"]
    version = f"{record['name']} {record['version']}".strip()
    return Driver(
        name=record["name"],
        version=f"{version} ({_C_API} {record['abi'][0]}.{record['abi'][1]})" if is_c else version,
        source=record["source"],
        path=record["path"],
        priority=record["priority"],
        simulated=record["is_simulated"] or record["is_mock"],
        experimental=record["is_experimental"],
        is_gpu=record["is_gpu"],
        device_count=record["device_count"],
        api_version=record["abi"] if is_c else None,
    )


def _described_name(driver: Driver, index: int) -> str:
    """Name of a device of a driver that a factory only describes."""
    names = getattr(registrations.descriptions.get(driver.name), "devices", None)
    if callable(names):
        names = names()
    names = list(names or ())
    return str(names[index]) if index < len(names) else f"{driver.name} {index}"


_PROPERTIES = (
    *("name", "driver", "ordinal", "total_memory", "multi_processor_count"),
    *("major", "minor", "uuid", "is_simulated"),
)


def _device_info(driver: Driver, index: int) -> DeviceInfo:
    if driver.api_version is None:
        return DeviceInfo(index, _described_name(driver, index), driver.name, process_index(), ordinal=index)
    properties = _C._driver_device(driver.name, index)
    first = _C._find_driver(driver.name)["first_device"]
    return DeviceInfo(
        index=index,
        process_index=process_index(),
        torch_device=None if first < 0 else torch.device(device_name(), first + index),
        **{key: properties[key] for key in _PROPERTIES},
    )


def _basis_of(selection: dict[str, Any]) -> tuple[int, int]:
    """What differs once the drivers must be looked at again."""
    return selection["generation"], selection["requests"]


_opened: dict[tuple[int, int], Mapping[str, Driver]] = {}  # what drivers() has found, by the basis of that


def drivers() -> Mapping[str, Driver]:
    """Opens every driver, and returns those that work by name. The default driver comes first.

    Those that ``OPENREG_DRIVERS`` or :func:`use_driver` name are opened alone, and all must work. The mapping stays
    the same object, and no driver is tried again, until drivers are chosen again.

    Returns:
        A read-only mapping.

    Raises:
        RuntimeError: A driver failed that somebody has asked for or installed, or none works. Nothing stays open that
            was not before; the next call tries again.
    """
    mapping = _opened.get(_basis_of(_C._selection())) if _C._is_initialized() else None
    if mapping is not None:
        return mapping
    _lazy._prepare()
    _C._open_all()
    _lazy._lazy_init()
    selection = _C._selection()
    records = [record for record in _records() if record["state"] == "open"]
    if selection["chosen_by"] in ("call", "environment"):
        records = [record for record in records if record["is_active"]]
    records.sort(key=lambda record: (not record["is_active"], record["first_device"]))
    basis = _basis_of(selection)
    for old in set(_opened) - {basis}:
        _opened.pop(old, None)
    # If another thread has stored a mapping since, both return that one.
    return _opened.setdefault(basis, MappingProxyType({record["name"]: _view(record) for record in records}))


def get_driver(driver: str | Driver | None = None) -> Driver:
    """Returns a driver that works, opening all as :func:`drivers` does.

    Args:
        driver: Its name, or an alias. A Driver is returned as it is. None: the default driver.

    Raises:
        RuntimeError: There is no such driver, or it doesn't work; the text says why.
    """
    if isinstance(driver, Driver):
        return driver
    opened = drivers()
    name = default_driver() if driver is None else canonicalize_driver(str(driver))
    if name in opened:
        return opened[name]
    reason = driver_errors().get(name)
    if reason is not None:
        raise RuntimeError(f"Driver '{name}' failed to initialize: {reason}. Available drivers are {list(opened)}")
    raise RuntimeError(f"Unknown driver {driver}")


def default_driver() -> str:
    """Returns the name of the driver that device 0 belongs to, choosing and opening it if need be.

    Raises:
        RuntimeError: No driver works, or one that the program or the environment names doesn't.
    """
    _lazy._lazy_init()
    return str(_C._selection()["default_driver"])


def drivers_are_initialized() -> bool:
    """Returns whether any driver is open. Opens nothing."""
    if _C._is_initialized() or not search.is_finished():
        return _C._is_initialized()  # before discovery nothing is open
    return any(record["state"] == "open" for record in _C._driver_records())


def _clear_drivers() -> None:
    """Closes all drivers and forgets failures and counts. Registrations stay; variables are read again.

    Raises:
        RuntimeError: There are live tensors or events.
    """
    _logger.debug("Clearing driver caches.")
    _lazy._shutdown()


def driver_errors() -> dict[str, str]:
    """Returns why drivers have failed so far, by name; {} before any was tried. Opens nothing."""
    failed = (record for record in _records() if record["state"] == "failed" and not record["is_untried"])
    return {record["name"]: _reason(record) for record in failed}


def _reason(record: dict[str, Any]) -> str:
    path, message = str(record["path"]), str(record["message"])
    return message if path in message else f"{path}: {message}"


def driver_info(driver: str | Driver) -> dict[str, Any]:
    """Returns all that is known of a driver. Opens nothing.

    Returns:
        ``name``, ``state`` ("found", "loaded", "open", "failed"), ``source``, ``path``, ``version``, ``priority``,
        ``device_count`` (-1: not known yet), ``message`` (why it failed), and more.

    Raises:
        RuntimeError: There is no such driver.
    """
    search.discover()
    return _C._find_driver(_name_of(driver))


def expand_driver_alias(name: str) -> list[str]:
    """Returns the names that a name, known or not, means: "gpu" gives ["cuda", "hip"], any other gives itself."""
    return _C._expand_driver(name) or [name]


def is_known_driver(name: str) -> bool:
    """Returns whether a name means a driver that is known, as opposed to a typo. It need not work here."""
    known = {record["name"] for record in _records()}
    return not known.isdisjoint(expand_driver_alias(name))


def is_gpu_driver(name: str) -> bool:
    """Returns whether a name means a driver that counts as a GPU. It need not work here."""
    gpus = {record["name"] for record in _records() if record["is_gpu"]}
    return not gpus.isdisjoint(expand_driver_alias(name))


def canonicalize_driver(name: str) -> str:
    """Returns the driver that a name means here: of a group the first that works, which opens drivers.

    Args:
        name: A name; unless it is a group it need not be known.

    Raises:
        RuntimeError: It is a group, and no member works.
    """
    names = expand_driver_alias(name)
    if len(names) == 1:
        return names[0]
    opened = drivers()
    for member in names:
        if member in opened:
            return member
    raise RuntimeError(
        f"Unknown driver: '{name}' requested, but no drivers that are instances of {name} are present. "
        f"Drivers present are: {', '.join(opened)}"
    )


def driver_api_version(driver: str | Driver | None = None) -> tuple[int, int] | None:
    """Returns the version of the C interface that a driver was compiled against, as (major, minor).

    Returns:
        The version, or None of a driver without a C interface.
    """
    return get_driver(driver).api_version


def using_driver_c_api(driver: str | Driver | None = None) -> bool:
    """Returns whether a driver is one in C, as opposed to one that a Python function only describes."""
    return _C_API in get_driver(driver).version


def devices(driver: str | Driver | None = None) -> list[DeviceInfo]:
    """Returns the devices of a driver."""
    return get_driver(driver).devices()


def local_device_count(driver: str | Driver | None = None) -> int:
    """Returns the number of devices that this process can use.

    Args:
        driver: A driver. None: the active drivers, as device_count().
    """
    return _C._get_device_count() if driver is None else get_driver(driver).device_count


def global_device_count() -> int:
    """Returns the number of devices of all processes of a distributed program.

    With torch.distributed initialised all processes must call it.

    Raises:
        RuntimeError: The collective that counts them fails.
    """
    count = local_device_count()
    if process_count() == 1:
        return count
    counts: list[Any] = [0] * process_count()
    torch.distributed.all_gather_object(counts, count)
    return sum(counts)


def process_index(driver: str | Driver | None = None) -> int:
    """Returns this process's rank in a distributed program, 0 without torch.distributed; the same for each driver."""
    if driver is not None:
        get_driver(driver)
    return process.index_and_count()[0]


def process_count(driver: str | Driver | None = None) -> int:
    """Returns how many processes a distributed program has, 1 without torch.distributed; the same for each driver."""
    if driver is not None:
        get_driver(driver)
    return process.index_and_count()[1]


def local_devices(process_index: int | None = None, driver: str | Driver | None = None) -> list[DeviceInfo]:
    """Returns the devices of a process. Those of another process can't be reached from here: its list is empty.

    Args:
        process_index: The process; this one if None.
        driver: The driver; the default driver if None.

    Raises:
        ValueError: There is no such process.
        RuntimeError: There is no such driver, or it doesn't work.
    """
    own, count = process.index_and_count()
    if process_index is None:
        process_index = own
    if not 0 <= process_index < count:
        raise ValueError(f"Unknown process_index {process_index}")
    return [device for device in devices(driver) if device.process_index == process_index]


def get_device_driver(device: Device | DeviceInfo = None) -> Driver:
    """Returns the driver that a device belongs to.

    Args:
        device: A DeviceInfo, an index, a string such as "privateuseone:1", a torch.device. None: the default driver.

    Raises:
        RuntimeError: There is no such device.
        ValueError: A device of another type.
        TypeError: Not a device at all.
    """
    if device is None:
        return get_driver()
    if isinstance(device, DeviceInfo):
        return get_driver(device.driver)
    _lazy._lazy_init()
    return get_driver(_C._get_device_properties(_get_valid_index(device))["driver"])


def driver_topology(driver: str, topology_name: str = "", **options: Any) -> Topology:
    """Describes the devices of a driver without opening it.

    Args:
        driver: Name of the driver. For a group drivers are opened, to find the first member that works.
        topology_name: "" is this machine; other names are the driver's own.
        options: Options of the driver: str, int, float, bool or list of int.

    Returns:
        The devices, with their attribute ``peers``.

    Raises:
        NotImplementedError: The driver can't describe its devices.
        RuntimeError: There is no such driver, its library can't be loaded, or it refuses.
        TypeError: An option of another type.
    """
    _lazy._prepare()
    name = canonicalize_driver(_name_of(driver))
    make_topology = _topologies.get(name)
    if make_topology is not None:
        made = make_topology(topology_name, **options)
        if made is None:
            raise NotImplementedError(f"topology not implemented for {name}")
        return made if isinstance(made, Topology) else Topology(made)
    found, peers = _C._driver_topology(name, topology_name, options_as_text(options))
    properties = ({key: each[key] for key in _PROPERTIES} for each in found)
    return Topology((DeviceInfo(i, process_index=process_index(), **each) for i, each in enumerate(properties)), peers)


def _options_from_env(name: str) -> dict[str, Any]:
    """What the environment says of a built-in GPU driver: visible devices, and whether it is a mock one.

    While drivers are in use, that is what it said when they were chosen.

    Returns:
        ``visible_devices`` (a list of int, left out for "all"), ``mock`` and ``num_devices``; {} for other drivers.
    """
    name = _canonical(name)
    if name not in expand_driver_alias("gpu"):
        return {}
    options = _C._driver_options(name)
    found: dict[str, Any] = {}
    visible = options.get("visible_devices", "all").strip()
    if visible.lower() != "all":
        found["visible_devices"] = [int(item) for item in visible.split(",") if item.strip()]
    if "mock" in options:
        found["mock"] = True
        found["num_devices"] = int(options["devices"])
    return found
