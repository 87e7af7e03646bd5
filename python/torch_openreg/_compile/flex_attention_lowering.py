# SPDX-License-Identifier: BSD-3-Clause
"""Lowers FlexAttention for openreg: as the plain operators of PyTorch's own formulation, which Inductor then fuses.

Inductor has templates for it, of Triton and of C++ for the CPU's forward alone. Used by lowerings.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from _torch_openreg_device_name import device_name
from torch._higher_order_ops.flex_attention import (
    flex_attention,
    flex_attention_backward,
    sdpa_dense,
    sdpa_dense_backward,
)
from torch._inductor import lowering
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.virtualized import V
from torch._subclasses.functional_tensor import dispatch_functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

_NAME = device_name()


def _backward(*arguments: Any) -> Any:
    """With the gradients of all that a function of scores has captured: it is not known here which are wanted."""
    *others, of_scores, of_masks = arguments
    with torch.no_grad():
        captured = [
            one.detach().requires_grad_(one.is_floating_point()) if isinstance(one, torch.Tensor) else one
            for one in of_scores
        ]
        return sdpa_dense_backward(*others, tuple(captured), of_masks)


def _in_plain_operators(dense: Callable[..., Any]) -> Callable[..., Any]:
    def lower(query: Any, *args: Any, **kwargs: Any) -> Any:
        if query.get_device().type != _NAME:
            return None  # which leaves it to Inductor
        node = V.graph.current_node
        nodes, spec = pytree.tree_flatten((node.args, node.kwargs))
        values, _ = pytree.tree_flatten(((query, *args), kwargs))
        inputs = []
        for i, each in enumerate(nodes):
            if isinstance(each, torch.fx.Node):
                subgraph = getattr(V.graph.module, str(each.target), None) if each.op == "get_attr" else None
                is_input = not isinstance(subgraph, torch.nn.Module)
                inputs += [i] if is_input else []
                nodes[i] = each.meta["val"] if is_input else subgraph

        def on_inputs(*given: Any) -> Any:
            for i, value in zip(inputs, given, strict=True):
                nodes[i] = value
            of_positions, of_names = pytree.tree_unflatten(nodes, spec)
            return dense(*of_positions, **of_names)

        with V.fake_mode:
            graph = make_fx(dispatch_functionalize(on_inputs), select_decomp_table())(*[nodes[i] for i in inputs])
        for constant in graph.graph.find_nodes(op="get_attr"):
            name = V.graph.qualify_name(f"{node.name}{constant.target}")
            setattr(V.graph.module, name, getattr(graph, constant.target))
            constant.target = name
        return lowering.process_subgraph_nodes(graph, [values[i] for i in inputs])

    return lower


FLEX_ATTENTION = {
    flex_attention: _in_plain_operators(sdpa_dense),
    flex_attention_backward: _in_plain_operators(_backward),
}
