# SPDX-License-Identifier: BSD-3-Clause
"""tools/mutate.py: which defects it can plant, and that planting one changes one place alone."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
from checkout_modules import load
from finished import finished

TOOL = Path(__file__).resolve().parents[3] / "tools" / "mutate.py"

C_SOURCE = """\
static openreg_status
take(openreg_thing *thing, int count)
{
    /* if (count == 7) is a comment */
    if (count == 0 || thing == NULL)
        return openreg_error_set(OPENREG_E_INVALID, "count == %d", count);
    (void)pthread_mutex_lock(&thing->lock);
    thing->count = count + 1;
    (void)pthread_mutex_unlock(&thing->lock);
    OPENREG_RETURN_NOT_OK(prepare(thing));
    openreg_thing_wait(thing);
    return OPENREG_OK;
}
"""


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load("tools/mutate.py")


# Each kind of defect is found in C, and none in a comment or a text.
def test_c_defects(tool: ModuleType) -> None:
    mutants = list(tool.c_mutants("take.c", C_SOURCE))
    planted: dict[tuple[int, str], str] = {}
    for mutant in mutants:
        planted.setdefault((mutant.line, mutant.kind), mutant.apply(C_SOURCE))
    assert {kind for _, kind in planted} == {"compare", "logic", "negate", "error", "bound", "lock", "wait", "drop"}
    assert not [mutant for mutant in mutants if mutant.line == 4]
    assert "if (count != 0 || thing" in planted[5, "compare"]
    assert "if (count == 0 && thing" in planted[5, "logic"]
    assert "(!(count == 0 ||" in planted[5, "negate"]
    assert "        return OPENREG_OK;" in planted[6, "error"]
    assert "pthread_mutex" not in planted[7, "lock"]
    assert "thing->count = count;" in planted[8, "bound"]
    assert "(void)(prepare(thing));" in planted[10, "error"]
    assert "openreg_thing_wait" not in planted[11, "wait"]


# The runtime of the checkout has thousands of places, of every kind, and a seed chooses the same ones twice.
def test_sample_is_repeatable() -> None:
    def sample(*more: str) -> str:
        command = [sys.executable, str(TOOL), "--list", "--seed", "3", "--sample", "40", *more]
        return finished(command).stdout

    assert sample() == sample()
    assert len(sample().splitlines()) == 41
    assert sample("--kinds", "lock") != sample()
