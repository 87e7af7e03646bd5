# SPDX-License-Identifier: BSD-3-Clause
"""Fetches what building against a version of torch needs: the headers and three libraries of its wheel.

Nothing is installed: no environment changes, and nothing of what torch depends on comes along, which for a torch with
CUDA is gigabytes. The wheel is for the Python that runs this, and is deleted once it is unpacked.

Run ``python tools/fetch_torch.py 2.15.0``: prints the folder, build-torch/2.15.0/torch, for CMake's OPENREG_TORCH_ROOT.
One that is there already is not fetched again. ``--headers``: without the libraries, for tools/check_torch.py.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build-torch"
LIBRARIES = ("libc10.so", "libtorch_cpu.so", "libtorch_python.so")


def is_wanted(name: str, *, libraries: bool) -> bool:
    """Whether a file of the wheel is unpacked, by its name in the archive."""
    if name == "torch/version.py" or (name.startswith("torch/include/") and not name.endswith("/")):
        return True
    return libraries and name in {f"torch/lib/{library}" for library in LIBRARIES}


def unpack(wheel: Path, folder: Path, *, libraries: bool) -> Path:
    """Unpacks the needed files of a wheel into a folder, which appears once it is complete; the package ``torch``."""
    unfinished = folder.with_name(folder.name + ".part")
    shutil.rmtree(unfinished, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        wanted = [name for name in archive.namelist() if is_wanted(name, libraries=libraries)]
        archive.extractall(unfinished, wanted)
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
    return folder / "torch"


def is_complete(package: Path, *, libraries: bool) -> bool:
    """Whether a folder holds all needed files already."""
    wanted = ["version.py", *(f"lib/{library}" for library in LIBRARIES if libraries)]
    return all((package / name).exists() for name in wanted)


def fetch(version: str, *, libraries: bool) -> Path:
    """Fetches a version such as "2.15.0", unless it was fetched before; the folder of the package ``torch``.

    Raises:
        ValueError: It is no version.
        subprocess.CalledProcessError: pip can't get it.
    """
    if not re.fullmatch(r"\d+(\.\d+)+(\+\w+)?", version):
        raise ValueError(f"'{version}' is no version of torch, such as 2.15.0")
    folder = FOLDER / version
    if is_complete(folder / "torch", libraries=libraries):
        return folder / "torch"
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as downloads:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
        options = ["--no-cache-dir", "--only-binary", ":all:", "--dest", downloads, f"torch=={version}"]
        subprocess.run([*pip, *options], check=True, stdout=sys.stderr)
        (wheel,) = Path(downloads).glob("*.whl")
        return unpack(wheel, folder, libraries=libraries)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("version")
    parser.add_argument("--headers", action="store_true", help="without the libraries")
    options = parser.parse_args(arguments)
    try:
        print(fetch(options.version, libraries=not options.headers))
    except (ValueError, subprocess.CalledProcessError) as error:
        print(f"fetch_torch: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
