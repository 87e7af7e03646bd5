# SPDX-License-Identifier: BSD-3-Clause
"""Around each test: unobserved errors, leaks, peak memory, and what ``--openreg-strict`` forbids."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import ExitStack
from typing import Any

import _pytest
import pytest
from _torch_openreg_device_name import device_name

from torch_openreg import openreg
from torch_openreg_lab import leaks, strict

_MODES = ("error", "warn", "off")


class OpenregLeakWarning(pytest.PytestWarning):
    """A test has left something on the devices."""


class OpenregFaultWarning(pytest.PytestWarning):
    """The faults of a test have hit nothing: it shows less than it says."""


_PYTEST = os.path.join(os.path.dirname(os.path.abspath(_pytest.__file__)), "")


def _is_of_pytest(place: str) -> bool:
    """Whether a line of the program, as a race says it, is one of pytest's own."""
    return place.startswith(_PYTEST)


class Checks:
    """A plugin of one session. What belongs to fixtures of modules, classes and sessions is never a test's leak."""

    def __init__(self, config: pytest.Config) -> None:
        self._option = config.option
        self._before = leaks.Inventory()
        self._has_failed = False
        self._kept: set[int] = set()  # blocks that wider fixtures have made when they were set up
        self._kept_events = 0
        self._kept_pinned = 0
        self._fixtures: set[pytest.FixtureDef[Any]] = set()  # wider ones that are live

    def pytest_sessionstart(self) -> None:
        """Refuses to start with another number of devices than requested: a driver may have fewer."""
        wanted, found = self._option.openreg, openreg.device_count()
        if wanted is not None and found != wanted:
            reason = "\n".join(openreg.diagnose(as_dict=True)["advice"])
            raise pytest.UsageError(f"--openreg={wanted}, but there are {found} device(s).\n{reason}")

    # ----------------------------------------------------------------------------------------- one test, in order

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        """Records the live objects before the test."""
        self._has_failed = False
        self._kept_events = self._kept_pinned = 0
        self._before = leaks.take()
        self._kept &= self._before.blocks.keys()
        for index in range(len(self._before.streams)):
            openreg.reset_peak_memory_stats(index)
        if self._option.openreg_races:
            openreg.clear_races()
        try:
            return (yield)
        except BaseException:
            self._has_failed = True
            raise

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Runs the test under what the options ask for."""
        try:
            with ExitStack() as stack:
                if self._option.openreg_strict:
                    stack.enter_context(strict.hidden_copies_are_errors(str(item.path)))
                result = yield
            _wait_for_all()
            self._fail_for_races()
        except BaseException as error:
            self._has_failed = True
            if not isinstance(error, pytest.fail.Exception) and (text := self._text_of_races()):
                item.add_report_section("call", "openreg", text)  # may be why it has failed
            raise
        return result

    def _fail_for_races(self) -> None:
        if text := self._text_of_races():
            openreg.clear_races()  # so that the teardown reports only its own
            pytest.fail(text, pytrace=False)

    def _text_of_races(self) -> str:
        """What was found and is the test's own, or "".

        A call that uses a lost device fails by itself; a test of that has a plan of faults. Where an assertion fails
        pytest reads tensors to print them.
        """
        found = openreg.races() if self._option.openreg_races else []
        found = [race for race in found if race.kind != "lost-device" and not _is_of_pytest(race.second.place)]
        if not found:
            return ""
        races = "\n\n".join(str(race) for race in found)
        return f"{len(found)} race(s): on a GPU these may read or write the wrong bytes.\n{races}"

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        """Reports the peak of memory, and what the test has left."""
        peak, device = self._peak()
        item.user_properties.append(("openreg_peak_bytes", peak))
        item.user_properties.append(("openreg_peak_device", f"{device_name()}:{device}"))
        result = yield
        # A test that has failed: its traceback holds what it had.
        if (mode := self._leak_mode(item)) != "off":
            try:
                if not self._has_failed:
                    self._fail_for_races()
                    self._tell_of_leaks(item, mode)
            finally:
                self._put_back()
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        """Counts what a fixture that outlives the test makes when it is set up."""
        if fixturedef.scope == "function":
            return (yield)
        before = leaks.take()
        self._fixtures.add(fixturedef)
        try:
            return (yield)
        finally:
            now = leaks.take()
            self._kept |= now.blocks.keys() - before.blocks.keys()
            self._kept_events += now.events - before.events
            self._kept_pinned += now.pinned - before.pinned

    def pytest_fixture_post_finalizer(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        """Forgets a fixture that has ended."""
        self._fixtures.discard(fixturedef)

    # ----------------------------------------------------------------------------------------------------- parts

    def _peak(self) -> tuple[int, int]:
        """The most that the test had on one device, and on which."""
        if not openreg.is_initialized():
            return 0, 0
        peaks = [openreg.max_memory_allocated(index) for index in range(openreg.device_count())]
        return max(peaks), peaks.index(max(peaks))

    def _leak_mode(self, item: pytest.Item) -> str:
        marker = item.get_closest_marker("openreg_leaks")
        if marker is None:
            return str(self._option.openreg_leaks or ("error" if self._option.openreg_strict else "warn"))
        if len(marker.args) != 1 or marker.args[0] not in _MODES:
            raise pytest.UsageError(f"{item.nodeid}: openreg_leaks takes one of {', '.join(_MODES)}")
        return str(marker.args[0])

    def _tell_of_leaks(self, item: pytest.Item, mode: str) -> None:
        before = self._before
        before.events += max(self._kept_events, 0)
        before.pinned += max(self._kept_pinned, 0)
        if isinstance(item, pytest.Function) and leaks.has_grown(before, leaks.take(), self._kept):
            # pytest holds fixtures and instances of classes until the hook for the teardown has ended.
            item.funcargs.clear()
            vars(item).pop("_instance", None)
            vars(item).pop("_obj", None)
        now = leaks.settle(before, self._kept)
        excused = self._kept
        if now.blocks.keys() - before.blocks.keys() - excused:
            values = [fixture.cached_result[0] for fixture in self._fixtures if fixture.cached_result]
            excused = excused | leaks.reachable(values)
        lines = leaks.describe(before, now, excused)
        if not lines:
            return
        text = "The test left on the devices:\n" + "\n".join(f"  {line}" for line in lines)
        if mode == "warn":
            item.warn(OpenregLeakWarning(text))
        else:
            pytest.fail(text, pytrace=False)

    def _put_back(self) -> None:
        """The next test begins with the device and the streams that this one began with."""
        for stream in self._before.streams:
            openreg.set_stream(stream)
        if self._before.streams:
            openreg.set_device(self._before.device)


def _wait_for_all() -> None:
    """Waits for all devices: work that failed behind the test's back fails the test.

    Raises:
        RuntimeError: What the device reports.
    """
    if openreg.is_initialized():
        for index in range(openreg.device_count()):
            openreg.synchronize(index)
