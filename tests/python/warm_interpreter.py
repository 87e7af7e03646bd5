# SPDX-License-Identifier: BSD-3-Clause
"""An interpreter that has imported torch, and forks once for each program: most of a short program's time is that import.

A program finds itself in ``python -c``, with variables, folder and files of its own, before ``import torch``: the package
that torch loads for the device, the import of ``torch_openreg`` and all that follows happen in the program.
:class:`WarmInterpreter` starts the interpreter, which calls :func:`serve`, and sends it programs.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.abc
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

# What a program may be given and still be forked: the rest is read before or while torch is imported. PROGRAM_ is for what
# programs alone read.
READ_LATER = (
    "OPENREG_",
    "PROGRAM_",
    "PYTEST_",
    "PYTHONPATH",
    "XDG_CONFIG_HOME",
    "FAKE_GPU_",
    "TORCHINDUCTOR_",
    "TRITON_",
    "TORCH_DEVICE_BACKEND_AUTOLOAD",
)

# Leaves no name in the module __main__.
START = (
    f"__import__('sys').path.insert(1, {str(Path(__file__).resolve().parent)!r}); "
    "__import__('warm_interpreter').load({libraries!r}); __import__('warm_interpreter').serve()"
)


class WarmInterpreter:
    """The interpreter of one worker of pytest, from the first program on. Not for several threads at once.

    Args:
        libraries: What is loaded before torch.
        environment: Variables of every program, beside those of this process.
    """

    def __init__(self, libraries: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> None:
        self._server: subprocess.Popen[str] | None = None
        self._libraries = list(libraries)
        self._own = self._read_early({**os.environ, **(environment or {})})

    @staticmethod
    def _read_early(environment: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in environment.items() if not name.startswith(READ_LATER)}

    def fits(self, environment: Mapping[str, str]) -> bool:
        """Whether a program with these variables finds what it would in an interpreter of its own."""
        return self._read_early(environment) == self._own

    def run(
        self, code: str, environment: Mapping[str, str], cwd: Path | None, timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """As ``subprocess.run([sys.executable, "-c", code], ...)`` with captured text.

        Raises:
            subprocess.TimeoutExpired: the program ran for `timeout` seconds; it was killed.
            RuntimeError: the program has ended the interpreter, too.
        """
        if self._server is None:
            self._server = subprocess.Popen(
                [sys.executable, "-c", START.format(libraries=self._libraries)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=self._own | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
                text=True,
            )
        assert self._server.stdin is not None and self._server.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            files = [str(Path(folder, name)) for name in ("out", "err")]
            request = {
                "code": code,
                "environment": dict(environment),
                "cwd": str(cwd or Path.cwd()),
                "files": files,
                "timeout": timeout,
            }
            self._server.stdin.write(json.dumps(request) + "\n")
            self._server.stdin.flush()
            reply = self._server.stdout.readline()
            if not reply:
                self._server = None  # the next program finds another one
                raise RuntimeError("the interpreter that forks programs has ended")
            status = json.loads(reply)
            out, err = (Path(file).read_text(encoding="utf-8", errors="replace") for file in files)
        if status is None:
            raise subprocess.TimeoutExpired([sys.executable, "-c", code], timeout, out, err)
        return subprocess.CompletedProcess([sys.executable, "-c", code], status, out, err)

    def close(self) -> None:
        """Ends the interpreter."""
        if self._server is not None:
            self._server.communicate()


# ------------------------------------------------------------------------------------------------------ the interpreter


def _import_ahead() -> None:
    """torch, and what most programs import besides: nothing of openreg's."""
    import pytest  # noqa: F401
    import torch

    torch.testing.assert_close(torch.ones(1), torch.ones(1))  # imports sympy


def load(libraries: Sequence[str]) -> None:
    """Loads libraries as a program that begins with them does."""
    for library in libraries:
        ctypes.CDLL(library)


class _LoadedTorch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the torch that is there, and does what the end of its import does: loads the devices' packages."""

    def __init__(self) -> None:
        self._module = sys.modules.pop("torch")
        self._spec = self._module.__spec__

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return importlib.util.spec_from_loader(fullname, self) if fullname == "torch" else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        sys.meta_path.remove(self)
        module.__spec__ = self._spec
        if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "1":
            module._import_device_backends()


def _become_program(request: Mapping[str, Any]) -> None:
    """Gives a forked child what ``python -c`` would have begun with."""
    os.setpgid(0, 0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, file in enumerate(request["files"], 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    folders = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    sys.path[1:2] = folders  # in place of this file's
    sys.meta_path.insert(0, _LoadedTorch())


def _wait(child: int, timeout: float) -> int | None:
    """Status of a child as that of ``subprocess``; None: it was killed after that many seconds."""
    signal.setitimer(signal.ITIMER_REAL, timeout)
    try:
        _, status = os.waitpid(child, 0)
    except TimeoutError:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return os.waitstatus_to_exitcode(status)


def serve() -> None:
    """Forks for each line of the standard input; ends in the children, too, when their program has."""

    def end_wait(number: int, frame: object) -> None:
        raise TimeoutError

    _import_ahead()
    gc.collect()
    gc.freeze()  # a program needn't look at these objects, least of all at its end
    usual = signal.signal(signal.SIGALRM, end_wait)
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, usual)
            _become_program(request)
            # What `python -c` calls. It prints what is raised, and SystemExit ends the process.
            if ctypes.pythonapi.PyRun_SimpleStringFlags(request["code"].encode(), None) != 0:
                sys.exit(1)
            return
        print(json.dumps(_wait(child, request["timeout"])), flush=True)
