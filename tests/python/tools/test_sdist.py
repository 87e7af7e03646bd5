# SPDX-License-Identifier: BSD-3-Clause
"""The sdist: what is in it, that the runtime builds and installs from it alone, and which torch its backend finds.

`make sdist-check` installs it, shim and all, and runs the README's first program; .ci/run calls it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from finished import finished

ROOT = Path(__file__).resolve().parents[3]
# What setuptools adds to the project's own files.
GENERATED = re.compile(r"PKG-INFO|setup\.cfg|python/torch_openreg\.egg-info/.*")
# Where Debian's libraries are.
LIBDIR = f"lib/{sysconfig.get_config_var('MULTIARCH') or 'x86_64-linux-gnu'}"
# Valid C and C++.
PROGRAM = r"""
#include <openreg/openreg.h>
#include <stdio.h>

int main(void)
{
    void *memory = NULL;
    const openreg_stream stream = 0; /* the default stream */
    unsigned char host[4] = {0, 0, 0, 0};
    if (openreg_malloc(0, stream, sizeof host, &memory) != OPENREG_OK ||
        openreg_memset_async(0, stream, memory, 5, sizeof host) != OPENREG_OK ||
        openreg_memcpy(host, -1, memory, 0, sizeof host) != OPENREG_OK || openreg_free(memory) != OPENREG_OK) {
        fprintf(stderr, "%s\n", openreg_last_error()->message);
        return 1;
    }
    printf("%d devices, %d %d %d %d\n", (int)openreg_device_count(), host[0], host[1], host[2], host[3]);
    return 0;
}
"""
# What builds and tests leave in a checkout.
LEFT_BEHIND = (
    *("python/torch_openreg/lib/libopenreg.so.1", "python/torch_openreg/bin/openreg-info", "build/CMakeCache.txt"),
    *("python/torch_openreg/include/openreg/openreg.h", "python/torch_openreg/share/cmake/openreg/openregConfig.cmake"),
    *("python/torch_openreg/_build_info.py", "python/torch_openreg/_C.so", "tests/python/__pycache__/conftest.pyc"),
    *("examples/toy_driver/build/driver.o", "docs/_build/index.html", "tests/.hypothesis/unicode", "test.log"),
)


def files_of(source: Path) -> list[str]:
    """What git has of a checkout, less what is deleted and not committed."""
    listed = finished(["git", "ls-files"], cwd=source).stdout
    return [name for name in listed.splitlines() if (source / name).is_file()]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An sdist, made from a copy of the project's files: this checkout stays as it is."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout of git: which files belong to the project is not known")
    folder = tmp_path_factory.mktemp("sdist")
    for name in (*files_of(ROOT), *LEFT_BEHIND):
        copy = folder / "source" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if name in LEFT_BEHIND:
            copy.touch()
        else:
            shutil.copy(ROOT / name, copy)
    subprocess.run(
        [sys.executable, "-c", "import sys; from openreg_build import build_sdist; build_sdist(sys.argv[1])", folder],
        check=True,
        cwd=folder / "source",
        env=os.environ | {"PYTHONPATH": str(folder / "source/tools/pep517")},
        stdout=subprocess.DEVNULL,
    )
    (made,) = folder.glob("*.tar.gz")
    return made


@pytest.fixture(scope="module")
def unpacked(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the sdist, in a folder with nothing else around."""
    folder = tmp_path_factory.mktemp("unpacked")
    shutil.unpack_archive(sdist, folder)
    (top,) = folder.iterdir()
    return top


# an sdist holds what git does (C, C++, Python, tests, documentation), and nothing of a build
def test_files(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        members = {member.name.split("/", 1)[1]: member for member in archive.getmembers() if member.isfile()}
    tracked = files_of(ROOT)
    assert {name for name in members if not GENERATED.fullmatch(name)} == set(tracked)
    programs = [name for name in tracked if os.access(ROOT / name, os.X_OK)]
    assert programs, "no file of the project can be run"
    assert [name for name in programs if not members[name].mode & 0o100] == []


@pytest.fixture(scope="module")
def build(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runtime and its tools, built from the sdist alone as a distribution would: for /usr, by a C compiler."""
    folder = tmp_path_factory.mktemp("build")
    options = ["-DOPENREG_BUILD_TORCH=OFF", "-DOPENREG_BUILD_TESTS=OFF", "-DOPENREG_WERROR=ON", "-G", "Ninja"]
    options += ["-DCMAKE_BUILD_TYPE=Debug", "-DOPENREG_CUDA=OFF", "-DOPENREG_HIP=OFF"]  # the least time
    options += ["-DCMAKE_INSTALL_PREFIX=/usr", f"-DCMAKE_INSTALL_LIBDIR={LIBDIR}", "-DCMAKE_CXX_COMPILER=/nowhere"]
    subprocess.run(["cmake", "-S", unpacked, "-B", folder, *options], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", folder], check=True, stdout=subprocess.DEVNULL)
    return folder


# the runtime builds from the sdist alone, with a C compiler and neither C++, Python nor torch
@pytest.mark.timeout(600)
def test_runtime_builds(build: Path) -> None:
    listed = finished([build / "runtime/openreg-info"])
    assert "sim" in listed.stdout


def installed_files(build: Path, root: Path, component: str) -> set[str]:
    """Installs a component below `root`, in place of "/", and returns the files that are new there."""
    before = set(root.rglob("*"))
    subprocess.run(
        ["cmake", "--install", build, "--component", component],
        check=True,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"DESTDIR": str(root)},
    )
    return {str(path.relative_to(root)) for path in set(root.rglob("*")) - before if not path.is_dir()}


@pytest.fixture(scope="module")
def usr(build: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """/usr of a machine with the packages libopenreg1 and libopenreg-dev, were there such packages."""
    root = tmp_path_factory.mktemp("root")
    for component in ("runtime", "development"):
        installed_files(build, root, component)
    return root / "usr"


# `cmake --install` puts the runtime alone into a tree as Debian's, in the two parts that its packages have
def test_install_components(build: Path, tmp_path: Path) -> None:
    assert installed_files(build, tmp_path, "runtime") == {
        f"usr/{LIBDIR}/libopenreg.so.1",
        f"usr/{LIBDIR}/libopenreg_graph.so",
        f"usr/{LIBDIR}/libopenreg_lab.so",
        f"usr/{LIBDIR}/libopenreg_sharing.so",
        "usr/bin/openreg-check",
        "usr/bin/openreg-info",
    }
    headers = {f"usr/include/openreg/{path.name}" for path in (ROOT / "runtime/include/openreg").glob("*.h")}
    assert len(headers) > 8
    assert installed_files(build, tmp_path, "development") == headers | {
        f"usr/{LIBDIR}/libopenreg.so",
        f"usr/{LIBDIR}/pkgconfig/openreg.pc",
        "usr/share/cmake/openreg/openregConfig.cmake",
        "usr/share/cmake/openreg/openregConfigVersion.cmake",
    }
    info = tmp_path / "usr/bin/openreg-info"
    assert "sim" in finished([info], env={}).stdout


# a C program is compiled by what pkg-config says, and runs on a machine without Python
@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="there is no pkg-config")
def test_pkg_config_of_the_installed_runtime(usr: Path, tmp_path: Path) -> None:
    (tmp_path / "program.c").write_text(PROGRAM)
    environment = os.environ | {"PKG_CONFIG_PATH": str(usr / LIBDIR / "pkgconfig")}
    asked = ["pkg-config", "--cflags", "--libs", "openreg"]
    flags = finished(asked, env=environment).stdout.split()
    assert not [flag for flag in flags if "rpath" in flag], "the loader looks in /usr by itself"
    program = tmp_path / "program"
    subprocess.run(["cc", "-std=c11", "-Wall", "-Werror", tmp_path / "program.c", *flags, "-o", program], check=True)
    variables = {"LD_LIBRARY_PATH": str(usr / LIBDIR), "OPENREG_SIM_DEVICES": "3"}
    done = finished([program], env=variables)
    assert done.stdout == "3 devices, 5 5 5 5\n"


# find_package(openreg) serves a project in C and one in C++
@pytest.mark.parametrize(("language", "suffix"), [("C", "c"), ("CXX", "cpp")])
def test_cmake_package_of_the_installed_runtime(usr: Path, tmp_path: Path, language: str, suffix: str) -> None:
    (tmp_path / f"program.{suffix}").write_text(PROGRAM)
    (tmp_path / "CMakeLists.txt").write_text(
        f"cmake_minimum_required(VERSION 3.22)\nproject(program {language})\nfind_package(openreg 0.1 REQUIRED)\n"
        f"add_executable(program program.{suffix})\ntarget_link_libraries(program PRIVATE openreg::openreg)\n"
    )
    folder = tmp_path / "build"
    configure = ["cmake", "-S", tmp_path, "-B", folder, f"-DCMAKE_PREFIX_PATH={usr}"]
    subprocess.run([*configure, f"-DCMAKE_{language}_FLAGS=-Wall -Wextra -Werror"], check=True)
    subprocess.run(["cmake", "--build", folder], check=True)
    variables = {"OPENREG_SIM_DEVICES": "2"}
    done = finished([folder / "program"], env=variables)
    assert done.stdout == "2 devices, 5 5 5 5\n"


Backend = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def ask_backend(tmp_path: Path) -> Backend:
    """Asks the backend what building a wheel needs, as pip does in isolation: PYTHONPATH holds setuptools and a module
    sitecustomize that takes the installed packages out of sys.path.
    """
    overlay = tmp_path / "overlay"
    overlay.mkdir()
    packages = Path(sysconfig.get_path("purelib"))
    for name in ("setuptools", "_distutils_hack"):
        (overlay / name).symlink_to(packages / name)
    hide = "import sys\nsys.path = [p for p in sys.path if not p.rstrip('/').endswith('-packages')]\n"
    (overlay / "sitecustomize.py").write_text(hide)
    code = "import openreg_build as b; print(b.get_requires_for_build_wheel(), *(b.installed_torch() or ()))"

    def ask(python: Path, **variables: str) -> subprocess.CompletedProcess[str]:
        dropped = ("OPENREG_TORCH", "VIRTUAL_ENV", "PYTHONPATH")
        environment = {name: value for name, value in os.environ.items() if name not in dropped}
        environment["PYTHONPATH"] = os.pathsep.join((str(overlay), str(ROOT / "tools/pep517")))
        return finished([python, "-c", code], status=None, env=environment | variables, cwd=ROOT)

    return ask


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has no packages."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder / "bin" / "python"


# in pip's isolated environment the torch of the environment that pip runs in is found, and nothing is fetched
def test_backend_finds_the_torch_that_pip_hides(ask_backend: Backend) -> None:
    done = ask_backend(Path(sys.executable))
    requirements, version, python, hidden = done.stdout.split()
    assert (requirements, python, hidden) == ("[]", sys.executable, "True"), done.stderr
    assert version.startswith("2.")


# an isolated environment with an interpreter of its own (uv, build): the torch of the active virtual environment
def test_backend_finds_the_torch_of_the_active_environment(ask_backend: Backend, bare_python: Path) -> None:
    done = ask_backend(bare_python, VIRTUAL_ENV=sys.prefix)
    assert done.stdout.split()[0] == "[]", done.stderr
    assert done.stdout.split()[2] == str(Path(sys.prefix, "bin", "python"))


# where there is no torch the build ends with advice, and fetches one only if a version is named
def test_backend_without_torch(ask_backend: Backend, bare_python: Path) -> None:
    done = ask_backend(bare_python)
    assert done.returncode == 1
    assert "--no-build-isolation" in done.stderr
    assert "OPENREG_TORCH=" in done.stderr
    assert "Traceback" not in done.stderr
    assert ask_backend(bare_python, OPENREG_TORCH="2.13.0").stdout == "['torch==2.13.0']\n"
    done = ask_backend(bare_python, OPENREG_TORCH="newest")
    assert done.returncode == 1
    assert "OPENREG_TORCH=newest: not a version of torch" in done.stderr
