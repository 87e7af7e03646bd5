# SPDX-License-Identifier: BSD-3-Clause
"""What hangs on to a backward pass: hooks, recomputation, saved tensors, anomaly mode, functions of one's own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from comparing import EXACT, assert_same
from torch import nn
from torch.testing import assert_close
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

DEV = "openreg:1"
HERE = torch.device(DEV)


def network(dropout: float = 0.0) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(dropout), nn.Tanh(), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 2))


def gradients(model: nn.Module, x: torch.Tensor, forward: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
    model.zero_grad()
    x = x.detach().clone().requires_grad_()
    torch.manual_seed(5)
    forward(x).square().sum().backward()
    return [x.grad, *(p.grad.clone() for p in model.parameters())]


# every kind of hook of modules is called with the device's tensors, in the CPU's order, and may replace them
def test_hooks_of_modules() -> None:
    def run(device: str) -> tuple[list[str], list[torch.Tensor]]:
        model, order = network().to(device), []
        layer = model[3]

        def note(name: str, *values: Any) -> None:
            order.append(name)
            assert all(v is None or v.device == torch.device(device) for value in values for v in value)

        layer.register_forward_pre_hook(lambda module, args: note("forward pre", args))
        layer.register_forward_hook(lambda module, args, result: (note("forward", args, [result]), result * 2)[1])
        layer.register_full_backward_pre_hook(lambda module, outputs: note("backward pre", outputs))
        layer.register_full_backward_hook(
            lambda module, inputs, outputs: (note("backward", inputs, outputs), (inputs[0] * 3,))[1]
        )
        x = torch.linspace(-1, 1, 12).reshape(3, 4).to(device)
        handle = nn.modules.module.register_module_forward_hook(lambda module, args, result: note("global", [result]))
        try:
            found = gradients(model, x, model)
        finally:
            handle.remove()
        return order, found

    expected_order, expected = run("cpu")
    order, got = run(DEV)
    assert order == expected_order and {"forward pre", "forward", "backward pre", "backward", "global"} <= set(order)
    assert_same(got, expected, **EXACT)


# hooks of tensors: on gradients, after accumulation, on nodes of the graph, on several gradients at once
def test_hooks_of_tensors() -> None:
    weight = torch.ones(3, device=DEV, requires_grad=True)
    seen: list[Any] = []
    weight.register_hook(lambda gradient: gradient * 2)
    weight.register_post_accumulate_grad_hook(lambda leaf: seen.append(("accumulated", leaf.grad.clone())))
    middle = weight * 3
    middle.retain_grad()
    middle.grad_fn.register_hook(lambda inputs, outputs: seen.append(("node", outputs[0].clone())))
    middle.grad_fn.register_prehook(lambda outputs: (outputs[0] + 1,))
    torch.autograd.graph.register_multi_grad_hook((middle,), lambda found: seen.append(("multi", found[0].clone())))
    middle.sum().backward()
    assert weight.grad.tolist() == [12.0] * 3 and middle.grad.tolist() == [1.0] * 3
    assert {name for name, _ in seen} == {"accumulated", "node", "multi"}
    assert {value.device for _, value in seen} == {HERE}
    assert dict(seen)["accumulated"].tolist() == [12.0] * 3


# an optimizer that steps inside the backward pass: no gradient is left
def test_an_optimizer_in_the_backward_pass() -> None:
    def run(device: str) -> list[torch.Tensor]:
        model = network().to(device)
        optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

        def step(parameter: torch.Tensor) -> None:
            optimizers[parameter].step()
            parameter.grad = None

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(step)
        for _ in range(3):
            model(torch.linspace(-1, 1, 12).reshape(3, 4).to(device)).square().sum().backward()
        assert all(p.grad is None for p in model.parameters())
        return [*model.parameters()]

    assert_same(run(DEV), run("cpu"), **EXACT)


# recomputed activations give the gradients of kept ones, dropout drawn again as it was, in both modes
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("keep_random_state", [True, False])
def test_checkpointing(reentrant: bool, keep_random_state: bool) -> None:
    model = network(dropout=0.5 if keep_random_state else 0.0).to(DEV)
    x = torch.randn(3, 4, device=DEV)
    expected = gradients(model, x, model)
    settings: dict[str, Any] = {"use_reentrant": reentrant, "preserve_rng_state": keep_random_state}
    for forward in (
        lambda x: checkpoint(model, x, **settings),
        lambda x: checkpoint_sequential(model, 2, x, **settings),
    ):
        # The second part of a reentrant sequence is not recomputed, but draws nothing here either.
        assert_close(gradients(model, x, forward), expected, **EXACT)


# autocast and the choice of what is kept go with the recomputation
def test_checkpointing_under_autocast_and_by_choice() -> None:
    model, x = network().to(DEV), torch.randn(3, 4, device=DEV)
    dtypes: list[torch.dtype] = []
    model[3].register_forward_hook(lambda module, args, result: dtypes.append(result.dtype))

    def cast(forward: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
        def run(x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("openreg", dtype=torch.bfloat16):
                return forward(x)

        return run

    expected = gradients(model, x, cast(model))
    for reentrant in (True, False):
        got = gradients(model, x, cast(lambda x: checkpoint(model, x, use_reentrant=reentrant)))  # noqa: B023
        assert_close(got, expected, **EXACT)
    assert dtypes == [torch.bfloat16] * 5

    kept: list[str] = []

    def choose(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if operator == torch.ops.aten.addmm.default:
            kept.append(str(context.is_recompute))
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    plain, contexts = gradients(model, x, model), functools.partial(create_selective_checkpoint_contexts, choose)
    chosen = gradients(model, x, lambda x: checkpoint(model, x, use_reentrant=False, context_fn=contexts))
    assert_close(chosen, plain, **EXACT)
    assert "False" in kept


# tensors that the graph keeps are packed and unpacked by the caller, or wait in the host's memory, pinned or not
@pytest.mark.parametrize("pin", [True, False])
def test_saved_tensors(pin: bool) -> None:
    model, x = network().to(DEV), torch.randn(3, 4, device=DEV)
    expected = gradients(model, x, model)
    packed: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(tensor)
        return tensor.to("openreg:0")

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.to(DEV)):
        assert_close(gradients(model, x, model), expected, **EXACT)
    assert packed and {t.device for t in packed} == {HERE}

    with torch.autograd.graph.save_on_cpu(pin_memory=pin):
        result = model(x).square().sum()
        model.zero_grad()
        saved = result.grad_fn.next_functions[0][0]._saved_self
    assert saved.device == HERE
    result.backward()
    # Pinned copies are contiguous, whatever the tensors were: products are summed in another order.
    assert_close([p.grad for p in model.parameters()], expected[1:])
    with torch.autograd.graph.save_on_cpu(pin_memory=pin, device_type="openreg"):
        assert_close(gradients(model, x, model), expected)
    with pytest.raises(RuntimeError, match="disabled"), torch.autograd.graph.disable_saved_tensors_hooks("disabled"):
        with torch.autograd.graph.saved_tensors_hooks(pack, pack):
            model(x)


# the forward call that made a NaN is named
def test_anomaly_mode() -> None:
    x = torch.zeros(2, device=DEV, requires_grad=True)
    with torch.autograd.set_detect_anomaly(True):
        loss = (x.sqrt() * 0).sum()
        with (
            pytest.warns(UserWarning, match="Error detected in SqrtBackward0"),
            pytest.raises(RuntimeError, match="nan"),
        ):
            loss.backward()


# functions of one's own, with derivatives of both modes, run twice and in other threads' backward
def test_functions_of_ones_own() -> None:
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(x: torch.Tensor) -> torch.Tensor:
            return x**3

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: torch.Tensor) -> None:
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            assert torch.openreg.current_device() == gradient.device.index
            return gradient * 3 * ctx.saved_tensors[0] ** 2

        @staticmethod
        def jvp(ctx: Any, tangent: torch.Tensor) -> torch.Tensor:
            return tangent * 3 * ctx.saved_tensors[0] ** 2

    x = torch.arange(3.0, device=DEV, requires_grad=True)
    (first,) = torch.autograd.grad(Cube.apply(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert first.tolist() == [0.0, 3.0, 12.0] and second.tolist() == [0.0, 6.0, 12.0]
    assert torch.autograd.gradcheck(Cube.apply, x.detach().double().requires_grad_(), check_forward_ad=True)


# gradients of what is not reached, accumulated gradients, several outputs, and errors as on the CPU
def test_engine_details() -> None:
    x = torch.ones(2, device=DEV, requires_grad=True)
    y = torch.ones(2, device=DEV, requires_grad=True)
    found = torch.autograd.grad((x * 2).sum(), (x, y), allow_unused=True, materialize_grads=True)
    assert found[1].device == HERE and found[1].tolist() == [0.0, 0.0]
    for _ in range(2):
        torch.autograd.backward([x.sum(), (x * y).sum()], inputs=[x])
    assert x.grad.tolist() == [4.0, 4.0] and y.grad is None
    batched = torch.autograd.grad(x * 3, x, torch.eye(2, device=DEV), is_grads_batched=True)[0]
    assert_close(batched.cpu(), 3 * torch.eye(2))
    with pytest.raises(RuntimeError, match="second time"):
        loss = (x * x).sum()
        loss.backward()
        loss.backward()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z = x * 1
        kept = z.exp()
        kept.add_(1)
        kept.sum().backward()
    with torch.no_grad(), torch.inference_mode():
        frozen = x * 2
    with pytest.raises(RuntimeError, match="inference tensor"):
        frozen.add_(1)
