# SPDX-License-Identifier: BSD-3-Clause
"""Builds the package: CMake makes everything native and installs it into torch_openreg/.

Environment:
    OPENREG_BUILD_DIR   CMake's build directory, kept between builds. One that is configured already is used as it is.
                        Several, separated by ":", each against another torch: the package has a binary part for each.
    OPENREG_CMAKE_ARGS  Further arguments for CMake's configuration.
    OPENREG_TORCH       The version of torch to fetch for a build in isolation, where none is found (tools/pep517).
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
PACKAGE = "torch_openreg"

sys.path.insert(0, str(ROOT / "tools/pep517"))
from openreg_build import NO_TORCH, installed_torch  # noqa: E402

# The torch that is asked must not load an installed build of this package.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"


def version() -> str:
    """Reads the version from the C header."""
    header = (ROOT / "runtime/include/openreg/openreg.h").read_text(encoding="utf-8")
    match = re.search(r'^#define OPENREG_VERSION_STRING "([^"]+)"', header, re.MULTILINE)
    if match is None:
        raise RuntimeError("openreg.h does not define OPENREG_VERSION_STRING")
    return match[1]


def build_folders() -> list[Path]:
    """CMake's build directories that are named."""
    return [Path(name).resolve() for name in os.environ.get("OPENREG_BUILD_DIR", "").split(os.pathsep) if name]


def built_for(build: Path) -> str | None:
    """The version of torch that a build directory is configured for."""
    cache = build / "CMakeCache.txt"
    if not cache.exists():
        return None
    found = re.search(r"^OPENREG_TORCH_BUILT_FOR:INTERNAL=(.*)$", cache.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else None


def supported_torch() -> str:
    """The requirement on torch of the source: the minor versions in cmake/OpenregTorch.cmake."""
    listed = re.search(
        r"OPENREG_TORCH_MINORS ([\d. ]+)\)", (ROOT / "cmake/OpenregTorch.cmake").read_text(encoding="utf-8")
    )
    if listed is None:
        raise RuntimeError("OpenregTorch.cmake does not define OPENREG_TORCH_MINORS")
    first, *_, last = (tuple(int(part) for part in minor.split(".")) for minor in listed[1].split())
    return f"torch>={first[0]}.{first[1]},<{last[0]}.{last[1] + 1}"


def torch_requirement() -> str:
    """Ties the package to the minor versions of torch that it is built against: torch's C++ interfaces change."""
    if "sdist" in sys.argv:  # the wheel that is made of it names the version
        return supported_torch()
    versions = [built_for(build) for build in build_folders()]
    if not versions or None in versions:
        torch = installed_torch()
        if torch is None:
            sys.exit(NO_TORCH)
        versions = [torch.version]
    minors = sorted({tuple(int(part) for part in str(version).split(".")[:2]) for version in versions})
    (major, first), (_, last) = minors[0], minors[-1]
    if first == last:
        return f"torch=={major}.{first}.*"
    missing = "".join(f",!={major}.{minor}.*" for minor in range(first, last) if (major, minor) not in minors)
    return f"torch>={major}.{first},<{major}.{last + 1}{missing}"


class CMakeBuild(build_ext):
    """Runs CMake in place of the compiler."""

    def run(self) -> None:
        """Configures if needed, builds, and installs into the package's folder."""
        base = ROOT / "python" if self.inplace else Path(self.build_lib).resolve()
        for build in build_folders() or [(Path(self.build_temp) / "cmake").resolve()]:
            self.build(build, base / PACKAGE)
        if not self.inplace:
            self.replace_link(base / PACKAGE / "lib" / "libopenreg.so")

    def build(self, build: Path, package: Path) -> None:
        """Does so with one build directory."""
        cmake = shutil.which("cmake")
        if cmake is None:
            sys.exit("torch_openreg is built by CMake, and there is no cmake (pip install cmake ninja)")
        if not (build / "CMakeCache.txt").exists():
            generator = ["-G", "Ninja"] if shutil.which("ninja") else []
            torch = installed_torch()
            assert torch is not None
            seen = ["-DOPENREG_IGNORE_PYTHONPATH=ON"] if torch.hidden else []
            subprocess.check_call(
                [
                    *(cmake, "-S", str(ROOT), "-B", str(build), *generator),
                    f"-DPython3_EXECUTABLE={torch.python}",
                    *seen,
                    "-DOPENREG_BUILD_TESTS=OFF",
                    *shlex.split(os.environ.get("OPENREG_CMAKE_ARGS", "")),
                ]
            )
        jobs = str(os.cpu_count() or 1)
        subprocess.check_call([cmake, "--build", str(build), "--target", "openreg_package", "--parallel", jobs])
        subprocess.check_call([cmake, "--install", str(build), "--prefix", str(package)])

    @staticmethod
    def replace_link(link: Path) -> None:
        """Puts a linker script in place of a link, which a wheel can't hold: ``cc -lopenreg`` takes either."""
        target = os.readlink(link)
        link.unlink()
        link.write_text(f"/* GNU ld script: for linking only; programs load {target}. */\nINPUT({target})\n")

    def get_source_files(self) -> list[str]:
        """Names no sources: setuptools would look for them one by one."""
        return []

    def get_outputs(self) -> list[str]:
        """Names what the build has put into the package."""
        top = Path(self.build_lib) / PACKAGE
        return [str(path) for path in top.rglob("*") if path.is_file() and path.suffix != ".py"]


# Beside `build`, which is CMake's. What an earlier build left of the package there would go into the wheel.
BUILD_BASE = ROOT / "build-wheel"
for stale in BUILD_BASE.glob("lib*"):
    shutil.rmtree(stale)

setup(
    options={"build": {"build_base": str(BUILD_BASE)}},
    version=version(),
    install_requires=[torch_requirement(), "tomlkit>=0.12"],
    ext_modules=[Extension(f"{PACKAGE}._C", sources=[])],
    cmdclass={"build_ext": CMakeBuild},
)
