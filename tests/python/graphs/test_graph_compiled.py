# SPDX-License-Identifier: BSD-3-Clause
"""Graphs and torch.compile: compiled graphs are captured, by the program and by mode="reduce-overhead"."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from capturing import captured
from comparing import drawn_by_seed
from torch import nn
from torch.nn import functional as F

D = "openreg"

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")

LINE = 'torch.compile(mode="reduce-overhead"): a compiled graph is not captured, and runs as without the mode: '


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 48), nn.GELU(), nn.LayerNorm(48), nn.Linear(48, 4))


def test_a_compiled_function_is_captured() -> None:
    "Its kernels don't run during the capture; a replay runs them with the inputs of then, and draws new numbers."

    @torch.compile
    def work(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.dropout(x.sin() * 2, 0.5) @ x
        total.add_(1)
        return y.relu() + 1

    x, total = torch.randn(6, 6, device=D), torch.zeros(3, device=D)
    work(x, total)
    total.zero_()
    graph, out = captured(lambda: work(x, total))
    assert total.tolist() == [0] * 3
    x.mul_(0.5)
    drawn = drawn_by_seed(lambda: graph.replay() or out.clone())
    torch.openreg.manual_seed(1)
    torch.testing.assert_close(drawn, work(x, total))
    assert total.tolist() == [4] * 3


def test_a_compiled_function_is_compiled_in_the_capture() -> None:
    "Tracing runs on fake tensors, which are no part of the graph."
    work = torch.compile(lambda x: x.cos() + x.sum())
    x = torch.zeros(5, device=D)
    graph, out = captured(lambda: work(x))
    graph.replay()
    assert out.tolist() == [1] * 5
    x.fill_(2)
    graph.replay()
    torch.testing.assert_close(out.cpu(), torch.full((5,), 2.0).cos() + 10)


def trained(model: nn.Module, run: Callable[..., Any], steps: int = 7) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(2)
    results = []
    for _ in range(steps):
        x, y = torch.randn(16, 8).to(D), torch.randn(16, 4).to(D)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(run(x), y)
        loss.backward()
        optimizer.step()
        results.append(loss.detach())
    return [*results, *(p.detach() for p in model.parameters())]


def replays_of(work: Callable[[], Any]) -> tuple[Any, int]:
    "What the work returns, and how many replays it made."
    replays: list[None] = []
    replay = torch.openreg.OpenRegGraph.replay
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.openreg.OpenRegGraph, "replay", lambda graph: replays.append(replay(graph)))
        return work(), len(replays)


def test_reduce_overhead_trains_as_eager() -> None:
    "Forward and backward are captured after two calls of each, and all later calls are replays."
    eager = network().to(D)
    model = copy.deepcopy(eager)
    expected = trained(eager, eager)
    results, replays = replays_of(lambda: trained(model, torch.compile(model, mode="reduce-overhead")))
    torch.testing.assert_close(results, expected)
    assert replays == 2 * 5


def test_reduce_overhead_gives_back_what_it_wrote() -> None:
    "Inputs that the function writes are written, wherever they are; results that are kept stay as they are."

    @torch.compile(mode="reduce-overhead")
    def work(x: torch.Tensor, cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cache.add_(x)
        return cache * 2, x

    kept = []

    def calls() -> None:
        for i in range(7):
            x, cache = torch.full((4096,), float(i), device=D), torch.ones(4096, device=D)
            doubled, same = work(x, cache)
            assert cache.tolist() == [1 + i] * 4096
            kept.append((doubled, same))

    _, replays = replays_of(calls)
    assert replays >= 3
    for i, (doubled, same) in enumerate(kept):
        assert (doubled[0].item(), same[0].item()) == (2 + 2 * i, i)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: x.softmax(-1).cumsum(0) * w,
        lambda x, w: torch.bmm(x.view(4, 16, 64), w.view(4, 64, 16)),
        lambda x, w: F.pad(x[:16, :16], (1, 1))[:, 1:-1].logcumsumexp(0) * w[:16, :16],
        lambda x, w: x.gather(1, torch.arange(64, device=D).expand(64, 64)).t() * w,
    ],
    ids=["what_the_forward_pass_computed", "a_view_of_an_input", "rows_with_gaps", "an_index"],
)
def test_reduce_overhead_returns_what_is_saved(function: Callable[..., torch.Tensor]) -> None:
    "A backward pass may write its result into what was saved for it, which may lie anywhere in a batch."
    batches = torch.randn(7, 64, 64, device=D)

    def gradients(work: Callable[..., torch.Tensor], batch: torch.Tensor) -> tuple[torch.Tensor, ...]:
        inputs = [batch.detach().requires_grad_(), torch.ones_like(batch, requires_grad=True)]
        return torch.autograd.grad(work(*inputs).square().sum(), inputs)

    compiled = torch.compile(function, mode="reduce-overhead")
    found, replays = replays_of(lambda: [gradients(compiled, batch) for batch in batches])
    assert replays >= 6
    torch.testing.assert_close(found, [gradients(function, batch) for batch in batches])


def test_reduce_overhead_inside_of_a_capture() -> None:
    "The outer graph has the compiled graph's kernels."
    work = torch.compile(lambda x: x.sin() + 1, mode="reduce-overhead")
    x = torch.zeros(4, device=D)
    for _ in range(4):
        work(x)
    graph, out = captured(lambda: work(x))
    graph.replay()
    assert out.tolist() == [1] * 4


def test_reduce_overhead_says_once_that_it_does_not_capture(caplog: pytest.LogCaptureFixture) -> None:
    "A graph that needs a value on the host runs as before, and one line of the log says why."
    work = torch.compile(lambda x: (x + 1).nonzero() * 2, mode="reduce-overhead")
    x = torch.tensor([0.0, -1.0, 2.0], device=D)
    with (
        torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True),
        caplog.at_level(logging.WARNING, "torch_openreg"),
    ):
        for _ in range(6):
            assert work(x).tolist() == [[0], [4]]
    lines = [record.getMessage() for record in caplog.records if "reduce-overhead" in record.getMessage()]
    assert len(lines) == 1
    assert lines[0].startswith(LINE)
    assert "aten::nonzero" in lines[0]


def test_the_line_is_visible(python: Any) -> None:
    "A program that sets up no logging sees it."
    shown = python(
        """
        import torch
        work = torch.compile(lambda x, y: x + y, mode="reduce-overhead")
        for _ in range(4):
            work(torch.ones(3, device="openreg"), torch.tensor(2.0))
        """
    )
    assert (shown.stdout + shown.stderr).count(LINE + "an input is a tensor of another device") == 1
