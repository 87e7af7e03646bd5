# SPDX-License-Identifier: BSD-3-Clause
"""Registers the device ``openreg`` with PyTorch: once per process, in the order that PyTorch asks for."""

from __future__ import annotations

import importlib
import sys
import warnings
from types import ModuleType

import torch
from _torch_openreg_accelerator import own_accelerator

from torch_openreg import _builds

NAME = "openreg"
# Imported through torch.openreg.<name> too, and then not a second time as a copy with a state of its own.
_SUBMODULES = ("amp", "memory", "plugins", "profiler", "random", "selection", "streams")


def register() -> ModuleType:
    """Loads the binary part and registers the device. Repeating it changes nothing.

    Returns:
        The module that is ``torch.openreg``.

    Raises:
        ImportError: There is no binary part for this version of torch, or another backend has taken PyTorch's one place
            for an out-of-tree device.
    """
    _builds.choose(torch.__version__, sys.modules["torch_openreg"].__path__)
    _check_place()
    _warn_other_accelerator()

    importlib.import_module("torch_openreg._C")
    torch.utils.rename_privateuse1_backend(NAME)

    module = importlib.import_module("torch_openreg.openreg")
    if getattr(torch, NAME, None) is not module:
        torch._register_device_module(NAME, module)
    for name in _SUBMODULES:
        sys.modules[f"torch.{NAME}.{name}"] = getattr(module, name)
    if not hasattr(torch.Tensor, f"is_{NAME}"):
        torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    # It caches its first answer, which without an accelerator is torch.cpu.
    torch.get_device_module.cache_clear()

    from torch_openreg import _compile
    from torch_openreg._discovery import search
    from torch_openreg._integration import (
        data_parallel,
        distributed,
        dlpack,
        exit,
        fake_tensors,
        fork,
        log,
        serialization,
        sharing,
    )

    log.install()
    search.install()
    fork.install()
    module.operators._install_report()
    for part in (serialization, dlpack, sharing, distributed, data_parallel, fake_tensors, _compile, exit):
        part.install()
    _prepare_gpu()
    return module


def is_as_cuda() -> bool:
    """Whether "cuda" is to mean openreg in this process and in those that it starts: ``OPENREG_AS_CUDA=1``."""
    from torch_openreg import _C

    return bool(_C._variable("OPENREG_AS_CUDA") == "1")


def _prepare_gpu() -> None:
    """Replaces PyTorch's allocator for CUDA now where the program asks for a GPU's driver.

    PyTorch lets it be replaced only before it is used, and what comes next may use it: transformers, for example, asks
    ``torch.cuda`` for properties when it is imported. Opens no driver, makes no context.
    """
    from torch_openreg import _C

    wanted = (_C._variable("OPENREG_DRIVERS") or "").split(",")[0].strip().lower()
    if wanted in ("cuda", "hip"):
        _C._install_gpu_allocator()


def _check_place() -> None:
    name = torch._C._get_privateuse1_backend_name()
    if name not in ("privateuseone", NAME):
        raise ImportError(
            f"PyTorch has place for one out-of-tree device in a process, and '{name}' has taken it. "
            "TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps torch from loading backends by itself."
        )


def _warn_other_accelerator() -> None:
    other = own_accelerator()
    if other is not None:
        warnings.warn(
            f"openreg becomes the accelerator of this process. PyTorch supports one at a time: backward() on "
            f"'{other}' fails from here on, and torch.accelerator means openreg. Use another process for '{other}'.",
            UserWarning,
            stacklevel=2,
        )
