# SPDX-License-Identifier: BSD-3-Clause
"""Variables ``OPENREG_*`` that nothing reads: most are misspelt, and what they ask for would silently not be done."""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Iterable

from torch_openreg import _C

_logger = logging.getLogger("torch_openreg")

_PREFIX = "OPENREG_"
_KNOWN = (
    *("AS_CUDA", "AUTOLOAD", "BLOCKING_WAIT", "COMM", "CONTRIB", "DEVICE_NAME", "DRIVERS", "DRIVER_LIBRARIES"),
    *("ENABLE_GLOO_COLLECTIVES", "FENCE_SIGNAL", "FLIGHT_RECORDER", "FLIGHT_RECORDER_FILE", "INIT_WARN_SECS"),
    *("LAYERS", "LOG_LEVEL", "MOCK_NUM_GPUS", "OPERATORS", "OPERATORS_POLICY", "OPERATORS_REPORT"),
    *("PREFERENCES", "RACES", "SYSTEM_ROOT", "TARGET", "USE_MOCK_GPU", "VALIDATE"),
)
_OF_SIM = ("DEVICES", "MEMORY", "RACES", "SCHEDULE", "SCHEDULE_LOG", "SEED", "SWITCHES")
_OF_GPUS = ("LIBRARY_PATH", "COMM_LIBRARY")
_OF_ALL = ("FAULTS", "VISIBLE_DEVICES")  # which the runtime reads for each driver
_NOT_OURS = ("BUILD_", "CHECK_", "CMAKE_", "TEST_", "TORCH")  # of builds, tests and openreg-check


def known_variables(drivers: Iterable[str]) -> set[str]:
    """The variables that are read, but for the options of drivers other than ``sim``."""
    names = {*_KNOWN, *(f"SIM_{key}" for key in _OF_SIM)}
    names |= {f"{driver.upper()}_{key}" for driver in {*drivers, "sim", "cuda", "hip"} for key in _OF_ALL}
    names |= {f"{driver}_{key}" for driver in ("CUDA", "HIP") for key in _OF_GPUS}
    return {_PREFIX + name for name in names}


def unread(drivers: Iterable[str]) -> dict[str, str]:
    """The variables of this process that nothing reads, each with the one that may be meant, or "".

    What the options of the known drivers are only these know, but for ``sim``.
    """
    drivers = list(drivers)
    known = known_variables(drivers)
    free = tuple(f"{_PREFIX}{driver.upper()}_" for driver in drivers if driver != "sim")
    own = tuple(_PREFIX + name for name in _NOT_OURS)
    names = (name for name in sorted(os.environ) if name.startswith(_PREFIX) and not name.startswith((*free, *own)))
    return {name: _nearest(name, known) for name in names if name not in known}


def _nearest(name: str, known: Iterable[str]) -> str:
    """The known name that is most like it, or ""; also where only the driver's name is missing."""
    without_driver = [each for each in sorted(known) if each.replace("OPENREG_SIM_", _PREFIX) == name]
    return (without_driver or difflib.get_close_matches(name, sorted(known), 1, 0.8) or [""])[0]


def text_of(name: str, nearest: str) -> str:
    """What is said of a variable that nothing reads."""
    return f"Nothing reads the variable {name}." + (f" Is {nearest} meant?" if nearest else "")


def warn() -> None:
    """Logs a warning for each variable that is like one that is read."""
    for name, nearest in unread(record["name"] for record in _C._driver_records()).items():
        if nearest:
            _logger.warning("%s", text_of(name, nearest))
