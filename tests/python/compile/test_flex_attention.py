# SPDX-License-Identifier: BSD-3-Clause
"""FlexAttention, forward and backward, eager and compiled, against softmax(q @ k) @ v as it is written down here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

LENGTH = 40


def causal(b: Any, h: Any, i: Any, j: Any) -> Any:
    return i >= j


def inputs(key_heads: int = 2, queries: int = LENGTH) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = ((2, 4, queries, 8), (2, key_heads, LENGTH, 8), (2, key_heads, LENGTH, 8))
    return [torch.randn(shape).to("openreg").requires_grad_() for shape in shapes]


def written_down(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, bias: Any = 0) -> torch.Tensor:
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + bias
    return scores.masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num() @ v


def with_gradients(result: torch.Tensor, wanted: list[torch.Tensor]) -> list[torch.Tensor]:
    weights = torch.linspace(-1, 1, result.numel(), device=result.device).view_as(result)
    return [result.detach(), *torch.autograd.grad((result * weights).sum(), wanted)]


@pytest.fixture(params=["eager", "aot_eager", "inductor"])
def compiler(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    way = request.param
    return lambda function: function if way == "eager" else torch.compile(function, backend=way, fullgraph=True)


def test_masks_scores_and_heads(compiler: Callable[[Any], Any]) -> None:
    """Fewer heads of keys than of queries, a mask by captured documents, a captured bias that has a gradient."""
    tensors = inputs()
    documents = (torch.arange(LENGTH) // 13).to("openreg")
    bias = torch.randn(4, LENGTH, generator=torch.Generator().manual_seed(1)).to("openreg").requires_grad_()

    def in_a_document(b: Any, h: Any, i: Any, j: Any) -> Any:
        return causal(b, h, i, j) & (documents[i] == documents[j])

    def biased(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return score + bias[h, j]

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return flex_attention(q, k, v, score_mod=biased, block_mask=blocks, enable_gqa=True)

    blocks = create_block_mask(in_a_document, None, None, LENGTH, LENGTH, device="openreg", BLOCK_SIZE=16)
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device="openreg").tril()
    mask &= documents[:, None] == documents
    found = with_gradients(compiler(attend)(*tensors), [*tensors, bias])
    expected = with_gradients(written_down(*tensors, mask, bias[:, None]), [*tensors, bias])
    torch.testing.assert_close(found, expected)


def test_a_step_of_decoding(compiler: Callable[[Any], Any]) -> None:
    """One query, no gradients, and the logarithms of the sums."""
    q, k, v = (x.detach() for x in inputs(queries=1))

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return flex_attention(q, k, v, return_lse=True, enable_gqa=True)

    found, sums = compiler(attend)(q, k, v)
    torch.testing.assert_close(found, written_down(q, k, v, torch.ones(1, LENGTH, dtype=torch.bool, device="openreg")))
    scores = q @ k.repeat_interleave(2, 1).transpose(-1, -2) / 8**0.5
    torch.testing.assert_close(sums, scores.logsumexp(-1))


def test_lengths_that_differ() -> None:
    """One compiled function for all."""
    compiled = torch.compile(flex_attention, dynamic=True, fullgraph=True)
    for length in (24, 40, 56):
        q = torch.randn(1, 2, length, 8, device="openreg")
        torch.testing.assert_close(compiled(q, q, q), flex_attention(q, q, q))


def test_autocast(compiler: Callable[[Any], Any]) -> None:
    tensors = inputs(key_heads=4)
    with torch.autocast("openreg", dtype=torch.bfloat16):
        result = compiler(lambda q, k, v: flex_attention(q, k, v))(*tensors)
    assert result.dtype == torch.bfloat16
    everything = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device="openreg")
    expected = written_down(*(x.bfloat16().float() for x in tensors), everything)
    torch.testing.assert_close(result.float(), expected, rtol=0.02, atol=0.02)
    assert [gradient.dtype for gradient in torch.autograd.grad(result.sum(), tensors)] == [torch.float32] * 3


def test_other_devices_are_asked_as_before() -> None:
    q = torch.randn(1, 2, 16, 8, requires_grad=True)
    with pytest.raises(NotImplementedError, match="backward on CPU"):
        flex_attention(q, q, q)
    meta = q.to("meta")
    with pytest.raises(ValueError, match="FlexAttention is only supported on"):
        flex_attention(meta, meta, meta)
