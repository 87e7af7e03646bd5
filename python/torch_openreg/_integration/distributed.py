# SPDX-License-Identifier: BSD-3-Clause
"""What torch.distributed must know of the device: gloo carries its tensors, and ``openreg_gloo`` is such a backend.

PyTorch's own table of backends says which devices "gloo" serves and which backend is a device's default one; openreg is
entered in both. There is nothing to register for what comes then, so the function that makes process groups is wrapped:
a group with gloo gets its backend for openreg tensors when it is made (``shim/optional/distributed/collectives.h``).
That code is a part of its own, ``_C_distributed``, which the first group loads.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import os
import resource
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
from _torch_openreg_device_name import device_name

_BACKEND = "openreg_gloo"  # also f"{_DEVICE}_gloo"
_DEVICE = device_name()


def _create(options: Any, backend_options: Any) -> Any:
    """Makes the part of a process group that serves openreg and CPU tensors.

    Args:
        options: Store, rank, world size, timeout and name, as PyTorch passes them to a backend with extended_api.
        backend_options: Ignored; gloo has none that could be given.

    Returns:
        A torch.distributed backend.

    Raises:
        RuntimeError: This torch has no gloo.
    """
    if not torch.distributed.is_gloo_available():
        raise RuntimeError(f"The backend '{_BACKEND}' needs gloo, which this build of torch does not have.")
    from torch.distributed import ProcessGroupGloo

    from torch_openreg import _C_distributed
    from torch_openreg._integration import late_groups

    name, rank, size, ranks = options.group_id, options.group_rank, options.group_size, options.global_ranks_in_group
    store = options.store

    def connect(timeout: timedelta) -> Any:
        # With a client of the store of its own where groups connect side by side: it waits there for the others.
        gloo = ProcessGroupGloo(store.clone() if ranks else store, rank, size, timeout=timeout)
        # Of the default group it is empty, which gloo's split() doesn't expect of every group.
        gloo.options.global_ranks_in_group = ranks or list(range(size))
        gloo.options.group_name = name
        gloo._set_sequence_number_for_group()
        return gloo

    return _C_distributed._staged_backend(late_groups.make(name, ranks, rank, options.timeout, connect))


def _serving(make: Callable[..., Any]) -> Callable[..., Any]:
    """PyTorch's function that makes a process group, for one that serves openreg tensors from the start."""

    @functools.wraps(make)
    def new_process_group(
        group_size: Any, group_rank: Any, ranks: Any, backend: Any, *arguments: Any, **keywords: Any
    ) -> Any:
        if str(backend) == torch.distributed.Backend.UNDEFINED and _is_the_accelerator():
            # init_process_group() without a name: PyTorch would serve the accelerator alone.
            backend = torch.distributed.Backend(torch.distributed.Backend.GLOO)
        with _advising_of_descriptors(group_size):
            made = make(group_size, group_rank, ranks, backend, *arguments, **keywords)
            group = made[0]
            if isinstance(group, torch.distributed.ProcessGroup):  # else this rank is not in it
                from torch_openreg import _C_distributed

                _C_distributed._serve_process_group(group, _own_gloo(group, made[1], ranks))
        return made

    return new_process_group


@contextlib.contextmanager
def _advising_of_descriptors(ranks: int) -> Iterator[None]:
    """Has an error of a group that there were no file descriptors for say the limit, and how to raise it."""
    try:
        yield
    except RuntimeError as error:
        limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        if "Too many open files" not in str(error) and not _are_descriptors_used_up(limit):
            raise
        hard = "not limited" if most == resource.RLIM_INFINITY else str(most)
        raise type(error)(
            f"{error}\nThis process may have {limit} files open, and gloo connects each rank to every other one: "
            f"a group of {ranks} ranks takes some {2 * ranks} descriptors, half of them for {_DEVICE} tensors. "
            f"Raise the limit before the program starts, `ulimit -n {max(4 * limit, 4 * ranks)}`, or in it, by "
            f"resource.setrlimit(resource.RLIMIT_NOFILE, ...); the hard limit is {hard}. A group of the backend "
            f"'{_BACKEND}' takes half as many."
        ) from error


def _are_descriptors_used_up(limit: int) -> bool:
    """Whether a gloo would have no place: where it finds none it may say that it can't resolve an address."""
    few = 8
    try:
        return len(os.listdir("/proc/self/fd")) + few > limit
    except OSError:
        return True


def _own_gloo(group: Any, store: Any, ranks: list[int]) -> Any:
    """Makes a second gloo for a group where openreg would share the CPU's.

    gloo matches calls by their number, so threads that use one for both kinds of tensors, in orders that differ between
    ranks, would take each other's data. Network devices, the number of threads and the timeout are those of the first.
    All ranks connect at once, at the first use by one: where gloo connects two at their first message, ``irecv()``
    waits for the peer's ``isend()``.

    Args:
        group: A process group of torch.distributed.
        store: Where the group's ranks meet.
        ranks: Those of the default group that it has; none: it is the default group.

    Returns:
        The gloo, or one that connects at its first use; None where none is needed.
    """
    from torch.distributed import PrefixStore, ProcessGroupGloo, distributed_c10d

    from torch_openreg._integration import late_groups

    types = {device.type for device in group._device_types}
    if "cpu" not in types:
        return None
    cpu = group._get_backend(torch.device("cpu"))
    gloo = getattr(cpu, "wrapped_pg", cpu)  # TORCH_DISTRIBUTED_DEBUG=DETAIL has a backend around it that compares calls
    if not isinstance(gloo, ProcessGroupGloo):
        return None
    if _DEVICE in types and group._get_backend(torch.device(_DEVICE)) is not cpu:
        return None
    prefix = f"own gloo of {_DEVICE}"
    rank, size = group.rank(), group.size()
    is_compared, options = gloo is not cpu, gloo.options

    def connect(_: timedelta) -> Any:
        own_store = store.clone() if ranks else store
        own = ProcessGroupGloo(PrefixStore(prefix, own_store), rank, size, options)
        if not is_compared:
            return own
        return distributed_c10d._create_process_group_wrapper(own, prefix, own_store, rank, size, options._timeout)

    return late_groups.make(f"{group.group_name} {prefix}", ranks, rank, options._timeout, connect)


def _is_the_accelerator() -> bool:
    accelerator = torch.accelerator.current_accelerator()
    return accelerator is not None and accelerator.type == _DEVICE


def _copy_options(options: Any) -> Any:
    """How ``copy`` makes another object of gloo's options: split_group() passes a copy of those of the group."""

    def make() -> Any:
        made = type(options)()
        for name in ("_devices", "_threads", "_timeout", "global_ranks_in_group", "group_name"):
            setattr(made, name, getattr(options, name))
        return made

    return make, ()


def install() -> None:
    """Enters the device; a torch without torch.distributed is left alone. Repeating it changes nothing."""
    if not torch.distributed.is_available() or _BACKEND in torch.distributed.Backend.backend_list:
        return
    from torch.distributed import distributed_c10d

    backends = torch.distributed.Backend
    for name in dict.fromkeys((_BACKEND, f"{_DEVICE}_gloo")):
        backends.register_backend(name, _create, extended_api=True, devices=[_DEVICE, "cpu"])
    if not torch.distributed.is_gloo_available():
        return
    backends.default_device_backend_map[_DEVICE] = backends.GLOO
    if _DEVICE not in backends.backend_capability[backends.GLOO]:
        backends.backend_capability[backends.GLOO].append(_DEVICE)
    distributed_c10d._new_process_group_helper = _serving(distributed_c10d._new_process_group_helper)
    copyreg.pickle(torch.distributed.ProcessGroupGloo._Options, _copy_options)
