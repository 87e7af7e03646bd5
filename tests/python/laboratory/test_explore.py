# SPDX-License-Identifier: BSD-3-Clause
"""``python -m torch_openreg explore``: a command under many seeds, and the fewest switches of one that fails."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from torch_openreg.__main__ import main
from torch_openreg_lab import explore as exploration

# Fails under some seeds, from a number of switches on, as a program with a missing wait does.
PROGRAM = """
import os, sys, time
seed, switches = int(os.environ["OPENREG_SIM_SEED"]), os.environ.get("OPENREG_SIM_SWITCHES")
print("seed", seed, "switches", switches, "schedule", os.environ.get("OPENREG_SIM_SCHEDULE"))
{body}
"""


@pytest.fixture
def explore(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Any:
    """Explores a program whose last lines are given; returns the status and what was printed."""

    def run(body: str, *options: str) -> tuple[int, str]:
        path = tmp_path / "program.py"
        path.write_text(PROGRAM.format(body=body))
        # Without site packages the program starts in a few milliseconds.
        status = main(["explore", "--jobs=2", *options, "--", sys.executable, "-S", "-E", str(path)])
        return status, capfd.readouterr().out

    return run


# every failing seed is printed; one is shrunk to the fewest switches, with the line that repeats it, which does
def test_finds_and_shrinks(explore: Any, tmp_path: Path) -> None:
    body = "limit = 1 << 40 if switches is None else int(switches)\nif seed in (3, 7) and limit >= 37: sys.exit('old data')"
    status, out = explore(body, "--seeds=9", "--schedule=pct")
    assert status == 1
    assert "plain order: passed" in out
    assert "2 of 9 seeds failed" in out
    assert "failing seeds: 3, 7" in out
    assert "seed 3 fails with 37 switch(es) from the plain order, and not with one fewer" in out
    again = out[out.index("again:") :].splitlines()[1]
    prefix = "  OPENREG_SIM_SEED=3 OPENREG_SIM_SCHEDULE=pct OPENREG_SIM_SWITCHES=37 "
    assert again == f"{prefix}{sys.executable} -S -E {tmp_path / 'program.py'}"
    assert "    seed 3 switches 37 schedule pct\n    old data" in out


# a program that forgets to wait for a stream, on the devices themselves: one copy that is put off is enough
def test_a_missing_wait(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENREG_SIM_RACES", raising=False)  # the race is planted: the detector would stop the program
    path = tmp_path / "program.py"
    path.write_text(
        """
import torch
source = torch.arange(1.0, 4097).pin_memory()
x, side = torch.zeros(4096, device="openreg"), torch.openreg.Stream()
torch.openreg.synchronize()
with torch.openreg.stream(side):
    x.copy_(source, non_blocking=True)
# missing: torch.openreg.current_stream().wait_stream(side)
assert (x * 1).sum().item() == source.sum().item(), "old data"
"""
    )
    assert main(["explore", "--seeds=1", "--schedule=latest", "--", sys.executable, str(path)]) == 1
    out = capfd.readouterr().out
    assert "seed 1 fails with 1 switch(es) from the plain order" in out
    assert "AssertionError: old data" in out


# no seed fails: 0; the seeds are those that were asked for
def test_none_fails(explore: Any) -> None:
    status, out = explore("assert 5 <= seed < 8", "--seeds=3", "--first-seed=5")
    assert status == 0
    assert "0 of 3 seeds failed" in out


# what fails in plain order has another reason, and is told at once
def test_fails_in_plain_order(explore: Any) -> None:
    status, out = explore("sys.exit(3)", "--seeds=50")
    assert status == 2
    assert "fails in plain order too: it ended with status 3" in out
    assert "OPENREG_SIM_SWITCHES=0" in out


# a failure that no number of switches repeats is not blamed on the order
def test_a_failure_by_chance(explore: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exploration, "_MOST_SWITCHES", 4)
    status, out = explore("if switches is None: sys.exit(1)", "--seeds=1")
    assert status == 1
    assert "perhaps by chance" in out


# a run that hangs is a failure, and ends with what it has started; one that a signal ends says so
def test_late_and_killed(explore: Any) -> None:
    body = (
        "import subprocess\nif switches is None: subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    )
    begin = time.monotonic()
    status, out = explore(body, "--seeds=1", "--timeout=1", "--no-shrink")
    assert status == 1
    assert "seed 1: did not end in 1 s" in out
    assert time.monotonic() - begin < 30
    status, out = explore("if switches is None: os.kill(os.getpid(), 9)", "--seeds=1", "--no-shrink")
    assert "seed 1: was ended by SIGKILL" in out


# no run is started once the time is up, or one has failed where that is enough
def test_limits(explore: Any) -> None:
    status, out = explore("if switches is None: time.sleep(0.3)", "--seeds=1000", "--time=1")
    assert status == 0
    assert int(out.split(" of ")[1].split()[0]) < 20
    status, out = explore("if switches is None: sys.exit(1)", "--seeds=1000", "--stop-at-first", "--no-shrink")
    assert status == 1
    assert int(out.split(" of ")[1].split()[0]) <= 4


@pytest.mark.parametrize(
    "words",
    [
        ["explore"],
        ["explore", "--seeds=0", "--", "true"],
        ["explore", "--time=x", "--", "true"],
        ["explore", "--seeds=1"],
    ],
)
def test_wrong_command_line(words: list[str]) -> None:
    """argparse's status, before anything is run."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2


# a program that is not there is said once, not for each seed
def test_no_such_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explore", "--", "no-such-program-anywhere"]) == 2
    assert (
        capsys.readouterr().err == "python -m torch_openreg explore: there is no program 'no-such-program-anywhere'\n"
    )


# a limit from outside does not reach the runs that have none
def test_outer_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENREG_SIM_SWITCHES", "5")
    explorer = exploration.Explorer([sys.executable, "-c", "import os; print(dict(os.environ))"], None, 60)
    assert "OPENREG_SIM_SWITCHES" not in explorer.run(1).output
    assert explorer.repeats(explorer.run(1, 2)).startswith("OPENREG_SIM_SEED=1 OPENREG_SIM_SWITCHES=2 ")
