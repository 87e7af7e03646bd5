# SPDX-License-Identifier: BSD-3-Clause
"""zero_ and fill_ where the host can't reach the memory: by the driver's `fill` where it has one and bytes suffice."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from compiled_drivers import compile_driver
from finished import Program

START = """
import pytest, torch

D = torch.device("openreg:1")
FILLS = ("aten::zero_", "aten::fill_", "aten::_foreach_zero_")
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64)
DTYPES = (*INTEGERS, torch.bool, torch.half, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
          torch.complex128, torch.complex32)


def count(mode):
    return sum(torch.openreg.operator_stats()[mode].get(name, {}).get("calls", 0) for name in FILLS)


def check(make, native, staged):
    "make(device) gives what it gives on the CPU, in so many fills by the driver and staged calls."
    before = count("native"), count("staged")
    got = make(D)
    assert (count("native") - before[0], count("staged") - before[1]) == (native, staged)
    want = make(torch.device("cpu"))
    assert got.dtype == want.dtype and got.stride() == want.stride() and got.device == D
    if want.dtype == torch.complex32:
        got, want = torch.view_as_real(got), torch.view_as_real(want)
    assert torch.equal(got.cpu().flatten().view(torch.uint8), want.flatten().view(torch.uint8))


def within(x, change):
    "`change` of `x`, which is a view; its base is the result, so that what is beside it is compared too."
    change(x)
    return x._base
"""

# Runs on each driver; `fills` says whether the driver is to be asked.
PROGRAM = """
one, zero = (1, 0) if fills else (0, 1)  # what a call that bytes suffice for adds to native and staged
base = lambda d, dtype=torch.float32: torch.arange(24, dtype=dtype).to(d).view(4, 6)
for dtype in DTYPES:
    check(lambda d: torch.zeros(5, 3, dtype=dtype, device=d), one, zero)
    check(lambda d: torch.zeros_like(torch.empty(4, dtype=dtype, device=d)), one, zero)
    check(lambda d: torch.empty(4, dtype=dtype, device=d).new_zeros(3), one, zero)
    check(lambda d: torch.full((7,), 0, dtype=dtype, device=d), one, zero)
    check(lambda d: torch.empty((), dtype=dtype, device=d).zero_(), one, zero)
    check(lambda d: torch.zeros(0, dtype=dtype, device=d), one, zero)
    # 1 has bytes that differ, but in types of one byte
    single = dtype in (torch.int8, torch.uint8, torch.bool)
    check(lambda d: torch.ones(5, dtype=dtype, device=d), *((one, zero) if single else (0, 1)))
for dtype in (torch.int8, torch.int16, torch.int32, torch.int64):
    check(lambda d: torch.full((9,), -1, dtype=dtype, device=d), one, zero)
check(lambda d: torch.full((9,), True, dtype=torch.bool, device=d), one, zero)
check(lambda d: torch.full((9,), 3.0, dtype=torch.bool, device=d), one, zero)
check(lambda d: torch.full((9,), -0.0, device=d), 0, 1)  # the sign is a byte that differs
check(lambda d: torch.full((9,), float("nan"), device=d), 0, 1)
check(lambda d: torch.full((9,), 0x0101, dtype=torch.int16, device=d), one, zero)

# parts: the driver fills what is one range and nothing beside it
check(lambda d: within(base(d)[1:3], lambda x: x.zero_()), one, zero)
check(lambda d: within(base(d)[2], lambda x: x.fill_(0)), one, zero)
check(lambda d: within(base(d).t()[:, 1], lambda x: x.zero_()), one, zero)
check(lambda d: within(base(d).t(), lambda x: x.zero_()), one, zero)
check(lambda d: within(base(d)[:, 1:4], lambda x: x.zero_()), 0, 1)
check(lambda d: within(base(d)[::2], lambda x: x.zero_()), 0, 1)
check(lambda d: within(base(d).diagonal(), lambda x: x.fill_(0)), 0, 1)


def assign(d):
    x = base(d, torch.int64)
    x[1:3] = 0
    x[3] = -1
    return x


# before 2.15 PyTorch makes a tensor of the number there: that is filled, and the part by its value
torch.openreg.reset_operator_stats()
assert torch.equal(assign(D).cpu(), assign("cpu"))
assert (count("native") >= 2) == fills
assert fills != bool({"aten::copy_", "aten::fill_", "aten::zero_"} & {*torch.openreg.operator_stats()["staged"]})
check(lambda d: torch.ones(4, device=d).cpu().to(d).fill_(torch.tensor(0.0)), one, 1 + zero)
check(lambda d: torch.empty(4, dtype=torch.uint8, device=d).fill_(torch.tensor(256)), one, zero)  # wraps, as a copy
check(lambda d: torch.empty(4, device=d).fill_(torch.zeros((), device=d)), one, 1 + zero)

# lazy bits: the memory holds other values than the tensor
check(lambda d: within(torch.ones(3, dtype=torch.complex64, device=d).conj(), lambda x: x.zero_()), one, 1 + zero)
check(lambda d: within(torch.ones(3, dtype=torch.complex64, device=d).conj(), lambda x: x.fill_(-1j)), 0, 2)
check(lambda d: torch._neg_view(torch.empty(3, device=d)).zero_().resolve_neg(), one, zero)

# errors are those of the CPU, and nothing is written
x = torch.full((4,), 7, dtype=torch.uint8, device=D)
for value, text in ((300, "overflow"), (1j, "overflow|complex|real")):
    with pytest.raises(RuntimeError, match=text):
        x.fill_(value)
with pytest.raises(RuntimeError, match="same device"):
    x.fill_(torch.zeros(2))
assert x.tolist() == [7] * 4
with pytest.raises(RuntimeError, match="leaf Variable"):
    torch.ones(3, device=D, requires_grad=True).zero_()


# autograd: the gradient of what was overwritten is zero, and a tensor that was saved may not change
def gradient(d):
    x = torch.arange(4.0, device=d, requires_grad=True)
    y = x * 2
    y[:2].zero_()
    (y * y).sum().backward()
    return x.grad


assert gradient(D).tolist() == gradient("cpu").tolist()
x = torch.ones(3, device=D, requires_grad=True)
y = x.exp()
y.detach().zero_()
with pytest.raises(RuntimeError, match="modified by an inplace operation"):
    y.sum().backward()

# every gradient is set to zero at once
for grads in (True, False):
    there = [torch.ones(3, device=D, requires_grad=True) for _ in range(3)]
    optimizer = torch.optim.SGD(there, lr=1.0, foreach=grads)
    for parameter in there:
        parameter.grad = torch.ones(3, device=D)
    before = count("native"), count("staged")
    optimizer.zero_grad(set_to_none=False)
    if fills:
        assert (count("native") - before[0], count("staged") - before[1]) == (3, 0), grads
    assert [p.grad.tolist() for p in there] == [[0.0] * 3] * 3

# transforms, functionalization and shapes alone
assert torch.vmap(lambda t: t.clone().zero_())(torch.ones(2, 3, device=D)).tolist() == [[0.0] * 3] * 2
assert torch.func.functionalize(lambda t: t.clone().zero_())(torch.ones(3, device=D)).tolist() == [0.0] * 3
grad = torch.func.grad(lambda t: (t.clone().zero_() + t * t).sum())(torch.ones(3, device=D))
assert grad.tolist() == [2.0] * 3
from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode():
    fake = torch.empty(3, device=D).zero_().fill_(1)
    assert fake.device == D and fake.shape == (3,)

# deterministic programs fill what is resized
torch.use_deterministic_algorithms(True)
assert torch.empty(3, device=D).isnan().all() and torch.empty(3, dtype=torch.bool, device=D).all()
assert torch.zeros(2, device=D).resize_(4)[2:].isnan().all()
torch.use_deterministic_algorithms(False)

# copy-on-write storages part before they are written
x = torch.ones(4, device=D)
y = torch._lazy_clone(x)
y.zero_()
assert x.tolist() == [1.0] * 4 and y.tolist() == [0.0] * 4
"""


@pytest.fixture(scope="module")
def fill_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_driver(tmp_path_factory.mktemp("fill"), "fill_driver.c")


# the driver sets the bytes where they suffice; results, errors, gradients and transforms are those of the CPU
def test_a_driver_with_fill_is_asked(python: Program, fill_library: Path) -> None:
    counted = """
        import ctypes
        library = ctypes.CDLL(LIBRARY)
        library.fill_driver_bytes.restype = ctypes.c_uint64
        assert library.fill_driver_fills() > 50
        before = library.fill_driver_fills(), library.fill_driver_bytes()
        torch.zeros(10, device=D)
        assert (library.fill_driver_fills(), library.fill_driver_bytes()) == (before[0] + 1, before[1] + 40)
    """
    python(
        START + "fills = True\n" + PROGRAM + f"LIBRARY = {str(fill_library)!r}\n" + textwrap.dedent(counted),
        OPENREG_DRIVER_LIBRARIES=f"fill:{fill_library}",
    )


# simulated devices whose operators are staged have `fill`; on a side stream it is queued there
def test_staged_sim_fills(python: Program) -> None:
    streams = """
        x = torch.ones(1 << 20, device=D)
        torch.openreg.synchronize(D)
        torch.openreg.set_device(D)
        with torch.openreg.stream(torch.openreg.Stream(D)):
            for value in (1, 0, 1, 0):
                x.fill_(value)
            x[: 1 << 19].zero_()
            assert x.cpu().sum() == 0
    """
    python(START + "fills = True\n" + PROGRAM + textwrap.dedent(streams), OPENREG_OPERATORS="staged")


# without `fill` every call is staged as any operator
def test_a_driver_without_fill_is_staged(python: Program, toy_library: Path) -> None:
    python(START + "fills = False\n" + PROGRAM, OPENREG_DRIVER_LIBRARIES=f"toy:{toy_library}")


# a policy that forbids staging allows fills by the driver, and names the operator where there is none
@pytest.mark.parametrize("has_fill", [True, False])
def test_the_policy_sees_what_runs(python: Program, fill_library: Path, toy_library: Path, has_fill: bool) -> None:
    python(
        """
        import pytest, torch
        torch.openreg.set_operator_policy("forbid", mode="staged")
        if HAS_FILL:
            x = torch.zeros(4, device="openreg")
            x[1:] = 0
            torch.openreg.set_operator_policy("forbid", mode="native")
        else:
            x = torch.empty(4, device="openreg")
        for call in (x.zero_, lambda: x.fill_(0)):
            with pytest.raises(RuntimeError, match="aten::(zero|fill)_"):
                call()
        """.replace("HAS_FILL", str(has_fill)),
        OPENREG_DRIVER_LIBRARIES=f"fill:{fill_library}" if has_fill else f"toy:{toy_library}",
    )


# compiled graphs of zero_ are right
def test_a_compiled_zero_is_right(python: Program, fill_library: Path) -> None:
    python(
        """
        import torch
        def program(x):
            y = x * 2
            y[1:].zero_()
            x.fill_(0)
            return y, torch.zeros_like(x), x.new_ones(2)
        for where in ("cpu", "openreg:1"):
            x = torch.arange(4.0, device=where)
            y, z, ones = torch.compile(program)(x)
            assert x.tolist() == [0.0] * 4 and y.tolist() == [0.0] * 4 and z.tolist() == [0.0] * 4, where
            assert ones.tolist() == [1.0, 1.0]
        """,
        timeout=280,
        OPENREG_DRIVER_LIBRARIES=f"fill:{fill_library}",
    )
