# SPDX-License-Identifier: BSD-3-Clause
"""Runs the tests that cover the rows of tests/acceptance.md, and prints which rows hold.

A test names its rows in a comment: ``# acceptance 5.35`` or ``// acceptance 5.35, 5.36``, either in front of the test
or inside it. From a shell, with a build that has the tests::

    python tools/acceptance.py --build build          run them; status 1 unless every row holds that has a meaning here
    python tools/acceptance.py --list                 only say which test covers which row
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_ROW = re.compile(r"\| (\d\.\d+b?) \| ([DTX]) \| ([^|]+) \| ([^|]+) \|")
_NAMED = re.compile(r"(?:#|//).*?\bacceptance (\d\.\d+[ab]?(?:, \d\.\d+[ab]?)*)")
_IN_CTEST = re.compile(r"(?:^|[./])(\w+\.\w+)(?:/\w+)?$")
_CPP_TEST = re.compile(r"(?:TYPED_)?TEST(?:_F|_P)?\((\w+), (\w+)\)")


@dataclass(frozen=True)
class Row:
    """One behaviour: its number, its kind ("D", "T" or "X"), what must hold, and how that is checked."""

    number: str
    kind: str
    text: str
    check: str


@dataclass(frozen=True)
class Test:
    """A test by its source file (relative to the root) and its name: a function, or "Suite.Name"."""

    file: str
    name: str

    @property
    def layer(self) -> str:
        """Folder under tests: runtime, shim or python."""
        return Path(self.file).parts[1]


@dataclass
class Results:
    """Outcomes ("passed", "failed" or "skipped: why") of tests; one test may have several, by its parameters."""

    outcomes: dict[Test, list[str]] = field(default_factory=lambda: defaultdict(list))

    def read(self, report: Path, tests: Iterable[Test]) -> None:
        """Adds the outcomes in a JUnit report, as pytest, ctest and GoogleTest write it."""
        by_name = defaultdict(list)
        for test in tests:
            by_name[test.name].append(test)
        for case in ElementTree.parse(report).iter("testcase"):
            name = case.get("name", "").partition("[")[0]
            place = case.get("classname", "")
            # GoogleTest's suite is the class; ctest has all in the name, with a prefix, and for parameters more:
            # "runtime.Suite.Name", "runtime.Set/Suite.Name/parameter".
            in_ctest = _IN_CTEST.search(name)
            for known in (name, f"{place}.{name}", in_ctest[1] if in_ctest else ""):
                for test in by_name.get(known, ()):
                    if test.layer != "python" or place == test.file.removesuffix(".py").replace("/", "."):
                        self.outcomes[test].append(_outcome(case))
                if known in by_name:
                    break


def _outcome(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None or case.get("status") == "fail":
        return "failed"
    skipped = case.find("skipped")
    if skipped is not None:
        return f"skipped: {skipped.get('message', '').strip()}"
    return "passed"


def read_rows(root: Path = ROOT) -> dict[str, Row]:
    """Returns the rows of tests/acceptance.md by number, in their order."""
    rows = {}
    for line in (root / "tests/acceptance.md").read_text().splitlines():
        match = _ROW.fullmatch(line)
        if match is not None:
            if match[1] in rows:
                raise SystemExit(f"tests/acceptance.md has two rows {match[1]}")
            rows[match[1]] = Row(*match.groups())
        elif re.match(r"\| \d", line):
            raise SystemExit(f"tests/acceptance.md has a malformed row: {line}")
    return rows


def _tests_by_line(path: Path) -> list[tuple[int, str]]:
    """First lines and names of the tests of a file, in order."""
    text = path.read_text()
    if path.suffix == ".py":
        return [
            (min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]), node.name)
            for node in ast.parse(text).body
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        ]
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        match = _CPP_TEST.match(line)
        if match is not None:
            found.append((number, f"{match[1]}.{match[2]}"))
    return found


def _named_rows(path: Path, known: dict[str, Row]) -> Iterator[tuple[str, str]]:
    """Pairs of a row and the test that names it."""
    tests = _tests_by_line(path)
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = _NAMED.search(line)
        if match is None:
            continue
        # At the margin a comment belongs to the test that follows, else to the one that it stands in.
        in_front = line[0] in "#/"
        candidates = [name for at, name in tests if (at > number) == in_front]
        if not candidates:
            raise SystemExit(f"{path}:{number}: names a row, but there is no test it could mean")
        for row in match[1].split(", "):
            # "5.57a" is a part of row 5.57, "5.58b" a row.
            exact = row if row in known else row.rstrip("ab")
            if exact not in known:
                raise SystemExit(f"{path}:{number}: names the unknown row {row}")
            yield exact, candidates[0 if in_front else -1]


def find_tests(root: Path = ROOT) -> dict[str, list[Test]]:
    """Returns for each row the tests that name it."""
    rows = read_rows(root)
    found: dict[str, list[Test]] = {number: [] for number in rows}
    for path in sorted((root / "tests").rglob("*")):
        if path.suffix in (".py", ".cc"):
            for row, name in _named_rows(path, rows):
                test = Test(str(path.relative_to(root)), name)
                if test not in found[row]:
                    found[row].append(test)
    return found


def _run(command: list[str]) -> None:
    """Runs a test runner; its report says what failed."""
    print("+", " ".join(command[:4]), "...", flush=True)
    subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.DEVNULL)


def run_tests(tests: set[Test], build: Path) -> Results:
    """Runs tests of all layers, the compiled ones of the folder `build`."""
    results = Results()
    layers = {layer: sorted({t for t in tests if t.layer == layer}, key=str) for layer in ("runtime", "shim", "python")}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        if layers["runtime"]:
            names = "|".join(re.escape(test.name) for test in layers["runtime"])
            _run(
                ["ctest", "--test-dir", str(build), "-R", rf"[./]({names})(/|$)", "--output-junit", str(report), "-j2"]
            )
            results.read(report, layers["runtime"])
        if layers["shim"]:
            names = ":".join(test.name for test in layers["shim"])
            for program in ("shim_test", "shim_driver_test"):
                report.unlink(missing_ok=True)
                _run([str(build / "tests/shim" / program), f"--gtest_filter={names}", f"--gtest_output=xml:{report}"])
                results.read(report, layers["shim"])
        if layers["python"]:
            os.environ["OPENREG_TEST_LONG"] = "1"
            nodes = [f"{test.file}::{test.name}" for test in layers["python"]]
            _run([sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *nodes])
            results.read(report, layers["python"])
    return results


def verdict(row: Row, tests: list[Test], results: Results) -> str:
    """Returns "passes" (with the number of skipped variants, if any), "without meaning here", or what is wrong."""
    if row.kind == "X":
        return "without meaning here"
    if not tests:
        return "NO TEST"
    outcomes = [outcome for test in tests for outcome in results.outcomes.get(test, ["did not run"])]
    wrong = [outcome for outcome in outcomes if outcome in ("failed", "did not run")]
    if wrong:
        return wrong[0].upper()
    skipped = [outcome for outcome in outcomes if outcome.startswith("skipped")]
    if len(skipped) == len(outcomes):
        return skipped[0].upper()
    return f"passes, {len(skipped)} variant(s) skipped" if skipped else "passes"


def main() -> int:
    """Prints the rows; returns 1 if one that must hold does not."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="build folder with the compiled tests")
    parser.add_argument("--list", action="store_true", help="only print the tests of each row")
    arguments = parser.parse_args()
    rows, tests = read_rows(), find_tests()
    if arguments.list:
        for number, row in rows.items():
            print(f"{number:6} {row.kind}  {row.text}\n          {row.check}")
            for test in tests[number]:
                print(f"          {test.file}::{test.name}")
        return 0
    results = run_tests({test for named in tests.values() for test in named}, arguments.build.resolve())
    verdicts = {number: verdict(row, tests[number], results) for number, row in rows.items()}
    for number, row in rows.items():
        print(f"{number:6} {row.kind}  {verdicts[number]:29} {len(tests[number]):2} test(s)  {row.text}")
    passing = sum(each.startswith("passes") for each in verdicts.values())
    partly = sum(each.startswith("passes,") for each in verdicts.values())
    total = sum(row.kind != "X" for row in rows.values())
    print(
        f"\n{passing} of {total} rows pass, {partly} of them with variants skipped; "
        f"{len(rows) - total} have no meaning here"
    )
    return 0 if passing == total else 1


if __name__ == "__main__":
    sys.exit(main())
