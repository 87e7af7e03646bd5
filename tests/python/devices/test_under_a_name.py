# SPDX-License-Identifier: BSD-3-Clause
"""A sample of this suite with the device under another name; `make test-named` runs the whole."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from checkout_modules import load
from finished import finished

pytestmark = pytest.mark.slow

# Quick files, of rooms whose texts and strings have the name.
SAMPLE = ("devices/test_device.py", "devices/test_hooks.py")


@pytest.mark.long
def test_the_suite_passes_under_another_name(root: Path, tmp_path: Path) -> None:
    files = [f"tests/python/{path}" for path in SAMPLE]
    command = [sys.executable, "tools/named_tests.py", "mychip", "--folder", str(tmp_path / "copy"), "-q", *files]
    done = finished(command, cwd=root)
    found = re.search(r"(\d+) passed", done.stdout)
    assert found is not None and int(found[1]) > 20, done.stdout


# words for the device are replaced, and those for the library are left
@pytest.mark.parametrize(
    ("source", "translated"),
    [
        ('x.to("openreg"); y = f"openreg:{i}"', 'x.to("mychip"); y = f"mychip:{i}"'),
        (
            "x.openreg(1) if x.is_openreg else torch.openreg.seed()",
            "x.mychip(1) if x.is_mychip else torch.openreg.seed()",
        ),
        (
            "run(\"a = torch.ones(1, device='openreg').openreg()\")",
            "run(\"a = torch.ones(1, device='mychip').mychip()\")",
        ),
        ('init("cpu:gloo,openreg:openreg_gloo")', 'init("cpu:gloo,mychip:mychip_gloo")'),
        ('match="an openreg device"', 'match="a mychip device"'),
        (
            '"re-initialize OpenReg in forked"; "OpenReg simulated"',
            '"re-initialize mychip in forked"; "OpenReg simulated"',
        ),
        ('include / "openreg" / "driver.h"; "openreg::compiled_graph"; "openreg.ipc"; "torch_openreg"', None),
        (
            'match="OPENREG device 5 but torch.openreg.device_count"',
            'match="MYCHIP device 5 but torch.mychip.device_count"',
        ),
        (
            '"3 operators ran on openreg, "; "Self OPENREG"; OPENREG_X',
            '"3 operators ran on mychip, "; "Self MYCHIP"; OPENREG_X',
        ),
        ('"openreg = torch_openreg_lab.pytest_plugin"; run(\'entry(name="openreg_gloo")\')', None),
        ("from torch_openreg import openreg", None),
    ],
)
def test_translation(source: str, translated: str | None) -> None:
    tool = load("tools/named_tests.py")
    assert tool.translate(source, "mychip") == (translated or source)
