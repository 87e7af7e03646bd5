# SPDX-License-Identifier: BSD-3-Clause
"""The GPU that the devices pose as while "cuda" means openreg: ``OPENREG_AS_CUDA=a100``.

Libraries choose tests, data types and kernels by what ``torch.cuda`` reports about the GPU. A persona is such a report:
capability, properties, sensors, versions of CUDA and NCCL. The devices themselves don't change: they have no kernels of
the GPU, and the memory size of ``OPENREG_SIM_MEMORY``, which a persona sets where the program has not.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from torch_openreg import _C_cuda
from torch_openreg.openreg import _device
from torch_openreg.openreg.memory import mem_get_info

CUDA_NUMBER = 12080  # 1000 times the major version, and 10 times the minor one
_CUDA = f"{CUDA_NUMBER // 1000}.{CUDA_NUMBER % 1000 // 10}"
NCCL = (2, 27, 3)
_MIB = 2**20
_MEMORY_VARIABLE = "OPENREG_SIM_MEMORY"


@dataclass(frozen=True)
class Persona:
    """A GPU, by its data sheet. KiB are of shared memory and of the L2 cache, clocks in MHz, power in W."""

    name: str
    capability: tuple[int, int]
    memory_mib: int
    multiprocessors: int
    threads: int  # of a multiprocessor
    shared_kib: int  # of a multiprocessor
    l2_kib: int
    clock: int
    memory_clock: int
    bus_bits: int
    idle_power: int


PERSONAS = {
    "v100": Persona("Tesla V100-SXM2-32GB", (7, 0), 32494, 80, 2048, 96, 6144, 1530, 877, 4096, 40),
    "t4": Persona("Tesla T4", (7, 5), 14930, 40, 1024, 64, 4096, 1590, 5001, 256, 10),
    "a100": Persona("NVIDIA A100-SXM4-80GB", (8, 0), 81153, 108, 2048, 164, 40960, 1410, 1593, 5120, 60),
    "l4": Persona("NVIDIA L4", (8, 9), 22563, 58, 1536, 100, 49152, 2040, 6251, 192, 16),
    "h100": Persona("NVIDIA H100 80GB HBM3", (9, 0), 81008, 132, 2048, 228, 51200, 1980, 2619, 5120, 70),
}


@dataclass(frozen=True)
class CudaDeviceProperties:
    """What ``torch.cuda.get_device_properties()`` returns: all attributes of PyTorch's class for CUDA, in its units."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    uuid: uuid.UUID
    pci_bus_id: int
    L2_cache_size: int
    max_threads_per_multi_processor: int
    shared_memory_per_block_optin: int
    shared_memory_per_multiprocessor: int
    clock_rate: int
    memory_clock_rate: int
    memory_bus_width: int
    gcnArchName: str  # on CUDA it is the name
    shared_memory_per_block: int = 48 * 1024
    regs_per_multiprocessor: int = 65536
    max_threads_per_block: int = 1024
    warp_size: int = 32
    pci_device_id: int = 0
    pci_domain_id: int = 0
    is_integrated: int = 0
    is_multi_gpu_board: int = 0


def chosen(text: str | None) -> Persona | None:
    """The persona that ``OPENREG_AS_CUDA`` names; None for "1", with which the devices are what they are.

    Raises:
        ValueError: There is no such persona.
    """
    if text in (None, "", "0", "1"):
        return None
    persona = PERSONAS.get(text.lower())
    if persona is None:
        raise ValueError(f"OPENREG_AS_CUDA={text}: expected 1, 0 or one of {', '.join(PERSONAS)}")
    return persona


def properties(persona: Persona | None, device: Any) -> CudaDeviceProperties:
    """The properties of a device: its own, in the form of CUDA's, or the persona's. Memory and UUID are the device's.

    Args:
        persona: Whom the device takes after.
        device: An index, a device of openreg, or None for the current one.

    Raises:
        RuntimeError: There is no such device.
    """
    own = _device.get_device_properties(device)
    like = persona or Persona(own.name, (own.major, own.minor), 0, own.multi_processor_count, 0, 0, 0, 0, 0, 0, 0)
    return CudaDeviceProperties(
        name=like.name,
        major=like.capability[0],
        minor=like.capability[1],
        total_memory=own.total_memory,
        multi_processor_count=like.multiprocessors,
        uuid=uuid.UUID(own.uuid),
        pci_bus_id=own.ordinal,
        L2_cache_size=like.l2_kib * 1024,
        max_threads_per_multi_processor=like.threads,
        shared_memory_per_block_optin=max(like.shared_kib - 1, 0) * 1024,  # one is the system's
        shared_memory_per_multiprocessor=like.shared_kib * 1024,
        clock_rate=like.clock * 1000,
        memory_clock_rate=like.memory_clock * 1000,
        memory_bus_width=like.bus_bits,
        gcnArchName=like.name,
    )


def sensors(persona: Persona) -> dict[str, Callable[..., int]]:
    """What ``torch.cuda`` asks NVIDIA's management library: an idle GPU's answers, and how much memory is in use."""

    def memory_usage(device: Any = None) -> int:
        free, total = mem_get_info(device)
        return round(100 * (total - free) / total)

    def idle(value: int) -> Callable[..., int]:
        def answer(device: Any = None) -> int:
            _device.get_device_name(device)  # refuses a device that isn't there
            return value

        return answer

    return {
        "memory_usage": memory_usage,
        "utilization": idle(0),  # percent
        "temperature": idle(30),  # degrees Celsius
        "power_draw": idle(persona.idle_power * 1000),  # mW
        "clock_rate": idle(persona.clock),  # MHz
    }


def take_on(persona: Persona, replace: Callable[[Any, str, Any], None]) -> None:
    """Has PyTorch's version of CUDA and lists of architectures be those of a build for the GPU.

    Args:
        persona: The GPU.
        replace: Replaces an attribute of a module, for as long as "cuda" means openreg.
    """
    architecture = "sm_{}{}".format(*persona.capability)
    replace(torch.version, "cuda", _CUDA)
    replace(torch.cuda, "get_arch_list", lambda: [architecture])
    for name, answer in sensors(persona).items():
        replace(torch.cuda, name, answer)


class Memory:
    """The variable of the simulator's memory, while it is set to a persona's."""

    def __init__(self) -> None:
        """Sets nothing."""
        self._is_set = False

    def set(self, persona: Persona | None) -> None:
        """Sets it, for devices that are opened later, in child processes too; not where the program has set it."""
        if persona is not None and _MEMORY_VARIABLE not in os.environ:
            os.environ[_MEMORY_VARIABLE] = str(persona.memory_mib * _MIB)
            self._is_set = True

    def take_back(self) -> None:
        """Takes it back where it was set here."""
        if self._is_set:
            os.environ.pop(_MEMORY_VARIABLE, None)
            self._is_set = False


def sleep(cycles: int, persona: Persona | None) -> None:
    """Keeps the current stream busy, as ``torch.cuda._sleep()``: by a host function that sleeps.

    Args:
        cycles: Cycles of the GPU's clock; of a clock of 1 GHz without a persona.
        persona: The GPU.
    """
    nanoseconds = cycles * 1000 // (persona.clock if persona is not None else 1000)
    _C_cuda._sleep(_device.current_device(), nanoseconds)
