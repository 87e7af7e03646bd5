# SPDX-License-Identifier: BSD-3-Clause
"""What a capture makes has the sizes, types and strides that the eager call's results have, and a replay the same numbers."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.common_methods_invocations import op_db

D = "openreg"

pytestmark = pytest.mark.skipif(
    not hasattr(torch._C, "_acceleratorGraph"), reason="PyTorch has graphs of accelerators since 2.13"
)

HALF = (torch.bfloat16, torch.float16)
FLOAT = (torch.float32,)


def indices(*sizes: int) -> torch.Tensor:
    return torch.arange(torch.Size(sizes).numel()).reshape(sizes) * 7 % 9


# Those whose results differ between PyTorch's kernels for the CPU and for GPUs, or whose cells have no shape function.
LAYERS = {
    "LayerNorm": (lambda: nn.LayerNorm(8), (4, 8), (*FLOAT, *HALF)),
    "LayerNorm without parameters": (
        lambda: nn.LayerNorm((6, 8), elementwise_affine=False),
        (4, 6, 8),
        (*FLOAT, *HALF),
    ),
    "LayerNorm without a bias": (lambda: nn.LayerNorm(8, bias=False), (4, 8), (*FLOAT, *HALF)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 8), (4, 8, 3), (*FLOAT, *HALF)),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(8), (4, 8), (*FLOAT, *HALF)),
    "BatchNorm1d.eval()": (lambda: nn.BatchNorm1d(8).eval(), (4, 8), (*FLOAT, *HALF)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(8, affine=False), (4, 8, 3, 3), (*FLOAT, *HALF)),
    "InstanceNorm1d": (lambda: nn.InstanceNorm1d(8, affine=True), (4, 8, 6), (*FLOAT, *HALF)),
    "EmbeddingBag, sum": (lambda: nn.EmbeddingBag(9, 8, mode="sum"), indices(4, 3), (*FLOAT, *HALF)),
    "EmbeddingBag, mean": (lambda: nn.EmbeddingBag(9, 8, padding_idx=2), indices(4, 3), (*FLOAT, *HALF)),
    "EmbeddingBag, max": (lambda: nn.EmbeddingBag(9, 8, mode="max"), indices(4, 3), (*FLOAT, *HALF)),
    "LSTM": (lambda: nn.LSTM(8, 5, 2, bidirectional=True), (4, 2, 8), (*FLOAT, torch.bfloat16)),
    "LSTM.eval()": (lambda: nn.LSTM(8, 5, batch_first=True).eval(), (4, 2, 8), (*FLOAT, torch.bfloat16)),
    "GRU": (lambda: nn.GRU(8, 5), (4, 2, 8), (*FLOAT, torch.bfloat16)),
    "a norm of wider parameters": (lambda: nn.LayerNorm(8).float(), (4, 8), HALF),
}


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(name, dtype, marks=() if dtype is dtypes[0] or name == "LayerNorm" else pytest.mark.long)
        for name, (_, _, dtypes) in LAYERS.items()
        for dtype in dtypes
    ],
    ids=str,
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

    side, graph = torch.openreg.Stream(), torch.openreg.OpenRegGraph()
    # A capture runs an LSTM's cells. Where this processor has oneDNN's layers in bfloat16, they round in other places.
    with torch.backends.mkldnn.flags(enabled=dtype is not torch.bfloat16):
        expected = [tensor.detach().clone() for tensor in work(eager)]
        with torch.openreg.graph(graph, stream=side):
            results = work(layer)
    for _ in range(2):
        graph.replay()
        torch.testing.assert_close([result.detach() for result in results], expected)


# Operators that are asked for their shapes in C++ (shim/optional/graph/meta_kernels.cpp), as PyTorch's database of samples
# calls them.
NAMES = {
    *(
        "add",
        "sub",
        "mul",
        "div",
        "pow",
        "addcmul",
        "addcdiv",
        "lerp",
        "maximum",
        "minimum",
        "clamp",
        "clamp_min",
        "sigmoid",
    ),
    *(
        "tanh",
        "exp",
        "log",
        "log1p",
        "sqrt",
        "rsqrt",
        "neg",
        "reciprocal",
        "sin",
        "cos",
        "erf",
        "floor",
        "eq",
        "ne",
        "lt",
    ),
    *("le", "gt", "ge", "bitwise_and", "bitwise_or", "bitwise_not", "mm", "bmm", "addmm", "baddbmm", "softmax", "sum"),
    *(
        "mean",
        "amax",
        "amin",
        "argmax",
        "any",
        "all",
        "cumsum",
        "cat",
        "gather",
        "scatter",
        "scatter_add",
        "topk",
        "triu",
    ),
    *(
        "tril",
        "log_softmax",
        "max",
        "nn.functional.relu",
        "nn.functional.gelu",
        "nn.functional.silu",
        "nn.functional.elu",
    ),
    *("nn.functional.leaky_relu", "nn.functional.softplus", "nn.functional.hardsigmoid", "nn.functional.mish"),
    *("nn.functional.nll_loss", "nn.functional.mse_loss", "nn.functional.avg_pool2d", "nn.functional.max_pool2d"),
    *("nn.functional.layer_norm", "nn.functional.batch_norm", "nn.functional.embedding_bag", "nn.functional.threshold"),
}
SAMPLES = 8


def described(result: Any) -> Iterator[Any]:
    for tensor in result if isinstance(result, (tuple, list)) else (result,):
        yield tensor.shape, tensor.dtype, tensor.stride(), tensor.requires_grad


@pytest.mark.parametrize("info", [info for info in op_db if info.name in NAMES], ids=lambda info: info.formatted_name)
def test_results_are_those_of_eager_calls(info: Any) -> None:
    "Sizes, types, strides and numbers of PyTorch's samples, in and out of a graph."
    for dtype in (torch.float32, torch.int64, torch.bfloat16):
        if dtype not in info.dtypes:
            continue
        differentiated = dtype.is_floating_point and info.supports_autograd
        for count, sample in enumerate(info.sample_inputs(D, dtype, requires_grad=differentiated)):
            if count == SAMPLES:
                break
            torch.manual_seed(0)
            expected = info.op(sample.input, *sample.args, **sample.kwargs)
            graph = torch.openreg.OpenRegGraph()
            with torch.openreg.graph(graph):
                result = info.op(sample.input, *sample.args, **sample.kwargs)
            assert list(described(result)) == list(described(expected)), sample
            torch.manual_seed(0)
            graph.replay()
            torch.testing.assert_close(result, expected, equal_nan=True)
