# SPDX-License-Identifier: BSD-3-Clause
"""Graphs of Transformers' models: a block that is trained, and a decode step with a static cache."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, StaticCache

D = "openreg"

pytestmark = pytest.mark.skipif(
    not hasattr(torch._C, "_acceleratorGraph"), reason="PyTorch has graphs of accelerators since 2.13"
)


class Block(torch.nn.Module):
    """A block of GPT-2, of which graphs want tensors alone."""

    def __init__(self, block: torch.nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns the hidden states behind the block."""
        result = self.block(hidden)
        return result[0] if isinstance(result, tuple) else result


def test_make_graphed_callables_on_a_block() -> None:
    "GPT-2's block, forward and backward as graphs, trains as it does eagerly."
    torch.manual_seed(0)
    config = GPT2Config(
        n_embd=16, n_head=2, n_layer=1, vocab_size=32, n_positions=16, resid_pdrop=0, attn_pdrop=0, embd_pdrop=0
    )
    eager = Block(GPT2LMHeadModel(config).transformer.h[0]).to(D).train()
    graphed = copy.deepcopy(eager)
    run = torch.openreg.make_graphed_callables(graphed, (torch.randn(2, 6, 16, device=D, requires_grad=True),))
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (eager, graphed)]
    for _ in range(3):
        data, results = torch.randn(2, 6, 16).to(D), []
        for module, optimizer in zip((eager, run), optimizers, strict=True):
            x = data.clone().requires_grad_()
            optimizer.zero_grad(set_to_none=True)
            out = module(x)
            out.square().sum().backward()
            optimizer.step()
            results.append((out.detach().clone(), x.grad.clone()))
        torch.testing.assert_close(results[0], results[1])
    torch.testing.assert_close(eager.state_dict(), graphed.state_dict())


def test_a_captured_decode_step() -> None:
    "With a static cache the step of one token is captured once; its replays give the words that generate() gives."
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=50, num_key_value_heads=2, **sizes)).eval()
    words = torch.tensor([[1, 5, 9, 3]])
    expected = model.generate(words, max_new_tokens=8, do_sample=False, pad_token_id=0)
    model.to(D)
    cache = StaticCache(config=model.config, max_batch_size=1, max_cache_len=16, device=D, dtype=torch.float32)

    def step(given: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        options: dict[str, Any] = {"past_key_values": cache, "use_cache": True}
        logits = model(given, cache_position=position, position_ids=position[None], **options).logits
        return logits[:, -1:].argmax(-1)

    with torch.no_grad():
        made = [step(words.to(D), torch.arange(4, device=D))]
        token, position = made[0].clone(), torch.tensor([4], device=D)
        side = torch.openreg.Stream()
        side.wait_stream(torch.openreg.current_stream())
        with torch.openreg.stream(side):  # warm; it writes what the first replay writes
            step(token, position)
        torch.openreg.current_stream().wait_stream(side)
        graph = torch.openreg.OpenRegGraph()
        with torch.openreg.graph(graph, stream=side):
            following = step(token, position)
        for _ in range(7):
            graph.replay()
            made.append(following.clone())
            token.copy_(following)
            position.add_(1)
    assert torch.equal(torch.cat([words, *(each.cpu() for each in made)], 1), expected)
