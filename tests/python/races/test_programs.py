# SPDX-License-Identifier: BSD-3-Clause
"""Programs with a race: each is found, its corrected form is not, and the report names the lines of the program."""

from __future__ import annotations

import pytest
import torch
from csan import csan
from race_programs import PROGRAMS, Program

IDS = [program.name for program in PROGRAMS]


# Each race is found on any schedule: it is in the program, not in what this run did.
@pytest.mark.parametrize("program", PROGRAMS, ids=IDS)
def test_race_is_found(program: Program) -> None:
    torch.openreg.synchronize()
    with torch.openreg.detect_races() as found:
        program.run(False)
        torch.openreg.synchronize()
    assert program.kind in {race.kind for race in found}, [str(race) for race in found]
    for race in found:
        for use in (race.first, race.second):
            assert "race_programs.py:" in use.place or use.place == "", race
        assert race.remedy


# The corrected program has no report at all.
@pytest.mark.parametrize("program", PROGRAMS, ids=IDS)
def test_corrected_program_is_not_reported(program: Program) -> None:
    torch.openreg.synchronize()
    with torch.openreg.detect_races(raises=True) as found:
        program.run(True)
        torch.openreg.synchronize()
    assert found == []


# There are at least thirty.
def test_there_are_many() -> None:
    assert len(PROGRAMS) >= 30


# What the table of docs/finding-races.md says of torch.cuda's sanitizer is what its own classes find.
@pytest.mark.parametrize("program", PROGRAMS, ids=IDS)
def test_what_the_sanitizer_for_cuda_finds(program: Program) -> None:
    with csan() as errors:
        program.run(False)
    assert bool(errors) == program.by_csan
