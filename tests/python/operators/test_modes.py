# SPDX-License-Identifier: BSD-3-Clause
"""Each family of operators under each of PyTorch's dispatcher modes: what the CPU answers, the device answers.

A mode that sees operators (torch.jit.trace, functorch's transforms, FakeTensor, inference mode) meets operators that run whole
here and are taken apart on the CPU, or the other way round. The families are one call each; a mode runs all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.func import functionalize, grad, jvp, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves, tree_map_only

DEV = "openreg:1"

Function = Callable[..., Any]


def values(*shape: int, shift: float = 0.0) -> Tensor:
    count = torch.Size(shape).numel()
    return (torch.arange(count, dtype=torch.float32) * 0.7 + shift).sin().reshape(shape)


def in_place(x: Tensor) -> Tensor:
    y = x.clone()
    y.mul_(2).add_(x).clamp_(min=-1)
    y[0] = 0.5
    return y


def foreach(x: Tensor, y: Tensor) -> list[Tensor]:
    copies = [x.clone(), y.clone()]
    torch._foreach_mul_(copies, 2.0)
    torch._foreach_addcmul_(copies, [x, y], [y, x], 0.5)
    return list(torch._foreach_exp(copies))


def indices(x: Tensor) -> Tensor:
    return torch.tensor([0, 2, 1], device=x.device)


def attention(x: Tensor, **settings: Any) -> Tensor:
    return F.scaled_dot_product_attention(x, x * 0.5, x + 1, **settings)


def causal_mask(x: Tensor) -> Tensor:
    return torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool, device=x.device).tril()


def encoder_layer(x: Tensor, weight: Tensor) -> Tensor:
    """Multi-head attention with one weight for all its projections."""
    return F.multi_head_attention_forward(
        *(x, x, x, 4, 2),
        *(torch.cat([weight, weight, weight]), None, None, None, False, 0.0, weight, None),
        need_weights=False,
    )[0]


def rotary(x: Tensor) -> Tensor:
    return torch.view_as_real(torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * (0.6 + 0.8j)).flatten(-2)


def complex_parts(x: Tensor) -> tuple[Tensor, ...]:
    z = torch.complex(x, x.sin())
    return z.real, z.imag, z.conj().imag, torch.view_as_real(z), (z * z.conj()).real


def views(x: Tensor) -> tuple[Tensor, ...]:
    return (
        *(x.t(), x.view(-1), x.unsqueeze(0).expand(2, -1, -1), x.diagonal(), x.unfold(0, 2, 1), x[1:, ::2]),
        *(*x.split(1), *x.unbind(0), x.movedim(0, 1), x.narrow(0, 0, 1), x.select(0, 1), x.as_strided((2,), (1,))),
    )


def sparse(x: Tensor) -> tuple[Tensor, ...]:
    compressed = x.to_sparse_csr()
    listed = x.to_sparse()
    return compressed.values() * 2, listed.coalesce().values() * 3, compressed @ x.t(), listed.to_dense()


def cell(kind: Function, x: Tensor, weight: Tensor) -> Any:
    gates = 4 if kind is torch.lstm_cell else 3 if kind is torch.gru_cell else 1
    weights = torch.cat([weight] * gates)
    return kind(x, (x, x * 2) if kind is torch.lstm_cell else x * 2, weights, weights)


def recurrent(kind: Function, x: Tensor, weight: Tensor) -> Any:
    gates = 4 if kind is torch.lstm else 3
    weights = torch.cat([weight] * gates)
    state = x[:1] * 0.5
    states = (state, state * 2) if kind is torch.lstm else state
    return kind(x, states, [weights, weights], False, 1, 0.0, True, False, False)


SQUARE, IMAGE, ROWS = (3, 3), (2, 4, 6, 6), (4, 8)

# A function of tensors, and their shapes.
FAMILIES: dict[str, tuple[Function, tuple[tuple[int, ...], ...]]] = {
    "pointwise": (lambda x, y: torch.where(x > 0, x * y, (x - y).exp()).tanh(), (SQUARE, SQUARE)),
    "in place": (in_place, (SQUARE,)),
    "foreach": (foreach, (SQUARE, (5,))),
    "reductions": (lambda x: (x.sum(0), x.mean(), x.amax(1), x.var(0), x.logsumexp(0), x.norm()), (SQUARE,)),
    "cumulative": (lambda x: (x.cumsum(0), x.cumprod(1), x.logcumsumexp(0)), (SQUARE,)),
    "order": (lambda x: (x.sort(1).values, x.topk(2).values, x.median(), x.argmax(0)), (SQUARE,)),
    "products": (
        lambda x, y: (x @ y, x.mv(y[0]), torch.addmm(x, x, y), torch.einsum("ij,kj->ik", x, y)),
        (SQUARE, SQUARE),
    ),
    "linear": (lambda x, w, b: F.linear(x, w, b).relu(), (ROWS, (5, 8), (5,))),
    "linalg": (lambda x: (torch.linalg.inv(x + 3 * torch.eye(3, device=x.device)), torch.linalg.svdvals(x)), (SQUARE,)),
    "conv1d": (lambda x, w, b: F.conv1d(x, w, b, padding=1), ((2, 4, 6), (3, 4, 3), (3,))),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, stride=2), (IMAGE, (3, 4, 3, 3), (3,))),
    "conv2d in groups": (lambda x, w: F.conv2d(x, w, groups=2, dilation=2), (IMAGE, (4, 2, 2, 2))),
    "conv2d padded by name": (lambda x, w: F.conv2d(x, w, padding="same"), (IMAGE, (3, 4, 3, 3))),
    "conv3d": (lambda x, w: F.conv3d(x, w), ((1, 2, 3, 4, 4), (3, 2, 2, 2, 2))),
    "transposed conv1d": (lambda x, w: F.conv_transpose1d(x, w, stride=2), ((2, 4, 6), (4, 3, 3))),
    "transposed conv2d": (lambda x, w, b: F.conv_transpose2d(x, w, b), (IMAGE, (4, 3, 3, 3), (3,))),
    "pooling": (lambda x: (F.max_pool2d(x, 2), F.avg_pool2d(x, 2), F.adaptive_avg_pool2d(x, 3)), (IMAGE,)),
    "interpolation": (lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), (IMAGE,)),
    "padding": (lambda x: (F.pad(x, (1, 1), mode="reflect"), F.pad(x, (1, 2))), (IMAGE,)),
    "batch norm": (lambda x, w: F.batch_norm(x, None, None, w, w, training=True), (IMAGE, (4,))),
    "layer norm": (lambda x, w: F.layer_norm(x, (8,), w, w), (ROWS, (8,))),
    "group norm": (lambda x, w: F.group_norm(x, 2, w, w), (IMAGE, (4,))),
    "rms norm": (lambda x, w: F.rms_norm(x, (8,), w), (ROWS, (8,))),
    "activations": (lambda x: (F.gelu(x), F.silu(x), F.softplus(x), F.leaky_relu(x), F.hardtanh(x)), (SQUARE,)),
    "softmax": (lambda x: (x.softmax(-1), x.log_softmax(0)), (SQUARE,)),
    "losses": (lambda x, y: (F.mse_loss(x, y), F.huber_loss(x, y), F.cross_entropy(x, indices(x))), (SQUARE, SQUARE)),
    "attention": (attention, ((2, 2, 4, 8),)),
    "causal attention": (lambda x: attention(x, is_causal=True), ((2, 2, 4, 8),)),
    "masked attention": (lambda x: attention(x, attn_mask=causal_mask(x)), ((2, 2, 4, 8),)),
    "multi-head attention": (encoder_layer, ((3, 2, 4), (4, 4))),
    "embedding": (lambda w: (F.embedding(indices(w), w), F.embedding_bag(indices(w)[None], w)), (SQUARE,)),
    "indexing": (lambda x: (x[indices(x)], x.gather(0, indices(x)[None]), x.index_select(1, indices(x))), (SQUARE,)),
    "indexed writes": (lambda x: (x.index_add(0, indices(x), x), x.scatter(0, indices(x)[None], 2.0)), (SQUARE,)),
    "index_put": (lambda x: x.index_put((indices(x),), x[0]), (SQUARE,)),
    "joining": (lambda x, y: (torch.cat([x, y]), torch.stack([x, y]), torch.block_diag(x, y)), (SQUARE, SQUARE)),
    "views": (views, (SQUARE,)),
    "complex": (complex_parts, (SQUARE,)),
    "rotary": (rotary, ((2, 3, 8),)),
    "fourier": (lambda x: (torch.fft.rfft(x).abs(), torch.fft.fft2(x).real), (ROWS,)),
    "factories": (lambda x: torch.arange(3, device=x.device) + x.new_ones(3) + torch.zeros_like(x), (SQUARE,)),
    "conversion": (lambda x: (x.to(torch.float64), x.half().float(), x.int(), x.contiguous(), x.clone()), (SQUARE,)),
    "sparse": (sparse, (SQUARE,)),
    "lstm cell": (lambda x, w: cell(torch.lstm_cell, x, w), (SQUARE, SQUARE)),
    "gru cell": (lambda x, w: cell(torch.gru_cell, x, w), (SQUARE, SQUARE)),
    "rnn cell": (lambda x, w: cell(torch.rnn_tanh_cell, x, w), (SQUARE, SQUARE)),
    "lstm": (lambda x, w: recurrent(torch.lstm, x, w), ((4, 2, 3), SQUARE)),
    "gru": (lambda x, w: recurrent(torch.gru, x, w), ((4, 2, 3), SQUARE)),
}


def scalar(result: Any) -> Tensor:
    """What a gradient is taken of: a sum of all results that have one, with unequal weights."""
    parts = [leaf for leaf in tree_leaves(result) if leaf.is_floating_point() and leaf.layout == torch.strided]
    return sum(
        (part.square().mean() * (i + 1) for i, part in enumerate(parts)), torch.zeros((), device=parts[0].device)
    )


def first(function: Function, rest: tuple[Tensor, ...]) -> Function:
    """The function of its first tensor alone."""
    return lambda x: function(x, *rest)


def scalar_of_first(function: Function, rest: tuple[Tensor, ...]) -> Function:
    return lambda x: scalar(function(x, *rest))


def batch(x: Tensor) -> Tensor:
    return torch.stack([x, x * 0.5 + 0.1])


def traced(function: Function, x: Tensor, *rest: Tensor) -> Any:
    """A traced function must answer for tensors other than those that it was traced with."""
    recorded = torch.jit.trace(lambda *tensors: tuple(tree_leaves(function(*tensors))), (x, *rest), check_trace=False)
    return recorded(x * 0.5 + 0.1, *rest)


def graphed(function: Function, x: Tensor, *rest: Tensor) -> Any:
    return make_fx(function)(x, *rest)(x * 0.5 + 0.1, *rest)


def inferred(function: Function, *tensors: Tensor) -> Any:
    """Of tensors from outside and from inside, and views that stay with whoever made them."""
    with torch.inference_mode():
        return function(*tensors), function(*(t.clone() for t in tensors))


def written_after_inference(function: Function, *tensors: Tensor) -> Any:
    """What inference mode made of an ordinary tensor without copying is an ordinary tensor, which may be written."""
    with torch.inference_mode():
        results = tree_leaves(function(*tensors))
    storages = {t.untyped_storage()._cdata for t in tensors}
    ordinary = [r for r in results if r.layout == torch.strided and r.untyped_storage()._cdata in storages]
    for result in ordinary:
        result.mul_(2)
    return results, [r.is_inference() for r in results], list(tensors)


def imagined(function: Function, *tensors: Tensor) -> Any:
    """What a fake tensor knows of the results: no values."""
    with FakeTensorMode() as mode:
        results = function(*(mode.from_tensor(t) for t in tensors))
    return tree_map_only(Tensor, lambda t: (t.shape, t.dtype, t.device.type), results)


def differentiated(function: Function, *tensors: Tensor) -> Any:
    leaves = [t.clone().requires_grad_() for t in tensors]
    return torch.autograd.grad(scalar(function(*leaves)), leaves, allow_unused=True, materialize_grads=True)


def deterministic(function: Function, *tensors: Tensor) -> Any:
    torch.use_deterministic_algorithms(True)
    try:
        return function(*tensors)
    finally:
        torch.use_deterministic_algorithms(False)


def cast(function: Function, *tensors: Tensor) -> Any:
    with torch.autocast(tensors[0].device.type, dtype=torch.bfloat16):
        return function(*tensors)


MODES: dict[str, Function] = {
    "none": lambda f, *tensors: f(*tensors),
    "backward": differentiated,
    "trace": traced,
    "make_fx": graphed,
    "inference": inferred,
    "writes after inference": written_after_inference,
    "fake tensors": imagined,
    "autocast": cast,
    "deterministic": deterministic,
    "functionalize": lambda f, *tensors: functionalize(f)(*tensors),
    "vmap": lambda f, x, *rest: vmap(first(f, rest))(batch(x)),
    "vmap of vmap": lambda f, x, *rest: vmap(vmap(first(f, rest)))(batch(batch(x))),
    "vmap of functionalize": lambda f, x, *rest: vmap(functionalize(first(f, rest)))(batch(x)),
    "vmap of grad": lambda f, x, *rest: vmap(grad(scalar_of_first(f, rest)))(batch(x)),
    "vmap of vjp": lambda f, x, *rest: vmap(lambda t: vjp(scalar_of_first(f, rest), t)[1](torch.ones_like(t.sum())))(
        batch(x)
    ),
    "vmap of jvp": lambda f, x, *rest: vmap(lambda t: jvp(scalar_of_first(f, rest), (t,), (t,)))(batch(x)),
    "grad of vmap": lambda f, x, *rest: grad(lambda t: scalar(vmap(first(f, rest))(t)))(batch(x)),
    "jvp of vmap": lambda f, x, *rest: jvp(lambda t: scalar(vmap(first(f, rest))(t)), (batch(x),), (batch(x),)),
    "grad of grad": lambda f, x, *rest: grad(lambda t: grad(scalar_of_first(f, rest))(t).square().sum())(x),
    "jvp of grad": lambda f, x, *rest: jvp(grad(scalar_of_first(f, rest)), (x,), (x,)),
    "functionalize of grad": lambda f, x, *rest: functionalize(grad(scalar_of_first(f, rest)))(x),
}


# PyTorch itself ends in a segmentation fault, on the CPU.
CRASHES = {("functionalize of grad", "foreach")}

# What the device has not: compressed sparse tensors as fake ones; and where PyTorch calls its fused cells, as on CUDA,
# derivatives in forward mode (they have no formula) and fake cells without biases (their meta function reads them).
MISSING = {
    ("fake tensors", "sparse"),
    ("fake tensors", "lstm cell"),
    *((mode, family) for mode in ("vmap of jvp", "jvp of vmap", "jvp of grad") for family in ("lstm cell", "gru cell")),
    *((mode, "gru") for mode in ("vmap of jvp", "jvp of vmap", "jvp of grad")),
}


def answer(mode: str, family: str, device: str) -> Any:
    function, shapes = FAMILIES[family]
    tensors = [values(*shape, shift=i * 0.3).to(device) for i, shape in enumerate(shapes)]
    return tree_leaves(MODES[mode](function, *tensors))


def compare(got: list[Any], expected: list[Any], mode: str) -> None:
    # Which operators are cast is each device's own list.
    close = {"rtol": 2e-2, "atol": 2e-2, "check_dtype": False} if mode == "autocast" else {"rtol": 1e-4, "atol": 1e-5}
    for a, b in zip(got, expected, strict=True):
        if isinstance(b, Tensor):
            assert a.device == torch.device(DEV), a.device
            assert_close(a.cpu(), b, **close, equal_nan=True)
        else:
            assert a == ("openreg" if b == "cpu" else b)


# a mode and an operator that runs whole: the CPU's results, or the CPU refuses too
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", MODES)
def test_the_mode(mode: str) -> None:
    wrong: dict[str, str] = {}
    compared = 0
    for family in FAMILIES:
        if (mode, family) in CRASHES | MISSING:
            continue
        try:
            expected = answer(mode, family, "cpu")
        except (RuntimeError, NotImplementedError, ValueError):
            continue  # the CPU refuses
        compared += 1
        try:
            compare(answer(mode, family, DEV), expected, mode)
        except Exception as error:  # all families are tried
            wrong[family] = f"{type(error).__name__}: {str(error)[:300]}"
    assert not wrong, "\n".join(f"{family}: {text}" for family, text in wrong.items())
    assert compared >= len(FAMILIES) // 2, f"the CPU refuses all but {compared}"


def parts_of_all_kinds(device: str) -> dict[str, Callable[[], Tensor]]:
    """Operators that show a part of a tensor, or the tensor in another way, for each kind of tensor."""
    pairs = values(4, 2).to(device)
    z = torch.complex(pairs, pairs)
    quantized = torch.quantize_per_tensor(values(3, 4), 0.1, 0, torch.qint8).to(device)
    listed, rows = torch.eye(3).to_sparse().coalesce().to(device), torch.eye(3).to_sparse_csr().to(device)
    blocks = torch.eye(4).to_sparse_bsr((2, 2)).to(device)
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)]).to(device)
    return {
        "view_as_complex": lambda: torch.view_as_complex(pairs),
        "view_as_real": lambda: torch.view_as_real(z),
        "real": lambda: z.real,
        "imag": lambda: z.imag,
        "COO values": listed.values,
        "COO indices": listed.indices,
        "CSR values": rows.values,
        "CSR rows": rows.crow_indices,
        "BSR values": blocks.values,
        "quantised view": lambda: quantized.view(4, 3),
        "quantised t": quantized.t,
        "quantised permute": lambda: quantized.permute(1, 0),
        "quantised unsqueeze": lambda: quantized.unsqueeze(0),
        "nested transpose": lambda: nested.transpose(1, 2),
        "nested view": lambda: nested.view(2, -1, 3),
        "nested unbind": lambda: nested.unbind()[0],
        "nested detach": nested.detach,
        "nested select": lambda: nested[1],
        "nested values": nested.values,
    }


# a view is an inference tensor where what it views is one, in whichever mode it is made
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("made_in_inference_mode", [False, True])
def test_views_under_inference_mode(made_in_inference_mode: bool) -> None:
    with torch.inference_mode(made_in_inference_mode):
        there, here = parts_of_all_kinds(DEV), parts_of_all_kinds("cpu")
    for name in here:
        for mode in (False, True):
            with torch.inference_mode(mode):
                a, b = there[name](), here[name]()
            assert a.device == torch.device(DEV), name
            assert a.is_inference() == b.is_inference(), (name, mode)


# TorchScript's list of indices is a list of tensors like PyTorch's own
def test_scripted_indices() -> None:
    @torch.jit.script
    def pick(x: Tensor, at: Tensor) -> Tensor:
        return x[at] + x[:, at]

    x, at = values(3, 3), torch.tensor([2, 0, 1])
    assert_close(pick(x.to(DEV), at.to(DEV)).cpu(), pick(x, at))


SMALL = [torch.uint16, torch.uint32, torch.float16, torch.bfloat16, torch.complex32, torch.bool]
IN_PLACE_LISTS = sorted(
    name
    for name in dir(torch)
    if name.startswith("_foreach_") and name.endswith("_") and name not in ("_foreach_zero_", "_foreach_copy_")
)


def part_of(argument: Any, i: int) -> Any:
    """What belongs to tensor `i` of the list that is written."""
    return [argument[i]] if isinstance(argument, list) else argument


def same_lists(name: str, tensors: list[Tensor], arguments: list[Any]) -> bool:
    """Compares a call on a list with a call for each tensor; False where the operator doesn't take one of them."""
    function = getattr(torch, name)
    alone = [t.clone() for t in tensors]
    try:
        for i, tensor in enumerate(alone):
            function([tensor], *(part_of(argument, i) for argument in arguments))
    except (RuntimeError, TypeError):
        return False
    function(tensors, *arguments)
    for a, b in zip(tensors, alone, strict=True):
        assert_close(a.cpu(), b.cpu(), equal_nan=True)
    return True


# a list whose later tensor the CPU's kernel refuses: each tensor is changed once, as when it is alone
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", SMALL, ids=str)
def test_lists_of_several_types(dtype: torch.dtype) -> None:
    compared = 0
    for name in IN_PLACE_LISTS:
        for first_type in (torch.int32, torch.float32):
            given = [torch.tensor([1, 2, 3], device=DEV).to(t) for t in (first_type, dtype)]
            for kinds in ((), (2,), ([2, 2],), (given,), (given, given), (given, given, 2)):
                arguments = [[t.clone() if isinstance(t, Tensor) else t for t in k] if k is given else k for k in kinds]
                compared += same_lists(name, [t.clone() for t in given], arguments)
    assert compared > 10


# tensors of one storage stay tensors of one storage
@pytest.mark.parametrize("dtype", [torch.uint16, torch.int32], ids=str)
def test_lists_that_share_a_storage(dtype: torch.dtype) -> None:
    both = torch.zeros(4, dtype=dtype, device=DEV)
    torch._foreach_add_([both, both[:2]], 1)
    assert both.cpu().tolist() == [2, 2, 1, 1]


# the type of a number in a program counts less than that of a tensor, in a wider type too
@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_numbers_in_a_wider_type() -> None:
    assert (torch.tensor(1.0, dtype=torch.float16, device=DEV) / 2j).dtype == torch.complex32


# sizes of nested tensors are on the CPU for every device
@pytest.mark.filterwarnings("ignore")
def test_nested_tensors_from_dense_ones() -> None:
    dense = [values(2, 3), values(4, 3)]
    made = torch.nested.as_nested_tensor([t.to(DEV) for t in dense])
    assert made.device == torch.device(DEV)
    for a, b in zip(made.unbind(), dense, strict=True):
        assert_close(a.cpu(), b)
    sizes = torch.tensor([[2, 3], [4, 3]])
    padded = torch._nested_from_padded(values(2, 4, 3).to(DEV), sizes)
    assert_close(padded.unbind()[0].cpu(), values(2, 4, 3)[0, :2])
    buffer = values(18).to(DEV)
    strides, offsets = torch.tensor([[3, 1], [3, 1]]), torch.tensor([0, 6])
    view = torch._nested_view_from_buffer(buffer, sizes, strides, offsets)
    assert_close(view.unbind()[1].cpu(), values(18)[6:].view(4, 3))
    assert view.unbind()[1].device == torch.device(DEV)


# the operator says which kernel runs
def test_the_choice_of_attention() -> None:
    from torch.nn.attention import SDPBackend

    query = values(2, 2, 4, 8).to(DEV)
    assert torch._fused_sdp_choice(query, query, query) == SDPBackend.OVERRIDEABLE.value


# indices on another device: the words that a GPU's error has
def test_indices_on_another_device() -> None:
    x, at = torch.ones(3), torch.tensor([0])
    with pytest.raises(
        RuntimeError, match=r"indices should be either on .* same device as the indexed tensor \(openreg:0\)"
    ):
        x.to("openreg:0")[at.to(DEV)]
    with pytest.raises(RuntimeError, match=r"indices should be either on .* same device as the indexed tensor \(cpu\)"):
        x[at.to(DEV)]


# complex32 is experimental on every device
def test_complex32_warns(python: Callable[..., Any]) -> None:
    done = python("import torch\ntorch.empty(2, dtype=torch.complex32, device='openreg')")
    assert "ComplexHalf support is experimental" in done.stderr


# what Python code inside a CPU kernel keeps is the host's memory: a forked process may read it
def test_constants_of_a_custom_operator_are_the_hosts(python: Callable[..., Any]) -> None:
    python(
        """
        import os
        import torch
        kept = []

        @torch.library.custom_op("openreg_modes::shifted", mutates_args=(), device_types="cpu")
        def shifted(x: torch.Tensor) -> torch.Tensor:
            if not kept:
                kept.append(torch.arange(4096.0))
            return x + kept[0]

        x = torch.ones(4096, device="openreg")
        assert shifted(x).cpu()[7] == 8
        before = torch.openreg.memory_allocated()
        assert shifted(x).device == x.device and torch.openreg.memory_allocated() == before
        child = os.fork()
        if child == 0:
            os._exit(0 if kept[0].sum() > 0 else 1)
        assert os.waitpid(child, 0)[1] == 0
        """
    )
