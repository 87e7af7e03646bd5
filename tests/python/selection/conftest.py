# SPDX-License-Identifier: BSD-3-Clause
"""Fixtures of the tests on choosing drivers: drivers to choose from, and processes that see nothing else."""

from __future__ import annotations

import functools
import os
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from compiled_drivers import compile_driver, compile_toy_driver
from toys import NO_GPU

HERE = Path(__file__).resolve().parent

DriverLibrary = Callable[..., str]
PythonRunner = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> DriverLibrary:
    """Builds a driver by a C compiler alone: library("toy_driver"), library("broken_driver", "X")."""
    folder = tmp_path_factory.mktemp("drivers")

    @functools.cache
    def build(source: str, *definitions: str) -> str:
        if source == "toy_driver":
            return str(compile_toy_driver(folder))
        return str(compile_driver(folder, f"{source}.c", "-pthread", *(f"-D{name}" for name in definitions)))

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

    ``torch``, ``openreg`` and the classes and functions of toys.py are imported, ``lines`` collects the log. A status other than `status` fails the test.
    """
    start = textwrap.dedent(
        """
        import logging, os, sys, warnings
        import torch
        import torch_openreg
        from toys import FullToy, raises, warned
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
