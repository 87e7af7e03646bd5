# SPDX-License-Identifier: BSD-3-Clause
"""The sdist: what is in it, that the runtime builds from it alone, and which torch its backend builds against.

`make sdist-check` installs it, shim and all, and runs the README's first program; that takes minutes without ccache.
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

ROOT = Path(__file__).resolve().parents[3]
# What setuptools adds to the project's own files.
GENERATED = re.compile(r"PKG-INFO|setup\.cfg|python/torch_openreg\.egg-info/.*")
# What builds and tests leave in a checkout.
LEFT_BEHIND = (
    *("python/torch_openreg/lib/libopenreg.so.1", "python/torch_openreg/bin/openreg-info", "build/CMakeCache.txt"),
    *("python/torch_openreg/include/openreg/openreg.h", "python/torch_openreg/share/cmake/openreg/openregConfig.cmake"),
    *("python/torch_openreg/_build_info.py", "python/torch_openreg/_C.so", "tests/python/__pycache__/conftest.pyc"),
    *("examples/toy_driver/build/driver.o", "docs/_build/index.html", "tests/.hypothesis/unicode", "test.log"),
)


def files_of(source: Path) -> list[str]:
    """What git has of a checkout, less what is deleted and not committed."""
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True, cwd=source).stdout
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
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
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


# the runtime and its tools build from the sdist alone, with a C compiler and neither Python nor torch
@pytest.mark.timeout(600)
def test_runtime_builds(unpacked: Path, tmp_path: Path) -> None:
    build = tmp_path / "build"
    options = ["-DOPENREG_BUILD_TORCH=OFF", "-DOPENREG_BUILD_TESTS=OFF", "-DOPENREG_WERROR=ON", "-G", "Ninja"]
    options += ["-DCMAKE_BUILD_TYPE=Debug"]  # the least time
    subprocess.run(["cmake", "-S", unpacked, "-B", build, *options], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", build], check=True, stdout=subprocess.DEVNULL)
    listed = subprocess.run([build / "runtime/openreg-info"], capture_output=True, text=True, check=True)
    assert "sim" in listed.stdout


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
        return subprocess.run(
            [python, "-c", code], capture_output=True, text=True, check=False, env=environment | variables, cwd=ROOT
        )

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
