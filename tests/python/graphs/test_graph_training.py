# SPDX-License-Identifier: BSD-3-Clause
"""Training in graphs: whole steps, and graphed callables, compute what eager steps compute."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from capturing import captured, warmed_up
from torch import nn

D = "openreg"


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.GELU(), nn.Flatten(), nn.LayerNorm(108), nn.Linear(108, 5)
    ).to(D)


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(1)
    return [(torch.randn(4, 1, 8, 8).to(D), torch.randint(5, (4,)).to(D)) for _ in range(count)]


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, capturable=True),
    "AdamW one by one": lambda p: torch.optim.AdamW(p, capturable=True, foreach=False),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_graph_optims(name: str) -> None:
    "Forward, backward and optimizer of one step, replayed, leave the parameters that eager steps leave."
    eager = network()
    model = copy.deepcopy(eager)
    data = batches(5)

    def train(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    eager_optimizer = OPTIMIZERS[name](eager.parameters())
    expected = [train(eager, eager_optimizer, *batch) for batch in data]

    optimizer = OPTIMIZERS[name](model.parameters())
    x, y = (tensor.clone() for tensor in data[0])
    step, side = functools.partial(train, model, optimizer, x, y), torch.openreg.Stream()
    first = warmed_up(step, side)  # which makes the optimizer's state; it is the first step
    optimizer.zero_grad(set_to_none=True)
    graph, loss = captured(step, stream=side)
    torch.testing.assert_close(first, expected[0])
    for batch, wanted in zip(data[1:], expected[1:], strict=True):
        x.copy_(batch[0])
        y.copy_(batch[1])
        graph.replay()
        torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(model.state_dict(), eager.state_dict())


def test_graph_grad_scaling() -> None:
    "Scaling and unscaling are captured; the scale changes between replays."
    scaler = torch.amp.GradScaler(D, init_scale=4.0)
    weight = torch.ones(3, device=D, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler.scale(weight.sum()).backward()  # makes the scale
    optimizer.zero_grad(set_to_none=True)
    graph, _ = captured(lambda: scaler.scale((weight * 2).sum()).backward())
    graph.replay()
    assert weight.grad.tolist() == [8] * 3
    scaler.step(optimizer)
    scaler.update(16.0)
    torch.testing.assert_close(weight.detach().cpu(), torch.full((3,), 0.8))
    graph.replay()
    assert weight.grad.tolist() == [32] * 3


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD])
def test_graph_scaling_fused_optimizers(make: Any) -> None:
    "A whole step with a GradScaler: scaling, backward, the optimizer's step, which a gradient of inf skips, the new scale."
    options = {"lr": 0.1, "fused": True} | ({} if make is torch.optim.SGD else {"capturable": True})
    eager = nn.Linear(5, 3).to(D)
    model = copy.deepcopy(eager)
    inputs = [factor * torch.ones(2, 5).to(D) for factor in (1, 1, torch.inf, 2, 3)]

    def train(model: nn.Module, optimizer: torch.optim.Optimizer, scaler: Any, x: torch.Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(model(x).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()

    def scaler() -> Any:
        return torch.amp.GradScaler(D, init_scale=8.0, growth_interval=2)

    optimizer, eager_scaler = make(eager.parameters(), **options), scaler()
    expected = []
    for x in inputs:
        train(eager, optimizer, eager_scaler, x)
        expected.append([eager_scaler.get_scale(), *(p.detach().clone() for p in eager.parameters())])

    optimizer, graph_scaler = make(model.parameters(), **options), scaler()
    side, x = torch.openreg.Stream(), inputs[0].clone()
    step = functools.partial(train, model, optimizer, graph_scaler, x)
    warmed_up(step, side)
    graph, _ = captured(step, stream=side)
    for given, wanted in zip(inputs[1:], expected[1:], strict=True):
        x.copy_(given)
        graph.replay()
        torch.testing.assert_close([graph_scaler.get_scale(), *(p.detach() for p in model.parameters())], wanted)


@pytest.mark.parametrize("kind", ["OpenRegGraph", "torch.accelerator.Graph"])
def test_graph_optims_with_explicitly_capturable_param_groups(kind: str) -> None:
    "An optimizer that would repeat the numbers of one step says so; outside of a capture, and with capturable=True, it steps."
    weight = torch.ones(3, device=D, requires_grad=True)
    weight.grad = torch.ones(3, device=D)
    on_cpu = torch.ones(3, requires_grad=True)
    on_cpu.grad = torch.ones(3)
    wrong, right = torch.optim.Adam([weight], lr=0.1), torch.optim.Adam([weight], lr=0.1, capturable=True)
    other = torch.optim.Adam([on_cpu], lr=0.1)
    for optimizer in (wrong, right):
        optimizer.step()
    with torch.openreg.stream(torch.openreg.Stream()):
        graph = torch.accelerator.Graph() if kind != "OpenRegGraph" else torch.openreg.OpenRegGraph()
        graph.capture_begin()
        with pytest.raises(RuntimeError, match=r"step\(\) of Adam is being captured.*capturable=True"):
            wrong.step()
        right.step()
        if torch.__version__ < (2, 15):  # whose check doesn't look at where the parameters are
            other.step()
        graph.capture_end()
        graph.replay()
        wrong.step()
    other.step()
    assert on_cpu.max().item() < 1


def test_graph_autocast() -> None:
    "Casts are part of the graph."
    x, w = torch.randn(4, 4).to(D), torch.randn(4, 4).to(D)

    def work() -> torch.Tensor:
        with torch.autocast(D, torch.bfloat16, cache_enabled=False):
            return x @ w

    graph, out = captured(work)
    x.mul_(2)
    graph.replay()
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, work())


@pytest.mark.parametrize("count", [1, 2])
def test_graph_make_graphed_callables(count: int) -> None:
    "Modules train as they do eagerly, and run eagerly in the other mode."
    torch.manual_seed(0)
    eager = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(count)).to(D)
    graphed = copy.deepcopy(eager)
    samples = tuple((torch.randn(4, 6, device=D, requires_grad=True),) for _ in range(count))
    made: Any = torch.openreg.make_graphed_callables(
        tuple(graphed) if count > 1 else graphed[0], samples if count > 1 else samples[0]
    )
    made = made if count > 1 else (made,)
    optimizers = [torch.optim.SGD(modules.parameters(), lr=0.1) for modules in (eager, graphed)]
    for _ in range(3):
        data = torch.randn(4, 6).to(D)
        results = []
        for chain, optimizer in zip((tuple(eager), made), optimizers, strict=True):
            x = data.clone().requires_grad_()
            y = x
            for module in chain:
                y = module(y)
            optimizer.zero_grad(set_to_none=True)
            y.square().sum().backward()
            optimizer.step()
            results.append((y.detach().clone(), x.grad.clone()))
        torch.testing.assert_close(results[0], results[1])
    torch.testing.assert_close(eager.state_dict(), graphed.state_dict())
    made[0].eval()
    assert made[0](torch.ones(2, 6, device=D)).shape == (2, 6)


def test_memory_of_a_step() -> None:
    "A graph's pool takes what an eager step takes at its most; a capture, until its end, also the parameters as they were."
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to(D)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(512, 64).to(D), torch.randint(0, 10, (512,)).to(D)
    static = torch.openreg.memory_allocated()
    changed = sum(parameter.untyped_storage().nbytes() for parameter in model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    def peak(work: Any) -> int:
        torch.openreg.synchronize()
        torch.openreg.reset_peak_memory_stats()
        work()
        torch.openreg.synchronize()
        return torch.openreg.max_memory_allocated()

    side, graph = torch.openreg.Stream(), torch.openreg.OpenRegGraph()

    def capture() -> None:
        with torch.openreg.graph(graph, stream=side):
            step()

    with torch.openreg.stream(side):
        step()
        eager = peak(step) - static
    capturing = peak(capture) - static
    kept = torch.openreg.memory_allocated()
    assert capturing <= eager + changed + 0.02 * eager
    assert kept - static <= eager
    graph.replay()
    assert peak(graph.replay) == kept
    assert torch.openreg.memory_allocated() == kept


def test_graph_make_graphed_callables_of_a_function() -> None:
    "Nested outputs keep their structure, inputs without a gradient have none."
    a, b = torch.ones(3, device=D, requires_grad=True), torch.full((3,), 2.0, device=D)
    run = torch.openreg.make_graphed_callables(lambda a, b: {"sum": a + b, "product": [a * b]}, (a, b))
    x = torch.full((3,), 3.0, device=D, requires_grad=True)
    out = run(x, torch.full((3,), 4.0, device=D))
    assert (out["sum"].tolist(), out["product"][0].tolist()) == ([7] * 3, [12] * 3)
    (out["sum"] + out["product"][0]).sum().backward()
    assert x.grad.tolist() == [5] * 3


def test_what_graphed_callables_refuse() -> None:
    "Hooks, buffers with gradients, arguments that are no tensors, autocast's cache."
    module, x = nn.Linear(2, 2).to(D), torch.ones(2, device=D)
    with pytest.raises(TypeError, match="must consist of tensors"):
        torch.openreg.make_graphed_callables(module, (1,))
    with torch.autocast(D), pytest.raises(RuntimeError, match="cache_enabled=False"):
        torch.openreg.make_graphed_callables(module, (x,))
    module.register_forward_hook(lambda *_: None)
    with pytest.raises(RuntimeError, match="no hooks"):
        torch.openreg.make_graphed_callables(module, (x,))
    other = nn.BatchNorm1d(2).to(D)
    other.running_mean.requires_grad_()
    with pytest.raises(RuntimeError, match="no buffers"):
        torch.openreg.make_graphed_callables(other, (x,))


def test_transformer_block() -> None:
    "Attention, dropout and norms: an encoder layer's forward and backward, graphed."
    torch.manual_seed(0)
    eager = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).to(D)
    graphed = copy.deepcopy(eager)
    x = torch.randn(2, 5, 8).to(D)
    made = torch.openreg.make_graphed_callables(graphed, (x.clone().requires_grad_(),))
    results = []
    for module in (eager, made):
        given = x.clone().requires_grad_()
        out = module(given)
        out.square().sum().backward()
        results.append((out.detach(), given.grad, [p.grad for p in module.parameters()]))
    torch.testing.assert_close(results[0], results[1])


def test_graphed_callables_share_a_pool() -> None:
    "What one saves for its backward is memory of the pool again afterwards: outputs and gradients of inputs stay."
    pool = torch.openreg.graph_pool_handle()
    x = torch.randn(512, 1024, device=D, requires_grad=True)
    used = []
    made = []
    for _ in range(3):
        layers = nn.Sequential(nn.Tanh(), nn.Sigmoid(), nn.Tanh()).to(D)
        made.append(torch.openreg.make_graphed_callables(layers, (x,), pool=pool))
        segments = [s for s in torch.openreg.memory_snapshot() if s["segment_pool_id"] == pool]
        used.append(sum(segment["allocated_size"] for segment in segments))
    assert used == [2 * x.nbytes, 4 * x.nbytes, 6 * x.nbytes]
    y = torch.randn(512, 1024, device=D, requires_grad=True)
    expected = nn.Sequential(nn.Tanh(), nn.Sigmoid(), nn.Tanh())(y)
    assert torch.equal(made[1](y), expected)
