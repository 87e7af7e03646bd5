# SPDX-License-Identifier: BSD-3-Clause
"""Settings for tests with other libraries: nothing is downloaded, and a torchvision for CUDA does not get in the way."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from finished import finished

# Read when the libraries are imported.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import torchvision_operators  # noqa: F401

HERE = Path(__file__).resolve().parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("client")


ScriptRunner = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def script(tmp_path: Path) -> ScriptRunner:
    """Runs a script as `python [launcher...] script.py arguments...` and returns the finished process; failure fails."""

    def run(
        code: str, *arguments: str, launcher: tuple[str, ...] = (), timeout: float = 150, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "script.py"
        path.write_text(code)
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("OPENREG_", "PYTEST_", "ACCELERATE_"))}
        folders = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
        settings = {"OPENREG_PREFERENCES": os.devnull, "OMP_NUM_THREADS": "1", "PYTHONPATH": folders}
        done = finished(
            [sys.executable, *launcher, str(path), *arguments],
            env={**inherited, **settings, **environment},
            cwd=tmp_path,
            timeout=timeout,
        )
        return done

    return run
