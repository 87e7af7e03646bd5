# SPDX-License-Identifier: BSD-3-Clause
"""Operators that users register: their CPU kernels run on openreg tensors, and PyTorch's own checks accept them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

DEV = "openreg:1"


@torch.library.custom_op("openreg_custom::scaled_square", mutates_args=(), device_types="cpu")
def scaled_square(x: torch.Tensor, by: float) -> torch.Tensor:
    assert x.is_cpu
    return x * x * by


@scaled_square.register_fake
def _(x: torch.Tensor, by: float) -> torch.Tensor:
    return torch.empty_like(x)


def _save(ctx, inputs, output) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.by = inputs[1]


def _backward(ctx, gradient):
    return 2 * ctx.by * ctx.saved_tensors[0] * gradient, None


scaled_square.register_autograd(_backward, setup_context=_save)


@torch.library.custom_op("openreg_custom::add_and_count_", mutates_args={"x", "seen"}, device_types="cpu")
def add_and_count_(x: torch.Tensor, seen: torch.Tensor, others: list[torch.Tensor], by: torch.Tensor | None) -> None:
    for other in others:
        x += other
        seen += 1
    if by is not None:
        x *= by


def test_a_custom_operator_with_gradients() -> None:
    x = torch.tensor([1.0, 2.0, 3.0], device=DEV, requires_grad=True)
    result = scaled_square(x, 2.0)
    assert result.device == torch.device(DEV)
    assert result.tolist() == [2, 8, 18]
    result.sum().backward()
    assert x.grad is not None
    assert x.grad.device == torch.device(DEV)
    assert x.grad.tolist() == [4, 8, 12]


# writes to several arguments, a list and an optional tensor among them
def test_a_custom_operator_that_writes_its_arguments() -> None:
    x, seen = torch.zeros(3, device=DEV), torch.zeros((), dtype=torch.int64, device=DEV)
    version = x._version
    add_and_count_(x, seen, [torch.ones(3, device=DEV), torch.ones(3, device=DEV)], torch.tensor(5.0))
    assert x.tolist() == [10, 10, 10]
    assert seen.item() == 2
    assert x._version > version
    with pytest.raises(RuntimeError, match="same device"):
        add_and_count_(x, seen, [torch.ones(3)], None)


# schema, autograd registration, fake tensors and dispatch ahead of time, by PyTorch's own checker
@pytest.mark.parametrize(
    ("operator", "arguments"),
    [
        (torch.ops.openreg_custom.scaled_square.default, lambda: (torch.randn(3, device=DEV, requires_grad=True), 2.0)),
        (torch.ops.aten.sin.default, lambda: (torch.randn(4, device=DEV, requires_grad=True),)),
        (torch.ops.aten.mm.default, lambda: (torch.randn(3, 4, device=DEV), torch.randn(4, 2, device=DEV))),
        (torch.ops.aten.add_.Tensor, lambda: (torch.randn(3, device=DEV), torch.randn(3, device=DEV))),
        (torch.ops.aten.addr.default, lambda: tuple(torch.randn(3, device=DEV) for _ in range(3))),
        (torch.ops.aten.native_layer_norm.default, lambda: (torch.randn(2, 3, device=DEV), [3], None, None, 1e-5)),
    ],
    ids=["custom", "sin", "mm", "add_", "addr", "layer_norm"],
)
def test_opcheck_accepts_operators(operator, arguments) -> None:
    utilities = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static")
    assert set(torch.library.opcheck(operator, arguments(), test_utils=utilities).values()) == {"SUCCESS"}


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


# a torch.autograd.Function is right at an autograd key, and not at the device's
def test_opcheck_finds_gradients_at_the_device() -> None:
    with torch.library._scoped_library("openreg_custom", "FRAGMENT") as library:
        for name, key in (("at_device", "PrivateUse1"), ("at_autograd", "AutogradPrivateUse1")):
            library.define(f"{name}(Tensor x) -> Tensor")
            library.impl(name, Doubled.apply, key)
        check = {"test_utils": "test_autograd_registration"}
        with pytest.raises(torch.testing._internal.optests.OpCheckError, match="no kernel at an autograd key"):
            torch.library.opcheck(
                torch.ops.openreg_custom.at_device, (torch.ones(2, device=DEV, requires_grad=True),), **check
            )
        for name, device in (("at_autograd", DEV), ("at_device", DEV)):
            x = torch.ones(2, device=device, requires_grad=name == "at_autograd")
            assert torch.library.opcheck(getattr(torch.ops.openreg_custom, name), (x,), **check)


# numerical derivatives on the device agree with the analytical ones, once and twice
@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (torch.mm, [(3, 4), (4, 2)]),
        (lambda x: torch.nn.functional.softmax(x, 1), [(3, 4)]),
        (lambda x, w: torch.nn.functional.conv2d(x, w, padding=1), [(1, 2, 4, 4), (3, 2, 3, 3)]),
        (lambda x: torch.linalg.inv(x + 4 * torch.eye(3, dtype=x.dtype, device=x.device)), [(3, 3)]),
        (lambda x: scaled_square(x, 3.0), [(4,)]),
        (lambda x: torch.logsumexp(x, 1), [(3, 4)]),
    ],
    ids=["mm", "softmax", "conv2d", "inv", "custom", "logsumexp"],
)
def test_gradients_agree_with_differences(function, shapes) -> None:
    inputs = tuple(torch.randn(shape, dtype=torch.float64, device=DEV, requires_grad=True) for shape in shapes)
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


# an operator that C++ registers for the CPU, of another library, built by PyTorch's own extension builder
@pytest.mark.slow
def test_an_operator_registered_in_cpp(tmp_path: Path) -> None:
    cpp_extension = pytest.importorskip("torch.utils.cpp_extension")
    source = tmp_path / "custom.cpp"
    source.write_text(
        """
        #include <ATen/ATen.h>
        #include <torch/library.h>

        at::Tensor& shift_(at::Tensor& self, int64_t by) {
          TORCH_CHECK(self.is_cpu() && self.is_contiguous());
          float* data = self.mutable_data_ptr<float>();
          for (int64_t i = 0; i < self.numel(); ++i) {
            data[i] += by;
          }
          return self;
        }
        std::tuple<at::Tensor, std::vector<at::Tensor>> parts(const at::Tensor& self) {
          return {self.sum(), self.unbind()};
        }
        TORCH_LIBRARY(openreg_cpp, m) {
          m.def("shift_(Tensor(a!) self, int by) -> Tensor(a!)");
          m.def("parts(Tensor(a) self) -> (Tensor, Tensor(a)[])");
        }
        TORCH_LIBRARY_IMPL(openreg_cpp, CPU, m) {
          m.impl("shift_", shift_);
          m.impl("parts", parts);
        }
        """
    )
    cpp_extension.load(
        "openreg_custom_cpp",
        [str(source)],
        build_directory=str(tmp_path),
        is_python_module=False,
        extra_cflags=["-O0", "-std=c++20"],
    )
    x = torch.ones(2, 3, device=DEV)
    assert torch.ops.openreg_cpp.shift_(x, 4) is x
    assert_close(x.cpu(), torch.full((2, 3), 5.0))
    total, rows = torch.ops.openreg_cpp.parts(x)
    assert total.device == torch.device(DEV)
    assert total.item() == 30
    rows[1].zero_()  # a view of x, as on the CPU
    assert x.sum().item() == 15


@torch.library.custom_op("openreg_custom::replace_", mutates_args={"x"}, device_types="cpu")
def replace_(x: torch.Tensor, by: torch.Tensor, how: str) -> None:
    if how == "set_":
        x.set_(torch.full((3,), 7.0))
    elif how == "data":
        x.data = torch.full((5,), 7.0)
    elif how == "other dtype":
        x.data = torch.full((2,), 7, dtype=torch.int64)
    else:
        x.set_(by)


KEPT: list[torch.UntypedStorage] = []


@torch.library.custom_op("openreg_custom::keep_and_replace_", mutates_args={"x"}, device_types="cpu")
def keep_and_replace_(x: torch.Tensor) -> None:
    KEPT.append(x.untyped_storage())
    x.set_(torch.full((3,), 7.0))


# memory that a kernel keeps stays its own, though the device's tensor has other memory since
def test_memory_that_is_kept_and_replaced() -> None:
    x = torch.arange(3.0, device=DEV)
    keep_and_replace_(x)
    assert x.tolist() == [7, 7, 7]
    others = [torch.full((3,), -1.0, device=DEV) for _ in range(4)]
    assert torch.empty(0).set_(KEPT.pop(), 0, (3,)).tolist() == [0, 1, 2]
    assert all(other.tolist() == [-1, -1, -1] for other in others)


# of PyTorch's own: what Dynamo makes of an assignment to .data
@pytest.mark.skipif(not hasattr(torch.ops.aten, "shallow_copy_data_"), reason="since torch 2.14")
def test_shallow_copy_of_data() -> None:
    x, y = torch.arange(3.0, device=DEV), torch.full((2, 2), 5.0, device=DEV)
    assert torch.ops.aten.shallow_copy_data_(x, y) is x
    assert x.shape == (2, 2)
    y += 1
    assert x.tolist() == [[6, 6], [6, 6]]
    assert x.data_ptr() == y.data_ptr()


# a kernel that gives an argument other memory gives it to the device's tensor
@pytest.mark.parametrize("how", ["set_", "data", "other dtype", "an argument's"])
def test_a_replaced_storage(how: str) -> None:
    near, near_by = torch.arange(3.0), torch.arange(4.0)
    replace_(near, near_by, how)
    x, by = torch.arange(3.0, device=DEV), torch.arange(4.0, device=DEV)
    replace_(x, by, how)
    assert x.device == torch.device(DEV)
    assert x.dtype == near.dtype
    assert_close(x.cpu(), near)
    assert (x.data_ptr() == by.data_ptr()) == (near.data_ptr() == near_by.data_ptr())
    assert_close((x + 1).cpu(), near + 1)
