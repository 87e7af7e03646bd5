# SPDX-License-Identifier: BSD-3-Clause
"""Plugin of pytest: a machine of simulated accelerators for a test session (docs/testing-with-openreg.md).

pytest loads it in every environment that has the package, so it is a module of its own, beside the package, and imports
neither torch nor the package until an option asks for devices or a test for a fixture. PYTEST_DONT_REWRITE

What the options mean is written into variables ``OPENREG_*`` before any conftest.py is read: the runtime reads them
when it starts, and processes that tests start inherit them. Checks of single tests are in ``torch_openreg_lab``.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from _torch_openreg_device_name import device_name

if TYPE_CHECKING:
    import torch

_PREFIX = "openreg_"
_MAX_DEVICES = 127
_DEFAULT_DEVICES = 2

# What the simulator alone can do: the option, and the variable that the runtime reads.
_OF_SIMULATOR = {
    "openreg_memory": "OPENREG_SIM_MEMORY",
    "openreg_races": "OPENREG_SIM_RACES",
    "openreg_seed": "OPENREG_SIM_SEED",
    "openreg_faults": "OPENREG_SIM_FAULTS",
}


def _number(text: str, least: int = 0, most: float = float("inf"), what: str = "a number") -> int:
    if not text.isdecimal() or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"must be {what}, but is {text!r}")
    return int(text)


def _device_number(text: str) -> int:
    return _number(text, 1, _MAX_DEVICES, f"a number from 1 to {_MAX_DEVICES}")


def _seed(text: str) -> int | str:
    return text if text == "random" else _number(text, most=(1 << 64) - 1, what="a number below 2**64, or random")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options. None of them is set by default."""
    group = parser.getgroup("openreg", "accelerators without hardware (torch-openreg)")
    add = group.addoption
    add("--openreg", metavar="N", type=_device_number, help="run with N simulated devices of the type openreg")
    add("--openreg-memory", metavar="SIZE", help="memory of each of them, such as 2G")
    add("--openreg-races", action="store_true", default=None, help="fail tests whose streams race (OPENREG_SIM_RACES)")
    add("--openreg-seed", metavar="N", type=_seed, help="order of the devices' work: a number, or random")
    add("--openreg-faults", metavar="PLAN", help="faults of the devices, for the whole session (OPENREG_SIM_FAULTS)")
    add("--openreg-strict", action="store_true", default=None, help="errors: hidden copies to the host, leaks")
    add("--openreg-as-cuda", action="store_true", default=None, help='"cuda" means openreg, in all tests')
    add("--openreg-gpu", metavar="NAME", help="the same, and the devices say that they are such a GPU: a100, h100, ...")
    add("--openreg-driver", metavar="NAME", help="devices of this driver instead of simulated ones")
    add(
        "--openreg-leaks",
        choices=("error", "warn", "off"),
        help="what happens when a test leaves device memory, events or another current stream (warn)",
    )
    add("--openreg-peaks", metavar="N", type=_number, default=5, help="tests in the list of peak memory (5)")


# ------------------------------------------------------------------------------------------------- the machine


def is_wanted(option: argparse.Namespace) -> bool:
    """Whether an option asks for devices. ``--openreg-peaks`` alone changes nothing."""
    names = (name for name in vars(option) if name == "openreg" or name.startswith(_PREFIX))
    return any(getattr(option, name) is not None for name in names if name != "openreg_peaks")


def variables(option: argparse.Namespace, environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that make the machine that the options describe, in the process's environment.

    Raises:
        pytest.UsageError: An option of the simulator with another driver.
    """
    driver = option.openreg_driver or "sim"
    found = {"OPENREG_DRIVERS": driver, "OPENREG_AUTOLOAD": "1"}
    if driver == "sim":
        count = option.openreg or environment.get("OPENREG_SIM_DEVICES") or _DEFAULT_DEVICES
        found["OPENREG_SIM_DEVICES"] = str(count)
    elif option.openreg is not None:
        found[f"OPENREG_{driver.upper()}_VISIBLE_DEVICES"] = ",".join(map(str, range(option.openreg)))
        if driver in environment.get("OPENREG_USE_MOCK_GPU", "").split(","):
            found["OPENREG_MOCK_NUM_GPUS"] = str(option.openreg)
    for name, variable in _OF_SIMULATOR.items():
        value = getattr(option, name)
        if value is None:
            continue
        if driver != "sim":
            raise pytest.UsageError(
                f"--{name.replace('_', '-')} is for simulated devices, and --openreg-driver asks for '{driver}'."
            )
        found[variable] = "report" if value is True else str(value)
    if option.openreg_as_cuda or option.openreg_gpu:
        found["OPENREG_AS_CUDA"] = option.openreg_gpu or "1"  # for processes that tests start, too
    if option.openreg_strict:
        policy = environment.get("OPENREG_OPERATORS_POLICY")
        found["OPENREG_OPERATORS_POLICY"] = ",".join(filter(None, [policy, "staged=forbid"]))
    return found


def describe(option: argparse.Namespace, wanted: Mapping[str, str]) -> str:
    """The machine in one line."""
    if "OPENREG_SIM_DEVICES" in wanted:
        count = wanted["OPENREG_SIM_DEVICES"]
        parts = [f"{count} simulated device{'' if count == '1' else 's'}"]
    else:
        count = "the devices" if option.openreg is None else f"{option.openreg} devices"
        parts = [f"{count} of driver {option.openreg_driver}"]
    if option.openreg_memory is not None:
        parts[0] += f" of {option.openreg_memory}"
    if option.openreg_seed is not None:
        parts.append(f"seed {option.openreg_seed}")
    if option.openreg_races:
        parts.append("races are failures")
    if option.openreg_faults is not None:
        parts.append(f'faults "{option.openreg_faults}"')
    if option.openreg_strict:
        parts.append("strict")
    if option.openreg_as_cuda or option.openreg_gpu:
        parts.append("as cuda" if option.openreg_gpu is None else f"as {option.openreg_gpu}")
    return ", ".join(parts)


def _reject_started(wanted: Mapping[str, str]) -> None:
    """Refuses variables that come too late: something has opened the devices before pytest read its options.

    Raises:
        pytest.UsageError: The open devices are not the requested ones.
    """
    package = sys.modules.get("torch_openreg")
    if package is None or not package.openreg.drivers_are_initialized():
        return
    late = [
        f"{name}={value}"
        for name, value in wanted.items()
        if name.startswith("OPENREG_SIM_")
        and name != "OPENREG_SIM_DEVICES"
        and os.environ.get(name, "").lower() != value.lower()
    ]
    count, driver = package.openreg.device_count(), package.openreg.default_driver()
    if driver != wanted["OPENREG_DRIVERS"].partition(",")[0]:
        late.append(f"OPENREG_DRIVERS={wanted['OPENREG_DRIVERS']}")
    elif wanted.get("OPENREG_SIM_DEVICES", str(count)) != str(count):
        late.append(f"OPENREG_SIM_DEVICES={wanted['OPENREG_SIM_DEVICES']}")
    if late:
        raise pytest.UsageError(
            f"torch was imported, and {count} device(s) of driver '{driver}' opened, before pytest read its options, "
            f"so these come too late: {' '.join(late)}. Set them in the environment, or import torch later."
        )


class _Machine:
    """The variables of one session, and what they were before."""

    def __init__(self, option: argparse.Namespace) -> None:
        if option.openreg_seed == "random":
            # A worker of pytest-xdist runs with the number that its controller has drawn.
            drawn = os.environ.get("OPENREG_SIM_SEED") if "PYTEST_XDIST_WORKER" in os.environ else None
            option.openreg_seed = int(drawn) if drawn else random.SystemRandom().randrange(1 << 32)
        wanted = variables(option, os.environ)
        _reject_started(wanted)
        self.seed = option.openreg_seed
        self.text = describe(option, wanted)
        self._before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)

    def restore(self) -> None:
        """Gives the variables back what they were."""
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


_machine = pytest.StashKey[_Machine]()


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Sets the variables, before a conftest.py imports torch."""
    option = early_config.known_args_namespace
    if is_wanted(option):
        machine = early_config.stash[_machine] = _Machine(option)
        early_config.add_cleanup(machine.restore)
        if option.openreg_as_cuda or option.openreg_gpu:
            _enable_cuda(early_config)


def _enable_cuda(config: pytest.Config) -> None:
    already = "torch_openreg.contrib.cuda_to_openreg" in sys.modules
    from torch_openreg.contrib import cuda_to_openreg

    if not (already and cuda_to_openreg.is_enabled()):
        cuda_to_openreg.enable()
        config.add_cleanup(cuda_to_openreg.disable)


def _is_controller(config: pytest.Config) -> bool:
    """Whether workers of pytest-xdist run the tests."""
    return not hasattr(config, "workerinput") and config.getoption("dist", "no") != "no"


@pytest.hookimpl(trylast=True)  # behind pytest-xdist
def pytest_configure(config: pytest.Config) -> None:
    """Registers the markers, and the checks where the tests run."""
    for line in (
        "openreg_devices(n): needs n openreg devices; skipped with fewer, a failure under --openreg-strict",
        'openreg_faults(plan): the devices fail by this plan while the test runs, as "nomem at 3" (docs/laboratory.md)',
        "openreg_leaks(mode): error, warn or off for this test, instead of --openreg-leaks",
    ):
        config.addinivalue_line("markers", line)
    machine = config.stash.get(_machine, None)
    if machine is None:
        return
    config.option.openreg_seed = machine.seed
    config.pluginmanager.register(_Summary(config), "openreg_summary")
    if not _is_controller(config):
        from torch_openreg_lab.checks import Checks

        config.pluginmanager.register(Checks(config), "openreg_checks")


def pytest_report_header(config: pytest.Config) -> str | None:
    """Says the machine."""
    machine = config.stash.get(_machine, None)
    return None if machine is None else f"openreg: {machine.text}"


# ------------------------------------------------------------------------------------------------- tests


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test that needs more devices than there are."""
    for marker in item.iter_markers("openreg_devices"):
        if len(marker.args) != 1 or type(marker.args[0]) is not int or marker.kwargs:
            raise pytest.UsageError(f"{item.nodeid}: openreg_devices takes one number, as openreg_devices(4)")
        needed, found = marker.args[0], _device_count()
        if found < needed:
            reason = f"needs {needed} {device_name()} devices, and there are {found}: pytest --openreg={needed}"
            (pytest.fail if item.config.option.openreg_strict else pytest.skip)(reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Runs a test with the faults of its markers. Their end forgets what they have broken.

    Plans for ranks go into the simulator's variable too, which processes read that the test starts.
    """
    with ExitStack() as stack:
        plans = [stack.enter_context(plan) for plan in _plans(item)]
        of_ranks = [plan.plan for plan in plans if plan.plan.split()[:1] == ["rank"]]
        if of_ranks:
            variable = _OF_SIMULATOR["openreg_faults"]
            texts = [os.environ.get(variable, ""), *of_ranks]
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            patch.setenv(variable, "; ".join(filter(None, texts)))
        result = yield
    for plan in plans:
        if plan.hits == 0 and plan.plan not in of_ranks:
            from torch_openreg_lab.checks import OpenregFaultWarning

            item.warn(OpenregFaultWarning(f"The faults {plan.plan!r} have hit nothing in this test."))
    return result


def _plans(item: pytest.Item) -> Iterator[Any]:
    for marker in item.iter_markers("openreg_faults"):
        if len(marker.args) != 1 or not isinstance(marker.args[0], str) or marker.kwargs:
            raise pytest.UsageError(f'{item.nodeid}: openreg_faults takes one text, as openreg_faults("nomem 5%")')
        from torch_openreg import openreg

        yield openreg.faults(marker.args[0])


def _device_count() -> int:
    from torch_openreg import openreg

    return int(openreg.device_count())


@pytest.fixture
def openreg_device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Device 0, current during the test; another one by indirect parametrisation with its index."""
    import torch

    from torch_openreg import openreg

    index = getattr(request, "param", 0)
    if not 0 <= index < openreg.device_count():
        pytest.skip(f"there is no device {device_name()}:{index}: pytest --openreg={index + 1}")
    before = openreg.current_device()
    openreg.set_device(index)
    yield torch.device(device_name(), index)
    openreg.set_device(before)


@pytest.fixture
def openreg_devices() -> Iterator[list[torch.device]]:
    """All devices; the current one is restored after the test."""
    import torch

    from torch_openreg import openreg

    before = openreg.current_device()
    yield [torch.device(device_name(), index) for index in range(openreg.device_count())]
    openreg.set_device(before)


# ------------------------------------------------------------------------------------------------- the report


class _Summary:
    """Peak memory, from the properties that the checks give to reports, of workers too."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._peaks: dict[str, tuple[int, str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties: dict[str, Any] = dict(report.user_properties)
        if report.when == "teardown" and "openreg_peak_bytes" in properties:
            device = str(properties["openreg_peak_device"])
            self._peaks[report.nodeid] = (int(properties["openreg_peak_bytes"]), device)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        most = sorted(((peak, name) for name, peak in self._peaks.items() if peak[0] > 0), reverse=True)
        shown = most[: self._config.option.openreg_peaks]
        if shown:
            terminalreporter.section(f"openreg: most device memory, {len(shown)} of {len(self._peaks)} tests")
            for (peak, device), name in shown:
                terminalreporter.write_line(f"{size_text(peak):>10}  {device:<11} {name}")
        seed = self._config.option.openreg_seed
        if seed is not None and terminalreporter.stats.get("failed", []) + terminalreporter.stats.get("error", []):
            terminalreporter.write_line(f"openreg: the same order of the devices' work again: --openreg-seed={seed}")


def size_text(count: int) -> str:
    """A number of bytes, for people."""
    size, units = float(count), ("B", "KiB", "MiB", "GiB", "TiB")
    unit = 0
    while size >= 1024 and unit < len(units) - 1:
        size, unit = size / 1024, unit + 1
    return f"{count} B" if unit == 0 else f"{size:.1f} {units[unit]}"
