# SPDX-License-Identifier: BSD-3-Clause
"""Compiles graphs of devices that are GPUs of PyTorch's own: Inductor's code for the GPU, in Triton.

A graph is compiled with the GPU in the place of the openreg device. It runs inside of one operator, which shows it
openreg tensors as tensors of that GPU, on openreg's current stream, with memory from openreg's cache
(shim/optional/compile/compiled_graphs.h). Without Triton the graph's operators run as they are, as with
backend="aot_eager".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from _torch_openreg_device_name import device_name
from torch._dynamo.utils import detect_fake_mode
from torch._functorch import config as aot_config
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.utils import BoxedBool
from torch.fx import GraphModule
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.utils._pytree import tree_map_only
from torch.utils._triton import has_triton

from torch_openreg import _C_compile

_NAME = device_name()


def gpu_in(inputs: Sequence[Any]) -> tuple[int, torch.device] | None:
    """Returns the one openreg device of a graph's inputs and the GPU that it is; None if it is none.

    Args:
        inputs: Inputs of the graph, which may be fake.
    """
    indices = {value.device.index for value in inputs if isinstance(value, torch.Tensor) and value.device.type == _NAME}
    if len(indices) != 1:
        return None
    index = indices.pop()
    gpu = _C_compile._compiled_gpu_of(index)
    return None if gpu < 0 else (index, torch.device("cuda", gpu))


def _on_gpu(graph: GraphModule, inputs: Sequence[Any], gpu: torch.device) -> tuple[GraphModule, list[Any]]:
    # The same graph with the GPU in the place of openreg's device.
    def moved(device: torch.device) -> torch.device:
        return gpu if device.type == _NAME else device

    moved_graph = torch.fx.Graph()
    moved_graph.output(moved_graph.graph_copy(graph.graph, {}))
    copied = GraphModule(graph, moved_graph)
    for node in copied.graph.nodes:
        node.args = tree_map_only(torch.device, moved, node.args)
        node.kwargs = tree_map_only(torch.device, moved, node.kwargs)
    copied.recompile()
    mode = detect_fake_mode(inputs)
    assert mode is not None

    def fake(value: torch.Tensor) -> torch.Tensor:
        if value.device.type != _NAME:
            return value
        with mode:
            return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=gpu)

    fakes = [fake(value) if isinstance(value, torch.Tensor) else value for value in inputs]
    FakeTensorProp(copied, mode=mode).propagate_dont_convert_inputs(*fakes)
    return copied, fakes


def compile_on_gpu(
    graph: GraphModule, inputs: Sequence[Any], device: int, gpu: torch.device, settings: Mapping[str, Any]
) -> Any:
    """Compiles a graph of Dynamo's for a device that is a GPU.

    Args:
        graph: The graph.
        inputs: Example inputs of it.
        device: Index of the openreg device.
        gpu: The GPU that it is.
        settings: Inductor's configuration for this graph.
    """

    def inner(part: GraphModule, examples: Sequence[Any], **options: Any) -> Callable[[list[Any]], list[Any]]:
        on_gpu, fakes = _on_gpu(part, examples, gpu)
        run: Callable[[list[Any]], Sequence[Any]]
        if has_triton():
            run = compile_fx_inner(on_gpu, fakes, **{**options, "cudagraphs": BoxedBool(False)})
        else:

            def run(arguments: list[Any]) -> Sequence[Any]:
                return on_gpu(*arguments)

        def call(arguments: list[Any]) -> list[Any]:
            given = list(arguments)
            arguments.clear()
            # The operator runs on the device of its tensors: a graph without any has this one.
            given.append(torch.empty(0, device=torch.device(_NAME, device)))
            return _C_compile._compiled_run_whole(lambda shown: run(shown[:-1]), given, True, device, (), True)

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    with aot_config.patch(enable_autograd_cache=False):  # it caches Inductor's result, without the function around it
        # Without Triton decompositions gain nothing, and some of them query whether torch.cuda is available.
        return compile_fx(
            graph,
            inputs,
            inner_compile=inner,
            # CUDA's graphs would keep memory of PyTorch's own.
            config_patches={**settings, "triton.cudagraphs": False},
            decompositions=None if has_triton() else {},
        )
