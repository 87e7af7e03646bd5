# SPDX-License-Identifier: BSD-3-Clause
"""Level 3 of the check of a driver: a right driver passes, and drivers with a defect in what PyTorch uses don't."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from torch_openreg._check import level3

MUTANTS = {
    "kernel_strides": "operators.elements",
    "kernel_beside": "operators.elements",
    "kernel_stream": "streams.operators",
}
"""A defect, and the check that it fails. The defects are in tests/drivers/mutants/mutants.h."""


def run_check(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {k: v for k, v in os.environ.items() if not k.startswith("OPENREG_")} | environment
    command = [sys.executable, "-m", "torch_openreg", "check", *arguments]
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=500, check=False)


@pytest.fixture(scope="module")
def mutants(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The simulated devices with a kernel and, by a variable, one defect."""
    root = Path(__file__).resolve().parents[3]
    library = tmp_path_factory.mktemp("mutants") / "libmutants.so"
    folders = [root / "tests/drivers/mutants", root / "runtime/drivers/sim"]
    sources = [str(source) for folder in folders for source in sorted(folder.glob("*.c"))]
    includes = [f"-I{folder}" for folder in (root / "runtime/include", root / "runtime/src", *folders)]
    flags = ["-std=gnu11", "-O1", "-shared", "-fPIC", "-fvisibility=hidden"]
    script = f"-Wl,--version-script={root / 'tests/drivers/driver.map'}"
    command = [os.environ.get("CC", "cc"), *flags, *includes, *sources, script, "-lpthread", "-o", str(library)]
    subprocess.run(command, check=True)
    return library


# a right driver: no failure; the reports say what was run, and the status is 0
def test_a_right_driver(tmp_path: Path) -> None:
    names = "training.linear,memory.returned"
    files = ("--json", str(tmp_path / "check.json"), "--junit", str(tmp_path / "check.xml"))
    done = run_check("sim", "--level", "3", "--only", names, "--seed", "5", "--verbose", *files)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "level 3: 2 passed, 0 failed, 0 skipped" in done.stdout
    assert "not checked" in done.stdout
    report = json.loads((tmp_path / "check.json").read_text())
    assert [check["name"] for check in report["checks"]] == ["memory.returned", "training.linear"]
    assert report["seed"] == 5
    assert report["conforms"] is False  # of two checks that can't be said
    assert len(ElementTree.parse(tmp_path / "check.xml").getroot()) == 2


# a kernel that ignores strides, one that writes beside its result, one that runs before its stream has come to it
@pytest.mark.slow
@pytest.mark.parametrize("defect", MUTANTS)
def test_defects_are_found(defect: str, mutants: Path) -> None:
    check = MUTANTS[defect]
    done = run_check(str(mutants), "--level", "3", "--only", check, "--time", "1", OPENREG_MUTANT=defect)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"FAIL  {check}" in done.stdout
    assert "rule  " in done.stdout


# a check that ends its process, and one that does not end, are failures that say so
def test_crashes_and_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    options = level3.Options(driver="sim", level=3, timeout=20, seconds=0.1)
    environment = dict(os.environ, OPENREG_DRIVERS="absent_driver")
    lost = level3.run_check(level3.all_checks()["memory.returned"], options, environment)
    assert lost["outcome"] == "failed"
    options.timeout = 0.2
    hung = level3.run_check(level3.all_checks()["memory.returned"], options, dict(os.environ))
    assert (hung["outcome"], hung["message"]) == ("failed", "it did not end within 0 seconds")


# wrong command lines are openreg-check's to refuse; names and rules of level 3 are told
def test_command_lines() -> None:
    assert run_check("sim", "--level", "4").returncode == 2
    assert run_check("sim", "--level", "3", "--unknown", "1").returncode == 2
    told = run_check("--explain", "streams.operators")
    assert told.returncode == 0
    assert "rule   An operator on a stream begins" in told.stdout
    assert "3  programs.random" in run_check("--list", "--level", "3").stdout
