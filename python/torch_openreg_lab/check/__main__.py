# SPDX-License-Identifier: BSD-3-Clause
"""One check in a process of its own: ``python -m torch_openreg_lab.check NAME SEED SECONDS FILE-FOR-THE-OUTCOME``."""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path

import torch

from torch_openreg_lab.check.level3 import all_checks
from torch_openreg_lab.check.registry import Failure, Limits, Skip


def main(name: str, seed: int, seconds: float, file: str) -> None:
    """Runs the check and writes what came of it."""
    outcome, message = "passed", ""
    # The CPU's sums depend on how many threads share them, and the setting is the process's.
    torch.set_num_threads(1)
    try:
        message = all_checks()[name].function(Limits(seed, seconds)) or ""
    except Skip as reason:
        outcome, message = "skipped", str(reason)
    except Failure as failure:
        outcome, message = "failed", str(failure)
    except Exception as error:
        line = traceback.extract_tb(error.__traceback__)[-1]
        first = (str(error).strip().splitlines() or [""])[0]
        outcome, message = "failed", f"{type(error).__name__}: {first} ({Path(line.filename).name}:{line.lineno})"
    Path(file).write_text(json.dumps({"outcome": outcome, "message": message}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4])
