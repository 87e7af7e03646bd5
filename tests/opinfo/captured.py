# SPDX-License-Identifier: BSD-3-Clause
"""Operators and layers in graphs: each replay against the eager call with the same inputs, bit for bit."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from checks import DEVICE, SEED, Body, Call, _differentiable_results, _first_line, call_of, samples_of
from entries import Entry
from known import comparison, stays_on_cpu
from layer_calls import LayerCall, calls, operator_of
from torch.testing._internal import common_methods_invocations as databases
from torch.utils._pytree import tree_map_only

from torch_openreg_lab.check.paired_tensors import difference, tensors_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python/graphs"))
from capturing import spoiler

# Some entries seed the generator in each call, which no capture takes; here the program seeds it before each replay.
databases.wrapper_set_seed = lambda operator, *args, **kwargs: operator(*args, **kwargs)  # type: ignore[attr-defined]

REPLAYS = (1, 0, 1)
"""Numbers of inputs, of which 0 are those of the capture: the same ones twice in a row would hide what a replay keeps."""


def _forward(operator: Callable[..., Any]) -> Body:
    return lambda call: (call(operator), call.all)


def _backward(operator: Callable[..., Any]) -> Body:
    def body(call: Call) -> Any:
        results = _differentiable_results(call, operator)
        inputs = [tensor for tensor in call.differentiable if tensor.is_leaf]
        if not results or not inputs:
            return results
        cotangents = [result.detach() * 0.5 + 0.25 for result in results]
        return results, torch.autograd.grad(results, inputs, cotangents, allow_unused=True)

    return body


def _transposed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2) if tensor.dim() > 1 else tensor


def _channels_last(tensor: torch.Tensor) -> torch.Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return tensor.contiguous(memory_format=formats[tensor.dim()]) if tensor.dim() in formats else tensor


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda tensor: tensor,
    "transposed": _transposed,
    "channels last": _channels_last,
}


def _in_layout(call: Call, layout: str) -> Call:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout != torch.strided or tensor.is_nested or type(tensor) is not torch.Tensor or not tensor.is_leaf:
            return tensor
        return LAYOUTS[layout](tensor.detach()).requires_grad_(tensor.requires_grad)

    input_, args, kwargs = tree_map_only(torch.Tensor, change, (call.input, tuple(call.args), dict(call.kwargs)))
    return dataclasses.replace(call, input=input_, args=args, kwargs=kwargs)


def _memory(call: Call) -> list[torch.Tensor]:
    """The memory of all arguments on the device, one tensor for each storage."""
    storages: dict[int, torch.Tensor] = {}
    for tensor in tensors_of(call.all):
        if tensor.device.type == "openreg" and tensor.layout == torch.strided and not tensor.is_nested:
            storage = tensor.untyped_storage()
            whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            storages.setdefault(storage._cdata, whole.set_(storage))
    return list(storages.values())


def _inputs(number: int, call: Call) -> list[torch.Tensor]:
    """What the memory of the arguments holds for inputs of that number. Indices stay in their range."""
    first = [tensor.clone() for tensor in _memory(call)]
    if number == 0:
        return first
    return [t * 0.75 if t.dtype.is_floating_point or t.dtype.is_complex else t.flip(0) for t in first]


def _fill(call: Call, values: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for memory, value in zip(_memory(call), values, strict=True):
            memory.copy_(value)


def _kept(value: Any) -> Any:
    """The results as they are now, on the CPU as far as they are on the device."""
    return tree_map_only(torch.Tensor, _copied, value)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        made = _on_cpu(tensor.detach())
    if type(tensor) is torch.nn.Parameter:
        return torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
    return made.requires_grad_(tensor.requires_grad)


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """With the same strides."""
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized or tensor.is_cpu:
        return tensor.clone()
    if tensor._is_zerotensor():
        return torch._efficientzerotensor(tensor.shape, dtype=tensor.dtype)
    if tensor.is_conj():
        return _on_cpu(tensor.conj()).conj()
    if tensor.is_neg():
        return torch._neg_view(_on_cpu(torch._neg_view(tensor)))
    whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
    made = torch.empty(0, dtype=tensor.dtype)
    return made.set_(whole.cpu().untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


def _seed(number: int) -> None:
    torch.manual_seed(SEED + number)


def replayed(entry: Entry, check: str, body: Body, call: Call) -> str | None:
    """What differs between eager calls and replays of one capture, or None."""
    wanted: dict[int, Any] = {}
    values: dict[int, list[torch.Tensor]] = {}
    for number in set(REPLAYS):
        there = call.on(DEVICE)
        values[number] = _inputs(number, there)
        _fill(there, values[number])
        _seed(number)
        try:
            wanted[number] = body(there)
        except Exception:
            if number == 0:
                return None  # no sample for this
            values[number], wanted[number] = values[0], None
        wanted[number] = _kept(wanted[number])
    static = call.on(DEVICE)
    _seed(5)
    state = torch.openreg.get_rng_state(DEVICE)
    graph = torch.openreg.OpenRegGraph()
    with torch.openreg.device(DEVICE):
        try:
            with torch.openreg.graph(graph, stream=torch.openreg.Stream()):
                results = body(static)
        except Exception as error:
            return f"refused: {_first_line(error)}"
    if not torch.equal(torch.openreg.get_rng_state(DEVICE), state):
        return "the capture has changed the generator"
    for now, before in zip(_memory(static), values[0], strict=True):
        if difference(before.cpu(), now, torch.device(DEVICE), comparison(entry.id, "").compare) is not None:
            return "the capture has changed its inputs"
    loose = comparison(entry.id, check)
    with torch.openreg.device(DEVICE):
        own = {tensor.untyped_storage()._cdata for tensor in _memory(static)}
        dense = [
            t
            for t in tensors_of(results)
            if t.device == torch.device(DEVICE) and t.layout == torch.strided and not t._is_zerotensor()
        ]
        spoiled = spoiler(graph, [t for t in dense if t.untyped_storage()._cdata not in own])
    for number in REPLAYS:
        if wanted[number] is None:
            continue
        _fill(static, values[number])
        _seed(number)
        with torch.openreg.device(DEVICE):
            spoiled.replay()
            graph.replay()
        found = difference(wanted[number], results, torch.device(DEVICE), loose.compare, loose.strides)
        if found is not None:
            return f"inputs {number}: {found}"
    return None


def _each(entry: Entry, check: str, body: Body, gradients: bool, layout: str, count: int) -> str | None:
    if check.startswith("captured in place"):
        found = [call_of(sample) for sample in samples_of(entry, gradients) if not sample.broadcasts_input]
    else:
        found = calls(entry, gradients)
    for number, call in enumerate(found if len(found) <= count else found[:: len(found) // count][:count]):
        if isinstance(call, LayerCall):
            call(operator_of(entry))  # lazy layers get their parameters
        different = replayed(entry, check, body, _in_layout(call, layout))
        if different is not None:
            return f"sample {number}: {different}"
    return None


def checks_of(entry: Entry, gradients: bool, samples: int) -> Iterator[tuple[str, Callable[[], str | None]]]:
    """The checks of an entry: forward, backward and in place, each contiguous, transposed and channels last."""
    if stays_on_cpu(entry.id):
        return
    operator = operator_of(entry)
    bodies = [("forward", _forward(operator), False)]
    if gradients or entry.database == "module":
        bodies.append(("backward", _backward(operator), True))
    inplace = entry.info.get_inplace() if entry.database in ("op", "foreach") else None
    if inplace is not None:
        bodies.append(("in place", torch.no_grad()(_forward(inplace)), False))
    for name, body, differentiable in bodies:
        for layout in LAYOUTS:
            check = f"captured {name} {layout}"
            yield check, functools.partial(_each, entry, check, body, differentiable, layout, samples)
