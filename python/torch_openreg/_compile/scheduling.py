# SPDX-License-Identifier: BSD-3-Clause
"""Generates kernels: C++ for the CPU, which works on device memory that the host can reach."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from _torch_openreg_device_name import device_name
from torch._inductor import config
from torch._inductor.codegen.cpp import CppKernelProxy, CppScheduling, CppTile2DKernel, CppVecKernel
from torch._inductor.virtualized import V

_NAME = device_name()
_CPU = torch.device("cpu")


def _is_ours(node: Any) -> bool:
    device = node.get_device()
    return device is not None and device.type == _NAME


def _leave_out(scheduler: Any, method: str, answer: Any) -> None:
    """Has a method of one scheduler return `answer` at once for pairs of nodes with one of ours.

    The scheduler itself leaves nodes of the CPU out of these attempts, as its C++ is not written for their results, and
    knows them by the name of their device.
    """
    attempt: Callable[..., Any] = getattr(scheduler, method)

    def guarded(node1: Any, node2: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_ours(node1) or _is_ours(node2):
            return answer
        return attempt(node1, node2, *args, **kwargs)

    guarded._openreg = True  # type: ignore[attr-defined]
    setattr(scheduler, method, guarded)


def flush_before_waits(scheduler: Any) -> None:
    """Has a scheduler write the kernels that are being generated before a node without a device.

    Such nodes are waits, records of events and other calls with an effect. The scheduler itself does so before calls on
    a device alone: a wait would come before its kernels, and between them the deletion of their arguments.

    Args:
        scheduler: The graph's scheduler.
    """
    enter = scheduler.enter_context

    def enter_context(node: Any) -> None:
        if node.get_device() is None:
            scheduler.flush()
        enter(node)

    scheduler.enter_context = enter_context


class _Tile(CppTile2DKernel):
    """A tile of a kernel, with the sums of several threads in their places.

    In torch 2.13 the index of such a sum is moved to the element of the tile twice: by store(), and by the code for the
    index itself.
    """

    def store(self, name: str, index: Any, value: Any, mode: Any = None) -> None:
        """Writes code that stores a value, or adds it.

        Args:
            name: The buffer's name.
            index: The place in it, of the tile's first element.
            value: The value's variable.
            mode: "atomic_add": it is added.
        """
        is_shared = mode == "atomic_add" and (config.cpp.dynamic_threads or self.num_threads != 1)
        if is_shared and not self.need_vec_transpose(self.rename_indexing(index)):
            CppVecKernel.store(self, name, index, value, mode)
        else:
            super().store(name, index, value, mode)


class _KernelProxy(CppKernelProxy):
    tile2d_kernel_cls = _Tile


class OpenRegScheduling(CppScheduling):
    """CppScheduling for nodes of another device than the CPU.

    While it generates code, the graph's current device is the CPU: many places ask for it to know what is generated.
    """

    kernel_proxy_cls = _KernelProxy

    _ATTEMPTS = (
        ("shared_data_after_reordering_loop", -1),
        ("shared_data_after_inverting_indexing", -1),
        ("_try_reindex_pointwise_for_reduction", False),
    )

    def __init__(self, scheduler: Any) -> None:
        super().__init__(scheduler)
        self._device: torch.device | None = None  # there is one object for each device of a graph
        if scheduler is None:
            return
        for method, answer in self._ATTEMPTS:
            if hasattr(scheduler, method) and not hasattr(getattr(scheduler, method), "_openreg"):
                _leave_out(scheduler, method, answer)

    @contextmanager
    def _generating(self) -> Iterator[None]:
        wrapper = V.graph.wrapper_code
        before = wrapper.kernel_device
        wrapper.kernel_device = self._device
        try:
            with V.graph.set_current_device(_CPU):
                yield
        finally:
            wrapper.kernel_device = before

    def codegen_node(self, node: Any) -> None:
        """Adds a node, or a fused one, to the kernel that is being generated."""
        self._device = node.get_device()
        with self._generating():
            super().codegen_node(node)

    def codegen_template(
        self, template_node: Any, epilogue_nodes: Sequence[Any], prologue_nodes: Sequence[Any]
    ) -> None:
        """Generates a kernel from a template.

        Args:
            template_node: The node with the template.
            epilogue_nodes: What is computed of its result in the same kernel.
            prologue_nodes: What is computed of its arguments.
        """
        self._device = template_node.get_device()
        with self._generating():
            super().codegen_template(template_node, epilogue_nodes, prologue_nodes)

    def flush(self) -> None:
        """Writes the kernel that is being generated, and its call."""
        with self._generating():
            super().flush()
