# SPDX-License-Identifier: BSD-3-Clause
"""register_driver_factory() and register_driver_plugin()."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

openreg = torch.openreg


# acceptance 5.16, 5.58: what a factory may return, and the texts for what it may not
def test_what_a_factory_may_return(python: Any, toy: str, full_toy: str) -> None:
    python(
        f"""
        import ctypes, pathlib, types
        table = FullToy({full_toy!r}).table()
        new_capsule = ctypes.pythonapi.PyCapsule_New
        new_capsule.restype, new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        name = b"openreg_driver"
        good = {{
            "an_int": lambda: table,
            "a_capsule": lambda: new_capsule(table, name, None),
            "a_path": lambda: {toy!r},
            "a_pathlib": lambda: pathlib.Path({toy!r}),
            "described": lambda: types.SimpleNamespace(device_count=lambda: 3, version="7.1", devices=["left"]),
        }}
        for key, factory in good.items():
            openreg.register_driver_factory(key, factory)
            assert openreg.is_functional(key), openreg.driver_errors()
        described = openreg.get_driver("described")
        assert (described.version, described.device_count, described.api_version) == ("described 7.1", 3, None)
        assert [device.name for device in described.devices()] == ["left", "described 1", "described 2"]
        assert described.devices()[0].torch_device is None
        with raises(RuntimeError):
            openreg.use_driver("described")

        def boom():
            raise LookupError("no such thing")
        class Counted:
            @property
            def device_count(self):
                raise LookupError("not counted")
        other = new_capsule(table, b"other", None)
        bad = {{
            "none": (lambda: None, "Could not initialize driver 'none'"),
            "boom": (boom, "LookupError: no such thing"),
            "zero": (lambda: 0, "ValueError"),
            "true": (lambda: True, "TypeError"),
            "float": (lambda: 1.5, "TypeError: A factory must return"),
            "wrong": (lambda: other, "ValueError"),
            "empty": (lambda: types.SimpleNamespace(device_count=0), "Driver 'empty' provides no devices."),
            "odd": (lambda: types.SimpleNamespace(device_count="many"), "TypeError: 'str' object cannot be"),
            "huge": (lambda: types.SimpleNamespace(device_count=2**31), "OverflowError"),
            "property": (Counted, "LookupError: not counted"),
            "absent": (lambda: "/nonexistent/driver.so", "/nonexistent/driver.so"),
            "long": (lambda: "/x" * 400, "cannot load /x/x"),
        }}
        for key, (factory, text) in bad.items():
            openreg.register_driver_factory(key, factory)
            assert not openreg.is_functional(key)
            assert text in openreg.driver_errors()[key], (key, openreg.driver_errors()[key])
            assert openreg.driver_info(key)["state"] == "failed"
        with raises(TypeError):
            openreg.register_driver_factory("no_function", 3)
        with raises(RuntimeError):
            openreg.register_driver_factory("Not a name", lambda: None)
        """
    )


# acceptance 5.18: the class reports failures by default, the function is quiet about them
def test_who_fails_quietly(python: Any) -> None:
    assert openreg.DriverRegistration("x").fail_quietly is False
    python(
        """
        def boom():
            raise RuntimeError("boom")
        openreg.register_driver_factory("quiet", boom)
        assert "quiet" not in openreg.drivers()
        assert "boom" in openreg.driver_errors()["quiet"]
        openreg._clear_drivers()
        openreg.register_driver_factory("loud", boom, fail_quietly=False)
        with raises(RuntimeError, "Unable to initialize driver 'loud'", "boom"):
            openreg.drivers()
        """
    )


# acceptance 5.22
def test_signature_of_register_driver_factory() -> None:
    signature = inspect.signature(openreg.register_driver_factory)
    defaults = {name: parameter.default for name, parameter in signature.parameters.items()}
    assert list(defaults)[:2] == ["name", "factory"]
    assert {k: v for k, v in defaults.items() if k not in ("name", "factory")} == {
        "priority": 0,
        "fail_quietly": True,
        "experimental": False,
        "make_topology": None,
    }
    for name in ("priority", "fail_quietly", "experimental", "make_topology"):
        assert signature.parameters[name].kind is inspect.Parameter.KEYWORD_ONLY


# acceptance 5.23, 5.24: an open driver can't be replaced; a new one is seen at the next choice; before, the last one holds
def test_registering_late(python: Any, toy: str, full_toy: str) -> None:
    python(
        f"""
        openreg.register_driver_factory("twice", lambda: None)
        openreg.register_driver_factory("twice", lambda: {toy!r})
        before = openreg.drivers()
        assert "twice" in before
        with raises(RuntimeError, "Driver sim already initialized"):
            openreg.register_driver_factory("sim", lambda: {toy!r})
        openreg.register_driver_plugin("late", library_path={full_toy!r})
        assert openreg.drivers() is before and "late" not in before
        assert [line for line in lines if line.startswith("DEBUG") and "takes effect after reset" in line], lines
        openreg._clear_drivers()
        assert "late" in openreg.drivers()
        """,
        OPENREG_LOG_LEVEL="debug",
    )


# acceptance 5.46, 5.48: a library is loaded when it is registered, and opened once, when it is needed
def test_a_library_is_opened_once(python: Any, full_toy: str) -> None:
    python(
        f"""
        toy = FullToy({full_toy!r})
        handle = openreg.register_driver_plugin("toy", library_path={full_toy!r})
        assert handle is not None and (handle.name, handle.priority) == ("toy", 400)
        assert toy.calls("open") == 0 and openreg.driver_info("toy")["state"] == "loaded"
        for _ in range(3):
            openreg.drivers()
        assert toy.calls("open") == 1
        assert openreg.default_driver() == "toy"
        assert openreg.get_driver("toy").path == {full_toy!r}
        """
    )


# acceptance 5.46: a table that is in this process already
def test_a_table_by_its_address(python: Any, full_toy: str) -> None:
    python(
        f"""
        address = FullToy({full_toy!r}).table()
        handle = openreg.register_driver_plugin("toy", c_api=address, priority=300)
        assert handle.c_api == address
        assert openreg.default_driver() == "toy"
        assert torch.ones(3, device="openreg:1").sum().item() == 3
        """
    )


# acceptance 5.47
def test_both_or_neither_is_logged(python: Any, toy: str) -> None:
    python(
        f"""
        assert openreg.register_driver_plugin("both", library_path={toy!r}, c_api=1) is None
        assert openreg.register_driver_plugin("neither") is None
        assert lines == [
            "ERROR Both library_path and c_api are provided when registering plugin both",
            "ERROR Neither library_path nor c_api provided when registering plugin neither",
        ], lines
        assert not openreg.is_known_driver("both") and not openreg.is_known_driver("neither")
        """
    )


# acceptance 5.38, 5.49: options as texts, a variable over them, and a TypeError that names the key
def test_options_of_a_plugin(python: Any, full_toy: str) -> None:
    python(
        f"""
        toy = FullToy({full_toy!r})
        options = {{"a": "x", "b": 3, "c": [3, 1], "d": 1.5, "e": True, "f": False, "over": 1}}
        openreg.register_driver_plugin("toy", library_path={full_toy!r}, options=options)
        openreg.init()
        assert [toy.option(key) for key in "abcdef"] == ["x", "3", "3,1", "1.5", "1", "0"]
        assert toy.option("over") == "2"
        for value in (None, [1, "x"], [True], {{}}, 1j):
            with raises(TypeError, "'key'"):
                openreg.register_driver_plugin("other", library_path={full_toy!r}, options={{"key": value}})
        with raises(TypeError):
            openreg.register_driver_plugin("other", library_path={full_toy!r}, options={{3: 1}})
        assert not openreg.is_known_driver("other")
        """,
        OPENREG_TOY_OVER="2",
    )


# acceptance 5.33: a process by itself is number 0 of 1; later it is what torch.distributed says
def test_node_id(python: Any, full_toy: str) -> None:
    python(
        f"""
        from torch_openreg._discovery import process as _process
        openreg.register_driver_plugin("toy", library_path={full_toy!r})
        openreg.init()
        toy = FullToy({full_toy!r})
        assert (toy.option("node_id"), toy.option("num_nodes")) == ("0", "1")
        openreg._clear_drivers()
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        assert _process.index_and_count() == (0, 1)
        torch.distributed.get_rank, torch.distributed.get_world_size = lambda: 2, lambda: 5  # of a larger program
        openreg.init()
        assert (toy.option("node_id"), toy.option("num_nodes")) == ("2", "5")
        """
    )


# acceptance 5.73: registering is logged for debugging, with what the driver comes from
def test_registering_a_plugin_is_logged(python: Any, toy: str) -> None:
    python(
        f"""
        openreg.register_driver_plugin("Toy", library_path={toy!r})
        assert lines.count("DEBUG registering driver plugin toy from " + {toy!r}) == 1, lines
        """
    )


# the factory is called by one thread, and what it does in Python can't block those that wait for it
@pytest.mark.timeout(120)
def test_a_factory_that_uses_openreg_is_refused(python: Any, toy: str) -> None:
    python(
        f"""
        import threading
        seen = []
        def factory():
            for call in (openreg.drivers, openreg.init, openreg.gpu_device, lambda: openreg.use_driver("sim")):
                try:
                    call()
                except RuntimeError as error:
                    seen.append(str(error))
            return {toy!r}
        openreg.register_driver_factory("toy", factory, priority=500)
        threads = [threading.Thread(target=call) for call in (openreg.drivers, openreg.init, openreg.gpu_device)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert len(seen) == 4 and all("factory" in text for text in seen), seen
        assert openreg.default_driver() == "toy"
        """
    )
