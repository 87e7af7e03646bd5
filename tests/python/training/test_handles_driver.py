# SPDX-License-Identifier: BSD-3-Clause
"""tests/drivers/handles: a driver over buffers without addresses, with one queue and copies of whole words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from compiled_drivers import compile_driver

PROGRAM = """
import torch
from torch import nn

def train(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.Linear(5 * 36, 7)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for step in range(5):
        x = torch.randn(4, 1, 8, 8).to(device, non_blocking=True)
        loss = nn.functional.cross_entropy(model(x), torch.arange(4).to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().cpu())
    return losses, [parameter.detach().cpu() for parameter in model.parameters()]

for ours, cpus in zip(train("openreg:1"), train("cpu")):
    assert all(torch.equal(a, b) for a, b in zip(ours, cpus)), (ours, cpus)

x = torch.arange(256, dtype=torch.uint8, device="openreg")
assert torch.equal(x[1:200].cpu(), torch.arange(1, 200, dtype=torch.uint8))
x[3:9].copy_(torch.zeros(6, dtype=torch.uint8))
assert x[2:10].tolist() == [2, 0, 0, 0, 0, 0, 0, 9]
y = x.to("openreg:1")
y[5:100] = x[6:101]
assert y[4:8].tolist() == [0, 0, 0, 0] and y[99].item() == 100 and y[100].item() == 100

# no buffer is larger than the vendor's largest, whatever is free
try:
    torch.empty(1 << 30, dtype=torch.uint8, device="openreg")
    raise AssertionError("more than the largest buffer")
except torch.OutOfMemoryError as error:
    assert "512.00 MiB" in str(error), error
"""


# it trains as on the CPU, to the bit; copies of any bytes are right; a request above the largest buffer says so
def test_trains(python: Callable[..., object], tmp_path: Path, root: Path) -> None:
    vendor = root / "tests" / "drivers" / "handles" / "vendor.c"
    library = compile_driver(tmp_path, "handles/driver.c", str(vendor), "-pthread")
    python(PROGRAM, OPENREG_DRIVER_LIBRARIES=f"handles:{library}", OPENREG_DRIVERS="handles")
