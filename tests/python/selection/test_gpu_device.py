# SPDX-License-Identifier: BSD-3-Clause
"""cpu_device(), gpu_device() and what they go by."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch

openreg = torch.openreg

PREFERENCE = '[torch_openreg]\ngpu_backend = "{}"\n'


def prefer(folder: Path, name: str) -> None:
    (folder / "LocalPreferences.toml").write_text(PREFERENCE.format(name))


# acceptance 1.2, 1.3: what the documents list is public
def test_every_function_is_public() -> None:
    names = [
        "cpu_device",
        "gpu_device",
        "reset_gpu_device",
        "supported_gpu_drivers",
        "supported_drivers",
        "set_preferred_driver",
        "get_preferred_driver",
        "is_loaded",
        "is_functional",
        "use_driver",
        "canonical_name",
        "DeviceSelectionError",
        "Driver",
        "DeviceInfo",
        "drivers",
        "get_driver",
        "devices",
        "local_devices",
        "device_count",
        "local_device_count",
        "global_device_count",
        "process_index",
        "process_count",
        "default_driver",
        "driver_errors",
        "driver_info",
        "driver_api_version",
        "driver_topology",
        "get_device_driver",
        "using_driver_c_api",
        "drivers_are_initialized",
        "is_known_driver",
        "is_gpu_driver",
        "expand_driver_alias",
        "canonicalize_driver",
        "register_driver_factory",
        "register_driver_plugin",
        "DriverRegistration",
        "diagnose",
    ]
    assert set(names) <= set(openreg.__all__)
    for name in names:
        assert callable(getattr(openreg, name)), name
        assert inspect.getdoc(getattr(openreg, name)), name


# acceptance 1.13, 2.6: the CPU, whatever is wrong elsewhere, and nothing is opened
def test_cpu_device_opens_nothing(python: Any) -> None:
    python(
        """
        assert openreg.cpu_device() == torch.device("cpu")
        assert not openreg.drivers_are_initialized()
        with raises(RuntimeError):
            openreg.drivers()
        assert openreg.cpu_device() == torch.device("cpu")
        """,
        OPENREG_DRIVERS="broken",
    )
    x = torch.arange(3.0, device="openreg")
    moved = x.to(openreg.cpu_device())
    assert moved.device.type == "cpu"
    assert moved.tolist() == [0, 1, 2]


# acceptance 1.14
def test_force_gpu_usage_is_a_keyword() -> None:
    with pytest.raises(TypeError):
        openreg.gpu_device(True)
    parameter = inspect.signature(openreg.gpu_device).parameters["force_gpu_usage"]
    assert parameter.kind is parameter.KEYWORD_ONLY
    assert parameter.default is False


# acceptance 1.18, 2.8, 2.14: the first that works, in the order of supported_gpu_drivers(); what is absent is passed silently
def test_the_first_that_works_is_chosen(python: Any) -> None:
    python(
        """
        assert openreg.gpu_device() == torch.device("openreg")
        first = next(name for name in openreg.supported_gpu_drivers() if openreg.is_functional(name))
        assert openreg.default_driver() == first == "cuda"
        assert torch.zeros(2, device=openreg.gpu_device()).device == torch.device("openreg:0")
        """,
        OPENREG_USE_MOCK_GPU="hip,cuda",
    )
    done = python(
        """
        assert openreg.gpu_device() == torch.device("openreg")
        assert openreg.default_driver() == "hip"
        assert not [line for line in lines if "cuda" in line and line.startswith(("WARNING", "ERROR"))], lines
        """,
        OPENREG_USE_MOCK_GPU="hip",
    )
    assert "Warning" not in done.stderr


# acceptance 1.19, 1.20, 1.21, 2.9, 2.19: without a GPU the CPU, once with a warning; an error if that is no answer
def test_without_a_gpu(python: Any) -> None:
    python(
        """
        with warned() as texts:
            device = openreg.gpu_device()
            assert openreg.gpu_device() is device
        assert device == torch.device("cpu")
        assert texts == ["No functional GPU device found! Defaulting to CPU."], texts
        assert "INFO No GPU is available. Using CPU." in lines, lines
        assert not openreg.drivers_are_initialized()  # the simulated driver was not opened for this
        model = torch.nn.Linear(3, 2).to(device)
        x = torch.ones(4, 3)
        assert x.to(device) is x
        model(x.to(device)).sum().backward()
        for _ in range(2):  # what was found before hides nothing
            with raises(openreg.DeviceSelectionError, "No functional GPU device found!!", "cuda: ", "hip: ",
                        "/nonexistent/libopenreg_cuda.so", "/nonexistent/libopenreg_hip.so"):
                openreg.gpu_device(force_gpu_usage=True)
        assert issubclass(openreg.DeviceSelectionError, RuntimeError)
        """
    )


# a simulated driver that was chosen by itself and is in use: the answer is the CPU, and the text says what keeps it
def test_an_automatic_sim_is_no_gpu(python: Any) -> None:
    python(
        """
        x = torch.ones(2, device="openreg")
        with warned() as texts:
            assert openreg.gpu_device() == torch.device("cpu")
        assert "1 live allocation(s) on driver 'sim'" in texts[0], texts
        os.environ["OPENREG_USE_MOCK_GPU"] = "cuda"
        assert openreg.default_driver() == "sim"
        """
    )


# acceptance 1.21b: what was chosen explicitly counts, the simulated driver too
def test_what_was_chosen_explicitly_counts_as_a_gpu(python: Any, tmp_path: Path) -> None:
    forced = 'assert openreg.gpu_device(force_gpu_usage=True) == torch.device("openreg")'
    python(
        f"{forced}; openreg._clear_drivers(); del os.environ['OPENREG_DRIVERS']; openreg.use_driver('sim'); {forced}",
        OPENREG_DRIVERS="sim",
    )
    prefer(tmp_path, "sim")
    python(forced)


# acceptance 1.21b: so do a mock GPU and a plugin that nobody chose; a plugin whose devices are simulated doesn't
def test_mocks_and_plugins_count_as_a_gpu(python: Any, toy: str) -> None:
    forced = 'assert openreg.gpu_device(force_gpu_usage=True) == torch.device("openreg")'
    python(f"{forced}; assert openreg.default_driver() == 'hip'", OPENREG_USE_MOCK_GPU="hip")
    python(
        f"""
        openreg.register_driver_plugin("toy", library_path={toy!r})
        {forced}
        assert openreg.default_driver() == "toy"
        """
    )


# acceptance 1.22, 1.23, 2.13: the answer is kept until it is reset; a driver that appears is then found
def test_reset_tries_again(python: Any, tmp_path: Path, full_toy: str) -> None:
    prefer(tmp_path, "toy")
    python(
        f"""
        for _ in range(2):
            assert openreg.reset_gpu_device() is None
        assert not openreg.drivers_are_initialized()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert openreg.gpu_device() == torch.device("cpu")
        text = "driver 'toy' set via preferences is not a valid driver"
        assert sum(text in line for line in lines) == 1, lines
        openreg.register_driver_plugin("toy", library_path={full_toy!r})
        assert openreg.gpu_device() == torch.device("cpu")
        openreg.reset_gpu_device()
        assert openreg.gpu_device() == torch.device("openreg")
        assert openreg.default_driver() == "toy"
        assert _C._selection()["chosen_by"] == "preference"
        """
    )


# acceptance 1.22b: also where a GPU was found a reset chooses again, unless tensors are alive on it
def test_reset_chooses_another_gpu(python: Any, full_toy: str) -> None:
    python(
        f"""
        assert openreg.gpu_device() == torch.device("openreg") and openreg.default_driver() == "cuda"
        openreg.register_driver_plugin("better", library_path={full_toy!r})
        assert openreg.gpu_device() == torch.device("openreg") and openreg.default_driver() == "cuda"
        x = torch.ones(2, device="openreg")
        with raises(RuntimeError, "1 live allocation(s) on driver 'cuda'"):
            openreg.reset_gpu_device()
        del x
        openreg.reset_gpu_device()
        assert openreg.gpu_device() == torch.device("openreg")
        assert openreg.default_driver() == "better"
        """,
        OPENREG_USE_MOCK_GPU="cuda",
    )


# acceptance 2.19b: a device of a driver by name, chosen where none is active yet; else an error that says what to call
def test_a_device_of_a_named_driver(python: Any) -> None:
    python(
        """
        device = openreg.gpu_device(driver="rocm")
        assert device == torch.device("openreg:0") and openreg.default_driver() == "hip"
        with raises(openreg.DeviceSelectionError, "Driver 'cuda' is not active: the devices are those of ['hip']",
                    "torch.openreg.use_driver('cuda') or torch.openreg.use_driver('hip', 'cuda') chooses it"):
            openreg.driver_device("cuda", 0)
        openreg.use_driver("cuda", "hip")
        assert openreg.driver_device("hip", 0) == openreg.gpu_device(driver="hip") == torch.device("openreg:1")
        assert openreg.get_device_driver(openreg.driver_device("hip", 0)).name == "hip"
        assert openreg.driver_device("gpu") == torch.device("openreg:0")
        with raises(RuntimeError, "Driver 'hip' has 1 device(s), but got 1"):
            openreg.driver_device("hip", 1)
        with raises(openreg.DeviceSelectionError, "Driver 'nobody' can't be used: it is none of ('cuda', 'hip', 'sim')"):
            openreg.driver_device("nobody")
        openreg.set_device(1)
        x = torch.ones(1, device="openreg")
        assert openreg.same_device(x, openreg.driver_device("hip")) and openreg.same_device("openreg", "gpu:1")
        assert openreg.same_device(x, "openreg") and not openreg.same_device(x, 0)
        assert openreg.same_device("cpu", torch.ones(1)) and not openreg.same_device("cpu", x)
        """,
        OPENREG_USE_MOCK_GPU="cuda,hip",
    )
    python(
        """
        with raises(openreg.DeviceSelectionError, "Unable to initialize driver 'cuda'", "/nonexistent/"):
            openreg.gpu_device(driver="cuda")
        assert openreg.gpu_device(driver="sim") == torch.device("openreg:0")
        with raises(openreg.DeviceSelectionError, "Driver 'cuda' can't be used: ", "/nonexistent/libopenreg_cuda.so"):
            openreg.gpu_device(driver="cuda")
        """
    )


# a failure is remembered, and a reset forgets it; open drivers stay open
def test_reset_forgets_failures_alone(python: Any, full_toy: str) -> None:
    python(
        f"""
        toy = FullToy({full_toy!r})
        toy.fail_open()
        openreg.register_driver_factory("toy", lambda: {full_toy!r})
        assert not openreg.is_functional("toy") and not openreg.is_functional("toy")
        assert toy.calls("open") == 1
        assert "toy" in openreg.driver_errors()
        toy.hooks.reset()
        openreg.is_functional("sim")
        openreg.reset_gpu_device()
        assert "toy" not in openreg.driver_errors()
        assert openreg.driver_info("sim")["state"] == "open"
        assert openreg.is_functional("toy")
        """
    )


# acceptance 1.24, 1.25: known drivers, whatever the machine has, by priority
def test_supported_drivers(python: Any, full_toy: str) -> None:
    python(
        f"""
        assert openreg.supported_gpu_drivers() == ("cuda", "hip")
        assert openreg.supported_drivers() == ("cuda", "hip", "sim")
        openreg.register_driver_plugin("toy", library_path={full_toy!r})
        openreg.register_driver_factory("last", lambda: {full_toy!r}, priority=-5)
        assert openreg.supported_gpu_drivers()[:3] == ("toy", "cuda", "hip")
        assert openreg.supported_drivers() == ("toy", "cuda", "hip", "sim", "last")
        assert not openreg.drivers_are_initialized()
        assert not openreg.is_functional("cuda")
        assert not openreg.drivers_are_initialized()
        """
    )
    assert "not the ones that work" in inspect.getdoc(openreg.supported_gpu_drivers)


# acceptance 2.4: a library that is not there is not loaded, without an exception, and the reason can be had
def test_is_loaded(python: Any, library: Any) -> None:
    python(
        f"""
        assert openreg.is_loaded("cuda") is False
        assert "/nonexistent/libopenreg_cuda.so" in openreg.driver_errors()["cuda"]
        assert openreg.is_loaded("gpu") is False and openreg.is_loaded("nobody") is False
        assert openreg.is_loaded("sim") is True
        openreg.register_driver_plugin("toy", library_path={library("toy_driver")!r})
        openreg.register_driver_factory("broken", lambda: {library("broken_driver", "BROKEN_NO_ENTRY")!r})
        openreg.register_driver_plugin("closed", library_path={library("broken_driver", "BROKEN_OPEN_FAILS")!r})
        assert openreg.is_loaded("toy") is True
        assert openreg.is_loaded("broken") is False
        assert "openreg_driver_query_v1" in openreg.driver_errors()["broken"]
        assert openreg.is_loaded("closed") is True  # its library is fine
        assert not openreg.drivers_are_initialized()
        assert openreg.is_functional("closed") is False
        assert openreg.is_loaded("closed") is True
        """
    )


# acceptance 2.18: each question opens one driver alone
def test_is_functional_asks_one_driver(python: Any) -> None:
    python(
        """
        if openreg.is_functional("cuda"):
            raise AssertionError
        elif openreg.is_functional("AMDGPU"):
            branch = "hip"
        else:
            raise AssertionError
        states = {record["name"]: record["state"] for record in openreg.driver_records()}
        assert states["hip"] == "open" and states["sim"] != "open", states
        assert openreg.is_functional("gpu") and not openreg.is_functional("nobody") and not openreg.is_functional("?")
        """,
        OPENREG_USE_MOCK_GPU="hip",
    )


# acceptance 2.15: what moves keeps its type and shape, and the link to where it came from
def test_moving_to_the_gpu_device_keeps_what_a_tensor_is(python: Any) -> None:
    python(
        """
        x = torch.randn(3, 2, requires_grad=True)
        for view, strides in ((x, (2, 1)), (x.t(), (1, 2)), (x[::2], (2, 1)), (x[:, :1].expand(3, 4), (4, 1))):
            y = view.to(openreg.gpu_device())
            assert (y.dtype, y.shape, y.device.type) == (torch.float32, view.shape, "openreg")
            assert y.stride() == view.detach().clone().stride() == strides, (y.stride(), strides)
            assert torch.equal(y.cpu(), view)
        x.to(openreg.gpu_device()).sum().backward()
        assert torch.equal(x.grad, torch.ones(3, 2))
        """,
        OPENREG_USE_MOCK_GPU="1",
    )


# acceptance 5.50: an installed driver that fails is an error, as everywhere else, and not a reason for the CPU
def test_a_broken_plugin_is_no_silent_cpu(python: Any, library: Any) -> None:
    python(
        f"""
        openreg.register_driver_plugin("broken", library_path={library("broken_driver", "BROKEN_OPEN_FAILS")!r})
        for force in (False, True):
            with raises(RuntimeError, "Unable to initialize driver 'broken'", "the vendor's library is too old"):
                openreg.gpu_device(force_gpu_usage=force)
        """
    )


# acceptance 2.19b: where OPENREG_DRIVERS is set it decides, whichever function is called first
@pytest.mark.parametrize("call", ["openreg.driver_device('hip', 0)", "openreg.gpu_device(driver='hip')"])
def test_the_variable_decides_before_a_named_device(python: Any, call: str) -> None:
    python(
        f"""
        assert {call} == torch.device("openreg:1")
        assert openreg.driver_device("cuda", 0) == torch.device("openreg:0") and openreg.device_count() == 2
        with raises(openreg.DeviceSelectionError, "Driver 'sim' is not active: the devices are those of ['cuda', 'hip']"):
            openreg.driver_device("sim")
        """,
        OPENREG_USE_MOCK_GPU="cuda,hip",
        OPENREG_DRIVERS="cuda,hip",
    )
