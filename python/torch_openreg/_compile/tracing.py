# SPDX-License-Identifier: BSD-3-Clause
"""How Dynamo traces functions and classes of torch.openreg. Imported after torch._dynamo.polyfills.loader.

Functions that end in C are traced as functions of torch.accelerator where there is one. For the others PyTorch has
tables, in which torch.cuda's functions are entered by name: the same entries are made for ours.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch
from _torch_openreg_device_name import device_name
from torch._dynamo.decorators import substitute_in_graph
from torch._dynamo.eval_frame import skip_code
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import AttrSource, CallFunctionNoArgsSource, ImportSource
from torch._dynamo.trace_rules import get_torch_obj_rule_map
from torch._dynamo.utils import common_constant_types
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.torch import (
    TorchInGraphFunctionVariable,
    constant_fold_functions,
    constant_fold_functions_need_guards,
)
from torch._dynamo.variables.user_defined import UserDefinedClassVariable

from torch_openreg import _C, openreg
from torch_openreg.openreg import _device

_NAME = device_name()


def _current_device() -> int:
    return torch.accelerator.current_device_index()


def _count() -> int:
    return openreg.device_count()


_constant_count: Callable[[], int] = torch.compiler.assume_constant_result(_count)


def _device_count() -> int:
    return _constant_count()


def _current_stream(device: Any = None) -> torch.Stream:
    if device is None:
        return torch.accelerator.current_stream()
    return torch.accelerator.current_stream(device)


def _synchronize(device: Any = None) -> None:
    if device is None:
        torch.accelerator.synchronize()
    else:
        torch.accelerator.synchronize(device)


_TRACED_AS = (
    (_C._get_device, _current_device),
    (_C._get_device_count, _device_count),
    (openreg.current_stream, _current_stream),
    (openreg.synchronize, _synchronize),
)


def _exchange(function: Any) -> Any:
    """The handler of a function that changes the current device: while tracing too, and guarded by the one before."""

    def handler(self: Any, tx: Any, argument: VariableTracker) -> VariableTracker:
        current = CallFunctionNoArgsSource(AttrSource(AttrSource(ImportSource("torch"), _NAME), "current_device"))
        install_guard(current.make_guard(GuardBuilder.EQUALS_MATCH))
        index = argument.as_python_constant()
        previous = function(index)
        tx.output.create_node("call_function", function, (index,), {})
        tx.output.add_cleanup_hook(lambda: openreg.set_device(previous) if previous >= 0 else None)
        return VariableTracker.build(tx, previous)

    return handler


def _own_functions() -> Iterator[FunctionType]:
    """The functions of this package's modules, and their classes' methods and properties."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != "torch_openreg":
            continue
        for value in [each for each in vars(module).values() if getattr(each, "__module__", None) == name]:
            for member in vars(value).values() if inspect.isclass(value) else [value]:
                function = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
                if inspect.isfunction(function):
                    yield function


def register() -> None:
    """Makes the entries. Once."""
    for own in _own_functions():  # no frames of their own, as torch's have none: code that isn't traced calls them, too
        skip_code(own.__code__)
    for original, traceable in _TRACED_AS:
        substitute_in_graph(original, skip_signature_check=True)(traceable)
    rules = get_torch_obj_rule_map()
    rules[openreg.stream] = TorchInGraphFunctionVariable  # whose handler takes every interface's stream()
    for constant in (_device.get_device_properties, _device.get_device_name, _device.get_device_capability):
        rules[constant] = TorchInGraphFunctionVariable
        constant_fold_functions[constant] = None
        constant_fold_functions_need_guards[constant] = None  # of the current device
    common_constant_types.add(_device.DeviceProperties)
    for function in (_device._exchange_device, _device._maybe_exchange_device):
        rules[function] = TorchInGraphFunctionVariable
        TorchInGraphFunctionVariable._get_handlers()[function] = _exchange(function)
    UserDefinedClassVariable._in_graph_classes().update({openreg.Stream, openreg.Event})
