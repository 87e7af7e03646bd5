# SPDX-License-Identifier: BSD-3-Clause
"""Operators, higher-order operators and layers compiled by Inductor, on the device and on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from checks import Body, Call, gradients_of, shared_memory
from entries import Entry
from layer_calls import LayerCall, operator_of
from torch._dynamo.utils import counters
from torch._inductor import metrics

from torch_openreg_lab.check.paired_tensors import tensors_of


def compiled(entry: Entry) -> Body:
    """Results, what they share memory with, gradients, the arguments afterwards; how many graphs and kernels there were.

    As many kernels as on the CPU: what is fused there is fused here.
    """
    operator = operator_of(entry)

    def body(call: Call) -> Any:
        torch._dynamo.reset()
        counters.clear()
        metrics.reset()
        result = call(torch.compile(lambda *args, **kwargs: operator(*args, **kwargs)))
        shared = shared_memory(result, call.all)
        results = [r for r in tensors_of(call.process(result)) if r.requires_grad and r.layout == torch.strided]
        differentiable = [r for r in results if r.dtype.is_floating_point or r.dtype.is_complex]
        gradients = gradients_of(differentiable, call.differentiable)[0] if differentiable else []
        made = counters["stats"]["unique_graphs"], metrics.generated_kernel_count
        after = call.input if call.keep and not isinstance(call, LayerCall) else call.all
        return result, shared, gradients, after, made

    return body
