# SPDX-License-Identifier: BSD-3-Clause
"""What tests of graphs share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch


def captured(function: Callable[[], Any], **options: Any) -> tuple[Any, Any]:
    """A graph of what the function does, and what it has returned."""
    made = torch.openreg.OpenRegGraph()
    with torch.openreg.graph(made, **options):
        result = function()
    return made, result


def warmed_up(function: Callable[[], Any], stream: torch.openreg.Stream) -> Any:
    """What the function returns on a stream that waits for the current one, which waits for it."""
    stream.wait_stream(torch.openreg.current_stream())
    with torch.openreg.stream(stream):
        result = function()
    torch.openreg.current_stream().wait_stream(stream)
    return result


def spoiler(graph: Any, results: Iterable[torch.Tensor]) -> Any:
    """A graph whose replays overwrite all that another graph's pool has: results, and what is free between its nodes.

    Args:
        graph: The other graph, captured on the current device.
        results: Dense tensors in its pool that are alive.
    """
    storages = {tensor.untyped_storage()._cdata: tensor for tensor in results}
    made = torch.openreg.OpenRegGraph()
    with torch.openreg.graph(made, pool=graph.pool(), stream=torch.openreg.Stream()):
        for tensor in storages.values():
            whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
            whole.set_(tensor.untyped_storage()).fill_(0xFF)
        free = [
            (segment["device"], block["size"])
            for segment in torch.openreg.memory_snapshot()
            if segment["segment_pool_id"] == graph.pool()
            for block in segment["blocks"]
            if block["state"] == "inactive"
        ]
        here = torch.openreg.current_device()
        kept = [
            torch.full((size,), 0xFF, dtype=torch.uint8, device=f"openreg:{device}")
            for device, size in sorted(free, reverse=True)
            if device == here
        ]
    del kept
    return made
