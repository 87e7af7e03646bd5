# SPDX-License-Identifier: BSD-3-Clause
"""One process of a run: reads entries from standard input, a line each, and answers each with a line of JSON."""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import sys
import time
import warnings


def main() -> None:
    """Works until standard input ends. Arguments: how many samples, and the kind of tensors."""
    # Whatever PyTorch prints goes to standard error; answers go where standard output was.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    faulthandler.enable()
    warnings.simplefilter("ignore")
    samples, kind = int(sys.argv[1]), sys.argv[2]

    import torch
    from checks import Checks
    from entries import all_entries

    from torch_openreg import _C

    torch.set_num_threads(1)
    for absent in (torch.cuda, torch.xpu, torch.mtia):
        # torch.manual_seed() asks them too, and each keeps a traceback of every time it was asked.
        absent.manual_seed_all = lambda _seed: None  # type: ignore[assignment]
    _C._watch_undeclared_writes(True)  # of staged operators
    seen: set[str] = set()
    entries = all_entries()
    gc.freeze()  # what was imported is not looked at again
    print("ready", file=answers)
    for line in sys.stdin:
        entry = entries[line.strip()]
        start = time.perf_counter()
        outcomes = Checks(entry, samples, kind).run()
        fresh = sorted(_C._undeclared_writes() - seen)
        seen.update(fresh)
        # shim/operators/fallback/staged_storage.cpp has the list of those that do, and that are copied whole.
        outcomes["declared writes"] = f"{', '.join(fresh)}: writes what the schema does not say" if fresh else None
        seconds = round(time.perf_counter() - start, 3)
        print(json.dumps({"entry": entry.id, "checks": outcomes, "seconds": seconds}), file=answers)


if __name__ == "__main__":
    main()
