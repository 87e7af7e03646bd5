# SPDX-License-Identifier: BSD-3-Clause
"""Shared fixtures. The suite runs in one process with two simulated devices; what needs other settings starts its own."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from compiled_drivers import compile_driver, compile_toy_driver
from finished import Program
from warm_interpreter import WarmInterpreter

import torch_openreg  # noqa: F401

# What somebody has stored as preferred must not decide what is tested.
os.environ["OPENREG_PREFERENCES"] = os.devnull

ROOT = Path(__file__).resolve().parents[2]

# Compiled code is kept for the session, for all workers and processes: equal kernels of several tests are built once, in the
# process that asks for them. What the processor can do is taken from the kernel, where PyTorch asks two interpreters in each
# process.
INDUCTOR = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_VEC_ISA_OK": "1"}


def pytest_configure(config: pytest.Config) -> None:
    """The workers of xdist are started later, with the variables set here."""
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="openreg-compiled-", ignore_cleanup_errors=True)
        os.environ |= {**INDUCTOR, "TORCHINDUCTOR_CACHE_DIR": folder.name}
        config.add_cleanup(folder.cleanup)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves out what takes minutes and seldom finds anything, unless it is asked for; begins with the files that take longest.

    A file is one worker's (`--dist loadfile --no-loadscope-reorder`): a long one must not be the last.
    """
    items.sort(key=lambda item: item.path.parent.name not in ("compile", "tools", "training"))
    if os.environ.get("OPENREG_TEST_LONG") != "1":
        for item in items:
            if item.get_closest_marker("long") is not None:
                item.add_marker(pytest.mark.skip(reason="takes minutes: make test-long"))


def _restore(name: str, value: str | None) -> None:
    if value is None:
        del os.environ[name]
    else:
        os.environ[name] = value


@pytest.fixture(autouse=True)
def _current_device_and_streams() -> Iterator[None]:
    """Each test starts on device 0 with default streams and must not change what the next one sees.

    Some libraries set variables when they are imported, as scikit-learn does: with them no program could be forked.
    """
    torch.manual_seed(0)
    variables = dict(os.environ)
    yield
    for name in os.environ.keys() | variables.keys():
        if name != "PYTEST_CURRENT_TEST" and os.environ.get(name) != variables.get(name):
            _restore(name, variables.get(name))
    for index in range(torch.openreg.device_count()):
        torch.openreg.set_stream(torch.openreg.default_stream(index))
    torch.openreg.set_device(0)


@pytest.fixture
def root() -> Path:
    """Folder of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def toy_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's driver of seven functions: memory that the host isn't told about, and no `fill`."""
    return compile_toy_driver(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="session")
def kernels_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A driver of three kernels: add, relu and mm."""
    return compile_driver(tmp_path_factory.mktemp("kernels"), "kernels_driver.c")


@functools.cache
def foreign_lines() -> frozenset[str]:
    """What torch alone prints as errors in this environment: other libraries complain of variables of theirs."""
    settings = {k: v for k, v in os.environ.items() if not k.startswith("OPENREG_")}
    command = [sys.executable, "-c", "import torch"]
    settings["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    done = subprocess.run(command, env=settings, capture_output=True, text=True, check=False)
    return frozenset(done.stderr.splitlines(keepends=True))


@pytest.fixture(scope="session")
def warm_interpreter() -> Iterator[WarmInterpreter]:
    """Runs programs without the time of `import torch`."""
    interpreter = WarmInterpreter()
    yield interpreter
    interpreter.close()


@pytest.fixture
def python(request: pytest.FixtureRequest, warm_interpreter: WarmInterpreter) -> Program:
    """Runs code in a process of its own and returns the finished process; a status other than `status` fails the test.

    The process sees no variable OPENREG_* but those given and OPENREG_SIM_RACES, and no stored preference; None unsets a variable.
    It is forked from an interpreter that has imported torch, but for tests marked `fresh`, programs with arguments or with
    variables that are read earlier. Its `stderr` is without what torch alone prints in this environment.
    """
    is_fresh = request.node.get_closest_marker("fresh") is not None

    def run(
        code: str,
        *,
        status: int | None = 0,
        timeout: float = 120,
        arguments: tuple[str, ...] = (),
        cwd: Path | None = None,
        **environment: str | None,
    ) -> subprocess.CompletedProcess[str]:
        kept = "OPENREG_SIM_RACES"  # the whole suite can be run under it: `make race-check`
        inherited = {k: v for k, v in os.environ.items() if k == kept or not k.startswith("OPENREG_")}
        settings = {**inherited, "OPENREG_PREFERENCES": os.devnull, **environment}
        if drivers := os.environ.get("TEST_OPENREG_DRIVERS"):  # tools/named_tests.py
            settings.setdefault("OPENREG_DRIVERS", drivers)
        variables = {k: v for k, v in settings.items() if v is not None}
        code = textwrap.dedent(code)
        if not is_fresh and not arguments and warm_interpreter.fits(variables):
            done = warm_interpreter.run(code, variables, cwd, timeout)
        else:
            done = subprocess.run(
                [sys.executable, *arguments, "-c", code],
                env=variables,
                cwd=cwd,
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        if done.stderr:
            done.stderr = "".join(line for line in done.stderr.splitlines(True) if line not in foreign_lines())
        assert status is None or done.returncode == status, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run
