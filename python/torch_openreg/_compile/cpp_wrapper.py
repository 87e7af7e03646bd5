# SPDX-License-Identifier: BSD-3-Clause
"""Generates whole graphs in C++: AOTInductor's packages, and config.cpp_wrapper.

The code is that for the CPU. It runs inside of one operator, which shows it openreg tensors as tensors of the CPU
(shim/optional/compile/compiled_graphs.h).
"""

from __future__ import annotations

from typing import Any

import torch
from _torch_openreg_device_name import device_name
from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu
from torch._inductor.virtualized import V

from torch_openreg._compile.wrapper import FlushesBeforeWaits

_NAME = device_name()
_IN_PACKAGES = "privateuseone"  # under which a package runs whatever the device is named
_CPU = torch.device("cpu")


def _index(value: Any) -> int | None:
    """Returns the index of an openreg tensor's device, -1 for one without an index; None: it is no such tensor."""
    if isinstance(value, torch.Tensor):
        device: torch.device | None = value.device
    else:
        device = value.get_device() if hasattr(value, "get_device") else None
    if device is None or device.type != _NAME:
        return None
    return -1 if device.index is None else int(device.index)


class _PackageDevice(str):
    """What a package says of its device, for which its runner is looked up (shim/optional/compile/aoti_models.cpp).

    Inductor makes the path of a header of the same name, and has none for devices of other packages.
    """

    __slots__ = ()

    def split(self, *args: Any, **kwargs: Any) -> list[str]:
        """The device whose headers are included."""
        return ["cpu"]

    def startswith(self, *args: Any, **kwargs: Any) -> bool:
        """Whether a header is that of the CPU."""
        return "cpu".startswith(*args, **kwargs)


class OpenRegCppWrapper(FlushesBeforeWaits, CppWrapperCpu):
    """Code for the CPU, where the graph says openreg."""

    device = _NAME
    # As _OpenRegCode.kernel_device: the scheduling sets it. The operator around the graph has waited already.
    kernel_device: torch.device | None = None

    def __init__(self) -> None:
        super().__init__()
        self.needs_vec_isa = True

    @staticmethod
    def create(
        is_subgraph: bool,
        subgraph_name: str | None,
        parent_wrapper: Any,
        partition_signatures: Any = None,
    ) -> OpenRegCppWrapper:
        """Returns the generator of a graph's code."""
        return OpenRegCppWrapper()

    def add_device_include(self, device: str) -> None:
        """Writes the includes of the CPU."""
        super().add_device_include("cpu")

    @staticmethod
    def get_c_shim_func_name(kernel: str, device: str) -> str:
        """Returns the name of the C function that calls an operator.

        Args:
            kernel: The operator's name.
            device: The device of its tensors.
        """
        return str(CppWrapperCpu.get_c_shim_func_name(kernel, "cpu" if device == _NAME else device))

    def codegen_device(self, device: torch.device) -> str:
        """Returns code that names a device, as two arguments."""
        return str(super().codegen_device(_CPU if device.type == _NAME else device))

    def codegen_cuda_stream_enter(self, stream_idx: int) -> Any:
        """Refuses the change to another stream."""
        raise NotImplementedError(
            f"torch.compile: a function that runs operators on another stream (with torch.{_NAME}.stream(...)) can't "
            "be compiled to C++. Turn torch._inductor.config.cpp_wrapper off for it."
        )

    def generate(self, is_inference: bool) -> Any:
        """Returns the code of the graph.

        Args:
            is_inference: Whether there is no backward pass.
        """
        code = super().generate(is_inference)
        if V.graph.aot_mode:
            V.graph.device_type = _PackageDevice(_IN_PACKAGES)
        return code

    def generate_end(self, result: Any) -> None:
        """Writes what follows the graph: Python code that loads it here, or the metadata for a package's runner."""
        writes = bool(V.graph.mutated_inputs)
        indices = tuple(map(_index, V.graph.graph_outputs))
        if V.graph.aot_mode:
            super().generate_end(result)
            # A package may run on another device than that for which it was made: what belongs there moves with it.
            given = map(_index, [*V.graph.graph_inputs.values(), *V.graph.constants.values()])
            home = next((index for index in (*given, *indices) if index is not None), -1)
            places = {None: "0", home: "1", -1: "1"}
            on_device = "".join(places.get(index, f"\\{ord('2') + (index or 0):03o}") for index in indices)
            # Read by shim/optional/compile/aoti_models.cpp.
            result.splice(
                f"""
                extern "C" AOTI_API const bool openreg_graph_writes_inputs;
                const bool openreg_graph_writes_inputs = {str(writes).lower()};
                extern "C" AOTI_API const char openreg_graph_outputs_on_device[];
                const char openreg_graph_outputs_on_device[] = "{on_device}";
                """
            )
            return
        self.device = "cpu"  # Inductor looks up headers by it
        try:
            super().generate_end(result)
        finally:
            self.device = _NAME
        result.splice(
            f"""
            from torch_openreg._compile.kernels import whole_graph_openreg
            call = whole_graph_openreg(call, {writes}, {indices}, globals(), {tuple(V.graph.constants)})
            """
        )
