# SPDX-License-Identifier: BSD-3-Clause
"""Drivers in C under tests/drivers, compiled for a test with the project's warnings as errors."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

FLAGS = (
    *("-std=c11", "-shared", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow"),
    *("-Wstrict-prototypes", "-Wmissing-prototypes", "-Werror"),
)


def compile_driver(folder: Path, source: str, *flags: str) -> Path:
    root = Path(__file__).resolve().parents[2]
    library = folder / ("lib" + "".join(c for c in source + "".join(flags) if c.isalnum()) + ".so")
    include = f"-I{root / 'runtime/include'}"
    command = [os.environ.get("CC", "cc"), *FLAGS, include, *flags, str(root / "tests/drivers" / source)]
    subprocess.run([*command, "-o", str(library)], check=True)
    return library


def compile_toy_driver(folder: Path) -> Path:
    """The example's driver of seven functions, built by a C compiler alone."""
    return compile_driver(folder, "../../examples/toy_driver/torch_openreg_toy/driver.c")
