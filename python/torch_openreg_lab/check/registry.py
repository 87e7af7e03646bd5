# SPDX-License-Identifier: BSD-3-Clause
"""The checks of level 3, each a function that raises :class:`Failure` or :class:`Skip`, or returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable


class Failure(Exception):
    """The driver broke the rule; the text says how."""


class Skip(Exception):
    """The check can't be made; the text is the reason."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a check is given."""

    seed: int
    seconds: float  # for checks that run for a time


Function = Callable[[Limits], str | None]  # may return what it did not try


@dataclasses.dataclass(frozen=True)
class Check:
    """A rule, and the function that tries it."""

    name: str
    rule: str
    hint: str
    function: Function


CHECKS: dict[str, Check] = {}


def check(name: str, rule: str, hint: str) -> Callable[[Function], Function]:
    """Registers a function as the check of that name."""

    def register(function: Function) -> Function:
        CHECKS[name] = Check(name, rule, hint, function)
        return function

    return register


def expect(condition: bool, text: str) -> None:
    """Fails with the text unless the condition holds."""
    if not condition:
        raise Failure(text)
