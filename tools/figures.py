# SPDX-License-Identifier: BSD-3-Clause
"""Writes the tables of docs/figures.md from a run of `make bench`.

``python tools/figures.py [bench.json]`` takes a run's output for the page and writes it; ``--check`` exits with 1 where
it differs from docs/figures/bench.json.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "figures.md"
RUN = ROOT / "docs" / "figures" / "bench.json"
BLOCK = re.compile(r"(?<=<!-- figures -->\n).*?(?=<!-- end figures -->)", re.DOTALL)

Figure = dict[str, Any]


def _is_ratio_to_cpu(figure: Figure) -> bool:
    return figure["unit"] == "x" and figure["measure"] == "nanoseconds" and figure["reference_name"].startswith("CPU")


# Title, a sentence, and which figures; a figure is in the first group that takes it.
GROUPS: list[tuple[str, str, Callable[[Figure], bool]]] = [
    (
        "Training",
        "Whole steps, forward, backward and optimizer, beside the same on the CPU.",
        lambda f: " step" in f["name"] and not f["name"].startswith("staged") and _is_ratio_to_cpu(f),
    ),
    (
        "Operators of 16 elements: what a call costs",
        "Nothing but the price of a call can show.",
        lambda f: (
            ("16 elements" in f["name"] or "empty(16)" in f["name"])
            and not f["name"].startswith("compiled")
            and _is_ratio_to_cpu(f)
        ),
    ),
    (
        "Operators of 1 Mi elements: what the bytes cost",
        "The same kernels on the same kind of memory: 1 is what to expect, and the rest is noise of two shared cores.",
        lambda f: ("1 M elements" in f["name"] or "512 x 512" in f["name"]) and _is_ratio_to_cpu(f),
    ),
    (
        "Compiled by torch.compile",
        "Inductor's C++ kernels on the device's memory, beside Inductor for the CPU.",
        lambda f: f["name"].startswith("compiled"),
    ),
    (
        "Staged: where the host can't read the device's memory",
        "Each operator copies what its tensors cover to the host and back.",
        lambda f: f["name"].startswith("staged") and f["reference_name"] in ("CPU", "CPU's add and 3 copies"),
    ),
    (
        "Lists of small tensors",
        "One call that looks at many tensors.",
        lambda f: f["name"].startswith(("cat of", "stack of", "_foreach", "foreach")),
    ),
    (
        "The caching allocator on recorded programs",
        "Requests and frees of four training programs replayed, beside malloc and free: one operation.",
        lambda f: f["name"].startswith("replay") and f["measure"] == "nanoseconds",
    ),
]


def _time(nanoseconds: float) -> str:
    for unit, size in (("ms", 1e6), ("us", 1e3)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.3g} {unit}"
    return f"{nanoseconds:.3g} ns"


def table(figures: list[Figure]) -> str:
    """The figures and their references as times, and the ratio of the two."""
    rows = [
        f"| {f['name']} | {_time(f['value'])} | {f['reference_name']}: {_time(f['reference'])} "
        f"| {f['value'] / f['reference']:.2f} |"
        for f in figures
    ]
    return "\n".join(["| what | time | reference | ratio |", "|---|---|---|---|", *rows])


def tables(run: dict[str, Any]) -> str:
    """The generated part of the page."""
    left: list[Figure] = list(run["figures"])
    parts = []
    for title, sentence, takes in GROUPS:
        taken = [figure for figure in left if takes(figure)]
        if taken:
            left = [figure for figure in left if figure not in taken]
            parts.append(f"## {title}\n{sentence}\n\n{table(taken)}\n")
    nanoseconds = [figure for figure in left if figure["unit"] == "ns"]
    parts.append(f"## Calls of the C runtime\nTimes, as there is no such thing on the CPU.\n\n{table(nanoseconds)}\n")
    return "\n".join(parts)


def main() -> int:
    """Writes, or with ``--check`` compares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path, help="a run's bench.json, to be taken for the page")
    parser.add_argument("--check", action="store_true", help="change nothing, exit with 1 if the page is stale")
    arguments = parser.parse_args()
    if arguments.run is not None:
        shutil.copy(arguments.run, RUN)
    text = tables(json.loads(RUN.read_text(encoding="utf-8")))
    page = PAGE.read_text(encoding="utf-8")
    fresh = BLOCK.sub(lambda _: text, page)
    if fresh == page:
        return 0
    print(f"{PAGE.relative_to(ROOT)}: {'stale, run tools/figures.py' if arguments.check else 'written'}")
    if not arguments.check:
        PAGE.write_text(fresh, encoding="utf-8")
    return 1 if arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
