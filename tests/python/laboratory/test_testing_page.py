# SPDX-License-Identifier: BSD-3-Clause
"""What docs/testing-with-openreg.md shows: examples/ci, a repository whose tests need two GPUs."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from finished import finished


@pytest.fixture
def repository(tmp_path: Path, root: Path) -> Path:
    """A copy of the example, outside of this checkout and its settings."""
    folder = tmp_path / "repository"
    shutil.copytree(root / "examples/ci", folder)
    (folder / "pytest.ini").write_text("[pytest]\n")
    return folder


def run(repository: Path, *options: str, status: int = 0) -> str:
    command = [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", *options]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OPENREG_", "PYTEST_"))}
    done = finished(
        command,
        status=status,
        cwd=repository,
        env=environment | {"OPENREG_PREFERENCES": os.devnull, "OMP_NUM_THREADS": "1"},
        timeout=240,
    )
    return done.stdout


# the tests say cuda and two GPUs, one of them starts two processes over NCCL: skipped as they are, green with two options
def test_green_without_a_gpu(repository: Path) -> None:
    assert "3 skipped" in run(repository)
    out = run(repository, "--openreg=2", "--openreg-as-cuda", "--openreg-leaks=error")
    assert "openreg: 2 simulated devices, as cuda" in out
    assert "3 passed" in out
    assert re.search(r"openreg:1 +test_pipeline.py::test_prefetcher", out)


# without its wait the example is often green; under a seed it reads old data, each time, and the race detector names both lines
@pytest.mark.long
def test_a_missing_wait(repository: Path) -> None:
    source = repository / "pipeline.py"
    line = "            torch.cuda.current_stream(self.device).wait_stream(self.stream)\n"
    assert line in source.read_text()
    source.write_text(source.read_text().replace(line, ""))
    test = "test_pipeline.py::test_prefetcher"
    out = run(repository, "--openreg=2", "--openreg-as-cuda", "--openreg-seed=3", test, status=1)
    assert "again: --openreg-seed=3" in out
    out = run(repository, "--openreg=2", "--openreg-as-cuda", "--openreg-races", test, status=1)
    # Whether it also read old data is chance.
    assert re.search(
        r"nothing orders a read and a write: .*\n.*first: aten::copy_ .* in __iter__\n.*second: aten::mul", out
    )


# the file for GitHub is one: each job's steps, and options that the plugin has
def test_github_action(root: Path, pytestconfig: pytest.Config) -> None:
    action = yaml.safe_load((root / "examples/ci/github-actions.yml").read_text())
    commands = [step["run"] for job in action["jobs"].values() for step in job["steps"] if "run" in step]
    words = [word.partition("=")[0] for command in commands for word in command.split() if word.startswith("--openreg")]
    assert len(words) >= 6
    for word in words:
        assert hasattr(pytestconfig.option, word.lstrip("-").replace("-", "_")), word
