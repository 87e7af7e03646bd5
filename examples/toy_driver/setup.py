# SPDX-License-Identifier: BSD-3-Clause
"""Compiles driver.c into a shared library inside the package; everything else is in pyproject.toml."""

import os

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

from torch_openreg import config


class BuildDriver(build_ext):
    """Builds a plain shared library, not a Python module: its name needs no Python version in it."""

    def get_ext_filename(self, ext_name: str) -> str:
        """Path of a library below the package's folder."""
        return os.path.join(*ext_name.split(".")) + ".so"


setup(
    ext_modules=[
        Extension(
            "torch_openreg_toy.driver",
            sources=["torch_openreg_toy/driver.c"],
            include_dirs=[config.include_dir()],
            extra_compile_args=["-std=c11", "-fvisibility=hidden"],
        )
    ],
    cmdclass={"build_ext": BuildDriver},
)
