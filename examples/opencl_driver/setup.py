# SPDX-License-Identifier: BSD-3-Clause
"""Compiles the C files into a shared library inside the package; everything else is in pyproject.toml."""

import glob
import os

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

from torch_openreg import config


class BuildDriver(build_ext):
    """Builds a plain shared library, not a Python module: its name needs no Python version in it."""

    def finalize_options(self) -> None:
        """Compiles always: a library that an earlier build left in build/ may be older than a header."""
        super().finalize_options()
        self.force = True

    def get_ext_filename(self, ext_name: str) -> str:
        """Path of a library below the package's folder."""
        return os.path.join(*ext_name.split(".")) + ".so"


class Wheel(bdist_wheel):
    """Names the wheel for every Python 3: plain C is for a platform, and for no Python version."""

    def get_tag(self) -> tuple[str, str, str]:
        """Python, its binary interface, and the platform."""
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[
        Extension(
            "torch_openreg_opencl.driver",
            sources=sorted(glob.glob("src/torch_openreg_opencl/*.c")),
            include_dirs=[config.include_dir()],
            libraries=["OpenCL", "clblast", "pthread", "m"],
            extra_compile_args=["-std=gnu11", "-fvisibility=hidden", "-Wall", "-Wextra"],
        )
    ],
    cmdclass={"build_ext": BuildDriver, "bdist_wheel": Wheel},
)
