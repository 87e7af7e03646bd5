# SPDX-License-Identifier: BSD-3-Clause
"""Lines of the program, as the race detector and the flight recorder find them, on every Python that is installed here."""

from __future__ import annotations

import functools
import glob
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from finished import finished

ROOT = Path(__file__).resolve().parents[3]
VERSIONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]

# A program that compares the frames that were seen with those that Python tells of.
PROGRAM = """
import asyncio, sys, threading, traceback
import frames_module

def look():
    told = [(frame.name, frame.lineno) for frame in reversed(traceback.extract_stack())]; seen = frames_module.walk()
    assert seen == told, (seen, told)
    return seen

class Sized:
    def __len__(self):
        return len(look())

def generate():
    yield look()
    yield [look() for _ in range(2)]

def descend(n):
    return descend(n - 1) if n else look()

async def wait():
    return look()

assert [name for name, _ in look()] == ["look", "<module>"]
assert [name for name, _ in descend(3)] == ["look", *["descend"] * 4, "<module>"]
list(generate())
max([1, 2], key=lambda x: len(Sized()))
exec("look()")
asyncio.run(wait())
seen = []
thread = threading.Thread(target=lambda: seen.append(look()))
thread.start()
thread.join()
assert seen
print(frames_module.takes_gil)
"""


@functools.cache
def _interpreters() -> dict[str, tuple[str, str]]:
    """Interpreters with headers by version: path and folder of the headers."""
    asked = "import json, sys, sysconfig; print(json.dumps([*sys.version_info[:2], sysconfig.get_path('include')]))"
    pyenv = os.environ.get("PYENV_ROOT", str(Path.home() / ".pyenv"))
    candidates = [sys.executable, *glob.glob(f"{pyenv}/versions/3.*/bin/python3")]
    candidates += [path for version in VERSIONS if (path := shutil.which(f"python{version}"))]
    found: dict[str, tuple[str, str]] = {}
    for path in candidates:
        done = finished([path, "-c", asked], status=None)
        if done.returncode == 0:
            major, minor, include = json.loads(done.stdout)
            if Path(include, "Python.h").exists():
                found.setdefault(f"{major}.{minor}", (path, include))
    return found


def _run(version: str, folder: Path, *options: str) -> str:
    """Builds the module for a version of Python, and returns what the program prints."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or version not in _interpreters():
        pytest.skip(f"no compiler, or no Python {version} with headers here")
    interpreter, include = _interpreters()[version]
    sources = [Path(__file__).with_name("frames_module.c"), ROOT / "csrc" / "base" / "frames.c"]
    warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror"]
    arguments = ["-std=c11", "-O1", "-fPIC", "-shared", *warnings, *options, f"-I{ROOT}", "-isystem", include]
    subprocess.run([compiler, *arguments, "-o", str(folder / "frames_module.so"), *map(str, sources)], check=True)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = finished([interpreter, "-c", PROGRAM], cwd=folder, env=environment, timeout=60)
    return done.stdout.strip()


# What is read without the GIL is what Python says: in functions, generators, coroutines, threads and calls from C.
@pytest.mark.parametrize("version", VERSIONS)
def test_frames(version: str, tmp_path: Path) -> None:
    assert _run(version, tmp_path) == ("1" if version == "3.14" else "0")


# So are those of the public functions, which versions to come use.
@pytest.mark.parametrize("version", VERSIONS[1:])
def test_frames_by_public_functions(version: str, tmp_path: Path) -> None:
    assert _run(version, tmp_path, "-DOPENREG_FRAMES_BY_PUBLIC_FUNCTIONS") == "1"
