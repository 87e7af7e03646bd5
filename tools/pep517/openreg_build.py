# SPDX-License-Identifier: BSD-3-Clause
"""The build backend (PEP 517): setuptools, and the torch that is built against.

The binary part is for the torch that it will run with, so that one must be at hand. In order:

1. a torch that this interpreter imports: a build without isolation;
2. the one that the variable OPENREG_TORCH names (``OPENREG_TORCH=2.13.0``): the isolated environment installs it;
3. the one installed where pip, or the active virtual environment, lives: read from there, although the isolated
   environment hides it. Nothing is fetched.

Else the build stops and says so. A plain ``torch`` among the requirements would fetch the newest, with gigabytes of
CUDA, and build for another torch than the one that is used.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from setuptools.build_meta import (
    build_editable,
    build_sdist,
    build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "InstalledTorch",
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "installed_torch",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

NO_TORCH = """\
torch-openreg is built against the torch that it runs with, and none is found here. Install the torch that you use
(pip install torch==2.13.0), then one of
  pip install torch-openreg                         finds the torch of the environment that pip runs in
  pip install --no-build-isolation torch-openreg    needs setuptools, wheel, cmake and ninja, too
  OPENREG_TORCH=2.13.0 pip install torch-openreg    fetches this torch for the build, with all that it depends on"""

# Asked of an interpreter; importing torch takes seconds, its distribution's name and version don't.
_QUESTION = """
import importlib.metadata, importlib.util, sys
if importlib.util.find_spec("torch") is None:
    sys.exit(1)
print(*sys.version_info[:2], importlib.metadata.version("torch"))
"""


class InstalledTorch(NamedTuple):
    """A torch to build against."""

    version: str  # "2.13.0+cpu"
    python: str  # the interpreter that imports it
    hidden: bool  # whether it does so only without PYTHONPATH, by which pip hides what is installed


def _ask(python: str, *, hidden: bool) -> InstalledTorch | None:
    environment = {name: value for name, value in os.environ.items() if not (hidden and name == "PYTHONPATH")}
    try:
        # In the root folder: the current one, which is the project's, must not be looked through for modules.
        done = subprocess.run(
            [python, "-c", _QUESTION], capture_output=True, text=True, check=False, env=environment, cwd=os.sep
        )
    except OSError:
        return None
    found = re.fullmatch(rf"{sys.version_info[0]} {sys.version_info[1]} (\S+)", done.stdout.strip())
    return InstalledTorch(found[1], python, hidden) if done.returncode == 0 and found else None


@functools.cache
def installed_torch() -> InstalledTorch | None:
    """The torch to build against, or None if there is none: see above."""
    here = _ask(sys.executable, hidden=False)
    if here is not None or os.environ.get("OPENREG_TORCH"):
        return here
    environments = [sys.executable]
    if os.environ.get("VIRTUAL_ENV"):
        environments.append(str(Path(os.environ["VIRTUAL_ENV"], "bin", "python")))
    return next((torch for python in environments if (torch := _ask(python, hidden=True))), None)


def _torch_requirement() -> list[str]:
    if installed_torch() is not None:
        return []
    version = os.environ.get("OPENREG_TORCH", "")
    if not version:
        sys.exit(NO_TORCH)
    if not re.fullmatch(r"\d+(\.\d+)+(\+\w+)?", version):
        sys.exit(f"OPENREG_TORCH={version}: not a version of torch, such as 2.13.0")
    return [f"torch=={version}"]


def get_requires_for_build_wheel(config_settings: dict[str, str] | None = None) -> list[str]:
    """What building a wheel needs beside pyproject.toml's list."""
    del config_settings  # setuptools would run setup.py to find out, which needs the torch that is requested here
    return _torch_requirement()


def get_requires_for_build_editable(config_settings: dict[str, str] | None = None) -> list[str]:
    """The same for an editable install."""
    return get_requires_for_build_wheel(config_settings)


def get_requires_for_build_sdist(config_settings: dict[str, str] | None = None) -> list[str]:
    """Nothing: an sdist is made without torch."""
    return []
