# SPDX-License-Identifier: BSD-3-Clause
"""Every optimizer of torch.optim, each implementation it has, trains on the device as on the CPU."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from comparing import EXACT, assert_same
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.testing import assert_close
from torch.testing._internal.common_optimizers import optim_db

DEV = "openreg:1"
SETTINGS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    "Adam": {"lr": 0.01, "amsgrad": True, "weight_decay": 0.01},
    "ASGD": {"lr": 0.01, "t0": 0},
    "LBFGS": {"lr": 0.1, "max_iter": 4, "line_search_fn": "strong_wolfe"},
}
# Gradients of the whole network are sparse in no case, and Muon takes matrices alone.
INFOS = [info for info in optim_db if not info.only_supports_sparse_grads]
IMPLEMENTATIONS = [
    (info, implementation)
    for info in INFOS
    for implementation in ("for-loop", *(way for way in info.supported_impls if way != "differentiable"))
    if implementation != "fused" or "cpu" in info.supports_fused_on
]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))


def trained(model: nn.Module, kind: Any, settings: dict[str, Any], count: int = 4) -> list[torch.Tensor]:
    """Weights and the state of the optimizer after some steps."""
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(5, 6, generator=generator).to(device), torch.randn(5, 1, generator=generator).to(device)
    parameters = [p for p in model.parameters() if kind is not torch.optim.Muon or p.dim() == 2]
    optimizer = kind(parameters, **settings)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = nn.functional.mse_loss(model(x), y)
        value.backward()
        return value

    for _ in range(count):
        optimizer.step(loss)
    state = [value for p in parameters for value in optimizer.state[p].values() if isinstance(value, torch.Tensor)]
    return [p.detach() for p in model.parameters()] + [s for s in state if s.dim() > 0]


# one loop, foreach and fused: bit for bit what the same implementation gives on the CPU
@pytest.mark.parametrize(
    ("info", "implementation"),
    IMPLEMENTATIONS,
    ids=[f"{info.optim_cls.__name__}-{implementation}" for info, implementation in IMPLEMENTATIONS],
)
def test_optimizers_equal_the_cpu(info: Any, implementation: str) -> None:
    kind = info.optim_cls
    settings = dict(SETTINGS.get(kind.__name__, {"lr": 0.01}))
    if implementation != "for-loop":
        settings[implementation] = True
    elif "foreach" in info.supported_impls:
        settings["foreach"] = False
    cpu = network()
    there = copy.deepcopy(cpu).to(DEV)
    expected, got = trained(cpu, kind, settings), trained(there, kind, settings)
    assert_same(got, expected, **EXACT)
    assert not torch.equal(next(there.parameters()).cpu(), next(network().parameters()))


# the implementation that is taken when none is named: foreach, as for other accelerators
def test_foreach_is_the_default() -> None:
    model = network().to(DEV)
    optimizer = torch.optim.Adam(model.parameters())
    assert "openreg" in torch.utils._foreach_utils._get_foreach_kernels_supported_devices()
    model(torch.ones(1, 6, device=DEV)).sum().backward()
    torch.openreg.set_operator_details(True)
    torch.openreg.reset_operator_stats()
    try:
        optimizer.step()
        stats = torch.openreg.operator_stats()
    finally:
        torch.openreg.set_operator_details(False)
    ran = stats["aliased"] | stats["staged"] | stats["native"]
    assert any(name.startswith("aten::_foreach_") for name in ran), sorted(ran)


# sparse gradients of an embedding
@pytest.mark.parametrize("kind", [torch.optim.SparseAdam, torch.optim.SGD, torch.optim.Adagrad])
def test_sparse_gradients(kind: Any) -> None:
    results = []
    for device in ("cpu", DEV):
        torch.manual_seed(0)
        embedding = nn.Embedding(9, 4, sparse=True).to(device)
        optimizer = kind(embedding.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            embedding(torch.tensor([1, 3, 3], device=device)).square().sum().backward()
            assert embedding.weight.grad.layout == torch.sparse_coo
            assert embedding.weight.grad.device == torch.device(device)
            optimizer.step()
        results.append(embedding.weight.detach())
    assert_same(results[1], results[0], **EXACT)


# a learning rate that is a tensor, groups, schedules, and a step under loss scaling
def test_settings_of_optimizers() -> None:
    results = []
    for device in ("cpu", DEV):
        model = network().to(device)
        groups = [
            {"params": [model[0].weight], "lr": torch.tensor(0.1)},
            {"params": [model[0].bias, *model[2].parameters()]},
        ]
        optimizer = torch.optim.AdamW(groups, lr=0.01, foreach=False)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, [0.1, 0.01], total_steps=5)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.ones(2, 6, device=device)).square().sum().backward()
            optimizer.step()
            schedule.step()
        results.append([*model.parameters()])
    assert_same(results[1], results[0], **EXACT)


# fused steps with loss scaling skip what has overflowed
def test_fused_steps_with_loss_scaling() -> None:
    model = network().to(DEV)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("openreg", init_scale=64.0)
    before = model[0].weight.detach().clone()
    for factor, changed in ((float("inf"), False), (1.0, True)):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(2, 6, device=DEV)).square().sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(model[0].weight, before) != changed


# averages of weights, and batch statistics for them
def test_averaged_models() -> None:
    results = []
    for device in ("cpu", DEV):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)).to(device)
        averages = [AveragedModel(model), AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.linspace(-1, 1, 30).reshape(5, 6).to(device)
        for _ in range(3):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
            for average in averages:
                average.update_parameters(model)
        update_bn([x, 2 * x], averages[0], device=torch.device(device))
        results.append([average.state_dict() for average in averages])
    assert_close(results[1], results[0], check_device=False, **EXACT)
