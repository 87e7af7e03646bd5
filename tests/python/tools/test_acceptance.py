# SPDX-License-Identifier: BSD-3-Clause
"""tests/acceptance.md and the tool that reads it."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest
from checkout_modules import load


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    """tools/acceptance.py as a module."""
    return load("tools/acceptance.py")


# each row says how it is seen, or which other row shows it
def test_rows_are_given_when_then(tool: ModuleType, root: Path) -> None:
    rows = tool.read_rows(root)
    assert len(rows) > 170
    for row in rows.values():
        refers = row.kind == "X" or re.fullmatch(r"(as|see) (\d\.\d+b?|those rows)", row.check)
        assert refers or re.match(r"GIVEN .+ WHEN .+ THEN .+", row.check), (row.number, row.check)


# a row twice, or one that the tool can't read, is an error and not a row that silently vanishes
@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["| 1.1 | D | a | GIVEN b WHEN c THEN d |"] * 2, "two rows 1.1"),
        (["| 1.2 | D | only three cells |"], "malformed row"),
        (["| 1.3 | Q | a | GIVEN b WHEN c THEN d |"], "malformed row"),
    ],
)
def test_bad_rows_are_errors(tool: ModuleType, tmp_path: Path, lines: list[str], message: str) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "acceptance.md").write_text("\n".join(lines) + "\n")
    with pytest.raises(SystemExit, match=message):
        tool.read_rows(tmp_path)


# a row that no test names is reported as such, unless it has no meaning here
def test_rows_without_a_test_do_not_pass(tool: ModuleType) -> None:
    assert tool.verdict(tool.Row("1.1", "D", "a", "b"), [], tool.Results()) == "NO TEST"
    assert tool.verdict(tool.Row("1.1", "X", "a", "b"), [], tool.Results()) == "without meaning here"
    test = tool.Test("tests/python/tools/test_acceptance.py", "test_x")
    assert tool.verdict(tool.Row("1.1", "D", "a", "b"), [test], tool.Results()) == "DID NOT RUN"
    results = tool.Results()
    results.outcomes[test].append("passed")
    assert tool.verdict(tool.Row("1.1", "D", "a", "b"), [test], results) == "passes"
    results.outcomes[test] += ["skipped: no GPU", "skipped: no GPU"]
    assert tool.verdict(tool.Row("1.1", "D", "a", "b"), [test], results) == "passes, 2 variant(s) skipped"


# every row that a test names is there
def test_tests_name_rows_that_exist(tool: ModuleType, root: Path) -> None:
    covered = tool.find_tests(root)
    rows = tool.read_rows(root)
    missing = [number for number, tests in covered.items() if not tests and rows[number].kind != "X"]
    assert missing == []
