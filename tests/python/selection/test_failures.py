# SPDX-License-Identifier: BSD-3-Clause
"""What the failure of a driver means: left out where it was merely found and can't be here, else an error."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from test_command import run
from test_discovery import entry_points, namespace

REGISTER = """
def initialize():
    import torch
    torch.openreg.register_driver_plugin({name!r}, library_path={path!r}{more})
"""
# open() says that there is no device.
WITHOUT_DEVICE = "    from toys import FullToy\n    FullToy({path!r}).hooks.fail(b'open', 1, 4, 2)\n"


ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def vendorless(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of a driver that is linked with a library which is not there."""
    folder = tmp_path_factory.mktemp("vendorless")
    vendor, driver = folder / "libabsent_vendor.so", folder / "vendorless.so"
    compiler = (os.environ.get("CC", "cc"), "-shared", "-fPIC", f"-I{ROOT / 'runtime/include'}")
    source = ROOT / "examples/toy_driver/torch_openreg_toy/driver.c"
    subprocess.run([*compiler, str(ROOT / "tests/drivers/absent_vendor.c"), "-o", str(vendor)], check=True)
    link = ("-Wl,--no-as-needed", str(vendor))
    subprocess.run([*compiler, str(source), "-o", str(driver), "-pthread", *link], check=True)
    vendor.unlink()
    return str(driver)


@pytest.fixture
def site(tmp_path: Path, full_toy: str, vendorless: str) -> str:
    """A folder with three plugins that can't work on this machine."""
    return namespace(
        tmp_path,
        a=REGISTER.format(name="nodevice", path=full_toy, more="") + WITHOUT_DEVICE.format(path=full_toy),
        b=REGISTER.format(name="vendorless", path=vendorless, more=""),
        c=REGISTER.format(name="gone", path="/nowhere/gone.so", more=""),
    )


REASONS = {
    "nodevice": "open was told to fail",
    "vendorless": "libabsent_vendor.so: cannot open shared object file",
    "gone": "cannot load /nowhere/gone.so: No such file or directory",
}


# acceptance 5.72b: found and without a device, or without a library: left out, one line each, the reason kept
def test_what_was_found_and_cant_be_here_is_left_out(python: Any, site: str) -> None:
    done = python(
        f"""
        reasons = {REASONS!r}
        assert openreg.device_count() == 2
        assert openreg.default_driver() == "sim"
        assert torch.ones(2, device="openreg").tolist() == [1, 1]
        for _ in range(2):
            assert list(openreg.drivers()) == ["sim"]
        errors = openreg.driver_errors()
        shown = [line for line in lines if line.startswith(("WARNING", "ERROR"))]
        for name, reason in reasons.items():
            assert reason in errors[name], errors
            assert openreg.driver_info(name)["state"] == "failed"
            mine = [line for line in shown if f'driver "{{name}}"' in line]
            assert len(mine) == 1 and reason in mine[0] and "\\n" not in mine[0], shown
        assert len(shown) == 3, shown
        """,
        PYTHONPATH=site,
    )
    assert "Traceback" not in done.stderr


# acceptance 5.72b: any other failure is an error, unless the plugin says fail_quietly=True
def test_any_other_failure_is_an_error(python: Any, tmp_path: Path, library: Any) -> None:
    path, reason = library("broken_driver", "BROKEN_NO_COPY"), "lacks the required function copy"
    python(
        f"""
        for call in (openreg.init, openreg.drivers, openreg.gpu_device):
            with raises(RuntimeError, "Unable to initialize driver 'boom'", {reason!r}):
                call()
        """,
        PYTHONPATH=namespace(tmp_path, a=REGISTER.format(name="boom", path=path, more="")),
    )
    python(
        f"""
        assert openreg.default_driver() == "sim"
        assert {reason!r} in openreg.driver_errors()["boom"], openreg.driver_errors()
        assert not [line for line in lines if line.startswith(("WARNING", "ERROR"))], lines
        """,
        PYTHONPATH=namespace(tmp_path, a=REGISTER.format(name="boom", path=path, more=", fail_quietly=True")),
    )


# outside of discovery the caller gets the error at once, and nothing is registered
def test_a_program_that_registers_gets_the_error(python: Any, vendorless: str) -> None:
    python(
        f"""
        for path, reason in (("/nowhere/gone.so", "No such file"), ({vendorless!r}, "libabsent_vendor.so")):
            with raises(RuntimeError, reason):
                openreg.register_driver_plugin("toy", library_path=path)
        assert not openreg.is_known_driver("toy")
        """
    )


# acceptance 1.26, 2.20, 5.19: a driver is experimental if its registration says so, whatever its name; it warns once
def test_experimental_is_what_the_plugin_says(python: Any, full_toy: str) -> None:
    python(
        f"""
        openreg.register_driver_plugin("toy", library_path={full_toy!r})
        openreg.register_driver_plugin("hip", library_path={full_toy!r}, experimental=True)
        openreg.register_driver_factory("made", lambda: {full_toy!r}, priority=5, experimental=True)
        openreg.init()
        found = openreg.drivers()
        experimental = {{name: found[name].experimental for name in found}}
        assert experimental == {{"toy": False, "hip": True, "made": True, "sim": False}}, experimental
        text = "WARNING Driver '%s' is experimental and not all OpenReg functionality may be correctly supported!"
        assert [line for line in lines if "is experimental" in line] == [text % "hip", text % "made"], lines
        assert [found[name].priority for name in ("toy", "made")] == [400, 5]
        """
    )


# acceptance 5.36b: a JSON file of this run that is missing or bad is an error that names it, never the simulator
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "FileNotFoundError"),
        ("{", "JSONDecodeError"),
        ("{}", 'should contain "library_path" field.'),
        ('{"library_path": "nowhere.so"}', "nowhere.so: No such file or directory"),
        ("\udcff", "UnicodeDecodeError"),
        ('{"library_path": "x.so", "create_options": [1]}', "must be an object"),
        ('{"library_path": "x.so", "create_options": {"key": null}}', "'key'"),
    ],
)
def test_bad_json_files_are_errors(python: Any, tmp_path: Path, toy: str, content: str | None, reason: str) -> None:
    if content is not None:
        (tmp_path / "bad.json").write_text(content, errors="surrogateescape")
    file = "nowhere.so" if "nowhere" in reason else "bad.json"
    (tmp_path / "good.json").write_text(json.dumps({"library_path": toy}))
    python(
        f"""
        for call in (openreg.init, openreg.drivers, openreg.gpu_device):
            with raises(RuntimeError, "Unable to initialize driver 'ocl'", {reason!r}, {file!r},
                        "correct OPENREG_DRIVER_LIBRARIES"):
                call()
            text = openreg.diagnose(as_dict=True)["error"]
            assert "no such name" not in text and "uninstall" not in text, text
        assert openreg.device_count() == 0
        assert {reason!r} in openreg.driver_errors()["ocl"]
        openreg.use_driver("good")  # names what is wanted
        assert openreg.default_driver() == "good"
        """,
        OPENREG_DRIVER_LIBRARIES=f"ocl:{tmp_path}/bad.json,good:{tmp_path}/good.json",
    )


# a module that registered nothing is named where its driver is asked for
def test_unknown_names_say_what_may_be_meant(python: Any, tmp_path: Path) -> None:
    python(
        """
        with raises(RuntimeError, "'ocl' is not in the list of known drivers",
                    "torch_openreg_plugins.ocl (ImportError: no libOpenCL.so.1)"):
            openreg.init()
        """,
        PYTHONPATH=namespace(tmp_path, ocl="raise ImportError('no libOpenCL.so.1')"),
        OPENREG_DRIVERS="ocl",
    )


# diagnose lists what failed under Drivers, with its reason, and its status says so
def test_diagnose_lists_failed_plugins(tmp_path: Path, full_toy: str) -> None:
    for code, name, reason in (
        (REGISTER.format(name="gone", path="/nowhere/gone.so", more=""), "gone", "No such file or directory"),
        ("raise ImportError('broken inside')", "torch_openreg_plugins.a", "ImportError: broken inside"),
        (r"raise ImportError('no \udcff\0 text')", "torch_openreg_plugins.a", r"ImportError: no \xff\x00 text"),
    ):
        done = run(tmp_path, "diagnose", status=1, PYTHONPATH=namespace(tmp_path, a=code))
        drivers = done.stdout.partition("\nDrivers\n")[2].partition("\n\n")[0].splitlines()
        (at,) = [number for number, line in enumerate(drivers) if line.split()[:2] == [name, "failed"]]
        assert any(reason in line for line in drivers[at + 1 : at + 4]), drivers
        assert f"The plugin {name} failed: " in done.stdout
        assert "driver sim, chosen automatically" in done.stdout
    good = namespace(tmp_path, a=REGISTER.format(name="toy", path=full_toy, more=""))
    run(tmp_path, "diagnose", PYTHONPATH=good)


# acceptance 5.61: nothing has failed before it is tried, nor after the drivers were closed
def test_nothing_has_failed_before_it_is_tried(python: Any) -> None:
    python(
        """
        assert openreg.driver_errors() == {}
        assert openreg.supported_gpu_drivers() == ("cuda", "hip")
        assert openreg.driver_errors() == {}
        assert openreg.is_loaded("hip") is False
        assert list(openreg.driver_errors()) == ["hip"]
        openreg.drivers()
        assert set(openreg.driver_errors()) == {"cuda", "hip"}
        openreg._clear_drivers()
        assert openreg.driver_errors() == {}
        """
    )


# a plugin whose module is imported by one thread, and asks for devices at import, while another thread runs discovery:
# neither waits for the other
@pytest.mark.timeout(60)
def test_discovery_holds_no_lock_while_it_imports(python: Any, tmp_path: Path, full_toy: str) -> None:
    folder = Path(entry_points(tmp_path, "slow = slow_plugin"))
    (folder / "slow_plugin.py").write_text(
        "import time, torch\n"
        "time.sleep(1)\n"
        "torch.openreg.device_count()\n" + REGISTER.format(name="toy", path=full_toy, more="")
    )
    python(
        """
        import threading
        importer = threading.Thread(target=lambda: __import__("slow_plugin"))
        importer.start()
        import time
        time.sleep(0.2)
        assert openreg.default_driver() == "toy"
        importer.join()
        assert openreg.default_driver() == "toy"
        assert not [line for line in lines if line.startswith(("WARNING", "ERROR"))], lines
        """,
        PYTHONPATH=str(folder),
        timeout=40,
    )


# likewise where it is the plugin's function that imports what another thread is importing: that one goes on without
@pytest.mark.timeout(90)
def test_an_import_does_not_wait_for_discovery_for_ever(python: Any, tmp_path: Path, full_toy: str) -> None:
    folder = Path(entry_points(tmp_path, "one = one_plugin"))
    (folder / "helper.py").write_text("import time, torch\ntime.sleep(1)\ntorch.openreg.device_count()\n")
    (folder / "one_plugin.py").write_text(
        REGISTER.format(name="toy", path=full_toy, more="").replace("import torch", "import helper, torch")
    )
    python(
        """
        import threading, time
        from torch_openreg._discovery import search
        search._PATIENCE_SECONDS = 1.0
        importer = threading.Thread(target=lambda: __import__("helper"))
        importer.start()
        time.sleep(0.2)
        assert openreg.default_driver() == "toy"
        importer.join()
        """,
        PYTHONPATH=str(folder),
        timeout=60,
    )
