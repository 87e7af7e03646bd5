# SPDX-License-Identifier: BSD-3-Clause
"""Attributes of other libraries that are replaced for a time, and restored."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from _torch_openreg_device_name import device_name

_MISSING: Any = object()


class Replacements:
    """Attributes of classes and modules that were replaced.

    Attributes:
        done: Owner, name and previous value of each, in order; the value is _MISSING if it was inherited.
    """

    def __init__(self) -> None:
        self.done: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replaces an attribute, or adds one."""
        self.done.append((owner, name, vars(owner).get(name, _MISSING)))
        setattr(owner, name, value)

    def take_back(self) -> None:
        """Restores the previous values, the last one first; attributes that were inherited are inherited again."""
        while self.done:
            owner, name, before = self.done.pop()
            if before is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


class Connection(Replacements):
    """A library that is made known the device. What replaces asks ``is_on``: a module may keep one of them."""

    def __init__(self, library: str, replace: Callable[[Connection], None], below: Connection | None = None) -> None:
        """Replaces nothing yet.

        Args:
            library: Its name, for texts.
            replace: Calls set() and everywhere() for all that is to be replaced.
            below: The connection to a library that this one needs, which goes on and off with it.
        """
        super().__init__()
        self.is_on = False
        self._library = library
        self._replace = replace
        self._below = below
        self._lock = threading.RLock()

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replaces an attribute of a class or module.

        Raises:
            AttributeError: This version of the library has no such attribute.
        """
        if not hasattr(owner, name):
            raise AttributeError(
                f"This version of {self._library} has no '{name}', so {device_name()} can't be made known to it. "
                "requirements-clients.txt names the version that is tested."
            )
        super().set(owner, name, value)

    def everywhere(self, function: Callable[..., Any], value: Callable[..., Any], *packages: str) -> None:
        """Replaces a function in each imported module of these packages that has imported it."""
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] in packages:
                for key in [key for key, found in vars(module).items() if found is function]:
                    self.set(module, key, value)

    def is_enabled(self) -> bool:
        """Returns whether the library knows the device now."""
        return self.is_on

    def enable(self) -> None:
        """Makes the device known to the library and to those below it. Repeating it changes nothing.

        Raises:
            AttributeError: A version of a library is another than those that are known here; nothing is changed.
        """
        with self._lock:
            was_on, self.is_on = self.is_on, True
            try:
                if not was_on:
                    self._replace(self)
                if self._below is not None:
                    self._below.enable()
            except BaseException:
                self._turn_off()
                raise

    def disable(self) -> None:
        """Takes back what ``enable()`` has replaced, below the library too. What is on the device stays there."""
        self._turn_off()
        if self._below is not None:
            self._below.disable()

    def _turn_off(self) -> None:
        with self._lock:
            self.is_on = False
            self.take_back()


def connection_of_choice(
    library: str, choose: Callable[[], str], below: Connection | None, *, has_index: bool = False
) -> Connection:
    """The connection to a library that chooses a device by a function: openreg where it would be the CPU.

    Args:
        library: Its name, and that of the package whose modules have imported the function.
        choose: Returns the name of a device.
        below: As for ``Connection``.
        has_index: Whether the name has an index then, that of the current device.
    """

    @functools.wraps(choose)
    def chosen() -> str:
        device = choose()
        if not connection.is_on or device != "cpu" or not torch.openreg.is_available():
            return device
        return f"{device_name()}:{torch.openreg.current_device()}" if has_index else device_name()

    connection = Connection(library, lambda replaced: replaced.everywhere(choose, chosen, library), below)
    return connection
