# SPDX-License-Identifier: BSD-3-Clause
"""Fake tensors, which torch.compile works with, come out of operators as real ones do.

``run.py --kind fake`` of tests/opinfo compares every operator.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map_only

from torch_openreg._integration import fake_tensors

DEV = "openreg:1"


def statistics(x: torch.Tensor, operator: Any) -> Any:
    c = x.shape[1]
    ones, zeros = torch.ones(c, device=x.device), torch.zeros(c, device=x.device)
    return operator(x, ones, zeros, zeros, ones, False, 0.1, 1e-5)


IMAGE, SQUARE = torch.arange(96.0).reshape(2, 3, 4, 4), torch.arange(16.0).reshape(4, 4)
CALLS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "nonzero_static": (lambda x: torch.nonzero_static(x, size=5), (torch.tensor([[1.0, 0.0], [1.0, 1.0]]),)),
    "native_batch_norm": (lambda x: statistics(x, torch.native_batch_norm), (IMAGE,)),
    "_native_batch_norm_legit": (lambda x: statistics(x, torch._native_batch_norm_legit), (IMAGE,)),
    "embedding_bag": (
        lambda w, i, o: torch.ops.aten._embedding_bag(w, i, o, False, 0),
        (torch.ones(4, 3), torch.tensor([0, 1, 2, 3]), torch.tensor([0, 2])),
    ),
    "layer_norm of half": (
        lambda x: torch.native_layer_norm(x, [4], None, None, 1e-5),
        (IMAGE.to(torch.bfloat16),),
    ),
    "group_norm": (
        lambda x, w: torch.native_group_norm(x, w, w, 2, 3, 16, 3, 1e-5),
        (IMAGE, torch.ones(3)),
    ),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), (torch.ones(1, 4, 2, 2).to(memory_format=torch.channels_last),)),
    "histc": (lambda x: torch.histc(x, 4), (torch.arange(8.0),)),
    "arithmetic": (lambda x: (x + 1) * x.sum(0), (SQUARE,)),
    "matmul": (lambda x: x @ x.t(), (SQUARE,)),
    "factory": (lambda x: torch.zeros_like(x, dtype=torch.int64) + torch.arange(4, device=x.device), (SQUARE,)),
    "view": (lambda x: x.reshape(-1)[::2].unsqueeze(0).expand(3, -1), (SQUARE,)),
    "index": (lambda x: x[torch.arange(0, 4, 2, device=x.device)], (SQUARE,)),
    "where": (lambda x: torch.where(x > 0, x, -x), (SQUARE,)),
    "sort": (lambda x: x.sort(dim=1).indices, (SQUARE,)),
    "convolution": (lambda x: F.conv1d(x[None], torch.ones(2, 4, 3, device=x.device), padding=1), (SQUARE,)),
    "attention": (lambda x: F.scaled_dot_product_attention(*[x.reshape(1, 1, 4, 4)] * 3), (SQUARE,)),
    "to the host": (lambda x: x.cpu() * 2, (SQUARE,)),
    "to another device": (lambda x: x.to("openreg:0"), (SQUARE,)),
    "norm": (lambda x: F.layer_norm(x, (4,)), (SQUARE,)),
    "dropout": (lambda x: F.dropout(x, 0.5), (SQUARE,)),
    "random numbers": (lambda x: torch.randn(4, 4, device=x.device), (SQUARE,)),
}


def shown(results: Any) -> list[Any]:
    results = results if isinstance(results, (tuple, list)) else [results]
    return [(tuple(r.shape), r.stride(), r.dtype, r.device) for r in results]


# fake tensors tell of shape, strides, dtype and device what the real ones would have, and take no memory
@pytest.mark.parametrize("name", CALLS)
def test_fake_equals_real(name: str) -> None:
    function, arguments = CALLS[name]
    arguments = tuple(a.to(DEV) for a in arguments)
    mode = FakeTensorMode()
    fakes = tree_map_only(torch.Tensor, mode.from_tensor, arguments)
    before = torch.openreg.memory_stats(DEV)["allocation.all.allocated"]
    with mode:
        fake = function(*fakes)
    assert torch.openreg.memory_stats(DEV)["allocation.all.allocated"] == before
    assert all(isinstance(made, FakeTensor) for made in tree_leaves(fake))
    assert shown(fake) == shown(function(*arguments))
    assert all(f.device == torch.device(DEV) for f in fakes)


# a traced program sees the strides that its results have
def test_compiled() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.nonzero_static(x, size=5).t().contiguous().view(-1)

    x = torch.tensor([[1.0, 0.0], [1.0, 1.0]], device=DEV)
    compiled = torch.compile(function, backend="aot_eager")
    assert torch.equal(compiled(x), function(x))


def _mentions_cpu(code: types.CodeType) -> bool:
    return any(
        constant == "cpu"
        or (isinstance(constant, tuple) and "cpu" in constant)
        or (isinstance(constant, types.CodeType) and _mentions_cpu(constant))
        for constant in code.co_consts
    )


def _rules_that_ask() -> Iterator[str]:
    from torch._decomp import meta_table

    for operator, rule in meta_table.items():
        plain = inspect.unwrap(rule)
        if not isinstance(plain, types.FunctionType):
            continue
        called = [plain, *(plain.__globals__.get(n) for n in plain.__code__.co_names)]
        if any(isinstance(f, types.FunctionType) and _mentions_cpu(f.__code__) for f in called if f is not None):
            yield operator.name().removeprefix("aten::").split(".")[0]


# Their rules name the CPU for other reasons: scalars, checks, and transforms that are the same for all but CUDA.
HARMLESS = {"_fft_c2c", "_scaled_mm", "_scaled_mm_v2", "masked_fill", "masked_fill_"}


# no rule of this version of PyTorch asks for the CPU without openreg being shown as one
def test_the_list_is_whole() -> None:
    asking = set(_rules_that_ask())
    assert "nonzero_static" in asking
    known = {*fake_tensors._BY_DEVICE, *HARMLESS}
    assert asking - known == set()


# a fake result of a factory that names no index is on the current device, whichever was current at the call before
def test_a_factory_under_another_current_device() -> None:
    before = torch.openreg.current_device()
    try:
        for index in (0, 1, 0):
            torch.openreg.set_device(index)
            with FakeTensorMode():
                made = torch.zeros(3, device="openreg")
                assert made.device == torch.empty_like(made.cpu(), device="openreg").device
                assert made.device == torch.device("openreg", index)
    finally:
        torch.openreg.set_device(before)
