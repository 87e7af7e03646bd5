"""How operators ran: on the device's own memory, or on copies in host memory."""

from __future__ import annotations

from typing import Any

from torch_openreg import _C

__all__ = ["operator_stats", "reset_operator_stats"]


def operator_stats() -> dict[str, Any]:
    """Counts of the operators that ran since the start or the last reset, over all devices and threads.

    Returns:
        ``aliased_calls``: calls whose kernel worked on the device's memory; ``staged_calls`` and ``staged_bytes``:
        calls whose tensors were copied to the host and back, and the bytes moved; ``staged``: ``{"calls", "bytes"}``
        of each staged operator by name (``"aten::mm"``).
    """
    return _C._operator_stats()


def reset_operator_stats() -> None:
    """Sets every count of :func:`operator_stats` to 0."""
    _C._reset_operator_stats()
