# SPDX-License-Identifier: BSD-3-Clause
"""Checks that every internal header compiles alone, so that no source depends on the order of its includes.

C headers of the runtime and of the simulated devices as C11; with ``--torch`` those of the shim and of csrc as C++20,
too, which take minutes and the torch of the Python that runs this. The GPU drivers, which need a vendor's headers, have
tools/check_gpu_headers.py. The public headers are compiled with the tests (tests/runtime/CMakeLists.txt).

Run ``python tools/check_headers.py``: exits with 1 where a header doesn't compile. Names of headers check these alone.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import importlib.util
import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WARNINGS = ("-Wall", "-Wextra", "-Wshadow", "-Werror")


def torch_includes() -> list[str]:
    """The options for headers of torch and Python. Imports nothing of torch; ends the program where there is none."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        sys.exit("check_headers: no torch here, whose headers --torch needs")
    include = Path(spec.origin).parent / "include"
    folders = [include, include / "torch" / "csrc" / "api" / "include", Path(sysconfig.get_path("include"))]
    return [option for folder in folders for option in ("-isystem", str(folder))]


def c_command(header: Path) -> list[str]:
    """The compiler's command for a header of the runtime."""
    includes = ["-I", str(ROOT / "runtime" / "include"), "-I", str(ROOT / "runtime" / "src")]
    # As the sources that use clocks and the like do.
    return [
        "gcc",
        "-std=c11",
        "-D_GNU_SOURCE",
        *WARNINGS,
        "-fsyntax-only",
        *includes,
        "-x",
        "c",
        "-include",
        str(header),
        "/dev/null",
    ]


def cpp_command(header: Path, torch: Sequence[str]) -> list[str]:
    """The compiler's command for a header of the shim or of csrc."""
    includes = ["-I", str(ROOT), "-I", str(ROOT / "runtime" / "include"), *torch]
    return [
        "g++",
        "-std=c++20",
        "-DAT_PER_OPERATOR_HEADERS",
        *WARNINGS,
        "-fsyntax-only",
        *includes,
        "-x",
        "c++",
        "-include",
        str(header),
        "/dev/null",
    ]


def commands(wanted: Sequence[Path], with_torch: bool) -> dict[Path, list[str]]:
    """The compiler's command for each header."""
    found: dict[Path, list[str]] = {}
    for folder in ("runtime/src", "runtime/drivers/sim"):
        found.update({header: c_command(header) for header in sorted((ROOT / folder).rglob("*.h"))})
    if with_torch:
        torch = torch_includes()
        for folder in ("shim", "csrc"):
            found.update({header: cpp_command(header, torch) for header in sorted((ROOT / folder).rglob("*.h"))})
    return {header: command for header, command in found.items() if not wanted or header in wanted}


def main(arguments: Sequence[str] | None = None) -> int:
    """Compiles the headers; 1 if one fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("headers", nargs="*", type=lambda name: Path(name).resolve(), help="these alone")
    parser.add_argument("--torch", action="store_true", help="those of the shim and of csrc, too")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        started = {
            header: pool.submit(subprocess.run, command, capture_output=True, text=True, check=False)
            for header, command in commands(options.headers, options.torch).items()
        }
        for header, run in started.items():
            done = run.result()
            if done.returncode != 0:
                failed += 1
                print(f"{header.relative_to(ROOT)} doesn't compile alone:\n{done.stderr}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
