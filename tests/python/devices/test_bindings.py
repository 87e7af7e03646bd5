# SPDX-License-Identifier: BSD-3-Clause
"""The binary module `_C`: its names, and what it does with a wrong argument."""

from __future__ import annotations

from collections.abc import Callable

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


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("_faults_begin", 5),
        ("_faults_end", 5),
        ("_faults_hits", 5),
        ("_flight_recorder_start", "5"),
        ("_flight_recorder_write", 5),
    ],
)
def test_the_laboratory_names_the_function(name: str, argument: object) -> None:
    with pytest.raises(TypeError, match=f"invalid argument to {name}"):
        getattr(_C, name)(argument)


@pytest.mark.parametrize(("name", "text"), WITH_INDEX)
@pytest.mark.parametrize("index", [2, -2, 127, 128, 255, 256, 2**40, -(2**70)])
def test_an_index_out_of_range_is_an_error(name: str, text: str, index: int) -> None:
    with pytest.raises(RuntimeError, match=rf"out of range.*\[0, 2\), but got {index}"):
        getattr(_C, name)(index)
    assert _C._get_device() == 0


# acceptance 4.16: whatever a binding is given, it returns or raises; it never ends the process
def test_wrong_arguments_of_every_function(python: Callable[..., object]) -> None:
    python(
        """
        import torch
        from torch_openreg import _C

        odd = ["x", "a\\0b", "\\ud800", b"x", "x" * 5000, 1.5, float("nan"), 2**70, -(2**70), [], [object()], {}, (), {1: 2}]
        functions = {name: getattr(_C, name) for name in dir(_C) if callable(getattr(_C, name))}
        assert len(functions) > 70, len(functions)

        def refused(errors, function, *arguments, **keywords):
            try:
                function(*arguments, **keywords)
            except errors:
                return True
            return False

        known = (TypeError, ValueError, OverflowError, RuntimeError)
        of_capsules = {"_replace_operator_rules": known}
        for name, function in functions.items():
            assert refused(TypeError, function, *[object()] * 12), name
            assert refused(TypeError, function, no_such_keyword=1), name
            for count in (1, 2, 3):
                assert refused(of_capsules.get(name, TypeError), function, *[object()] * count), (name, count)
                for argument in odd:
                    refused(known, function, *[argument] * count)
        keys = ("table", "library_path", "factory", "options", "priority")
        for key in keys:
            assert refused(known, _C._register_driver, "odd", **{key: object()}), key
            for argument in odd:
                if not (key == "table" and isinstance(argument, int)):
                    assert refused(known, _C._register_driver, "odd", **{key: argument}), (key, argument)
        _C._init()
        assert _C._get_device() == 0
        """
    )


# what a binding has taken it gives back, whether it returns or raises
def test_bindings_keep_no_references(python: Callable[..., object]) -> None:
    python(
        """
        import sys
        from torch_openreg import _C

        def fails(*_):
            raise ValueError("no")

        def refused(function, *arguments, **keywords):
            try:
                function(*arguments, **keywords)
            except (TypeError, ValueError, RuntimeError):
                return
            raise AssertionError(f"{function} took {arguments} {keywords}")

        unraised = []
        sys.unraisablehook = lambda error: unraised.append(str(error.exc_value))

        def discovery():
            _C._set_discovery(fails)
            _C._driver_records()
            assert unraised.pop() == "no" and not unraised
            _C._set_discovery(lambda: False)
            _C._driver_records()

        def log():
            _C._set_log_callback(print)
            _C._set_log_callback(lambda level, text: None)
            _C._set_log_callback(None)

        options = {"a" * 50: "b" * 50, "key": 3}
        calls = {
            "records": _C._driver_records,
            "selection": _C._selection,
            "properties": lambda: _C._get_device_properties(0),
            "device": lambda: _C._driver_device("sim", 0),
            "topology": lambda: _C._driver_topology("sim", "", {"a" * 50: "b" * 50}),
            "expand": lambda: _C._expand_driver("gpu"),
            "canonical": lambda: _C._canonical_driver_name("AMDGPU"),
            "last error": _C._last_error,
            "priorities": lambda: _C._stream_priority_range(0),
            "use": lambda: _C._use_drivers(None),
            "discovery": discovery,
            "log": log,
            "no such device": lambda: refused(_C._driver_device, "sim", 99),
            "no such driver": lambda: refused(_C._find_driver, "nobody"),
            "malformed name": lambda: refused(_C._canonical_driver_name, "not a name"),
            "topology of nobody": lambda: refused(_C._driver_topology, "nobody", "", {"a" * 50: "b" * 50}),
            "topology's options": lambda: refused(_C._driver_topology, "sim", "", options),
            "registered options": lambda: refused(_C._register_driver, "x", factory=fails, options=options),
            "registered path": lambda: refused(_C._register_driver, "x", library_path="a\\0b"),
            "registered library": lambda: refused(_C._register_driver, "x", library_path="/nonexistent.so"),
            "registered table": lambda: refused(_C._register_driver, "x", factory=fails, table=0),
            "registered name": lambda: refused(_C._register_driver, "not a name", factory=lambda: None),
            "registered factory": lambda: refused(_C._register_driver, "x", library_path="x" * 300, factory=3),
        }
        _C._init()
        repeats = 400
        for name, call in calls.items():
            for _ in range(50):
                call()
            before = sys.getallocatedblocks()
            for _ in range(repeats):
                call()
            grown = sys.getallocatedblocks() - before
            assert grown < repeats // 2, (name, grown)
        """,
        OPENREG_LOG_LEVEL="error",
    )
