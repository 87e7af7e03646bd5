# SPDX-License-Identifier: BSD-3-Clause
"""Compares what PyTorch lets a backend override with what the shim overrides.

Reads the virtual functions of the installed PyTorch's interfaces and the members of the shim's classes. A function that
is neither overridden nor left alone for a reason given here is reported, so that a new PyTorch says what it has grown.

Run ``python tools/check_hooks.py``: prints each interface, and exits with 1 where a function is unknown. Nothing of the
backend is loaded.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Interface:
    """Classes of PyTorch, and the class of the shim that implements them."""

    name: str
    bases: tuple[tuple[str, str], ...]  # header below torch/include, class
    ours: tuple[tuple[str, str], ...]  # file of the shim, class
    older: dict[str, str] = field(default_factory=dict)  # function: why it isn't overridden
    newer: dict[str, str] = field(default_factory=dict)  # the same of what 2.15 has, and not every version before it
    since: str = ""  # the minor version of PyTorch that has it first, where not all have it

    @property
    def omitted(self) -> dict[str, str]:
        """Why functions aren't overridden."""
        return self.older | self.newer


def _names(reason: str, *names: str) -> dict[str, str]:
    """Functions that are left alone for one reason."""
    return dict.fromkeys(names, reason)


OF_INTERFACE = "CachingHostAllocatorInterface has them, for every device"

INTERFACES = (
    Interface(
        "device guard",
        (("c10/core/impl/DeviceGuardImplInterface.h", "DeviceGuardImplInterface"),),
        (("shim/device/guard.h", "OpenRegGuardImpl"),),
    ),
    Interface(
        "hooks",
        (
            ("ATen/detail/AcceleratorHooksInterface.h", "AcceleratorHooksInterface"),
            ("ATen/detail/PrivateUse1HooksInterface.h", "PrivateUse1HooksInterface"),
        ),
        (("shim/registration/hooks.h", "OpenRegHooks"),),
    ),
    Interface(
        "device allocator",
        (("c10/core/Allocator.h", "Allocator"), ("c10/core/CachingDeviceAllocator.h", "DeviceAllocator")),
        (("shim/memory/device_allocator.h", "DeviceAllocator"),),
        {"is_simple_data_ptr": "PyTorch's answer is right: a block's context is its address"},
    ),
    Interface(
        "host allocator",
        (
            ("ATen/core/CachingHostAllocator.h", "CachingHostAllocatorImpl"),
            ("ATen/core/CachingHostAllocator.h", "HostAllocator"),
        ),
        (("shim/memory/host_allocator.cpp", "HostAllocatorImpl"), ("shim/memory/host_allocator.cpp", "HostAllocator")),
        _names(
            "PyTorch's own cache, which calls the functions that are overridden",
            *("free", "empty_cache", "add_allocated_block", "get_free_block"),
            *("process_events", "process_events_for_specific_size"),
        )
        | _names("PyTorch's answer is read from its own configuration", "pinned_use_background_threads")
        | _names("PyTorch's default serves", "pinned_max_round_threshold", "pinned_max_cached_size")
        | _names(OF_INTERFACE, "get_stats", "reset_accumulated_stats", "reset_peak_stats")
        | _names(
            "a graph keeps alive the pinned memory of the program that it uses, and needs no pool of it",
            *("begin_allocate_to_pool", "end_allocate_to_pool", "release_pool"),
        ),
        _names(
            OF_INTERFACE,
            *("record_history", "is_history_enabled", "get_segments", "get_traces"),  # since 2.14
            *("record_external_register", "record_external_unregister"),
        ),
    ),
    Interface(
        "generator",
        (("c10/core/GeneratorImpl.h", "GeneratorImpl"),),
        (("shim/device/generator.h", "OpenRegGeneratorImpl"),),
        newer={"philox_state": "since 2.14; its numbers are a Mersenne Twister's, and PyTorch's default refuses"},
    ),
    Interface(
        "backend of torch.distributed",
        (("torch/csrc/distributed/c10d/Backend.hpp", "Backend"),),
        (("shim/optional/distributed/staged_backend.h", "StagedBackend"),),
        _names(
            "gloo has no such thing for tensors of a device, and PyTorch's default says so",
            *("supportsTimeEstimation", "supportsShrinking", "shrink", "merge", "allreduce_sparse"),
            *("registerOnCompletionHook", "waitForPendingWorks", "suspend", "resume", "getMemoryStats"),
            *("getMemAllocator", "allocateTensor", "supportsTensorAlloc"),
        )
        | _names("gloo connects when it is made", "eagerConnectSingleDevice"),
        # Since 2.14 or 2.15.
        _names(
            "PyTorch's default calls the function by its older name, which is overridden",
            *("all_gather_single", "all_gather_single_coalesced", "all_to_all_single"),
            *("reduce_scatter_single", "reduce_scatter_single_coalesced"),
        )
        | _names(
            "gloo has no such thing, and PyTorch's default says so",
            *("gather_single", "gather_into_tensor", "addEphemeralTimeout"),
            *("startTimeEstimate", "endTimeEstimate", "supportsWindow", "new_window"),
            *("supportsAbortHooks", "registerAbortHook", "unregisterAbortHook"),
            *("supportsCompletionHooks", "registerCompletionHook", "unregisterCompletionHook"),
        )
        | _names(
            "a group whose members change: gloo's part can, but what this class keeps of the group can't",
            *("supportsReconfigure", "get_reconfigure_handle", "reconfigure"),
        )
        | _names("PyTorch's answer is right: gloo connects when it is made", "isInitialized")
        | _names("of the options, which are gloo's own", "clone")
        | _names("PyTorch's own serve", "getBoundDeviceId", "setBoundDeviceId"),
    ),
    Interface(
        "graphs",
        (("ATen/core/GraphImplInterface.h", "GraphImplInterface"),),
        (("shim/optional/graph/graph.cpp", "Graph"),),
        since="2.13",
    ),
    Interface(
        "timer of DistributedDataParallel",
        (("torch/csrc/distributed/c10d/reducer_timer.hpp", "Timer"),),
        (("shim/optional/distributed/ddp_timer.cpp", "DdpTimer"),),
    ),
    Interface(
        "profiler, by events",
        (("torch/csrc/profiler/stubs/base.h", "ProfilerStubs"),),
        (("shim/device/profiler.cpp", "ProfilerStubs"),),
    ),
    Interface(
        "profiler, by rows",
        tuple(("kineto/IActivityProfiler.h", name) for name in ("IActivityProfilerSession", "IActivityProfiler")),
        (("shim/optional/profile/kineto.cpp", "Session"), ("shim/optional/profile/kineto.cpp", "Profiler")),
        {
            "getDeviceProperties": "it is written into the head of a trace for CUDA's devices; lanes have their names",
            "getMetadata": "there is nothing to say of a whole trace",
        },
        {"toggleCollectionDynamic": "since 2.15; PyTorch refuses to toggle any rows but the CPU's and CUDA's"},
        since="2.12",
    ),
)

NEWER = {name for interface in INTERFACES for name in interface.newer}


def without_comments(text: str) -> str:
    """C++ without comments and texts."""
    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\])*"', " ", text, flags=re.DOTALL)


def body_of(text: str, name: str) -> str:
    """What stands between the braces of a class.

    Raises:
        ValueError: There is no such class.
    """
    found = re.search(rf"\b(?:class|struct)\s+(?:[A-Z][A-Z0-9_]+\s+)?{name}\b[^;{{()]*(?:\([^)]*\)[^;{{]*)?\{{", text)
    if found is None:
        raise ValueError(f"no class {name}")
    depth = 1
    for at in range(found.end(), len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if depth == 0:
            return text[found.end() : at]
    raise ValueError(f"class {name} does not end")


def virtual_functions(header: str, name: str) -> set[str]:
    """Functions of a class that a descendant may override, destructors apart."""
    declarations = re.findall(r"\bvirtual\s+([^;{]*)", body_of(header, name))
    names = {found[1] for text in declarations if (found := re.search(r"(~?\w+)\s*\(", text))}
    return {name for name in names if not name.startswith("~")}


def members(source: str, name: str) -> set[str]:
    """Functions that a class declares."""
    return set(re.findall(r"(\w+)\s*\(", body_of(source, name)))


def report(include: Path, interface: Interface) -> tuple[set[str], set[str], set[str]]:
    """Functions of an interface: overridden, left alone for a reason, unknown.

    Raises:
        ValueError: A class was renamed.
        OSError: A header was moved.
    """
    offered: set[str] = set()
    ours: set[str] = set()
    for header, name in interface.bases:
        offered |= virtual_functions(without_comments((include / header).read_text()), name)
    for file, name in interface.ours:
        ours |= members(without_comments((ROOT / file).read_text()), name)
    omitted = offered & interface.omitted.keys() - ours
    return offered & ours, omitted, offered - ours - omitted


def torch_include() -> Path:
    """The installed PyTorch's headers."""
    import torch

    return Path(torch.__file__).parent / "include"


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints and compares."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--include", type=Path, help="folder of PyTorch's headers; those of the installed one otherwise"
    )
    include: Path = parser.parse_args(arguments).include or torch_include()
    failed = False
    for interface in INTERFACES:
        if interface.since and not (include / interface.bases[0][0]).exists():
            print(f"{interface.name}: this PyTorch has no such interface (since {interface.since})")
            continue
        overridden, omitted, unknown = report(include, interface)
        print(f"{interface.name}: {len(overridden)} overridden, {len(omitted)} left alone, {len(unknown)} unknown")
        for name in sorted(omitted):
            print(f"  {name}: {interface.omitted[name]}")
        for name in sorted(unknown):
            print(f"  {name}: UNKNOWN: override it in {interface.ours[0][0]}, or say here why not")
        failed |= bool(unknown)
    return 1 if failed else 0


if __name__ == "__main__":
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    sys.exit(main())
