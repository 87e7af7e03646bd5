# SPDX-License-Identifier: BSD-3-Clause
"""The pytest plugin: options, fixtures, markers, leaks, peak memory. Most sessions run in this process, on its 2 devices."""

from __future__ import annotations

import gc
import sys
import xml.etree.ElementTree as ElementTree

import pytest
import torch
from finished import finished

import torch_openreg_lab.strict  # noqa: F401  (else each session of pytester has classes of its own)
from torch_openreg_lab import pytest_plugin as plugin

pytest_plugins = ["pytester"]

# What other plugins do is not looked at, and takes time.
FAST = [f"-pno:{name}" for name in ("xdist", "cacheprovider", "timeout", "unraisableexception", "threadexception")]
ONE_TEST = "def test_one():\n    import torch\n    assert torch.ones(2, device='openreg').sum() == 2\n"


@pytest.fixture(autouse=True)
def _settings(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """No options of this checkout, and nothing that the machine has set."""
    pytester.makeini("[pytest]\n")
    monkeypatch.delenv("OPENREG_SIM_DEVICES", raising=False)
    monkeypatch.delenv("OPENREG_SIM_RACES", raising=False)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)


@pytest.fixture
def settled() -> None:
    """What tests of other files have left in this process, and whose end would hide what a session leaves, is gone.

    The devices and their streams are the first ones, as they are in a process of its own.
    """
    for index in reversed(range(torch.openreg.device_count())):
        torch.openreg.set_device(index)
        torch.openreg.set_stream(torch.openreg.default_stream(index))
        torch.openreg.synchronize(index)
    gc.collect()
    torch.openreg.empty_host_cache()


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    """A session in this process."""
    # A module of an installed plugin that another test has imported before.
    quiet = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
    return pytester.runpytest_inprocess(*FAST, *quiet, *options)


# ---------------------------------------------------------------------------------------------- without an option


# nothing is imported, and nothing set, as long as no option asks for devices; --openreg-peaks asks for nothing
@pytest.mark.parametrize("options", [(), ("--openreg-peaks=3",)])
def test_costs_nothing_without_an_option(pytester: pytest.Pytester, options: tuple[str, ...]) -> None:
    pytester.makepyfile(
        """
        import os, sys
        def test_nothing():
            assert "torch_openreg_lab.pytest_plugin" in sys.modules
            assert not [name for name in sys.modules if name.split(".")[0] in ("torch", "torch_openreg")]
            assert not [name for name in os.environ if name.startswith("OPENREG_SIM_")]
        """
    )
    command = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error", *options)
    result = pytester.run(*command)
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("openreg: *")


# the entry point is known to pytest by its name, and pytest is no requirement of the package
def test_entry_point() -> None:
    from importlib.metadata import distribution

    package = distribution("torch-openreg")
    (entry,) = package.entry_points.select(group="pytest11")
    assert f"{entry.name} = {entry.value}" == "openreg = torch_openreg_lab.pytest_plugin"
    assert not [line for line in package.requires or () if line.startswith("pytest")]


# the package itself never imports pytest
def test_package_without_pytest() -> None:
    code = "import sys; sys.modules['pytest'] = None; import torch_openreg, torch; print(torch.openreg.device_count())"
    done = finished([sys.executable, "-c", code])
    assert done.stdout == "2\n"


# the fixtures work without an option, too
def test_fixtures_without_an_option(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import torch
        def test_device(openreg_device):
            assert openreg_device == torch.device("openreg:0")
        """
    )
    run(pytester).assert_outcomes(passed=1)


# -------------------------------------------------------------------------------------------------------- machine


# in a process of its own: the number and the memory of devices, known before a conftest.py imports torch; the header
def test_a_machine(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("import torch\nCOUNT = torch.openreg.device_count()\n")
    pytester.makepyfile(
        """
        import os, torch
        from conftest import COUNT
        def test_machine(openreg_devices):
            assert COUNT == len(openreg_devices) == torch.openreg.device_count() == 5
            assert torch.openreg.get_device_properties(4).total_memory == 64 << 20
            assert torch.openreg.default_driver() == "sim"
            assert os.environ["OPENREG_SIM_SEED"].isdecimal()
        """
    )
    options = ("--openreg=5", "--openreg-memory=64M", "--openreg-seed=random", "-p", "no:cacheprovider")
    result = pytester.run(sys.executable, "-m", "pytest", *options)
    result.assert_outcomes(passed=1)
    result.stdout.re_match_lines([r"openreg: 5 simulated devices of 64M, seed \d+$"])


# workers of pytest-xdist have the controller's machine and seed, and their peaks reach the report; the controller no torch
def test_with_xdist(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    pytester.makeconftest(
        """
        import sys
        def pytest_sessionfinish(session):
            if not hasattr(session.config, "workerinput"):
                assert "torch" not in sys.modules
                print("the controller has no torch")
        """
    )
    pytester.makepyfile(
        """
        import os, pytest, torch
        @pytest.mark.parametrize("i", range(2))
        def test_machine(openreg_devices, i):
            x = torch.empty(1 << 20, dtype=torch.uint8, device=openreg_devices[2])
            assert len(openreg_devices) == 3
            print("seed", os.environ["OPENREG_SIM_SEED"], os.environ["PYTEST_XDIST_WORKER"])
            assert i == 0
        """
    )
    options = ("-n", "1", "--openreg=3", "--openreg-seed=random", "-rA", "-p", "no:cacheprovider")
    result = pytester.run(sys.executable, "-m", "pytest", *options)
    result.assert_outcomes(passed=1, failed=1)
    seeds = {line.split()[1] for line in result.outlines if line.startswith("seed ")}
    assert len(seeds) == 1
    result.stdout.fnmatch_lines(
        [
            "*the controller has no torch",
            "* openreg: most device memory, 2 of 2 tests *",
            "*1.0 MiB  openreg:2 *test_with_xdist.py::test_machine*",
            f"openreg: the same order of the devices' work again: --openreg-seed={seeds.pop()}",
        ]
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--openreg=0"], "must be a number from 1 to 127, but is '0'"),
        (["--openreg=many"], "must be a number from 1 to 127, but is 'many'"),
        (["--openreg-seed=-1"], "must be a number below 2**64, or random, but is '-1'"),
        (["--openreg-peaks=x"], "must be a number, but is 'x'"),
        (["--openreg-leaks=maybe"], "invalid choice: 'maybe'"),
        (["--openreg=4"], "2 device(s) of driver 'sim' opened, before pytest read its options*OPENREG_SIM_DEVICES=4."),
        (["--openreg-memory=1G"], "these come too late: OPENREG_SIM_MEMORY=1G."),
        (["--openreg-seed=17"], "these come too late: OPENREG_SIM_SEED=17."),
        (["--openreg-driver=cuda"], "these come too late: OPENREG_DRIVERS=cuda."),
        (["--openreg-driver=cuda", "--openreg-races"], "--openreg-races is for simulated devices, *'cuda'"),
    ],
)
def test_errors_of_options(pytester: pytest.Pytester, options: list[str], message: str) -> None:
    """A wrong value, and one that comes after the devices of this process were opened."""
    torch.openreg.init()
    pytester.makepyfile(ONE_TEST)
    result = run(pytester, *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{message}*"])


# a driver that has fewer devices is an error with its reason, before the first test
def test_a_driver_that_is_not_there(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(ONE_TEST)
    options = ("--openreg=2", "--openreg-driver=hip", "-p", "no:cacheprovider")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENREG_HIP_LIBRARY_PATH", "/nowhere/libopenreg_hip.so")
        patch.setenv("OPENREG_SYSTEM_ROOT", "/nowhere")
        result = pytester.run(sys.executable, "-m", "pytest", *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--openreg=2, but there are 0 device(s).*", "*Unable to initialize driver 'hip'*"])


# the options are variables, which tests' own processes inherit, and which end with the session
def test_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = pytest.Parser(_ispytest=True)
    plugin.pytest_addoption(parser)

    def read(*words: str, **environment: str) -> dict[str, str]:
        return plugin.variables(parser.parse_known_args(list(words)), environment)

    base = {"OPENREG_DRIVERS": "sim", "OPENREG_AUTOLOAD": "1"}
    assert read("--openreg=8") == base | {"OPENREG_SIM_DEVICES": "8"}
    assert read("--openreg-races") == base | {"OPENREG_SIM_DEVICES": "2", "OPENREG_SIM_RACES": "report"}
    cuda = {"OPENREG_SIM_DEVICES": "3", "OPENREG_AS_CUDA": "1"}
    assert read("--openreg-as-cuda", OPENREG_SIM_DEVICES="3") == base | cuda
    assert read("--openreg-gpu=a100", OPENREG_SIM_DEVICES="3") == base | cuda | {"OPENREG_AS_CUDA": "a100"}
    laboratory = {"OPENREG_SIM_SEED": "7", "OPENREG_SIM_FAULTS": "nomem 5%", "OPENREG_SIM_MEMORY": "2G"}
    options = ("--openreg-seed=7", "--openreg-faults=nomem 5%", "--openreg-memory=2G")
    assert read("--openreg=1", *options) == base | laboratory | {"OPENREG_SIM_DEVICES": "1"}
    strict = read("--openreg-strict", OPENREG_OPERATORS_POLICY="aten::mm=warn")
    assert strict["OPENREG_OPERATORS_POLICY"] == "aten::mm=warn,staged=forbid"
    cuda = read("--openreg=2", "--openreg-driver=cuda", OPENREG_USE_MOCK_GPU="cuda")
    assert cuda == {
        "OPENREG_DRIVERS": "cuda",
        "OPENREG_AUTOLOAD": "1",
        "OPENREG_CUDA_VISIBLE_DEVICES": "0,1",
        "OPENREG_MOCK_NUM_GPUS": "2",
    }


# the variables are those of the session: afterwards they are what they were
def test_variables_are_given_back(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setenv("OPENREG_DRIVERS", "")
    pytester.makepyfile(ONE_TEST + "    import os; assert os.environ['OPENREG_DRIVERS'] == 'sim'\n")
    run(pytester, "--openreg=2").assert_outcomes(passed=1)
    assert os.environ["OPENREG_DRIVERS"] == ""
    assert "OPENREG_SIM_DEVICES" not in os.environ


# ----------------------------------------------------------------------------------------------- fixtures, markers


# both fixtures restore the current device; a parameter picks another device, and skips where there is none
@pytest.mark.usefixtures("settled")
def test_fixtures(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest, torch
        def test_default(openreg_device):
            assert torch.openreg.current_device() == openreg_device.index == 0
            torch.openreg.set_device(1)
        @pytest.mark.parametrize("openreg_device", [1, 7], indirect=True)
        def test_other(openreg_device):
            assert torch.openreg.current_device() == openreg_device.index == 1
            assert torch.ones(1, device="openreg").device == openreg_device
        def test_all(openreg_devices):
            assert torch.openreg.current_device() == 0
            assert openreg_devices == [torch.device("openreg:0"), torch.device("openreg:1")]
            torch.openreg.set_device(1)
        def test_last():
            assert torch.openreg.current_device() == 0
        """
    )
    result = run(pytester, "--openreg=2", "-rs")
    result.assert_outcomes(passed=4, skipped=1)
    result.stdout.fnmatch_lines(["*there is no device openreg:7: pytest --openreg=8"])


# a test that needs more devices is skipped with the remedy, or fails under --openreg-strict; a wrong marker is an error
def test_marker_of_devices(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        @pytest.mark.openreg_devices(2)
        def test_two(): pass
        @pytest.mark.openreg_devices(4)
        def test_four(): pass
        """
    )
    result = run(pytester, "-rs", "--strict-markers")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["*needs 4 openreg devices, and there are 2: pytest --openreg=4"])
    run(pytester, "--openreg-strict").assert_outcomes(passed=1, errors=1)
    pytester.makepyfile("import pytest\n@pytest.mark.openreg_devices('4')\ndef test_four(): pass\n")
    run(pytester).stdout.fnmatch_lines(["*openreg_devices takes one number*"])


# --------------------------------------------------------------------------------------------------------- leaks

LEAKS = """
import pytest, torch

KEPT = []

def test_memory(openreg_device):
    KEPT.append(torch.zeros(3, 1000, device=openreg_device))
def test_garbage(openreg_device):
    class Cycle: pass
    cycle = Cycle()
    cycle.itself, cycle.tensor = cycle, torch.zeros(10, device=openreg_device)
def test_clean(openreg_device):
    (torch.ones(8, 8, device=openreg_device, requires_grad=True) * 2).sum().backward()
def test_pinned_and_copied(openreg_device):
    torch.zeros(1 << 20).pin_memory().to(openreg_device, non_blocking=True)
def test_event(openreg_device):
    KEPT.append(torch.openreg.Event())
    KEPT[-1].record()
def test_stream(openreg_device):
    torch.openreg.set_stream(torch.openreg.Stream())
def test_stream_is_the_default_again():
    assert torch.openreg.current_stream() == torch.openreg.default_stream()
def test_device():
    torch.openreg.set_device(1)
def test_pinned():
    KEPT.append(torch.zeros(10).pin_memory())
"""


@pytest.mark.usefixtures("settled")
def test_leaks_are_errors(pytester: pytest.Pytester) -> None:
    """What is left is an error of the teardown, with its kind, size and holder; garbage and graphs are none."""
    pytester.makepyfile(test_leaks=LEAKS)
    result = run(pytester, "--openreg=2", "--openreg-leaks=error", "-rE")
    result.assert_outcomes(passed=9, errors=5)
    result.stdout.fnmatch_lines(
        [
            "*ERROR at teardown of test_memory*",
            "  1 block(s) of device memory on openreg:0, 12000 bytes",
            "    float32[[]3, 1000[]] on openreg:0, held by 'KEPT' of module test_leaks",
            "*ERROR at teardown of test_event*",
            "  1 event(s)",
            "*ERROR at teardown of test_stream*",
            "  another current stream on openreg:0",
            "*ERROR at teardown of test_device*",
            "  openreg:1 as the current device, instead of openreg:0",
            "*ERROR at teardown of test_pinned*",
            "  1 block(s) of pinned memory",
        ]
    )


# by default they are warnings, which name the test; "off" says nothing; --openreg-strict makes them errors
@pytest.mark.usefixtures("settled")
def test_modes_of_leaks(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_leaks=LEAKS)
    result = run(pytester, "--openreg=2", "-k", "memory or clean")
    result.assert_outcomes(passed=2, warnings=1)
    result.stdout.fnmatch_lines(["test_leaks.py::test_memory", "*OpenregLeakWarning: The test left on the devices:*"])
    run(pytester, "--openreg=2", "--openreg-leaks=off", "-k", "memory").assert_outcomes(passed=1, warnings=0)
    run(pytester, "--openreg-strict", "-k", "memory").assert_outcomes(passed=1, errors=1)


# a marker decides for one test
@pytest.mark.usefixtures("settled")
def test_marker_of_leaks(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest, torch
        KEPT = []
        @pytest.mark.openreg_leaks("off")
        def test_off(): KEPT.append(torch.ones(1, device="openreg"))
        @pytest.mark.openreg_leaks("error")
        def test_error(): KEPT.append(torch.ones(1, device="openreg"))
        @pytest.mark.openreg_leaks("no")
        def test_wrong(): KEPT.append(torch.ones(1, device="openreg"))
        """
    )
    result = run(pytester, "--openreg=2")
    result.stdout.fnmatch_lines(["*ERROR at teardown of test_error*", "*openreg_leaks takes one of error, warn, off*"])
    result.assert_outcomes(passed=3, errors=2)


# wider fixtures are not blamed: what they make, what tests add to what they hold, and events; a test after them is
@pytest.mark.usefixtures("settled")
def test_wider_fixtures(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest, torch
        KEPT = []
        @pytest.fixture(scope="session")
        def model():
            return torch.nn.Linear(4, 4, device="openreg")
        @pytest.fixture(scope="module")
        def event():
            event = torch.openreg.Event()
            event.record()
            yield event
        @pytest.fixture
        def own():
            return torch.ones(5, device="openreg")
        def test_forward(model, event, own):
            model(torch.ones(1, 4, device="openreg"))
        def test_gradients(model, own):
            model(torch.ones(1, 4, device="openreg")).sum().backward()
            assert model.weight.grad is not None
        class TestClass:
            @pytest.fixture(scope="class", autouse=True)
            @classmethod
            def weights(cls):
                cls.tensor = torch.ones(100, device="openreg")
                yield
                del cls.tensor
            def test_instance(self, model):
                self.kept = torch.ones(3, device="openreg")
        def test_blamed(model):
            KEPT.append(torch.ones(7, device="openreg"))
        """
    )
    result = run(pytester, "--openreg=2", "--openreg-leaks=error")
    result.assert_outcomes(passed=4, errors=1)
    result.stdout.fnmatch_lines(["*ERROR at teardown of test_blamed*", "*float32[[]7[]] on openreg:0*"])


# unittest's classes, and a test that fails: its traceback holds its tensors, and nobody is blamed for it
@pytest.mark.usefixtures("settled")
def test_unittest_and_failures(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import unittest, torch
        class TestCase(unittest.TestCase):
            @classmethod
            def setUpClass(cls): cls.shared = torch.ones(3, device="openreg")
            @classmethod
            def tearDownClass(cls): del cls.shared
            def setUp(self): self.tensor = torch.ones(3, device="openreg")
            def test_method(self): self.assertEqual(self.tensor.sum(), 3)
        def test_fails():
            tensor = torch.ones(3, device="openreg")
            assert tensor.sum() == 4
        def test_after_it():
            torch.ones(3, device="openreg")
        """
    )
    run(pytester, "--openreg=2", "--openreg-leaks=error").assert_outcomes(passed=2, failed=1)


# -------------------------------------------------------------------------------------------------- faults, races


# the devices fail by a test's own plan, and work again after it; a plan that hits nothing is a warning, a bad one an error
def test_marker_of_faults(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest, torch
        @pytest.mark.openreg_faults("nomem at 2")
        def test_no_memory():
            kept = torch.empty(8, device="openreg")
            with pytest.raises(torch.OutOfMemoryError):
                torch.empty(8, device="openreg")
            torch.empty(8, device="openreg")
        @pytest.mark.openreg_faults("openreg:1 lost after 1 copy")
        @pytest.mark.openreg_faults("nomem at 1")
        def test_two_plans():
            with pytest.raises(torch.OutOfMemoryError):
                torch.empty(8, device="openreg:1")
            with pytest.raises(RuntimeError, match="lost"):
                for _ in range(3):
                    torch.ones(8).to("openreg:1")
        def test_after_them():
            assert torch.ones(8).to("openreg:1").sum() == 8
        @pytest.mark.openreg_faults("nomem at 1000")
        def test_hits_nothing():
            torch.empty(8, device="openreg")
        @pytest.mark.openreg_faults("no such plan")
        def test_bad():
            pass
        @pytest.mark.openreg_faults(5)
        def test_wrong():
            pass
        """
    )
    for options in ((), ("--openreg=2",)):
        result = run(pytester, *options)
        result.assert_outcomes(passed=4, failed=2, warnings=1)
        result.stdout.fnmatch_lines(
            ["*openreg_faults takes one text*", "*OpenregFaultWarning: The faults 'nomem at 1000' have hit nothing*"]
        )


# what the race detector has found in a test fails it, with the text of each race; the next test begins without. Uses of a
# lost device are errors already
def test_races(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys, pytest, torch

        def race(orders=False):
            x = torch.zeros(256, device="openreg")
            side = torch.openreg.Stream()
            side.wait_stream(torch.openreg.current_stream())
            with torch.openreg.stream(side):
                x.add_(1)
            if orders:
                torch.openreg.current_stream().wait_stream(side)
            x.mul_(2)

        @pytest.fixture
        def late():
            yield
            race()
        def test_race(): race()
        def test_none(): race(orders=True)
        def test_late(late): pass
        def test_shown():
            x = torch.zeros(2, device="openreg")
            with torch.openreg.stream(torch.openreg.Stream()):
                assert x is None
        def test_race_and_error():
            race()
            assert False
        @pytest.mark.openreg_faults("openreg:1 lost at copy 1")
        def test_of_a_lost_device():
            x, stream = torch.zeros(256, device="openreg:1"), torch.openreg.current_stream("openreg:1")
            for call in (x.cpu, stream.query):
                with pytest.raises(RuntimeError):
                    call()
            assert "--openreg-races" not in sys.argv or [r.kind for r in torch.openreg.races()] == ["lost-device"]
        """
    )
    command = (sys.executable, "-m", "pytest", *FAST, "--openreg=2")
    result = pytester.run(*command, "--openreg-races")
    result.assert_outcomes(passed=3, failed=3, errors=1)
    # That pytest prints the tensor of test_shown is no race; an error is shown with the race that may have caused it.
    assert sum(line.startswith("1 race(s)") for line in result.outlines) == 3
    result.stdout.fnmatch_lines(
        ["*, races are failures", "1 race(s): on a GPU these may*", "*aten::add_*", "*aten::mul_*"]
    )
    pytester.run(*command).assert_outcomes(passed=4, failed=2)


# ---------------------------------------------------------------------------------------------------- peak memory


# the most that a test had, in the list at the end and as a property in the JUnit file; 0 lines on request. In a process of
# its own, where nothing else is on the devices.
def test_peak_memory(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import torch
        def test_small(): torch.empty(2 << 20, dtype=torch.uint8, device="openreg")
        def test_large(): torch.empty(3 << 20, dtype=torch.uint8, device="openreg:1")
        def test_none(): pass
        """
    )
    options = ("--openreg=2", "--junit-xml=report.xml", "-o", "junit_family=xunit1", "-p", "no:cacheprovider")
    result = pytester.run(sys.executable, "-m", "pytest", *options)
    result.stdout.fnmatch_lines(
        [
            "* openreg: most device memory, * of 3 tests *",
            "* 3.0 MiB  openreg:1 *test_peak_memory.py::test_large",
            "* 2.0 MiB  openreg:0 *test_peak_memory.py::test_small",
        ]
    )
    properties = {
        case.get("name"): {one.get("name"): one.get("value") for one in case.iter("property")}
        for case in ElementTree.parse(pytester.path / "report.xml").iter("testcase")
    }
    assert properties["test_large"] == {"openreg_peak_bytes": str(3 << 20), "openreg_peak_device": "openreg:1"}
    assert properties["test_small"] == {"openreg_peak_bytes": str(2 << 20), "openreg_peak_device": "openreg:0"}
    assert properties["test_none"]["openreg_peak_bytes"] == "0"
    run(pytester, "--openreg=2", "--openreg-peaks=0").stdout.no_fnmatch_line("*most device memory*")


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 40, "5.0 TiB")])
def test_size_text(count: int, text: str) -> None:
    """Sizes for people."""
    assert plugin.size_text(count) == text


# --------------------------------------------------------------------------------------------------- strict, as cuda


# what --openreg-strict refuses in the code under test, and what a test itself may do with results
def test_strict(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        library="""
        import torch
        def mask(x): return x[x > 0]
        def assign(x): x[x > 0] = 1
        def cpu_index(x): return x[torch.tensor([0, 1])]
        def truth(x): return 1 if x.sum() > 0 else 0
        def number(x): return int(x.sum()) + float(x.sum())
        def count(x): return list(range(x.sum().long()))
        def nonzero(x): return torch.nonzero(x)
        def unique(x): return torch.unique(x)
        def select(x): return torch.masked_select(x, x > 0)
        def staged(x): return torch.mm(x.reshape(2, 2), x.reshape(2, 2))
        def explicit(x): return x.sum().item(), x.tolist(), x.cpu(), torch.where(x > 0, x, 0), x[0], x[1:]
        def mixed(x): return x + torch.ones(4, device="openreg:1")
        """,
        test_strict="""
        import pytest, torch, library
        from torch_openreg_lab.strict import HiddenCopyError
        @pytest.fixture
        def x(openreg_device): return torch.ones(4, device=openreg_device)
        @pytest.mark.parametrize("name", ["mask", "assign", "cpu_index", "truth", "number", "count"])
        def test_hidden(x, name):
            with pytest.raises(HiddenCopyError):
                getattr(library, name)(x)
        @pytest.mark.parametrize("name", ["nonzero", "unique", "select"])
        def test_operators(x, name):
            with pytest.raises(RuntimeError, match="forbid"):
                getattr(library, name)(x)
        def test_mixed(x):
            with pytest.raises(RuntimeError, match="same device"):
                library.mixed(x)
        def test_explicit(x):
            library.explicit(x)
        def test_results(x):
            assert x.sum() == 4 and int(x.sum()) == 4 and x[x > 0].shape == (4,)
            torch.testing.assert_close(x, torch.ones_like(x))
        """,
    )
    result = run(pytester, "--openreg-strict")
    result.assert_outcomes(passed=12)
    assert torch.Tensor.__bool__ is torch._C.TensorBase.__bool__
    assert torch.ones(3, device="openreg").nonzero().shape == (3, 1)


# tests that say "cuda" run, and afterwards "cuda" is CUDA again
def test_as_cuda(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest, subprocess, sys, torch
        pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
        def test_two():
            x = torch.ones(3, device="cuda:1") + torch.ones(3).cuda(1)
            assert x.is_cuda and x.sum() == 6
            torch.cuda.synchronize()
        def test_child():
            code = "import torch; print(torch.ones(1, device='cuda').is_cuda)"
            assert subprocess.check_output([sys.executable, "-c", code], text=True) == "True\\n"
        """
    )
    run(pytester, "--openreg=2").assert_outcomes(skipped=2)
    result = run(pytester, "--openreg=2", "--openreg-as-cuda")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["openreg: 2 simulated devices, as cuda"])
    assert not torch.cuda.is_available()


# an error of the device that nobody asked for fails the test that it belongs to
def test_errors_behind_the_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(ONE_TEST)
    with pytest.MonkeyPatch.context() as patch:

        def fail(index: int) -> None:
            raise RuntimeError("the device has failed")

        patch.setattr(torch.openreg, "synchronize", fail)
        result = run(pytester, "--openreg=2")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*RuntimeError: the device has failed"])
