# SPDX-License-Identifier: BSD-3-Clause
"""torch.compile(mode="reduce-overhead"): a compiled graph is captured in a graph of the device, and replayed.

PyTorch's own capture of compiled graphs serves devices that it knows by name. docs/graphs.md says what differs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from _torch_openreg_device_name import device_name

from torch_openreg.openreg import graphs, streams

_NAME = device_name()
_logger = logging.getLogger("torch_openreg")

_WARM_UPS = 2
_MOST_GRAPHS = 8
# An output that is not larger is returned as a copy: a loss that the program keeps holds no graph's memory.
_SMALL_BYTES = 1 << 14


def _is_ours(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == _NAME


def _without_repeats(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the part of an expanded tensor that is in memory."""
    for dim, (size, stride) in enumerate(zip(tensor.size(), tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def _copied_to(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    _without_repeats(target).copy_(_without_repeats(source))
    return target


def _with_geometry_of(like: torch.Tensor, storage: torch.UntypedStorage, shift: int = 0) -> torch.Tensor:
    """Returns the tensor with the same place in another storage, `shift` bytes on."""
    made = torch.empty(0, dtype=like.dtype, device=like.device)
    return made.set_(storage, like.storage_offset() + shift // like.itemsize, like.size(), like.stride())


def _cdata(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


class _Captured:
    """One capture of a function: the tensors that it reads, and those that it writes.

    Inputs are read where they are, but for those in `copied`, which each call copies into memory of this object.
    """

    def __init__(
        self,
        call: Callable[[list[Any]], Sequence[Any]],
        inputs: list[Any],
        copied: set[int],
        mutated: tuple[int, ...],
        donated: tuple[int, ...],
    ) -> None:
        self.copied = sorted(copied)
        self.written_back = [i for i in mutated if i in copied]
        self.inputs = [
            _like(value) if i in copied else value.detach() if _is_ours(value) else value
            for i, value in enumerate(inputs)
        ]
        self.addresses = {
            i: value.data_ptr() for i, value in enumerate(self.inputs) if _is_ours(value) and i not in copied
        }
        self._take(inputs)
        self.graph = graphs.OpenRegGraph()
        with graphs.graph(self.graph, stream=streams.Stream(inputs_device(inputs)), capture_error_mode="thread_local"):
            self.outputs = list(call(list(self.inputs)))
        by_storage = {
            _cdata(value): i
            for i, value in enumerate(self.inputs)
            if _is_ours(value) and not (i in copied and i in donated)  # an output has taken the copy
        }
        self.input_of_output = [by_storage.get(_cdata(out)) if _is_ours(out) else None for out in self.outputs]
        self._storages = {
            _cdata(out)
            for out, source in zip(self.outputs, self.input_of_output, strict=True)
            if _is_ours(out) and source is None and out.nbytes > _SMALL_BYTES
        }
        self._uses = {storage: torch._C._storage_Use_Count(storage) for storage in self._storages}

    def differing(self, inputs: list[Any]) -> set[int]:
        """Returns the inputs that are not where the graph reads them."""
        return {i for i, address in self.addresses.items() if inputs[i].data_ptr() != address}

    def is_free(self) -> bool:
        """Returns whether no output of an earlier call is in use, whose memory the next one would overwrite."""
        return all(torch._C._storage_Use_Count(storage) == uses for storage, uses in self._uses.items())

    def replay(self, inputs: list[Any]) -> list[Any]:
        """Runs it.

        Args:
            inputs: The function's inputs. Emptied.
        """
        given = list(inputs)
        inputs.clear()
        self._take(given)
        self.graph.replay()
        for i in self.written_back:
            _copied_to(given[i], self.inputs[i])
        return [self._returned(out, at, given) for out, at in zip(self.outputs, self.input_of_output, strict=True)]

    def _take(self, given: list[Any]) -> None:
        for i in self.copied:
            _copied_to(self.inputs[i], given[i])

    def _returned(self, output: Any, source: int | None, inputs: list[Any]) -> Any:
        if not _is_ours(output):
            return output
        if source is not None:
            if output is self.inputs[source]:
                return inputs[source]
            given, read = inputs[source], self.inputs[source]
            shift = (given.storage_offset() - read.storage_offset()) * read.itemsize
            return _with_geometry_of(output, given.untyped_storage(), shift)
        if output.nbytes <= _SMALL_BYTES:
            return _copied_to(_like(output), output)  # clone() would close gaps between rows
        return _with_geometry_of(output, output.untyped_storage())


def inputs_device(inputs: Sequence[Any]) -> torch.device:
    """Returns the device of the first tensor that is on one of ours.

    Args:
        inputs: A compiled function's inputs, with such a tensor.
    """
    device: torch.device = next(value.device for value in inputs if _is_ours(value))
    return device


class _Function:
    """A compiled function, its captures by the numbers among its inputs, and whether it is to be captured at all."""

    def __init__(
        self, call: Callable[[list[Any]], Sequence[Any]], mutated: tuple[int, ...], donated: tuple[int, ...]
    ) -> None:
        self._call = call
        self._mutated = mutated
        self._donated = donated
        self._is_on = True
        self._calls: dict[tuple[Any, ...], int] = {}
        self._addresses: dict[tuple[Any, ...], dict[int, int]] = {}
        self._copied: dict[tuple[Any, ...], set[int]] = {}
        self._captured: dict[tuple[Any, ...], list[_Captured]] = {}

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        if not self._is_on or not any(map(_is_ours, inputs)) or graphs.is_current_stream_capturing():
            return self._call(inputs)
        if any(isinstance(value, torch.Tensor) and not _is_ours(value) for value in inputs):
            return self._give_up("an input is a tensor of another device", inputs)
        key = tuple((value.size(), value.stride()) if isinstance(value, torch.Tensor) else value for value in inputs)
        fitting = self._fitting(key, inputs)
        if fitting is not None:
            return fitting.replay(inputs)
        self._note_moved(key, inputs)
        self._calls[key] = self._calls.get(key, 0) + 1
        if self._calls[key] <= _WARM_UPS:
            return self._call(inputs)
        if sum(map(len, self._captured.values())) >= _MOST_GRAPHS:
            return self._give_up(
                f"it has been captured {_MOST_GRAPHS} times already, as its inputs change or its outputs stay in use",
                inputs,
            )
        try:
            made = _Captured(self._call, inputs, self._copied[key], self._mutated, self._donated)
        except RuntimeError as error:
            return self._give_up(str(error).splitlines()[0], inputs)
        self._captured.setdefault(key, []).append(made)
        return made.replay(inputs)

    def _fitting(self, key: tuple[Any, ...], inputs: list[Any]) -> _Captured | None:
        for one in self._captured.get(key, ()):
            if not one.differing(inputs) and one.is_free():
                return one
        return None

    def _note_moved(self, key: tuple[Any, ...], inputs: list[Any]) -> None:
        """Inputs that have come at two addresses are copied from now on, and captures that read them are given up."""
        now = {i: value.data_ptr() for i, value in enumerate(inputs) if _is_ours(value)}
        before = self._addresses.get(key, now)
        self._addresses[key] = now
        copied = self._copied.setdefault(key, set())
        copied.update(i for i in now if before[i] != now[i])
        for one in self._captured.get(key, ()):
            copied.update(one.differing(inputs))
        if key in self._captured:
            self._captured[key] = [one for one in self._captured[key] if copied.isdisjoint(one.addresses)]

    def _give_up(self, why: str, inputs: list[Any]) -> Sequence[Any]:
        self._is_on = False
        self._captured.clear()
        _logger.warning(
            'torch.compile(mode="reduce-overhead"): a compiled graph is not captured, and runs as without the mode: %s',
            why,
        )
        return self._call(inputs)


def reduce_overhead_device(
    call: Callable[[list[Any]], Sequence[Any]], mutated: tuple[int, ...], donated: tuple[int, ...]
) -> Callable[[list[Any]], Sequence[Any]]:
    """Has calls of a compiled function replay captures of it, after two calls that run it.

    Where that can't be, it runs as before, and one line of the log says why.

    Args:
        call: The function; it empties the list that it is given.
        mutated: Which inputs it writes.
        donated: Those that nobody reads afterwards: an output may be in the memory of one.
    """
    return _Function(call, mutated, donated)
