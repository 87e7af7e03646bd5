# SPDX-License-Identifier: BSD-3-Clause
"""Random programs on two devices against the same programs on the CPU; one that differs is made smaller and shown."""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path

import torch

from torch_openreg_lab.check import programs
from torch_openreg_lab.check.registry import Failure, Limits, Skip, check


@check(
    "programs.random",
    "A program of views, copies, operators in place, streams, events and threads gives on two devices what it gives on "
    "the CPU, to the bit.",
    "The file that is named shows the difference by itself; `check --only programs --seed N` makes the same programs.",
)
def random_programs(limits: Limits) -> None:
    """Programs until the time is over, at least one."""
    if torch.openreg.device_count() < 2:
        raise Skip("it takes two devices")
    end = time.monotonic() + limits.seconds
    count = 0
    while not count or time.monotonic() < end:
        seed = limits.seed + count
        program = programs.generate(random.Random(seed))
        text = programs.difference(program)
        if text:
            small = programs.shrink(program, programs.difference, max(10.0, limits.seconds))
            steps = sum(len(thread) for thread in small)
            with tempfile.NamedTemporaryFile("w", suffix=".py", prefix="openreg-check-", delete=False) as script:
                script.write(programs.source(small) + "\nprint(difference())\n")
            found = programs.difference(small) or text
            raise Failure(f"seed {seed}, shrunk to {steps} steps, {Path(script.name)}: {found}"[:600])
        count += 1
