# SPDX-License-Identifier: BSD-3-Clause
"""Has Dynamo see the devices as the code does that it traces, while "cuda" means openreg. Imported after Dynamo."""

from __future__ import annotations

from typing import Any

import torch
from _torch_openreg_device_name import device_name
from torch._dynamo import eval_frame, trace_rules
from torch._dynamo.source import AttrSource, ImportSource
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
    in_graph_function: Any = TorchInGraphFunctionVariable
    # Since 2.15 Dynamo calls the first, which returns a constant of its own.
    getattr_name = "tp_getattro_impl" if hasattr(constant, "tp_getattro_impl") else "const_getattr"
    attribute, lookup_callable, is_cuda, as_constant = (
        getattr(constant, getattr_name),
        trace_rules.lookup_callable,
        tensor.method_attr_is_cuda,
        user.as_python_constant,
    )
    handlers = in_graph_function._get_handlers()
    module_real = cuda_to_openreg.get_device_module.__wrapped__  # type: ignore[attr-defined]

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

    def device_module(self: Any, tx: Any, *arguments: Any, **keywords: Any) -> Any:
        given = [*arguments, *keywords.values()]
        if all(one.is_python_constant() and one.as_python_constant() is None for one in given):
            arguments, keywords = (constant.create(device_name()),), {}  # without one Dynamo compares what guards get
        found = handlers[module_real](self, tx, *arguments, **keywords)
        if found.value is torch.openreg and cuda_to_openreg.is_outside(str(tx.f_globals.get("__name__", ""))):
            return VariableTracker.build(tx, torch.cuda, AttrSource(ImportSource("torch"), "cuda"))
        return found

    def as_class(self: Any) -> Any:
        is_facade = isinstance(self.value, cuda_to_openreg.Facade)  # where isinstance() asks
        return self.value.__wrapped__ if is_facade else as_constant(self)

    user.as_python_constant = as_class
    setattr(constant, getattr_name, named)
    trace_rules.lookup_callable = in_graph
    tensor.method_attr_is_cuda = is_cuda_or_openreg
    handlers[cuda_to_openreg.get_device_module] = device_module
    # Dynamo takes an autocast that is still without attributes for one that it can enter.
    eval_frame.skip_code(cuda_to_openreg.autocast_init.__code__)
