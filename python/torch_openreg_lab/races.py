# SPDX-License-Identifier: BSD-3-Clause
"""Races between streams: uses of memory that nothing orders, found whatever this run did.

``OPENREG_RACES=report`` or ``raise`` looks for them in a whole program, detect_races() in a part of one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from _torch_openreg_device_name import device_name

import torch_openreg
from torch_openreg import _C

__all__ = ["Race", "RaceError", "RaceUse", "allow_races", "clear_races", "detect_races", "races"]

_NAME = device_name()

_REPORT, _RAISE, _UNINITIALIZED, _STACKS = 1, 2, 4, 8
_KINDS = {1: "read-write", 2: "write-write", 3: "reuse", 4: "host", 5: "uninitialized", 6: "lost-device"}
_HOST = -1


class RaceError(RuntimeError):
    """An operator would use memory that another stream may be using: what it raises in mode ``raise``."""


@dataclass(frozen=True)
class RaceUse:
    """One of the two uses of a race.

    Attributes:
        operator: Its operator, as ``aten::add_``.
        place: The line of the program, as ``train.py:12 in step``; empty in a thread without Python, as autograd's.
        stack: All of Python's stack, a line each, the innermost first; empty unless stacks were requested.
        device: The device on whose stream it is; None: the host itself.
        stream: Id of the stream.
        writes: Whether it writes.
    """

    operator: str
    place: str
    stack: tuple[str, ...]
    device: torch.device | None
    stream: int
    writes: bool


@dataclass(frozen=True)
class Race:
    """Two uses of the same memory that nothing orders.

    Attributes:
        kind: ``read-write``, ``write-write``, ``reuse`` (memory was freed and used again while another stream used it),
            ``host`` (pinned memory under a copy), ``uninitialized`` (a read of memory that nothing has written) or
            ``lost-device`` (a stream or an event is used of a device that was lost).
        first: The earlier use, or the call that lost the device.
        second: The later one, at which it was found.
        address: Address of the first of the bytes in question; 0 for a lost device.
        size: How many they are.
        offset: Where they begin in their allocation; None: not known.
        freed: For ``reuse``, the line that freed the memory, as ``train.py:20 in step``; empty if it is not known.
        remedy: What would order them.
        text: All of it, as it is logged, with the stacks.
    """

    kind: str
    first: RaceUse
    second: RaceUse
    address: int
    size: int
    offset: int | None
    freed: str
    remedy: str
    text: str

    def __str__(self) -> str:
        return self.text


def _use(operator: str, place: str, stack: str, device: int, stream: int, writes: bool) -> RaceUse:
    lines = tuple(line.strip() for line in stack.splitlines())
    return RaceUse(operator, place, lines, None if device == _HOST else torch.device(_NAME, device), stream, writes)


def _races_from(number: int) -> list[Race]:
    return [
        Race(_KINDS[kind], _use(*first), _use(*second), address, size, offset if block else None, *rest)
        for kind, first, second, address, size, block, offset, *rest in _C._races_list(number)
    ]


def races() -> list[Race]:
    """Returns the races that were found so far, one for each pair of places, in the order in which they were found."""
    return _races_from(0)


def clear_races() -> None:
    """Forgets the races that were found, so that they are reported again."""
    _C._races_clear()


@contextmanager
def detect_races(*, raises: bool = False, uninitialized: bool = False, stacks: bool = False) -> Iterator[list[Race]]:
    """Looks for races while the block runs, in all threads.

    Memory counts from its first use in the block on.

    Args:
        raises: Whether the second use raises RaceError, before it has begun.
        uninitialized: Whether reads of memory that nothing has written count too.
        stacks: Whether each report has all of Python's stack of both uses.

    Yields:
        A list, which has the races of the block when it ends.
    """
    found: list[Race] = []
    flags = _REPORT | (_RAISE if raises else 0) | (_UNINITIALIZED if uninitialized else 0)
    flags |= _STACKS if stacks else 0
    number = _C._races_count()
    before = _C._races_set(flags)
    try:
        yield found
    finally:
        _C._races_set(before)
        found.extend(_races_from(number))
    if raises and found:  # a use by the host itself, which nothing could stop
        raise RaceError(found[0].text)


@contextmanager
def allow_races(reason: str) -> Iterator[None]:
    """What runs in the block, in any thread, is part of no race. ``# openreg: race-ok <reason>`` allows one line.

    Args:
        reason: Why they do no harm.

    Raises:
        ValueError: The reason is empty.
    """
    if not reason.strip():
        raise ValueError("allow_races() needs a reason: why do these races do no harm?")
    _C._races_allow(True)
    try:
        yield
    finally:
        _C._races_allow(False)


def _prepare() -> None:
    folders = [os.path.dirname(path) for path in (torch.__file__, torch_openreg.__file__, os.path.abspath(__file__))]
    _C._races_prepare(RaceError, tuple(os.path.join(folder, "") for folder in folders))


_prepare()
