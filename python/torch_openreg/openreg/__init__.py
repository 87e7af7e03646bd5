# SPDX-License-Identifier: BSD-3-Clause
"""The module of the device: devices, streams, memory and random numbers.

The names and their meaning are those of ``torch.cuda``. An argument ``device`` is an index, a torch.device or a
string: the device's name or "privateuseone", alone or with an index ("privateuseone:1"). The current device and the
current streams belong to the calling thread.
"""

from __future__ import annotations

import importlib as _importlib
import sys as _sys
import types as _types
import typing as _typing
from typing import Any

from _torch_openreg_device_name import device_name as _device_name
from torch import AcceleratorError, OutOfMemoryError

from torch_openreg.openreg import (
    _absent,
    _lazy,
    amp,
    graphs,
    memory,
    operators,
    plugins,
    profiler,
    random,
    selection,
    streams,
)
from torch_openreg.openreg._device import (
    DeviceProperties,
    _exchange_device,
    _maybe_exchange_device,
    current_device,
    device,
    device_count,
    device_of,
    driver_records,
    get_device_capability,
    get_device_name,
    get_device_properties,
    is_available,
    set_device,
    synchronize,
)
from torch_openreg.openreg._lazy import _is_in_bad_fork, _lazy_call, _lazy_init, init, is_initialized
from torch_openreg.openreg._utils import _get_device_index
from torch_openreg.openreg.amp import get_amp_supported_dtype, is_bf16_supported
from torch_openreg.openreg.capabilities import (
    can_device_access_peer,
    device_memory_used,
    get_arch_list,
    get_gencode_flags,
    get_sync_debug_mode,
    has_half,
    has_magma,
    is_tf32_supported,
    set_sync_debug_mode,
)
from torch_openreg.openreg.creation import Generator, as_tensor, from_buffer, from_numpy, full
from torch_openreg.openreg.defaults import as_device, default_device, default_dtype, dev, set_default_device
from torch_openreg.openreg.diagnosis import diagnose
from torch_openreg.openreg.drivers import (
    DeviceInfo,
    Driver,
    Topology,
    _clear_drivers,
    _options_from_env,
    canonicalize_driver,
    default_driver,
    devices,
    driver_api_version,
    driver_errors,
    driver_info,
    driver_topology,
    drivers,
    drivers_are_initialized,
    expand_driver_alias,
    get_device_driver,
    get_driver,
    global_device_count,
    is_gpu_driver,
    is_known_driver,
    local_device_count,
    local_devices,
    process_count,
    process_index,
    using_driver_c_api,
)
from torch_openreg.openreg.graphs import (
    OpenRegGraph,
    graph,
    graph_pool_handle,
    is_current_stream_capturing,
    make_graphed_callables,
)
from torch_openreg.openreg.memory import (
    MemPool,
    caching_allocator_alloc,
    caching_allocator_delete,
    caching_allocator_disabled,
    caching_allocator_enable,
    change_current_allocator,
    empty_cache,
    empty_host_cache,
    get_allocator_backend,
    get_per_process_memory_fraction,
    host_memory_stats,
    host_memory_stats_as_nested_dict,
    ipc_collect,
    list_gpu_processes,
    max_memory_allocated,
    max_memory_cached,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_cached,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_accumulated_host_memory_stats,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_max_memory_cached,
    reset_peak_host_memory_stats,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
    use_mem_pool,
)
from torch_openreg.openreg.nested import mover, to_device
from torch_openreg.openreg.operators import (
    operator_policy,
    operator_report,
    operator_stats,
    reset_operator_stats,
    set_operator_details,
    set_operator_policy,
)
from torch_openreg.openreg.plugins import DriverRegistration, register_driver_factory, register_driver_plugin
from torch_openreg.openreg.random import (
    _get_generator,
    default_generators,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from torch_openreg.openreg.selection import (
    DeviceSelectionError,
    canonical_name,
    cpu_device,
    driver_device,
    get_preferred_driver,
    gpu_device,
    is_functional,
    is_loaded,
    reset_gpu_device,
    same_device,
    set_preferred_driver,
    supported_drivers,
    supported_gpu_drivers,
    use_driver,
)
from torch_openreg.openreg.streams import (
    Event,
    ExternalStream,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    set_stream,
    stream,
)
from torch_openreg.openreg.tensor_types import (
    BFloat16Tensor,
    BoolTensor,
    ByteTensor,
    CharTensor,
    DoubleTensor,
    FloatTensor,
    HalfTensor,
    IntTensor,
    LongTensor,
    ShortTensor,
)

if _typing.TYPE_CHECKING:
    from torch_openreg_lab.faults import faults
    from torch_openreg_lab.races import Race, RaceError, RaceUse, allow_races, clear_races, detect_races, races
    from torch_openreg_lab.recorder import dump_flight_recorder, record_flight

__all__ = [
    "AcceleratorError",
    "BFloat16Tensor",
    "BoolTensor",
    "ByteTensor",
    "CharTensor",
    "DeviceInfo",
    "DeviceProperties",
    "DeviceSelectionError",
    "DoubleTensor",
    "Driver",
    "DriverRegistration",
    "Event",
    "FloatTensor",
    "ExternalStream",
    "Generator",
    "HalfTensor",
    "IntTensor",
    "LongTensor",
    "OpenRegGraph",
    "OutOfMemoryError",
    "Race",
    "RaceError",
    "RaceUse",
    "ShortTensor",
    "MemPool",
    "Stream",
    "StreamContext",
    "Topology",
    "allow_races",
    "amp",
    "as_device",
    "as_tensor",
    "can_device_access_peer",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "caching_allocator_disabled",
    "caching_allocator_enable",
    "canonical_name",
    "canonicalize_driver",
    "change_current_allocator",
    "clear_races",
    "cpu_device",
    "current_device",
    "current_stream",
    "default_device",
    "default_driver",
    "default_dtype",
    "default_generators",
    "default_stream",
    "dev",
    "detect_races",
    "device",
    "device_count",
    "device_memory_used",
    "device_of",
    "devices",
    "diagnose",
    "driver_api_version",
    "driver_device",
    "driver_errors",
    "driver_info",
    "driver_records",
    "driver_topology",
    "drivers",
    "drivers_are_initialized",
    "dump_flight_recorder",
    "empty_cache",
    "empty_host_cache",
    "expand_driver_alias",
    "faults",
    "from_buffer",
    "from_numpy",
    "full",
    "get_allocator_backend",
    "get_amp_supported_dtype",
    "get_arch_list",
    "get_device_capability",
    "get_device_driver",
    "get_device_name",
    "get_device_properties",
    "get_driver",
    "get_gencode_flags",
    "get_per_process_memory_fraction",
    "get_preferred_driver",
    "get_rng_state",
    "get_rng_state_all",
    "get_sync_debug_mode",
    "global_device_count",
    "gpu_device",
    "graph",
    "graph_pool_handle",
    "graphs",
    "has_half",
    "has_magma",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "init",
    "initial_seed",
    "ipc_collect",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_functional",
    "is_gpu_driver",
    "is_initialized",
    "is_known_driver",
    "is_loaded",
    "is_tf32_supported",
    "list_gpu_processes",
    "local_device_count",
    "local_devices",
    "make_graphed_callables",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "mover",
    "operator_policy",
    "operator_report",
    "operator_stats",
    "operators",
    "plugins",
    "process_count",
    "process_index",
    "profiler",
    "races",
    "random",
    "record_flight",
    "register_driver_factory",
    "register_driver_plugin",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_gpu_device",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_operator_stats",
    "reset_peak_host_memory_stats",
    "reset_peak_memory_stats",
    "same_device",
    "seed",
    "seed_all",
    "selection",
    "set_default_device",
    "set_device",
    "set_operator_details",
    "set_operator_policy",
    "set_per_process_memory_fraction",
    "set_preferred_driver",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "set_sync_debug_mode",
    "stream",
    "streams",
    "supported_drivers",
    "supported_gpu_drivers",
    "synchronize",
    "to_device",
    "use_driver",
    "use_mem_pool",
    "using_driver_c_api",
]

# What PyTorch and tests look up under these names.
_PRIVATE = (
    _clear_drivers,
    _exchange_device,
    _get_device_index,
    _get_generator,
    _is_in_bad_fork,
    _lazy_call,
    _lazy_init,
    _maybe_exchange_device,
    _options_from_env,
)


def _is_compiled() -> bool:
    """Whether this build of the package can drive devices: always."""
    return True


# Names of the laboratory and their modules, which are loaded when a name is first used.
_OF_LABORATORY = {
    **dict.fromkeys(("Race", "RaceError", "RaceUse", "allow_races", "clear_races", "detect_races", "races"), "races"),
    **dict.fromkeys(("dump_flight_recorder", "record_flight"), "recorder"),
    "faults": "faults",
}


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
