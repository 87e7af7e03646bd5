# SPDX-License-Identifier: BSD-3-Clause
"""An extension in C++ with a kernel for openreg, compiled against what is installed: examples/cpp_extension."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from torch_openreg import config

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "cpp_extension"

# What both kinds of extension must do, with `op` for the operator. x comes by a copy that is put off until something
# waits for it, and the address of the device is not the host's.
CHECKS = """
def reference(x, scale):
    return x * torch.sigmoid(scale * x)

host = torch.randn(6, 5)
device = torch.device("openreg:1")
for stream in (torch.openreg.default_stream(1), torch.openreg.Stream(1)):
    with stream:
        x = torch.full((6, 5), 9.0, device=device)
        x.copy_(host.pin_memory(), non_blocking=True)
        torch.testing.assert_close(op(x, 2.0).cpu(), reference(host, 2.0))
        assert op(x, 2.0).device == device
torch.testing.assert_close(op(x.t()[1:, ::2], 0.5).cpu(), reference(host.t()[1:, ::2], 0.5))
assert op(x[:0], 1.0).shape == (0, 5)
assert torch.equal(op(host, 2.0), op(x, 2.0).cpu())
y = torch.randn(4, dtype=torch.float64, device=device, requires_grad=True)
assert torch.autograd.gradcheck(lambda y: op(y, 2.0), (y,))
compiled = torch.compile(lambda y: op(y * 2, 2.0).sum(), backend="aot_eager", fullgraph=True)
(gradient,) = torch.autograd.grad(compiled(y), y)
(expected,) = torch.autograd.grad(reference(y * 2, 2.0).sum(), y)
torch.testing.assert_close(gradient, expected)
try:
    op(x.int(), 1.0)
except RuntimeError as error:
    assert "scaled_silu" in str(error), error
else:
    raise AssertionError("integers have no kernel")
"""
LATEST = {"OPENREG_SIM_SEED": "1", "OPENREG_SIM_SCHEDULE": "latest"}


def test_paths() -> None:
    """What an extension is compiled and linked with is in the package."""
    installed = [Path(path) for path in config.include_paths()]
    for header in (
        "openreg/openreg.h",
        "shim/device/host_address.h",
        "shim/device/device.h",
        "shim/base/status.h",
        "shim/base/export.h",
    ):
        assert any((path / header).is_file() for path in installed), header
    arguments = config.extension_arguments()
    assert arguments["include_dirs"] == config.include_paths()
    folders = [Path(path) for path in arguments["library_dirs"]]
    for name in arguments["libraries"]:
        assert any((path / f"lib{name}.so").is_file() for path in folders), name
    linked = [f"-L{path}" for path in folders] + [f"-l{name}" for name in arguments["libraries"]]
    assert config.link_flags() == linked


@pytest.mark.long  # PyTorch's headers take a core half a minute
@pytest.mark.timeout(900)
def test_package(tmp_path: Path, python: Callable[..., object]) -> None:
    """`pip install` of the example compiles it; its kernel waits for the stream, has a derivative, and compiles."""
    source = tmp_path / "source"
    shutil.copytree(EXAMPLE, source)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--no-build-isolation")
    subprocess.run([*pip, "--no-deps", "--no-index", "--target", str(tmp_path / "site"), str(source)], check=True)
    program = "import torch\nimport openreg_silu\nop = openreg_silu.scaled_silu\n" + CHECKS
    python(program, PYTHONPATH=str(tmp_path / "site"), **LATEST)


@pytest.mark.long  # as above
@pytest.mark.timeout(900)
def test_load(tmp_path: Path, python: Callable[..., object]) -> None:
    """The program of the example's page, which compiles the file when it runs."""
    program = re.findall(r"```python\n(.*?)```", (EXAMPLE / "README.md").read_text(), re.DOTALL)[0]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # of ninja
    python(
        program + "op = torch.ops.openreg_silu.scaled_silu.default\n" + CHECKS,
        cwd=EXAMPLE.parents[1],
        timeout=600,
        PATH=path,
        TORCH_EXTENSIONS_DIR=str(tmp_path),
        **LATEST,
    )
