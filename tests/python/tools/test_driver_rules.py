# SPDX-License-Identifier: BSD-3-Clause
"""The table of docs/verifying-a-driver.md: who sees which rule of driver.h."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
EXTENSIONS = ("comm.", "graph.", "ipc.", "vmm.", "kernel.")  # of headers of their own


def squeeze(text: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"\n\s*\*(?!/)", " ", text))


def rows() -> list[tuple[str, str, set[str], str]]:
    page = (ROOT / "docs/verifying-a-driver.md").read_text()
    table = page.split("## Who sees which rule")[1].split("\n## ")[0]
    found = []
    for line in table.splitlines():
        if line.startswith("| ") and not line.startswith("| of |"):
            of, rule, checks, validation = (cell.strip() for cell in line.strip("|").split(" | "))
            key = re.search(r"`(\w+)`", validation)
            assert checks == "nobody" or checks == "-" or "`" in checks, line
            assert (checks == "nobody") <= (key is None), line
            found.append((of.strip("`"), rule, set(re.findall(r"`([\w.]+)`", checks)), key[1] if key else ""))
    return found


HEADER = squeeze((ROOT / "runtime/include/openreg/driver.h").read_text())


# each rule is one of driver.h, and each function of its table has one
def test_the_rules_are_those_of_the_header() -> None:
    assert not [rule for _, rule, _, _ in rows() if rule not in HEADER]
    table = HEADER.split("typedef struct openreg_driver {")[1].split("} openreg_driver;")[0]
    slots = set(re.findall(r"\(\*(\w+)\)\(", table)) - {"function"}
    assert len(slots) > 25
    assert slots - {of for of, _, _, _ in rows()} == set()


# each check is in the table, and each that the table names is there
def test_the_checks_are_those_of_the_program() -> None:
    sources = "".join(path.read_text() for path in sorted((ROOT / "runtime/check").glob("*_checks.c")))
    checks = set(re.findall(r'^    {"([a-z_]+\.[a-z_0-9]+)"', sources, re.MULTILINE))
    named = set().union(*(checks for _, _, checks, _ in rows()))
    assert named <= checks
    # wide and fault are rules of the whole, and every check of the table's functions has its row
    assert {check for check in checks if not check.startswith(EXTENSIONS)} - named == set()


# each rule of the validation layer that driver.h has is in the table, under its own name
def test_the_rules_of_validation() -> None:
    rules = dict(re.findall(r'X\((\w+),\s*"([^"]*)"\)', (ROOT / "runtime/lab/validation/rules.h").read_text()))
    shown = {key for _, _, _, key in rows()} - {""}
    assert shown <= set(rules)
    assert {key for key, text in rules.items() if text in HEADER} <= shown
