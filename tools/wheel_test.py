# SPDX-License-Identifier: BSD-3-Clause
"""Runs the Python tests against an installed wheel, in the place of this checkout's package.

The environment is a new one that has what this interpreter's has, torch above all, and the wheel, which pip installs
with its requirements checked. The tests run in a copy of the checkout's files: nothing of a build is in it, and its
package is on no path. Tests of the wheel's contents look at this very file.

Run ``python tools/wheel_test.py dist/NAME.whl -n 2 --dist loadfile``; what follows the file goes to pytest.
``make wheel-test TORCH="2.13.0 2.15.0"`` builds one wheel for both and runs this in an environment of each.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sdist_check import new_environment

ROOT = Path(__file__).resolve().parent.parent
WHERE = """
import sys, torch, torch_openreg
print(f"wheel_test: torch {torch.__version__}, Python {sys.version.split()[0]}, {torch_openreg.__file__}")
"""


def copy_of_checkout(folder: Path) -> None:
    """Copies what belongs to the project, as it is now, into a repository of its own, whose folder is made."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in listed.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name, follow_symlinks=False)
    committer = ("-c", "user.name=wheel_test", "-c", "user.email=wheel_test@localhost")
    for command in (["init", "--quiet"], ["add", "--all"], [*committer, "commit", "--quiet", "--message", "A copy"]):
        subprocess.run(["git", *command], cwd=folder, check=True)


def install(wheel: Path, python: Path) -> None:
    """Installs the wheel into an interpreter's environment, which has all that it requires.

    Raises:
        subprocess.CalledProcessError: pip refuses it, as for a torch that it isn't built for.
    """
    options = ["--disable-pip-version-check", "install", "--quiet", "--no-index", "--no-cache-dir"]
    subprocess.run([python, "-m", "pip", *options, wheel], check=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Installs, copies, runs pytest; its exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument(
        "--build", type=Path, default=ROOT / "build", help="has the drivers that tests load (tests/drivers)"
    )
    options, rest = parser.parse_known_args(arguments)
    wheel = options.wheel.resolve()
    with tempfile.TemporaryDirectory(prefix="wheel-test-") as name:
        folder = Path(name).resolve()
        python = new_environment(folder / "environment")
        install(wheel, python)
        copy_of_checkout(folder / "checkout")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("OPENREG_", "PYTHON", "VIRTUAL_ENV"))}
        kept |= {k: os.environ[k] for k in ("OPENREG_TEST_LONG", "OPENREG_SIM_RACES") if k in os.environ}
        environment = kept | {
            # Programs such as cmake and mypy are those of the environment whose packages are used.
            "PATH": os.pathsep.join((str(python.parent), str(Path(sys.executable).parent), os.environ["PATH"])),
            "OPENREG_BUILD_DIR": str(options.build.resolve()),
            "OPENREG_TEST_WHEEL": str(wheel),
        }
        checkout = folder / "checkout"
        done = subprocess.run(
            [python, "-c", WHERE], cwd=checkout, env=environment, check=True, capture_output=True, text=True
        )
        if str(python.parent.parent) not in done.stdout:
            print(f"wheel_test: not the wheel: {done.stdout}", file=sys.stderr)
            return 1
        print(done.stdout, end="", flush=True)
        return subprocess.run([python, "-m", "pytest", *rest], cwd=checkout, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
