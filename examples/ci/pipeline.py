# SPDX-License-Identifier: BSD-3-Clause
"""A small library as people write them for CUDA. It knows nothing of openreg; its tests need two GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import nn


class Prefetcher:
    """Copies the next batch to a GPU on a stream of its own while the caller works on the one before."""

    def __init__(self, batches: Iterable[torch.Tensor], device: torch.device | str) -> None:
        self.batches = batches
        self.device = torch.device(device)
        self.stream = torch.cuda.Stream(self.device)

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Yields each batch, on the GPU."""
        ready: torch.Tensor | None = None
        for batch in self.batches:
            with torch.cuda.stream(self.stream):
                following = batch.pin_memory().to(self.device, non_blocking=True)
            if ready is not None:
                yield ready
            torch.cuda.current_stream(self.device).wait_stream(self.stream)
            following.record_stream(torch.cuda.current_stream(self.device))
            ready = following
        if ready is not None:
            yield ready


class TwoStages(nn.Module):
    """A model whose halves are on two GPUs."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, width).to("cuda:0")
        self.second = nn.Linear(width, 1).to("cuda:1")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Passes the activations from one GPU to the other."""
        return self.second(self.first(x.to("cuda:0")).relu().to("cuda:1"))


def average_over_processes(rank: int, world: int, address: str) -> list[float]:
    """Averages a tensor over processes, one for each GPU."""
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group("nccl", init_method=address, rank=rank, world_size=world)
    x = torch.arange(3.0, device="cuda") + rank
    torch.distributed.all_reduce(x)
    torch.distributed.destroy_process_group()
    return (x / world).tolist()
