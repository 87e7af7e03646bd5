# SPDX-License-Identifier: BSD-3-Clause
"""Devices that fail by a plan: what a program sees of it, and that nothing else changes."""

from __future__ import annotations

import datetime
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

faults = torch.openreg.faults


# a plan that is none is refused where it is written, and the message names the word
def test_bad_plans() -> None:
    with pytest.raises(RuntimeError, match=r'"often" in "nomem often" is not "at", "after" or a percentage'):
        faults("nomem often")
    with pytest.raises(TypeError, match="a plan of faults is a str, not int"):
        faults(5)  # type: ignore[arg-type]


# memory that runs out at one request is an OutOfMemoryError there, and the program can go on
def test_running_out_of_memory() -> None:
    with faults("nomem at 2") as plan:
        first = torch.zeros(8, device="openreg")
        with pytest.raises(torch.OutOfMemoryError, match="a fault was planned for this"):
            torch.zeros(8, device="openreg")
        assert torch.equal((first + 1).cpu(), torch.ones(8))
        assert plan.hits == 1
    assert plan.hits == 1
    torch.zeros(8, device="openreg")


# one seed fails the same requests in each run
def test_percentages_follow_the_seed() -> None:
    def pattern(seed: int) -> list[bool]:
        failed = []
        with faults(f"seed {seed}; nomem 20%"):
            for _ in range(50):
                try:
                    torch.empty(8, device="openreg")
                    failed.append(False)
                except torch.OutOfMemoryError:
                    failed.append(True)
        return failed

    assert pattern(1) == pattern(1) != pattern(2)
    assert 0 < sum(pattern(1)) < 25


# an operator's error shows at the next wait of its stream, which is the next operator's here, once
def test_an_operator_that_fails() -> None:
    x = torch.ones(8, device="openreg")
    with faults("error at aten::mul 2") as plan:
        a = x * 2
        b = a * 2
        with pytest.raises(RuntimeError, match='"error at aten::mul 2"'):
            torch.openreg.synchronize()
        c = a * 2
        torch.openreg.synchronize()
        assert plan.hits == 1
    assert b.shape == c.shape
    assert torch.equal(c.cpu(), torch.full((8,), 4.0))


# a copy that fails leaves the old bytes, and one bit of a corrupted one is wrong
def test_copies_that_fail() -> None:
    pinned = torch.full((256,), 7, dtype=torch.uint8).pin_memory()
    x = torch.zeros(256, dtype=torch.uint8, device="openreg")
    with faults("error at copy 1; corrupt at copy 2"):
        x.copy_(pinned, non_blocking=True)
        with pytest.raises(RuntimeError, match="error at copy 1"):
            torch.openreg.synchronize()
        assert torch.equal(x + 0, torch.zeros_like(x))
        x.copy_(pinned, non_blocking=True)
        wrong = (x ^ 7).count_nonzero().item()
    assert wrong == 1


# slow copies are right; used as a decorator, nested
@faults("copy slow 5x")
def test_slow_copies() -> None:
    with faults("copy slow 2x") as plan:
        pinned = torch.arange(1000.0).pin_memory()
        x = pinned.to("openreg", non_blocking=True)
        assert torch.equal(x.cpu(), pinned)
    assert plan.hits > 0


def train(steps: int, device: str, checkpoint: Path, until: int) -> dict[str, torch.Tensor]:
    """Trains from the checkpoint, if there is one, which is written after every second step."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    first = 0
    if checkpoint.exists():
        state = torch.load(checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.openreg.set_rng_state(state["random"].cpu(), device)
        first = state["step"]
    data = torch.randn(steps, 8, 16, generator=torch.Generator().manual_seed(5))
    for step in range(first, until):
        optimizer.zero_grad()
        model(data[step].to(device)).square().mean().backward()
        optimizer.step()
        if step % 2 == 1:
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "random": torch.openreg.get_rng_state(device),
                "step": step + 1,
            }
            torch.save(state, checkpoint)
    return {name: value.cpu() for name, value in model.state_dict().items()}


# a training that loses its device, or fails at an operator, or runs out of memory, resumes from its checkpoint to the same
# bits
@pytest.mark.parametrize("plan", ["openreg:1 lost at op 300", "openreg:1 error at op 300", "openreg:1 nomem at 250"])
def test_a_training_resumes_to_the_same_bits(plan: str, tmp_path: Path) -> None:
    whole = train(10, "openreg:1", tmp_path / "whole", 10)
    with faults(plan) as running, pytest.raises(RuntimeError, match="a fault was planned|lost"):
        train(10, "openreg:1", tmp_path / "broken", 10)
    assert running.hits == 1
    saved = torch.load(tmp_path / "broken", weights_only=True)
    assert 0 < saved["step"] < 10
    resumed = train(10, "openreg:1", tmp_path / "broken", 10)
    assert all(torch.equal(resumed[name], value) for name, value in whole.items())


# a peer that dies is an error at once, a silent one after the group's timeout; other collectives are as ever
def test_peers_of_collectives(tmp_path: Path) -> None:
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1, timeout=datetime.timedelta(seconds=1))
    try:
        x = torch.ones(4, device="openreg")
        with faults("peer dies at 2; peer silent at 3"):
            dist.all_reduce(x)
            with pytest.raises(RuntimeError, match="Connection closed by peer"):
                dist.all_reduce(x)
            start = time.monotonic()
            work = dist.all_reduce(x, async_op=True)
            assert work is not None
            with pytest.raises(RuntimeError, match="Timed out waiting 1000ms for the peer"):
                work.wait()
            assert time.monotonic() - start > 0.9
            dist.all_reduce(x)
        assert torch.equal(x.cpu(), torch.ones(4))
    finally:
        dist.destroy_process_group()


# the variable is a plan from the opening of the devices on; a bad one is an error that names it
def test_the_variable(python: Any) -> None:
    code = """
        import torch
        try:
            torch.zeros(4, device="openreg")
        except torch.OutOfMemoryError:
            print("failed")
        print(torch.zeros(4, device="openreg").sum().item())
    """
    assert python(code, OPENREG_SIM_FAULTS="nomem at 1").stdout == "failed\n0.0\n"
    done = python(code, OPENREG_SIM_FAULTS="nomem at once", status=1)
    assert 'OPENREG_SIM_FAULTS is not a valid fault plan: "once" in "nomem at once" is not a number' in done.stderr
