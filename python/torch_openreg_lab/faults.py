# SPDX-License-Identifier: BSD-3-Clause
"""Devices that fail on purpose: see docs/laboratory.md."""

from __future__ import annotations

from contextlib import ContextDecorator
from typing import Any

from torch_openreg import _C

__all__ = ["faults"]


class faults(ContextDecorator):
    """Failures by a plan, while the context lasts: of every device, in every thread.

    Example::

        with faults("nomem at 37; copy slow 10x") as plan:
            train()
        assert plan.hits > 0

    Also a decorator. Contexts may be nested: each plan counts for itself. A device that a plan has lost is usable again
    after its end, and an error that no wait has reported is dropped. ``OPENREG_SIM_FAULTS`` is a plan for the
    simulated devices from their opening on.

    Args:
        plan: Faults, separated by ``;``: ``"lost after 200 copies; nomem 5%; error at op 12"``. One behind a device, as
            ``str(device)`` writes it with its index, is that device's alone.

    Raises:
        TypeError: It is no str.
        RuntimeError: It is no plan; the message names the word.
    """

    def __init__(self, plan: str) -> None:
        if not isinstance(plan, str):
            raise TypeError(f"a plan of faults is a str, not {type(plan).__name__}")
        self.plan = plan
        self._running: list[Any] = []
        self._hits = 0
        _C._faults_end(_C._faults_begin(plan))  # a bad one fails here

    @property
    def hits(self) -> int:
        """How often the faults have hit, in all uses of this context."""
        return self._hits + sum(_C._faults_hits(handle) for handle in self._running)

    def __enter__(self) -> faults:
        """Begins the plan; its calls are counted from here on."""
        self._running.append(_C._faults_begin(self.plan))
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Ends it."""
        handle = self._running.pop()
        self._hits += _C._faults_hits(handle)
        _C._faults_end(handle)
