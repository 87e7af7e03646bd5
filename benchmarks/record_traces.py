# SPDX-License-Identifier: BSD-3-Clause
"""Records what training steps of small models ask of the allocator, for replay_bench.c.

Writes traces/<model>.trace.gz: text of one number a line. A positive number is a request for that many bytes, the n-th of
the file with n from 0; a negative one, -(n + 1), frees the n-th. Sizes follow from the models alone, so a trace is the
same on every machine.

Usage: python benchmarks/record_traces.py [folder]
"""

from __future__ import annotations

import gzip
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from models import Gpt, Lstm, mlp, small_resnet
from torch import nn

import torch_openreg  # noqa: F401

DEVICE = "openreg:0"
STEPS = 4


def train(make: Callable[[], nn.Module], inputs: torch.Tensor) -> None:
    """A few steps with Adam, on data that is moved to the device in each."""
    torch.manual_seed(0)
    model = make().to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    for _ in range(STEPS):
        x = inputs.to(DEVICE)
        y = torch.randint(0, 10, inputs.shape[:1]).to(DEVICE)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def record(make: Callable[[], nn.Module], inputs: torch.Tensor) -> list[int]:
    """The lines of the trace of a training."""
    memory = torch.openreg.memory
    memory._record_memory_history(context=None, clear_history=True)
    train(make, inputs)
    torch.openreg.synchronize()
    events = memory._snapshot()["device_traces"][0]
    memory._record_memory_history(None)
    lines: list[int] = []
    live: dict[int, int] = {}
    count = 0
    for event in events:
        if event["action"] == "alloc":
            live[event["addr"]] = count
            count += 1
            lines.append(event["size"])
        elif event["action"] == "free_completed" and event["addr"] in live:
            lines.append(-(live.pop(event["addr"]) + 1))
    return lines


def main() -> None:
    """Records every model."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "traces"
    folder.mkdir(exist_ok=True)
    for name, make, inputs in (
        ("mlp", mlp, torch.randn(128, 784)),
        ("resnet", small_resnet, torch.randn(32, 3, 32, 32)),
        ("gpt", Gpt, torch.randint(0, 256, (16, 64))),
        ("lstm", Lstm, torch.randn(16, 32, 64)),
    ):
        lines = record(make, inputs)
        path = folder / f"{name}.trace.gz"
        # Without the time of writing, so that the same trace is the same file.
        path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode(), 9, mtime=0))
        print(f"{path.name}: {len(lines)} operations, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
