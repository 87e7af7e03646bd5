# SPDX-License-Identifier: BSD-3-Clause
"""Orders of work that a seed chooses: a missing wait reads old bytes under some seed, its correct twin never."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# Runs a program under many seeds in one process: the devices are opened once more for each.
MANY_SEEDS = """
    import gc, os, torch
    from torch_openreg import _C

    def under_seeds(program, seeds):
        results = []
        for seed in seeds:
            os.environ["OPENREG_SIM_SEED"] = str(seed)
            results.append(program())
            gc.collect()
            torch.openreg.empty_host_cache()
            _C._shutdown()
        return results

    def prefetch(waits):
        batches = [torch.full((64,), float(i)).pin_memory() for i in range(1, 4)]
        side, total = torch.openreg.Stream(), 0.0
        for batch in batches:
            on_device = torch.zeros(64, device="openreg")
            side.wait_stream(torch.openreg.current_stream())
            with torch.openreg.stream(side):
                on_device.copy_(batch, non_blocking=True)
            if waits:
                torch.openreg.current_stream().wait_stream(side)
            total += on_device.sum().item()
            torch.openreg.synchronize()
        return total / 64

    def back(waits):
        x = torch.arange(64.0, device="openreg")
        host = torch.zeros(64).pin_memory()
        host.copy_(x * 2, non_blocking=True)
        if waits:
            torch.openreg.synchronize()
        return host.sum().item()
"""


# a copy on a side stream without wait_stream(), and a copy to the host without synchronize(): some seed shows each,
# and no seed finds anything where the wait is there
def test_missing_waits_read_old_bytes(python: Any) -> None:
    code = """
    print(set(under_seeds(lambda: prefetch(True), range(24))))
    print(sorted(set(under_seeds(lambda: prefetch(False), range(9))))[0] < 6.0)
    print(set(under_seeds(lambda: back(True), range(24))))
    print(0.0 in under_seeds(lambda: back(False), range(9)))
    """
    # Their races are planted: the detector would stop the programs.
    done = python(MANY_SEEDS + code, timeout=300, OPENREG_SIM_RACES=None)
    assert done.stdout.splitlines() == ["{6.0}", "True", "{4032.0}", "True"]


# a block that was freed and is given out again shows neither its old data nor anybody else's; a copy on a side stream
# reads poison where record_stream() is missing, and never where it is there
def test_freed_memory_is_poisoned(python: Any) -> None:
    code = """
    def reuse():
        old = torch.full((1000,), 7.0, device="openreg")
        address = old.data_ptr()
        del old
        again = torch.empty(1000, device="openreg")
        assert again.data_ptr() == address
        return 7.0 in again.tolist()

    def on_the_side(records):
        side, host = torch.openreg.Stream(), torch.zeros(1000).pin_memory()
        x = torch.full((1000,), 7.0, device="openreg")
        side.wait_stream(torch.openreg.current_stream())
        with torch.openreg.stream(side):
            host.copy_(x, non_blocking=True)
        if records:
            x.record_stream(side)
        del x
        torch.openreg.synchronize()
        return set(host.tolist()) == {7.0}

    print(set(under_seeds(reuse, range(9))))
    print(set(under_seeds(lambda: on_the_side(True), range(18))))
    print(False in under_seeds(lambda: on_the_side(False), range(9)))
    """
    done = python(MANY_SEEDS + code, timeout=300)
    assert done.stdout.splitlines() == ["{False}", "{True}", "True"]


# two processes with one seed do the same, line by line and time by time; the fewest switches that fail are few
def test_one_seed_is_one_run(python: Any, tmp_path: Path) -> None:
    code = """
    import torch
    torch.manual_seed(1)
    model = torch.nn.Linear(8, 8).to("openreg")
    side = torch.openreg.Stream()
    start, end = (torch.openreg.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(5):
        batch = torch.randn(4, 8).pin_memory()
        side.wait_stream(torch.openreg.current_stream())
        with torch.openreg.stream(side):
            x = batch.to("openreg", non_blocking=True)
        torch.openreg.current_stream().wait_stream(side)
        model(x).sum().backward()
    end.record()
    torch.openreg.synchronize()
    print(start.elapsed_time(end), model.weight.grad.sum().item())
    """
    outputs, logs = set(), set()
    for run in range(2):
        log = tmp_path / str(run)
        outputs.add(python(code, OPENREG_SIM_SEED="4", OPENREG_SIM_SCHEDULE_LOG=str(log)).stdout)
        logs.add(log.read_text())
    assert len(outputs) == len(logs) == 1
    assert logs.pop().count("copy of 128 bytes") >= 5
    assert float(outputs.pop().split()[0]) > 0


# what is no schedule is an error that names the variable
def test_bad_variables(python: Any) -> None:
    code = "import torch; torch.zeros(1, device='openreg')"
    done = python(code, status=1, OPENREG_SIM_SEED="1", OPENREG_SIM_SCHEDULE="fifo")
    assert 'OPENREG_SIM_SCHEDULE must be random, pct or latest, but is "fifo"' in done.stderr
