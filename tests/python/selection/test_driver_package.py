# SPDX-License-Identifier: BSD-3-Clause
"""A driver that is installed by pip is found, chosen, and gone when it is uninstalled."""

from __future__ import annotations

import os
import shutil
import sysconfig
import venv
from pathlib import Path

import pytest
from finished import finished

CHOSEN = """
import torch
x = torch.arange(4.0, device="openreg")
assert (x * 2).tolist() == [0, 2, 4, 6]
print(torch.openreg.default_driver(), "toy" in torch.openreg.supported_gpu_drivers())
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment of its own that also sees the packages of this one."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    site = next(folder.glob("lib/python*/site-packages"))
    packages = sysconfig.get_path("purelib")
    # addsitedir() reads the .pth files there too: torch_openreg may be an editable install.
    (site / "outer.pth").write_text(f"import site; site.addsitedir({packages!r})\n")
    return folder


# acceptance 5.39, 5.40, 5.46
@pytest.mark.slow
def test_a_package_is_found_chosen_and_removed(environment: Path, root: Path, tmp_path: Path) -> None:
    """`pip install` makes it the first choice, with no C++ and no line of user code; `pip uninstall` takes it back."""
    source = tmp_path / "toy_driver"
    shutil.copytree(root / "examples/toy_driver", source)
    assert len([path for path in source.rglob("*") if path.is_file()]) == 5

    def run(*arguments: str) -> str:
        done = finished(
            [str(environment / "bin/python"), *arguments],
            cwd=tmp_path,
            env={k: v for k, v in os.environ.items() if not k.startswith(("OPENREG_", "PYTHON"))},
            timeout=200,
        )
        return done.stdout

    pip = ("-m", "pip", "--disable-pip-version-check", "--no-input")
    assert run("-c", CHOSEN) == "sim False\n"
    run(*pip, "install", "--no-build-isolation", "--no-deps", "--no-index", str(source))
    assert run("-c", CHOSEN) == "toy True\n"
    assert "torch_openreg_toy" in run("-m", "torch_openreg", "diagnose")
    run(*pip, "uninstall", "-y", "torch-openreg-toy")
    assert run("-c", CHOSEN) == "sim False\n"
