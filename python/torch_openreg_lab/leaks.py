# SPDX-License-Identifier: BSD-3-Clause
"""What is on the devices at one moment, and which of it a test has left behind."""

from __future__ import annotations

import gc
import time
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from _torch_openreg_device_name import device_name

from torch_openreg import _C, openreg

# A device's thread may hold what a backward pass has used for a moment longer.
_PATIENCE = (0.0, 0.005, 0.02, 0.1)
_SHOWN = 5  # tensors of a message
_STEPS = 12  # of the search for who holds one: each looks at every object


@dataclass
class Inventory:
    """Blocks by address, with their sizes; events; and what each device has as its current stream."""

    blocks: dict[int, tuple[int, int]] = field(default_factory=dict)  # address: device, requested bytes
    events: int = 0
    pinned: int = 0
    device: int = 0
    streams: tuple[openreg.Stream, ...] = ()  # none: no device was open


def _counts() -> tuple[int, int]:
    """Live events and pinned blocks. Memory that another process has shared counts as an event: both pin a device."""
    pinned = int(openreg.host_memory_stats()["active_requests.current"])
    blocks = sum(openreg.memory_stats(i)["allocation.all.current"] for i in range(openreg.device_count()))
    return int(_C._selection()["live_objects"]) - blocks - pinned, pinned


def take() -> Inventory:
    """Looks at all devices; none is opened for it."""
    if not openreg.is_initialized():
        return Inventory()
    events, pinned = _counts()
    return Inventory(
        blocks={
            block["address"]: (segment["device"], block["requested_size"])
            for segment in openreg.memory_snapshot(include_traces=False)
            for block in segment["blocks"]
            if block["state"] == "active_allocated"
        },
        events=events,
        pinned=pinned,
        device=openreg.current_device(),
        streams=tuple(openreg.current_stream(i) for i in range(openreg.device_count())),
    )


def has_grown(before: Inventory, now: Inventory, kept: set[int]) -> bool:
    """Whether something is there that was not, but for the blocks of wider fixtures."""
    blocks = now.blocks.keys() - before.blocks.keys() - kept
    return bool(blocks) or now.events > before.events or now.pinned > before.pinned


def settle(before: Inventory, kept: set[int]) -> Inventory:
    """What is there once the garbage is collected, and the device's threads have ended what they do."""
    now = take()
    for pause in _PATIENCE:
        if not has_grown(before, now, kept):
            break
        time.sleep(pause)
        if pause in (_PATIENCE[0], _PATIENCE[-1]):
            gc.collect()
            openreg.empty_host_cache()  # pinned blocks wait for an event, and for somebody to ask for it
        now = take()
    return now


# ------------------------------------------------------------------------------------------------- who holds a block

_OPAQUE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.FrameType, types.CodeType)


def _address(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr() if tensor.device.type == device_name() else 0
    except (RuntimeError, NotImplementedError):  # sparse, fake and other tensors without a storage
        return 0


def reachable(values: Iterable[object]) -> set[int]:
    """Addresses of tensors that these values hold: in containers and attributes, not through classes and modules."""
    seen: set[int] = set()
    found: set[int] = set()
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, _OPAQUE):
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            found.add(_address(value))
            waiting.append(value.grad if value.is_leaf else None)
        waiting.extend(gc.get_referents(value))
    return found


def _name_in(owner: dict[Any, Any], value: object) -> str | None:
    """The name of a value in a module's variables, if that is what the dictionary is."""
    if not isinstance(owner.get("__name__"), str) or "__builtins__" not in owner:
        return None
    names = (key for key, held in owner.items() if held is value)
    return next((f"'{key}' of module {owner['__name__']}" for key in names), None)


def _holder(value: object) -> str | None:
    """The variable of a module that keeps a value alive, if that can be found in a few steps."""
    waiting = [value]
    for step in range(_STEPS):
        if step == len(waiting):
            break
        for owner in gc.get_referrers(waiting[step]):
            if isinstance(owner, dict) and (name := _name_in(owner, waiting[step])):
                return name
            if owner is not waiting and not isinstance(owner, (types.FrameType, types.ModuleType, Iterator)):
                waiting.append(owner)
    return None


def _describe_blocks(blocks: dict[int, tuple[int, int]]) -> Iterator[str]:
    for device in sorted({device for device, _ in blocks.values()}):
        sizes = [size for where, size in blocks.values() if where == device]
        yield f"{len(sizes)} block(s) of device memory on {device_name()}:{device}, {sum(sizes)} bytes"
    told: set[int] = set()
    for value in gc.get_objects():
        # isinstance() would ask proxies of other libraries.
        address = _address(value) if issubclass(type(value), torch.Tensor) else 0
        if len(told) < _SHOWN and address in blocks.keys() - told:
            told.add(address)
            holder = _holder(value)
            dtype = str(value.dtype).removeprefix("torch.")
            yield f"  {dtype}{list(value.shape)} on {value.device}" + (f", held by {holder}" if holder else "")


def describe(before: Inventory, now: Inventory, excused: set[int]) -> list[str]:
    """Says what a test, which began with `before`, and its fixtures have left on the devices.

    `excused` are addresses that belong to fixtures of modules, classes and sessions.

    Returns:
        One line of text for each kind of thing left, as ``2 event(s)``; below blocks, lines for their tensors. Empty
        if nothing was left.
    """
    left = {address: block for address, block in now.blocks.items() if address not in before.blocks.keys() | excused}
    lines = list(_describe_blocks(left)) if left else []
    if now.events > before.events:
        lines.append(f"{now.events - before.events} event(s)")
    if now.pinned > before.pinned:
        lines.append(f"{now.pinned - before.pinned} block(s) of pinned memory")
    if before.streams:  # else the devices were opened by this test
        name = device_name()
        streams = zip(before.streams, now.streams, strict=True)
        lines += [f"another current stream on {name}:{i}" for i, (old, new) in enumerate(streams) if old != new]
        if now.device != before.device:
            lines.append(f"{name}:{now.device} as the current device, instead of {name}:{before.device}")
    return lines
