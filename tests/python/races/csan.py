# SPDX-License-Identifier: BSD-3-Clause
"""The method of PyTorch's sanitizer for CUDA, on openreg: its own classes, told of openreg's tensors, streams and events."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.cuda import _sanitizer
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class _Arguments(_sanitizer.ArgumentHandler):
    """As the original, for tensors of openreg."""

    def _handle_argument(
        self, value: Any, is_write: bool, metadata_only: bool, name: str | None = None, is_output: bool = False
    ) -> None:
        if isinstance(value, torch.Tensor) and value.device.type == "openreg":
            pointer = value.data_ptr() or id(value)
            if is_write:
                self.dataptrs_written.add(pointer)
            elif not metadata_only:
                self.dataptrs_read.add(pointer)
            self.tensor_aliases.setdefault(pointer, []).append(name or "")
            if is_output:
                self.outputs.add(pointer)


class _Mode(TorchDispatchMode):
    """As CUDASanitizerDispatchMode, which collects instead of raising."""

    def __init__(self) -> None:
        super().__init__()
        self.handler = _sanitizer.EventHandler()
        self.errors: list[Any] = []

    def _forget_freed(self) -> None:
        live = [
            (block["address"], block["address"] + block["size"])
            for segment in torch.openreg.memory_snapshot()
            for block in segment["blocks"]
            if block["state"] == "active_allocated"
        ]
        accessed = self.handler.tensors_accessed
        for pointer in list(accessed.accesses):
            if not any(begin <= pointer < end for begin, end in live):
                accessed.delete_tensor(pointer)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten.record_stream.default:
            return func(*args, **kwargs)
        self._forget_freed()
        is_factory = bool(re.match(_sanitizer.FACTORY_FUNCTION_REGEX, func._schema.name))
        arguments = _Arguments()
        arguments.parse_inputs(func._schema, args, kwargs, is_factory=is_factory)
        outputs = func(*args, **kwargs)
        arguments.parse_outputs(func._schema, outputs, is_factory=is_factory)
        if any(t.device.type == "openreg" for t in pytree.tree_leaves((args, outputs)) if isinstance(t, torch.Tensor)):
            self.errors += self.handler._handle_kernel_launch(
                torch.openreg.current_stream().stream_id,
                arguments.dataptrs_read - arguments.dataptrs_written,
                arguments.dataptrs_written,
                arguments.outputs,
                func._schema,
                arguments.tensor_aliases,
            )
        return outputs


@contextmanager
def csan() -> Iterator[list[Any]]:
    """Collects what the sanitizer's method finds in the block."""
    mode = _Mode()
    syncs, number = mode.handler.syncs, iter(range(1, 1 << 30))
    numbers: dict[int, int] = {}

    def record(event: torch.Event, stream: torch.Stream | None = None) -> None:
        numbers[id(event)] = next(number)
        syncs.create_event(numbers[id(event)])
        syncs.record_state(numbers[id(event)], (stream or torch.openreg.current_stream()).stream_id)
        events_record(event, stream)

    def wait_event(stream: torch.Stream, event: torch.Event) -> None:
        if id(event) in numbers:
            syncs.stream_wait_for_event(stream.stream_id, numbers[id(event)])
        streams_wait_event(stream, event)

    def wait_stream(stream: torch.Stream, other: torch.Stream) -> None:
        syncs.create_event(one := next(number))
        syncs.record_state(one, other.stream_id)
        syncs.stream_wait_for_event(stream.stream_id, one)
        streams_wait_stream(stream, other)

    def synchronize_event(event: torch.Event) -> None:
        syncs.all_streams_wait_for_event(numbers[id(event)])
        events_synchronize(event)

    def synchronize_stream(stream: torch.Stream) -> None:
        syncs.all_streams_wait_for_stream(stream.stream_id)
        streams_synchronize(stream)

    def synchronize(device: Any = None) -> None:
        syncs.sync_all_streams()
        devices_synchronize(device)

    stream_type, event_type = torch.openreg.Stream, torch.openreg.Event
    events_record, events_synchronize = event_type.record, event_type.synchronize
    streams_wait_event, streams_wait_stream = stream_type.wait_event, stream_type.wait_stream
    streams_synchronize, devices_synchronize = stream_type.synchronize, torch.openreg.synchronize
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_type, "record", record)
        patch.setattr(event_type, "synchronize", synchronize_event)
        patch.setattr(stream_type, "wait_event", wait_event)
        patch.setattr(stream_type, "wait_stream", wait_stream)
        patch.setattr(stream_type, "synchronize", synchronize_stream)
        patch.setattr(torch.openreg, "synchronize", synchronize)
        with mode:
            yield mode.errors
