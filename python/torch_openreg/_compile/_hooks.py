# SPDX-License-Identifier: BSD-3-Clause
"""Registers the device with Dynamo, AOTAutograd, Inductor and DTensor right after PyTorch has executed their modules.

``import torch`` imports none of them, and they cost seconds: so this package must not import them either. PyTorch up
to 2.14 calls nobody when it does, 2.15 for Inductor alone; hence a finder in ``sys.meta_path``, which finds nothing by
itself.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# The module of PyTorch that keeps a register, and the modules here whose register() writes into it.
_REGISTERS: dict[str, list[str]] = {
    "torch._dynamo.device_interface": ["torch_openreg._compile.device_interface"],
    "torch._dynamo.backends.registry": ["torch_openreg._compile.backends"],
    "torch._functorch._aot_autograd.utils": ["torch_openreg._compile.random_states"],
    "torch._dynamo.polyfills.loader": ["torch_openreg._compile.tracing"],
    "torch._inductor.codegen.common": ["torch_openreg._compile.registration"],
    "torch._inductor.lowering": ["torch_openreg._compile.lowerings"],
    "torch.nn.attention.flex_attention": ["torch_openreg._compile.flex_attention"],
    "torch.testing._internal.optests.autograd_registration": ["torch_openreg._integration.opcheck"],
    "torch.distributed.tensor._random": ["torch_openreg._integration.dtensor_random"],
}


def _after(execute: Callable[[ModuleType], None], name: str) -> Callable[[ModuleType], None]:
    def exec_module(module: ModuleType) -> None:
        execute(module)
        for ours in _REGISTERS[name]:
            importlib.import_module(ours).register()

    return exec_module


class _Finder(MetaPathFinder):
    """Finds what the other finders find, and has the loader call register() after it has executed the module."""

    def __init__(self) -> None:
        self._looking_for: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _REGISTERS or fullname in self._looking_for:
            return None
        self._looking_for.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._looking_for.discard(fullname)
        if spec is not None and spec.loader is not None:
            # The loader is this module's own object; its class is left alone.
            setattr(spec.loader, "exec_module", _after(spec.loader.exec_module, fullname))  # noqa: B010
        return spec


def register_after(name: str, ours: str) -> None:
    """Calls register() of a module here now where PyTorch's module is there already, else when it is imported. Once.

    Args:
        name: PyTorch's module.
        ours: The one here.
    """
    waiting = _REGISTERS.setdefault(name, [])
    if ours in waiting:
        return
    waiting.append(ours)
    if name in sys.modules:
        importlib.import_module(ours).register()


def install() -> None:
    """Registers the device now where PyTorch's module is there already, else when it is imported. Once in a process."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _Finder())
    for name, modules in _REGISTERS.items():
        for ours in modules if name in sys.modules else ():
            importlib.import_module(ours).register()
