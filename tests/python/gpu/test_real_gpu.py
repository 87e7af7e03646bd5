# SPDX-License-Identifier: BSD-3-Clause
"""What only a real GPU can show: run by `make gpu-check`, skipped elsewhere. One GPU is enough."""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F
from torch import nn

pytestmark = pytest.mark.skipif(
    os.environ.get("TEST_REAL_GPU") != "1", reason="needs a GPU and TEST_REAL_GPU=1: make gpu-check"
)

D = torch.device("openreg:0")


def all_on_gpu() -> bool:
    """Whether every operator since the counts were reset ran a kernel of the GPU."""
    stats = torch.openreg.operator_stats()
    return stats["staged_calls"] == 0 and stats["aliased_calls"] > 0


@pytest.fixture(autouse=True)
def _counts() -> None:
    torch.openreg.reset_operator_stats()


def test_the_device_is_the_gpu() -> None:
    """openreg's first device is one of the CUDA driver, and this PyTorch has kernels for it."""
    assert torch.openreg.devices()[0].driver == "cuda"
    assert (torch.ones(3, device=D) + 1).tolist() == [2.0] * 3
    assert all_on_gpu(), torch.openreg.operator_stats()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_matrix_products(dtype: torch.dtype) -> None:
    """cuBLAS works on openreg's memory and stream."""
    a, b = torch.randn(128, 64, dtype=dtype), torch.randn(64, 96, dtype=dtype)
    result = a.to(D) @ b.to(D)
    torch.testing.assert_close(result.cpu(), a @ b, atol=0.3 if dtype == torch.bfloat16 else 0.05, rtol=0.02)
    assert all_on_gpu(), torch.openreg.operator_stats()


def test_results_are_in_openregs_cache() -> None:
    """PyTorch's interface for allocators gives kernels blocks of openreg's cache: its figures are true."""
    x = torch.ones(1 << 20, device=D)
    _ = x + x  # what libraries keep for themselves is there now
    torch.openreg.synchronize()
    before = torch.openreg.memory_allocated()
    y = x + x
    assert torch.openreg.memory_allocated() == before + y.nbytes
    del y
    assert torch.openreg.memory_allocated() == before


def test_out_of_memory_is_an_error_and_no_more() -> None:
    """More than the GPU has is refused with the usual type, and the device works on."""
    x = torch.ones(1 << 20, device=D)
    with pytest.raises(torch.OutOfMemoryError):
        F.pad(x, (0, 1 << 42))
    assert (x + 1)[7].item() == 2


def test_streams_are_kept_in_order_by_events_alone() -> None:
    """A kernel on a side stream waits for nothing but what it is told to, and is waited for where it is said."""
    side = torch.openreg.Stream(D)
    x = torch.randn(2048, 2048, device=D)
    for _ in range(10):
        x = x @ x / x.abs().max()
    side.wait_stream(torch.openreg.current_stream(D))
    with torch.openreg.stream(side):
        y = x * 2
    x.record_stream(side)
    torch.openreg.current_stream(D).wait_stream(side)
    assert torch.equal(y.cpu(), (x * 2).cpu())


def test_pinned_copies_overlap_and_are_right() -> None:
    """Copies from pinned memory return before they are done, and kernels behind them see their bytes."""
    host = torch.randn(1 << 24).pin_memory()
    near = torch.empty(1 << 24, device=D)
    near.copy_(host, non_blocking=True)
    back = torch.empty_like(host).pin_memory()
    back.copy_(near * 2, non_blocking=True)
    torch.openreg.synchronize()
    assert torch.equal(back, host * 2)


def test_random_numbers_follow_openregs_seed() -> None:
    """With and without a generator argument, and by state."""

    def draw() -> torch.Tensor:
        return torch.cat([torch.rand(100, device=D), F.dropout(torch.ones(100, device=D), 0.5)]).cpu()

    torch.manual_seed(3)
    first = draw()
    torch.manual_seed(3)
    assert torch.equal(draw(), first)
    state = torch.openreg.get_rng_state(D)
    second = draw()
    torch.openreg.set_rng_state(state, D)
    assert torch.equal(draw(), second) and not torch.equal(first, second)


@pytest.mark.parametrize("width", [64, 20])
def test_attention(width: int) -> None:
    """The fused kernels, or the plain formula where they don't take the width."""

    def run(device: torch.device, dtype: torch.dtype) -> list[torch.Tensor]:
        torch.manual_seed(0)
        tensors = [torch.randn(2, 4, 64, width).to(device, dtype).requires_grad_() for _ in range(3)]
        result = F.scaled_dot_product_attention(*tensors, is_causal=True)
        result.float().square().sum().backward()
        return [result.detach().cpu().float(), *(tensor.grad.cpu().float() for tensor in tensors)]

    torch.testing.assert_close(run(D, torch.bfloat16), run(torch.device("cpu"), torch.float32), atol=0.2, rtol=0.1)
    assert all_on_gpu(), torch.openreg.operator_stats()


def test_a_convolutional_network_trains_as_on_the_cpu() -> None:
    """cuDNN forward and backward, a foreach optimizer, autocast with a scaler."""

    def train(device: torch.device, mixed: bool) -> float:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 10)
        ).to(device)
        images, labels = torch.randn(32, 3, 8, 8).to(device), torch.arange(32).remainder(10).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        scaler = torch.amp.GradScaler(device.type, enabled=mixed)
        for _ in range(5):
            optimizer.zero_grad()
            with torch.autocast(device.type, dtype=torch.float16, enabled=mixed):
                loss = F.cross_entropy(model(images), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return loss.item()

    expected = train(torch.device("cpu"), mixed=False)
    assert train(D, mixed=False) == pytest.approx(expected, rel=0.02, abs=0.02)
    assert all_on_gpu(), torch.openreg.operator_stats()
    assert train(D, mixed=True) == pytest.approx(expected, rel=0.1, abs=0.1)


def test_recurrent_networks() -> None:
    """The cells, forward and backward."""
    torch.manual_seed(0)
    model = nn.LSTM(8, 16, 2)
    x = torch.randn(5, 3, 8)
    expected = model(x)[0]
    result = model.to(D)(x.to(D))[0]
    result.sum().backward()
    torch.testing.assert_close(result.cpu(), expected, atol=1e-3, rtol=1e-3)
