# SPDX-License-Identifier: BSD-3-Clause
"""Says what a version of torch changes for this project, without installing it: for the day it comes out.

Fetches the headers of its wheel (tools/fetch_torch.py), checks the syntax of every source of shim/ and csrc/ against
them with the options of the build, and lists the virtual functions that tools/check_hooks.py doesn't know. Nothing is
linked or run, so what changes at run time stays for ``make test TORCH=VERSION``.

Run ``python tools/check_torch.py 2.15.0``: exits with 1 where something doesn't compile or is unknown. Some minutes.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import check_hooks
import fetch_torch

ROOT = Path(__file__).resolve().parent.parent
OURS = ("shim", "csrc")


def configure(torch: Path, build: Path) -> None:
    """Has CMake write, into the folder `build`, the compiler's command for each source, for a package ``torch``.

    Raises:
        subprocess.CalledProcessError: CMake fails.
    """
    options = ["-DOPENREG_BUILD_TESTS=OFF", "-DOPENREG_PRECOMPILE_HEADERS=OFF"]
    options += ["-DOPENREG_CUDA=OFF", "-DOPENREG_HIP=OFF"]
    # Without a compiler cache: it would be a part of the command, and keeps nothing of a check of the syntax.
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_COMPILER_LAUNCHER")}
    command = ["cmake", "-S", str(ROOT), "-B", str(build), f"-DPython3_EXECUTABLE={sys.executable}"]
    command += [f"-DOPENREG_TORCH_ROOT={torch}", *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)


def commands(build: Path) -> dict[Path, list[str]]:
    """The command that checks the syntax of each of our sources that includes torch's headers."""
    found: dict[Path, list[str]] = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        source = Path(entry["file"])
        if source.is_relative_to(ROOT) and source.relative_to(ROOT).parts[0] in OURS:
            command = shlex.split(entry["command"])
            output = command.index("-o")
            found[source] = [*command[:output], *command[output + 2 :], "-fsyntax-only"]
    return found


def check_syntax(build: Path, jobs: int) -> int:
    """Compiles a configured folder of CMake, `jobs` sources at once, prints what is said, and counts what fails."""
    failed = 0
    wanted = commands(build)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        started = {
            source: pool.submit(subprocess.run, command, cwd=build, capture_output=True, text=True, check=False)
            for source, command in wanted.items()
        }
        for source, run in started.items():
            done = run.result()
            failed += done.returncode != 0
            if done.stderr:
                print(f"{source.relative_to(ROOT)}:\n{done.stderr}")
    print(f"{len(wanted)} sources, {failed} don't compile")
    return failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetches, compiles and compares."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("version")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    try:
        torch = fetch_torch.fetch(options.version, libraries=False)
        build = torch.parent / "check"
        configure(torch, build)
    except (ValueError, subprocess.CalledProcessError) as error:
        print(f"check_torch: {error}", file=sys.stderr)
        return 1
    unknown = check_hooks.main(["--include", str(torch / "include")])
    failed = check_syntax(build, options.jobs)
    return 1 if unknown or failed else 0


if __name__ == "__main__":
    sys.exit(main())
