# SPDX-License-Identifier: BSD-3-Clause
"""The module of the device: devices, streams, memory and random numbers.

The names and their meaning are those of ``torch.cuda``. An argument ``device`` is an index, a torch.device or a
string: the device's name or "privateuseone", alone or with an index ("privateuseone:1"). None is the current device,
unless a function says otherwise. A RuntimeError is raised where there is no such device, a ValueError for a device of
another type. The current device and the current streams belong to the calling thread.
"""

from __future__ import annotations

import importlib as _importlib
import sys as _sys
import types as _types
import typing as _typing
from typing import Any

from _torch_openreg_device_name import device_name as _device_name
from torch import AcceleratorError as AcceleratorError
from torch import OutOfMemoryError as OutOfMemoryError

from torch_openreg.openreg import _absent, _lazy
from torch_openreg.openreg import amp as amp
from torch_openreg.openreg import graphs as graphs
from torch_openreg.openreg import memory as memory
from torch_openreg.openreg import operators as operators
from torch_openreg.openreg import plugins as plugins
from torch_openreg.openreg import profiler as profiler
from torch_openreg.openreg import random as random
from torch_openreg.openreg import selection as selection
from torch_openreg.openreg import streams as streams
from torch_openreg.openreg._device import *
from torch_openreg.openreg._device import _exchange_device, _maybe_exchange_device
from torch_openreg.openreg._lazy import _is_in_bad_fork, _lazy_call, _lazy_init
from torch_openreg.openreg._lazy import init as init
from torch_openreg.openreg._lazy import is_initialized as is_initialized
from torch_openreg.openreg._utils import _get_device_index
from torch_openreg.openreg.amp import get_amp_supported_dtype as get_amp_supported_dtype
from torch_openreg.openreg.amp import is_bf16_supported as is_bf16_supported
from torch_openreg.openreg.capabilities import *
from torch_openreg.openreg.creation import *
from torch_openreg.openreg.defaults import *
from torch_openreg.openreg.diagnosis import *
from torch_openreg.openreg.drivers import *
from torch_openreg.openreg.drivers import _clear_drivers, _options_from_env
from torch_openreg.openreg.graphs import *
from torch_openreg.openreg.memory import *
from torch_openreg.openreg.nested import *
from torch_openreg.openreg.operators import *
from torch_openreg.openreg.plugins import *
from torch_openreg.openreg.random import *
from torch_openreg.openreg.random import _get_generator
from torch_openreg.openreg.selection import *
from torch_openreg.openreg.streams import *
from torch_openreg.openreg.tensor_types import *

if _typing.TYPE_CHECKING:
    from torch_openreg_lab.faults import *
    from torch_openreg_lab.races import *
    from torch_openreg_lab.recorder import *

# What PyTorch and tests look up under these names.
_PRIVATE = (
    *(_clear_drivers, _exchange_device, _get_device_index, _get_generator, _is_in_bad_fork),
    *(_lazy_call, _lazy_init, _maybe_exchange_device, _options_from_env),
)


def _is_compiled() -> bool:
    """Whether this build of the package can drive devices: always."""
    return True


# Names of the lab and their modules, which are loaded when a name is first used.
_OF_LABORATORY = {
    **dict.fromkeys(("Race", "RaceError", "RaceUse", "allow_races", "clear_races", "detect_races", "races"), "races"),
    **dict.fromkeys(("dump_flight_recorder", "record_flight"), "recorder"),
    "faults": "faults",
}


if not _typing.TYPE_CHECKING:  # mypy can't read a list that is put together: what the imports above say is public
    __all__ = [
        *("AcceleratorError", "OutOfMemoryError", "get_amp_supported_dtype", "init"),
        *("is_bf16_supported", "is_initialized"),
        *("amp", "graphs", "memory", "operators", "plugins", "profiler", "random", "selection", "streams"),
        *_OF_LABORATORY,
    ]
    # By their names: `drivers` is a function here.
    for _module in (
        *("_device", "capabilities", "creation", "defaults", "diagnosis", "drivers", "graphs", "memory", "nested"),
        *("operators", "plugins", "random", "selection", "streams", "tensor_types"),
    ):
        __all__ += _sys.modules[f"{__name__}.{_module}"].__all__


def __dir__() -> list[str]:
    return sorted({*globals(), *_OF_LABORATORY})


if not _typing.TYPE_CHECKING:  # with it, no misspelt name would be an error of types

    def __getattr__(name: str) -> Any:
        if name in _OF_LABORATORY:
            found = getattr(_importlib.import_module(f"torch_openreg_lab.{_OF_LABORATORY[name]}"), name)
            globals()[name] = found
            return found
        # A flag that PyTorch reads; it changes after the import.
        if name == "_initialized":
            return _lazy.is_initialized()
        reason = _absent.reason(name)
        raise AttributeError(
            f"module 'torch.{_device_name()}' has no attribute {name!r}" + (f": {reason}" if reason else "")
        )


class _Module(_types.ModuleType):
    """This module, by the name that users have for it."""

    def __repr__(self) -> str:
        return f"<module 'torch.{_device_name()}' from {__file__!r}>"


_sys.modules[__name__].__class__ = _Module
