# SPDX-License-Identifier: BSD-3-Clause
"""Has Dynamo see the devices as the code does that it traces, while "cuda" means openreg. Imported after Dynamo."""

from __future__ import annotations

from typing import Any

import torch
from _torch_openreg_device_name import device_name
from torch._dynamo import trace_rules
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.tensor import TensorVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

from torch_openreg.contrib import cuda_to_openreg


def register() -> None:
    """Wraps what answers for a device and for PyTorch's factories. Once in a process."""
    constant: Any = ConstantVariable
    tensor: Any = TensorVariable
    const_getattr, lookup_callable, is_cuda = (
        constant.const_getattr,
        trace_rules.lookup_callable,
        tensor.method_attr_is_cuda,
    )

    def named(self: Any, tx: Any, name: str) -> Any:
        found = const_getattr(self, tx, name)
        if name != "type" or not isinstance(self.value, torch.device) or not cuda_to_openreg.is_enabled():
            return found
        outside = cuda_to_openreg.is_outside(str(tx.f_globals.get("__name__", "")))
        return "cuda" if outside and found == device_name() else found

    def in_graph(function: Any) -> Any:
        if isinstance(function, cuda_to_openreg.Factory):
            return TorchInGraphFunctionVariable
        return lookup_callable(function)

    def is_cuda_or_openreg(self: Any, tx: Any) -> Any:
        if cuda_to_openreg.is_enabled() and self.device is not None and self.device.type == device_name():
            return VariableTracker.build(tx, True)
        return is_cuda(self, tx)

    constant.const_getattr = named
    trace_rules.lookup_callable = in_graph
    tensor.method_attr_is_cuda = is_cuda_or_openreg
