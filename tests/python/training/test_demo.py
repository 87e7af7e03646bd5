# SPDX-License-Identifier: BSD-3-Clause
"""The main job, shortened: `make demo` runs it whole."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from checkout_modules import load
from finished import finished


@pytest.fixture
def demo() -> ModuleType:
    return load("examples/train_digits.py")


# one device equals the CPU to within 1e-4, for the same seed
def test_one_device_equals_the_cpu(demo: ModuleType) -> None:
    cpu = demo.train([torch.device("cpu")], "cpu", epochs=2, seed=3, progress=False)
    one = demo.train([torch.device("openreg:0")], "one", epochs=2, seed=3, progress=False)
    assert abs(cpu.accuracy - one.accuracy) <= 1e-4
    assert abs(cpu.test_loss - one.test_loss) <= 1e-4
    assert cpu.losses == pytest.approx(one.losses, abs=1e-4)
    assert cpu.losses[1] < cpu.losses[0]


# a replica per device with averaged gradients learns, and uses both devices
def test_two_devices(demo: ModuleType) -> None:
    before = [torch.openreg.memory_stats(i)["allocation.all.allocated"] for i in (0, 1)]
    run = demo.train([torch.device("openreg:0"), torch.device("openreg:1")], "two", epochs=8, progress=False)
    assert run.accuracy >= 0.9
    for i in (0, 1):
        assert torch.openreg.memory_stats(i)["allocation.all.allocated"] > before[i] + 1000
    assert torch.openreg.current_device() == 0


# the whole program, as `make demo` runs it: in a process whose settings of PyTorch no other test has changed
@pytest.mark.long
def test_the_program(root: Path, tmp_path: Path) -> None:
    done = finished(
        [sys.executable, str(root / "examples" / "train_digits.py"), "--output", str(tmp_path)],
        env={k: v for k, v in os.environ.items() if not k.startswith("OPENREG_")},
        timeout=250,
    )
    text = done.stdout
    assert "cpu and openreg:0 differ by" in text
    for index in (0, 1):
        assert f"openreg:{index} " in text
    assert (tmp_path / "digits.png").read_bytes().startswith(b"\x89PNG")
