# SPDX-License-Identifier: BSD-3-Clause
"""Registers the device with PyTorch, by the name that it is to have: once per process."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import warnings
from collections.abc import Iterator
from types import ModuleType

import _torch_openreg_device_name as naming
import torch
from _torch_openreg_accelerator import own_accelerator

from torch_openreg import _builds

_LIBRARY = "openreg"  # torch.openreg is the module under each name of the device
_MODULE = "torch_openreg.openreg"
_UNNAMED = "privateuseone"
# Imported through torch.openreg.<name> too, and then not a second time as a copy with a state of its own.
_SUBMODULES = ("amp", "memory", "plugins", "profiler", "random", "selection", "streams")


def register() -> ModuleType:
    """Loads the binary part and registers the device. Repeating it changes nothing.

    Returns:
        The module that is ``torch.openreg``, and ``torch.<name>``.

    Raises:
        ImportError: There is no binary part for this version of torch, the device can't have that name, or another
            backend has taken PyTorch's one place for an out-of-tree device.
    """
    _builds.choose(torch.__version__, sys.modules["torch_openreg"].__path__)
    name = _free_name()
    _warn_other_accelerator(name)

    with _passed_on(name):
        importlib.import_module("torch_openreg._C")
    if naming.is_a_vendors(name):
        sys.modules["torch_openreg._C"]._choose_plugins_alone()
    torch.utils.rename_privateuse1_backend(name)

    module = importlib.import_module(_MODULE)
    if getattr(torch, name, None) is not module:
        torch._register_device_module(name, module)
    setattr(torch, _LIBRARY, module)
    sys.modules[f"torch.{_LIBRARY}"] = module
    for each in dict.fromkeys((name, _LIBRARY)):
        for submodule in _SUBMODULES:
            sys.modules[f"torch.{each}.{submodule}"] = getattr(module, submodule)
    if not hasattr(torch.Tensor, f"is_{name}"):
        torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    # It caches its first answer, which without an accelerator is torch.cpu.
    torch.get_device_module.cache_clear()

    from torch_openreg import _compile
    from torch_openreg._discovery import search
    from torch_openreg._integration import (
        autocast,
        data_parallel,
        distributed,
        dlpack,
        exit,
        fake_tensors,
        fork,
        hint,
        log,
        serialization,
        sharing,
    )

    log.install()
    hint.install()
    search.install()
    fork.install()
    module.operators._install_report()
    for part in (serialization, dlpack, sharing, distributed, autocast, data_parallel, fake_tensors, _compile, exit):
        part.install()
    _prepare_gpu()
    return module


def is_as_cuda() -> bool:
    """Whether "cuda" is to mean openreg in this process and in those that it starts: ``OPENREG_AS_CUDA``."""
    from torch_openreg import _C

    return _C._variable("OPENREG_AS_CUDA") not in (None, "", "0")


def connects_libraries() -> bool:
    """Whether other libraries are to know openreg as soon as they are imported: ``OPENREG_CONTRIB``, or as CUDA."""
    return is_as_cuda() or os.environ.get("OPENREG_CONTRIB", "0") not in ("", "0")


def _prepare_gpu() -> None:
    """Replaces PyTorch's allocator for CUDA now where the program asks for a GPU's driver.

    PyTorch lets it be replaced only before it is used, and what comes next may use it: transformers, for example, asks
    ``torch.cuda`` for properties when it is imported. Opens no driver, makes no context.
    """
    from torch_openreg import _C

    wanted = (_C._variable("OPENREG_DRIVERS") or "").split(",")[0].strip().lower()
    if wanted in ("cuda", "hip"):
        _C._install_gpu_allocator()


def _free_name() -> str:
    """The name that the device is to have, or has already where this is repeated."""
    taken = torch._C._get_privateuse1_backend_name()
    if "torch_openreg._C" in sys.modules and taken != _UNNAMED:
        return taken
    try:
        name = naming.choose()
    except ValueError as error:
        raise ImportError(str(error)) from error
    foreign = getattr(torch, taken, None) if taken == name else None
    if taken not in (_UNNAMED, name) or foreign is not None:
        whose = f" by {foreign.__name__} ({getattr(foreign, '__file__', None)})" if foreign is not None else ""
        raise ImportError(
            f"PyTorch has place for one out-of-tree device in a process, and '{taken}' has taken it{whose}. "
            "TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps torch from loading backends by itself."
        )
    if taken == _UNNAMED and (name == "gpu" or is_of_torch(name)):
        raise ImportError(
            f"the device can't be named '{name}' ({naming.source_of(name)}): PyTorch has a meaning for that name "
            f"already. {naming.VARIABLE} chooses another one"
        )
    return name


def is_of_torch(name: str) -> bool:
    """Whether a name is that of a device of PyTorch's own, or torch.<name>, x.<name>() or x.is_<name> are taken."""
    try:
        torch.device(name)
    except RuntimeError:
        members = (name, f"is_{name}")
        return hasattr(torch, name) or any(
            hasattr(kind, member)
            for kind in (torch.Tensor, torch.nn.Module, torch.UntypedStorage, torch.nn.utils.rnn.PackedSequence)
            for member in members
        )
    return True


@contextlib.contextmanager
def _passed_on(name: str) -> Iterator[None]:
    """Lets the binary part, which registers the name when it is loaded, read the choice where it is not the default."""
    before = os.environ.get(naming.VARIABLE)
    os.environ[naming.VARIABLE] = name
    try:
        yield
    finally:
        if before is None:
            del os.environ[naming.VARIABLE]
        else:
            os.environ[naming.VARIABLE] = before


def _warn_other_accelerator(name: str) -> None:
    other = own_accelerator()
    if other is not None:
        warnings.warn(
            f"{name} becomes the accelerator of this process. PyTorch supports one at a time: backward() on "
            f"'{other}' fails from here on, and torch.accelerator means {name}. Use another process for '{other}'.",
            UserWarning,
            stacklevel=2,
        )
