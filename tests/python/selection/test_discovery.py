# SPDX-License-Identifier: BSD-3-Clause
"""Drivers that come as Python packages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

GOOD = """
import sys
calls = sys.__dict__.setdefault("plugin_calls", [])
calls.append("import " + __name__)
def initialize():
    calls.append("initialize " + __name__)
    import torch
    torch.openreg.register_driver_plugin({name!r}, library_path={path!r})
"""


def namespace(folder: Path, **modules: str) -> str:
    """A folder with the namespace package torch_openreg_plugins and modules in it, for PYTHONPATH."""
    package = folder / "site" / "torch_openreg_plugins"
    package.mkdir(parents=True, exist_ok=True)
    for name, code in modules.items():
        (package / f"{name}.py").write_text(code)
    return str(package.parent)


def entry_points(folder: Path, *lines: str) -> str:
    """A folder with a distribution that has entry points, for PYTHONPATH."""
    information = folder / "site" / "plugins_for_tests-1.0.dist-info"
    information.mkdir(parents=True, exist_ok=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: plugins-for-tests\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("\n".join(["[torch_openreg.drivers]", *lines, ""]))
    return str(information.parent)


# acceptance 5.2, 5.44: without plugins there is a debug line and nothing else
def test_without_plugins(python: Any) -> None:
    python(
        """
        openreg.drivers()
        openreg._clear_drivers()
        openreg.drivers()
        assert lines.count("DEBUG No torch_openreg_plugins namespace packages available") == 1, lines
        assert not [line for line in lines if line.startswith(("WARNING", "ERROR"))], lines
        """
    )


# acceptance 5.3: a namespace package that can't be imported is logged, and the rest works
def test_a_broken_namespace_package(python: Any, tmp_path: Path) -> None:
    package = tmp_path / "site" / "torch_openreg_plugins"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('out of order')")
    python(
        """
        assert "sim" in openreg.drivers()
        errors = [line for line in lines if line.startswith("ERROR")]
        assert errors == ["ERROR Failed to import torch_openreg_plugins: out of order"], errors
        """,
        PYTHONPATH=str(tmp_path / "site"),
    )


# acceptance 5.39, 5.40, 5.44: both ways of finding a module, each once, in order; discovery opens nothing
def test_plugins_register_drivers(python: Any, tmp_path: Path, full_toy: str) -> None:
    site = namespace(
        tmp_path,
        zebra=GOOD.format(name="zebra", path=full_toy),
        apple=GOOD.format(name="apple", path=full_toy),
    )
    (Path(site) / "middle.py").write_text(
        GOOD.format(name="middle", path=full_toy)
        + "def other():\n    calls.append('other')\n"
        + "def third():\n    import time; time.sleep(1.1)\n"
    )
    entry_points(
        tmp_path,
        "one = middle",
        "same = torch_openreg_plugins.zebra",
        "also = torch_openreg_plugins.zebra:initialize",
        "function = middle:other",
        "slow = middle:third",
    )
    python(
        """
        names = openreg.supported_drivers()
        assert set(names) >= {"zebra", "apple", "middle"}, names
        assert not openreg.drivers_are_initialized()
        openreg.supported_drivers()
        assert sys.plugin_calls == [
            "import middle", "initialize middle", "other",
            "import torch_openreg_plugins.apple", "initialize torch_openreg_plugins.apple",
            "import torch_openreg_plugins.zebra", "initialize torch_openreg_plugins.zebra",
        ], sys.plugin_calls
        for line in (
            "DEBUG Discovered path based torch_openreg plugin: torch_openreg_plugins.apple",
            "DEBUG Discovered path based torch_openreg plugin: torch_openreg_plugins.zebra",
            "DEBUG Discovered entry-point based torch_openreg plugin: middle:other",
            "DEBUG Discovered entry-point based torch_openreg plugin: torch_openreg_plugins.zebra",
            "DEBUG Loading plugin module torch_openreg_plugins.apple",
        ):
            assert lines.count(line) == 1, (line, lines)
        slow = [line for line in lines if "it should only register" in line]
        assert len(slow) == 1 and "middle.third()" in slow[0], slow
        assert len(torch_openreg._discovery.search.found_plugins()) == 5
        """,
        PYTHONPATH=site,
    )


# acceptance 5.41, 5.42, 5.43: each kind of broken plugin has its text, and hides no other
def test_broken_plugins_hide_no_other(python: Any, tmp_path: Path, full_toy: str) -> None:
    site = namespace(
        tmp_path,
        a_bad_import="import nobody_has_this_module",
        b_no_function="x = 1",
        c_raises="def initialize():\n    raise ValueError('out of order')\n",
        d_syntax="def",
        e_import_error="raise ImportError('broken inside')",
        z_good=GOOD.format(name="good", path=full_toy),
    )
    entry_points(tmp_path, "nowhere = no.such.module")
    python(
        """
        assert "good" in openreg.supported_drivers()
        prefix = "torch_openreg plugin configuration error: "
        one = {line.splitlines()[0]: line for line in lines if prefix in line}
        expected = {
            "WARNING " + prefix + "Plugin module no.such.module does not exist": "",
            "ERROR " + prefix + "Plugin module torch_openreg_plugins.a_bad_import could not be loaded":
                "nobody_has_this_module",
            "ERROR " + prefix + "Exception when calling torch_openreg_plugins.b_no_function.initialize()":
                "AttributeError",
            "ERROR " + prefix + "Exception when calling torch_openreg_plugins.c_raises.initialize()":
                "ValueError: out of order",
            "ERROR " + prefix + "Plugin module torch_openreg_plugins.d_syntax could not be loaded": "SyntaxError",
            "ERROR " + prefix + "Plugin module torch_openreg_plugins.e_import_error could not be loaded":
                "ImportError: broken inside",
        }
        assert set(one) == set(expected), one
        for first, traceback in expected.items():
            assert traceback in one[first], one[first]
        advice = openreg.diagnose(as_dict=True)["advice"]
        assert any("torch_openreg_plugins.c_raises failed: ValueError: out of order" in line for line in advice)
        """,
        PYTHONPATH=site,
    )


# acceptance 5.43: Ctrl-C is not taken for a broken plugin; the next call goes on where it was
def test_an_interrupt_passes(python: Any, tmp_path: Path, full_toy: str) -> None:
    site = namespace(
        tmp_path,
        a_first=GOOD.format(name="first", path=full_toy),
        b_interrupted="def initialize():\n    raise KeyboardInterrupt\n",
        c_last=GOOD.format(name="last", path=full_toy),
    )
    for call in ("openreg.supported_drivers()", "openreg.init()", "torch.accelerator.device_count(); 0"):
        python(
            f"""
            import signal
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background starts without it
            try:
                {call}
            except KeyboardInterrupt:
                pass
            else:
                raise AssertionError
            names = openreg.supported_drivers()
            assert "first" in names and "last" in names, names
            assert sys.plugin_calls.count("initialize torch_openreg_plugins.a_first") == 1
            """,
            PYTHONPATH=site,
        )


# whoever reaches the runtime first makes discovery run: C++ without the GIL or with it, and once for many threads
@pytest.mark.parametrize(
    "call", ["torch.accelerator.device_count()", "torch.empty(1, device='openreg')", "torch.openreg.is_available()"]
)
def test_every_way_in_discovers(python: Any, tmp_path: Path, full_toy: str, call: str) -> None:
    python(
        f"""
        import threading
        assert not hasattr(sys, "plugin_calls")  # not by importing
        barrier = threading.Barrier(6)
        def work():
            barrier.wait()
            {call}
        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert sys.plugin_calls == ["import torch_openreg_plugins.a", "initialize torch_openreg_plugins.a"]
        assert openreg.get_device_properties(0).driver == "toy"
        """,
        PYTHONPATH=namespace(tmp_path, a=GOOD.format(name="toy", path=full_toy)),
    )


# a plugin that does more than it should, inside of discovery, neither deadlocks nor recurs
@pytest.mark.timeout(60)
def test_a_plugin_that_uses_devices(python: Any, tmp_path: Path, full_toy: str) -> None:
    code = GOOD.format(name="toy", path=full_toy) + "    torch.ones(1, device='openreg')\n    torch.openreg.drivers()\n"
    python(
        """
        openreg.drivers()
        assert sys.plugin_calls == ["import torch_openreg_plugins.a", "initialize torch_openreg_plugins.a"]
        assert openreg.default_driver() == "toy"
        """,
        PYTHONPATH=namespace(tmp_path, a=code),
    )


# a child that can't use devices runs no discovery; one that can runs its own
def test_discovery_after_a_fork(python: Any, tmp_path: Path, full_toy: str) -> None:
    python(
        """
        child = os.fork()
        if child == 0:
            names = openreg.supported_drivers()
            os._exit(0 if "toy" in names and len(sys.plugin_calls) == 2 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not hasattr(sys, "plugin_calls")
        """,
        PYTHONPATH=namespace(tmp_path, a=GOOD.format(name="toy", path=full_toy)),
    )
