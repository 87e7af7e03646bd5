# SPDX-License-Identifier: BSD-3-Clause
"""Operators through the fallback: right results on the right device, whichever way they run.

Every test of this file runs in the way that the environment chooses; test_staged_operators.py runs it again with
``OPENREG_OPERATORS=staged``.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from comparing import EXACT, assert_same
from torch.testing import assert_close

import torch_openreg

DEV = "openreg:1"


def both(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """The same random values on the CPU and on DEV."""
    drawn = torch.randn(*shape) if dtype.is_floating_point or dtype.is_complex else torch.randint(0, 9, shape)
    cpu = drawn.to(dtype)
    return cpu, cpu.to(DEV)


# acceptance 3.4: results are on their inputs' device and the current device does not change
@pytest.mark.parametrize("op", ["add", "sum", "cat", "matmul", "sort", "nonzero", "clone", "topk", "cumsum", "where"])
def test_results_stay_on_the_inputs_device(op: str) -> None:
    x = torch.randn(4, 4, device=DEV)
    calls = {
        "add": lambda: x + 1,
        "sum": lambda: x.sum(),
        "cat": lambda: torch.cat([x, x]),
        "matmul": lambda: x @ x,
        "sort": lambda: torch.sort(x)[1],
        "nonzero": lambda: x.nonzero(),
        "clone": lambda: x.clone(),
        "topk": lambda: x.topk(2)[0],
        "cumsum": lambda: x.cumsum(0),
        "where": lambda: torch.where(x > 0, x, 0.0),
    }
    assert torch.openreg.current_device() == 0
    assert calls[op]().device == torch.device(DEV)
    assert torch.openreg.current_device() == 0


# acceptance 3.4: the current device is unchanged after an operator that throws, and the tensors are usable
def test_an_operator_that_throws_changes_nothing() -> None:
    x = torch.ones(2, 3, device=DEV)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        torch.mm(x, x)
    assert torch.openreg.current_device() == 0
    assert_close((x + 1).cpu(), torch.full((2, 3), 2.0))


# acceptance 3.5
@pytest.mark.parametrize("other", ["openreg:0", "cpu"])
@pytest.mark.parametrize(
    "call",
    [
        lambda a, b: a + b,
        lambda a, b: a.add_(b),
        lambda a, b: torch.mm(a, b),
        lambda a, b: torch.cat([a, b]),
        lambda a, b: torch.cdist(a, b),
        lambda a, b: torch.linalg.solve(a, b),
        lambda a, b: torch._foreach_add([a], [b]),
        lambda a, b: torch.add(a, a, out=b),
        lambda a, b: torch.nn.functional.linear(a, b),
        lambda a, b: torch.logaddexp(b, a),
        lambda a, b: torch.where(a > 0, a, b),
        lambda a, b: a.index_select(0, b[0].long()),
        lambda a, b: torch.dot(a[0], b[0]),
        lambda a, b: a.addmm_(a, b),
    ],
)
def test_two_devices_are_an_error_before_anything_runs(call, other: str) -> None:
    a = torch.eye(3, device=DEV)
    b = torch.eye(3, device=other) * 2
    with pytest.raises(RuntimeError, match="same device") as caught:
        call(a, b)
    assert DEV in str(caught.value)
    assert_close(a.cpu(), torch.eye(3))
    assert_close(b.cpu(), torch.eye(3) * 2)


# acceptance 3.5: zero-dimensional CPU tensors are scalars, on either side, but not as an output
def test_cpu_scalars_mix_but_are_not_written() -> None:
    a = torch.ones(3, device=DEV)
    s = torch.tensor(2.0)
    assert_close((a * s).cpu(), torch.full((3,), 2.0))
    assert (s * a).device == torch.device(DEV)
    with pytest.raises(RuntimeError, match="same device"):
        s.add_(torch.ones((), device=DEV))
    assert s.item() == 2.0


def test_cpu_index_tensors_are_accepted_as_on_cuda() -> None:
    cpu, dev = both(5, 3)
    rows = torch.tensor([4, 0, 2])
    assert_close(dev[rows].cpu(), cpu[rows])
    dev[rows] = 0
    cpu[rows] = 0
    assert_close(dev.cpu(), cpu)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64]
)
def test_elementwise_and_reduction_equal_the_cpu(dtype: torch.dtype) -> None:
    cpu, dev = both(3, 5, dtype=dtype)
    for op in (lambda t: t * t, lambda t: t.sum(), lambda t: t.t().contiguous(), lambda t: t.to(torch.complex64).abs()):
        expected, actual = op(cpu), op(dev)
        assert actual.dtype == expected.dtype
        assert actual.stride() == expected.stride()
        assert_close(actual.cpu(), expected)


def test_out_argument_is_resized_and_keeps_its_identity() -> None:
    cpu, dev = both(4, 6)
    out = torch.empty(0, device=DEV)
    view = out
    result = torch.matmul(dev, dev.t(), out=out)
    assert result is out and view.shape == (4, 4)
    assert_close(out.cpu(), cpu @ cpu.t())
    wide = torch.empty(10, 10, device=DEV)
    base = wide.data_ptr()
    with pytest.warns(UserWarning, match="resized"):
        torch.add(dev, 1, out=wide)
    assert wide.data_ptr() == base and wide.shape == (4, 6)


def test_views_alias_and_in_place_writes_show_through() -> None:
    cpu, dev = both(4, 6)
    for t in (cpu, dev):
        t[1:3].mul_(2)
        t.view(-1)[::5] = 7
        t.t()[0].fill_(3)
        t.diagonal().zero_()
        t.unfold(1, 2, 2)[..., 0].add_(1)
        t.t_().add_(1)
    assert dev[1]._is_view() and dev[1]._base is dev
    assert dev[1].untyped_storage().data_ptr() == dev.untyped_storage().data_ptr()
    assert_close(dev.cpu(), cpu)


def test_version_counters_guard_saved_tensors() -> None:
    x = torch.ones(3, device=DEV, requires_grad=True)
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_the_same_tensor_twice_and_overlapping_memory() -> None:
    cpu, dev = both(4)
    assert_close(torch.add(dev, dev).cpu(), cpu + cpu)
    expanded = torch.zeros(1, device=DEV).expand(3)
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        expanded.add_(1)
    with pytest.raises(RuntimeError, match="some elements of the input tensor and the written-to tensor"):
        torch.add(dev[:3], 1, out=dev[1:])


def test_conj_and_neg_bits() -> None:
    cpu, dev = both(3, dtype=torch.complex64)
    assert dev.conj().is_conj()
    assert_close(dev.conj().resolve_conj().cpu(), cpu.conj().resolve_conj())
    assert_close(dev.conj().imag.cpu(), cpu.conj().imag)
    assert_close(torch.zeros(3, dtype=torch.complex64, device=DEV).copy_(dev.conj()).cpu(), cpu.conj().resolve_conj())
    assert_close(dev.conj().cpu(), cpu.conj())
    assert_close(dev.conj().to("openreg:0").cpu(), cpu.conj())


# acceptance 1.1: every direction, contiguous or not, with and without a change of type
@pytest.mark.parametrize("source", ["cpu", "openreg:0", "openreg:1"])
@pytest.mark.parametrize("target", ["cpu", "openreg:0", "openreg:1"])
def test_copies_in_every_direction(source: str, target: str) -> None:
    values = torch.arange(24, dtype=torch.float64).view(2, 3, 4)
    src = values.to(source)
    for view in (
        lambda t: t,
        lambda t: t.transpose(0, 2),
        lambda t: t[:, ::2],
        lambda t: t[1:, 1:, 1:],
        lambda t: t[:0],
        lambda t: t[1, 2],
        lambda t: t[1, 2, 3],
    ):
        expected = view(values)
        for dtype in (torch.float64, torch.float32, torch.int32, torch.bfloat16):
            for non_blocking in (False, True):
                got = view(src).to(target, dtype, non_blocking=non_blocking)
                torch.openreg.synchronize(0)
                torch.openreg.synchronize(1)
                assert got.device == torch.device(target)
                assert_close(got.cpu(), expected.to(dtype))
        dst = torch.full(values.shape, -1.0, dtype=torch.float64, device=target)
        view(dst).copy_(view(src), non_blocking=True)
        torch.openreg.synchronize(0)
        torch.openreg.synchronize(1)
        reference = torch.full(values.shape, -1.0, dtype=torch.float64)
        view(reference).copy_(expected)
        assert_close(dst.cpu(), reference)
    assert_close(
        torch.zeros(2, 3, 4, device=target, dtype=torch.float64).copy_(src[0, 0]).cpu(), values[0, 0].expand(2, 3, 4)
    )
    assert_close(src[:, :1].expand(2, 3, 4).to(target).cpu(), values[:, :1].expand(2, 3, 4))


def _every_dtype() -> list[torch.dtype]:
    """The dtypes of torch that a tensor can have without more being said of it: all but the quantised ones."""
    found = {each for each in vars(torch).values() if isinstance(each, torch.dtype)}
    quantised = {torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4}
    return sorted(found - quantised, key=str)


# acceptance 2.16: a round trip is bit-exact for every dtype that torch has, NaN payloads included
@pytest.mark.parametrize("dtype", _every_dtype(), ids=str)
def test_round_trip_keeps_every_bit(dtype: torch.dtype) -> None:
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (64,), dtype=torch.uint8)
    cpu = raw.view(dtype)
    back = cpu.to("openreg:0").to(DEV).cpu()
    assert back.dtype == dtype
    assert torch.equal(back.view(torch.uint8), raw)


# acceptance 5.74: NumPy's dtypes move and come back as they are, and the others are refused as on the CPU
@pytest.mark.parametrize("code", sorted(set(np.typecodes["All"])))
def test_numpy_dtypes_make_the_round_trip(code: str) -> None:
    array = np.zeros(4, dtype=np.dtype(code))
    if array.dtype.kind in "biufc":
        array = np.array([0, 1, 2, 3]).astype(array.dtype)
    try:
        cpu = torch.from_numpy(array)
    except TypeError:
        with pytest.raises(TypeError):
            torch.openreg.from_numpy(array, device=DEV)
        return
    for moved in (cpu.to(DEV), torch.openreg.from_numpy(array, device=DEV)):
        assert moved.device == torch.device(DEV)
        back = moved.cpu().numpy()
        assert back.dtype == array.dtype
        assert np.array_equal(back, array)


def test_resize_set_and_storage() -> None:
    x = torch.arange(4.0, device=DEV)
    x.resize_(100)
    assert x.shape == (100,) and x[:4].tolist() == [0, 1, 2, 3]
    x.untyped_storage().resize_(8)
    assert x.untyped_storage().nbytes() == 8 and x.untyped_storage().device == torch.device(DEV)
    x.untyped_storage().resize_(0)
    assert x.untyped_storage().nbytes() == 0
    y = torch.empty(0, device=DEV).set_(torch.arange(6.0, device=DEV).untyped_storage(), 1, (2, 2), (2, 1))
    assert y.tolist() == [[1, 2], [3, 4]]
    z = torch.empty(3, device=DEV).set_()
    assert z.numel() == 0 and z.device == torch.device(DEV)
    w = torch.empty(2, 3, 4, 5, device=DEV).resize_(2, 3, 4, 5, memory_format=torch.channels_last)
    assert w.is_contiguous(memory_format=torch.channels_last)


def test_random_operators_use_the_devices_generator() -> None:
    def draw() -> list[torch.Tensor]:
        torch.openreg.manual_seed_all(7)
        cpu_state = torch.get_rng_state()
        drawn = [
            torch.randn(5, device=DEV),
            torch.rand(5, device=DEV),
            torch.randperm(9, device=DEV),
            torch.nn.functional.dropout(torch.ones(99, device=DEV)),
        ]
        assert torch.equal(torch.get_rng_state(), cpu_state)
        return drawn

    assert_close(draw(), draw(), **EXACT)
    own = torch.Generator(device=DEV).manual_seed(3)
    assert_close(
        torch.rand(4, generator=own, device=DEV).cpu(), torch.rand(4, generator=torch.Generator().manual_seed(3))
    )


FACTORIES = {
    "tensor": lambda d: torch.tensor([[1, 2], [3, 4]], device=d),
    "as_tensor": lambda d: torch.as_tensor([1.5, 2.5], device=d),
    "asarray": lambda d: torch.asarray([1.5, 2.5], device=d),
    "zeros_like": lambda d: torch.zeros_like(torch.ones(2, 3, device=d)),
    "ones_like": lambda d: torch.ones_like(torch.zeros(3, 2, device=d).t()),
    "full_like": lambda d: torch.full_like(torch.zeros(2, device=d), 5),
    "new_zeros": lambda d: torch.ones(2, device=d).new_zeros(3),
    "new_ones": lambda d: torch.ones(2, device=d).new_ones(3),
    "new_full": lambda d: torch.ones(2, device=d).new_full((2,), 5),
    "new_tensor": lambda d: torch.ones(2, device=d).new_tensor([1, 2]),
    "complex": lambda d: torch.complex(torch.ones(2, device=d), torch.zeros(2, device=d)),
    "vander": lambda d: torch.vander(torch.arange(3.0, device=d)),
}
UNFILLED = {
    "empty_like": lambda d: torch.empty_like(torch.ones(2, 3, device=d).t()),
    "new_empty": lambda d: torch.ones(2, device=d).new_empty((2, 3)),
    "new_empty_strided": lambda d: torch.ones(2, device=d).new_empty_strided((2, 3), (1, 2)),
    "empty_permuted": lambda d: torch.empty_permuted((2, 3), (1, 0), device=d),
}


# acceptance 3.2: each factory that takes a tensor or a list gives what it gives on the CPU; test_factories.py has the others
@pytest.mark.parametrize("name", [*FACTORIES, *UNFILLED])
def test_factories(name: str) -> None:
    make = (FACTORIES | UNFILLED)[name]
    made, expected = make(DEV), make("cpu")
    assert made.device == torch.device(DEV)
    assert (made.dtype, made.shape, made.stride()) == (expected.dtype, expected.shape, expected.stride())
    if name in FACTORIES:
        assert torch.equal(made.cpu(), expected)


# acceptance 4.12
@pytest.mark.parametrize("device", ["openreg:2", "openreg:127", "openreg:200", "privateuseone:7"])
def test_a_factory_on_a_missing_device_is_an_error(device: str) -> None:
    with pytest.raises(RuntimeError, match="out of range"):
        torch.empty(1, device=device)


def test_negative_sizes_and_pinning_are_refused() -> None:
    with pytest.raises(RuntimeError, match="negative"):
        torch.empty(-1, device=DEV)
    with pytest.raises(RuntimeError, match="pinned"):
        torch.empty(1, device=DEV, pin_memory=True)


def test_results_live_in_the_devices_memory() -> None:
    a = torch.ones(1 << 18, device=DEV)
    before = torch.openreg.memory_allocated(DEV)
    b = a + a  # structured
    c = torch.nn.functional.gelu(a)  # oneDNN may allocate it
    d, e = torch.sort(a)  # not structured
    assert torch.openreg.memory_allocated(DEV) - before >= 3 * a.nbytes
    del b, c, d, e
    assert torch.openreg.memory_allocated(DEV) == before


def test_undeclared_writes_reach_the_device() -> None:
    # native_batch_norm's schema does not say that it writes the running statistics
    expected = torch.nn.BatchNorm1d(3)
    actual = torch.nn.BatchNorm1d(3).to(DEV)
    x = torch.randn(8, 3)
    assert_close(actual(x.to(DEV)).cpu(), expected(x))
    assert_close(actual.running_mean.cpu(), expected.running_mean)
    assert_close(actual.running_var.cpu(), expected.running_var)


@pytest.mark.parametrize(
    "layers", [lambda: torch.nn.Conv1d(3, 4, 3), lambda: torch.nn.ConvTranspose1d(3, 4, 3, stride=2)]
)
def test_convolution_and_its_backward(layers) -> None:
    torch.manual_seed(0)
    cpu = layers()
    dev = copy.deepcopy(cpu).to(DEV)
    x = torch.randn(2, 3, 16)
    xd = x.to(DEV).requires_grad_()
    x.requires_grad_()
    cpu(x).square().sum().backward()
    dev(xd).square().sum().backward()
    assert_close(xd.grad.cpu(), x.grad)
    assert_close(dev.weight.grad.cpu(), cpu.weight.grad)
    assert_close(dev.bias.grad.cpu(), cpu.bias.grad)


RECURRENT_OPTIONS: list[dict[str, object]] = [
    {},
    {"bias": False},
    {"batch_first": True},
    {"bidirectional": True},
    {"dtype": torch.float64},
    {"dtype": torch.bfloat16},
    {"proj_size": 3},
]


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
@pytest.mark.parametrize("options", RECURRENT_OPTIONS, ids=str)
def test_recurrent_layers_and_their_gradients(kind: type, options: dict[str, object]) -> None:
    """Results and gradients are the CPU's, without gradients too: of an LSTM in oneDNN bit for bit."""
    if "proj_size" in options and kind is not torch.nn.LSTM:
        pytest.skip("only an LSTM has projections")
    torch.manual_seed(0)
    cpu = kind(5, 7, num_layers=2, **options)
    dev = copy.deepcopy(cpu).to(DEV)
    x = torch.randn(3, 4, 5, dtype=options.get("dtype"))
    xd = x.to(DEV).requires_grad_()
    x.requires_grad_()
    exactly = kind is torch.nn.LSTM and not {"proj_size", "dtype"} & options.keys()  # float, in oneDNN
    tolerance = 0.0 if exactly else 0.02 if x.dtype is torch.bfloat16 else 1e-5
    limits = {"rtol": 2 * tolerance, "atol": tolerance}
    on_cpu, on_dev = cpu(x)[0], dev(xd)[0]
    assert_same(on_dev, on_cpu, **limits)
    on_cpu.square().sum().backward()
    on_dev.square().sum().backward()
    assert_same([t.grad for t in (*dev.parameters(), xd)], [t.grad for t in (*cpu.parameters(), x)], **limits)
    with torch.inference_mode():
        assert_same(dev(xd)[0], cpu(x)[0], **limits)


WRONG_CELLS = {
    "input": (torch.nn.GRUCell, 4, [(2, 7)]),
    "state": (torch.nn.GRUCell, 5, [(2, 6)]),
    "batch": (torch.nn.GRUCell, 5, [(1, 7)]),
    "input of an LSTM": (torch.nn.LSTMCell, 4, [(2, 7), (2, 7)]),
    "hidden state of an LSTM": (torch.nn.LSTMCell, 5, [(1, 7), (2, 7)]),
    "cell state of an LSTM": (torch.nn.LSTMCell, 5, [(2, 7), (1, 7)]),
    "size of an LSTM's state": (torch.nn.LSTMCell, 5, [(2, 7), (2, 6)]),
    "batch of a plain cell": (torch.nn.RNNCell, 5, [(1, 7)]),
}


@pytest.mark.parametrize("wrong", WRONG_CELLS)
def test_recurrent_cells_refuse_shapes_that_the_cpu_refuses(wrong: str) -> None:
    """A state of another batch or size, and an input of another size, are the CPU's errors: nothing is broadcast."""
    kind, features, sizes = WRONG_CELLS[wrong]
    messages = []
    for device in ("cpu", DEV):
        states = tuple(torch.zeros(size, device=device) for size in sizes)
        with pytest.raises(RuntimeError) as error:
            kind(5, 7).to(device)(torch.ones(2, features, device=device), states if len(states) == 2 else states[0])
        messages.append(str(error.value))
    assert messages[0] == messages[1]


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU])
def test_recurrent_layers_under_autocast(kind: type) -> None:
    """Autocast applies to the steps, as on PyTorch's own devices: the products are of half the precision."""
    torch.manual_seed(0)
    layer = kind(5, 7).to(DEV)
    x = torch.randn(3, 4, 5, device=DEV)
    with torch.autocast("openreg", dtype=torch.bfloat16):
        low = layer(x)[0]
    assert_close(low.float(), layer(x)[0], rtol=0.05, atol=0.05)
    assert not torch.equal(low.float(), layer(x)[0])


def test_recurrent_layers_refuse_what_does_not_fit() -> None:
    """Wrong arguments have PyTorch's own errors."""
    layer = torch.nn.LSTM(5, 7).to(DEV)
    x = torch.randn(3, 4, 5, device=DEV)
    weights = [parameter.detach() for parameter in layer.parameters()]
    state = torch.zeros(1, 4, 7, device=DEV)
    with pytest.raises(RuntimeError, match="two hidden states"):
        torch.lstm(x, [state], weights, True, 1, 0.0, False, False, False)
    with pytest.raises(RuntimeError, match="number of RNN parameters|Expected"):
        torch.gru(x, state, weights[:3], True, 1, 0.0, False, False, False)
    with pytest.raises(RuntimeError, match="same device"):
        torch.gru(x, state.cpu(), weights, True, 1, 0.0, False, False, False)


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("offset", [0, 1, 13])
def test_large_copies_keep_every_byte(offset: int, threads: int) -> None:
    """Whichever way a large copy goes, and wherever it starts and ends, it is what was copied and nothing around it."""
    size = (20 << 20) + 7
    bytes_before = torch.randint(0, 256, (size + 64,), dtype=torch.uint8)
    source = bytes_before[5 : 5 + size]
    there = torch.zeros(size + 64, dtype=torch.uint8, device=DEV)
    back = torch.zeros(size + 64, dtype=torch.uint8)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        there[offset : offset + size].copy_(source)
        back[offset : offset + size].copy_(there[offset : offset + size])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(back[offset : offset + size], source)
    for around in (there.cpu(), back):
        assert not around[:offset].any()
        assert not around[offset + size :].any()


def test_large_copies_wait_for_the_stream() -> None:
    """A copy that the host makes follows what is queued on the current stream."""
    source = torch.ones(20 << 20, dtype=torch.uint8).pin_memory()
    there = torch.empty_like(source, device=DEV)
    with torch.Stream(DEV):
        for value in (1, 2, 3):
            source.fill_(value)
            there.copy_(source, non_blocking=True)
            assert there.cpu().eq(value).all()


def test_large_overlapping_copies_are_refused() -> None:
    """As on the CPU."""
    x = torch.zeros(20 << 20, dtype=torch.uint8, device=DEV)
    with pytest.raises(RuntimeError, match="memory location"):
        x[1:].copy_(x[:-1])


def test_calls_make_no_wrappers_once_warm() -> None:
    """Showing arguments to a kernel takes no new objects: a call, views of one storage, an optimizer's list."""
    x = torch.rand(8, 8, device=DEV)
    out = torch.empty_like(x)
    many = [torch.rand(4, device=DEV) for _ in range(300)]

    def work() -> None:
        torch.add(x, x.t(), out=out)
        x.mul_(0.5)
        torch.cat([x, x + x])
        torch._foreach_add_(many, many)

    work()
    before = torch_openreg._C._kernel_tensors_made()
    assert before > 0
    work()
    assert torch_openreg._C._kernel_tensors_made() == before


def test_wrappers_that_a_kernel_keeps_are_not_used_again() -> None:
    """A tensor that an operator has kept still shows the same memory after other calls; staged, its copy of it."""
    kept = []
    with torch.library._scoped_library("openreg_keeping", "DEF") as library:
        library.define("keep(Tensor x) -> Tensor")
        library.impl("keep", lambda x: (kept.append(x), x.clone())[1], "CPU")
        x = torch.arange(4.0, device=DEV)
        torch.openreg.reset_operator_stats()
        torch.ops.openreg_keeping.keep(x)
        staged = "openreg_keeping::keep" in torch.openreg.operator_stats()["staged"]
        for other in torch.rand(8, 4, device=DEV).unbind():
            other.add_(other)
        x.add_(1)
        assert kept[0].device.type == "cpu"
        assert kept[0].tolist() == ([0, 1, 2, 3] if staged else [1, 2, 3, 4])


def test_custom_operators_with_a_cpu_kernel_run() -> None:
    @torch.library.custom_op("openreg_tests::scale", mutates_args=(), device_types="cpu")
    def scale(x: torch.Tensor, by: float) -> torch.Tensor:
        return x * by

    result = torch.ops.openreg_tests.scale(torch.ones(3, device=DEV), 2.0)
    assert result.device == torch.device(DEV)
    assert result.tolist() == [2, 2, 2]


def test_an_operator_without_any_kernel_says_so() -> None:
    x = torch.randn(4, 4, device=DEV)
    with pytest.raises(NotImplementedError):
        torch._cudnn_rnn_flatten_weight([x], 1, 4, 2, 4, 0, 1, False, False)
    with pytest.raises(NotImplementedError, match="layout Mkldnn"):
        torch.ops.aten.to_mkldnn(x)


def test_item_and_printing() -> None:
    x = torch.tensor([1.5, 2.5], device=DEV)
    assert x[1].item() == 2.5
    assert repr(x) == "tensor([1.5000, 2.5000], device='openreg:1')"
    assert "device='openreg:0'" in repr(torch.randn(2, dtype=torch.complex64, device="openreg"))
    assert bool((x > 1).all())


# the CPU's fused attention where the CPU takes it: the same bits, and its gradients
@pytest.mark.parametrize("kind", ["plain", "causal", "mask", "mask with a gradient", "grouped"])
def test_scaled_dot_product_attention_equals_the_cpu(kind: str) -> None:
    heads = 2 if kind == "grouped" else 4
    inputs = [torch.randn(2, n, 8, 16) for n in (4, heads, heads)]
    mask = torch.randn(8, 8) if "mask" in kind else None
    results = []
    for device in ("cpu", DEV):
        leaves = [t.detach().to(device).requires_grad_() for t in inputs]
        there = mask.detach().to(device) if mask is not None else None
        if kind == "mask with a gradient" and there is not None:
            leaves.append(there.requires_grad_())
        out = torch.nn.functional.scaled_dot_product_attention(
            *leaves[:3], attn_mask=there, is_causal=kind == "causal", enable_gqa=kind == "grouped"
        )
        out.square().sum().backward()
        results.append([out, *(leaf.grad for leaf in leaves)])
    # Where the mask has a gradient it is PyTorch's math on both, in steps that round differently.
    assert_same(results[1], results[0], **({} if kind == "mask with a gradient" else EXACT))


# overlapping copies are refused where the CPU refuses them, and a copy onto the same place is none
@pytest.mark.parametrize(
    ("shape", "copy_within"),
    [
        ((1, 1), lambda x: operator.setitem(x, 0, x[0, 0])),
        ((6,), lambda x: x[1:].copy_(x[:-1])),
        ((6,), lambda x: x[:4:2].copy_(x[1:3])),
        ((6,), lambda x: x.expand(2, 6).copy_(torch.ones(2, 6, device=x.device))),
        ((2, 2), lambda x: x.copy_(x.t())),
        ((4,), lambda x: x.view(1, 4)[0].copy_(x)),
    ],
    ids=["onto itself", "shifted", "interleaved", "onto expanded", "transposed", "same memory"],
)
def test_copies_within_one_storage_are_as_on_the_cpu(
    shape: tuple[int, ...], copy_within: Callable[[torch.Tensor], Any]
) -> None:
    def outcome(device: str) -> Any:
        x = torch.arange(1.0, 1 + math.prod(shape), device=device).view(shape)
        try:
            copy_within(x)
        except RuntimeError as error:
            return str(error).partition(".")[0].partition("\n")[0]
        return x.tolist()

    assert outcome("openreg:1") == outcome("cpu")
