# SPDX-License-Identifier: BSD-3-Clause
"""Operators that a driver runs itself (openreg/kernels.h): on device memory, with PyTorch's results, and never needed.

The drivers here hold memory that the host can't reach at its device addresses. Programs run in processes of their own:
the driver is chosen when the first device is opened.
"""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest
import torch
from compiled_drivers import compile_driver
from finished import Program, finished

START = """
import ctypes, os, warnings
import pytest, torch

D = torch.device("openreg:1")
library = ctypes.CDLL(os.environ["PROGRAM_LIBRARY"])


def figures(way="native"):
    return {name: count["calls"] for name, count in torch.openreg.operator_stats()[way].items() if count["calls"]}


def same(result, expected, **tolerance):
    assert result.device == D, result.device
    assert (result.stride(), result.dtype) == (expected.stride(), expected.dtype)
    torch.testing.assert_close(result.cpu(), expected, **tolerance)

"""


def program_on(name: str, library: Path, python: Program) -> Program:
    variables = {"OPENREG_DRIVER_LIBRARIES": f"{name}:{library}", "PROGRAM_LIBRARY": str(library)}
    return lambda code, **environment: python(START + textwrap.dedent(code), **(variables | environment))


@pytest.fixture
def kernels(kernels_library: Path, python: Program) -> Program:
    """Runs code on the driver of three kernels."""
    return program_on("kernels", kernels_library, python)


@pytest.fixture
def more(tmp_path: Path, python: Program) -> Program:
    """Runs code on the driver whose table has kernels of every kind."""
    return program_on("more", compile_driver(tmp_path, "kernels_more_driver.c"), python)


# the kernels run (the driver itself counts), on device memory, with the CPU's results, strides and types; staging is
# forbidden, so nothing else computed them
def test_results_are_those_of_the_cpu(kernels: Program) -> None:
    kernels(
        """
        shapes = [(), (1,), (7,), (3, 4), (2, 3, 4), (0,), (2, 0, 3), (1, 5, 1)]
        broadcast = [((3, 4), (4,)), ((3, 1), (1, 4)), ((2, 3, 4), (3, 1)), ((), (5,)), ((5,), ()), ((0, 3), (1, 3))]
        pairs = [(shape, shape) for shape in shapes] + broadcast
        calls = {"aten::add": 0, "aten::relu": 0, "aten::mm": 0}
        cpu = []
        for dtype in (torch.float32, torch.float64):
            for left, right in pairs:
                a, b = torch.randn(left, dtype=dtype), torch.randn(right, dtype=dtype)
                cpu.append((a, b))
        # strided, expanded, permuted, channels last, with an offset
        base = torch.randn(4, 6, 5, 3)
        cpu += [(base[::2, 1:5, :, 1], base[1::2, :4, :, 0]), (base.permute(2, 0, 3, 1), base.permute(2, 0, 3, 1)),
                (base[0, 0, 0].expand(6, 5, 3), base[1]), (base.transpose(0, 3), base.transpose(0, 3)[:, :1]),
                (base.contiguous(memory_format=torch.channels_last), base)]
        # .to() keeps strides only where a tensor is dense: strides are made on the device
        def on_device(x):
            root = x if x._base is None else x._base
            return root.to(D).as_strided(x.size(), x.stride(), x.storage_offset())
        pairs = [(a, b, on_device(a), on_device(b)) for a, b in cpu]
        expected = [(a + b, torch.add(a, b, alpha=-0.5), a + 3, 2.5 + a, torch.sub(a, -1).add(True), torch.relu(a)) for a, b in cpu]
        minus = [torch.sub(A, -1) for _, _, A, _ in pairs]
        torch.openreg.reset_operator_stats()
        before = [library.kernels_driver_calls(i) for i in range(3)]
        with torch.openreg.operator_policy("forbid"):
            got = [(A + B, torch.add(A, B, alpha=-0.5), A + 3, 2.5 + A, m.add(True), torch.relu(A))
                   for (_, _, A, B), m in zip(pairs, minus)]
        for ours, theirs in zip(got, expected):
            for one, other in zip(ours, theirs):
                same(one, other)
        count = len(pairs)
        assert figures() == {"aten::add": 5 * count, "aten::relu": count}, figures()
        empty = sum((a + b).numel() == 0 for a, b in cpu)
        ran = [library.kernels_driver_calls(i) - before[i] for i in range(3)]
        empty_self = sum(a.numel() == 0 for a, b in cpu)
        assert ran == [5 * count - 2 * empty - 3 * empty_self, count - empty_self, 0], ran

        torch.openreg.reset_operator_stats()
        with torch.openreg.operator_policy("forbid"):
            for n, k, m in [(1, 1, 1), (3, 4, 5), (5, 0, 2), (0, 3, 2), (17, 9, 4)]:
                a, b = torch.randn(n, k), torch.randn(k, m)
                same(torch.mm(a.to(D), b.to(D)), torch.mm(a, b))
        assert figures() == {"aten::mm": 5} and figures("staged") == {}
        assert torch.relu(torch.tensor([float("nan"), -1.0], device=D)).isnan().tolist() == [True, False]
        """
    )


# what a kernel refuses runs as if it weren't there, with the same results; refusals are counted
def test_a_refused_call_goes_the_ordinary_way(kernels: Program) -> None:
    kernels(
        """
        torch.openreg.reset_operator_stats()
        for dtype in (torch.int64, torch.uint8, torch.bool, torch.float16, torch.bfloat16, torch.complex64):
            a = torch.tensor([[1, 0, 3], [4, 5, 0]]).to(dtype)
            same(a.to(D) + a.to(D), a + a)
        a, b = torch.randn(3), torch.randn(3, dtype=torch.float64)
        same(a.to(D) + b.to(D), a + b)                       # types that differ
        same(a.to(D) + 1j, a + 1j)
        m = torch.randn(4, 5)
        same(torch.mm(m.to(D), m.to(D).t()), torch.mm(m, m.t()))  # not contiguous
        same(torch.mm(m.double().to(D), m.double().t().contiguous().to(D)), torch.mm(m.double(), m.double().t()))
        c = torch.randn(3, dtype=torch.complex64)
        same(c.to(D).conj() + c.to(D), c.conj() + c)         # a lazy conj bit
        same(c.to(D).conj().imag + a.to(D), c.conj().imag + a)  # a lazy neg bit: resolved before, then native
        with pytest.raises(RuntimeError, match="Boolean alpha"):
            torch.add(m.to(D), m.to(D), alpha=True)
        n = torch.nested.nested_tensor([torch.randn(3), torch.randn(2)])  # more than strided memory
        for got, part in zip(torch.relu(n.to(D)).unbind(), n.unbind()):
            same(got, torch.relu(part))
        q = torch.quantize_per_tensor(torch.randn(3), 0.1, 0, torch.qint8)
        same(torch.relu(q.to(D)).dequantize(), torch.relu(q).dequantize())
        stats = torch.openreg.operator_stats()
        assert stats["native"]["aten::mm"] == {"calls": 0, "refused": 2, "seconds": 0.0}, stats
        assert stats["native"]["aten::add"]["refused"] >= 9
        assert stats["staged"]["aten::add"]["calls"] == stats["native"]["aten::add"]["refused"]
        assert stats["staged"]["aten::mm"]["calls"] == 2
        assert stats["native_calls"] == stats["native"]["aten::add"]["calls"] == 1, stats
        """
    )


# one kernel serves the in-place and the out= form; errors and warnings are PyTorch's own
def test_forms_that_write_their_arguments(kernels: Program) -> None:
    kernels(
        """
        torch.openreg.reset_operator_stats()
        a, b = torch.randn(3, 4), torch.randn(4)
        A, B = a.to(D), b.to(D)
        M = torch.randn(4, 3).to(D)
        with torch.openreg.operator_policy("forbid"):
            version, address = A._version, A.data_ptr()
            assert A.add_(B, alpha=2) is A and A._version == version + 1 and A.data_ptr() == address
            A[:, 1:3].add_(B[:2]); A.add_(A); A += 1; A.relu_()
            out = torch.empty(3, 4, device=D)
            assert torch.add(A, B, out=out) is out
            empty = torch.empty(0, device=D)
            torch.add(A, B, out=empty)                       # grows
            wide = torch.empty(6, 8, device=D)[::2, ::2]
            torch.add(A, B, out=wide)                        # keeps its strides
            product = torch.empty(3, 3, device=D)
            torch.mm(A, M, out=product)
        a.add_(b, alpha=2); a[:, 1:3].add_(b[:2]); a.add_(a); a += 1; a.relu_()
        same(A, a)
        same(out, a + b)
        same(empty, a + b)
        torch.testing.assert_close(wide.cpu(), a + b)
        assert wide.stride() == (16, 2)
        same(product, a @ M.cpu())
        assert figures() == {"aten::add_": 4, "aten::add": 3, "aten::relu_": 1, "aten::mm": 1}, figures()

        with pytest.warns(UserWarning, match="was resized"):
            torch.add(A, B, out=torch.empty(5, device=D))
        double = torch.empty(3, 4, dtype=torch.float64, device=D)
        torch.add(A, B, out=double)
        torch.testing.assert_close(double.cpu(), (a + b).double())
        same(torch.mm(A[:3, :3].contiguous(), A[:3, :3].contiguous()), a[:3, :3] @ a[:3, :3])
        for form, text in [
            (lambda x, y: y.add_(x), "doesn't match the broadcast shape"),
            (lambda x, y: torch.add(y, x, out=y), "doesn't match the broadcast shape"),
            (lambda x, y: x.expand(2, 3, 4).add_(x), "more than one element of the written-to tensor"),
            (lambda x, y: torch.add(x, y, out=torch.empty(3, 4, dtype=torch.int64, device=x.device)), "can't be cast"),
            (lambda x, y: torch.add(x, torch.ones(3, device=x.device)), "must match the size of tensor"),
            (lambda x, y: torch.mm(x, x), "cannot be multiplied"),
            (lambda x, y: x.view(-1)[1:].add_(x.view(-1)[:-1]), "single memory location"),
            (lambda x, y: torch.add(torch.ones(2, dtype=torch.int64, device=x.device), 1, alpha=0.5), "alpha must not be"),
        ]:
            for x, y in ((a, b), (A, B)):                    # the same error on both
                with pytest.raises(RuntimeError, match=text):
                    form(x, y)
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            A + B.to("openreg:0")
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            A + b
        """
    )


# autograd is above: training gives the CPU's losses, with native, refused and staged operators mixed
def test_a_model_trains(kernels: Program) -> None:
    kernels(
        """
        def train(device):
            torch.manual_seed(7)
            first, second = torch.randn(8, 16), torch.randn(16, 3)
            x, target = torch.randn(32, 8), torch.randn(32, 3)
            weights = [first.to(device).requires_grad_(), second.to(device).requires_grad_()]
            bias = torch.zeros(16).to(device).requires_grad_()
            x, target = x.to(device), target.to(device)
            optimizer = torch.optim.SGD([*weights, bias], lr=0.05, momentum=0.9)
            losses = []
            for _ in range(12):
                optimizer.zero_grad()
                hidden = torch.relu(torch.mm(x, weights[0]) + bias)
                loss = (torch.mm(hidden, weights[1]) + 0.25 - target).square().mean()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            return losses, [w.grad.cpu() for w in [*weights, bias]]

        expected, gradients = train("cpu")
        torch.openreg.reset_operator_stats()
        losses, ours = train(D)
        torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(ours, gradients, rtol=1e-3, atol=1e-5)
        assert losses[-1] < losses[0] / 2
        native = figures()
        assert native["aten::mm"] >= 24 and native["aten::relu"] == 12 and native["aten::add"] >= 24, native
        assert torch.openreg.operator_stats()["staged_calls"] > 0

        a = torch.randn(3, 4, dtype=torch.float64, device=D, requires_grad=True)
        b = torch.randn(4, dtype=torch.float64, device=D, requires_grad=True)
        assert torch.autograd.gradcheck(lambda x, y: torch.relu(x + y * 2), (a, b))
        with torch.inference_mode():
            same(torch.relu(a) + 1, torch.relu(a.detach().cpu()) + 1)
        with torch.autocast("openreg", dtype=torch.bfloat16):
            product = torch.mm(torch.ones(2, 2, device=D), torch.ones(2, 2, device=D))
        assert product.dtype == torch.bfloat16 and product.tolist() == [[2, 2], [2, 2]]
        """
    )


# tracing works on shapes alone: no kernel is called there, and the compiled program calls them
def test_compiled_programs_and_fake_tensors(kernels: Program) -> None:
    kernels(
        """
        from torch._subclasses.fake_tensor import FakeTensorMode

        def model(x, w):
            return torch.relu(torch.mm(x, w) + 1).sum()

        x, w = torch.randn(5, 4), torch.randn(4, 3)
        X, W = x.to(D), w.to(D)
        for backend in ("eager", "aot_eager"):
            torch.openreg.reset_operator_stats()
            compiled = torch.compile(model, backend=backend)
            torch.testing.assert_close(compiled(X, W).cpu(), model(x, w))
            native = figures()
            assert native["aten::mm"] == 1 and native["aten::relu"] == 1 and native["aten::add"] == 1, (backend, native)
        torch.openreg.reset_operator_stats()
        with FakeTensorMode() as mode:
            fake = mode.from_tensor(X)
            result = torch.relu(fake + fake)
            assert result.shape == X.shape and result.device == D
        assert figures() == {} and figures("staged") == {}
        """
    )


# in one device table, only the devices of the driver that has kernels use them
def test_two_drivers_in_one_table(kernels: Program) -> None:
    kernels(
        """
        names = [torch.openreg.get_device_properties(i).driver for i in range(torch.openreg.device_count())]
        assert names == ["sim", "sim", "kernels", "kernels"], names
        for index, way in enumerate(["aliased", "aliased", "native", "native"]):
            x = torch.ones(4, device=f"openreg:{index}")
            torch.openreg.reset_operator_stats()
            assert (x + x).tolist() == [2.0] * 4
            stats = torch.openreg.operator_stats()
            assert (stats["native_calls"], stats["staged_calls"]) == (way == "native", 0), (index, stats)
            assert (stats["aliased_calls"] > 0) == (way == "aliased")
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            torch.ones(4, device="openreg:0") + x
        same = x.to("openreg:2") + 1
        assert same.device.index == 2 and same.tolist() == [2.0] * 4

        before = os.environ.pop("OPENREG_DRIVERS")
        del x, same
        torch.openreg._lazy._shutdown()                      # the same driver at other indices: tables are read again
        torch.openreg.reset_operator_stats()
        y = torch.ones(4, device="openreg:0")
        assert (y + y).tolist() == [2.0] * 4 and figures() == {"aten::add": 1}, before
        """,
        OPENREG_DRIVERS="sim,kernels",
    )


# many threads at once, on both devices
def test_threads(kernels: Program) -> None:
    kernels(
        """
        import threading
        wrong = []

        def work(number):
            device = f"openreg:{number % 2}"
            x = torch.full((number + 1, 3), float(number), device=device)
            for _ in range(200):
                if not torch.equal((x + x).cpu(), torch.full((number + 1, 3), 2.0 * number)):
                    wrong.append(number)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        [t.start() for t in threads], [t.join() for t in threads]
        assert not wrong and figures() == {"aten::add": 1600}, (wrong, figures())
        """
    )


# what a kernel is given: every kind of value, the device's ordinal, the thread's current stream, the results' geometry
def test_values_of_a_call(more: Program) -> None:
    more(
        """
        library.kernels_last_call.restype = ctypes.c_char_p
        x = torch.arange(6, dtype=torch.float32).reshape(2, 3).to(D)

        def last(_=None):
            return library.kernels_last_call().decode()

        x2 = x.t().contiguous().t()
        torch.library.define("mylibrary::lists", "(Tensor x, float[] f, bool[] b, Scalar? s=None, Layout? l=None) -> Tensor")
        torch.library.impl("mylibrary::lists", "cpu", lambda x, f, b, s=None, l=None: x.clone())
        torch.library.register_fake("mylibrary::lists", lambda x, f, b, s=None, l=None: torch.empty_like(x))
        seen = {
            "aten::cat dev 1 stream 0 (2/32@1[2:3,3:1],2/32@1[2:1,3:2]) 1=1 -> 2/32@1[2:6,6:1]": last(torch.cat([x, x2], 1)),
            "aten::sum dev 1 stream 0 2/32@1[2:3,3:1] (0) true dtype 2/64 -> 2/64@1[1:3,3:1]":
                last(x.sum([0], keepdim=True, dtype=torch.float64)),
            'aten::gelu dev 1 stream 0 2/32@1[2:3,3:1] "tanh" -> 2/32@1[2:3,3:1]':
                last(torch.nn.functional.gelu(x, approximate="tanh")),
            "aten::native_layer_norm dev 1 stream 0 2/32@1[2:3,3:1] (3) none none 0.5 -> "
            "2/32@1[2:3,3:1] 2/32@1[2:1,1:1] 2/32@1[2:1,1:1]": last(torch.native_layer_norm(x, [3], None, None, 0.5)),
            # expanded to the result where the kernel is elementwise; a Python number is a number
            "aten::mul dev 1 stream 0 2/32@1[2:3,3:1] 2/64@1[2:0,3:1] -> 2/64@1[2:3,3:1]":
                last(x * torch.ones(3, device=D, dtype=torch.float64)),
            "aten::mul dev 1 stream 0 2/32@1[2:3,3:1] 2=2 -> 2/32@1[2:3,3:1]": last(x * 2),
            "aten::mul dev 1 stream 0 2/32@1[2:3,3:1] 1+2i -> 5/64@1[2:3,3:1]": last(x * (1 + 2j)),
            "aten::mul_ dev 1 stream 0 2/32@1[2:3,3:1] true -> 2/32@1[2:3,3:1]": last(x.mul_(True)),
            "aten::mul dev 1 stream 0 2/32@1[] 2/32@1[] -> 2/32@1[]": last(x[0, 0] * x[0, 1]),
            # as it is elsewhere; what out= writes comes last, too
            "aten::sub dev 1 stream 0 2/32@1[2:3,3:1] 2/32@1[3:1] 0.25 -> 2/32@1[2:3,3:1]": last(torch.sub(x, x[0], alpha=0.25)),
            "aten::sub dev 1 stream 0 2/32@1[2:3,3:1] 2/32@1[2:3,3:1] 1=1 2/32@1[2:3,3:1] -> 2/32@1[2:3,3:1]":
                last(torch.sub(x, x, out=torch.empty(0, device=D))),
            "mylibrary::lists dev 1 stream 0 2/32@1[2:3,3:1] (0.5,2) (1,0) 1.5 none -> 2/32@1[2:3,3:1]":
                last(torch.ops.mylibrary.lists(x, [0.5, 2], [True, False], 1.5)),
        }
        for expected, got in seen.items():
            assert got == expected
        index = last(x[:, torch.tensor([0, 2], device=D)])
        assert index.startswith("aten::index dev 1 stream 0 2/32@1[2:3,3:1] (none,0/64@1[2:1]) -> "), index
        known = last()
        torch.ops.mylibrary.lists(x, [1.0], [], None, torch.strided)  # a layout is nothing for a driver
        assert last() == known
        with torch.Stream(device=D) as stream:
            torch.cat([x])
        assert last().startswith("aten::cat dev 1 stream 1 "), last()
        torch.cat([x.to("openreg:0")])
        assert last().startswith("aten::cat dev 0 stream 0 (2/32@0[2:3,3:1])"), last()
        """
    )


# several results, lists of tensors, operators with one form only, composite ones, operators of another library
def test_results_of_every_kind(more: Program) -> None:
    more(
        """
        torch.library.define("mylibrary::halve", "(Tensor x) -> Tensor")
        torch.library.register_fake("mylibrary::halve", torch.empty_like)  # and no kernel at all
        x = torch.randn(3, 4)
        X = x.to(D)
        indices = torch.tensor([[1, 0], [2, 2]])
        with torch.openreg.operator_policy("forbid"):
            least, most = torch.aminmax(X)
            taken = torch.nn.functional.embedding(indices.to(D), X)
            products = torch._foreach_mul([X, X[0]], 2.5)
            halves = torch.ops.mylibrary.halve(X)
            sums = torch.cumsum(X[0], 0)
            filled = torch.empty(2, 5, device=D)[:, 1:4].fill_(0.5)
        same(least, x.min()), same(most, x.max())
        same(taken, torch.nn.functional.embedding(indices, x))
        same(products[0], x * 2.5), same(products[1], x[0] * 2.5)
        same(halves, x / 2)
        same(sums, x[0].cumsum(0))
        assert filled.tolist() == [[0.5] * 3] * 2
        expected = ["aten::_foreach_mul", "aten::aminmax", "aten::cumsum", "aten::embedding", "aten::fill_", "mylibrary::halve"]
        assert sorted(figures()) == expected, figures()

        weight = X.clone().requires_grad_()                  # autograd of a composite operator
        torch.nn.functional.embedding(indices.to(D), weight).sum().backward()
        assert weight.grad.sum(1).tolist() == [4.0, 4.0, 8.0]
        row = X[0].clone()
        row.cumsum_(0)                                       # not elementwise: not called with shared memory
        same(row, x[0].cumsum(0))
        assert "aten::cumsum_" not in torch.openreg.operator_stats()["native"]
        with pytest.raises(NotImplementedError, match="mylibrary::halve: there is no kernel for openreg"):
            torch.ops.mylibrary.halve(X.int())
        """
    )


# an error of a kernel names operator, driver and text, has the exception of its code, and leaves the device usable
def test_errors_of_kernels(more: Program) -> None:
    more(
        """
        import re
        x = torch.ones(2, 2, device=D)
        for function, kind, text in [
            (torch.neg, RuntimeError, 'aten::neg: driver "more": the accelerator is on fire (OPENREG_E_INTERNAL)'),
            (torch.neg_, RuntimeError, 'aten::neg_: driver "more": the accelerator is on fire'),
            (torch.floor, torch.OutOfMemoryError, 'aten::floor: driver "more": no room for a workspace (OPENREG_E_NOMEM)'),
            (torch.ceil, RuntimeError, 'aten::ceil: driver "more": failed without a reason (OPENREG_E_INTERNAL, for '
                                       'its unknown code 4242)'),
        ]:
            with pytest.raises(kind, match=re.escape(text)):
                function(x)
        y = x.clone().requires_grad_()
        with pytest.raises(RuntimeError, match="aten::neg: driver"):
            (-1 * torch.sub(1, y)).sum().backward()          # in a thread of autograd: the derivative calls neg
        assert (x * 3).tolist() == [[3.0, 3.0], [3.0, 3.0]] and "aten::neg" not in figures()
        """
    )


# copies on the device convert types and strides by the driver's kernel; those it refuses, and those that cross devices, go
# the ordinary way; what is one range of bytes on both sides needs no kernel
def test_copies(more: Program) -> None:
    more(
        """
        x = torch.randn(3, 4)
        X = x.to(D)
        torch.openreg.reset_operator_stats()
        with torch.openreg.operator_policy("forbid"):
            same(X.t().contiguous(), x.t().contiguous())
            same(X.double(), x.double())
            same(X[:, 1].expand(2, 3).clone(memory_format=torch.contiguous_format), x[:, 1].expand(2, 3).contiguous())
            wide = torch.zeros(3, 8, dtype=torch.float64).to(D)
            wide[:, ::2] = X
            assert torch.equal(wide.cpu()[:, ::2], x.double()) and not wide.cpu()[:, 1::2].any()
            assert figures() == {"aten::copy_": 4}, figures()
            same(X.clone(), x)
            assert figures()["aten::copy_"] == 4
        assert torch.equal(X.long().cpu(), x.long())
        shifted = X.clone().view(-1)
        with pytest.raises(RuntimeError, match="single memory location"):
            shifted[1:].copy_(shifted[:-1])
        assert torch.openreg.operator_stats()["native"]["aten::copy_"]["refused"] == 1
        assert torch.equal(X.t().to("openreg:0").cpu(), x.t())
        """
    )


# for finding whose fault a result is: no kernel of the driver runs
def test_staged_leaves_the_kernels_out(kernels: Program) -> None:
    kernels(
        """
        a = torch.randn(3)
        same(a.to(D) + 1, a + 1)
        assert figures() == {}, figures()
        assert figures("staged") == {"aten::add": 1}, figures("staged")
        """,
        OPENREG_OPERATORS="staged",
    )


# numbers of lists are parts of their own: listed, the kernel runs for each tensor, in place too
def test_operators_on_lists_with_numbers(more: Program) -> None:
    more(
        """
        a = torch.randn(3)
        A = a.to(D)
        same(torch._foreach_add([A, A], 2.0)[1], a + 2)
        torch._foreach_add_([A], [3.0])
        same(A, a + 3)
        assert figures() == {"aten::add": 2, "aten::add_": 1}, figures()
        """
    )


# an operator on lists is taken apart where the driver has the operator on tensors, and not otherwise
def test_operators_on_lists(kernels: Program) -> None:
    kernels(
        """
        a, b = torch.randn(3), torch.randn(2, 2)
        A, B = a.to(D), b.to(D)
        torch.openreg.reset_operator_stats()
        for sums in (torch._foreach_add([A, B], [A, B]), torch._foreach_add([A, B], [A, B], alpha=2)):
            assert all(each.device == D for each in sums)
        same(sums[1], b + 2 * b)
        torch._foreach_add_([A, B], [A, B])
        same(A, a + a)
        assert figures() == {"aten::add": 4, "aten::add_": 2}, figures()
        assert not figures("staged"), figures("staged")
        same(torch._foreach_mul([A, B], 3)[0], 6 * a)
        assert figures("staged") == {"aten::_foreach_mul": 1}, figures("staged")
        torch._foreach_add_([A, B], 3.0)  # its parts would be add_.Scalar, which is not listed
        assert figures("staged") == {"aten::_foreach_mul": 1, "aten::_foreach_add_": 1}, figures("staged")
        """
    )


# a list whose parts the kernel refuses is taken apart once; from then on PyTorch's kernel gets it whole, as if none were listed
def test_lists_whose_parts_are_refused(kernels: Program) -> None:
    kernels(
        """
        a = torch.arange(3)
        A = [a.to(D), a.to(D)]
        torch.openreg.reset_operator_stats()
        for expected in ({"aten::add": 2}, {"aten::add": 2, "aten::_foreach_add": 1}):
            same(torch._foreach_add(A, A)[1], a + a)
            assert figures("staged") == expected, figures("staged")
        B = [a.to(D).float()]  # of a type that it has
        same(torch._foreach_add(B, B)[0], 2.0 * a)
        assert figures() == {"aten::add": 1}, figures()
        """
    )


# a list written in place stays whole where the kernel may not write into its operand
def test_lists_in_place_of_what_is_not_elementwise(more: Program) -> None:
    more(
        """
        A = [torch.randn(3).to(D) for _ in range(2)]
        torch.openreg.reset_operator_stats()
        torch._foreach_sub_(A, A)
        same(A[1], torch.zeros(3))
        assert figures("staged") == {"aten::_foreach_sub_": 1}, figures("staged")
        """
    )


# entries that can't be served are told of, once, with the reason, and change nothing
def test_entries_that_cannot_be_served(more: Program) -> None:
    more(
        """
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            x = torch.ones(2, 2, device=D) * 2
            x.to("openreg:0") * 2
        told = {}
        for warning in caught:
            text = str(warning.message)
            assert text.startswith('Driver "more" lists a kernel for aten::'), text
            told[text.split("for ")[1].split(",")[0]] = text
        assert len(told) == len(caught) == 13, told
        for name, reason in {
            "aten::linear": "put together by PyTorch from other operators",
            "aten::view": "has a kernel for this device already",
            "aten::resize_": "has a kernel for this device already",
            "aten::bernoulli_.float": "random numbers",
            "aten::equal": "returns something other than tensors",
            "aten::ad.Tensor": "not an operator of this PyTorch",
            "aten::sin": "written for the schema aten::sin(Tensor input) -> Tensor, and this PyTorch's is aten::sin(Tensor self)",
            "aten::cos": "written for the schema aten::sin(Tensor self)",
            "aten::leaky_relu": "written for the schema",
            "aten::exp": "written for the schema",
            "aten::threshold": "written for the schema",
            "aten::log": "written for the schema",
            "aten::tan": "written for the schema no schema\\\\xff, and this PyTorch's is aten::tan(Tensor self) -> Tensor",
        }.items():
            assert reason in told[name], told
        assert torch.nn.functional.linear(x, x).tolist() == [[8.0, 8.0], [8.0, 8.0]]
        assert x.view(4).tolist() == [2.0] * 4 and torch.equal(x, x)
        for function in (torch.sin, torch.cos, torch.exp, torch.log, torch.tan, torch.nn.functional.leaky_relu,
                         lambda y: torch.nn.functional.threshold(y, 1, 3)):
            same(function(x), function(x.cpu()))             # without the kernels, which would fail
        """
    )


# the schema of an operator that comes later is compared when it is there, with one warning
def test_schemas_of_later_operators(more: Program) -> None:
    done = more(
        """
        x = torch.ones(3, device=D)
        x * 2                                                # reads the table
        for name in ("halve", "quarter"):
            torch.library.define(f"mylibrary::{name}", "(Tensor x, float scale=1.0, int[] to=[1, 2]) -> Tensor")
            torch.library.register_fake(f"mylibrary::{name}", lambda x, scale=1.0, to=(1, 2): torch.empty_like(x))
            torch.library.impl(f"mylibrary::{name}", "cpu", lambda x, scale=1.0, to=(1, 2): x * scale * to[1])
        for _ in range(2):
            assert torch.ops.mylibrary.quarter(x).tolist() == [2.0] * 3
        assert torch.ops.mylibrary.halve(x).tolist() == [0.5] * 3
        # what the kernel of halve doesn't know has its default, or the kernel isn't called
        assert torch.ops.mylibrary.halve(x, 1.0, [1, 2]).tolist() == [0.5] * 3
        assert torch.ops.mylibrary.halve(x, 3.0).tolist() == [6.0] * 3
        assert torch.ops.mylibrary.halve(x, 1.0, [1, 5]).tolist() == [5.0] * 3
        assert figures()["mylibrary::halve"] == 2
        """
    )
    told = [line for line in done.stderr.splitlines() if "mylibrary::" in line]
    assert len(told) == 1, told
    assert "quarter, which is not used: it was written for the schema mylibrary::quarter(Tensor y) -> Tensor" in told[0]


# a kernel that was written before an argument was appended: called while that has its default, in every form
def test_appended_arguments(more: Program) -> None:
    more(
        """
        x = torch.randn(5)
        X = x.to(D)
        torch.openreg.reset_operator_stats()
        with torch.openreg.operator_policy("forbid"):
            same(X.cumsum(0), x.cumsum(0))
            out = torch.empty(0, device=D)
            torch.cumsum(X, 0, out=out)
            same(out, x.cumsum(0))
        assert figures() == {"aten::cumsum": 2}, figures()
        same(X.cumsum(0, dtype=torch.float64), x.cumsum(0, dtype=torch.float64))
        assert figures() == {"aten::cumsum": 2}, figures()
        assert torch.openreg.operator_stats()["native"]["aten::cumsum"]["refused"] == 1
        """
    )


# scratch memory comes out of the device's cache in the order of the stream, is counted, and is back after the call
def test_workspace(more: Program) -> None:
    more(
        """
        x = torch.randn(100_000)
        X = x.to(D)
        expected = x.cumsum(0)
        for stream in (torch.openreg.current_stream(D), torch.Stream(device=D)):
            with stream:
                torch.openreg.reset_peak_memory_stats(D)
                before = torch.openreg.memory_allocated(D)
                result = X.cumsum(0)
                peak = torch.openreg.max_memory_allocated(D) - before
                assert 1_200_000 <= peak < 1_300_000, peak       # the result, and as many doubles
                same(result, expected, rtol=1e-3, atol=1e-3)
                del result
                assert torch.openreg.memory_allocated(D) == before
                reserved = torch.openreg.memory_reserved(D)
                for _ in range(10):
                    X.cumsum(0)
                assert torch.openreg.memory_reserved(D) == reserved
        """
    )


# a malformed table is refused by name where it is first needed; without operators the device still works
def test_malformed_tables(tmp_path: Path, python: Program) -> None:
    faults = {
        1: "has an entry without an operator's name",
        2: "has no function for aten::neg",
        3: "has unknown flags for aten::neg",
        4: "has two kernels for aten::relu",
        5: "is too short: set .struct_size = sizeof(openreg_kernels)",
        6: "has no list",
    }
    libraries = {kind: str(compile_driver(tmp_path, "kernels_more_driver.c", f"-DBROKEN={kind}")) for kind in faults}
    python(
        f"""
        import os, re
        import pytest, torch
        for kind, text in {faults!r}.items():
            os.environ["OPENREG_DRIVER_LIBRARIES"] = "more:" + {libraries!r}[kind]
            x = torch.arange(3.0).to("openreg")
            assert x.cpu().tolist() == [0.0, 1.0, 2.0]
            for _ in range(2):
                message = 'openreg_device_get_kernels: driver "more": its table of kernels ' + text
                with pytest.raises(RuntimeError, match=re.escape(message)):
                    x + x
            del x
            torch.openreg._lazy._shutdown()
        """
    )


# the shape functions' answers are kept, and by all that they depend on
def test_shapes_follow_the_arguments(kernels: Program) -> None:
    kernels(
        """
        x = torch.ones(2, 3)
        X = x.to(D)
        for _ in range(2):                                   # the second time from what is known
            same(X + 1, x + 1)
            same(X + 1.5, x + 1.5)
            same(X + 1j, x + 1j)
            same(X.int() + 1.5, x.int() + 1.5)
            same(X + torch.tensor(2.0, dtype=torch.float64), x + torch.tensor(2.0, dtype=torch.float64))
            same(X + X.double()[0, 0], x + x.double()[0, 0])
            same(X.double() + X, x.double() + x)
            same(X.t() + 1, x.t() + 1)
            same(X[:1] + X, x[:1] + x)
            same(torch.add(X, X[0]), torch.add(x, x[0]))
        torch.set_default_dtype(torch.float64)
        same(X.int() + 1.5, x.int() + 1.5)
        """
    )


# kernels.h's tensor is DLPack's, field by field, for those who have a library that takes it
def test_the_tensor_is_dlpacks(tmp_path: Path, root: Path) -> None:
    source = tmp_path / "dlpack.c"
    source.write_text(
        """
        #include <ATen/dlpack.h>
        #include <openreg/kernels.h>
        int main(void)
        {
            const int64_t shape[2] = {2, 3}, strides[2] = {3, 1};
            float data[6];
            const openreg_tensor tensor = {data, OPENREG_TENSOR_DEVICE_TYPE, 4, 2, {OPENREG_DTYPE_FLOAT, 32, 1}, shape, strides, 0};
            const DLTensor same = openreg_as_dltensor(&tensor);
            return !(same.data == data && same.device.device_type == kDLExtDev && same.device.device_id == 4 && same.ndim == 2 &&
                     same.dtype.code == kDLFloat && same.dtype.bits == 32 && same.shape[1] == 3 && same.strides[0] == 3 &&
                     same.byte_offset == 0);
        }
        """
    )
    includes = [f"-I{Path(torch.__file__).parent / 'include'}", f"-I{root / 'runtime/include'}"]
    program = tmp_path / "dlpack"
    compiler = os.environ.get("CC", "cc")
    finished([compiler, "-std=c11", "-Wall", "-Werror", *includes, source, "-o", program])
    finished([program])
