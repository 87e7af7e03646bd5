# SPDX-License-Identifier: BSD-3-Clause
"""python -m torch_openreg new: the repository that it writes builds, installs, trains and passes the checks as it is."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from torch_openreg import _new
from torch_openreg.__main__ import main

NO_VARIABLES = {k: v for k, v in os.environ.items() if not k.startswith(("OPENREG_", "PYTHONPATH"))}


def run(folder: Path, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=NO_VARIABLES | environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


# the way of a vendor: new, build, install, check by name, train; and the layer of OPENREG_VALIDATE has nothing to say
@pytest.mark.slow
def test_a_new_driver_works_at_once(tmp_path: Path) -> None:
    printed = run(tmp_path, "-m", "torch_openreg", "new", "my_chip")
    folder = tmp_path / "torch-openreg-my-chip"
    assert "python -m torch_openreg check my_chip" in printed
    assert "@" not in "".join(path.name for path in folder.rglob("*"))
    pip = ("-m", "pip", "--disable-pip-version-check", "--no-input")
    options = ("--no-build-isolation", "--no-deps", "--no-index")
    run(tmp_path, *pip, "wheel", *options, "--wheel-dir", "wheels", str(folder))
    (wheel,) = (tmp_path / "wheels").glob("torch_openreg_my_chip-0.1.0-py3-none-*.whl")
    assert "torch_openreg_my_chip/driver.so" in zipfile.ZipFile(wheel).namelist()
    run(tmp_path, *pip, "install", *options[1:], "--target", "packages", str(wheel))
    variables = {"PYTHONPATH": str(tmp_path / "packages")}
    checked = run(folder, "-m", "torch_openreg", "check", "my_chip", "--level", "1", "--time", "0.1", **variables)
    assert "conforms to driver.h" in checked
    variables["OPENREG_VALIDATE"] = "1"
    trained = run(
        folder, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "tests", "-k", "trains or names", **variables
    )
    assert "2 passed" in trained
    assert "OPENREG_VALIDATE:" not in trained


# every word of the templates is replaced, in names and in texts, and the headers are those of this package
def test_files(tmp_path: Path) -> None:
    folder = _new.make_driver("x9", tmp_path / "deep" / "driver")
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert names >= {
        ".github/workflows/ci.yml",
        ".gitignore",
        "CMakeLists.txt",
        "LICENSE",
        "MANIFEST.in",
        "README.md",
        "include/openreg/driver.h",
        "pyproject.toml",
        "setup.py",
        "tests/test_driver.py",
        "src/torch_openreg_x9/__init__.py",
        "src/torch_openreg_x9/driver.c",
    }
    for name in names:
        text = (folder / name).read_text()
        for word in ("@NAME@", "@DEVICE@", "@UPPER@", "@DASHED@", "@YEAR@", "@ABI@", "@VERSION@"):
            assert word not in text, name
    assert 'x = "torch_openreg_x9"' in (folder / "pyproject.toml").read_text()  # a device's name has no digits
    assert "torch.x." in (folder / "tests" / "test_driver.py").read_text()
    driver = (folder / "src" / "torch_openreg_x9" / "driver.c").read_text()
    assert '.name = "x9"' in driver
    assert driver.count("X9:") >= 7  # a mark in each function that a vendor fills in


# the library alone, as CMake builds it
@pytest.mark.slow
def test_cmake(tmp_path: Path) -> None:
    folder = _new.make_driver("mychip", tmp_path / "driver")
    subprocess.run(["cmake", "-S", str(folder), "-B", str(tmp_path / "build")], check=True, capture_output=True)
    subprocess.run(["cmake", "--build", str(tmp_path / "build")], check=True, capture_output=True)
    assert (tmp_path / "build" / "libopenreg_mychip.so").exists()


# a name that no driver, C function or variable can have, or that is taken: an error with the rule, and no folder
@pytest.mark.parametrize(
    "name",
    ["", "My", "9x", "my-chip", "a" * 32, "x.y", "../x", "cuda", "sim", "nn", "item", "opencl", "vulkan2", "class"],
)
def test_unfit_names(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", name, "--directory", str(tmp_path / "driver")]) == 1
    error = capsys.readouterr().err
    rules = ("begins with a letter", "is taken by torch-openreg itself", "has a meaning", "is no name for a device")
    assert any(rule in error for rule in rules)
    assert not (tmp_path / "driver").exists()


# what is there stays as it is, even an empty folder
def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "mychip", "--directory", str(tmp_path)]) == 1
    assert "is there already" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
