# SPDX-License-Identifier: BSD-3-Clause
"""What the allocator has done and which code asked for it, in the form that torch.cuda._memory_viz reads."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _torch_openreg_device_name import a_device_name, device_name
from torch.cuda import _memory_viz

from torch_openreg import _C
from torch_openreg.openreg._utils import Device, _get_valid_index

_NAME = device_name()

__all__ = [
    *("_allocation_traceback", "_annotate_tensor", "_attach_out_of_memory_observer", "_dump_snapshot"),
    *("_get_memory_metadata", "_memory_metadata_supported", "_record_memory_history", "_save_memory_usage"),
    *("_save_segment_usage", "_set_memory_metadata", "_snapshot"),
]

_ACTIONS = (
    *("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free"),
    *("segment_map", "segment_unmap", "snapshot", "oom", "annotate"),
)


def _check_option(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        names = ", ".join(repr(each) for each in allowed)
        raise ValueError(f"{name} must be one of {names}, but is {value!r}.")


def _record_memory_history(
    enabled: str | bool | None = "all",
    context: str | None = "all",
    stacks: str = "all",
    max_entries: int = sys.maxsize,
    device: Device = None,
    clear_history: bool = False,
    compile_context: bool = False,
    global_record_annotations: bool = False,
    skip_actions: list[str] | None = None,
    record_pinned_host_memory: bool = False,
    record_openreg: bool = True,
) -> None:
    """Starts or ends the recording of what the allocator does, on every device.

    Args:
        enabled: "all" keeps the events; "state" only the stacks of memory that is in use; None ends it and forgets.
            True and False mean "all" and None.
        context: For which events stacks are kept: "state" for memory in use, "alloc" also for past allocations, "all"
            also for frees. None: no stacks.
        stacks: "python", or "all" for those of C++ as well.
        max_entries: Events kept of each device; the oldest go first.
        device: Is ignored, as by torch.cuda.
        clear_history: Forgets the events of before.
        compile_context: Is not supported.
        global_record_annotations: Is not supported.
        skip_actions: Actions that are not kept, such as "free_requested".
        record_pinned_host_memory: Is not supported.
        record_openreg: That of the devices; False is not supported.

    Raises:
        ValueError: A string that is none of those.
        NotImplementedError: An unsupported option is set.
    """
    if isinstance(enabled, bool):
        enabled = "all" if enabled else None
    _check_option("enabled", enabled, ("state", "all", None))
    _check_option("context", context, ("state", "alloc", "all", None))
    _check_option("stacks", stacks, ("python", "all"))
    for action in skip_actions or ():
        _check_option("an action of skip_actions", action, _ACTIONS)
    if max_entries < 0:
        raise ValueError(f"max_entries must not be negative, but is {max_entries}.")
    for name, on in (
        ("compile_context", compile_context),
        ("global_record_annotations", global_record_annotations),
        ("pinned host memory (record_pinned_host_memory)", record_pinned_host_memory),
        ("pinned host memory alone (record_openreg=False)", not record_openreg),
    ):
        if on:
            raise NotImplementedError(f"The {_NAME} allocator does not record {name}.")
    _C._record_memory_history(enabled, context, stacks, max_entries, clear_history, list(skip_actions or ()))


def _snapshot(device: Device = None, augment_with_fx_traces: bool = False) -> dict[str, Any]:
    """Returns the state of the allocator and its history, under the names of torch.cuda.memory._snapshot().

    Args:
        device: The device whose segments are wanted; all if None. ``device_traces`` has a list for each device anyway.
        augment_with_fx_traces: Adds the operators of generated code to its frames.

    Returns:
        ``segments``, each with its ``blocks``; ``device_traces``, the events of each device; ``allocator_settings``.
        A stack is a list ``frames`` of ``name``, ``filename`` and ``line``, the innermost first.
    """
    index = None if device is None else _get_valid_index(device)
    snapshot = _C._memory_snapshot(list(range(_C._get_device_count())), True)
    if index is not None:
        snapshot["segments"] = [segment for segment in snapshot["segments"] if segment["device"] == index]
    settings = _C._allocator_settings()
    snapshot["allocator_settings"] = settings | {"PYTORCH_ALLOC_CONF": settings["last_allocator_settings"]}
    snapshot["external_annotations"] = []
    if augment_with_fx_traces:
        from torch._utils import _augment_memory_snapshot_stack_traces

        snapshot = _augment_memory_snapshot_stack_traces(snapshot)
    return snapshot


def _dump_snapshot(filename: str = "dump_snapshot.pickle", augment_with_fx_traces: bool = False) -> None:
    """Writes _snapshot() to a file, which torch.cuda._memory_viz and pytorch.org/memory_viz open.

    Args:
        filename: Path of the file.
        augment_with_fx_traces: See _snapshot().

    Raises:
        OSError: The file cannot be written.
    """
    Path(filename).write_bytes(pickle.dumps(_snapshot(augment_with_fx_traces=augment_with_fx_traces)))


def _save_segment_usage(filename: str = "output.svg", snapshot: dict[str, Any] | None = None) -> None:
    """Writes a flame graph of the segments; see torch.cuda.memory._save_segment_usage().

    Raises:
        OSError: The file cannot be written.
    """
    Path(filename).write_text(_memory_viz.segments(snapshot if snapshot is not None else _snapshot()))


def _save_memory_usage(filename: str = "output.svg", snapshot: dict[str, Any] | None = None) -> None:
    """Writes a flame graph of the memory in use; see torch.cuda.memory._save_memory_usage().

    Raises:
        OSError: The file cannot be written.
    """
    Path(filename).write_text(_memory_viz.memory(snapshot if snapshot is not None else _snapshot()))


def _allocation_traceback(data_ptr: int) -> list[dict[str, Any]] | None:
    """Returns the stack of the allocation that starts at an address; None where there is none, or none was recorded.

    Args:
        data_ptr: The start of a block, such as ``tensor.untyped_storage().data_ptr()``.
    """
    return _C._allocation_traceback(data_ptr)


def _memory_metadata_supported() -> bool:
    """Returns whether events carry what _set_memory_metadata() has set: always."""
    return True


def _set_memory_metadata(metadata: str | dict[str, Any]) -> None:
    """Sets the text that later events of this thread carry as ``user_metadata``; "" for none.

    Args:
        metadata: The text; of a dictionary its JSON.

    Raises:
        TypeError: It is neither, or JSON has no words for what is in it.
    """
    _C._set_memory_metadata(json.dumps(metadata) if isinstance(metadata, dict) else metadata)


def _get_memory_metadata() -> str:
    """Returns the text that _set_memory_metadata() has set."""
    return _C._get_memory_metadata()


def _annotate_tensor(tensor: torch.Tensor, metadata: str) -> None:
    """Adds an event ``annotate`` with a text for the memory that a tensor uses already.

    The event's address is that of the tensor's storage, its ``user_metadata`` the text. Nothing happens while nothing
    is recorded.

    Args:
        tensor: A tensor of a device, or a view of one.
        metadata: The text.

    Raises:
        ValueError: The tensor is not on an openreg device.
    """
    if tensor.device.type != _NAME:
        raise ValueError(f"Expected {a_device_name()} tensor, but got one on {tensor.device}.")
    _C._annotate_memory(tensor.device.index, tensor.untyped_storage().data_ptr(), metadata)


def _attach_out_of_memory_observer(observer: Callable[[int, int, int, int], object]) -> None:
    """Calls a function when a device has no memory left, before OutOfMemoryError is raised.

    It stays until the process ends. What it raises is printed, and changes nothing.

    Args:
        observer: Is called with the device's index and three sizes in bytes: the request, the memory of the device that
            this process may use, and the memory that is free there.

    Raises:
        TypeError: It can't be called.
    """
    _C._attach_out_of_memory_observer(observer)
