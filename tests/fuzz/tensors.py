# SPDX-License-Identifier: BSD-3-Clause
"""Random tensor programs on openreg devices against the same programs on the CPU: ``python tests/fuzz/tensors.py --help``.

A program is a list of steps that read and write tensors ``x0``, ``x1``, ... on two devices and in host memory: views,
in-place operators, types, copies between all of them, streams, events, threads. It is written down as Python that
follows PyTorch's rules for streams (waits between them, ``record_stream()``, a wait before the host reads what is copied
asynchronously), so that both runs must give the same bytes, sizes, strides and errors. The first difference ends the run
with status 1: the program is made as small as possible, and printed as a script that shows the difference.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from torch_openreg_lab.check.programs import Program, difference, difference_in_process, generate, shrink, source


def report(seed: int, text: str, program: Program) -> None:
    steps = sum(len(steps) for steps in program)
    print(f"# seed {seed}, shrunk to {steps} steps: {text}", flush=True)
    print(source(program).lstrip("\n"))
    print("print(difference())", flush=True)


def work(arguments: argparse.Namespace) -> int:
    """Programs in this process until the time is over or one differs."""
    import torch

    torch.set_num_threads(1)
    assert torch.openreg.device_count() > 1, "programs are for two devices"
    end = time.monotonic() + arguments.seconds
    count = 0
    while count < arguments.programs and (not count or time.monotonic() < end):
        seed = arguments.seed + count
        Path(arguments.state).write_text(str(seed))
        faulthandler.dump_traceback_later(300, exit=True)
        program = generate(random.Random(seed))
        text = difference(program)
        if text:
            faulthandler.cancel_dump_traceback_later()
            small = shrink(program, difference, arguments.shrink_seconds)
            report(seed, difference(small) or text, small)
            return 1
        count += 1
    faulthandler.cancel_dump_traceback_later()
    print(f"{count} programs from seed {arguments.seed}, no difference", flush=True)
    return 0


MODES: dict[str, dict[str, str]] = {"aliased": {}, "staged": {"OPENREG_OPERATORS": "staged"}}


def environment_of(mode: str) -> dict[str, str]:
    """Variables for a mode's processes; `mode` may name a driver's library: "fill:/path/libfill.so"."""
    if mode in MODES:
        return {"OPENREG_DRIVERS": "sim", **MODES[mode]}
    return {"OPENREG_DRIVER_LIBRARIES": mode, "OPENREG_DRIVERS": mode.partition(":")[0]}


def run_mode(arguments: argparse.Namespace, mode: str, seconds: float) -> int:
    """One mode in a process of its own; a crash or an endless program is made smaller from here."""
    os.environ.update(environment_of(mode))
    with tempfile.NamedTemporaryFile("w+") as state:
        options = {"seconds": seconds, "programs": arguments.programs, "seed": arguments.seed}
        options |= {"shrink-seconds": arguments.shrink_seconds}
        command = [sys.executable, __file__, "--state", state.name]
        command += [str(word) for name, value in options.items() for word in (f"--{name}", value)]
        print(f"{mode}: ", end="", flush=True)
        status = subprocess.run(command, check=False).returncode
        seed = state.read()
    if status in (0, 1):
        return status
    print(f"seed {seed or arguments.seed}: the process ended with status {status}", flush=True)
    program = generate(random.Random(int(seed or arguments.seed)))
    report(
        int(seed or arguments.seed),
        f"status {status}",
        shrink(program, difference_in_process, arguments.shrink_seconds),
    )
    return 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20, help="for all modes together")
    parser.add_argument("--programs", type=int, default=sys.maxsize, help="at most, in each mode")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**9))
    parser.add_argument("--shrink-seconds", type=float, default=60)
    parser.add_argument("--modes", default="aliased,staged", help="also NAME:LIBRARY, a driver with two devices")
    parser.add_argument("--show", type=int, metavar="SEED", help="prints that seed's program")
    parser.add_argument("--state", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.show is not None:
        print(source(generate(random.Random(arguments.show))) + "\nprint(difference())")
        return 0
    if arguments.state:
        return work(arguments)
    modes = arguments.modes.split(",")
    before = dict(os.environ)
    results = []
    for mode in modes:
        os.environ.clear()
        os.environ.update({k: v for k, v in before.items() if not k.startswith("OPENREG_")})
        results.append(run_mode(arguments, mode, arguments.seconds / len(modes)))
    return max(results)


if __name__ == "__main__":
    sys.exit(main())
