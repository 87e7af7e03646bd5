# SPDX-License-Identifier: BSD-3-Clause
"""Where the installed headers, libraries and CMake files are, for those who build against them.

From a shell: ``python -m torch_openreg.config --prefix`` (or ``--include-dir``, ``--lib-dir``, ``--torch-lib-dir``,
``--cmake-dir``, ``--pkgconfig-dir``). It needs no device and opens no driver::

    cmake -S . -B build -Dopenreg_ROOT=$(python -m torch_openreg.config --prefix)
    PKG_CONFIG_PATH=$(python -m torch_openreg.config --pkgconfig-dir) pkg-config --cflags --libs openreg

``extension_arguments()`` is for a ``setup.py`` and ``include_paths()`` and ``link_flags()`` for ``load()`` of
torch.utils.cpp_extension; examples/cpp_extension is such an extension.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from torch_openreg import _builds

_PREFIX = Path(__file__).resolve().parent


def prefix() -> str:
    """The folder that holds ``include``, ``lib``, ``bin`` and ``share``."""
    return str(_PREFIX)


def include_dir() -> str:
    """The folder of ``openreg/openreg.h`` and ``openreg/driver.h``; of C++ headers in ``torch_openreg`` below it."""
    return str(_PREFIX / "include")


def lib_dir() -> str:
    """The folder of ``libopenreg.so.1`` and the drivers."""
    return str(_PREFIX / "lib")


def torch_lib_dir() -> str:
    """The folder of ``libtorch_openreg.so`` for the torch that is installed; it needs ``lib_dir()`` too."""
    return str(_builds.folder_for(torch.__version__))


def cmake_dir() -> str:
    """The folder of ``openregConfig.cmake``, for ``-Dopenreg_DIR=``."""
    return str(_PREFIX / "share" / "cmake" / "openreg")


def pkgconfig_dir() -> str:
    """The folder of ``openreg.pc``, for ``PKG_CONFIG_PATH``."""
    return str(_PREFIX / "lib" / "pkgconfig")


def include_paths() -> list[str]:
    """The folders in which a C++ extension finds ``<openreg/openreg.h>`` and ``"shim/device/host_address.h"``."""
    return [include_dir(), str(_PREFIX / "include" / "torch_openreg")]


def link_flags() -> list[str]:
    """A linker's arguments: ``-L`` and ``-l`` of both libraries.

    No path of them is written into the extension: ``import torch`` has loaded both with torch_openreg.
    """
    return [f"-L{torch_lib_dir()}", f"-L{lib_dir()}", "-ltorch_openreg", "-lopenreg"]


def extension_arguments() -> dict[str, list[str]]:
    """The arguments that ``torch.utils.cpp_extension.CppExtension`` needs besides a name and sources."""
    return {
        "include_dirs": include_paths(),
        "library_dirs": [torch_lib_dir(), lib_dir()],
        "libraries": ["torch_openreg", "openreg"],
    }


def main(arguments: list[str] | None = None) -> None:
    """Prints one of the folders.

    Args:
        arguments: Command line; ``sys.argv[1:]`` if None.
    """
    parser = argparse.ArgumentParser(prog="python -m torch_openreg.config", description=__doc__.split("\n")[0])
    group = parser.add_mutually_exclusive_group(required=True)
    for function in (prefix, include_dir, lib_dir, torch_lib_dir, cmake_dir, pkgconfig_dir):
        group.add_argument(
            "--" + function.__name__.replace("_", "-"),
            action="store_const",
            const=function,
            dest="wanted",
            help=function.__doc__,
        )
    print(parser.parse_args(arguments).wanted())


if __name__ == "__main__":
    main()
