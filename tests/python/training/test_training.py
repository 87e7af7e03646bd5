# SPDX-License-Identifier: BSD-3-Clause
"""Training: networks, optimizers and autocast give on openreg what they give on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

DEV = "openreg:1"


class Cnn(nn.Module):
    """Convolutions of several kinds, normalisation, pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=2),
            nn.GroupNorm(2, 8),
            nn.SiLU(),
            nn.MaxPool2d(2),
            nn.ConvTranspose2d(8, 4, 2, stride=2),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


class Recurrent(nn.Module):
    """An LSTM and a GRU over an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.lstm = nn.LSTM(8, 6, num_layers=2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(12, 6, batch_first=True)
        self.head = nn.Linear(6, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.lstm(self.embedding(tokens))
        hidden, _ = self.gru(hidden)
        return self.head(hidden[:, -1])


class Transformer(nn.Module):
    """A small encoder with a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        return self.head(self.encoder(self.embedding(tokens), mask=mask, is_causal=True)[:, -1])


def images() -> torch.Tensor:
    return torch.randn(6, 3, 16, 16)


def tokens() -> torch.Tensor:
    return torch.randint(0, 20, (6, 7))


NETWORKS: list[tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = [
    (Cnn, images),
    (Recurrent, tokens),
    (Transformer, tokens),
]
OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "SGD, no foreach": lambda p: torch.optim.SGD(p, lr=0.1, foreach=False),
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-2),
    "Adam, no foreach": lambda p: torch.optim.Adam(p, lr=1e-2, foreach=False),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
}


def steps(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor, count: int
) -> list[float]:
    """Trains and returns the losses."""
    losses = []
    for _ in range(count):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


# every operator that a CNN, an LSTM and a small transformer need in training runs right
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("network", "data"), NETWORKS, ids=["cnn", "recurrent", "transformer"])
def test_training_equals_the_cpu(network: Any, data: Any, optimizer: str) -> None:
    x, y = data(), torch.randint(0, 5, (6,))
    cpu = network()
    there = copy.deepcopy(cpu).to(DEV)
    expected = steps(cpu, OPTIMIZERS[optimizer](cpu.parameters()), x, y, 5)
    got = steps(there, OPTIMIZERS[optimizer](there.parameters()), x.to(DEV), y.to(DEV), 5)
    assert got == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert expected[-1] < expected[0]
    for (name, a), b in zip(cpu.named_parameters(), there.parameters(), strict=True):
        assert b.device == b.grad.device == torch.device(DEV)
        if name.endswith("in_proj_bias") and "SGD" not in optimizer:
            continue  # the keys' part has no gradient but rounding noise, which these optimizers scale to full steps
        assert_close(b.cpu(), a, rtol=1e-3, atol=1e-4, msg=name)


# a move keeps the Parameters themselves
def test_tied_weights_stay_tied() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(11, 4)
            self.head = nn.Linear(4, 11, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, t: torch.Tensor) -> torch.Tensor:
            return self.head(self.embedding(t))

    cpu = Tied()
    there = copy.deepcopy(cpu).to(DEV)
    assert there.head.weight is there.embedding.weight
    x, y = torch.randint(0, 11, (6,)), torch.randint(0, 11, (6,))
    expected = steps(cpu, torch.optim.SGD(cpu.parameters(), lr=0.5), x, y, 4)
    got = steps(there, torch.optim.SGD(there.parameters(), lr=0.5), x.to(DEV), y.to(DEV), 4)
    assert got == pytest.approx(expected, abs=1e-5)


# a move keeps the Parameters themselves
@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_an_optimizer_built_before_the_move_trains_the_moved_model(optimizer: str) -> None:
    x, y = images(), torch.randint(0, 5, (6,))
    cpu = Cnn()
    there = copy.deepcopy(cpu)
    early = OPTIMIZERS[optimizer](there.parameters())
    there.to(DEV)
    expected = steps(cpu, OPTIMIZERS[optimizer](cpu.parameters()), x, y, 4)
    got = steps(there, early, x.to(DEV), y.to(DEV), 4)
    assert got == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_autocast_step() -> None:
    cpu = Cnn()
    there = copy.deepcopy(cpu).to(DEV)
    optimizer = torch.optim.SGD(there.parameters(), lr=0.1)
    x, y = images().to(DEV), torch.randint(0, 5, (6,)).to(DEV)
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        with torch.autocast("openreg", dtype=torch.bfloat16):
            scores = there(x)
            loss = F.cross_entropy(scores, y)
        assert scores.dtype == torch.bfloat16
        assert loss.dtype == torch.float32
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(parameter.grad.dtype == torch.float32 for parameter in there.parameters())
    assert losses[-1] < losses[0]
    full = F.cross_entropy(cpu(x.cpu()), y.cpu()).item()
    assert losses[0] == pytest.approx(full, rel=0.05)


def test_gradient_scaling() -> None:
    model = nn.Linear(4, 2).to(DEV)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("openreg", init_scale=1024.0)
    x = torch.randn(8, 4, device=DEV)
    for scale in (1.0, float("inf")):
        optimizer.zero_grad()
        with torch.autocast("openreg", dtype=torch.float16):
            loss = model(x).square().mean() * scale
        scaler.scale(loss).backward()
        before = model.weight.detach().clone()
        scaler.step(optimizer)  # skipped where a gradient is inf
        assert torch.equal(model.weight, before) == (scale != 1.0)
        scaler.update()
    assert scaler.get_scale() == 512.0


# one replica per device, each in its thread, all at once
def test_replicas_in_threads() -> None:
    x, y = images(), torch.randint(0, 5, (6,))
    reference = Cnn()
    replicas = [copy.deepcopy(reference) for _ in range(4)]
    expected = steps(reference, torch.optim.SGD(reference.parameters(), lr=0.1), x, y, 5)

    def work(number: int) -> list[float]:
        torch.openreg.set_device(number % 2)
        model = replicas[number].to("privateuseone")
        assert next(model.parameters()).device == torch.device("openreg", number % 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return steps(model, optimizer, x.to("privateuseone"), y.to("privateuseone"), 5)

    with ThreadPoolExecutor(len(replicas)) as pool:
        results = list(pool.map(work, range(len(replicas))))
    for losses in results:
        assert losses == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_a_graph_over_two_devices() -> None:
    cpu = [nn.Linear(4, 4), nn.Linear(4, 2)]
    first, second = (copy.deepcopy(layer).to(device) for layer, device in zip(cpu, ("openreg:0", DEV), strict=True))
    x = torch.randn(3, 4)
    second(torch.tanh(first(x.to("openreg:0"))).to("openreg:1")).sum().backward()
    cpu[1](torch.tanh(cpu[0](x))).sum().backward()
    for a, b in zip((first, second), cpu, strict=True):
        assert_close(a.weight.grad.cpu(), b.weight.grad)
        assert a.weight.grad.device == a.weight.device


def test_memory_does_not_grow() -> None:
    model = Cnn().to(DEV)
    optimizer = torch.optim.Adam(model.parameters())
    x, y = images().to(DEV), torch.randint(0, 5, (6,)).to(DEV)
    steps(model, optimizer, x, y, 3)
    before = torch.openreg.memory_allocated(DEV)
    reserved = torch.openreg.memory_reserved(DEV)
    steps(model, optimizer, x, y, 10)
    assert torch.openreg.memory_allocated(DEV) == before
    assert torch.openreg.memory_reserved(DEV) == reserved


def test_higher_order_gradients() -> None:
    def value(x: torch.Tensor) -> torch.Tensor:
        (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        return second

    x = torch.arange(4.0)
    assert_close(value(x.to(DEV).requires_grad_()).cpu(), value(x.clone().requires_grad_()))
