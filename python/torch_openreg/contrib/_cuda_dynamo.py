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
from torch._dynamo.variables.user_defined import UserDefinedObjectVariable

from torch_openreg.contrib import cuda_to_openreg


def register() -> None:
    """Wraps what answers for a device and for PyTorch's factories. Once in a process."""
    constant: Any = ConstantVariable
    tensor: Any = TensorVariable
    user: Any = UserDefinedObjectVariable
    # Since 2.15 Dynamo calls the first, which returns a constant of its own.
    getattr_name = "tp_getattro_impl" if hasattr(constant, "tp_getattro_impl") else "const_getattr"
    attribute, lookup_callable, is_cuda, as_constant = (
        getattr(constant, getattr_name),
        trace_rules.lookup_callable,
        tensor.method_attr_is_cuda,
        user.as_python_constant,
    )

    def named(self: Any, tx: Any, name: str) -> Any:
        found = attribute(self, tx, name)
        if name != "type" or not isinstance(self.value, torch.device) or not cuda_to_openreg.is_enabled():
            return found
        outside = cuda_to_openreg.is_outside(str(tx.f_globals.get("__name__", "")))
        if not outside or self.value.type != device_name():
            return found
        return constant.create("cuda") if isinstance(found, constant) else "cuda"

    def in_graph(function: Any) -> Any:
        if isinstance(function, cuda_to_openreg.Factory):
            return TorchInGraphFunctionVariable
        return lookup_callable(function)

    def is_cuda_or_openreg(self: Any, tx: Any) -> Any:
        if cuda_to_openreg.is_enabled() and self.device is not None and self.device.type == device_name():
            return VariableTracker.build(tx, True)
        return is_cuda(self, tx)

    def as_class(self: Any) -> Any:
        is_facade = isinstance(self.value, cuda_to_openreg.Facade)  # where isinstance() asks
        return self.value.__wrapped__ if is_facade else as_constant(self)

    user.as_python_constant = as_class
    setattr(constant, getattr_name, named)
    trace_rules.lookup_callable = in_graph
    tensor.method_attr_is_cuda = is_cuda_or_openreg
