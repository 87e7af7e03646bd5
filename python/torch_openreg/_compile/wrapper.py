# SPDX-License-Identifier: BSD-3-Clause
"""Generates the Python code around kernels: allocations, waits, and calls of operators that are not compiled."""

from __future__ import annotations

from typing import Any

import torch
from _torch_openreg_device_name import device_name
from torch._inductor import config
from torch._inductor.codegen.wrapper import PythonWrapperCodegen, SubgraphPythonWrapperCodegen
from torch._inductor.ir import DonatedBuffer
from torch._inductor.virtualized import V

from torch_openreg._compile.scheduling import flush_before_waits

_NAME = device_name()


def _index(device: torch.device | None) -> int:
    return -1 if device is None or device.index is None else device.index


class FlushesBeforeWaits(PythonWrapperCodegen):
    """Waits come behind the kernels before them, of which CppScheduling keeps some to write them at once."""

    def push_codegened_graph(self, graph: Any) -> None:
        """Notes a graph whose code is written from now on."""
        super().push_codegened_graph(graph)
        if graph.scheduler is not None:
            flush_before_waits(graph.scheduler)


class _OpenRegCode(FlushesBeforeWaits):
    """What differs from the code for devices that Inductor knows."""

    # The device of the kernel whose call is being generated; set by OpenRegScheduling.
    kernel_device: torch.device | None = None
    _has_named_streams = False

    def define_kernel(self, kernel_name: str, kernel_body: str, *args: Any, **kwargs: Any) -> None:
        """Writes a kernel's definition: one that takes openreg tensors. Those of the CPU are taken as well.

        Args:
            kernel_name: Its name.
            kernel_body: Code of the call that compiles it.
            *args: As in PythonWrapperCodegen.define_kernel().
            **kwargs: As in PythonWrapperCodegen.define_kernel().
        """
        ours = kernel_body.replace("async_compile.cpp_pybinding(", "compile_kernel(async_compile, ", 1)
        super().define_kernel(kernel_name, ours, *args, **kwargs)

    def generate_kernel_call(self, kernel_name: str, call_args: Any, **kwargs: Any) -> None:
        """Writes the call of a kernel, which comes after what is queued on the device's current stream.

        Args:
            kernel_name: The kernel's name.
            call_args: Its arguments.
            **kwargs: As in PythonWrapperCodegen.generate_kernel_call().
        """
        if self.kernel_device is not None:
            call_args = [str(_index(self.kernel_device)), kernel_name, *call_args]
            kernel_name = "run_kernel"
        super().generate_kernel_call(kernel_name, call_args, **kwargs)

    def make_allocation(
        self,
        name: str,
        device: torch.device,
        dtype: torch.dtype,
        shape: Any,
        stride: Any,
        allocation_shape: Any = None,
        is_pinned: bool = False,
    ) -> str:
        """Returns code that allocates a tensor on exactly the requested device.

        Args:
            name: The variable's name.
            device: The device.
            dtype: The tensor's dtype.
            shape: Its sizes.
            stride: Its strides.
            allocation_shape: Sizes to allocate, of which shape is a part; None: shape.
            is_pinned: Whether it is pinned memory of the host.
        """
        if device.type != _NAME:
            return super().make_allocation(name, device, dtype, shape, stride, allocation_shape, is_pinned)
        sizes = self.codegen_python_shape_tuple(shape)
        allocated = sizes if allocation_shape is None else self.codegen_python_shape_tuple(allocation_shape)
        strides = self.codegen_python_shape_tuple(stride)
        code = f"{name} = empty_strided_device({allocated}, {strides}, {dtype}, {_index(device)})"
        return code if allocated == sizes else f"{code}.as_strided({sizes}, {strides})"

    def codegen_cuda_stream_enter(self, stream_idx: int) -> Any:
        """Writes the change to another stream of the program, of any device.

        Inductor names the streams where it makes a GPU current, which it doesn't for other devices: here that is done
        before the first change.

        Args:
            stream_idx: Index of the stream; 0 is the one that was current before the graph.
        """
        scheduler = V.graph.scheduler
        scheduler.flush()  # kernels of the stream before
        if not self._has_named_streams:
            self._has_named_streams = True
            self.writeline(f"default_stream = torch.{_NAME}.current_stream({_index(scheduler.current_device)})")
            for index, user_object in sorted(scheduler.stream_idx_to_user_obj_idx.items()):
                if index > 0:
                    self.writeline(f"stream{index} = get_external_object_by_index({user_object})")
        return super().codegen_cuda_stream_enter(stream_idx)

    def codegen_cuda_stream_exit(self) -> None:
        """Writes the end of what runs on that stream."""
        V.graph.scheduler.flush()
        super().codegen_cuda_stream_exit()


class OpenRegWrapper(_OpenRegCode):
    """The code of a graph."""

    @staticmethod
    def create(
        is_subgraph: bool,
        subgraph_name: str | None,
        parent_wrapper: PythonWrapperCodegen | None,
        partition_signatures: Any = None,
    ) -> PythonWrapperCodegen:
        """Returns the generator of a graph's code, or of a graph's inside of another.

        Args:
            is_subgraph: Whether it is inside of another.
            subgraph_name: The function's name then.
            parent_wrapper: The outer graph's generator then.
            partition_signatures: As in PythonWrapperCodegen.create().
        """
        if is_subgraph:
            return OpenRegSubgraphWrapper(subgraph_name, parent_wrapper, partition_signatures)
        return OpenRegWrapper()

    def write_header(self) -> None:
        """Writes imports and short names."""
        super().write_header()
        self.imports.splice(
            """
            from torch_openreg._compile.kernels import compile_kernel, empty_strided_device, run_kernel
            from torch._dynamo.graph_bytecode_inputs import get_external_object_by_index
            from torch_openreg._compile.staging import needs_staging_device, run_staged_device
            """,
            strip=True,
        )
        if config.triton.cudagraphs:
            self.imports.writeline("from torch_openreg._compile.reduce_overhead import reduce_overhead_device")

    def write_launcher_fn_call_get_indent(self) -> int:
        """Writes the head of the graph's function. Where the host can't reach the memory, the graph runs on copies."""
        indent = super().write_launcher_fn_call_get_indent()
        conditions = [f"needs_staging_device({index})" for index in sorted(V.graph.device_idxs)]
        with self.prefix.indent(indent):
            self.prefix.writeline(f"if {' or '.join(conditions) or 'needs_staging_device(-1)'}:")
            self.prefix.writeline("    return run_staged_device(call, args, *staged_graph, globals())")
        return indent

    def generate_after_suffix(self, result: Any) -> None:
        """Writes what a run of the graph on copies must know.

        These are the inputs that it writes, those whose memory may become an output's, the devices of outputs, and the
        names of constants.
        """
        super().generate_after_suffix(result)
        graph = V.graph
        mutated = tuple(i for i, name in enumerate(graph.graph_inputs) if name in graph.mutated_inputs)
        donated = tuple(
            i
            for i, name in enumerate(graph.graph_inputs)
            if isinstance(graph.graph_inputs_original.get(name), DonatedBuffer)  # numbers are not in it
        )
        devices = [output.get_device() if hasattr(output, "get_device") else None for output in graph.graph_outputs]
        indices = tuple(_index(d) if d is not None and d.type == _NAME else None for d in devices)
        result.writeline("")
        result.writeline(f"staged_graph = ({mutated!r}, {donated!r}, {indices!r}, {tuple(graph.constants)!r})")
        if config.triton.cudagraphs:
            result.writeline(f"call = reduce_overhead_device(call, {mutated!r}, {donated!r})")


class OpenRegSubgraphWrapper(_OpenRegCode, SubgraphPythonWrapperCodegen):
    """The code of a graph inside of another, as of torch.cond()."""
