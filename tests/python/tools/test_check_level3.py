# SPDX-License-Identifier: BSD-3-Clause
"""Level 3 of the check of a driver: a right driver passes, and drivers with a defect in what PyTorch uses don't."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from finished import finished

from torch_openreg_lab.check import level3, registry

ROOT = Path(__file__).resolve().parents[3]

MUTANTS = (
    # a kernel that takes every tensor for a contiguous one; that writes beside its result
    ("kernel_strides", "operators.elements"),
    ("kernel_beside", "operators.elements"),
    # of 64-bit integers only the lower halves; in place, into nothing; into the tensor of out=, nothing
    ("kernel_int64_halves", "operators.elements"),
    ("kernel_in_place_nothing", "operators.elements"),
    ("kernel_out_nothing", "operators.elements"),
    # one of several dimensions is summed; parts on top of each other; an index with gaps, read without
    ("kernel_sum_one_dim", "operators.reductions"),
    ("kernel_cat_over", "operators.shapes"),
    ("kernel_cat_over", "training.attention"),
    ("kernel_index_dense", "operators.indexing"),
    # a transposed matrix read as if it were not
    ("kernel_mm_transposed", "operators.matrices"),
    ("kernel_mm_transposed", "operators.layers"),
    # relu's gradient is not multiplied with that of its result
    ("kernel_gradient", "operators.activations"),
    ("kernel_gradient", "training.linear"),
    ("kernel_gradient", "training.convolution"),
    # a kernel that does not wait for its stream; a stream that does not wait for another one
    ("kernel_stream", "streams.operators"),
    ("wait_not", "streams.wait"),
    # microseconds for milliseconds; an event that is complete at once, so that freed memory is used again too early
    ("elapsed_us", "streams.events"),
    ("event_done", "memory.reuse"),
    # another code than that of out of memory; memory that is not given back
    ("nomem_code", "memory.exhaustion"),
    ("free_forgets", "memory.returned"),
    ("kernel_in_place_nothing", "programs.random"),
)
"""A defect, and a check that it fails. The defects are in tests/drivers/mutants/mutants.h."""


def run_check(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {k: v for k, v in os.environ.items() if not k.startswith("OPENREG_")} | environment
    command = [sys.executable, "-m", "torch_openreg", "check", *arguments]
    return finished(command, status=None, env=variables, timeout=800)


@pytest.fixture(scope="module")
def mutants(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The simulated devices with kernels and, by a variable, one defect."""
    library = tmp_path_factory.mktemp("mutants") / "libmutants.so"
    folders = [ROOT / "tests/drivers/mutants", ROOT / "runtime/drivers/sim"]
    sources = [str(source) for folder in folders for source in sorted(folder.glob("*.c"))]
    shared = (ROOT / "runtime/include", ROOT / "runtime/src", ROOT / "tests/drivers")
    includes = [f"-I{folder}" for folder in (*shared, *folders)]
    flags = ["-std=gnu11", "-O1", "-shared", "-fPIC", "-fvisibility=hidden"]
    script = f"-Wl,--version-script={ROOT / 'tests/drivers/driver.map'}"
    command = [os.environ.get("CC", "cc"), *flags, *includes, *sources, script, "-lpthread", "-lm", "-o", str(library)]
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
    assert report["verdict"] == "no failure"
    assert len(ElementTree.parse(tmp_path / "check.xml").getroot()) == 2


# a name that nobody has is refused with its reason, whatever is to be written
def test_a_driver_that_nobody_has(tmp_path: Path) -> None:
    for only in ((), ("--only", "training.linear")):
        done = run_check("nosuch", "--level", "3", *only, "--json", str(tmp_path / "check.json"))
        assert done.returncode == 2, done.stdout + done.stderr
        assert "'nosuch' is not in the list of known drivers: ['cuda', 'hip', 'sim'" in done.stderr, done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        assert not (tmp_path / "check.json").exists()


# each defect is found by the check that is there for it
@pytest.mark.long
@pytest.mark.parametrize(("defect", "check"), MUTANTS)
def test_defects_are_found(defect: str, check: str, mutants: Path) -> None:
    done = run_check(str(mutants), "--level", "3", "--only", check, "--time", "20", OPENREG_MUTANT=defect)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"FAIL  {check}" in done.stdout
    assert "rule  " in done.stdout


# the driver in which defects are planted has none without them, on its own kernels
@pytest.mark.long
@pytest.mark.timeout(900)
def test_no_defect_is_found_where_there_is_none(mutants: Path) -> None:
    done = run_check(str(mutants), "--level", "3", "--time", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "level 3, seed 1" in done.stdout


# no check is there that finds nothing
def test_each_check_finds_a_defect() -> None:
    assert {check for _, check in MUTANTS} == set(level3.all_checks())
    planted = set(re.findall(r"X\((\w+), ", (ROOT / "tests/drivers/mutants/mutants.h").read_text()))
    assert {defect for defect, _ in MUTANTS} <= planted


# the defects that a driver must not get away with: the page names for each what is planted, and what finds it
def test_the_table_of_defects() -> None:
    page = (ROOT / "docs/verifying-a-driver.md").read_text()
    rows = re.findall(r"^\| ([^|`]+) \| (`[^|]+`) \| (`[^|]+`) \|$", page, re.MULTILINE)
    assert len(rows) >= 14
    found_by = dict(re.findall(r'X\((\w+), "([^"]*)"\)', (ROOT / "tests/drivers/mutants/mutants.h").read_text()))
    for text, defects, checks in rows:
        names = set(re.findall(r"`([\w.]+)`", checks))
        for defect in re.findall(r"`(\w+)`", defects):
            known = set(found_by[defect].split()) | {check for planted, check in MUTANTS if planted == defect}
            assert known & names, (text, defect)


# the pages and the program agree on how many checks and planted defects there are
def test_the_numbers_on_pages() -> None:
    checks = len(run_check("--list").stdout.splitlines())
    defects = (
        len(re.findall(r"^    X\((?!odd_)", (ROOT / "tests/drivers/mutants/mutants.h").read_text(), re.MULTILINE)) + 1
    )
    found = {
        name: re.findall(r"(\d+)(?: conformance)? checks of", (ROOT / name).read_text())
        for name in ("README.md", "CHANGELOG.md", "docs/start-vendor.md", "docs/site/index.md")
    }
    assert all(numbers and set(numbers) <= {str(checks)} for numbers in found.values()), (checks, found)
    assert f"one of {defects} planted defects" in (ROOT / "docs/verifying-a-driver.md").read_text(), defects


# a check that ends its process, and one that does not end, are failures that say so
def test_crashes_and_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    options = level3.Options(driver="sim", level=3, timeout=20, seconds=0.1)
    environment = dict(os.environ, OPENREG_DRIVERS="absent_driver")
    lost = level3.run_check(level3.all_checks()["memory.returned"], options, environment)
    assert lost["outcome"] == "failed"
    options.timeout = 0.2
    hung = level3.run_check(level3.all_checks()["memory.returned"], options, dict(os.environ))
    assert (hung["outcome"], hung["message"]) == ("failed", "it did not end within 0 seconds")


# the samples are the seed's: the same seed the same ones, another seed others, and what was not tried is named
def test_samples_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    operators = importlib.import_module("torch_openreg_lab.check.operators")
    monkeypatch.setattr(
        operators._Task, "_failures_of", lambda self, n, _: tried.append(f"{self.name} {n}") or iter(())
    )
    monkeypatch.setattr(operators, "DTYPES", operators.DTYPES[:1])

    def samples_of(seed: int) -> list[str]:
        monkeypatch.setattr(operators.time, "monotonic", iter([0.0] + [9e9] * 1000).__next__)
        tried.clear()
        left = operators._run(["mm", "gather"], registry.Limits(seed, 1.0))
        assert "samples of 2 operators and types" in left
        assert "mm (gradients)" in left
        return list(tried)

    assert samples_of(1) == samples_of(1)
    assert set(samples_of(1)) != set(samples_of(2))


# a waiver shows a failure as known, and is a failure where the check passes
def test_waivers() -> None:
    known = ("memory.returned=kept by the vendor's cache",)
    result = {"name": "memory.returned", "outcome": "failed", "message": "left"}
    level3.apply_known(result, known)
    assert (result["outcome"], result["known"]) == ("known", "kept by the vendor's cache")
    result = {"name": "memory.returned", "outcome": "passed", "message": ""}
    level3.apply_known(result, known)
    assert result["outcome"] == "failed"
    assert "take that away" in result["message"]


# without PyTorch's database the operators are skipped, and level 3 is not reached
def test_a_level_without_its_heart(capsys: pytest.CaptureFixture[str]) -> None:
    checks = [
        {"name": "operators.shapes", "level": 3, "outcome": "skipped", "message": "no database"},
        {"name": "memory.returned", "level": 3, "outcome": "passed", "message": ""},
    ]
    report = {"abi": "1.0", "driver": "sim", "seconds": 1.0, "checks": checks}
    assert level3._finish(level3.Options(driver="sim", level=3), report, 0) == 77
    assert (report["conforms"], report["verdict"]) == (False, "level not reached")
    told = capsys.readouterr().out
    assert "\nlevel 3 was not reached: operators.shapes skipped: no database\n" in told
    assert "not checked\n  operators.shapes: no database\n" in told
    checks.append({"name": "memory.reuse", "level": 3, "outcome": "failed", "message": "no"})
    assert level3._finish(level3.Options(driver="sim", level=3), report, 0) == 1
    assert "nor was level 3 reached: operators.shapes skipped: no database\n" in capsys.readouterr().out


# variables that decide how operators run would be dropped: they are refused by name
def test_variables_of_operators_are_refused() -> None:
    done = run_check("sim", "--level", "3", "--only", "memory.returned", OPENREG_OPERATORS="staged")
    assert done.returncode == 2
    assert "OPENREG_OPERATORS:" in done.stderr


# wrong command lines are openreg-check's to refuse; names and rules of level 3 are told
def test_command_lines() -> None:
    assert run_check("sim", "--level", "4").returncode == 2
    assert run_check("sim", "--level", "3", "--unknown", "1").returncode == 2
    told = run_check("--explain", "streams.operators")
    assert told.returncode == 0
    assert "rule   An operator on a stream begins" in told.stdout
    assert "3  programs.random" in run_check("--list", "--level", "3").stdout
