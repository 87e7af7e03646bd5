# SPDX-License-Identifier: BSD-3-Clause
"""Compiles driver.c into a shared library inside the package; everything else is in pyproject.toml."""

import os

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

from torch_openreg import config

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1: the wheel is named for this Python, and works all the same
    bdist_wheel = None


class BuildDriver(build_ext):
    """Builds a plain shared library, not a Python module: its name needs no Python version in it."""

    def finalize_options(self) -> None:
        """Compiles always: a library that an earlier build left in build/ may be older than a header."""
        super().finalize_options()
        self.force = True

    def get_ext_filename(self, ext_name: str) -> str:
        """Path of a library below the package's folder."""
        return os.path.join(*ext_name.split(".")) + ".so"


commands = {"build_ext": BuildDriver}
if bdist_wheel is not None:

    class Wheel(bdist_wheel):
        """Names the wheel for every Python 3: plain C is for a platform, and for no Python version."""

        def get_tag(self) -> tuple[str, str, str]:
            """Python, its binary interface, and the platform."""
            return "py3", "none", super().get_tag()[2]

    commands["bdist_wheel"] = Wheel

setup(
    ext_modules=[
        Extension(
            "torch_openreg_toy.driver",
            sources=["torch_openreg_toy/driver.c"],
            include_dirs=[config.include_dir()],
            extra_compile_args=["-std=gnu11", "-fvisibility=hidden"],
        )
    ],
    cmdclass=commands,
)
