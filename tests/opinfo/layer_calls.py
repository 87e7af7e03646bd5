# SPDX-License-Identifier: BSD-3-Clause
"""Calls of an entry, where that may be a layer of ``torch.nn``."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from checks import Call, call_of, samples_of
from entries import Entry
from torch.testing._internal.common_modules import ModuleInfo

from torch_openreg_lab.check.paired_tensors import Mover


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


def operator_of(entry: Entry) -> Callable[..., Any]:
    """What is called with the input, or the layer, first."""
    return _call_layer if isinstance(entry.info, ModuleInfo) else entry.info.op


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
