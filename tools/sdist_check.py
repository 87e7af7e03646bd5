# SPDX-License-Identifier: BSD-3-Clause
"""Installs an sdist of this checkout with pip, as a user would, and runs the README's first program.

The environment is a new one that has what this interpreter's has, torch above all, but not this package. pip builds in
isolation; with ``--no-isolation`` it uses the environment's setuptools and cmake. ccache is used where it is installed:
without it the shim takes a quarter of an hour of one core.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OURS = re.compile(r"(__editable__.*|_?torch_openreg.*|_openreg.*|_torch_openreg.*|.*\.pth)$")


def new_environment(folder: Path) -> Path:
    """Makes a virtual environment with this one's packages except ours, and returns its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        if not OURS.match(package.name):
            (site / package.name).symlink_to(package)
    return folder / "bin" / "python"


def first_program() -> str:
    """The first block of Python in README.md."""
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


def main() -> int:
    """Builds, installs, runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-isolation", action="store_true", help="pip install --no-build-isolation")
    isolated = not parser.parse_args().no_isolation
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        subprocess.run(
            [sys.executable, "-c", f"import openreg_build as b; b.build_sdist({str(folder)!r})"],
            check=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT / "tools/pep517")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        (sdist,) = folder.glob("*.tar.gz")
        shutil.unpack_archive(sdist, folder)
        source = folder / sdist.name.removesuffix(".tar.gz")
        # Where a checkout has them: with the same paths below its root, ccache finds the checkout's objects again.
        python = new_environment(source / ".venv")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("OPENREG_", "PYTHON", "VIRTUAL_ENV"))}
        if not isolated:
            environment["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), environment["PATH"]))
        environment |= {
            "OPENREG_BUILD_DIR": str(source / "build"),
            "CCACHE_BASEDIR": str(source),
            "CCACHE_NOHASHDIR": "1",
        }
        if shutil.which("ccache"):
            environment |= {"CMAKE_C_COMPILER_LAUNCHER": "ccache", "CMAKE_CXX_COMPILER_LAUNCHER": "ccache"}
            # How a precompiled header is made to be cached.
            environment.setdefault("CCACHE_SLOPPINESS", "pch_defines,time_macros,include_file_mtime,include_file_ctime")
        flags = [] if isolated else ["--no-build-isolation"]
        pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *flags]
        subprocess.run([*pip, source], check=True, env=environment, cwd=folder)
        clean = {k: v for k, v in environment.items() if not k.startswith(("OPENREG_", "CCACHE_"))}
        subprocess.run([python, "-c", first_program()], check=True, env=clean, cwd=folder)
        version = "import torch_openreg as t; print(t.__version__, t.__file__)"
        done = subprocess.run(
            [python, "-c", version], check=True, env=clean, cwd=folder, capture_output=True, text=True
        )
        assert str(folder) in done.stdout, done.stdout
        print(f"{sdist.name}: builds {'in' if isolated else 'without'} isolation, and runs the first program")
    return 0


if __name__ == "__main__":
    sys.exit(main())
