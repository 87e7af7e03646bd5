# SPDX-License-Identifier: BSD-3-Clause
"""Automatic mixed precision: lists of operators, types, GradScaler, custom autograd functions."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch._C import _dispatch_get_registrations_for_dispatch_key as registered


# the operators that autocast treats here are those it treats on CUDA, as far as PyTorch's lists have them
def test_the_lists() -> None:
    ours, cuda = set(registered("AutocastPrivateUse1")), set(registered("AutocastCUDA"))
    assert len(ours) > 100
    assert ours - cuda == set()
    # what CUDA registers by itself, beside the lists
    assert {name.split("::")[0] for name in cuda - ours} <= {"aten", "torchvision", "torchaudio"}
    # A test before this one may have imported the others.
    beside = {name for name in cuda - ours if name.startswith("aten::")}
    assert len(beside) <= 8, sorted(beside)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_types(dtype: torch.dtype) -> None:
    x, y = torch.ones(4, 4, device="openreg:1"), torch.ones(4, 4, device="openreg:1", dtype=torch.float64)
    with torch.autocast("openreg", dtype=dtype):
        assert torch.is_autocast_enabled("openreg")
        assert torch.get_autocast_dtype("openreg") == dtype
        assert (x @ x).dtype == dtype
        assert torch.nn.functional.linear(x, x).dtype == dtype
        assert x.to(dtype).exp().dtype == torch.float32
        assert x.to(dtype).sum().dtype == torch.float32
        assert torch.addcmul(x.to(dtype), x, x).dtype == torch.float32
        assert (y @ y).dtype == torch.float64  # as on CUDA: only float32 and the lower ones are cast
        assert (x + x).dtype == torch.float32
        with torch.autocast("openreg", enabled=False):
            assert (x @ x).dtype == torch.float32
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32  # the CPU is not meant
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.is_autocast_enabled(device_type="cpu")
        assert (x @ x).dtype == torch.float32  # nor is this device
    assert not torch.is_autocast_enabled("openreg")
    assert not torch.is_autocast_enabled(device_type="openreg")
    assert (x @ x).dtype == torch.float32


def test_names() -> None:
    assert torch.amp.is_autocast_available("openreg")
    assert torch.openreg.get_amp_supported_dtype() == [torch.float16, torch.bfloat16]
    assert torch.openreg.is_bf16_supported()
    with pytest.warns(UserWarning, match=r"torch\.float16, torch\.bfloat16"):
        torch.autocast("openreg", dtype=torch.float64)
    before = torch.get_autocast_dtype("openreg")
    try:
        torch.set_autocast_dtype("openreg", torch.bfloat16)
        with torch.autocast("openreg"):
            assert torch.mm(*[torch.ones(2, 2, device="openreg")] * 2).dtype == torch.bfloat16
    finally:
        torch.set_autocast_dtype("openreg", before)
    with torch.openreg.amp.autocast(dtype=torch.float16):
        assert torch.get_autocast_dtype("openreg") == torch.float16

    @torch.autocast("openreg", dtype=torch.bfloat16)
    def product(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    assert product(torch.ones(2, 2, device="openreg")).dtype == torch.bfloat16


# PyTorch's own layers ask without a device, and have a fast path for inference that autocast doesn't reach
@pytest.mark.parametrize("compiled", [False, True])
def test_layers_that_ask_without_a_device(compiled: bool) -> None:
    layer = torch.nn.MultiheadAttention(8, 2, batch_first=True).to("openreg").eval()
    x = torch.randn(2, 3, 8, device="openreg")
    call = torch.compile(layer, backend="eager", fullgraph=True) if compiled else layer
    with torch.no_grad():
        assert call(x, x, x)[0].dtype == torch.float32
        for dtype in (torch.bfloat16, torch.float16):
            with torch.autocast("openreg", dtype=dtype):
                assert torch.is_autocast_enabled()
                assert call(x, x, x)[0].dtype == dtype
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert not torch.is_autocast_enabled()
    assert not torch.is_autocast_enabled()


@pytest.mark.parametrize("compiled", [False, True])
def test_a_branch_that_is_an_operator(compiled: bool) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda t: t @ t, lambda t: t @ t * 2, (x,))

    run = torch.compile(function, backend="aot_eager", fullgraph=True) if compiled else function
    x = torch.ones(2, 2, device="openreg", requires_grad=True)
    with torch.autocast("openreg", dtype=torch.bfloat16):
        result = run(x)
    assert result.dtype == torch.bfloat16
    result.sum().backward()
    assert x.grad is not None and x.grad.cpu().tolist() == [[4.0, 4.0], [4.0, 4.0]]


# what PyTorch itself says is short for "cuda" stays CUDA's
def test_settings_without_a_device_are_cudas() -> None:
    x = torch.ones(2, 2, device="openreg")
    before = torch.get_autocast_dtype("cuda")
    try:
        with torch.autocast("openreg", dtype=torch.bfloat16):
            with pytest.warns(DeprecationWarning, match="use torch.set_autocast_dtype\\('cuda', dtype\\)"):
                torch.set_autocast_gpu_dtype(torch.float16)
            torch.set_autocast_enabled(False)
            assert torch.get_autocast_dtype("cuda") == torch.float16
            if torch.__version__ < (2, 14):  # which means the accelerator
                assert (x @ x).dtype == torch.bfloat16
            torch.set_autocast_enabled("openreg", False)
            assert (x @ x).dtype == torch.float32
    finally:
        torch.set_autocast_dtype("cuda", before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32])
def test_a_type_that_is_none(dtype: torch.dtype) -> None:
    with pytest.warns(UserWarning, match="target dtype is not supported. Disabling autocast"):
        context = torch.autocast("openreg", dtype=dtype)
    with context:
        assert not torch.is_autocast_enabled("openreg")


@pytest.mark.parametrize("make", [lambda **k: torch.amp.GradScaler("openreg", **k), torch.openreg.amp.GradScaler])
def test_grad_scaler(make: Any) -> None:
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1).to("openreg:1")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = make(init_scale=1024.0, growth_interval=2)
    assert scaler.is_enabled()
    x = torch.ones(8, 4, device="openreg:1")
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        with torch.autocast("openreg", dtype=torch.float16):
            loss = model(x).float().pow(2).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert scaler.get_scale() == 4096.0  # it grew twice
    weight = model.weight.detach().cpu()
    optimizer.zero_grad()
    scaler.scale(model(x).sum() * float("inf")).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(model.weight.detach().cpu(), weight)  # the step was left out
    assert scaler.get_scale() == 2048.0
    twin = make()
    twin.load_state_dict(scaler.state_dict())
    assert twin.get_scale() == 2048.0


# inputs are cast and autocast is off inside; the backward runs as the forward did
@pytest.mark.parametrize(
    ("forward_of", "backward_of"),
    [
        (partial(torch.amp.custom_fwd, device_type="openreg"), partial(torch.amp.custom_bwd, device_type="openreg")),
        (torch.openreg.amp.custom_fwd, torch.openreg.amp.custom_bwd),
    ],
    ids=["generic", "own"],
)
def test_custom_functions(forward_of: Any, backward_of: Any) -> None:
    seen: list[Any] = []

    class Product(torch.autograd.Function):
        @staticmethod
        @forward_of(cast_inputs=torch.float32)
        def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            seen.append((a.dtype, torch.is_autocast_enabled("openreg")))
            ctx.save_for_backward(a, b)
            return a @ b

        @staticmethod
        @backward_of
        def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
            seen.append(torch.is_autocast_enabled("openreg"))
            a, b = ctx.saved_tensors
            return gradients[0] @ b.t(), a.t() @ gradients[0]

    x = torch.ones(2, 2, device="openreg", dtype=torch.float16, requires_grad=True)
    with torch.autocast("openreg", dtype=torch.float16):
        y = Product.apply(x, x)
    assert y.dtype == torch.float32
    y.sum().backward()
    assert seen == [(torch.float32, False), False]


# a loss that overflows in half precision is refused, as on CUDA
def test_binary_cross_entropy_is_refused() -> None:
    x = torch.rand(3, device="openreg")
    with torch.autocast("openreg"), pytest.raises(RuntimeError, match="unsafe to autocast"):
        torch.nn.functional.binary_cross_entropy(x, x)
    torch.nn.functional.binary_cross_entropy(x, x)
