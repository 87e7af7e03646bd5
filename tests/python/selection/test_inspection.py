# SPDX-License-Identifier: BSD-3-Clause
"""drivers() and what is told of drivers and their devices."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from finished import finished

openreg = torch.openreg


# acceptance 2.3, 5.13, 5.15: several drivers are open at once; mock ones work, and say that they are simulated
def test_mock_gpus(python: Any) -> None:
    python(
        """
        found = openreg.drivers()
        assert list(found) == ["cuda", "hip", "sim"], found
        for name in ("cuda", "hip"):
            driver = found[name]
            assert driver.simulated and driver.is_gpu and driver.device_count == 2 and driver.source == "mock"
            assert len(driver.devices()) == 2
            assert any(line.startswith("WARNING") and name in line and "simulated" in line for line in lines), lines
        assert not found["sim"].is_gpu
        assert found["cuda"].devices()[1].torch_device == torch.device("openreg:1")
        assert found["hip"].devices()[1].torch_device is None  # open, and not active
        assert torch.ones(3).to("openreg:1").to("openreg:0").cpu().sum().item() == 3
        openreg.use_driver("hip")
        assert torch.ones(3, device="openreg:1").sum().item() == 3
        """,
        OPENREG_USE_MOCK_GPU="cuda,hip",
        OPENREG_MOCK_NUM_GPUS="2",
    )


# acceptance 5.45: what the environment says of built-in GPU drivers, and only of those
def test_options_from_the_environment(python: Any) -> None:
    python(
        """
        options = openreg._options_from_env
        assert options("cuda") == {"visible_devices": [1]}
        assert options("hip") == options("toy") == options("?") == {}
        os.environ["OPENREG_CUDA_VISIBLE_DEVICES"] = "all"
        os.environ["OPENREG_USE_MOCK_GPU"] = "rocm"
        os.environ["OPENREG_MOCK_NUM_GPUS"] = "3"
        assert options("cuda") == {}
        assert options("hip") == {"mock": True, "num_devices": 3}
        assert not openreg.drivers_are_initialized()
        """,
        OPENREG_CUDA_VISIBLE_DEVICES="1",
        OPENREG_TOY_VISIBLE_DEVICES="1",
    )


# acceptance 5.58: the level of Python's logger is enough for the runtime's lines; the variable shows them by itself
def test_log_levels(python: Any) -> None:
    code = """
        for name in ("sim", "hip"):
            openreg.is_functional(name)
        debug = [line for line in lines if line.startswith("DEBUG Driver 'sim' initialized")]
        assert len(debug) == 1, lines
        del lines[:]
        logging.getLogger("torch_openreg").setLevel(logging.WARNING)
        openreg._clear_drivers()
        openreg.is_functional("sim")
        assert lines == [], lines
        """
    assert python(code).stderr == ""
    done = finished(
        [sys.executable, "-c", "import torch; torch.ones(1, device='openreg')"],
        env={k: v for k, v in os.environ.items() if not k.startswith("OPENREG_")} | {"OPENREG_LOG_LEVEL": "debug"},
    )
    assert "Driver 'sim' initialized" in done.stderr


# acceptance 5.5, 5.56: one mapping as long as nothing changes; the listed ones alone, the first is the default
def test_the_mapping_is_kept(python: Any) -> None:
    python(
        """
        found = openreg.drivers()
        assert list(found) == ["sim", "cuda"] and openreg.default_driver() == "sim"
        assert openreg.drivers() is found
        assert found["sim"] is openreg.get_driver("sim") is openreg.get_driver()
        assert found["cuda"] is openreg.get_driver("cuda")
        assert openreg.device_count() == 3
        try:
            found["x"] = 1
        except TypeError:
            pass
        else:
            raise AssertionError
        """,
        OPENREG_USE_MOCK_GPU="cuda",
        OPENREG_DRIVERS="sim,cuda",
    )


# acceptance 5.58, 5.60: the texts for a driver that is unknown, and for one that has failed
def test_drivers_that_can_not_be_had(python: Any) -> None:
    python(
        """
        openreg.drivers()
        with raises(RuntimeError, "Driver 'cuda' failed to initialize: ", "Available drivers are ['sim']"):
            openreg.get_driver("cuda")
        with raises(RuntimeError, "Unknown driver zzz"):
            openreg.get_driver("zzz")
        sim = openreg.get_driver("SIM")
        assert openreg.get_driver(sim) is sim and isinstance(sim, openreg.Driver)
        """
    )


# acceptance 5.61, 5.73: clearing closes all and forgets failures, unless tensors live
def test_clearing(python: Any, full_toy: str) -> None:
    python(
        f"""
        toy = FullToy({full_toy!r})
        openreg.register_driver_plugin("toy", library_path={full_toy!r}, priority=-1)
        failing = True
        def make():
            if failing:
                raise ValueError("out of order")
            return {full_toy!r}
        openreg.register_driver_factory("fails", make)
        first = openreg.drivers()
        assert "out of order" in openreg.driver_errors()["fails"]
        x = torch.ones(1, device="openreg")
        with raises(RuntimeError, "1 live allocation(s) on driver 'sim'"):
            openreg._clear_drivers()
        assert openreg.drivers_are_initialized()
        del x
        pinned = torch.ones(3).pin_memory()
        del pinned
        openreg._clear_drivers()
        assert not openreg.drivers_are_initialized() and not openreg.is_initialized()
        assert toy.hooks.live(b"instance") == 0
        assert openreg.driver_errors() == {{}}  # also of the driver that had failed
        assert lines.count("DEBUG Clearing driver caches.") == 2, lines
        failing = False
        second = openreg.drivers()
        assert second is not first and set(second) == set(first) | {{"fails"}}
        assert toy.calls("open") == 3
        assert torch.ones(2, device="openreg").sum().item() == 2
        """
    )


RANK = """
import os, sys
import torch
openreg = torch.openreg
openreg.use_driver("sim")
rank = int(sys.argv[2])
own = 2 + rank  # a sum is not a product
assert (openreg.device_count(), openreg.local_device_count(), openreg.global_device_count()) == (own, own, own)
openreg._clear_drivers()
store = torch.distributed.FileStore(sys.argv[1], 2)
torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
assert (openreg.device_count(), openreg.local_device_count(), openreg.global_device_count()) == (own, own, 5)
assert (openreg.process_index(), openreg.process_count()) == (rank, 2)
assert (openreg.process_index("sim"), openreg.process_count("sim")) == (rank, 2)
assert [device.process_index for device in openreg.devices()] == [rank] * own
assert openreg.local_devices() == openreg.local_devices(rank) == openreg.devices()
assert openreg.local_devices(1 - rank) == []
torch.distributed.destroy_process_group()
"""


# acceptance 5.63, 5.66: counts of this process, and of two
def test_two_processes(tmp_path: Any) -> None:
    store = str(tmp_path / "store")
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, store, str(rank)], env=os.environ | {"OPENREG_SIM_DEVICES": str(2 + rank)}
        )
        for rank in range(2)
    ]
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]


# acceptance 5.75: questions about processes take a driver
def test_processes_of_a_driver() -> None:
    assert openreg.process_index("sim") == openreg.process_index(openreg.get_driver()) == 0
    assert openreg.process_count(driver="SIM") == 1
    for question in (openreg.process_index, openreg.process_count):
        with pytest.raises(RuntimeError, match="Unknown driver nobody"):
            question("nobody")


# acceptance 3.20, 5.63, 5.64, 5.66: devices of one process
def test_devices() -> None:
    found = openreg.devices()
    assert len(found) == openreg.device_count() == openreg.global_device_count() == 2
    assert [device.torch_device for device in found] == [torch.device("openreg:0"), torch.device("openreg:1")]
    assert [(device.index, device.driver, device.process_index) for device in found] == [(0, "sim", 0), (1, "sim", 0)]
    assert found[0].is_simulated
    assert (openreg.process_index(), openreg.process_count()) == (0, 1)
    assert openreg.local_devices() == openreg.devices("sim") == openreg.devices(openreg.get_driver())
    assert openreg.device_count("sim") == openreg.local_device_count("sim") == 2
    for index in (1, -1):
        with pytest.raises(ValueError, match=f"Unknown process_index {index}"):
            openreg.local_devices(process_index=index)
    for device in (None, 1, "openreg:1", torch.device("openreg", 1), found[1]):
        assert openreg.get_device_driver(device) is openreg.get_driver()
    with pytest.raises(ValueError):
        openreg.get_device_driver("cpu")
    with pytest.raises(RuntimeError, match="out of range"):
        openreg.get_device_driver(7)


# acceptance 5.65, 5.70: the version of the C interface, which a driver in Python lacks
def test_the_c_interface(python: Any, full_toy: str) -> None:
    python(
        f"""
        import types
        openreg.register_driver_plugin("toy", library_path={full_toy!r})
        openreg.register_driver_factory("described", lambda: types.SimpleNamespace(device_count=1, version="2"))
        assert openreg.using_driver_c_api() and openreg.using_driver_c_api("sim")
        assert not openreg.using_driver_c_api("described")
        assert openreg.driver_api_version("toy") == (1, 0) and openreg.driver_api_version("described") is None
        assert openreg.get_driver("toy").version == "toy 2.0 (OpenReg C API 1.0)"
        assert openreg.get_driver("described").version == "described 2"
        assert openreg.default_driver() == "toy"
        """
    )


# what is told of one driver, and of none
def test_driver_info() -> None:
    information = openreg.driver_info("sim")
    assert (information["state"], information["is_active"], information["device_count"]) == ("open", True, 2)
    assert openreg.driver_info(openreg.get_driver("sim")) == information
    with pytest.raises(RuntimeError, match="not in the list of known drivers"):
        openreg.driver_info("nobody")
    with pytest.raises(RuntimeError):
        openreg.driver_info("not a name")


# a program that is refused at one place gets to know why: the decision, the drivers, the plugins, advice
def test_diagnose(python: Any) -> None:
    python(
        """
        facts = openreg.diagnose(as_dict=True)
        assert facts["error"] == "" and facts["selection"]["default_driver"] == "sim"
        assert {driver["name"]: driver["state"] for driver in facts["drivers"]} == {
            "cuda": "failed", "hip": "failed", "sim": "open"}
        assert facts["variables"]["OPENREG_SIM_DEVICES"] == "3"
        text = openreg.diagnose()
        for part in ("Versions", torch.__version__, "3 device(s)", "driver sim, chosen automatically",
                     "/nonexistent/libopenreg_cuda.so", "OPENREG_SIM_DEVICES", "LocalPreferences.toml", "Advice"):
            assert part in text, text
        """,
        OPENREG_SIM_DEVICES="3",
    )
    python(
        """
        facts = openreg.diagnose(as_dict=True)
        assert "Unable to initialize driver 'cuda'" in facts["error"]
        assert any("cuda" in line for line in facts["advice"])
        assert "Unable to initialize driver 'cuda'" in openreg.diagnose()
        """,
        OPENREG_DRIVERS="cuda",
    )
