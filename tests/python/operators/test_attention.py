# SPDX-License-Identifier: BSD-3-Clause
"""Scaled dot product attention under each choice of kernel, and the layers built on it, against the CPU."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from comparing import assert_same, drawn_by_seed
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close

DEV = "openreg:1"

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def heads(*shape: int) -> list[torch.Tensor]:
    return [torch.randn(*shape) for _ in range(3)]


def attend(device: str, tensors: list[torch.Tensor], **settings: Any) -> list[torch.Tensor]:
    """The result and the three gradients."""
    moved = [t.to(device, copy=True).requires_grad_() for t in tensors]
    mask = settings.pop("attn_mask", None)
    result = F.scaled_dot_product_attention(*moved, attn_mask=None if mask is None else mask.to(device), **settings)
    (result.float() * torch.linspace(0, 1, result.numel()).reshape(result.shape).to(device)).sum().backward()
    return [result, *(t.grad for t in moved)]


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "mask": {"attn_mask": torch.ones(6, 6, dtype=torch.bool).tril()},
    "bias": {"attn_mask": torch.linspace(-1, 1, 36).reshape(6, 6)},
    "scale": {"scale": 0.3},
}


# whichever kernel the caller allows, as long as one is there: the same numbers as on the CPU with that choice
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("choice", ["default", "math", "flash or math", "efficient or math", "overrideable or math"])
def test_attention_equals_the_cpu(choice: str, case: str, dtype: torch.dtype) -> None:
    backends = {
        "math": [SDPBackend.MATH],
        "flash or math": [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH],
        "efficient or math": [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH],
        "overrideable or math": [SDPBackend.OVERRIDEABLE, SDPBackend.MATH],
        "default": [backend for backend in SDPBackend.__members__.values() if backend != SDPBackend.ERROR],
    }[choice]
    tensors = [t.to(dtype) for t in heads(2, 2, 6, 8)]
    settings = CASES[case]
    if "attn_mask" in settings and settings["attn_mask"].is_floating_point():
        settings = {"attn_mask": settings["attn_mask"].to(dtype)}
    with sdpa_kernel(SDPBackend.MATH):
        expected = attend("cpu", tensors, **settings)
    with sdpa_kernel(backends):
        got = attend(DEV, tensors, **settings)
    assert {t.dtype for t in got} == {dtype}
    # Kernels differ in where they round.
    assert_same(got, expected, **({"rtol": 5e-2, "atol": 5e-2} if dtype == torch.bfloat16 else {}))


# fewer heads of keys than of queries, and other lengths of keys
def test_grouped_queries_equal_the_cpu() -> None:
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 7, 8), torch.randn(2, 2, 7, 8)
    assert_same(attend(DEV, [q, k, v], enable_gqa=True), attend("cpu", [q, k, v], enable_gqa=True))


# dropout draws on the device by the device's seed
def test_dropout_in_attention() -> None:
    tensors = [t.to(DEV) for t in heads(2, 2, 16, 8)]
    drawn_by_seed(lambda: F.scaled_dot_product_attention(*tensors, dropout_p=0.5))


def layers() -> dict[str, nn.Module]:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
    return {"layer": layer, "encoder": nn.TransformerEncoder(layer, 2, enable_nested_tensor=True)}


PADDING = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])


# evaluation takes the fast path: one operator a layer, over nested tensors where positions are padded
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("kind", ["layer", "encoder"])
def test_the_fast_path_of_encoders(kind: str, padded: bool) -> None:
    cpu = layers()[kind].eval()
    there = copy.deepcopy(cpu).to(DEV)
    x = torch.randn(2, 5, 16)
    mask = PADDING if padded else None
    with torch.no_grad():
        expected = cpu(x, src_key_padding_mask=mask)
        torch.openreg.set_operator_details(True)
        torch.openreg.reset_operator_stats()
        try:
            got = there(x.to(DEV), src_key_padding_mask=None if mask is None else mask.to(DEV))
            stats = torch.openreg.operator_stats()
        finally:
            torch.openreg.set_operator_details(False)
    assert_same(got, expected)
    assert "aten::_transformer_encoder_layer_fwd" in stats["aliased"] | stats["staged"]


# the fast path's numbers are those of the path that training takes
def test_evaluation_equals_training_without_dropout() -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), 2).to(DEV)
    x, mask = torch.randn(2, 5, 16, device=DEV), PADDING.to(DEV)
    slow = model.train()(x, src_key_padding_mask=mask)
    with torch.no_grad():
        fast = model.eval()(x, src_key_padding_mask=mask)
    keep = ~mask
    assert_close(fast[keep], slow[keep].detach(), rtol=1e-4, atol=1e-5)


# attention with weights, without, over other dimensions, with masks of both kinds
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("settings", [{}, {"kdim": 6, "vdim": 4}, {"add_bias_kv": True, "add_zero_attn": True}])
@pytest.mark.parametrize("need_weights", [True, False])
def test_multihead_attention_equals_the_cpu(settings: dict[str, Any], need_weights: bool, training: bool) -> None:
    cpu = nn.MultiheadAttention(8, 2, batch_first=True, **settings).train(training)
    there = copy.deepcopy(cpu).to(DEV)
    q = torch.randn(2, 5, 8)
    k, v = (torch.randn(2, 5, settings.get(name, 8)) for name in ("kdim", "vdim"))
    causal = torch.ones(5, 5, dtype=torch.bool).triu(1)
    results = []
    for model, device in ((cpu, "cpu"), (there, DEV)):
        inputs = [t.to(device, copy=True).requires_grad_(training) for t in (q, k, v)]
        with torch.set_grad_enabled(training):
            made, weights = model(
                *inputs, key_padding_mask=PADDING.to(device), attn_mask=causal.to(device), need_weights=need_weights
            )
        parts = [made] if weights is None else [made, weights]
        if training:
            made.square().sum().backward()
            parts += [t.grad for t in inputs] + [p.grad for p in model.parameters()]
        results.append(parts)
    assert_same(results[1], results[0], rtol=1e-4, atol=1e-5)
    if not training and not settings:
        with torch.no_grad():
            assert_same(there(*[q.to(DEV)] * 3, need_weights=False)[0], cpu(q, q, q, need_weights=False)[0])


# a vectorised call computes what single calls do, and gradients of single samples exist
@pytest.mark.parametrize("backends", [None, [SDPBackend.MATH]])
def test_vectorised(backends: list[SDPBackend] | None) -> None:
    query = torch.randn(2, 3, 4, 8, 8, device=DEV)

    with contextlib.nullcontext() if backends is None else sdpa_kernel(backends):
        got = torch.func.vmap(F.scaled_dot_product_attention)(query, query, query)
    expected = torch.stack([F.scaled_dot_product_attention(q, q, q) for q in query])
    assert_close(got, expected)


# the kernel of this device by its own name
def test_the_overrideable_backend() -> None:
    query = torch.randn(2, 4, 8, 8, device=DEV)
    with sdpa_kernel(SDPBackend.OVERRIDEABLE):
        got = F.scaled_dot_product_attention(query, query, query)
    assert_close(got, F.scaled_dot_product_attention(query, query, query))
