# SPDX-License-Identifier: BSD-3-Clause
"""What PyTorch lets a backend override is overridden, or left alone for a reason that is written down."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType

import pytest
import torch
from checkout_modules import load


@pytest.fixture(scope="module")
def check_hooks() -> ModuleType:
    """tools/check_hooks.py."""
    return load("tools/check_hooks.py")


def test_every_virtual_function_is_known(check_hooks: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """Guard, hooks, allocators, generator and profiler: nothing in this PyTorch is forgotten."""
    assert check_hooks.main([]) == 0, capsys.readouterr().out
    printed = capsys.readouterr().out
    for interface in check_hooks.INTERFACES:
        assert f"{interface.name}: " in printed
    assert ": 0 overridden" not in printed


def test_every_omission_is_of_a_function_that_exists(check_hooks: ModuleType) -> None:
    """A reason for a function that PyTorch no longer has, or that is overridden by now, is reported here."""
    include = check_hooks.torch_include()
    for interface in check_hooks.INTERFACES:
        if (include / interface.bases[0][0]).exists():
            omitted = check_hooks.report(include, interface)[1]
            # The functions of pools came later than the rest of the host allocator.
            later = {"begin_allocate_to_pool", "end_allocate_to_pool", "release_pool"}
            for since, names in (
                ((2, 15), check_hooks.NEWER),
                ((2, 13), {"pinned_max_cached_size", "pinned_max_round_threshold"}),
                ((2, 12), {"suspend", "resume", "getMemoryStats"}),
            ):
                if torch.__version__ < since:
                    later |= names
            assert interface.omitted.keys() - omitted <= later, interface.name


def test_a_new_function_is_reported(
    check_hooks: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A PyTorch that has grown a virtual function makes the check fail, and names it."""
    include = Path(torch.__file__).parent / "include"
    for interface in check_hooks.INTERFACES:
        for header, _ in interface.bases:
            if (include / header).exists():
                (tmp_path / header).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(include / header, tmp_path / header)
    guard = tmp_path / "c10/core/impl/DeviceGuardImplInterface.h"
    text = guard.read_text()
    where = text.index("virtual bool queryStream")
    guard.write_text(text[:where] + "virtual int\n  brandNew(int x) const { return x; }\n  " + text[where:])
    assert check_hooks.main(["--include", str(tmp_path)]) == 1
    assert "brandNew: UNKNOWN" in capsys.readouterr().out
