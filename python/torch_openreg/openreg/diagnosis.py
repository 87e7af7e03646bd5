# SPDX-License-Identifier: BSD-3-Clause
"""Says what is chosen, why, and what could be done about it."""

from __future__ import annotations

import os
from typing import Any, Literal, overload

import torch

from torch_openreg import _C, _discovery, _preferences
from torch_openreg._build_info import OPENREG_VERSION, TORCH_VERSION
from torch_openreg.openreg import _lazy
from torch_openreg.openreg.drivers import _records

__all__ = ["diagnose"]

_CHOSEN = {
    "none": "nothing is chosen",
    "call": "chosen by torch.openreg.use_driver()",
    "environment": "chosen by the variable OPENREG_DRIVERS",
    "preference": "chosen by the stored preference",
    "automatic": "chosen automatically: the driver of highest priority that works",
}


def summary() -> dict[str, Any]:
    """What diagnose() tells, as far as it is known without opening a driver; devices are counted."""
    count = _C._get_device_count()
    return {
        "versions": {
            "torch_openreg": OPENREG_VERSION,
            "runtime": _C._runtime_version(),
            "torch": torch.__version__,
            "built against torch": TORCH_VERSION,
        },
        "selection": _C._selection() | {"device_count": count},
        "drivers": _records(),
        "variables": {key: os.environ[key] for key in sorted(os.environ) if key.startswith("OPENREG_")},
        "preference": {
            "path": str(_preferences.path_to_read()),
            "stored": _preferences.read(),
            "in effect": _preferences.snapshot(),
        },
        "plugins": [vars(plugin) for plugin in _discovery.found_plugins()],
    }


def _open_all() -> str:
    """Opens the chosen drivers, then the others. Returns why the former failed, or ""."""
    failure = ""
    try:
        _lazy._lazy_init()
    except RuntimeError as error:
        failure = str(error)
    for record in _records():
        if record["state"] not in ("open", "failed"):
            try:
                _C._open_driver(record["name"])
            except (RuntimeError, NotImplementedError, MemoryError):
                continue  # the runtime remembers why
    return failure


def _advice(facts: dict[str, Any]) -> list[str]:
    advice = []
    selection, preference = facts["selection"], facts["preference"]
    states = {record["name"]: record["state"] for record in facts["drivers"]}
    if facts["error"]:
        advice.append("No devices can be used until this is solved: " + facts["error"].splitlines()[0])
    if selection["chosen_by"] == "automatic" and selection["default_driver"] == "sim":
        advice.append("No GPU driver works, so the devices are simulated; the reasons are listed with the drivers.")
    if preference["stored"] != preference["in effect"]:
        advice.append("The stored preference has changed; it takes effect when Python is restarted.")
    wish = preference["in effect"]
    if wish and selection["chosen_by"] == "environment":
        advice.append(f"The preference '{wish}' is ignored, because OPENREG_DRIVERS is set.")
    elif wish and wish not in states:
        advice.append(f"The preference '{wish}' is no known driver; `prefer --clear` removes it.")
    elif wish and states[wish] != "open":
        advice.append(f"The preferred driver '{wish}' doesn't work; `prefer --clear` removes the preference.")
    for plugin in facts["plugins"]:
        if plugin["error"]:
            advice.append(f"The plugin {plugin['module']} failed: {plugin['error']}")
    return advice or ["Nothing to be done."]


def _cell(record: dict[str, Any]) -> tuple[str, ...]:
    kind = [word for word in ("active", "gpu", "mock", "experimental") if record[f"is_{word}"]]
    count = record["device_count"]
    return (
        record["name"],
        record["state"],
        str(record["priority"]),
        "?" if count < 0 else str(count),
        ", ".join(kind) or "-",
        record["source"],
    )


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)
    return ["  " + line.rstrip() for line in lines]


def _pairs(pairs: dict[str, Any]) -> list[str]:
    return _table([(str(key), "-" if value in (None, "") else str(value)) for key, value in pairs.items()])


def _driver_lines(records: list[dict[str, Any]]) -> list[str]:
    header, *rows = _table(
        [("name", "state", "priority", "devices", "kind", "source"), *(_cell(record) for record in records)]
    )
    lines = [header]
    for record, row in zip(records, rows, strict=True):
        lines.append(row)
        details = [record["path"], *record["message"].splitlines()]
        lines.extend(f"      {detail.strip()}" for detail in details if detail)
    return lines


def text_of(facts: dict[str, Any]) -> str:
    """Writes what summary() or diagnose() found for people."""
    selection = facts["selection"]
    lines = ["Versions", *_pairs(facts["versions"]), "", "Devices"]
    lines.append(f"  {selection['device_count']} device(s)")
    if selection["default_driver"]:
        lines.append(f"  driver {selection['default_driver']}, {_CHOSEN[selection['chosen_by']]}")
    else:
        lines.append("  no driver is open yet" if not facts.get("error") else f"  {facts['error']}")
    lines += ["", "Drivers", *_driver_lines(facts["drivers"]), "", "Variables"]
    lines += _pairs(facts["variables"]) if facts["variables"] else ["  none of OPENREG_* is set"]
    lines += ["", "Preference", *_pairs(facts["preference"]), "", "Plugins"]
    lines += [f"  {p['module']}.{p['function']} ({p['found_by']})" for p in facts["plugins"]] or ["  none"]
    if "advice" in facts:
        lines += ["", "Advice", *(f"  {line}" for line in facts["advice"])]
    return "\n".join(lines)


@overload
def diagnose(*, as_dict: Literal[False] = False) -> str: ...


@overload
def diagnose(*, as_dict: Literal[True]) -> dict[str, Any]: ...


def diagnose(*, as_dict: bool = False) -> str | dict[str, Any]:
    """Reports which driver is chosen and why, the state of each driver, and what could be done. Opens drivers.

    Args:
        as_dict: The same as data.

    Returns:
        A text of several lines, or a dict with ``versions``, ``selection``, ``drivers``, ``variables``,
        ``preference``, ``plugins``, ``error`` (why no device can be used, or "") and ``advice``.
    """
    error = _open_all()
    facts = summary() | {"error": error}
    facts["advice"] = _advice(facts)
    return facts if as_dict else text_of(facts)
