"""``torch.openreg``: devices, streams, memory and random numbers of the device type ``openreg``.

The names and their meaning are those of ``torch.cuda``. An argument ``device`` is an index, a string ("openreg:1",
"privateuseone:1") or a torch.device. The current device and the current streams belong to the calling thread.
"""

from __future__ import annotations

from typing import Any

from torch_openreg.openreg import _lazy, amp, memory, operators, plugins, random, selection, streams
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
from torch_openreg.openreg.memory import (
    empty_cache,
    ipc_collect,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
)
from torch_openreg.openreg.nested import to_device
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
    get_preferred_driver,
    gpu_device,
    is_functional,
    is_loaded,
    reset_gpu_device,
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

__all__ = [
    "DeviceInfo",
    "DeviceProperties",
    "DeviceSelectionError",
    "Driver",
    "DriverRegistration",
    "Event",
    "ExternalStream",
    "Generator",
    "Stream",
    "StreamContext",
    "Topology",
    "amp",
    "as_device",
    "as_tensor",
    "canonical_name",
    "canonicalize_driver",
    "cpu_device",
    "current_device",
    "current_stream",
    "default_device",
    "default_driver",
    "default_dtype",
    "default_generators",
    "default_stream",
    "dev",
    "device",
    "device_count",
    "device_of",
    "devices",
    "diagnose",
    "driver_api_version",
    "driver_errors",
    "driver_info",
    "driver_records",
    "driver_topology",
    "drivers",
    "drivers_are_initialized",
    "empty_cache",
    "expand_driver_alias",
    "from_buffer",
    "from_numpy",
    "full",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_driver",
    "get_device_name",
    "get_device_properties",
    "get_driver",
    "get_preferred_driver",
    "get_rng_state",
    "get_rng_state_all",
    "global_device_count",
    "gpu_device",
    "init",
    "initial_seed",
    "ipc_collect",
    "is_available",
    "is_bf16_supported",
    "is_functional",
    "is_gpu_driver",
    "is_initialized",
    "is_known_driver",
    "is_loaded",
    "local_device_count",
    "local_devices",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_summary",
    "operator_policy",
    "operator_report",
    "operator_stats",
    "operators",
    "plugins",
    "process_count",
    "process_index",
    "random",
    "register_driver_factory",
    "register_driver_plugin",
    "reset_accumulated_memory_stats",
    "reset_gpu_device",
    "reset_operator_stats",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "selection",
    "set_default_device",
    "set_device",
    "set_operator_details",
    "set_operator_policy",
    "set_preferred_driver",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "streams",
    "supported_drivers",
    "supported_gpu_drivers",
    "synchronize",
    "to_device",
    "use_driver",
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


def __getattr__(name: str) -> Any:
    # A flag that PyTorch reads; it changes after the import.
    if name == "_initialized":
        return _lazy.is_initialized()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
