# SPDX-License-Identifier: BSD-3-Clause
"""The binary module `_C`: its names, and what it does with a wrong argument."""

from __future__ import annotations

import pytest

from torch_openreg import _C

WITH_INDEX = [
    ("_set_device", "setDevice"),
    ("_exchange_device", "exchangeDevice"),
    ("_maybe_exchange_device", "maybeExchangeDevice"),
    ("_has_primary_context", "hasPrimaryContext"),
    ("_get_default_generator", "getDefaultGenerator"),
    ("_synchronize", "synchronize"),
    ("_memory_stats", "memoryStats"),
    ("_mem_get_info", "memGetInfo"),
    ("_get_memory_fraction", "getMemoryFraction"),
    ("_get_device_properties", "getDeviceProperties"),
]


# acceptance 1.2
def test_every_name_is_private() -> None:
    assert [name for name in dir(_C) if not name.startswith("_")] == []


# acceptance 4.18
def test_names() -> None:
    for name in ("_get_device_count", "_get_device", "_set_device", "_exchange_device", "_exchangeDevice", "_init"):
        assert callable(getattr(_C, name))


# acceptance 4.16
@pytest.mark.parametrize(("name", "text"), WITH_INDEX)
@pytest.mark.parametrize("argument", ["x", None, 1.5, True], ids=repr)
def test_a_wrong_type_is_a_type_error(name: str, text: str, argument: object) -> None:
    with pytest.raises(TypeError, match=f"invalid argument to {text}"):
        getattr(_C, name)(argument)
    assert _C._get_device() == 0


@pytest.mark.parametrize(("name", "text"), WITH_INDEX)
@pytest.mark.parametrize("index", [2, -2, 127, 128, 255, 256, 2**40, -(2**70)])
def test_an_index_out_of_range_is_an_error(name: str, text: str, index: int) -> None:
    with pytest.raises(RuntimeError, match=rf"out of range.*\[0, 2\), but got {index}"):
        getattr(_C, name)(index)
    assert _C._get_device() == 0
