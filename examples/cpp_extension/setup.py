# SPDX-License-Identifier: BSD-3-Clause
"""Compiles silu.cpp into a library inside the package; everything else is in pyproject.toml."""

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

from torch_openreg import config

setup(
    ext_modules=[
        CppExtension("openreg_silu._library", sources=["openreg_silu/silu.cpp"], **config.extension_arguments())
    ],
    # No part of a module of Python: its name needs no Python version in it.
    cmdclass={"build_ext": BuildExtension.with_options(no_python_abi_suffix=True)},
)
