# SPDX-License-Identifier: BSD-3-Clause
"""Connects libraries as soon as they are imported: ``OPENREG_CONTRIB=1``, or a list of them.

A program, a notebook or a launcher needs no import of ``torch_openreg.contrib`` then. Programs for CUDA
(``OPENREG_AS_CUDA=1``) get what they need of it in any case: safetensors has a list of devices' names, and DeepSpeed
compiles kernels.
Most of these libraries import torch, and so this module, in the middle of their own import; what they are is looked at
when that has ended.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
from collections.abc import Iterable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from _torch_openreg_device_name import device_name

from torch_openreg import _C

LIBRARIES = ("accelerate", "deepspeed", "lightning", "peft", "safetensors", "sentence_transformers", "transformers")
VARIABLE = "OPENREG_CONTRIB"
_LAUNCHER = "accelerate.commands.launch"
_FOR_CUDA = {"deepspeed", "safetensors"}
# Modules of libraries that are connected in the middle of their own import, behind these: they are used before its end.
_EARLY = {"deepspeed.ops.op_builder.builder": "deepspeed", "op_builder.builder": "deepspeed"}

_logger = logging.getLogger("torch_openreg")
_lock = threading.RLock()
_waiting: set[str] = set()
_arrived: list[str] = []
_is_connecting = False


class _WatchedSpec(ModuleSpec):
    """The spec of a module that is being imported. Python says by an attribute of it when that has ended."""

    @property
    def _initializing(self) -> bool:
        return bool(self.__dict__.get("_initializing", False))

    @_initializing.setter
    def _initializing(self, value: bool) -> None:
        self.__dict__["_initializing"] = value
        if not value:
            self.__class__ = ModuleSpec  # type: ignore[assignment]
            if self.name in sys.modules:  # and not where the import has failed
                _arrive(self.name)


class _Finder(MetaPathFinder):
    """Finds nothing by itself: watches what the others find."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        if name not in _waiting:
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if type(spec) is ModuleSpec:
            spec.__class__ = _WatchedSpec
        return spec


def _arrive(name: str) -> None:
    """Connects a library, and those that are imported by that, one behind the other: they import each other."""
    global _is_connecting
    with _lock:
        if name not in _waiting:
            return
        _waiting.discard(name)
        _arrived.append(name)
        if _is_connecting:
            return
        _is_connecting = True
    while True:
        with _lock:
            if not _arrived:
                _is_connecting = False
                return
            next_one = _arrived.pop(0)
        try:
            if next_one == _LAUNCHER:
                _start_all_processes(sys.modules[_LAUNCHER])
            else:
                connection = importlib.import_module(f"torch_openreg.contrib.{_EARLY.get(next_one, next_one)}")
                if next_one in _EARLY:
                    connection.extend()
        except Exception as error:
            _logger.warning("%s was not made known to %s: %s", device_name(), next_one, error)


def _start_all_processes(launch: Any) -> None:
    """Has ``accelerate launch --num_processes 4`` start four where it knows no GPU and would start one, in silence."""
    alone = launch.simple_launcher

    def simple_launcher(args: Any) -> Any:
        if args.cpu or (args.num_processes or 1) < 2:
            return alone(args)
        args.multi_gpu = True
        return launch.multi_gpu_launcher(args)

    launch.simple_launcher = simple_launcher


def wanted(text: str | None, as_cuda: bool = False) -> set[str]:
    """The libraries that are to be connected.

    Args:
        text: What the variable says: "1", names between commas, or nothing.
        as_cuda: Whether "cuda" means openreg.
    """
    names = {name.strip().lower() for name in (text or "").split(",")} - {"", "0"}
    found = set(LIBRARIES) if "1" in names else names & set(LIBRARIES)
    for name in sorted(names - {"1", *LIBRARIES}):
        _logger.warning("%s: there is no connection to '%s', but to %s.", VARIABLE, name, ", ".join(LIBRARIES))
    return found | (_FOR_CUDA if as_cuda else set()) | ({_LAUNCHER} if "accelerate" in found else set())


def install(names: Iterable[str]) -> None:
    """Connects libraries now where they are imported, else when they will be.

    Args:
        names: Names from ``LIBRARIES``.
    """
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    chosen = set(names)
    _waiting.update(chosen - set(_EARLY.values()), (module for module, name in _EARLY.items() if name in chosen))
    for name in sorted(_waiting):
        module = sys.modules.get(name)
        spec = getattr(module, "__spec__", None)
        if module is None:
            continue
        if type(spec) is ModuleSpec and getattr(spec, "_initializing", False):
            spec.__class__ = _WatchedSpec
        else:
            _arrive(name)


install(wanted(os.environ.get(VARIABLE), _C._variable("OPENREG_AS_CUDA") not in (None, "", "0")))
