# SPDX-License-Identifier: BSD-3-Clause
"""Moves what is nested in containers to a device."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch.nn.utils.rnn import PackedSequence

from torch_openreg.openreg._utils import Device
from torch_openreg.openreg.defaults import as_device

__all__ = ["mover", "to_device"]

_T = TypeVar("_T")


def mover(device: Device, *, non_blocking: bool = False) -> Callable[[_T], _T]:
    """Returns a function that moves nested containers to a device, as :func:`to_device` does: ``mover(device)(batch)``.

    For what takes a function of one argument: ``map(mover(device), loader)``.

    Args:
        device: As for ``as_device()``; not None. It is looked up now.
        non_blocking: Copies from pinned memory are queued on the current stream.

    Raises:
        RuntimeError, ValueError, TypeError: No such device.
    """
    return functools.partial(to_device, device=as_device(device), non_blocking=non_blocking)


def to_device(obj: _T, device: Device, *, non_blocking: bool = False) -> _T:
    """Returns a copy of nested containers with every tensor and module on a device; everything else passes through.

    Lists, tuples, named tuples, sets, mappings and dataclasses keep their type and their order; keys are not touched. A
    tensor that is on the device already is itself in the result, and one that occurs twice still does so. A module
    is moved in place, as by ``module.to()``.

    Args:
        obj: A tensor, a module, a packed sequence, containers of them, or anything else.
        device: As for ``as_device()``; not None.
        non_blocking: Copies from pinned memory are queued on the current stream.

    Raises:
        RuntimeError, ValueError, TypeError: No such device.
    """
    target = as_device(device)
    moved: dict[int, Any] = {}  # by id: shared tensors stay shared

    def move(item: Any) -> Any:
        if isinstance(item, (torch.Tensor, torch.nn.Module, PackedSequence)):
            if id(item) not in moved:
                moved[id(item)] = item.to(device=target, non_blocking=non_blocking)
            return moved[id(item)]
        if isinstance(item, Mapping):
            return _move_mapping(item)
        if isinstance(item, tuple):
            values = [move(value) for value in item]
            # A named tuple takes its fields one by one.
            return type(item)(*values) if hasattr(item, "_fields") else type(item)(values)
        if isinstance(item, (list, set, frozenset)):
            return type(item)([move(value) for value in item])
        if dataclasses.is_dataclass(item) and not isinstance(item, type):
            clone = copy.copy(item)  # replace() would run __init__, which may do anything
            for field in dataclasses.fields(item):
                object.__setattr__(clone, field.name, move(getattr(item, field.name)))
            return clone
        return item

    def _move_mapping(item: Mapping[Any, Any]) -> Any:
        values = {key: move(value) for key, value in item.items()}
        try:
            clone: Any = copy.copy(item)  # keeps what else the mapping knows: a default factory, say
            for key, value in values.items():
                clone[key] = value
        except TypeError:  # it can't be written to
            return type(item)(values)  # type: ignore[call-arg]
        return clone

    return move(obj)
