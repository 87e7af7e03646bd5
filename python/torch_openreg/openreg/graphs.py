# SPDX-License-Identifier: BSD-3-Clause
"""Graphs: work that is captured once and replayed many times. docs/graphs.md has what can be captured."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from _torch_openreg_device_name import device_name
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils import _pytree as pytree

from torch_openreg._integration import higher_order
from torch_openreg.openreg import streams
from torch_openreg.openreg._device import synchronize
from torch_openreg.openreg._lazy import is_initialized

__all__ = ["OpenRegGraph", "graph", "graph_pool_handle", "is_current_stream_capturing", "make_graphed_callables"]

_NAME = device_name()

# PyTorch has the interface since 2.13.
_Base: Any = getattr(torch._C, "_acceleratorGraph", object)

# The first number of a graph's pool: those that capture_begin() makes count from 1.
_pools = itertools.count(1 << 32)

Pool = tuple[int, int]


def is_current_stream_capturing() -> bool:
    """Returns whether the current stream is being captured in a graph. Opens no device."""
    return is_initialized() and _Base is not object and streams.current_stream().is_capturing()


def graph_pool_handle() -> Pool:
    """Returns the name of a new pool of memory, for graphs that are to share one."""
    return (next(_pools), 0)


class OpenRegGraph(_Base):
    """A captured graph, as ``torch.cuda.CUDAGraph``.

    Args:
        keep_graph: capture_end() leaves instantiate() to the program, or to the first replay().

    Raises:
        NotImplementedError: This version of PyTorch has no graphs of accelerators.
    """

    def __new__(cls, keep_graph: bool = False) -> OpenRegGraph:  # noqa: D102
        if _Base is object:
            raise NotImplementedError(f"Graphs of {_NAME} need PyTorch 2.13 or newer, but this is {torch.__version__}.")
        return super().__new__(cls, keep_graph)

    def capture_begin(self, pool: Pool | None = None, capture_error_mode: str = "global") -> None:
        """Begins to capture the current stream.

        Args:
            pool: Memory that is shared with other graphs: graph_pool_handle() or another graph's pool().
            capture_error_mode: With "global" the capture fails if any thread waits for the device, with "thread_local",
                "relaxed" and "default" if its own does.

        Raises:
            RuntimeError: It is the default stream, or it is being captured, or the graph has a capture.
        """
        super().capture_begin(pool=pool, capture_error_mode=capture_error_mode)

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Does nothing: every replay draws new numbers from whichever generators the captured operators use.

        Raises:
            ValueError: The generator belongs to another type of device.
        """
        if generator.device.type != _NAME:
            raise ValueError(f"Expected a generator of {_NAME}, but got one of {generator.device}.")


def _check_capturable(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """PyTorch has this check for the devices that it knows by name."""
    if torch.compiler.is_compiling() or not is_current_stream_capturing():
        return
    for group in optimizer.param_groups:
        if group.get("capturable") is False and any(parameter.device.type == _NAME for parameter in group["params"]):
            raise RuntimeError(
                f"step() of {type(optimizer).__name__} is being captured in a graph, but its capturable is False: each "
                "replay would repeat the numbers of this step. Construct the optimizer with capturable=True."
            )


def _prepare_first_graph() -> None:
    """Called by the process's first graph."""
    register_optimizer_step_pre_hook(_check_capturable)
    # Higher-order operators have no kernels for the key of captures: what they call comes to the capture.
    higher_order.pass_over(torch._C._dispatch_key_parse("Fake"))


class graph:
    """A context manager that captures work into a graph.

    Args:
        openreg_graph: The graph.
        pool: Memory that is shared with other graphs: graph_pool_handle() or another graph's pool().
        stream: The stream to capture, current inside; one of the class's own if None.
        capture_error_mode: As for OpenRegGraph.capture_begin().
    """

    default_capture_stream: streams.Stream | None = None

    def __init__(
        self,
        openreg_graph: OpenRegGraph,
        pool: Pool | None = None,
        stream: torch.Stream | None = None,
        capture_error_mode: str = "global",
    ) -> None:
        if stream is None:
            default = type(self).default_capture_stream
            if default is None or default.device_index != torch.accelerator.current_device_index():
                default = type(self).default_capture_stream = streams.Stream()
            stream = default
        self.openreg_graph = openreg_graph
        self.capture_stream = stream
        self._pool = pool
        self._mode = capture_error_mode
        self._current = streams.stream(stream)

    def __enter__(self) -> None:
        synchronize()  # so that cached memory which the graph may need can be returned to the device
        self._current.__enter__()
        try:
            self.openreg_graph.capture_begin(self._pool, self._mode)
        except BaseException:
            self._current.__exit__(None, None, None)
            raise

    def __exit__(self, *exc_info: object) -> None:
        try:
            self.openreg_graph.capture_end()
        finally:
            self._current.__exit__(*exc_info)


class _Graphed:
    """A callable's forward and backward passes, each captured, with the tensors that they read and write."""

    def __init__(self, function: Callable[..., Any], sample_args: tuple[Any, ...]) -> None:
        self.function = function
        self.sample_args = sample_args
        leaves = pytree.arg_tree_leaves(*sample_args)
        if not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
            raise TypeError("sample_args must consist of tensors.")
        self.user_args: tuple[torch.Tensor, ...] = tuple(leaves)
        self.parameters: tuple[torch.Tensor, ...] = ()
        if isinstance(function, torch.nn.Module):
            self.parameters = tuple(function.parameters())
            if function._backward_hooks or function._forward_hooks or function._forward_pre_hooks:
                raise RuntimeError("A module must have no hooks when it is captured; they may be added later.")
            if any(buffer.requires_grad for buffer in function.buffers()):
                raise RuntimeError("Of a module that is captured only parameters may require a gradient, no buffers.")
        self.inputs = self.user_args + self.parameters
        self.wanted = tuple(tensor for tensor in self.inputs if tensor.requires_grad)
        self.forward_graph, self.backward_graph = OpenRegGraph(), OpenRegGraph()
        self.outputs: tuple[torch.Tensor, ...] = ()
        self.spec: Any = None
        self.grad_outputs: tuple[torch.Tensor | None, ...] = ()
        self.grad_inputs: tuple[torch.Tensor | None, ...] = ()

    def _differentiate(
        self, outputs: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None], allow_unused: bool
    ) -> tuple[torch.Tensor | None, ...]:
        wanting = tuple(output for output in outputs if output.requires_grad)
        if not wanting or not self.wanted:
            return (None,) * len(self.wanted)
        return torch.autograd.grad(
            wanting, self.wanted, tuple(g for g in gradients if g is not None), allow_unused=allow_unused
        )

    def warm_up(self, iterations: int, allow_unused: bool) -> None:
        for _ in range(iterations):
            outputs = pytree.tree_leaves(self.function(*self.sample_args))
            gradients = [torch.zeros_like(output) if output.requires_grad else None for output in outputs]
            self._differentiate(outputs, gradients, allow_unused)

    def capture_forward(self, pool: Pool) -> None:
        with graph(self.forward_graph, pool=pool):
            results = self.function(*self.sample_args)
        leaves, self.spec = pytree.tree_flatten(results)
        self.outputs = tuple(leaves)

    def capture_backward(self, pool: Pool, allow_unused: bool) -> None:
        self.grad_outputs = tuple(torch.empty_like(output) if output.requires_grad else None for output in self.outputs)
        with graph(self.backward_graph, pool=pool):
            found = iter(self._differentiate(self.outputs, self.grad_outputs, allow_unused))
        self.grad_inputs = tuple(next(found) if tensor.requires_grad else None for tensor in self.inputs)

    def callable(self) -> Callable[..., Any]:
        of = self

        class Graphed(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
                for static, given in zip(of.user_args, inputs, strict=False):
                    if static.data_ptr() != given.data_ptr():
                        static.copy_(given)
                of.forward_graph.replay()
                return tuple(output.detach() for output in of.outputs)

            @staticmethod
            @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
            def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
                for static, given in zip(of.grad_outputs, gradients, strict=True):
                    if static is not None and static.data_ptr() != given.data_ptr():
                        static.copy_(given)
                of.backward_graph.replay()
                return tuple(None if gradient is None else gradient.detach() for gradient in of.grad_inputs)

        def run(*args: Any) -> Any:
            results = Graphed.apply(*pytree.arg_tree_leaves(*args), *of.parameters)
            return pytree.tree_unflatten(results, of.spec)

        return run


def _with_graph(function: Callable[..., Any], run: Callable[..., Any]) -> Callable[..., Any]:
    """A module keeps its forward() for the mode, training or not, in which it was not captured."""
    if not isinstance(function, torch.nn.Module):
        return run
    module, mode, eager = function, function.training, function.forward

    def forward(*args: Any) -> Any:
        return run(*args) if module.training == mode else eager(*args)

    module.forward = forward
    return module


def make_graphed_callables(
    callables: Any,
    sample_args: Any,
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: Pool | None = None,
) -> Any:
    """Returns functions or modules whose forward and backward passes are replays of graphs.

    Args:
        callables: A function or module, or a tuple of them in the order in which they will run.
        sample_args: The arguments of each, tensors alone, of the shapes and with the requires_grad of later calls: a
            tuple, or a tuple of tuples.
        num_warmup_iters: How often each runs before it is captured.
        allow_unused_input: Whether an input may have no influence on the outputs.
        pool: Memory that is shared with other graphs.

    Returns:
        What takes the place of each: a tuple where `callables` is one. Modules are changed in place.

    Raises:
        RuntimeError: autocast caches casts, a module has hooks, or something can't be captured.
        TypeError: An argument is not a tensor.
    """
    if torch.is_autocast_enabled(_NAME) and torch.is_autocast_cache_enabled():
        raise RuntimeError("make_graphed_callables() needs autocast with cache_enabled=False.")
    is_one = not isinstance(callables, tuple)
    if is_one:
        callables, sample_args = (callables,), (sample_args,)
    graphed = [_Graphed(function, args) for function, args in zip(callables, sample_args, strict=True)]
    shared = graph_pool_handle() if pool is None else pool
    synchronize()
    with streams.stream(streams.Stream()):
        for one in graphed:
            one.warm_up(num_warmup_iters, allow_unused_input)
    synchronize()
    # In the order in which they will run: each uses memory that those before it have done with.
    for one in graphed:
        one.capture_forward(shared)
    for one in reversed(graphed):
        one.capture_backward(shared, allow_unused_input)
    made = tuple(_with_graph(one.function, one.callable()) for one in graphed)
    return made[0] if is_one else made
