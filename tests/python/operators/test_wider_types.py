# SPDX-License-Identifier: BSD-3-Clause
"""Types of elements that PyTorch's kernels for CUDA take and those for the CPU lack: computed in a wider type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

DEV = "openreg:1"

Function = Callable[..., Any]

# The function, the arguments as float32 or int64, and the type that CUDA takes and the CPU refuses.
CALLS: dict[str, tuple[Function, tuple[torch.Tensor, ...], torch.dtype]] = {
    "histc of int32": (lambda x: torch.histc(x, bins=4, min=0, max=3), (torch.tensor([0, 1, 1, 3]),), torch.int32),
    "histc of uint8": (lambda x: torch.histc(x, bins=4, min=0, max=3), (torch.tensor([0, 1, 1, 3]),), torch.uint8),
    "cdist": (torch.cdist, (torch.eye(3), torch.ones(2, 3)), torch.float16),
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 2), (torch.ones(1, 2, 4, 4, 4),), torch.bfloat16),
    "add": (torch.add, (torch.tensor([1, 65535]), torch.tensor([2, 3])), torch.uint16),
    "less": (torch.lt, (torch.tensor([1, 65535]), torch.tensor([2, 3])), torch.uint16),
    "exp of complex32": (torch.exp, (torch.ones(3),), torch.complex32),
    "sum of complex32": (torch.sum, (torch.ones(3),), torch.complex32),
    "fft": (torch.fft.fft, (torch.arange(8.0),), torch.float16),
    "rfft": (torch.fft.rfft, (torch.arange(8.0),), torch.float16),
    "ifft2": (torch.fft.ifft2, (torch.eye(4),), torch.complex32),
    "irfft": (torch.fft.irfft, (torch.arange(5.0),), torch.complex32),
}


# results have the type that CUDA gives, and the values of the wider type
@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("name", CALLS)
def test_the_wider_type(name: str) -> None:
    function, wide, dtype = CALLS[name]
    with pytest.raises((NotImplementedError, RuntimeError)):  # else there is nothing to show here
        function(*(x.to(dtype) for x in wide))
    as_complex = [x.to(torch.complex64) if dtype.is_complex else x for x in wide]
    try:
        expected = function(*as_complex)
    except RuntimeError:
        expected = function(*(x.double() for x in wide))
    got = function(*(x.to(dtype).to(DEV) for x in wide))
    assert got.device == torch.device(DEV)
    if expected.dtype != torch.bool:
        complex_half = expected.is_complex() and dtype in (torch.float16, torch.complex32)
        real_half = dtype == torch.complex32 and not expected.is_complex()
        assert got.dtype == (torch.complex32 if complex_half else torch.float16 if real_half else dtype)
    wide_type = torch.complex64 if got.is_complex() else torch.float64
    wrapped = expected % 65536 if dtype == torch.uint16 and expected.dtype == torch.int64 else expected
    assert_close(got.cpu().to(wide_type), wrapped.to(wide_type), rtol=2e-2, atol=2e-2)


# gradients flow through them
def test_gradients() -> None:
    x = torch.randn(4, 3, dtype=torch.float16, device=DEV, requires_grad=True)
    y = torch.randn(5, 3, dtype=torch.float16, device=DEV)
    torch.cdist(x, y).sum().backward()
    near = x.detach().cpu().float().requires_grad_()
    torch.cdist(near, y.cpu().float()).sum().backward()
    assert x.grad is not None
    assert near.grad is not None
    assert x.grad.dtype == torch.float16
    assert_close(x.grad.cpu().float(), near.grad, rtol=1e-2, atol=1e-2)
    x = torch.randn(8, dtype=torch.float16, device=DEV, requires_grad=True)
    torch.fft.rfft(x).abs().float().sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == torch.float16


# what is written in place keeps its type and its memory
def test_in_place() -> None:
    a = torch.tensor([1, 65535], dtype=torch.uint16, device=DEV)
    address = a.data_ptr()
    assert a.add_(a) is a
    assert a.data_ptr() == address
    assert a.dtype == torch.uint16
    assert a.cpu().tolist() == [2, 65534]


# out= tensors keep their type and their memory
def test_out() -> None:
    out = torch.zeros(2, dtype=torch.uint16, device=DEV)
    address = out.data_ptr()
    a = torch.tensor([1, 2], dtype=torch.uint16, device=DEV)
    assert torch.add(a, a, out=out) is out
    assert out.data_ptr() == address
    assert out.cpu().tolist() == [2, 4]


# what CUDA refuses stays refused
def test_refusals() -> None:
    with pytest.raises((NotImplementedError, RuntimeError)):
        torch.ones(2, dtype=torch.uint64, device=DEV) + 1
    with pytest.raises((NotImplementedError, RuntimeError)):
        torch.linalg.inv(torch.ones(2, 2, dtype=torch.int64, device=DEV))


# a router of experts, as Mixtral has it
def test_counting_tokens_of_experts() -> None:
    experts = torch.tensor([[0, 1], [1, 2], [1, 1]], device=DEV)
    counted = torch.histc(experts.int(), bins=4, min=0, max=3)
    assert counted.cpu().tolist() == [1, 4, 1, 0]
    assert counted.dtype == torch.int32
