# SPDX-License-Identifier: BSD-3-Clause
"""Has Dynamo see the devices as the code does that it traces, while "cuda" means openreg. Imported after Dynamo."""

from __future__ import annotations

import operator
from typing import Any

import torch
from _torch_openreg_device_name import device_name
from torch._dynamo import eval_frame, trace_rules
from torch._dynamo.source import AttrSource, ImportSource
from torch._dynamo.utils import common_constant_types
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.builtin import BuiltinVariable
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.tensor import TensorVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable, constant_fold_functions
from torch._dynamo.variables.user_defined import UserDefinedObjectVariable

from torch_openreg.contrib import cuda_to_openreg
from torch_openreg.contrib._cuda_persona import CudaDeviceProperties

_TEXTS = (str, repr, ascii, format, str.format, operator.mod)  # f"{device}" is str.format() up to 2.13
# Devices ask for the module of the code that runs.
_call_from_outside = eval("lambda function, *arguments, **keywords: function(*arguments, **keywords)", {"__name__": ""})


def _is_outside(tx: Any) -> bool:
    """Whether the code that is traced sees CUDA's devices."""
    return cuda_to_openreg.is_enabled() and cuda_to_openreg.is_outside(str(tx.f_globals.get("__name__", "")))


def _has_device(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(map(_has_device, value))
    return isinstance(value, torch.device) and value.type == device_name()


def register() -> None:
    """Wraps what answers for a device and for PyTorch's factories. Once in a process."""
    constant: Any = ConstantVariable
    tensor: Any = TensorVariable
    user: Any = UserDefinedObjectVariable
    builtin: Any = BuiltinVariable
    in_graph_function: Any = TorchInGraphFunctionVariable
    # Since 2.15 Dynamo calls the first, which returns a constant of its own.
    getattr_name = "tp_getattro_impl" if hasattr(constant, "tp_getattro_impl") else "const_getattr"
    attribute, lookup_callable, is_cuda, tensor_type, as_constant, call = (
        getattr(constant, getattr_name),
        trace_rules.lookup_callable,
        tensor.method_attr_is_cuda,
        tensor.method_type,
        user.as_python_constant,
        builtin.call_function,
    )
    text: Any = getattr(constant, "tp_str_impl", None)  # since 2.14, of f"{device}"
    handlers = in_graph_function._get_handlers()
    of_device_module: Any = cuda_to_openreg.get_device_module
    start_autocast: Any = cuda_to_openreg.autocast_init

    def attribute_named(self: Any, tx: Any, name: str) -> Any:
        found = attribute(self, tx, name)
        if name != "type" or not _has_device(self.value) or not _is_outside(tx):
            return found
        return constant.create("cuda") if isinstance(found, constant) else "cuda"

    def call_text(self: Any, tx: Any, arguments: Any, keywords: Any) -> Any:
        given = [*arguments, *keywords.values()]
        if self.fn in _TEXTS and _is_outside(tx) and all(one.is_python_constant() for one in given):
            values = [one.as_python_constant() for one in given]
            if any(map(_has_device, values)):
                count = len(arguments)
                named = dict(zip(keywords, values[count:], strict=True))
                return constant.create(_call_from_outside(self.fn, *values[:count], **named))
        return call(self, tx, arguments, keywords)

    def named_text(self: Any, tx: Any) -> Any:
        if _has_device(self.value) and _is_outside(tx):
            return constant.create(_call_from_outside(str, self.value))
        return text(self, tx)

    def in_graph(function: Any) -> Any:
        if isinstance(function, cuda_to_openreg.Factory):
            return TorchInGraphFunctionVariable
        return lookup_callable(function)

    def is_cuda_or_openreg(self: Any, tx: Any) -> Any:
        if cuda_to_openreg.is_enabled() and self.device is not None and self.device.type == device_name():
            return VariableTracker.build(tx, True)
        return is_cuda(self, tx)

    def named_tensor_type(self: Any, tx: Any, *arguments: Any, **keywords: Any) -> Any:
        found = tensor_type(self, tx, *arguments, **keywords)
        own = f"torch.{device_name()}."
        if isinstance(found, VariableTracker) and found.is_python_constant() and _is_outside(tx):
            return constant.create(found.as_python_constant().replace(own, "torch.cuda."))
        return found

    def device_module(self: Any, tx: Any, *arguments: Any, **keywords: Any) -> Any:
        given = [*arguments, *keywords.values()]
        if all(one.is_python_constant() and one.as_python_constant() is None for one in given):
            arguments, keywords = (constant.create(device_name()),), {}  # without one Dynamo compares what guards get
        found = handlers[of_device_module.__wrapped__](self, tx, *arguments, **keywords)
        if found.value is torch.openreg and _is_outside(tx):
            return VariableTracker.build(tx, torch.cuda, AttrSource(ImportSource("torch"), "cuda"))
        return found

    def as_class(self: Any) -> Any:
        is_facade = isinstance(self.value, cuda_to_openreg.Facade)  # where isinstance() asks
        return self.value.__wrapped__ if is_facade else as_constant(self)

    user.as_python_constant = as_class
    setattr(constant, getattr_name, attribute_named)
    if text is not None:
        constant.tp_str_impl = named_text
    trace_rules.lookup_callable = in_graph
    tensor.method_attr_is_cuda = is_cuda_or_openreg
    tensor.method_type = named_tensor_type
    if "type" in (methods := getattr(tensor, "tp_methods", {})):  # since 2.15
        methods["type"] = type(methods["type"])(named_tensor_type)
    builtin.call_function = call_text
    trace_rules.get_torch_obj_rule_map()[of_device_module] = TorchInGraphFunctionVariable
    handlers[of_device_module] = device_module
    for function in (torch.get_autocast_dtype, torch.is_autocast_enabled):
        constant_fold_functions[getattr(function, "__wrapped__", function)] = None
    common_constant_types.add(CudaDeviceProperties)
    # Dynamo takes an autocast that is still without attributes for one that it can enter.
    eval_frame.skip_code(start_autocast.__code__)
