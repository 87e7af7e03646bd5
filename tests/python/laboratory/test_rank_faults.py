# SPDX-License-Identifier: BSD-3-Clause
"""Plans of faults for ranks: one dies, is slow, or loses its device, in processes that a test starts."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

TESTS = """
import os, subprocess, sys
import pytest

RANK = '''
import sys, time
from datetime import timedelta
import torch, torch.distributed as dist
dist.init_process_group("gloo", init_method=sys.argv[1], rank=int(sys.argv[2]), world_size=2, timeout=timedelta(seconds=20))
x = torch.ones(4, device="openreg")
try:
    for step in range(3):
        begin = time.monotonic()
        dist.all_reduce(x.add_(1))
        torch.openreg.synchronize()
        print("step", step, "slow" if time.monotonic() - begin >= 0.3 else "", flush=True)
except RuntimeError as error:
    print("failed", flush=True)
    import os
    os._exit(0)  # the other one may wait in gloo
'''

def ranks(tmp_path):
    store = f"file://{tmp_path}/store"
    started = [
        subprocess.Popen([sys.executable, "-c", RANK, store, str(rank)], env=os.environ | {"RANK": str(rank)},
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for rank in range(2)
    ]
    return [(process.communicate(timeout=60)[0].split(), process.returncode) for process in started]

@pytest.mark.openreg_faults("rank 1 killed at collective 2")
def test_dead(tmp_path):
    (survivor, status), (dead, signal) = ranks(tmp_path)
    assert dead == ["step", "0"] and signal == -9
    assert survivor == ["step", "0", "failed"] and status == 0

@pytest.mark.openreg_faults("rank 1 late 0.5s at collective 3")
def test_slow(tmp_path):
    for lines, status in ranks(tmp_path):
        assert lines[-3:] == ["step", "2", "slow"] and status == 0

@pytest.mark.openreg_faults("rank 0 lost at aten::add_ 2")
def test_lost(tmp_path):
    (lost, status), (other, _) = ranks(tmp_path)
    assert lost == ["step", "0", "failed"] and status == 0
    assert other[:2] == ["step", "0"] and other[-1] == "failed"

def test_none(tmp_path):
    assert "OPENREG_SIM_FAULTS" not in os.environ
    assert [lines[4:6] for lines, _ in ranks(tmp_path)] == [["step", "2"]] * 2
"""


def test_ranks(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENREG_SIM_FAULTS", raising=False)
    pytester.makepyfile(TESTS)
    pytester.runpytest_subprocess("--openreg=2", "-p", "no:cacheprovider").assert_outcomes(passed=4)
