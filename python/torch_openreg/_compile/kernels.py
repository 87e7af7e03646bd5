# SPDX-License-Identifier: BSD-3-Clause
"""What generated wrappers call while they are loaded and run. Their names are in caches: see config.py."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from _torch_openreg_device_name import device_name
from torch._inductor import codecache
from torch._inductor.async_compile import AsyncCompile, get_compile_threads
from torch._inductor.utils import clear_on_fresh_cache

from torch_openreg import _C_compile

_ADDRESS_VARIABLE = "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"

empty_strided_device = _C_compile._compiled_empty_strided
run_kernel = _C_compile._compiled_run_kernel
raw_stream = _C_compile._compiled_raw_stream


@clear_on_fresh_cache
class OpenRegKernels(codecache.CppPythonBindingsCodeCache):
    """Loads kernels that are given openreg tensors: they use another function from a tensor to an address.

    A library keeps that function for good, so one must never serve the CPU too: compile() makes their sources differ.
    """

    cache: dict[str, Callable[[], Any]] = {}  # noqa: RUF012
    _names: set[str] = set()  # noqa: RUF012

    @staticmethod
    def cache_clear() -> None:
        """Forgets the libraries: PyTorch has removed their files."""
        OpenRegKernels.cache.clear()
        for name in OpenRegKernels._names:
            sys.modules.pop(name, None)
        OpenRegKernels._names.clear()

    @classmethod
    def _load_library_inner(cls, path: str, key: str) -> ModuleType:
        name = f"{key}.{cls.entry_function}"
        if name in sys.modules:
            return sys.modules[name]
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ImportError(f"torch.compile: {path} is not an extension module")
        # The library reads it once, in its initialisation.
        os.environ[_ADDRESS_VARIABLE] = str(_C_compile._compiled_address_function())
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        cls._names.add(name)
        spec.loader.exec_module(module)
        return module


def compile_kernel(compiler: AsyncCompile, argument_types: Sequence[str], source: str) -> Any:
    """Compiles a kernel, or finds it compiled, as AsyncCompile.cpp_pybinding() does for the CPU.

    Args:
        compiler: The wrapper's AsyncCompile.
        argument_types: C++ types of the kernel's arguments.
        source: Its C++ code.

    Returns:
        The kernel, a function of tensors and numbers; or a future of it, for which the wrapper waits.
    """
    source = f"// for memory of {device_name()} devices\n{source}"
    if get_compile_threads() <= 1:
        return OpenRegKernels.load_pybinding(argument_types, source)
    get = OpenRegKernels.load_pybinding_async(argument_types, source, submit_fn=compiler.submit)
    return codecache.LambdaFuture(get)


def whole_graph_openreg(
    graph: Callable[[list[Any]], Sequence[Any]],
    writes: bool,
    devices: tuple[int | None, ...],
    module: dict[str, Any],
    constants: tuple[str, ...],
) -> Callable[[list[Any]], list[Any]]:
    """Has a graph in C++ for the CPU take openreg tensors.

    Args:
        graph: The graph's function; it empties the list that it is given.
        writes: Whether the graph writes some of its inputs.
        devices: Index of the device of each output; -1: the current one; None: not an openreg tensor.
        module: Variables of the module that `graph` is in.
        constants: Names of those that it passes to its code itself. They are there at the first call, and from then on
            in the host's memory.
    """
    on_device = list(constants)

    def call(arguments: list[Any]) -> list[Any]:
        inputs = list(arguments)
        arguments.clear()
        while on_device:
            module[on_device[-1]] = module[on_device[-1]].cpu()
            on_device.pop()
        return _C_compile._compiled_run_whole(graph, inputs, writes, -1, devices, False)

    return call
