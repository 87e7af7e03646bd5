# SPDX-License-Identifier: BSD-3-Clause
"""What ``torch.nn.DataParallel`` is made of, for openreg.

``torch.nn.parallel.comm`` calls functions of ``torch._C`` that PyTorch builds with CUDA only, for CUDA's devices, and
that nothing can be registered for. These are of ordinary copies; torch/csrc/cuda/comm.cpp is the model. A torch with
CUDA keeps its own for tensors of CUDA's. ``parallel_apply()`` asks autocast of CUDA alone whether its threads need it.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from _torch_openreg_device_name import device_name

_MARK = "_of_openreg"


def _device(index: int | None) -> torch.device:
    """-1 is the CPU, None the current device."""
    if index == -1:
        return torch.device("cpu")
    return torch.device(device_name(), torch.openreg.current_device() if index is None else index)


def _broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> list[torch.Tensor]:
    return [tensor.to(_device(index), non_blocking=True) for index in devices]


def _check_devices(what: str, tensors: Sequence[torch.Tensor]) -> None:
    for i, tensor in enumerate(tensors):
        if tensor.device.type != device_name():
            raise RuntimeError(
                f"Expected all {what} tensors to be {device_name()} tensors, but {what} tensor at index {i} has "
                f"device '{tensor.device}'"
            )


def _broadcast_out(tensor: torch.Tensor, out: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    _check_devices("output", out)
    for i, each in enumerate(out):
        if each.shape != tensor.shape:
            raise RuntimeError(
                f"Expected all output tensors to have the shape {tuple(tensor.shape)}, but output tensor at index {i} "
                f"has {tuple(each.shape)}"
            )
        each.copy_(tensor, non_blocking=True)
    return list(out)


def _broadcast_coalesced(
    tensors: Sequence[torch.Tensor], devices: Sequence[int], buffer_size: int
) -> list[list[torch.Tensor]]:
    """The tensors themselves for the first device, their copies for the others; nothing is packed into buffers."""
    first = _device(devices[0])
    for tensor in tensors:
        if tensor.device != first:
            raise RuntimeError(f"all tensors must be on {first}, the first device, but found one on {tensor.device}")
    copies = [[tensor.to(_device(index), non_blocking=True) for tensor in tensors] for index in devices[1:]]
    return [list(tensors), *copies]


def _chunks(tensor: torch.Tensor, count: int, sizes: Sequence[int] | None, dim: int) -> Sequence[torch.Tensor]:
    if sizes is None:
        return tensor.chunk(count, dim)
    if len(sizes) != count:
        raise RuntimeError(f"Expected devices and chunk_sizes to be of same length, but got {count} and {len(sizes)}")
    return tensor.split(list(sizes), dim)


def _scatter(
    tensor: torch.Tensor,
    devices: Sequence[int],
    chunk_sizes: Sequence[int] | None = None,
    dim: int = 0,
    streams: Sequence[Any] | None = None,
) -> list[torch.Tensor]:
    if not devices:
        raise RuntimeError("Expected at least one device to scatter to")
    moved = []
    for i, chunk in enumerate(_chunks(tensor, len(devices), chunk_sizes, dim)):
        with streams[i] if streams is not None and streams[i] is not None else contextlib.nullcontext():
            moved.append(chunk.to(_device(devices[i]), non_blocking=True))
    return moved


def _scatter_out(
    tensor: torch.Tensor, out: Sequence[torch.Tensor], dim: int = 0, streams: Sequence[Any] | None = None
) -> list[torch.Tensor]:
    if not out:
        raise RuntimeError("Expected at least one output tensor to scatter to")
    _check_devices("output", out)
    for i, each in enumerate(out):
        if each.shape != _with_size(tensor, dim, each.size(dim) if each.dim() == tensor.dim() else -1):
            raise RuntimeError(
                f"Output tensor at index {i} has incorrect shape: {tuple(each.shape)}. Expected that of the source, "
                f"{tuple(tensor.shape)}, except for scatter dim {dim}"
            )
    total = sum(each.size(dim) for each in out)
    if total != tensor.size(dim):
        raise RuntimeError(
            f"Total size for output tensors along scatter dim {dim} does not match input. Expected {tensor.size(dim)}, "
            f"but got total {total}"
        )
    for i, chunk in enumerate(tensor.split([each.size(dim) for each in out], dim)):
        with streams[i] if streams is not None and streams[i] is not None else contextlib.nullcontext():
            out[i].copy_(chunk, non_blocking=True)
    return list(out)


def _with_size(tensor: torch.Tensor, dim: int, size: int) -> torch.Size:
    """The tensor's shape with another size of one dimension."""
    shape = list(tensor.shape)
    shape[dim] = size
    return torch.Size(shape)


def _gathered(tensors: Sequence[torch.Tensor], dim: int) -> list[torch.Tensor]:
    """The tensors where they go together; those without a dimension become vectors, as on CUDA."""
    if not tensors:
        raise RuntimeError("Expected at least one tensor to gather from")
    _check_devices("input", tensors)
    parts = [tensor.reshape(1) if tensor.dim() == 0 else tensor for tensor in tensors]
    for i, part in enumerate(parts):
        if part.dim() != parts[0].dim():
            raise RuntimeError(
                f"Expected all input tensors to have the same number of dimensions, but tensor at index {i} has "
                f"{part.dim()} dimensions (expected {parts[0].dim()})"
            )
        expected = _with_size(parts[0], dim, part.size(dim))
        if part.shape != expected:
            raise RuntimeError(
                f"Input tensor at index {i} has invalid shape {tuple(part.shape)}, but expected {tuple(expected)}"
            )
    return parts


def _gather(tensors: Sequence[torch.Tensor], dim: int, destination: int | None = None) -> torch.Tensor:
    target = _device(destination)
    # Not beside the host where it is the CPU: the next operator reads there.
    is_async = target.type != "cpu"
    return torch.cat([tensor.to(target, non_blocking=is_async) for tensor in _gathered(tensors, dim)], dim)


def _gather_out(tensors: Sequence[torch.Tensor], out: torch.Tensor, dim: int) -> torch.Tensor:
    parts = _gathered(tensors, dim)
    expected = _with_size(parts[0], dim, sum(part.size(dim) for part in parts))
    if out.shape != expected:
        raise RuntimeError(f"Expected out tensor to have the shape {tuple(expected)}, but got {tuple(out.shape)}")
    for part, tensor in zip(out.split([each.size(dim) for each in parts], dim), parts, strict=True):
        part.copy_(tensor)
    return out


def _beside(theirs: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    """PyTorch's function for tensors of CUDA's, ours for all others: openreg is the accelerator then."""

    @functools.wraps(ours)
    def function(first: Any, *arguments: Any) -> Any:
        tensors = (first,) if isinstance(first, torch.Tensor) else first
        return (theirs if any(tensor.device.type == "cuda" for tensor in tensors) else ours)(first, *arguments)

    setattr(function, _MARK, True)
    return function


def _with_autocast(parallel_apply: Callable[..., Any]) -> Callable[..., Any]:
    """PyTorch's function, whose threads compute under the caller's autocast, in its type."""

    @functools.wraps(parallel_apply)
    def apply(modules: Sequence[Any], *arguments: Any, **keywords: Any) -> Any:
        name = device_name()
        if torch.is_autocast_enabled(name):
            dtype, cache = torch.get_autocast_dtype(name), torch.is_autocast_cache_enabled()
            modules = [torch.autocast(name, dtype, cache_enabled=cache)(module.__call__) for module in modules]
        return parallel_apply(modules, *arguments, **keywords)

    setattr(apply, _MARK, True)
    return apply


def install() -> None:
    """Adds the functions to ``torch._C``, and autocast to the threads. Repeating it changes nothing."""
    for function in (
        *(_broadcast, _broadcast_out, _broadcast_coalesced),
        *(_scatter, _scatter_out, _gather, _gather_out),
    ):
        theirs = getattr(torch._C, function.__name__, None)
        if theirs is None:
            setattr(torch._C, function.__name__, function)
        elif theirs is not function and not hasattr(theirs, _MARK):
            setattr(torch._C, function.__name__, _beside(theirs, function))
    apply = torch.nn.parallel.parallel_apply
    if not hasattr(apply, _MARK):
        folder = "torch.nn.parallel"  # whose functions have the names of its modules
        for path in (folder, f"{folder}.parallel_apply", f"{folder}.data_parallel"):
            sys.modules[path].parallel_apply = _with_autocast(apply)  # type: ignore[attr-defined]
