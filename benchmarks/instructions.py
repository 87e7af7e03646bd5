# SPDX-License-Identifier: BSD-3-Clause
"""Counts the processor's instructions of calls on openreg and on the CPU: other load on the machine changes nothing.

By hand, where there is valgrind with its headers (Debian: valgrind) and a C compiler: minutes.

    python benchmarks/instructions.py                # a table
    python benchmarks/instructions.py --only add_    # the calls whose names have this in them
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

COUNTS = {"call": 400, "step": 20}
"""How often a call, and a training step, is repeated."""

# Each request is a few instructions that valgrind knows. It counts nothing else: counting while torch is imported takes
# many minutes.
REQUESTS = """
#include <valgrind/callgrind.h>
void begin(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void end(const char *name) { CALLGRIND_DUMP_STATS_AT(name); CALLGRIND_STOP_INSTRUMENTATION; }
"""


def calls(device: str) -> dict[str, Callable[[], object]]:
    """What is counted, by name."""
    import torch
    from torch import nn

    a, b, out = (torch.ones(16, device=device) for _ in range(3))
    matrix = torch.ones(4, 4, device=device)
    inputs, targets = torch.randn(32, 16, device=device), torch.randint(0, 10, (32,), device=device)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return {
        "a + b": lambda: a + b,
        "add_": lambda: a.add_(b),
        "add(out=)": lambda: torch.add(a, b, out=out),
        "a[0]": lambda: matrix[0],
        "mm": lambda: matrix @ matrix,
        "step of an MLP of width 16": step,
    }


def work(library: str, only: str) -> None:
    """Runs every call on both devices, under valgrind."""
    import torch

    requests = ctypes.CDLL(library)
    torch.set_num_threads(1)
    # The backward pass of the CPU runs on the calling thread; so does that of openreg, to compare the same work.
    with torch.autograd.set_multithreading_enabled(False):
        for device in ("cpu", "openreg"):
            for name, call in calls(device).items():
                if only not in name:
                    continue
                step = name.startswith("step")
                with torch.set_grad_enabled(step):
                    for _ in range(3):
                        call()
                    repeats = range(COUNTS["step" if step else "call"])
                    requests.begin()
                    for _ in repeats:
                        call()
                    requests.end(f"{device}: {name}".encode())


def count(only: str, variables: dict[str, str]) -> dict[str, float]:
    """Instructions of one call, by "device: name"."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "requests.c"), Path(folder, "requests.so")
        source.write_text(REQUESTS, encoding="utf-8")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
        python = [sys.executable, __file__, "--library", str(library), "--only", only]
        valgrind = ["valgrind", "--quiet", "--tool=callgrind", "--instr-atstart=no"]
        subprocess.run(
            [*valgrind, f"--callgrind-out-file={folder}/out", *python],
            env=os.environ | {"OMP_NUM_THREADS": "1"} | variables,
            check=True,
        )
        counted = {}
        for path in Path(folder).glob("out.*"):
            text = path.read_text(encoding="utf-8")
            name = re.search(r"^desc: Trigger: Client Request: (.*)$", text, re.MULTILINE)
            total = re.search(r"^(?:summary|totals): (\d+)", text, re.MULTILINE)
            if name and total:
                repeats = COUNTS["step" if ": step" in name[1] else "call"]
                counted[name[1]] = counted.get(name[1], 0) + int(total[1]) / repeats
        return counted


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="the calls whose names have this in them")
    parser.add_argument("--library", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.library:
        work(options.library, options.only)
        return
    for way in ("auto", "staged"):
        counted = count(options.only, {"OPENREG_OPERATORS": way})
        print(f"{way:10} {'instructions a call':28} {'CPU':>9} {'openreg':>9} {'ratio':>6}")
        for name in sorted(name.removeprefix("cpu: ") for name in counted if name.startswith("cpu: ")):
            reference, value = counted[f"cpu: {name}"], counted[f"openreg: {name}"]
            print(f"{'':10} {name:28} {reference:9.0f} {value:9.0f} {value / reference:6.2f}")


if __name__ == "__main__":
    main()
