# SPDX-License-Identifier: BSD-3-Clause
"""The references of openreg-check for kernels, compared with PyTorch."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from finished import finished

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A driver whose kernels are PyTorch's own of the CPU."""
    drivers, torch_folder = ROOT / "tests/drivers", Path(torch.__file__).parent
    common = ["-O1", "-fPIC", "-fvisibility=hidden", f"-I{ROOT / 'runtime/include'}"]
    driver = tmp_path / "driver.o"
    command = [
        os.environ.get("CC", "cc"),
        "-std=c11",
        *common,
        "-c",
        str(drivers / "pytorch_driver.c"),
        "-o",
        str(driver),
    ]
    subprocess.run(command, check=True)
    libraries = [f"-L{torch_folder / 'lib'}", f"-Wl,-rpath,{torch_folder / 'lib'}", "-ltorch_cpu", "-lc10"]
    sources = [str(drivers / "pytorch_kernels.cpp"), str(driver)]
    made = tmp_path / "libpytorch_kernels.so"
    command = [
        os.environ.get("CXX", "c++"),
        "-std=c++20",
        "-shared",
        *common,
        f"-I{torch_folder / 'include'}",
        *sources,
    ]
    subprocess.run([*command, *libraries, "-o", str(made)], check=True)
    return made


# every operator that a check can compare gives what PyTorch gives: a right driver is never called wrong
@pytest.mark.long
def test_references_are_pytorchs(library: Path, tmp_path: Path) -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "runtime/check").glob("*.c"))
    names = sorted(set(re.findall(r'\{"(aten::[\w.]+)", (?!"aten)', sources)))
    assert len(names) > 100
    report = tmp_path / "report.json"
    variables = os.environ | {"OPENREG_PYTORCH_KERNELS": " ".join(names)}
    variables = {name: value for name, value in variables.items() if name != "OPENREG_SIM_RACES"}
    command = [sys.executable, "-m", "torch_openreg", "check", str(library), "--only", "kernel", "--timeout", "120"]
    finished([*command, "--json", str(report)], env=variables, timeout=600)
    found = json.loads(report.read_text())
    assert found["kernels_without_reference"] == []
    skipped = {check["name"] for check in found["checks"] if check["outcome"] == "skipped"}
    assert skipped == {"kernel.in_place", "kernel.streams"}  # it flags no kernel, and has one stream
