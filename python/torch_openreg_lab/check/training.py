# SPDX-License-Identifier: BSD-3-Clause
"""Training on the device gives the losses and weights that it gives on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from _torch_openreg_device_name import device_name
from torch import Tensor, nn

from torch_openreg_lab.check.comparison import native_calls
from torch_openreg_lab.check.registry import Limits, check, expect

Optimizer = Callable[[nn.Module], torch.optim.Optimizer]

STEPS = 8
TOLERANCE = 1e-3
RULE = (
    "Training gives the CPU's losses: the same numbers where PyTorch's kernels for the CPU run, within 1e-3 where the "
    "driver's or a GPU's do."
)
HINT = "Operators may be right one by one and read what an earlier one has not written yet: see the checks streams."


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(16, 8), nn.LayerNorm(8)
        self.parts, self.head = nn.Linear(8, 24), nn.Linear(8, 16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.words(x)
        q, k, v = self.parts(self.norm(y)).split(8, dim=2)
        scores = (q @ k.transpose(1, 2)) * 8**-0.5
        seen = torch.ones(x.size(1), x.size(1), dtype=torch.bool, device=x.device).tril()
        y = y + scores.masked_fill(~seen, float("-inf")).softmax(-1) @ v
        return self.head(F.gelu(y))


def _losses(model: nn.Module, inputs: Tensor, targets: Tensor, optimizer: Optimizer, device: str) -> list[float]:
    model, inputs, targets = copy.deepcopy(model).to(device), inputs.to(device), targets.to(device)
    steps = optimizer(model)
    losses = []
    for _ in range(STEPS):
        steps.zero_grad()
        loss = F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())
        loss.backward()
        steps.step()
        losses.append(loss.item())
    return losses


def _train(model: nn.Module, inputs: Tensor, targets: Tensor, optimizer: Optimizer) -> None:
    on_cpu = _losses(model, inputs, targets, optimizer, "cpu")
    before = native_calls()
    there = _losses(model, inputs, targets, optimizer, device_name())
    tolerance = 0.0 if before >= 0 and native_calls() == before else TOLERANCE
    apart = max(abs(a - b) for a, b in zip(on_cpu, there, strict=True))
    expect(apart <= tolerance, f"losses {there}, on the CPU {on_cpu}: apart by {apart:.1e}, allowed {tolerance}")


@check("training.linear", RULE, HINT)
def linear(limits: Limits) -> None:
    """Linear layers, SGD with momentum."""
    torch.manual_seed(limits.seed)
    model = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 5))
    inputs, targets = torch.randn(32, 12), torch.randint(0, 5, (32,))
    _train(model, inputs, targets, lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3))


@check("training.convolution", RULE, HINT)
def convolution(limits: Limits) -> None:
    """Convolutions, batch norm, pooling, Adam."""
    torch.manual_seed(limits.seed)
    model = nn.Sequential(
        *(nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(96, 5))
    )
    inputs, targets = torch.randn(16, 2, 8, 8), torch.randint(0, 5, (16,))
    _train(model, inputs, targets, lambda m: torch.optim.Adam(m.parameters(), lr=0.01))


@check("training.attention", RULE, HINT)
def attention(limits: Limits) -> None:
    """Embedding, attention, layer norm, AdamW."""
    torch.manual_seed(limits.seed)
    inputs = torch.randint(0, 16, (4, 9))
    _train(_Attention(), inputs[:, :-1], inputs[:, 1:], lambda m: torch.optim.AdamW(m.parameters(), lr=0.01))
