# SPDX-License-Identifier: BSD-3-Clause
"""Which versions of torch are supported: one list, in cmake/OpenregTorch.cmake, and what each page and file says of it."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
import yaml
from finished import finished

ROOT = Path(__file__).resolve().parents[3]
LISTED = re.search(r"OPENREG_TORCH_MINORS ([\d. ]+)\)", (ROOT / "cmake/OpenregTorch.cmake").read_text())
MINORS = LISTED[1].split() if LISTED else []


def minor(number: int) -> str:
    return f"2.{number}"


FIRST, LAST = (int(version.removeprefix("2.")) for version in (MINORS[0], MINORS[-1]))


# the requirement of the sdist, which a resolver reads, whatever torch is here
def test_requirement_of_the_sdist(tmp_path: Path) -> None:
    # The functions of setup.py alone.
    functions = (ROOT / "setup.py").read_text().partition("# Beside `build`")[0]
    assert functions.count("def ") > 4
    (tmp_path / "functions.py").write_text(functions.replace("__file__", repr(str(ROOT / "setup.py"))))
    code = "import sys; sys.argv[:] = ['setup.py', 'sdist']; from functions import *; print(torch_requirement())"
    done = finished([sys.executable, "-c", code], status=None, cwd=tmp_path)
    assert done.stdout == f"torch>={MINORS[0]},<{minor(LAST + 1)}\n", done.stderr


# CMake refuses an older one, and warns of a newer one
@pytest.mark.parametrize(
    ("version", "said"),
    [
        (f"{minor(FIRST - 1)}.1", "is older than"),
        (f"{minor(LAST + 1)}.0", "is not supported: nobody has tested"),
        (f"{minor(FIRST)}.0+cpu", ""),
    ],
)
def test_cmake(tmp_path: Path, version: str, said: str) -> None:
    torch = tmp_path / "torch"
    torch.mkdir()
    (torch / "version.py").write_text(f"__version__ = '{version}'\n")
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.22)\nproject(versions C)\n"
        f"set(OPENREG_TORCH_ROOT {torch})\ninclude({ROOT}/cmake/OpenregTorch.cmake)\n"
    )
    command = ["cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DPython3_EXECUTABLE={sys.executable}"]
    done = finished(command, status=None)
    assert (done.returncode != 0) == (said == "is older than"), done.stderr
    assert said in " ".join(done.stderr.split())
    assert ("CMake" in done.stderr) == bool(said)


# a release has a wheel for every Python that the package names, with a part for every torch that is supported
def test_wheels_of_a_release() -> None:
    pythons = re.findall(r"Python :: (3\.\d+)\"", (ROOT / "pyproject.toml").read_text())
    assert len(pythons) >= 4
    text = (ROOT / ".github/workflows/wheels.yml").read_text()
    (options,) = (
        dict(word.split("=", 1) for word in shlex.split(line)) for line in re.findall("make wheel (.+)", text)
    )
    assert sorted([options["PYTHON"].removeprefix("python"), *options["PYTHONS"].split()]) == sorted(pythons)
    minors = [".".join(version.split(".")[:2]) for version in options["TORCH"].split()]
    assert minors == MINORS
    matrix = yaml.safe_load(text)["jobs"]["test"]["strategy"]["matrix"]
    assert (matrix["python"], matrix["torch"]) == (pythons, minors)
