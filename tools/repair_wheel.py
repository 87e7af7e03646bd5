# SPDX-License-Identifier: BSD-3-Clause
"""Gives a wheel the tag that package indexes want, of the oldest glibc with which it runs (PEP 600), by auditwheel.

What the wheel links and doesn't hold is found in the process that loads it, because torch is imported first: torch's
own libraries are left out, and nothing else may be missing. auditwheel refuses a wheel that needs another library.

Run ``python tools/repair_wheel.py build-wheel/dist/NAME.whl --into dist``: prints the new file and its size.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

TORCH_LIBRARIES = ("libc10.so", "libtorch.so", "libtorch_cpu.so", "libtorch_python.so")


def repair(wheel: Path, folder: Path) -> Path:
    """Writes the wheel with its tag.

    Args:
        wheel: What pip has built.
        folder: Where to; it is made.

    Returns:
        The new file.

    Raises:
        subprocess.CalledProcessError: auditwheel refuses it.
    """
    excluded = [option for library in TORCH_LIBRARIES for option in ("--exclude", library)]
    with tempfile.TemporaryDirectory() as made:
        command = [sys.executable, "-m", "auditwheel", "repair", *excluded, "--wheel-dir", made, str(wheel)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (found,) = Path(made).glob("*.whl")
        folder.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(found, folder / found.name))


def main(arguments: Sequence[str] | None = None) -> int:
    """Repairs one wheel."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--into", type=Path, default=Path("dist"))
    options = parser.parse_args(arguments)
    try:
        made = repair(options.wheel, options.into)
    except subprocess.CalledProcessError as error:
        print(f"repair_wheel: {error}", file=sys.stderr)
        return 1
    print(f"{made} ({made.stat().st_size / 1e6:.1f} MB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
