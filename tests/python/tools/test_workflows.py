# SPDX-License-Identifier: BSD-3-Clause
"""The workflows for GitHub, here and in what `new` writes: each command in them can be run.

actionlint, which CI runs, knows their form; it knows nothing of this repository's targets, options and files.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from torch_openreg import _new
from torch_openreg.__main__ import _parser

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Repositories with workflows: this one, the example, and a new driver's."""
    new = _new.make_driver("mychip", tmp_path_factory.mktemp("new") / "torch-mychip")
    return [ROOT, ROOT / "examples/opencl_driver", new]


def workflows(folder: Path) -> dict[str, dict[str, Any]]:
    paths = sorted((folder / ".github/workflows").glob("*.yml")) or sorted(folder.glob("*.yml"))
    found = {path.name: yaml.safe_load(path.read_text()) for path in paths}
    assert found
    for workflow in found.values():
        workflow["on"] = workflow.pop(True)  # YAML takes the key for a truth value
    return found


def jobs(folder: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for name, workflow in workflows(folder).items():
        for job_name, job in workflow["jobs"].items():
            yield name, job_name, job


def commands(folder: Path) -> list[str]:
    """Each line of each `run:`."""
    steps = [step for _, _, job in jobs(folder) for step in job.get("steps", ())]
    return [line for step in steps for line in step.get("run", "").splitlines()]


def check_module_command(folder: Path, words: list[str]) -> None:
    """`python -m MODULE ...`: a command of torch_openreg, or of a tool that the workflow has installed."""
    module, *rest = words
    if module == "torch_openreg":
        (subcommands,) = [action.choices for action in _parser()._actions if isinstance(action.choices, dict)]
        assert rest[0] in subcommands
        page = (ROOT / "docs/verifying-a-driver.md").read_text()
        assert [word for word in rest if word.startswith("--") and word not in page] == []
    elif module == "pytest":
        assert (folder / rest[-1]).is_dir()
    else:
        assert module in ("pip", "build")


# a command names what is there: targets and variables of make, options of CMake, files, commands of the package
def test_commands(folders: list[Path]) -> None:
    for folder in folders:
        lines = [part.strip() for line in commands(folder) for part in line.split("&&")]
        assert len(lines) >= 4
        for line in lines:
            words = [word for word in shlex.split(line) if not re.fullmatch(r"OPENREG_\w+=\w+", word)]
            if words[0] == "sudo":
                del words[0]
            program = words[0]
            if program == "make":
                makefile = (folder / "Makefile").read_text()
                for word in words[1:]:
                    variable = re.match(r"(\w+)=", word)
                    pattern = rf"\$\({variable[1]}\)|\b{variable[1]} \?=" if variable else rf"^{re.escape(word)}:"
                    assert re.search(pattern, makefile, re.MULTILINE), line
            elif program in ("python", "python3.12"):
                assert words[1] == "-m", line
                check_module_command(folder, words[2:])
            elif program == "cmake":
                options = {word[2:].partition("=")[0] for word in words if word.startswith("-D")}
                declared = "".join(
                    path.read_text() for path in [folder / "CMakeLists.txt", *folder.glob("cmake/*.cmake")]
                )
                assert [option for option in options if option not in declared] == [], line
            elif program == "test":
                # the sdist, by its name
                project = (folder / "pyproject.toml").read_text()
                distribution = re.search(r'^name = "([^"]+)"', project, re.MULTILINE)
                assert distribution is not None
                assert words[2].startswith(f"dist/{distribution[1].replace('-', '_')}-$"), line
            elif "/" in program:
                assert (folder / program).stat().st_mode & 0o100, line
            else:
                known = ("apt-get", "auditwheel", "ctest", "git", "pip", "pipx", "sysctl")
                assert program in known, line


# a release has a wheel for every Python that the package names, with a part for every torch that is supported
def test_wheels_of_a_release() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    pythons = re.findall(r"Python :: (3\.\d+)\"", project)
    assert len(pythons) >= 4
    wheels = workflows(ROOT)["wheels.yml"]
    (line,) = [line for line in commands(ROOT) if line.startswith("make wheel ")]
    options = dict(word.split("=", 1) for word in shlex.split(line)[2:])
    assert (
        sorted([options["PYTHON"].removeprefix("python"), *options["PYTHONS"].split()], key=lambda v: int(v[2:]))
        == pythons
    )
    matrix = wheels["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["python"] == pythons
    minors = [".".join(version.split(".")[:2]) for version in options["TORCH"].split()]
    assert matrix["torch"] == minors
    supported = re.search(r"OPENREG_TORCH_MINORS ([\d. ]+)\)", (ROOT / "cmake/OpenregTorch.cmake").read_text())
    assert supported is not None
    assert supported[1].split() == minors
