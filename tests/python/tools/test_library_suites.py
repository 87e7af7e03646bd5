# SPDX-License-Identifier: BSD-3-Clause
"""tests/library_suites: the sample that it takes, and what it makes of tests that pass, fail, crash and hang."""

from __future__ import annotations

import importlib
import subprocess
from pathlib import Path
from typing import Any

import pytest
from finished import finished

TESTS = """
import os, time
import pytest

@pytest.mark.parametrize("number", range(3))
def test_passes(number):
    assert os.environ.get("OPENREG_AS_CUDA", "1") == "1"

def test_fails_on_openreg():
    assert "OPENREG_AS_CUDA" not in os.environ

def test_crashes():
    os._exit(3)

def test_hangs():
    time.sleep(1000)

@pytest.mark.skipif(True, reason="Requires: [GPUs>=2]")
def test_skipped():
    pass

@pytest.mark.xfail
def test_expected():
    assert False

class TestOfRanks:
    world_size = [1, 4]
    def test_four(self):
        assert False
"""


@pytest.fixture
def suites(root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(root / "tests/library_suites"))
    return importlib.import_module("run")


@pytest.fixture
def library(tmp_path: Path) -> dict[str, Any]:
    """A repository with tests, as the arguments of a Suite."""
    folder = tmp_path / "library"
    folder.mkdir()
    (folder / "test_it.py").write_text(TESTS)
    git = ("git", "-c", "user.name=n", "-c", "user.email=e", "-C", str(folder))
    for command in (("init", "-q"), ("add", "."), ("commit", "-qm", "tests")):
        subprocess.run([*git, *command], check=True)
    commit = finished([*git, "rev-parse", "HEAD"]).stdout.strip()
    return {"name": "library", "repository": str(folder), "commit": commit, "selection": "all", "tests": (".",)}


def run(suites: Any, tmp_path: Path, **arguments: Any) -> dict[str, Any]:
    return dict(suites.run_suite(suites.Suite(**arguments), tmp_path / "work", None, ["openreg", "cpu"]))


# a crash and a hang fail alone: what is behind them runs; what nobody knows is an error, and so is what is known and passes
def test_results(suites: Any, library: dict[str, Any], tmp_path: Path) -> None:
    known = {"test_crashes": "why", "test_hangs": "why", "test_skipped": "why"}
    found = run(suites, tmp_path, **library, known=known, limit=3)
    outcomes = {name.partition("::")[2]: outcome for name, (outcome, _) in found["results"]["openreg"].items()}
    passed = dict.fromkeys([f"test_passes[{number}]" for number in range(3)] + ["test_expected"], "pass")
    assert outcomes == passed | {
        "test_fails_on_openreg": "fail",
        "test_crashes": "fail",
        "test_hangs": "fail",
        "test_skipped": "skip",
        "TestOfRanks::test_four": "fail",
    }
    assert found["counts"]["cpu"] == {"pass": 5, "fail": 3, "skip": 1, "absent": 0}
    assert found["passes on the CPU alone"] == ["test_it.py::test_fails_on_openreg"]
    assert found["errors"] == [
        "library: test_it.py::test_fails_on_openreg: test_it.py:10: AssertionError",
        "library: known to fail, and doesn't: test_skipped",
    ]
    page = tmp_path / "page.md"
    suites.SUITES["library"] = suites.Suite(**library, known=known)
    try:
        suites.write_page(page, {"library": found})
    finally:
        del suites.SUITES["library"]
    assert "| all | 5 / 3 / 1 | 4 / 4 / 1 |" in page.read_text() and "`test_hangs`: why" in page.read_text()
    assert "- library: 1: Requires: [GPUs>=2]\n" in page.read_text()


# every second function, with its first parameters; only classes of so many ranks, or what the CPU skips for want of GPUs
def test_samples(suites: Any, library: dict[str, Any], tmp_path: Path) -> None:
    chosen = {"every": 2, "only_first_parameters": True, "known": {"crashes": ""}}
    found = run(suites, tmp_path / "half", **library, **chosen)
    names = [name.partition("::")[2] for name in found["results"]["openreg"]]
    assert names == ["test_passes[0]", "test_crashes", "test_skipped", "TestOfRanks::test_four"]
    assert not run(suites, tmp_path / "two", **library, most_ranks=2)["results"]["cpu"]
    assert list(run(suites, tmp_path / "four", **library, most_ranks=4)["results"]["cpu"]) == [
        "test_it.py::TestOfRanks::test_four"
    ]
    found = run(suites, tmp_path / "skipped", **library, skipped_on_cpu="GPUs")
    assert list(found["results"]["cpu"]) == ["test_it.py::test_skipped"]
