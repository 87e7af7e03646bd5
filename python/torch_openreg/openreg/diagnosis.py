# SPDX-License-Identifier: BSD-3-Clause
"""Says what is chosen, why, and what could be done about it."""

from __future__ import annotations

import os
from typing import Any, Literal, overload

import torch
from _torch_openreg_device_name import device_name, is_a_vendors, shown

from torch_openreg import _C
from torch_openreg._build_info import OPENREG_VERSION, TORCH_VERSION
from torch_openreg._discovery import preferences, search, variables
from torch_openreg.openreg import _lazy
from torch_openreg.openreg.drivers import _records
from torch_openreg.openreg.selection import _open

__all__ = ["diagnose"]

_CHOSEN = {
    "none": "nothing is chosen",
    "call": f"chosen by torch.{device_name()}.use_driver()",
    "environment": "chosen by the variable OPENREG_DRIVERS",
    "preference": "chosen by the stored preference",
    "automatic": "chosen automatically: the driver of highest priority that works",
}


def _shown() -> list[dict[str, Any]]:
    """The records of drivers; under a vendor's name those alone that may answer to it, or do."""
    is_vendors = is_a_vendors(device_name())
    return [record for record in _records() if not is_vendors or record["is_plugin"] or record["is_active"]]


def summary() -> dict[str, Any]:
    """What diagnose() prints, as far as it is known without opening a driver; devices are counted."""
    count = _C._get_device_count()
    return {
        "versions": {
            "torch_openreg": OPENREG_VERSION,
            "runtime": _C._runtime_version(),
            "torch": torch.__version__,
            "built against torch": TORCH_VERSION,
        },
        "selection": _C._selection() | {"device_count": count},
        "drivers": _shown(),
        "variables": {key: value for key in sorted(os.environ) if (value := _C._variable(key)) is not None},
        "preference": {
            "path": str(preferences.path_to_read()),
            "stored": preferences.read(),
            "in effect": preferences.snapshot(),
        },
        "plugins": [vars(plugin) for plugin in search.found_plugins()],
    }


def _open_all() -> str:
    """Opens the chosen drivers, then the others. Returns why the former failed, or ""."""
    failure = ""
    try:
        _lazy._lazy_init()
    except RuntimeError as error:
        failure = str(error)
    for record in _shown():
        if record["state"] not in ("open", "failed"):
            _open(record["name"])
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
        advice.append(f"The preference '{wish}' is not a known driver; `prefer --clear` removes it.")
    elif wish and states[wish] != "open":
        advice.append(f"The preferred driver '{wish}' doesn't work; `prefer --clear` removes the preference.")
    for name, reason in failed_plugins(facts).items():
        advice.append(f"The plugin {name} failed: {reason}")
    advice += [variables.text_of(name, nearest) for name, nearest in variables.unread(states).items()]
    return advice or ["Nothing to be done."]


def failed_plugins(facts: dict[str, Any]) -> dict[str, str]:
    """Why plugins failed: by the module that registered nothing, or by the driver that doesn't work."""
    modules = {plugin["module"]: plugin["error"] for plugin in facts["plugins"] if plugin["error"]}
    plugins = (record for record in facts["drivers"] if record["is_plugin"] and record["state"] == "failed")
    return modules | {record["name"]: record["message"] for record in plugins}


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
    return _table([(key, "-" if value in (None, "") else str(value)) for key, value in pairs.items()])


def _driver_lines(records: list[dict[str, Any]], plugins: list[dict[str, Any]]) -> list[str]:
    # A module that registered no driver has a row as well: its driver is what somebody looks for here.
    failed = [plugin for plugin in plugins if plugin["error"]]
    cells = [_cell(record) for record in records]
    cells += [(plugin["module"], "failed", "-", "?", "-", plugin["found_by"]) for plugin in failed]
    details = [[record["path"], *record["message"].splitlines()] for record in records]
    details += [plugin["error"].splitlines() for plugin in failed]
    header, *rows = _table([("name", "state", "priority", "devices", "kind", "source"), *cells])
    lines = [header]
    for row, texts in zip(rows, details, strict=True):
        lines.append(row)
        lines.extend(f"      {text.strip()}" for text in texts if text)
    return lines


def text_of(facts: dict[str, Any]) -> str:
    """Writes what summary() or diagnose() found for people."""
    selection = facts["selection"]
    lines = ["Versions", *_pairs(facts["versions"]), "", "Devices"]
    lines.append(f"  {selection['device_count']} device(s)")
    if selection["default_driver"]:
        lines.append(f"  driver {selection['default_driver']}, {_CHOSEN[selection['chosen_by']]}")
    else:
        lines += [f"  {line}" for line in (facts.get("error") or "no driver is open yet").splitlines()]
    lines += ["", "Drivers", *_driver_lines(facts["drivers"], facts["plugins"]), "", "Variables"]
    lines += _pairs(facts["variables"]) if facts["variables"] else ["  none of OPENREG_* is set"]
    lines += ["", "Preference", *_pairs(facts["preference"]), "", "Plugins"]
    lines += [f"  {p['module']}.{p['function']} ({p['found_by']})" for p in facts["plugins"]] or ["  none"]
    if "advice" in facts:
        lines += ["", "Advice", *(f"  {line}" for line in facts["advice"])]
    return "\n".join(shown(line) for line in lines)


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
