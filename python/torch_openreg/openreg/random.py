# SPDX-License-Identifier: BSD-3-Clause
"""Random numbers: a generator per device.

A seed that is set before the devices are open is kept and used when they are: seeding opens no driver.

A parameter ``device`` is an index, a string or a torch.device; None, or one without an index, is the thread's current
device; a device that does not exist raises RuntimeError.
A parameter ``seed`` is an int of 64 bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from _torch_openreg_device_name import device_name
from torch import Tensor

from torch_openreg import _C
from torch_openreg.openreg import _lazy
from torch_openreg.openreg._utils import Device, _get_valid_index

__all__ = [
    "default_generators",
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]

_NAME = device_name()


class _DefaultGenerators(Sequence[torch.Generator]):
    """The default generator of each device, by index. Opens the devices on first access."""

    def __len__(self) -> int:
        return _C._get_device_count()

    def __getitem__(self, index: Any) -> Any:
        _lazy._lazy_init()
        if isinstance(index, slice):
            return tuple(_C._get_default_generator(i) for i in range(len(self))[index])
        return _C._get_default_generator(range(len(self))[index])

    def __iter__(self) -> Iterator[torch.Generator]:
        return (self[index] for index in range(len(self)))


default_generators = _DefaultGenerators()


def _get_generator(device: torch.device) -> torch.Generator:
    """Returns the default generator of a device. PyTorch calls it by this name."""
    return default_generators[_get_valid_index(device)]


def _generator_of(device: Device) -> torch.Generator:
    index = _get_valid_index(device)
    _lazy._lazy_init()
    return _C._get_default_generator(index)


def get_rng_state(device: Device = _NAME) -> Tensor:
    """Returns the state of a device's generator, as a tensor of bytes on the CPU."""
    return _generator_of(device).get_state()


def get_rng_state_all() -> list[Tensor]:
    """Returns the state of every device's generator."""
    return [get_rng_state(index) for index in range(_C._get_device_count())]


def set_rng_state(new_state: Tensor, device: Device = _NAME) -> None:
    """Sets the state of a device's generator.

    Args:
        new_state: What get_rng_state() gave.
        device: The device.

    Raises:
        RuntimeError: There is no such device, or it is no such state.
    """
    _generator_of(device).set_state(new_state)


def set_rng_state_all(new_states: Iterable[Tensor]) -> None:
    """Sets the state of every device's generator.

    Args:
        new_states: What get_rng_state_all() gave.

    Raises:
        RuntimeError: More states than devices, or no such state.
    """
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def manual_seed(seed: int) -> None:
    """Seeds the generator of this thread's current device."""
    seed = int(seed)
    _lazy._lazy_call(lambda: _seed_device(_C._get_device(), seed))


def manual_seed_all(seed: int) -> None:
    """Seeds the generator of every device. torch.manual_seed() does it too."""
    seed = int(seed)

    def call() -> None:
        for index in range(_C._get_device_count()):
            _seed_device(index, seed)

    _lazy._lazy_call(call, replaces_waiting=True)


def seed() -> int:
    """Seeds the generator of this thread's current device with a random number."""
    return _generator_of(None).seed()


def seed_all() -> int:
    """Seeds the generator of every device with one random number."""
    chosen = _generator_of(0).seed()
    for index in range(1, _C._get_device_count()):
        _seed_device(index, chosen)
    return chosen


def initial_seed() -> int:
    """Returns the seed of the generator of this thread's current device."""
    return _generator_of(None).initial_seed()


def _seed_device(index: int, seed: int) -> None:
    _C._get_default_generator(index).manual_seed(seed)
