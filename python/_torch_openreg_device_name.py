# SPDX-License-Identifier: BSD-3-Clause
"""The name of the PyTorch device: ``openreg``, or that of a vendor (docs/choosing-devices.md).

It is a module of its own, beside the package, because the name must be known before the package registers the device.
Reading the choice imports no vendor's package, opens no driver, and needs no torch.

PYTEST_DONT_REWRITE (see the package)
"""

from __future__ import annotations

import functools
import json
import keyword
import os
import re
import sys
import warnings
from collections.abc import Iterator

DEFAULT = "openreg"
VARIABLE = "OPENREG_DEVICE_NAME"
GROUP = "torch_openreg.device_name"
_DRIVERS = "OPENREG_DRIVER_LIBRARIES"
_SECTION = re.compile(rf"^\[{re.escape(GROUP)}\]\s*$(.*?)(?=^\[|\Z)", re.MULTILINE | re.DOTALL)
_ENTRY = re.compile(r"^\s*([^\s=#;][^=]*?)\s*=", re.MULTILINE)
_MOST_BYTES = 1 << 20


@functools.cache
def device_name() -> str:
    """The name that PyTorch has for the device, once that is registered: for the modules of the package."""
    import torch

    return str(torch._C._get_privateuse1_backend_name())


def a_device_name() -> str:
    """The same after its article, for sentences."""
    name = device_name()
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def shown(text: object) -> str:
    r"""A text that may be somebody else's, as a terminal or a log may get it: what can't be printed as ``\xNN``."""

    def escaped(c: str) -> str:
        is_byte = c < "\x80" or "\udc80" <= c <= "\udcff"  # in a file's name or a variable, where it is no UTF-8
        return f"\\x{ord(c) & 0xFF:02x}" if is_byte else c.encode("unicode_escape").decode()

    return "".join(c if c.isprintable() else escaped(c) for c in str(text))


def _entry_points() -> Iterator[tuple[str, str]]:
    """(distribution, name) of each entry point of the group.

    importlib.metadata parses every distribution's file for that, which takes longer than the rest of the import.
    """
    seen = set()
    for folder in dict.fromkeys(sys.path):
        try:
            names = sorted(os.listdir(folder or "."))
        except OSError:
            continue
        for name in names:
            if not name.endswith((".dist-info", ".egg-info")):
                continue
            distribution = name.rpartition(".")[0].partition("-")[0].lower().replace("_", "-")
            if distribution in seen:  # an earlier folder has it: that one is imported
                continue
            seen.add(distribution)
            try:
                with open(os.path.join(folder, name, "entry_points.txt"), "rb") as file:
                    content = file.read(_MOST_BYTES)
            except OSError:
                continue
            if GROUP.encode() in content:
                for section in _SECTION.findall(content.decode("utf-8", "replace").replace("\r\n", "\n")):
                    yield from ((distribution, found) for found in _ENTRY.findall(section))


def _manifests() -> Iterator[tuple[str, str]]:
    """(file, name) of each JSON file in OPENREG_DRIVER_LIBRARIES with a name. Discovery says what is wrong."""
    for driver in os.environ.get(_DRIVERS, "").split(","):
        path = driver.partition(":")[2].strip()
        if path.endswith(".json") and os.path.isfile(path):
            try:
                with open(path, encoding="utf-8") as file:
                    name = json.loads(file.read(_MOST_BYTES)).get("device_name")
            except (OSError, ValueError, AttributeError, RecursionError):
                continue
            if isinstance(name, str):
                yield path, name


def declared() -> dict[str, str]:
    """The names that drivers declare here, each with the distribution or the file that declares it, as text to show."""
    found: dict[str, str] = {}
    for source, name in (*_entry_points(), *_manifests()):
        found.setdefault(shown(name), shown(source))
    return found


def is_a_vendors(name: str) -> bool:
    """Whether a driver declares this name, so that nothing but drivers from outside may be found under it."""
    return name != DEFAULT and name in declared()


def source_of(name: str) -> str:
    """Where a name comes from, for messages: the variable, or the distribution or file that declares it."""
    return VARIABLE if os.environ.get(VARIABLE, "").strip() == name else declared().get(name, "")


def check_form(name: str, source: str) -> None:
    """Refuses what can be no device's name, whatever PyTorch has.

    Args:
        name: The name.
        source: Where it comes from, for the message.

    Raises:
        ValueError: With the rule that it breaks.
    """
    if not re.fullmatch(r"[a-z][a-z_]{0,30}", name) or keyword.iskeyword(name):
        raise ValueError(
            f"the device name {name!r} ({source}) is no name for a device: PyTorch's device strings take a-z and _, "
            "without digits, and torch.<name> must be Python. At most 31 characters"
        )


def choose() -> str:
    """The name that the device is to have in this process.

    The variable decides. Without it the one name that is declared does; several are warned of, and none is taken.

    Raises:
        ValueError: The name is unfit.
    """
    wish = os.environ.get(VARIABLE, "").strip()
    if wish:
        check_form(wish, VARIABLE)
        return wish
    names = declared()
    if len(names) > 1:
        listed = ", ".join(f"{name} ({source})" for name, source in sorted(names.items()))
        warnings.warn(
            f"Several device names are declared, so the device is '{DEFAULT}': {listed}. {VARIABLE} chooses one.",
            UserWarning,
            stacklevel=2,
        )
    elif names:
        ((name, source),) = names.items()
        check_form(name, source)
        return name
    return DEFAULT
