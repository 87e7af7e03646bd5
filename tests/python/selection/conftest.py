# SPDX-License-Identifier: BSD-3-Clause
"""Fixtures of the tests on choosing drivers: drivers to choose from, and processes that see nothing else."""

from __future__ import annotations

import os
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from toys import NO_GPU

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).resolve().parent

DriverLibrary = Callable[..., str]
PythonRunner = Callable[..., "subprocess.CompletedProcess[str]"]


def source_of(driver: str) -> Path:
    """The C file of a driver for tests; that of the smallest one is an example, too."""
    if driver == "toy_driver":
        return ROOT / "examples/toy_driver/torch_openreg_toy/driver.c"
    return ROOT / f"tests/drivers/{driver}.c"


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> DriverLibrary:
    """Builds a driver by a C compiler alone: library("toy_driver"), library("broken_driver", "X")."""
    folder = tmp_path_factory.mktemp("drivers")

    def build(source: str, *definitions: str) -> str:
        path = folder / f"{'_'.join((source, *definitions)).lower()}.so"
        if not path.exists():
            subprocess.run(
                [
                    *(os.environ.get("CC", "cc"), "-std=c11", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread"),
                    *(f"-D{definition}" for definition in definitions),
                    *(f"-I{ROOT / 'runtime/include'}", str(source_of(source)), "-o", str(path)),
                ],
                check=True,
            )
        return str(path)

    return build


@pytest.fixture
def toy(library: DriverLibrary) -> str:
    """Path of a driver of seven functions and two devices."""
    return library("toy_driver")


@pytest.fixture
def full_toy(library: DriverLibrary) -> str:
    """Path of a driver with all functions, that counts and fails on request; see toys.py."""
    return library("full_toy_driver")


@pytest.fixture
def python(python: PythonRunner, tmp_path: Path) -> PythonRunner:
    """Runs code in a fresh interpreter, in an empty folder, without GPU drivers and without a stored preference.

    ``torch`` and ``openreg`` are imported, ``lines`` collects the log. A status other than `status` fails the test.
    """
    start = textwrap.dedent(
        """
        import logging, os, sys, warnings
        import torch
        import torch_openreg
        from torch_openreg import _C
        openreg = torch.openreg
        lines = []
        class _Keep(logging.Handler):
            def emit(self, record):
                lines.append(f"{record.levelname} {self.format(record)}")
        logging.getLogger("torch_openreg").addHandler(_Keep())
        logging.getLogger("torch_openreg").setLevel(logging.DEBUG)
        """
    )

    def run(code: str, **options: Any) -> subprocess.CompletedProcess[str]:
        folders = (str(HERE), options.pop("PYTHONPATH", None), os.environ.get("PYTHONPATH"))
        settings = {
            "PYTHONPATH": os.pathsep.join(filter(None, folders)),
            "XDG_CONFIG_HOME": str(tmp_path / "config"),
            "OPENREG_PREFERENCES": None,  # stored in files of the test's own
            **NO_GPU,
        }
        return python(start + textwrap.dedent(code), cwd=tmp_path, **settings | options)

    return run
