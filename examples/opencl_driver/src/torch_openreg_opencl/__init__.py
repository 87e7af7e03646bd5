# SPDX-License-Identifier: BSD-3-Clause
"""The driver opencl as a plugin of torch_openreg."""

from pathlib import Path


def initialize() -> None:
    """Registers the driver. Called once, by torch_openreg, when it looks for drivers; it must be quick."""
    from torch_openreg import openreg

    openreg.register_driver_plugin("opencl", library_path=str(Path(__file__).with_name("driver.so")))
