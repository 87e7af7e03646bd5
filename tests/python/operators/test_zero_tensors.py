# SPDX-License-Identifier: BSD-3-Clause
"""ZeroTensors, which autograd makes where a gradient is zero: they have no memory, and no kernel may ask for it.

``run.py --kind zero`` of tests/opinfo compares every operator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing import assert_close

DEV = "openreg:1"


def zeros(*shape: int, dtype: torch.dtype = torch.float32, device: str = DEV) -> torch.Tensor:
    return torch._efficientzerotensor(shape, dtype=dtype, device=device)


CALLS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "mul.Scalar": lambda z, x: torch.ops.aten.mul.Scalar(z, 2.0),
    "add.Scalar": lambda z, x: torch.ops.aten.add.Scalar(z, 2.0),
    "isclose": lambda z, x: torch.isclose(z, x),
    "dot": torch.dot,
    "vdot": lambda z, x: torch.vdot(x, z),
    "inner": torch.inner,
    "clone": lambda z, x: z.clone(),
    "copy": lambda z, x: x.clone().copy_(z),
    "matmul": lambda z, x: z @ x,
    "cat": lambda z, x: torch.cat([z, x]),
    "equal": lambda z, x: torch.allclose(z, x),
    "index": lambda z, x: z[torch.tensor([0, 2], device=z.device)],
    "gradient": lambda z, x: torch.gradient(z),
    "tolist": lambda z, x: z.clone().tolist(),
}


# operators that PyTorch hands ZeroTensors to, and others, give what they give on the CPU
@pytest.mark.parametrize("name", CALLS)
def test_operators(name: str) -> None:
    x = torch.tensor([1.0, 2.0, 3.0])
    expected = CALLS[name](zeros(3, device="cpu"), x)
    got = CALLS[name](zeros(3), x.to(DEV))
    if isinstance(expected, torch.Tensor):
        assert got._is_zerotensor() == expected._is_zerotensor()
        assert got.device == torch.device(DEV)
        assert_close(got.cpu() + 0, expected + 0)
    else:
        assert_close(got, expected, check_device=False, rtol=0, atol=0)


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "view_as_complex": torch.view_as_complex,
    "transpose": lambda z: z.t(),
    "select": lambda z: z[0],
    "expand": lambda z: z.expand(4, 3, 2),
    "unfold": lambda z: z.unfold(0, 2, 1),
    "as_strided": lambda z: z.as_strided((2,), (1,)),
    "view_dtype": lambda z: z.view(torch.int32),
}


# a view of a tensor without memory is one
@pytest.mark.parametrize("name", VIEWS)
def test_views_stay_zero_tensors(name: str) -> None:
    view, expected = VIEWS[name](zeros(3, 2)), VIEWS[name](zeros(3, 2, device="cpu"))
    assert view._is_zerotensor() == expected._is_zerotensor()
    assert (view.shape, view.stride(), view.dtype) == (expected.shape, expected.stride(), expected.dtype)
    assert view.clone().cpu().abs().sum() == 0
    real = torch.view_as_real(zeros(3, dtype=torch.complex64))
    assert real._is_zerotensor()
    assert zeros(3, dtype=torch.complex64).real._is_zerotensor()
    assert zeros(3, dtype=torch.complex64).imag._is_zerotensor()


# what ordinary autograd and its transforms make of them
def test_autograd() -> None:
    x = torch.tensor([1.0, -2.0, 3.0], device=DEV, requires_grad=True)
    (gradient,) = torch.autograd.grad(torch.sgn(x).sum(), x)
    assert torch.isclose(torch.zeros_like(gradient), gradient).all()
    assert gradient.cpu().tolist() == [0, 0, 0]
    z = torch.ones(3, device=DEV)
    _, linear = torch.func.linearize(lambda y: torch.sgn(y) @ z, z)
    assert linear(z).item() == 0


# staged operators too
def test_staged(python: Any) -> None:
    python(
        """
        import torch
        z = torch._efficientzerotensor((3,), device="openreg")
        assert torch.ops.aten.mul.Scalar(z, 2.0).cpu().tolist() == [0, 0, 0]
        assert torch.dot(z, torch.ones(3, device="openreg")).item() == 0
        assert torch.isclose(torch.zeros(3, device="openreg"), z).all()
        assert torch.view_as_real(torch._efficientzerotensor((3,), dtype=torch.complex64, device="openreg")).sum() == 0
        """,
        OPENREG_OPERATORS="staged",
    )
