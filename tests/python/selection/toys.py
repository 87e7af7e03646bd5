# SPDX-License-Identifier: BSD-3-Clause
"""For these tests and the processes that they start: the test side of full_toy_driver.c, and expected errors."""

from __future__ import annotations

import contextlib
import ctypes
import warnings
from collections.abc import Iterator

# A machine without GPU drivers, whatever this one has.
NO_GPU = {
    "OPENREG_CUDA_LIBRARY_PATH": "/nonexistent/libopenreg_cuda.so",
    "OPENREG_HIP_LIBRARY_PATH": "/nonexistent/libopenreg_hip.so",
    "OPENREG_SYSTEM_ROOT": "/nonexistent",
}

INT = ctypes.c_int
TEXT = ctypes.c_char_p
OPEN_CALLBACK = ctypes.CFUNCTYPE(None)


class _Hooks(ctypes.Structure):
    _fields_ = [
        ("reset", ctypes.CFUNCTYPE(None)),
        ("calls", ctypes.CFUNCTYPE(INT, TEXT)),
        ("set_devices", ctypes.CFUNCTYPE(None, ctypes.c_int32)),
        ("fail", ctypes.CFUNCTYPE(None, TEXT, INT, ctypes.c_int32, ctypes.c_uint)),
        ("hold", ctypes.CFUNCTYPE(None, INT)),
        ("forget", ctypes.CFUNCTYPE(None)),
        ("live", ctypes.CFUNCTYPE(INT, TEXT)),
        ("bound", ctypes.CFUNCTYPE(ctypes.c_int32)),
        ("on_open", ctypes.CFUNCTYPE(None, OPEN_CALLBACK)),
        ("option", ctypes.CFUNCTYPE(INT, TEXT, TEXT, ctypes.c_size_t)),
        ("table", ctypes.CFUNCTYPE(ctypes.c_void_p)),
    ]


class FullToy:
    """The driver library at a path, loaded once more: the same object as the runtime's."""

    def __init__(self, path: str) -> None:
        get = ctypes.CDLL(path).full_toy_test_hooks
        get.restype = ctypes.POINTER(_Hooks)
        self.hooks = get().contents
        self._kept: list[object] = []

    def calls(self, slot: str) -> int:
        """Calls of a slot so far."""
        return self.hooks.calls(slot.encode())

    def fail_open(self) -> None:
        """Makes every open() fail from now on."""
        self.hooks.fail(b"open", 1, 8, 2)

    def on_open(self, function) -> None:
        """Calls a Python function inside of open()."""
        self._kept.append(OPEN_CALLBACK(function))
        self.hooks.on_open(self._kept[-1])

    def option(self, key: str) -> str | None:
        """An option of the last open()."""
        value = ctypes.create_string_buffer(256)
        return value.value.decode() if self.hooks.option(key.encode(), value, len(value)) else None

    def table(self) -> int:
        """Address of its table."""
        return self.hooks.table()


@contextlib.contextmanager
def raises(kind: type[BaseException], *parts: str) -> Iterator[None]:
    """Fails unless the block raises an error of that kind whose text has all the parts."""
    try:
        yield
    except kind as error:
        text = str(error)
    else:
        raise AssertionError(f"no {kind.__name__}")
    missing = [part for part in parts if part not in text]
    assert not missing, f"{missing} not in: {text}"


@contextlib.contextmanager
def warned() -> Iterator[list[str]]:
    """Texts of the warnings of the block."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        yield texts
    texts += [str(record.message) for record in records]
