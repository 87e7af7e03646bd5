# SPDX-License-Identifier: BSD-3-Clause
"""DataLoader and what is around it: batches from workers, pinned, and moved to the device."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, random_split

DEV = "openreg:1"
HERE = torch.device(DEV)

pytestmark = pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")

Pair = collections.namedtuple("Pair", ["x", "label"])


class Squares(Dataset[Pair]):
    """Pairs of a number and its square."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Pair:
        return Pair(torch.tensor([float(index)]), torch.tensor([float(index) ** 2]))


class Stream(IterableDataset[torch.Tensor]):
    """Numbers, shared among the workers."""

    def __iter__(self) -> Any:
        info = torch.utils.data.get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        return iter(torch.arange(float(6))[first::step])


# batches keep their type; pinned ones are pinned for this device, and copied without waiting
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("pin", [True, False])
def test_batches(workers: int, pin: bool) -> None:
    torch.ones(1, device=DEV)  # the runtime is in use before the workers are forked
    loader = DataLoader(Squares(), batch_size=4, num_workers=workers, pin_memory=pin)
    total = torch.zeros(1, device=DEV)
    for batch in loader:
        assert isinstance(batch, Pair)
        assert batch.x.is_pinned() == batch.label.is_pinned() == pin
        there = torch.openreg.to_device(batch, DEV, non_blocking=True)
        assert isinstance(there, Pair) and there.x.device == HERE
        total += (there.label - there.x**2).abs().sum() + there.x.sum()
    assert total.item() == 28.0


# the device to pin for may be named, workers may stay and may be spawned
def test_ways_to_start_workers() -> None:
    loader = DataLoader(Squares(), batch_size=8, pin_memory=True, pin_memory_device="openreg")
    assert next(iter(loader)).x.is_pinned()
    loader = DataLoader(Stream(), batch_size=3, num_workers=2, persistent_workers=True, multiprocessing_context="spawn")
    for _ in range(2):
        found = torch.cat([batch.to(DEV) for batch in loader])
        assert sorted(found.tolist()) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


# data that is on the device already: batches are there, shuffled by a generator of the host
def test_data_on_the_device() -> None:
    data = TensorDataset(torch.arange(6.0, device=DEV), torch.arange(6, device=DEV))
    order = torch.Generator().manual_seed(1)
    batches = list(DataLoader(data, batch_size=2, shuffle=True, generator=order))
    assert {part.device for batch in batches for part in batch} == {HERE}
    assert sorted(torch.cat([x for x, _ in batches]).tolist()) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    first, second = random_split(data, [4, 2], generator=torch.Generator().manual_seed(2))
    assert len(first) == 4 and second[0][0].device == HERE
    with pytest.raises(RuntimeError, match="pin"):
        next(iter(DataLoader(data, batch_size=2, pin_memory=True)))


# under set_default_device, and with a generator of the device, the loader draws its order there
def test_the_default_device_decides_on_the_order() -> None:
    torch.set_default_device(DEV)
    try:
        loader = DataLoader(
            TensorDataset(torch.arange(6.0)), batch_size=3, shuffle=True, generator=torch.Generator(DEV).manual_seed(1)
        )
        found = torch.cat([x for (x,) in loader])
    finally:
        torch.set_default_device(None)
    assert found.device == HERE and sorted(found.tolist()) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


# a worker that touches the device is told why it can't
def test_workers_cannot_use_the_device() -> None:
    class OnDevice(Squares):
        def __getitem__(self, index: int) -> Any:
            return torch.ones(1, device=DEV)

    torch.ones(1, device=DEV)
    with pytest.raises(RuntimeError, match="fork"):
        next(iter(DataLoader(OnDevice(), num_workers=1)))
