# SPDX-License-Identifier: BSD-3-Clause
"""Real races of libraries (museum.py): found in each faulty form, in every order of the devices' work; none in the mended."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import museum
import pytest

# Every program in both forms, in a process whose devices run by a seed.
RUN = """
import json, museum, torch
found = {}
for program in museum.MUSEUM:
    for fixed in (False, True):
        torch.openreg.synchronize()
        with torch.openreg.detect_races() as races:
            program(fixed)
            torch.openreg.synchronize()
        found[f"{program.__name__} {fixed}"] = [[race.kind, race.first.place, race.second.place] for race in races]
print(json.dumps(found))
"""


@pytest.fixture(scope="module", params=[None, 1, 2, 3], ids=lambda seed: f"seed {seed}")
def found(request: pytest.FixtureRequest, warm_interpreter: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    import os

    seed = {} if request.param is None else {"OPENREG_SIM_SEED": str(request.param)}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OPENREG_")}
    variables = kept | {"OPENREG_PREFERENCES": os.devnull, "PYTHONPATH": str(Path(__file__).parent)} | seed
    program = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n{RUN}"
    done = warm_interpreter.run(program, variables, tmp_path_factory.mktemp("museum"), 120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("program", museum.MUSEUM, ids=lambda program: program.__name__)
def test_race_of_a_library(found: dict[str, list[list[str]]], program: Any) -> None:
    """Both of its lines are the program's, and the mended form has no report."""
    lines, first = inspect.getsourcelines(program)
    own = {f"museum.py:{number}" for number in range(first, first + len(lines))}
    races = found[f"{program.__name__} False"]
    assert museum.MUSEUM[program] in {kind for kind, _, _ in races}, races
    for _, *places in races:
        for place in places:
            assert Path(place.partition(" in ")[0]).name in own, races
    assert found[f"{program.__name__} True"] == []


def test_each_names_its_report() -> None:
    for program in museum.MUSEUM:
        assert program.__doc__ and "#" in program.__doc__.partition(":")[0]
    assert len(museum.MUSEUM) >= 12
