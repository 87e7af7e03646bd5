# SPDX-License-Identifier: BSD-3-Clause
"""Lets Lightning's Trainer and Fabric run on openreg devices. Importing this module registers the names that they take.

``Trainer(accelerator="openreg", strategy="openreg")`` trains on one device, and so does Fabric with these arguments;
``Trainer(strategy="openreg_ddp")`` trains on several, each with a process of its own. Lightning's own strategies know
the devices of its own accelerators only: for others they take the CPU, and CUDA's autocast.
"""

from __future__ import annotations

from typing import Any

import torch
from _torch_openreg_device_name import device_name
from lightning.fabric.accelerators import ACCELERATOR_REGISTRY
from lightning.fabric.plugins.precision import MixedPrecision as FabricMixedPrecision
from lightning.fabric.plugins.precision import Precision as FabricPrecision
from lightning.fabric.strategies import STRATEGY_REGISTRY
from lightning.fabric.strategies import SingleDeviceStrategy as FabricSingleDeviceStrategy
from lightning.pytorch.accelerators import Accelerator, AcceleratorRegistry
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, StrategyRegistry
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from torch_openreg.openreg import device_count, empty_cache, is_available, memory_stats, set_device

__all__ = ["OpenRegAccelerator", "OpenRegDDPStrategy", "OpenRegFabricStrategy", "OpenRegStrategy"]

_NAME = device_name()


def _indices(devices: int | str | list[int]) -> list[int]:
    """Reads ``Trainer(devices=)`` as Lightning does for GPUs, without checking that the devices exist.

    Raises:
        TypeError, ValueError: It is no number and no list of numbers.
    """
    if isinstance(devices, str):
        listed = "," in devices
        numbers = [int(item) for item in devices.split(",") if item.strip()]
        devices = numbers if listed else numbers[0] if numbers else 0
    if isinstance(devices, int) and not isinstance(devices, bool):
        return list(range(device_count() if devices == -1 else devices))
    if isinstance(devices, (list, tuple)) and all(type(index) is int for index in devices):
        return list(devices)
    raise TypeError(devices)


class OpenRegAccelerator(Accelerator):
    """Lightning's view of openreg devices, by the name "openreg"."""

    def setup_device(self, device: torch.device) -> None:
        """Makes the device the current one of the calling thread.

        Raises:
            MisconfigurationException: It is not an openreg device: the Trainer was given another strategy.
        """
        if device.type != _NAME:
            raise MisconfigurationException(
                f"Device should be {_NAME}, got {device} instead. With accelerator='{_NAME}' pass strategy='{_NAME}' "
                f"for one device or strategy='{_NAME}_ddp' for several."
            )
        set_device(device)

    def get_device_stats(self, device: torch.device | str | int) -> dict[str, Any]:
        """Returns torch.openreg.memory_stats(): bytes and counts, for Lightning's DeviceStatsMonitor."""
        return dict(memory_stats(device))

    def teardown(self) -> None:
        """Gives unused device memory back."""
        empty_cache()

    @staticmethod
    def parse_devices(devices: int | str | list[int]) -> list[int]:
        """Reads the Trainer's argument ``devices``.

        Args:
            devices: How many, from device 0 on; -1 for all; a list of indices; or one of these as a string, "0,1".

        Raises:
            MisconfigurationException: It can't be read, names a device twice, or names one that does not exist.
        """
        try:
            indices = _indices(devices)
        except (TypeError, ValueError):
            raise MisconfigurationException(
                f"`devices` for {_NAME} must be a count, -1, or a list of indices, got {devices!r}."
            ) from None
        available = list(range(device_count()))
        if not indices or len(set(indices)) != len(indices) or not set(indices) <= set(available):
            raise MisconfigurationException(
                f"You requested {_NAME} devices: {indices}\n But your machine only has: {available}"
            )
        return indices

    @staticmethod
    def get_parallel_devices(devices: list[int]) -> list[torch.device]:
        """Returns the devices of these indices."""
        return [torch.device(_NAME, index) for index in devices]

    @staticmethod
    def auto_device_count() -> int:
        """Returns how many devices ``devices="auto"`` means: all of them."""
        return device_count()

    @staticmethod
    def is_available() -> bool:
        """Returns whether there is a device."""
        return is_available()

    @staticmethod
    def name() -> str:
        """Returns "openreg"."""
        return _NAME


class _OwnAutocast:
    """Part of a strategy: mixed precision that was set up for CUDA, Lightning's guess, is set up for openreg instead.

    ``Trainer(plugins=)`` may still say otherwise: a plugin for another device type is left alone.
    """

    @property
    def precision_plugin(self) -> Precision:
        return super().precision_plugin  # type: ignore[misc]

    @precision_plugin.setter
    def precision_plugin(self, plugin: Precision | None) -> None:
        if isinstance(plugin, MixedPrecision) and plugin.device == "cuda":
            plugin = MixedPrecision(plugin.precision, _NAME)
        self._precision_plugin = plugin


class _OneDevice:
    """Part of a strategy: the device is the one that ``devices=`` names."""

    _root_device: torch.device

    @property
    def parallel_devices(self) -> list[torch.device]:
        """The device, in a list; empty till it has an index. Lightning sets its choice here."""
        return [] if self._root_device.index is None else [self._root_device]

    @parallel_devices.setter
    def parallel_devices(self, devices: list[torch.device]) -> None:
        if len(devices) != 1:
            raise MisconfigurationException(
                f"strategy='{_NAME}' is for one device, got {len(devices)}. Pass devices=1, or to a Trainer "
                f"strategy='{_NAME}_ddp'."
            )
        self._root_device = devices[0]


class OpenRegStrategy(_OneDevice, _OwnAutocast, SingleDeviceStrategy):
    """A Trainer's work on one device, by the name "openreg"."""

    strategy_name = _NAME

    def __init__(self, device: torch.device | str = _NAME, **settings: Any) -> None:
        super().__init__(device=device, **settings)


class OpenRegFabricStrategy(_OneDevice, FabricSingleDeviceStrategy):
    """Fabric's work on one device, by the name "openreg"."""

    def __init__(self, device: torch.device | str = _NAME, **settings: Any) -> None:
        super().__init__(device=device, **settings)

    @property
    def precision(self) -> FabricPrecision:
        """How numbers are rounded; mixed precision that was set up for CUDA is set up for openreg instead."""
        return super().precision

    @precision.setter
    def precision(self, plugin: FabricPrecision | None) -> None:
        if isinstance(plugin, FabricMixedPrecision) and plugin.device == "cuda":
            plugin = FabricMixedPrecision(plugin.precision, _NAME)
        self._precision = plugin


class OpenRegDDPStrategy(_OwnAutocast, DDPStrategy):
    """DistributedDataParallel over devices, a process for each, by the name "openreg_ddp"."""

    strategy_name = f"{_NAME}_ddp"

    def determine_ddp_device_ids(self) -> None:
        """Returns None: the module is on its device already. Lightning would open a CUDA stream for a list."""
        return

    @classmethod
    def register_strategies(cls, strategy_registry: Any) -> None:
        """Registers the name; DDPStrategy has a list of names of its own."""
        strategy_registry.register(cls.strategy_name, cls, description=cls.__name__)


def _register() -> None:
    if _NAME in AcceleratorRegistry:
        return
    for accelerators in (AcceleratorRegistry, ACCELERATOR_REGISTRY):
        accelerators.register(_NAME, OpenRegAccelerator, description=f"devices of torch.{_NAME}")
    STRATEGY_REGISTRY.register(_NAME, OpenRegFabricStrategy, description=OpenRegFabricStrategy.__name__)
    OpenRegStrategy.register_strategies(StrategyRegistry)
    OpenRegDDPStrategy.register_strategies(StrategyRegistry)


_register()
