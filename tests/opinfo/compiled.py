# SPDX-License-Identifier: BSD-3-Clause
"""Operators, higher-order operators and layers compiled by Inductor, on the device and on the CPU."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import torch
from checks import Body, Call, call_of, gradients_of, samples_of, shared_memory
from entries import Entry
from torch._dynamo.utils import counters
from torch._inductor import metrics
from torch.testing._internal.common_modules import ModuleInfo

from torch_openreg_lab.check.paired_tensors import Mover, tensors_of


@dataclasses.dataclass
class LayerCall(Call):
    """A call of a layer, which is its input."""

    def on(self, device: str) -> LayerCall:
        """A copy of the layer on the device, and the arguments too."""
        args, kwargs = Mover(device)((tuple(self.args), dict(self.kwargs)))
        return LayerCall(copy.deepcopy(self.input).to(device), args, kwargs)

    @property
    def all(self) -> tuple[Any, ...]:
        """Parameters, buffers and arguments."""
        return [*self.input.parameters()], [*self.input.buffers()], self.args, self.kwargs


def _call_layer(layer: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    return layer(*args, **kwargs)


def _layers(info: ModuleInfo, dtype: torch.dtype) -> Iterator[Call]:
    for training in (True, False) if info.train_and_eval_differ else (True,):
        cases = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training)
        for case in cases:
            if case.forward_input is not None:
                layer = info.module_cls(*case.constructor_input.args, **case.constructor_input.kwargs)
                layer.to(dtype).train(training)
                yield LayerCall(layer, case.forward_input.args, case.forward_input.kwargs)


def calls(entry: Entry, gradients: bool) -> list[Call]:
    """Calls of the operator or the layer, the first 200."""
    if isinstance(entry.info, ModuleInfo):
        torch.manual_seed(7)
        return list(itertools.islice(_layers(entry.info, entry.dtype), 200))
    return [call_of(sample) for sample in samples_of(entry, gradients)]


def compiled(entry: Entry) -> Body:
    """Results, what they share memory with, gradients, the arguments afterwards; how many graphs and kernels there were.

    As many kernels as on the CPU: what is fused there is fused here.
    """
    operator = _call_layer if isinstance(entry.info, ModuleInfo) else entry.info.op

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
