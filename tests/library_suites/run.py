# SPDX-License-Identifier: BSD-3-Clause
"""Other projects' own tests on simulated devices, each against the same test on the CPU.

Of the libraries nothing is kept here: suites.py has the repository, the commit and the selection, and what is known to fail with
one reason each. A failure that isn't known is an error, and so is a known one that passes.

    python tests/library_suites/run.py                      # all of them
    python tests/library_suites/run.py accelerate ignite    # these
    python tests/library_suites/run.py --sources DIR ...    # clones of DIR/NAME instead of the network's
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from suites import SUITES, Suite

HERE = Path(__file__).resolve().parent
WAYS = ("openreg", "cpu")
Results = dict[str, tuple[str, str]]  # of each test's id, in order: pass, fail, skip; and why


def run(*command: str, cwd: Path | None = None) -> None:
    subprocess.run(command, cwd=cwd, check=True)


def prepare(suite: Suite, folder: Path, sources: Path | None) -> Path:
    """Makes a work tree of the commit, and a folder of the packages that the tests need and this environment lacks.

    Args:
        suite: What is to be run.
        folder: Where both are put. What is there already stays.
        sources: A folder of clones by the suites' names, or None: the repository's address.

    Returns:
        The folder of the work tree.
    """
    source, site = folder / "source", folder / "site"
    if not source.exists():
        run(
            "git",
            "clone",
            "--quiet",
            "--no-checkout",
            str(sources / (suite.clone or suite.name)) if sources else suite.repository,
            str(source),
        )
        run("git", "checkout", "--quiet", suite.commit, cwd=source)
    if suite.packages and not site.exists():
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps")
        run(*pip, "--no-build-isolation", "--target", str(site), *suite.packages, cwd=source)
    return source


def environment(suite: Suite, way: str, folder: Path) -> dict[str, str]:
    """The variables of a way: those of the suite, and nothing of the user's for openreg."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OPENREG_", "SUITE_"))}
    places = [HERE, folder / "site", *(folder / "source" / place for place in suite.imported)]
    places += [HERE.parent / "python" / "clients"]  # torchvision_operators.py
    places += [Path(place) for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    found = kept | {
        "OMP_NUM_THREADS": "1",
        "OPENREG_PREFERENCES": os.devnull,
        "PYTHONPATH": os.pathsep.join(map(str, places)),
        "PYTHONWARNINGS": "ignore",
        "SUITE_EVERY": str(suite.every),
        "SUITE_FIRST": str(int(suite.only_first_parameters)),
        "SUITE_PRELOADED": " ".join(suite.preloaded),
        "SUITE_RANKS": str(suite.most_ranks),
        "SUITE_SKIPPED": suite.skipped_on_cpu,
    }
    if way == "cpu":
        return found | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    # Of a GPU's memory no more than the host has: there are tests that fill a device.
    simulated = {"OPENREG_SIM_DEVICES": str(suite.devices), "OPENREG_SIM_MEMORY": "4G"}
    return found | simulated | {"OPENREG_AS_CUDA": suite.gpu} | suite.variables


def pytest(suite: Suite, way: str, folder: Path, report: Path, *arguments: str, ids: list[str] | None = None) -> None:
    """Runs pytest until it ends, or until no line has come into the report for the suite's limit; then its processes end."""
    variables = environment(suite, way, folder) | {"SUITE_REPORT": str(report)}
    if ids is not None:
        (folder / "ids").write_text("\n".join(ids))
        variables["SUITE_IDS"] = str(folder / "ids")
    command = [
        sys.executable,
        *["-m", "pytest", "-q", "-p", "sample", "-p", "no:cacheprovider", "-o", "addopts="],
        *["-W", "ignore::FutureWarning"],  # PyTorch's, of what is newer than the library: some make errors of warnings
        *arguments,
    ]
    files = dict.fromkeys(name.partition("::")[0] for name in ids) if ids is not None else suite.tests
    with (folder / f"{way}.log").open("a") as log:
        process = subprocess.Popen(
            [*command, *files],
            cwd=folder / "source" / suite.folder,
            env=variables,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        size, since = -1, time.monotonic()
        while process.poll() is None and time.monotonic() - since < suite.limit:
            time.sleep(0.2)
            now = report.stat().st_size if report.exists() else 0
            if now != size:
                size, since = now, time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def lines_of(report: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []


def run_way(suite: Suite, way: str, folder: Path, ids: list[str]) -> Results:
    """Runs tests, a file of them at a time. A test that crashes or hangs fails, and those behind it get a new process."""
    results: Results = {}
    by_process: dict[str, list[str]] = {}
    for name in ids:
        by_process.setdefault(name if suite.apart else name.partition("::")[0], []).append(name)
    for names in by_process.values():
        left = names
        while left:
            report = folder / f"{way}.jsonl"
            report.unlink(missing_ok=True)
            pytest(suite, way, folder, report, ids=left)
            begun = None
            for line in lines_of(report):
                begun = line.get("begin")
                if "outcome" in line:
                    results[line["id"]] = (line["outcome"], line["text"])
            if begun is not None:
                results[begun] = ("fail", f"the process ended, or nothing came for {suite.limit} s")
            after = [name for name in left if name not in results]
            if len(after) == len(left):  # not collected here
                results |= dict.fromkeys(after, ("absent", "not collected"))
                break
            left = after
    return {name: results[name] for name in ids}


def judge(suite: Suite, results: Results, on_cpu: Results) -> list[str]:
    """What is wrong with results on openreg: failures that nobody knows and the CPU hasn't, and known ones that pass."""
    errors, used = [] if results else [f"{suite.name}: no tests were collected"], set()
    for name, (outcome, text) in results.items():
        if outcome in ("fail", "absent"):
            pattern = next((each for each in suite.known if re.search(each, name)), None)
            used.add(pattern)
            if pattern is None and on_cpu.get(name, ("", ""))[0] != "fail":
                errors.append(f"{suite.name}: {name}: {text.splitlines()[-1] if text else ''}")
    errors += [f"{suite.name}: known to fail, and doesn't: {each}" for each in suite.known if each not in used]
    return errors


def count(results: Results) -> dict[str, int]:
    outcomes = [outcome for outcome, _ in results.values()]
    return {each: outcomes.count(each) for each in ("pass", "fail", "skip", "absent")}


def run_suite(suite: Suite, folder: Path, sources: Path | None, ways: list[str]) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    prepare(suite, folder, sources)
    report = folder / "collected.jsonl"
    for old in (report, *(folder / f"{way}.log" for way in ways)):
        old.unlink(missing_ok=True)
    pytest(suite, "cpu" if suite.skipped_on_cpu else "openreg", folder, report, "--collect-only")
    ids = [line["id"] for line in lines_of(report)]
    ids = [name for name in ids if not any(re.search(each, name) for each in suite.not_run)]
    results, seconds = {}, {}
    for way in ways:
        begin = time.monotonic()
        results[way] = run_way(suite, way, folder, ids)
        seconds[way] = round(time.monotonic() - begin)
    only_on_cpu = [
        name
        for name, (outcome, _) in results.get("cpu", {}).items()
        if outcome == "pass" and results["openreg"][name][0] == "fail"
    ]
    return {
        "commit": suite.commit,
        "counts": {way: count(found) for way, found in results.items()},
        "seconds": seconds,
        "passes on the CPU alone": only_on_cpu,
        "errors": judge(suite, results["openreg"], results.get("cpu", {})),
        "results": results,
    }


def write_page(page: Path, report: dict[str, Any]) -> None:
    """Writes the documentation's page of results, from those of all suites that the report has."""
    import torch

    rows, known, skipped = [], [], []
    for name, suite in SUITES.items():
        found = report.get(name, {"counts": {}, "seconds": {}})
        cells = []
        for way in ("cpu", "openreg"):
            counts = found["counts"].get(way)
            cells.append("not run" if counts is None else f"{counts['pass']} / {counts['fail']} / {counts['skip']}")
        link = f"[{name}]({suite.repository}/tree/{suite.commit})"
        minutes = found["seconds"].get("openreg", 0) / 60
        rows.append(f"| {link} | {suite.selection} | {' | '.join(cells)} | {minutes:.0f} |")
        if "openreg" not in found["counts"]:
            continue
        known += [f"- {name}: `{pattern}`: {reason}" for pattern, reason in suite.known.items()]
        known += [f"- {name}: `{pattern}` is not run: {reason}" for pattern, reason in suite.not_run.items()]
        reasons = Counter(text for outcome, text in found["results"]["openreg"].values() if outcome == "skip")
        skipped += [f"- {name}: {many}: {text.removeprefix('Skipped: ')}" for text, many in reasons.most_common()]
    lines = [
        "# Other libraries' tests",
        "",
        "<!-- written by tests/library_suites/run.py -->",
        "The tests of libraries that train on CUDA, at these commits and unchanged, each on the CPU and on simulated devices with",
        f"`OPENREG_AS_CUDA`; torch {torch.__version__.partition('+')[0]}, two cores. Passed / failed / skipped:",
        "",
        "| library | tests | CPU | openreg | minutes |",
        "|---|---|---|---|---|",
        *rows,
        "",
        "What fails on openreg and not on the CPU, and why:",
        "",
        *known,
        "",
        "How many are skipped on openreg, and what the libraries say of it:",
        "",
        *skipped,
        "",
        "`make library-suites` runs them again, each on the CPU too: it clones the repositories, and needs the network.",
    ]
    page.write_text("\n".join(lines) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", choices=[*SUITES, []], metavar="NAME", help=f"of {', '.join(SUITES)}")
    parser.add_argument("--sources", type=Path, help="a folder of clones by these names, in place of the network's")
    parser.add_argument("--folder", type=Path, default=HERE.parents[1] / "build-suites", help="for sources and reports")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--json", type=Path, default=Path("library-suites.json"))
    parser.add_argument("--page", type=Path, help="write the documentation's page here")
    options = parser.parse_args()
    report = json.loads(options.json.read_text()) if options.json.exists() and options.names else {}
    errors: list[str] = []
    for name in options.names or SUITES:
        found = run_suite(SUITES[name], options.folder / name, options.sources, options.ways)
        report[name] = found
        options.json.write_text(json.dumps(report, indent=1))
        errors += found["errors"]
        for way in options.ways:
            counts = ", ".join(f"{number} {outcome}" for outcome, number in found["counts"][way].items() if number)
            print(f"{name} on {way}: {counts} in {found['seconds'][way]} s", flush=True)
        print(f"{name}: {len(found['passes on the CPU alone'])} fail that the CPU passes", flush=True)
    if options.page:
        write_page(options.page, report)
    print(*errors, sep="\n")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
