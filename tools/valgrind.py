#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Runs the runtime's tests in a build directory under valgrind, each in a process of its own, as CTest does.

Usage: ``python tools/valgrind.py BUILD [--jobs N]``. The status is 1 where a test or its memory is wrong, and where
there are none.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

VALGRIND = (
    *("valgrind", "--quiet", "--fair-sched=yes", "--error-exitcode=99", "--leak-check=full"),
    *("--show-leak-kinds=definite,indirect", "--errors-for-leak-kinds=definite,indirect"),
)
SECONDS = 900
# The children of death tests end with memory in use, and forked ones abandon what their parent had, on purpose. Also,
# in a forked child the simulator's memory is not mapped, and the search for leaks stumbles over every page of it. And
# on a stack as small as a signal may have there is no room for what valgrind puts there. "validated" repeats whole
# programs, forks and all.
LEFT_OUT = "^shim|[.]validated[.]|Death|Fork|RecorderTest.WrittenOnASmallStack"


def tests_of(build: Path) -> list[dict[str, Any]]:
    """The tests of GoogleTest of the runtime, as CTest has them (`ctest --show-only=json-v1`)."""
    command = ["ctest", "--test-dir", str(build), "--show-only=json-v1", "--exclude-regex", LEFT_OUT]
    listed = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)["tests"]
    return [test for test in listed if test["command"][0].endswith("_test")]


def run(test: dict[str, Any]) -> str:
    """What a test prints where it, or its memory, is wrong; else nothing."""
    properties = {entry["name"]: entry["value"] for entry in test["properties"]}
    try:
        done = subprocess.run(
            [*VALGRIND, *test["command"], "--gtest_brief=1"],
            cwd=properties["WORKING_DIRECTORY"],
            env=os.environ | dict(pair.split("=", 1) for pair in properties.get("ENVIRONMENT", ())),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return f"{test['name']}: not at its end after {SECONDS} s\n{error.output!r}"
    return "" if done.returncode == 0 else f"{test['name']}: status {done.returncode}\n{done.stdout}"


def main() -> None:
    """Runs them all, and prints those that fail."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--jobs", type=int, default=1, help="tests at once (default 1)")
    options = parser.parse_args()
    if shutil.which("valgrind") is None:
        sys.exit("valgrind is not installed")
    tests = tests_of(options.build)
    failed = 0
    with ThreadPoolExecutor(options.jobs) as threads:
        for text in threads.map(run, tests):
            if text:
                failed += 1
                print(text, flush=True)
    print(f"{len(tests) - failed} passed, {failed} failed")
    sys.exit(failed > 0 or not tests)


if __name__ == "__main__":
    main()
