# SPDX-License-Identifier: BSD-3-Clause
"""How operators ran, and which execution modes a program allows.

A call runs in one of three execution modes: ``native`` (a kernel of the driver), ``aliased`` (PyTorch's CPU kernel on
the device's memory) or ``staged`` (the tensors are copied to the host, and what was written is copied back). Counts and
policy are those of the whole process: all devices, all threads.

Two variables are read when an operator first runs: ``OPENREG_OPERATORS_POLICY``, a list as
``staged=warn,aten::mm=forbid`` of which the later items count, and ``OPENREG_OPERATORS_REPORT``, which prints
:func:`operator_report` and the most memory that was in use to stderr at exit (``1``; ``detailed`` also calls
:func:`set_operator_details`). A bad value is a RuntimeError that names the variable.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from _torch_openreg_device_name import device_name

from torch_openreg import _C

__all__ = [
    "operator_policy",
    "operator_report",
    "operator_stats",
    "reset_operator_stats",
    "set_operator_details",
    "set_operator_policy",
]


def operator_stats() -> dict[str, Any]:
    """Counts of the operators that ran since the start or the last reset, over all devices and threads.

    Returns:
        ``native_calls``, ``aliased_calls``, ``staged_calls``: calls by mode; ``staged_bytes``: copied for the staged
        ones, both directions together; ``staged_seconds``: the host's time for their copies and kernels. By operator
        name (``"aten::mm"``): ``native``, ``{"calls", "refused", "seconds"}``, where refused calls ran in another mode
        and the seconds are the host's until the kernel was queued; ``staged``, ``{"calls", "bytes", "seconds"}``;
        ``aliased``, ``{"calls", "seconds"}``, counted only while :func:`set_operator_details` is on.
        ``gpu_allocator``: whose memory PyTorch's kernels for GPUs allocate: ``"openreg"``; ``"torch"``, where something
        had used ``cuda`` before and every result is copied; ``None`` where no GPU's driver was opened. No count: it
        stays when the counts are reset.
    """
    return _C._operator_stats()


def reset_operator_stats() -> None:
    """Sets every count of :func:`operator_stats` to 0."""
    _C._reset_operator_stats()


def set_operator_details(enabled: bool) -> None:
    """Counts aliased calls by operator too, which costs each of them a lock. Off by default.

    Args:
        enabled: Whether to do so from now on. What was counted stays.

    Raises:
        TypeError: It is not a bool.
    """
    _C._set_operator_details(enabled)


def set_operator_policy(policy: str, mode: str = "staged", operators: Sequence[str] | None = None) -> None:
    """Sets what happens when an operator is about to run in an execution mode. Default: everything is allowed.

    Reading a single element (``item()``) and copying a whole dense tensor do not count as operators here.

    Args:
        policy: ``"allow"``; ``"warn"``, a UserWarning, once per operator; or ``"forbid"``, a RuntimeError before
            anything runs, which names the operator, device and driver, and what to do.
        mode: ``"native"``, ``"aliased"`` or ``"staged"``.
        operators: Names without overload, ``["aten::mm"]``. None: all of them, and rules for single operators of
            this mode are dropped.

    Raises:
        ValueError: An unknown policy, mode or operator of ATen, or a name with an overload or without a namespace.
        TypeError: ``operators`` holds something other than names, or is a single one.
    """
    if isinstance(operators, str):
        raise TypeError(f"operators must be a list of names, but is '{operators}'")
    if operators is not None and not operators:
        return
    _C._set_operator_policy(policy, mode, list(operators or ()))


@contextmanager
def operator_policy(policy: str, mode: str = "staged", operators: Sequence[str] | None = None) -> Iterator[None]:
    """Context manager: :func:`set_operator_policy` inside ``with``, and the policy before it again at the end.

    The policy is that of the process, so it holds for other threads too, backward passes among them.

    Args:
        policy: "allow", "warn" or "forbid".
        mode: "native", "aliased" or "staged".
        operators: Names without overload; None: all.

    Raises:
        ValueError, TypeError: As set_operator_policy().
    """
    before = _C._operator_rules()
    set_operator_policy(policy, mode, operators)
    try:
        yield
    finally:
        _C._replace_operator_rules(before)


def _bytes_text(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def _rows(mode: str, counts: dict[str, dict[str, Any]]) -> list[tuple[str, ...]]:
    slowest_first = sorted(counts.items(), key=lambda item: (-item[1]["seconds"], item[0]))
    return [
        (
            mode,
            name,
            str(count["calls"]),
            f"{count['seconds']:.6f}",
            _bytes_text(count["bytes"]) if "bytes" in count else "",
            f"{count['refused']} refused" if count.get("refused") else "",
        )
        for name, count in slowest_first
    ]


def operator_report() -> str:
    """Returns :func:`operator_stats` as a readable table: staged calls first, the slowest operators on top.

    Times are the host's, in seconds. Aliased calls are one row unless :func:`set_operator_details` is on.
    """
    stats = operator_stats()
    rows: list[tuple[str, ...]] = [("mode", "operator", "calls", "seconds", "copied", "")]
    for mode in ("staged", "native", "aliased"):
        rows += _rows(mode, stats[mode])
    rows.append(("aliased", "all", str(stats["aliased_calls"]), "", "0 B", ""))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = [f"{device_name()} operators"]
    for mode, name, *figures, note in rows:
        cells = [mode.ljust(widths[0]), name.ljust(widths[1])]
        cells += [figure.rjust(width) for figure, width in zip(figures, widths[2:], strict=True)]
        lines.append("  ".join([*cells, note]).rstrip())
    return "\n".join(lines) + "\n"


def _report_at_exit(process: int) -> None:
    # A forked child inherits its parent's counts, and this function.
    if os.getpid() != process or _C._isInBadFork():
        return
    stats = operator_stats()
    if stats["aliased_calls"] or stats["staged"] or stats["native"]:
        calls = stats["aliased_calls"]
        calls += sum(count["calls"] for mode in ("staged", "native") for count in stats[mode].values())
        peak = max(_C._memory_totals(index)[1] for index in range(_C._get_device_count()))
        ran = f"{calls} operators ran on {device_name()}, at most {_bytes_text(peak)} of a device in use\n"
        sys.stderr.write(operator_report() + ran)
        sys.stderr.flush()


def _install_report() -> None:
    """Registers the report with ``atexit`` if the variable asks for it. Its value is checked by the first operator."""
    if _C._variable("OPENREG_OPERATORS_REPORT") in ("1", "detailed"):
        atexit.register(_report_at_exit, os.getpid())
