# SPDX-License-Identifier: BSD-3-Clause
"""Pinned memory: tensors, storages, DataLoader with workers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader


@pytest.mark.filterwarnings("ignore:The argument .device. of Tensor")
def test_pinning() -> None:
    x = torch.arange(6.0)
    for pinned in (x.pin_memory(), x.pin_memory("openreg"), torch.empty(3, pin_memory=True)):
        assert pinned.device.type == "cpu"
        assert pinned.is_pinned()
        assert pinned.is_pinned("openreg")
        assert pinned[1:].is_pinned()
        assert pinned.pin_memory() is pinned
        if torch.__version__ >= (2, 13):  # a storage asked of "cuda"
            assert pinned.untyped_storage().is_pinned()
    if torch.__version__ >= (2, 13):
        assert x.untyped_storage().pin_memory().is_pinned()
    assert not x.is_pinned()
    assert not x.to("openreg").is_pinned()
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        x.to("openreg").pin_memory()


class Numbers(torch.utils.data.Dataset[Any]):
    """Module-level, so that spawned workers find it."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> Any:
        return {"x": torch.full((3,), float(index)), "pair": (index, torch.tensor(index))}


# workers prepare on the CPU; what reaches the loop is pinned, whatever it is packed in, and right on the device
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("error")
def test_dataloader(method: str) -> None:
    torch.openreg.synchronize()  # the devices are open
    loader = DataLoader(Numbers(), 8, num_workers=1, pin_memory=True, multiprocessing_context=method)
    sums = []
    for batch in loader:
        assert batch["x"].is_pinned()
        assert batch["pair"][1].is_pinned()
        there = batch["x"].to("openreg:1", non_blocking=True)
        sums.append(there.sum().item())
        assert torch.equal(there.cpu(), batch["x"])
    assert sums == [3.0 * sum(range(k, k + 8)) for k in (0, 8, 16, 24)]


# a pinned block that a copy reads through another library's view is not given to the next tensor before the copy has ended
def test_a_view_by_numpy_keeps_the_block_during_its_copy() -> None:
    for turn in range(10):
        pinned = torch.full((1 << 24,), float(turn)).pin_memory()
        view = torch.from_numpy(pinned.numpy()[8:])
        assert view.is_pinned()
        there = torch.empty(view.shape, device="openreg")
        there.copy_(view, non_blocking=True)
        del pinned, view
        torch.empty(1 << 24, pin_memory=True).fill_(-1.0)  # takes the block if it is free
        assert torch.equal(there[[0, -1]].cpu(), torch.full((2,), float(turn)))
        assert there.min().item() == there.max().item() == turn
