# SPDX-License-Identifier: BSD-3-Clause
"""Tests as people write them for CUDA. Without a GPU: ``pytest --openreg=2 --openreg-as-cuda``."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from pipeline import Prefetcher, TwoStages, average_over_processes

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


def test_prefetcher() -> None:
    """Every batch arrives, in order, on the GPU."""
    batches = [torch.full((1 << 16,), float(i)) for i in range(8)]
    for i, batch in enumerate(Prefetcher(batches, "cuda:1")):
        with torch.cuda.device(1):
            assert batch.is_cuda
            assert batch.get_device() == 1
            assert (batch * 2).sum().item() == 2 * i * (1 << 16)


def test_two_stages() -> None:
    """The halves train together, as one model on the CPU would."""
    torch.manual_seed(0)
    model = TwoStages(8)
    model(torch.ones(4, 8)).sum().backward()
    assert model.first.weight.grad.get_device() == 0
    assert model.second.weight.grad.get_device() == 1
    assert torch.cuda.max_memory_allocated(1) > 0


def _average(rank: int, address: str) -> None:
    assert average_over_processes(rank, 2, address) == [0.5, 1.5, 2.5]


def test_two_processes(tmp_path: Path) -> None:
    """One process for each GPU, over NCCL."""
    mp.spawn(_average, (f"file://{tmp_path / 'store'}",), nprocs=2)
