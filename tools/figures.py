# SPDX-License-Identifier: BSD-3-Clause
"""Draws docs/figures.md from a run of `make bench`: a plot of ratios for each group, and tables.

``python tools/figures.py [bench.json]`` takes a run's output for the pages and draws them; ``--check`` exits with 1
where they differ from docs/figures/bench.json. The plots are plain SVG, the same bytes for the same figures.
"""

from __future__ import annotations

import argparse
import html
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "figures.md"
FOLDER = ROOT / "docs" / "figures"
BLOCK = re.compile(r"(?<=<!-- figures -->\n).*?(?=<!-- end figures -->)", re.DOTALL)

Figure = dict[str, Any]


def _is_ratio_to_cpu(figure: Figure) -> bool:
    return figure["unit"] == "x" and figure["measure"] == "nanoseconds" and figure["reference_name"].startswith("CPU")


# Title, file, a sentence, and which figures; a figure is in the first group that takes it.
GROUPS: list[tuple[str, str, str, Callable[[Figure], bool]]] = [
    (
        "Training",
        "training",
        "Whole steps, forward, backward and optimizer, beside the same on the CPU.",
        lambda f: " step" in f["name"] and not f["name"].startswith("staged") and _is_ratio_to_cpu(f),
    ),
    (
        "Operators of 16 elements: what a call costs",
        "small-operators",
        "Nothing but the price of a call can show.",
        lambda f: (
            ("16 elements" in f["name"] or "empty(16)" in f["name"])
            and not f["name"].startswith("compiled")
            and _is_ratio_to_cpu(f)
        ),
    ),
    (
        "Operators of 1 Mi elements: what the bytes cost",
        "large-operators",
        "The same kernels on the same kind of memory: 1 is what to expect, and the rest is noise of two shared cores.",
        lambda f: ("1 M elements" in f["name"] or "512 x 512" in f["name"]) and _is_ratio_to_cpu(f),
    ),
    (
        "Compiled by torch.compile",
        "compiled",
        "Inductor's C++ kernels on the device's memory, beside Inductor for the CPU.",
        lambda f: f["name"].startswith("compiled"),
    ),
    (
        "Staged: where the host can't read the device's memory",
        "staged",
        "Each operator copies what its tensors cover to the host and back.",
        lambda f: f["name"].startswith("staged") and f["reference_name"] in ("CPU", "CPU's add and 3 copies"),
    ),
    (
        "Lists of small tensors",
        "lists",
        "One call that looks at many tensors.",
        lambda f: f["name"].startswith(("cat of", "stack of", "_foreach", "foreach")),
    ),
    (
        "The caching allocator on recorded programs",
        "allocator",
        "Requests and frees of four training programs replayed, beside malloc and free: one operation.",
        lambda f: f["name"].startswith("replay") and f["measure"] == "nanoseconds",
    ),
]

WIDTH, LABEL, ROW, TOP = 860, 330, 26, 12


def plot(figures: list[Figure]) -> str:
    """A horizontal bar for each ratio, with a line at 1."""
    largest = max(1.25, *(f["score"] for f in figures))
    room = WIDTH - LABEL - 70
    height = TOP + ROW * len(figures) + 8

    def x(value: float) -> float:
        return round(LABEL + room * value / largest, 1)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'font-family="DejaVu Sans, Helvetica, Arial, sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
    ]
    for i, figure in enumerate(figures):
        y = TOP + ROW * i
        score = figure["score"]
        colour = "#2f7d6b" if score <= 1.05 else "#d08b2c" if score <= 1.5 else "#b3401f"
        name = html.escape(figure["name"])
        label = x(score) if score >= 1 or x(1) - x(score) > 45 else x(1)  # beside the line, not across it
        lines += [
            f'<text x="{LABEL - 8}" y="{y + 15}" text-anchor="end" fill="#222">{name}</text>',
            f'<rect x="{LABEL}" y="{y + 3}" width="{round(x(score) - LABEL, 1)}" height="16" fill="{colour}"/>',
            f'<text x="{label + 6:.1f}" y="{y + 15}" fill="#222">{score:.2f}</text>',
        ]
    lines += [
        f'<line x1="{x(1)}" y1="{TOP - 4}" x2="{x(1)}" y2="{height - 6}" stroke="#222" stroke-width="1.2"/>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _time(nanoseconds: float) -> str:
    for unit, size in (("ms", 1e6), ("us", 1e3)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.3g} {unit}"
    return f"{nanoseconds:.3g} ns"


def table(figures: list[Figure]) -> str:
    """The figures and their references, as times."""
    rows = [f"| {f['name']} | {_time(f['value'])} | {f['reference_name']}: {_time(f['reference'])} |" for f in figures]
    return "\n".join(["| what | time | reference |", "|---|---|---|", *rows])


def outputs(run: dict[str, Any]) -> tuple[str, dict[str, str]]:
    """The generated part of the page, and the plots by their names."""
    left: list[Figure] = list(run["figures"])
    parts, plots = [], {}
    for title, name, sentence, takes in GROUPS:
        taken = [figure for figure in left if takes(figure)]
        if not taken:
            continue
        left = [figure for figure in left if figure not in taken]
        plots[f"{name}.svg"] = plot(taken)
        alt = f"{title}: ratios from {min(f['score'] for f in taken):.2f} to {max(f['score'] for f in taken):.2f}"
        parts.append(f"## {title}\n{sentence}\n\n![{alt}](figures/{name}.svg)\n\n{table(taken)}\n")
    nanoseconds = [figure for figure in left if figure["unit"] == "ns"]
    parts.append(f"## Calls of the C runtime\nTimes, as there is no such thing on the CPU.\n\n{table(nanoseconds)}\n")
    return "\n".join(parts), plots


def main() -> int:
    """Draws, or with ``--check`` compares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path, help="a run's bench.json, to be taken for the pages")
    parser.add_argument("--check", action="store_true", help="change nothing, exit with 1 if something is stale")
    arguments = parser.parse_args()
    if arguments.run is not None:
        shutil.copy(arguments.run, FOLDER / "bench.json")
    text, plots = outputs(json.loads((FOLDER / "bench.json").read_text(encoding="utf-8")))
    page = PAGE.read_text(encoding="utf-8")
    wanted = {FOLDER / name: plot for name, plot in plots.items()} | {PAGE: BLOCK.sub(lambda _: text, page)}
    stale = [
        path for path, content in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != content
    ]
    stale += sorted(path for path in FOLDER.glob("*.svg") if path not in wanted)
    for path in stale:
        print(f"{path.relative_to(ROOT)}: {'stale, run tools/figures.py' if arguments.check else 'written'}")
        if not arguments.check and path in wanted:
            path.write_text(wanted[path], encoding="utf-8")
        elif not arguments.check:
            path.unlink()
    return 1 if arguments.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
