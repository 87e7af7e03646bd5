# SPDX-License-Identifier: BSD-3-Clause
"""DLPack: capsules out of openreg tensors, and back."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.dlpack import DLDeviceType


@pytest.fixture
def x() -> torch.Tensor:
    return torch.arange(6.0, device="openreg:1")


def test_the_device(x: torch.Tensor) -> None:
    assert x.__dlpack_device__() == (DLDeviceType.kDLExtDev, 1)
    assert torch.zeros(1, device="openreg:0").__dlpack_device__() == (DLDeviceType.kDLExtDev, 0)
    # what is not ours is PyTorch's answer
    assert torch.zeros(1).__dlpack_device__() == (DLDeviceType.kDLCPU, 0)
    with pytest.raises(ValueError, match="Unknown device type meta"):
        torch.zeros(1, device="meta").__dlpack_device__()


# the tensor that comes back is the same memory, with the same strides, on the same device
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.complex64])
def test_round_trip(dtype: torch.dtype) -> None:
    source = torch.ones(4, 6, device="openreg:1").to(dtype)[:, 1::2].t()
    for back in (
        torch.from_dlpack(source),
        torch.from_dlpack(source.__dlpack__()),
        torch.from_dlpack(source.__dlpack__(max_version=(1, 0))),
        torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(source)),
    ):
        assert (back.device, back.dtype, back.shape) == (source.device, dtype, source.shape)
        assert (back.stride(), back.data_ptr()) == (source.stride(), source.data_ptr())
        back.zero_()
        assert not source.to(torch.bool).any()
        source.fill_(1)


def test_versions(x: torch.Tensor) -> None:
    assert '"dltensor"' in repr(x.__dlpack__())
    assert '"dltensor"' in repr(x.__dlpack__(max_version=(0, 8)))
    assert '"dltensor_versioned"' in repr(x.__dlpack__(max_version=(1, 1)))


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_copies(x: torch.Tensor, version: Any) -> None:
    for stream in (None, -1, 0):
        same = torch.from_dlpack(x.__dlpack__(stream=stream, max_version=version, copy=False))
        assert same.data_ptr() == x.data_ptr()
    other = torch.from_dlpack(x.__dlpack__(max_version=version, copy=True))
    assert other.data_ptr() != x.data_ptr()
    assert other.tolist() == x.tolist()
    host = torch.from_dlpack(x.__dlpack__(max_version=version, dl_device=(DLDeviceType.kDLCPU, 0)))
    assert host.device.type == "cpu"
    assert host.tolist() == x.tolist()
    with pytest.raises((BufferError, ValueError)):
        x.__dlpack__(max_version=version, dl_device=(DLDeviceType.kDLCPU, 0), copy=False)


def test_between_devices(x: torch.Tensor) -> None:
    host = torch.from_dlpack(x, device="cpu")
    assert host.device.type == "cpu"
    assert host.tolist() == x.tolist()
    there = torch.from_dlpack(host, device="openreg:1")
    assert there.device == x.device
    assert there.tolist() == x.tolist()
    assert torch.from_dlpack(x, copy=True).data_ptr() != x.data_ptr()
    with pytest.raises(ValueError, match="without copying"):
        torch.from_dlpack(x, device="cpu", copy=False)


# a consumer that only knows the CPU gets a copy when it asks for one, and a refusal when it does not
def test_numpy(x: torch.Tensor) -> None:
    assert np.from_dlpack(x, device="cpu").tolist() == x.tolist()  # type: ignore[arg-type]
    with pytest.raises((RuntimeError, BufferError)):
        np.from_dlpack(x)  # type: ignore[arg-type]


# what numpy gives is read, and copied to the device
def test_from_numpy() -> None:
    there = torch.from_dlpack(np.arange(3.0)).to("openreg:1")
    assert there.tolist() == [0, 1, 2]


def test_refusals(x: torch.Tensor) -> None:
    with pytest.raises(BufferError, match="require gradient"):
        x.requires_grad_().__dlpack__()
    with pytest.raises(BufferError, match="conjugate bit"):
        torch.ones(2, dtype=torch.complex64, device="openreg").conj().__dlpack__()
    with pytest.raises(TypeError, match="stream must be"):
        x.detach().__dlpack__(stream="0")
    capsule = x.detach().__dlpack__()
    torch.from_dlpack(capsule)
    with pytest.raises(RuntimeError, match="once"):
        torch.from_dlpack(capsule)


# the block lives as long as a capsule or a tensor made of it, and no longer
@pytest.mark.parametrize("version", [None, (1, 0)])
@pytest.mark.parametrize("consumed", [True, False])
def test_lifetime(version: Any, consumed: bool) -> None:
    gc.collect()
    before = torch.openreg.memory_allocated(1)
    source = torch.full((1000,), 3.0, device="openreg:1")
    capsule = source.__dlpack__(max_version=version)
    del source
    assert torch.openreg.memory_allocated(1) > before
    if consumed:
        back = torch.from_dlpack(capsule)
        del capsule
        assert back.tolist() == [3.0] * 1000
        assert torch.openreg.memory_allocated(1) > before
        del back
    else:
        del capsule
    assert torch.openreg.memory_allocated(1) == before


# subclasses keep their way of answering
def test_subclasses(x: torch.Tensor) -> None:
    parameter = torch.nn.Parameter(x)
    assert parameter.__dlpack_device__() == (DLDeviceType.kDLExtDev, 1)
    assert torch.from_dlpack(parameter.detach()).data_ptr() == x.data_ptr()


class CExchange(ctypes.Structure):
    """DLPackExchangeAPI of DLPack 1.3 (ATen/dlpack.h)."""

    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("prev_api", ctypes.c_void_p),
        ("managed_tensor_allocator", ctypes.c_void_p),
        ("managed_tensor_from_py_object", ctypes.c_void_p),
        ("managed_tensor_to_py_object", ctypes.c_void_p),
        ("dltensor_from_py_object", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)),
        (
            "current_work_stream",
            ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)),
        ),
    )


class DLTensor(ctypes.Structure):
    """DLTensor of the same header."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint8 * 4),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


# DLPack's C exchange API: memory, device and shape of a tensor, and the stream that its work is on
@pytest.mark.skipif(not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="this torch has none")
def test_the_c_exchange_api(x: torch.Tensor) -> None:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    api = CExchange.from_address(get(torch.Tensor.__dlpack_c_exchange_api__, b"dlpack_exchange_api"))
    shown = DLTensor()
    part = x[2:5]
    assert api.dltensor_from_py_object(part, ctypes.addressof(shown)) == 0
    assert shown.data + shown.byte_offset == part.data_ptr()
    assert (shown.device_type, shown.device_id) == (DLDeviceType.kDLExtDev, 1)
    assert (shown.ndim, shown.shape[0]) == (1, 3)
    found = ctypes.c_void_p()
    stream = torch.openreg.Stream("openreg:1")
    with torch.openreg.stream(stream):
        assert api.current_work_stream(DLDeviceType.kDLExtDev, 1, ctypes.byref(found)) == 0
        assert (found.value or 0) == stream.native_handle
    assert api.current_work_stream(DLDeviceType.kDLExtDev, 1, ctypes.byref(found)) == 0
    assert (found.value or 0) == torch.openreg.default_stream(1).native_handle
