# SPDX-License-Identifier: BSD-3-Clause
"""Layers and operators in graphs: a replay gives what the eager call gives."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch
from capturing import captured
from finished import finished
from torch import nn

D = "openreg"


HALF = (torch.bfloat16, torch.float16)
ALL = (torch.float32, *HALF)


def indices(*sizes: int) -> torch.Tensor:
    return torch.arange(torch.Size(sizes).numel()).reshape(sizes) * 7 % 9


# Those whose kernels return for a CPU what they don't for a GPU.
LAYERS = {
    "LayerNorm": (lambda: nn.LayerNorm(8), (4, 8), ALL),
    "LayerNorm without parameters": (lambda: nn.LayerNorm((6, 8), elementwise_affine=False), (4, 6, 8), ALL),
    "LayerNorm without a bias": (lambda: nn.LayerNorm(8, bias=False), (4, 8), ALL),
    "GroupNorm": (lambda: nn.GroupNorm(2, 8), (4, 8, 3), ALL),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(8), (4, 8), ALL),
    "BatchNorm1d.eval()": (lambda: nn.BatchNorm1d(8).eval(), (4, 8), ALL),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(8, affine=False), (4, 8, 3, 3), ALL),
    "InstanceNorm1d": (lambda: nn.InstanceNorm1d(8, affine=True), (4, 8, 6), ALL),
    "EmbeddingBag, sum": (lambda: nn.EmbeddingBag(9, 8, mode="sum"), indices(4, 3), ALL),
    "EmbeddingBag, mean": (lambda: nn.EmbeddingBag(9, 8, padding_idx=2), indices(4, 3), ALL),
    "EmbeddingBag, max": (lambda: nn.EmbeddingBag(9, 8, mode="max"), indices(4, 3), ALL),
    "LSTM": (lambda: nn.LSTM(8, 5, 2, bidirectional=True), (4, 2, 8), (torch.float32, torch.bfloat16)),
    "LSTM.eval()": (lambda: nn.LSTM(8, 5, batch_first=True).eval(), (4, 2, 8), (torch.float32, torch.bfloat16)),
    "GRU": (lambda: nn.GRU(8, 5), (4, 2, 8), (torch.float32, torch.bfloat16)),
    "a norm of wider parameters": (lambda: nn.LayerNorm(8).float(), (4, 8), HALF),
}


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
@pytest.mark.parametrize(
    ("name", "dtype"), [(name, dtype) for name, (_, _, dtypes) in LAYERS.items() for dtype in dtypes], ids=str
)
def test_a_layer_and_its_gradients(name: str, dtype: torch.dtype) -> None:
    "Forward and backward of a layer, replayed, are the eager ones, in types of half precision, too."
    make, given, _ = LAYERS[name]
    torch.manual_seed(0)
    layer = make().to(D)
    if "wider" not in name:
        layer = layer.to(dtype)
    eager = copy.deepcopy(layer)
    x = (given if isinstance(given, torch.Tensor) else torch.randn(given).to(dtype)).to(D)

    def work(layer: nn.Module) -> list[torch.Tensor]:
        inputs = x.detach().clone().requires_grad_(x.is_floating_point())
        wanted = [tensor for tensor in (*layer.parameters(), inputs) if tensor.requires_grad]
        out = layer(inputs)
        out = out[0] if isinstance(out, tuple) else out
        return [out, *torch.autograd.grad(out.float().square().sum(), wanted)]

    expected = [tensor.detach().clone() for tensor in work(eager)]
    graph, results = captured(lambda: work(layer), stream=torch.openreg.Stream())
    for _ in range(2):
        graph.replay()
        torch.testing.assert_close([result.detach() for result in results], expected, rtol=0, atol=0)


def test_operators_of_the_databases(root: Path) -> None:
    "A part of PyTorch's databases, forward, backward, in place, in three layouts, on changed inputs; `make opinfo-captured`."
    finished(
        [
            *(sys.executable, str(root / "tests/opinfo/run.py"), "--kind", "captured", "--ways", "aliased"),
            *("--databases", "op", "module", "foreach", "--dtypes", "float32", "bfloat16", "complex64", "int64"),
            *("--every", "31", "--samples", "1", "--jobs", "1"),
        ]
    )
