# SPDX-License-Identifier: BSD-3-Clause
"""Runs a compiled graph on copies, where the host can't reach the memory of its devices.

Inputs are copied to the host, the same generated code runs there once, and its outputs and what it wrote into inputs
are copied back. Memory that several tensors share is copied once, and shared on the other side too.
"""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from _torch_openreg_device_name import device_name
from torch._prims.rng_prims import graphsafe_run_with_rng_state
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from torch_openreg import _C_compile

_NAME = device_name()
_COUNTED_AS = "openreg::compiled_graph"

needs_staging_device = _C_compile._compiled_needs_staging


def _moved(device: Any) -> Any:
    return torch.device("cpu") if device.type == _NAME else device


@functools.cache
def _has_cpu_kernel(func: Any) -> bool:
    return bool(torch._C._dispatch_has_computed_kernel_for_dispatch_key(func.name(), "CPU"))


class _OnTheHost(TorchDispatchMode):
    """Operators that the compiler left as they are: what they would do on the device, they do on the copies.

    Random numbers are still the device's, and what has no kernel for the CPU runs on the device.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags or not _has_cpu_kernel(func):
            return self._run_on_device(func, args, kwargs)
        return func(*args, **tree_map_only(torch.device, _moved, kwargs))

    def _run_on_device(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        copies: dict[int, torch.Tensor] = {}

        def to_device(tensor: torch.Tensor) -> torch.Tensor:
            return copies.setdefault(id(tensor), tensor.to(self._device))

        originals = {id(t): t for t in _tensors((args, kwargs))}
        device_args, device_kwargs = tree_map_only(torch.Tensor, to_device, (args, kwargs))
        result = func(*device_args, **device_kwargs)
        for key, copy in copies.items():
            originals[key].copy_(copy)
        by_copy = {id(copy): originals[key] for key, copy in copies.items()}
        return tree_map_only(
            torch.Tensor, lambda t: by_copy.get(id(t), t.cpu() if t.device.type == _NAME else t), result
        )


def _with_random_state(mode: _OnTheHost, func: Any, *args: Any, rng_state: Any = None, **kwargs: Any) -> Any:
    """A random operator that draws from a state which it is handed, as a checkpoint's does in the backward pass."""
    on_device = functools.partial(graphsafe_run_with_rng_state, func, rng_state=rng_state)
    return mode._run_on_device(on_device, args, kwargs)


graphsafe_run_with_rng_state.py_impl(_OnTheHost)(_with_random_state)


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    for leaf in torch.utils._pytree.tree_leaves(tree):
        if isinstance(leaf, torch.Tensor):
            yield leaf


def _all_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


class _Copies:
    """Copies of storages in memory of another device, one of each."""

    def __init__(self) -> None:
        self.bytes = 0
        self._copies: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def tensor(self, original: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Returns the tensor with the same place in the copy of its storage."""
        storage = original.untyped_storage()
        if storage._cdata not in self._copies:
            self._copies[storage._cdata] = (storage, _all_of(storage).to(device).untyped_storage())
            self.bytes += storage.nbytes()
        copy = self._copies[storage._cdata][1]
        return torch.empty(0, dtype=original.dtype, device=device).set_(
            copy, original.storage_offset(), original.size(), original.stride()
        )

    def original_of(self, copied: torch.UntypedStorage) -> torch.UntypedStorage | None:
        """Returns the storage of which `copied` is the copy."""
        for original, copy in self._copies.values():
            if copy._cdata == copied._cdata:
                return original
        return None

    def forget(self, originals: Iterable[torch.Tensor]) -> None:
        """From now on, the copies of these tensors' storages are no copies of anything."""
        for original in originals:
            self._copies.pop(original.untyped_storage()._cdata, None)

    def write_back(self, original: torch.Tensor) -> None:
        """Copies the storage of `original` back."""
        storage, copy = self._copies[original.untyped_storage()._cdata]
        _all_of(storage).copy_(_all_of(copy))
        self.bytes += storage.nbytes()


@contextmanager
def _staging() -> Iterator[None]:
    before = _C_compile._compiled_set_staging(True)
    try:
        yield
    finally:
        _C_compile._compiled_set_staging(before)


@functools.cache
def _say_that_a_gpu_is_not_used(device: int) -> None:
    warnings.warn(
        f'torch.compile: a graph for {_NAME}:{device} runs on the host, as backend="inductor" knows GPUs by their '
        f'names in PyTorch. torch.compile(..., backend="{_NAME}"), which is the default once the device has been used, '
        "compiles it for the GPU that the device is.",
        stacklevel=3,
    )


def run_staged_device(
    call: Callable[[list[Any]], Sequence[Any]],
    inputs: list[Any],
    mutated: tuple[int, ...],
    donated: tuple[int, ...],
    devices: tuple[int | None, ...],
    constants: tuple[str, ...],
    module: dict[str, Any],
) -> tuple[Any, ...]:
    """Runs a graph on copies.

    Args:
        call: The graph's function; it empties the list that it is given.
        inputs: Its arguments. Emptied.
        mutated: Which of them it writes.
        donated: Those that nobody reads afterwards: an output may be in the memory of one.
        devices: Index of the device of each output; None: not an openreg tensor.
        constants: Names of variables in `module` that hold constants of the graph, as frozen weights. After the first
            run they are in the host's memory.
        module: Variables of the module that `call` is in.
    """
    start = time.perf_counter()
    originals, to_host, to_device = list(inputs), _Copies(), _Copies()
    inputs.clear()
    home = torch.device(_NAME, torch.openreg.current_device())
    host: list[Any] = []
    for value in originals:
        ours = isinstance(value, torch.Tensor) and value.device.type == _NAME
        if ours:
            home = value.device
        host.append(to_host.tensor(value, torch.device("cpu")) if ours else value)
    if _C_compile._compiled_gpu_of(home.index) >= 0:
        _say_that_a_gpu_is_not_used(home.index)
    for name in constants:
        if isinstance(module[name], torch.Tensor) and module[name].device.type == _NAME:
            module[name] = module[name].cpu()
    with _staging(), _OnTheHost(home):
        outputs = call(host)
    for position in mutated:
        if originals[position].device.type == _NAME:
            to_host.write_back(originals[position])
    to_host.forget(originals[position] for position in donated)
    results: list[Any] = []
    for output, index in zip(outputs, devices, strict=True):
        if index is None or not isinstance(output, torch.Tensor) or output.device.type == _NAME:
            results.append(output)
            continue
        storage = to_host.original_of(output.untyped_storage())
        if storage is None:
            device = torch.device(_NAME, torch.openreg.current_device() if index < 0 else index)
            results.append(to_device.tensor(output, device))
        else:  # a view of an input that others read
            results.append(
                torch.empty(0, dtype=output.dtype, device=storage.device).set_(
                    storage, output.storage_offset(), output.size(), output.stride()
                )
            )
    _C_compile._compiled_count_staged(_COUNTED_AS, to_host.bytes + to_device.bytes, time.perf_counter() - start)
    return tuple(results)
