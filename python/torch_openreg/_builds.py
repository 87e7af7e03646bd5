# SPDX-License-Identifier: BSD-3-Clause
"""The binary parts of this package: one for each minor version of torch, whose C++ interfaces change with each.

The runtime and its drivers are in ``lib/`` once. What is built against torch (``libtorch_openreg.so``, the extension
module ``_C`` and the module ``_build_info``) is in a folder of the version, ``lib/torch2.13``. The one of the running
torch is chosen by that name, before a library is loaded: one of another version would fail with an undefined symbol, or
worse.
"""

from __future__ import annotations

import re
from collections.abc import MutableSequence, Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

_LIBRARIES = Path(__file__).resolve().parent / "lib"
_FOLDER = re.compile(r"torch(\d+)\.(\d+)")


def minor(version: str) -> str:
    """The minor version of a version of torch: "2.13" of "2.13.0+cpu" and of "2.13.0a0+git1234567"."""
    return ".".join(version.split("+")[0].split(".")[:2])


def folders(libraries: Path = _LIBRARIES) -> dict[str, Path]:
    """The folder of each minor version that is here, the oldest first.

    Args:
        libraries: The package's ``lib``.
    """
    found = [(name, path) for path in libraries.glob("torch*") if (name := _FOLDER.fullmatch(path.name))]
    found.sort(key=lambda each: (int(each[0][1]), int(each[0][2])))
    return {f"{name[1]}.{name[2]}": path for name, path in found}


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def folder_for(version: str, libraries: Path = _LIBRARIES) -> Path:
    """The folder of what is built against a version of torch.

    Args:
        version: As ``torch.__version__``.
        libraries: The package's ``lib``.

    Raises:
        ImportError: There is none, with what there is and what to do; or it is for other versions of Python.
    """
    known = folders(libraries)
    if not known:
        raise ImportError(
            "torch_openreg has no binary part here. In a checkout run `make build`, or install it with "
            "`pip install --no-build-isolation .`"
        )
    folder = known.get(minor(version))
    if folder is None:
        raise ImportError(
            f"torch_openreg is built for torch {_listed(list(known))} here, but torch {version} is installed. Each "
            "minor version of torch needs a build of its own: install a torch_openreg that has one for it, install "
            "one of those versions of torch, or build torch_openreg against this torch with "
            "`pip install --no-build-isolation .`"
        )
    if not any((folder / f"_C{suffix}").exists() for suffix in EXTENSION_SUFFIXES):
        others = _listed(sorted(path.name for path in folder.glob("_C.*"))) if any(folder.glob("_C.*")) else "none"
        raise ImportError(
            f"The binary part of torch_openreg for torch {minor(version)} has no extension module for this Python "
            f"(_C{EXTENSION_SUFFIXES[0]}); there is: {others}. Install the wheel for this version of Python, or build "
            "it with `pip install --no-build-isolation .`"
        )
    return folder


def choose(version: str, path: MutableSequence[str]) -> None:
    """Adds the folder for a version of torch to where the package's modules are looked for. Repeating changes nothing.

    Args:
        version: As ``torch.__version__``.
        path: The package's ``__path__``. The folder comes first: an older build may have left a ``_C`` beside this
            file.

    Raises:
        ImportError: As folder_for().
    """
    folder = str(folder_for(version))
    if folder not in path:
        path.insert(0, folder)
