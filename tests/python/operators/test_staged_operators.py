# SPDX-License-Identifier: BSD-3-Clause
"""Operators on memory that the host can't reach, or is told not to: staged, with the same results, and counted."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from finished import Program, finished

SUITES = (
    "operators/test_operators.py",
    "operators/test_factories.py",
    "operators/test_modes.py",
    "training/test_training.py",
    "graphs/test_graphs.py",
    "graphs/test_graph_replays.py",
    "graphs/test_graph_training.py",
)


def run_suites(root: Path, environment: dict[str, str], names: Sequence[str] = SUITES) -> None:
    """Runs tests in a process whose operators are staged."""
    files = [str(root / "tests/python" / name) for name in names]
    done = finished(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files],
        env={k: v for k, v in os.environ.items() if not k.startswith(("OPENREG_", "PYTEST_"))} | environment,
        cwd=root,
        timeout=900,
    )
    assert re.search(r"\b[1-9]\d+ passed\b", done.stdout), done.stdout[-2000:]


# staged gives what aliased gives, on the simulated devices
@pytest.mark.long
def test_the_suites_pass_staged_on_sim(root: Path) -> None:
    run_suites(root, {"OPENREG_OPERATORS": "staged"})


# layers on memory that the host does not reach give the same
@pytest.mark.slow
def test_layers_equal_the_cpu_when_staged(root: Path) -> None:
    run_suites(root, {"OPENREG_OPERATORS": "staged"}, ["operators/test_modules.py"])


# seven functions are a driver, and PyTorch trains on it; what is missing the runtime emulates
@pytest.mark.slow
def test_the_suites_pass_on_a_driver_of_seven_functions(root: Path, toy_library: Path) -> None:
    run_suites(root, {"OPENREG_DRIVER_LIBRARIES": f"toy:{toy_library}"})


# never silent: counted by operator, with the bytes moved
def test_staged_calls_are_counted(python: Program) -> None:
    python(
        """
        import torch
        x = torch.ones(64, 64, device="openreg")
        torch.openreg.reset_operator_stats()
        y = torch.mm(x, x)
        stats = torch.openreg.operator_stats()
        assert stats["aliased_calls"] == 0, stats
        seconds = stats["staged_seconds"]
        assert seconds > 0
        assert stats["staged"] == {"aten::mm": {"calls": 1, "bytes": stats["staged_bytes"], "seconds": seconds}}, stats
        assert stats["staged_bytes"] == 2 * x.nbytes, stats  # x once although it is passed twice, and the result
        assert y[3, 4].item() == 64
        """,
        OPENREG_OPERATORS="staged",
    )


def test_aliased_calls_are_counted_and_copy_nothing() -> None:
    import torch

    x = torch.ones(64, 64, device="openreg")
    torch.openreg.reset_operator_stats()
    torch.mm(x, x)
    stats = torch.openreg.operator_stats()
    assert (stats["aliased_calls"], stats["staged_calls"], stats["staged_bytes"]) == (1, 0, 0)


# a bad value is refused by name where it is read
def test_a_bad_value_of_the_variable_is_refused(python: Program) -> None:
    python(
        r"""
        import os, re, pytest, torch
        for value, text in (("fast", "fast"), ("fast\udcff\n", r"fast\xff\x0a")):
            os.environ["OPENREG_OPERATORS"] = value
            with pytest.raises(RuntimeError, match=re.escape(f"OPENREG_OPERATORS must be 'auto' or 'staged', but is '{text}'.")):
                torch.ones(2, device="openreg") + 1
        """
    )
