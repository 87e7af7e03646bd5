# SPDX-License-Identifier: BSD-3-Clause
"""torch.func and forward-mode derivatives on the device, against the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from comparing import assert_same
from torch import nn
from torch.autograd import forward_ad
from torch.func import (
    functional_call,
    functionalize,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
    vmap,
)

DEV = "openreg:1"


def function(x: torch.Tensor) -> torch.Tensor:
    return (torch.sin(x) * x.exp()).cumsum(-1).tanh()


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 3))


def convolution(x: torch.Tensor) -> torch.Tensor:
    weight = torch.linspace(-1, 1, 18, device=x.device).reshape(2, 1, 3, 3)
    return nn.functional.max_pool2d(nn.functional.conv2d(x.reshape(1, 1, 4, 4), weight, padding=1).relu(), 2)


TRANSFORMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "grad": lambda x: grad(lambda t: function(t).sum())(x),
    "grad of grad": lambda x: vmap(grad(grad(lambda t: t.sin() * t**2)))(x.flatten()),
    "grad and value": lambda x: grad_and_value(lambda t: (function(t).sum(), function(t)), has_aux=True)(x),
    "vjp": lambda x: vjp(function, x)[1](torch.ones_like(x)),
    "jvp": lambda x: jvp(function, (x,), (torch.ones_like(x),)),
    "linearize": lambda x: linearize(function, x)[1](torch.ones_like(x)),
    "jacrev": jacrev(function),
    "jacfwd": jacfwd(function),
    "jacrev in chunks": jacrev(function, chunk_size=2),
    "hessian": hessian(lambda x: function(x).sum()),
    "vmap": vmap(lambda row: (row.softmax(0), row @ row)),
    "vmap over columns": vmap(lambda column: column.sort().values, in_dims=1, out_dims=1),
    "vmap in chunks": vmap(lambda row: row.norm(), chunk_size=1),
    "nested vmap": vmap(vmap(lambda number: number.clamp(0) + 1)),
    "vmap of linalg": lambda x: vmap(lambda m: torch.linalg.solve(m @ m.T + torch.eye(2, device=m.device), m[:, 0]))(
        torch.stack([x[:2, :2], x[1:3, :2]])
    ),
    "vmap of a convolution": lambda x: vmap(convolution)(torch.stack([x, 2 * x])),
    "jacrev of a convolution": lambda x: jacrev(convolution)(x),
    "per-sample gradients": lambda x: vmap(grad(lambda row: function(row).sum()))(x),
    "functionalize": lambda x: functionalize(lambda t: t.clone().add_(1).view(-1).mul_(2))(x),
}


# each transform of torch.func gives on the device what it gives on the CPU
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_equal_the_cpu(name: str) -> None:
    x = torch.randn(4, 4)
    assert_same(TRANSFORMS[name](x.to(DEV)), TRANSFORMS[name](x))


# random numbers inside vmap: one draw for all, or one for each, from the device's generator
def test_randomness_in_vmap() -> None:
    x = torch.zeros(3, 2, device=DEV)
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(lambda row: row + torch.rand_like(row))(x)
    same = vmap(lambda row: row + torch.rand_like(row), randomness="same")(x)
    assert torch.equal(same[0], same[1])
    torch.manual_seed(1)
    first = vmap(lambda row: nn.functional.dropout(row + 1), randomness="different")(x)
    torch.manual_seed(1)
    assert torch.equal(vmap(lambda row: nn.functional.dropout(row + 1), randomness="different")(x), first)
    assert first.device == torch.device(DEV)


# modules as functions of their parameters: gradients per sample, ensembles, and stateless calls
def test_modules_as_functions() -> None:
    cpu = network()
    there = copy.deepcopy(cpu).to(DEV)
    x, y = torch.randn(6, 4), torch.randint(0, 3, (6,))

    def per_sample(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        def loss(parameters: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(functional_call(model, parameters, (x[None],)), y[None])

        return vmap(grad(loss), in_dims=(None, 0, 0))({k: v.detach() for k, v in model.named_parameters()}, x, y)

    assert_same(per_sample(there, x.to(DEV), y.to(DEV)), per_sample(cpu, x, y))

    def ensemble(models: list[nn.Module], x: torch.Tensor) -> torch.Tensor:
        parameters, buffers = stack_module_state(models)
        shell = copy.deepcopy(models[0]).to("meta")
        return vmap(lambda p, b: functional_call(shell, (p, b), (x,)))(parameters, buffers)

    assert_same(ensemble([there, there], x.to(DEV)), ensemble([cpu, cpu], x))
    zeros = {name: torch.zeros_like(value) for name, value in there.named_parameters()}
    assert functional_call(there, zeros, (x.to(DEV),)).count_nonzero().item() == 0


# a step of gradient descent, differentiated through
def test_a_step_of_learning_is_differentiable() -> None:
    def outer(x: torch.Tensor) -> torch.Tensor:
        weight = torch.linspace(0, 1, 4, device=x.device)
        stepped = weight - 0.1 * grad(lambda w: ((x @ w) ** 2).sum())(weight)
        return (x @ stepped).square().sum()

    x = torch.randn(3, 4)
    assert_same(grad(outer)(x.to(DEV)), grad(outer)(x))


# dual numbers: through layers, views and in-place operators, with the tangent on the device
@pytest.mark.parametrize(
    "forward",
    [
        lambda x: network().to(x.device)(x),
        lambda x: (x * 2).t()[1].exp(),
        lambda x: x.clone().mul_(3).add_(x).reshape(-1)[::2],
        lambda x: torch.linalg.solve(x @ x.T + torch.eye(4, device=x.device), x),
        lambda x: torch.where(x > 0, x, x.sin()).cumprod(1),
    ],
    ids=["network", "view", "in place", "linalg", "where"],
)
def test_dual_numbers_equal_the_cpu(forward: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x, tangent = torch.randn(4, 4), torch.randn(4, 4)
    results = []
    for device in ("cpu", DEV):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x.to(device), tangent.to(device))
            results.append(tuple(forward_ad.unpack_dual(forward(dual))))
    assert_same(results[1], results[0])


# forward over reverse, and a tangent that is not there
def test_forward_over_reverse_and_missing_tangents() -> None:
    x, tangent = torch.randn(3), torch.randn(3)
    results = []
    for device in ("cpu", DEV):
        leaf = x.to(device, copy=True).requires_grad_()
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(leaf, tangent.to(device))
            (gradient,) = torch.autograd.grad((dual.sin() * dual).sum(), dual)
            results.append(forward_ad.unpack_dual(gradient).tangent)
            assert forward_ad.unpack_dual(leaf.detach() * 2).tangent is None
    assert_same(results[1], results[0])


# torch.autograd.functional, the older form of the same
def test_autograd_functional() -> None:
    x = torch.randn(3)
    for transform in (torch.autograd.functional.jacobian, torch.autograd.functional.hessian):
        assert_same(transform(lambda t: t.exp().sum(), x.to(DEV)), transform(lambda t: t.exp().sum(), x))
    vector = torch.ones(3)
    assert_same(
        torch.autograd.functional.hvp(lambda t: (t**3).sum(), x.to(DEV), vector.to(DEV)),
        torch.autograd.functional.hvp(lambda t: (t**3).sum(), x, vector),
    )
    assert torch.autograd.gradcheck(function, x.double().to(DEV).requires_grad_(), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, x.double().to(DEV).requires_grad_())
