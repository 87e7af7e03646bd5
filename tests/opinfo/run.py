# SPDX-License-Identifier: BSD-3-Clause
"""Runs PyTorch's operator databases on the device against the CPU: ``python tests/opinfo/run.py --help``.

Entries are checked in worker processes; one that crashes or hangs costs its entry and is replaced. Prints how many
entries passed, by dtype, and the rest with its reasons (known.py). Status 1 on an unexpected failure, or where a known
one passes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pool import LostError, Worker, ask_all

HERE = Path(__file__).resolve().parent

Result = dict[str, Any]


def run_entries(
    entries: Iterable[str], jobs: int, samples: int, timeout: float, staged: bool, kind: str = "plain"
) -> list[Result]:
    """Checks the entries in `jobs` processes, one way, with tensors of one kind."""
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1")
    environment["OPENREG_OPERATORS"] = "staged" if staged else "auto"
    command = [sys.executable, str(HERE / "worker.py"), str(samples), kind]
    results: list[Result] = []
    for entry, answer in ask_all(entries, [Worker(command, environment) for _ in range(jobs)], timeout):
        if isinstance(answer, LostError):
            results.append({"entry": entry, "checks": {"process": str(answer)}, "seconds": 0.0})
        else:
            results.append(json.loads(answer))
        if len(results) % 500 == 0:
            print(f"  {len(results)} checked", file=sys.stderr, flush=True)
    return sorted(results, key=lambda result: result["entry"])


def failures(result: Result) -> dict[str, str]:
    """The checks of an entry that failed, and how."""
    return {check: what for check, what in result["checks"].items() if what is not None}


def report(results: list[Result], way: str, kind: str = "plain") -> bool:
    """Prints the table of one way and everything that did not pass; whether all is as known.py says."""
    from known import KNOWN

    totals: Counter[str] = Counter()
    passed: Counter[str] = Counter()
    excused: dict[str, list[str]] = defaultdict(list)
    unexpected: list[str] = []
    used, seen = set(), set()
    for result in results:
        entry = result["entry"]
        database, _, dtype = entry.split("/")
        failed = failures(result)
        for row in (f"{database:10} {dtype}", f"{database:10} all", "all"):
            totals[row] += 1
            passed[row] += not failed
        for check in result["checks"]:
            seen |= {known for known in KNOWN if known.covers(entry, check, way)}
        for check, what in failed.items():
            known = next((known for known in KNOWN if known.explains(entry, check, way, what)), None)
            if known is None:
                unexpected.append(f"{entry} [{check}]: {what}")
            else:
                used.add(known)
                excused[known.reason].append(f"{entry} [{check}]")
    print(f"\n{way}: passed / run")
    for row in sorted(totals):
        print(f"  {row:32} {passed[row]:5} / {totals[row]}")
    for reason, entries in excused.items():
        print(f"\nknown: {reason}")
        print("".join(f"  {entry}\n" for entry in entries), end="")
    passing = [known for known in KNOWN if known in seen - used and kind == "plain"]
    for title, lines in (
        ("unexpected failures", unexpected),
        ("known failures that pass", [f"{known.entries} [{known.check}]" for known in passing]),
    ):
        if lines:
            print(f"\n{title}: {len(lines)}")
            print("".join(f"  {line}\n" for line in lines), end="")
    sys.stdout.flush()
    return not unexpected and not passing


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--entries", action="append", metavar="PATTERN", help="only entries database/operator/dtype")
    parser.add_argument("--dtypes", nargs="+", metavar="DTYPE", help="only these dtypes")
    parser.add_argument("--databases", nargs="+", metavar="NAME", help="only these databases")
    parser.add_argument("--ways", nargs="+", choices=["aliased", "staged"], default=["aliased", "staged"])
    parser.add_argument(
        "--kind",
        choices=["plain", "zero", "conjugated", "negated", "expanded", "empty", "fake", "compiled", "captured"],
        default="plain",
        help="what the tensors are; fake: fake tensors against real ones; compiled: what Inductor makes for the device "
        "against what it makes for the CPU; captured: replays of a graph against eager calls on the device",
    )
    parser.add_argument("--samples", type=int, default=8, help="samples an entry (default 8)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--timeout", type=float, default=300, help="seconds an entry may take")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every N-th entry")
    parser.add_argument("--json", type=Path, help="write all results here")
    return parser.parse_args(arguments)


def main() -> int:
    """Status 0 if everything is as known.py says."""
    options = parse()
    sys.path.insert(0, str(HERE))
    from entries import WITHOUT_CPU, all_entries

    def wanted(entry: str) -> bool:
        database, _, dtype = entry.split("/")
        return (
            (options.kind in ("compiled", "captured") or database not in WITHOUT_CPU)
            and (not options.entries or any(fnmatchcase(entry, pattern) for pattern in options.entries))
            and (not options.dtypes or dtype in options.dtypes)
            and (not options.databases or database in options.databases)
        )

    entries = [entry for entry in all_entries() if wanted(entry)][:: options.every]
    if not entries:
        print("no entry matches", file=sys.stderr)
        return 2
    good = True
    written: dict[str, list[Result]] = {}
    for way in options.ways:
        written[way] = run_entries(
            entries, options.jobs, options.samples, options.timeout, way == "staged", options.kind
        )
        good = report(written[way], way, options.kind) and good
        if options.json is not None:
            options.json.write_text(json.dumps(written, indent=1) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
