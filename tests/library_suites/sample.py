# SPDX-License-Identifier: BSD-3-Clause
"""A plugin of pytest: takes a sample of a suite, and writes down each test's begin and result as a line of JSON.

SUITE_EVERY takes every so many of the test functions, in collection order; SUITE_FIRST of each function the first set of
parameters; SUITE_RANKS only those of classes that have a ``world_size``, of at most that; SUITE_SKIPPED only tests that
are skipped here for a reason in which this regular expression is found. With SUITE_IDS, a file of ids, those alone are run.
SUITE_PRELOADED are modules for multiprocessing's server of forks.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
from pathlib import Path
from typing import Any

import pytest


def _write(**line: Any) -> None:
    with Path(os.environ["SUITE_REPORT"]).open("a") as report:
        report.write(json.dumps(line) + "\n")


def pytest_configure() -> None:
    multiprocessing.set_forkserver_preload(os.environ.get("SUITE_PRELOADED", "").split())


def _has_ranks(item: pytest.Item, most: int) -> bool:
    size = getattr(getattr(item, "cls", None), "world_size", None)
    sizes = [each for each in (size if isinstance(size, (list, tuple)) else [size]) if isinstance(each, int)]
    return bool(sizes) and max(sizes) <= most


def _is_skipped(item: pytest.Item, pattern: str) -> bool:
    marks = item.iter_markers("skipif")
    return any(
        (True in mark.args or mark.kwargs.get("condition") is True)
        and re.search(pattern, mark.kwargs.get("reason", ""))
        for mark in marks
    )


def _sample(items: list[pytest.Item]) -> list[pytest.Item]:
    functions: dict[str, list[pytest.Item]] = {}
    skipped, ranks = os.environ.get("SUITE_SKIPPED", ""), int(os.environ.get("SUITE_RANKS", "0"))
    for item in items:
        if (not ranks or _has_ranks(item, ranks)) and (not skipped or _is_skipped(item, skipped)):
            functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    taken = list(functions.values())[:: int(os.environ.get("SUITE_EVERY", "1"))]
    return [item for each in taken for item in (each[:1] if os.environ.get("SUITE_FIRST") == "1" else each)]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ids = os.environ.get("SUITE_IDS")
    if ids is None:
        kept = _sample(items)
    else:
        wanted = set(Path(ids).read_text().split("\n"))
        kept = [item for item in items if item.nodeid in wanted]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept
    if config.option.collectonly:
        for item in items:
            _write(id=item.nodeid)


def pytest_runtest_logstart(nodeid: str) -> None:
    _write(begin=nodeid)


_found: dict[str, tuple[str, str]] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    before = _found.get(report.nodeid, ("pass", ""))
    if report.failed:
        _found[report.nodeid] = ("fail", f"{report.when}: {report.longreprtext[-3000:]}")
    elif report.skipped and before[0] == "pass":
        is_expected = hasattr(report, "wasxfail")
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
        _found[report.nodeid] = ("pass", "") if is_expected else ("skip", str(text))
    else:
        _found[report.nodeid] = before


def pytest_runtest_logfinish(nodeid: str) -> None:
    outcome, text = _found.pop(nodeid, ("pass", ""))
    _write(id=nodeid, outcome=outcome, text=text)
