# SPDX-License-Identifier: BSD-3-Clause
"""``python -m torch_openreg check``: levels 1 and 2 by the program openreg-check, level 3 by processes of Python."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from torch_openreg import config
from torch_openreg_lab.check.registry import CHECKS, Check

PROGRAM = Path(config.__file__).resolve().parent / "bin" / "openreg-check"
SECONDS = 20.0  # for checks that run for a time
TIMEOUT = 300.0
HEART = ("operators.", "training.")
"""Where one of these is skipped, PyTorch on the driver was not checked, whatever else was."""
UNREACHED = 77
"""The status then, as openreg-check's without a device."""

NOT_CHECKED = (
    "operators that no check names, and types beyond float32, int64, bool and float16",
    "torch.compile, torch.distributed, sharing between processes",
)


@dataclasses.dataclass
class Options:
    """The command line."""

    driver: str = ""
    level: int = 2
    only: tuple[str, ...] = ()
    seed: int = 1
    seconds: float | None = None
    timeout: float | None = None
    settings: tuple[str, ...] = ()  # KEY=VALUE for open()
    known: tuple[str, ...] = ()  # NAME=REASON: a check that fails
    json: str | None = None
    junit: str | None = None
    explain: str | None = None
    is_list: bool = False
    is_verbose: bool = False


def all_checks() -> dict[str, Check]:
    """The checks of level 3 by name, in the order in which they run."""
    from torch_openreg_lab.check import operators, random_programs, streams, training

    assert all((operators, random_programs, streams, training))  # each has registered its checks
    return CHECKS


def parse(words: list[str]) -> Options | None:
    """The options, or None for a command line that openreg-check alone is to judge."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("driver", nargs="?", default="")
    parser.add_argument("--list", dest="is_list", action="store_true")
    parser.add_argument("--verbose", dest="is_verbose", action="store_true")
    parser.add_argument("--level", type=int, default=2)
    parser.add_argument("--only", action="extend", type=lambda names: filter(None, names.split(",")), default=[])
    parser.add_argument("--seed", type=lambda number: int(number, 0), default=1)
    parser.add_argument("--time", dest="seconds", type=float)
    parser.add_argument("--timeout", type=float)
    parser.add_argument("--option", dest="settings", action="append", default=[])
    parser.add_argument("--known", action="append", default=[])
    for name in ("--json", "--junit", "--explain"):
        parser.add_argument(name)
    try:
        given, rest = parser.parse_known_args(words)
    except argparse.ArgumentError:
        return None
    if rest or not all(known.partition("=")[2] for known in given.known):
        return None
    found: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in vars(given).items()}
    return Options(**found)


# ---------------------------------------------------------------------------------------------------------- one check


def _environment(options: Options, driver: str) -> dict[str, str]:
    """Variables of a check's process: those of this one, and the driver."""
    own = f"OPENREG_{driver.upper()}_"
    kept = dict(os.environ)
    kept |= {"OPENREG_DRIVERS": driver, "OPENREG_PREFERENCES": os.devnull}
    if "/" in options.driver:
        kept["OPENREG_DRIVER_LIBRARIES"] = f"{driver}:{Path(options.driver).resolve()}"
    for setting in options.settings:
        key, _, value = setting.partition("=")
        kept[own + key.upper()] = value
    return kept


def run_check(check: Check, options: Options, environment: dict[str, str]) -> dict[str, Any]:
    """The outcome of a check in a process of its own: a crash and a hang are failures."""
    seconds = SECONDS if options.seconds is None else options.seconds
    limit = options.timeout or TIMEOUT + 10 * seconds
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        file, errors = Path(folder, "outcome"), Path(folder, "errors")
        command = [sys.executable, "-m", "torch_openreg_lab.check", check.name]
        command += [str(options.seed), str(seconds), str(file)]
        with errors.open("w") as told:
            try:
                status = subprocess.run(
                    command, env=environment, stdout=told, stderr=told, timeout=limit, check=False
                ).returncode
            except subprocess.TimeoutExpired:
                status = None
        if file.exists():
            outcome = json.loads(file.read_text())
        elif status is None:
            outcome = {"outcome": "failed", "message": f"it did not end within {limit:.0f} seconds"}
        else:
            last = (errors.read_text().strip().splitlines() or [""])[-1]
            outcome = {"outcome": "failed", "message": f"the process ended with status {status}: {last}"}
    took = round(time.monotonic() - begin, 3)
    return {"name": check.name, "level": 3, **outcome, "seconds": took, "rule": check.rule}


def _is_of_level3(known: str) -> bool:
    return known.partition("=")[0] in all_checks()


def apply_known(result: dict[str, Any], known: tuple[str, ...]) -> None:
    """A waiver turns a failure into what is known, and a success into a failure: it has to go then."""
    for name, _, reason in (each.partition("=") for each in known):
        if name != result["name"]:
            continue
        if result["outcome"] == "failed":
            result |= {"outcome": "known", "known": reason}
        elif result["outcome"] == "passed":
            text = f"it passes, and --known says that it fails ({reason}): take that away"
            result |= {"outcome": "failed", "message": text}


def _print_result(result: dict[str, Any], options: Options) -> None:
    word = {"passed": "pass", "failed": "FAIL", "skipped": "skip", "known": "know"}[result["outcome"]]
    if options.is_verbose or result["outcome"] != "passed":
        print(f"{word}  {result['name']:<26} {result['seconds']:6.2f} s  {result['message']}".rstrip())
    if result["outcome"] == "failed":
        print(f"      rule  {result['rule']}\n      hint  {all_checks()[result['name']].hint}")
    sys.stdout.flush()


# ------------------------------------------------------------------------------------------------------ the whole


def _lower_levels(options: Options, folder: Path) -> tuple[int, dict[str, Any]]:
    """Runs openreg-check, if any of its checks is selected; returns its status and report."""
    report, only = folder / "report.json", [name for name in options.only if not _names_of(name)]
    command = [str(PROGRAM), options.driver, "--seed", str(options.seed), "--json", str(report)]
    command += ["--junit", str(folder / "report.xml")]
    command += [word for setting in options.settings for word in ("--option", setting)]
    command += [word for each in options.known if not _is_of_level3(each) for word in ("--known", each)]
    if options.is_verbose:
        command.append("--verbose")
    if options.only and not only:  # who it is, and no more
        command += ["--level", "1", "--only", "table.name"]
    else:
        command += ["--level", "2"] + (["--only", ",".join(only)] if only else [])
    is_silent = bool(options.only) and not only
    done = subprocess.run(command, stdout=subprocess.PIPE if is_silent else None, text=True, check=False)
    found = json.loads(report.read_text()) if report.exists() else {}
    if is_silent:
        if not found:
            print(done.stdout, end="")
        found["checks"] = []
    return done.returncode, found


def _names_of(pattern: str) -> list[str]:
    return [name for name in all_checks() if name.startswith(pattern)]


def _write_junit(path: str, report: dict[str, Any]) -> None:
    checks = report["checks"]
    count = Counter(check["outcome"] for check in checks)
    attributes = {"name": f"openreg-check {report['driver']}", "tests": str(len(checks))}
    attributes |= {"failures": str(count["failed"]), "skipped": str(count["skipped"])}
    suite = ElementTree.Element("testsuite", attributes | {"time": f"{report['seconds']:.3f}"})
    for check in checks:
        place, took = f"openreg-check.level{check['level']}", f"{check['seconds']:.3f}"
        case = ElementTree.SubElement(suite, "testcase", classname=place, name=check["name"], time=took)
        if check["outcome"] not in ("passed", "known"):
            kind = "failure" if check["outcome"] == "failed" else "skipped"
            ElementTree.SubElement(case, kind, message=check["message"]).text = check["rule"]
    ElementTree.ElementTree(suite).write(path, encoding="unicode", xml_declaration=True)


def _skipped(checks: list[dict[str, Any]]) -> str:
    """Which checks without which level 3 is none were skipped, and why; "" if none."""
    found = {c["name"]: c["message"] for c in checks if c["outcome"] == "skipped" and c["name"].startswith(HEART)}
    return f"{', '.join(found)} skipped: {'; '.join(dict.fromkeys(found.values()))}" if found else ""


def _finish(options: Options, report: dict[str, Any], status: int) -> int:
    checks = report["checks"]
    failures = [check["name"] for check in checks if check["outcome"] == "failed"]
    counts = Counter(check["outcome"] for check in checks if check["level"] == 3)
    known = [check for check in checks if check["outcome"] == "known"]
    unreached = _skipped(checks)
    report["conforms"] = not failures and not unreached and not options.only and status == 0
    tried = any(check["outcome"] != "skipped" for check in checks)
    words = {"fails": failures, "nothing checked": not tried, "level not reached": unreached}
    words["no failure"] = not report["conforms"]
    report["verdict"] = next((word for word, holds in words.items() if holds), "conforms")
    untried: dict[str, list[str]] = {}  # by the reason
    for check in checks:
        if check["level"] == 3 and check["outcome"] in ("passed", "skipped") and check["message"]:
            untried.setdefault(check["message"], []).append(check["name"])
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=1) + "\n")
    if options.junit:
        _write_junit(options.junit, report)
    lines = [f"{', '.join(names)}: {reason}" for reason, names in untried.items()]
    print("\nnot checked\n" + "".join(f"  {line}\n" for line in (*lines, *NOT_CHECKED)))
    more = f", {counts['known']} known" if counts["known"] else ""
    print(f"level 3: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped{more}")
    if failures:
        print(f"does not conform to driver.h {report['abi']}: {', '.join(failures)}")
        if unreached:
            print(f"  nor was level 3 reached: {unreached}")
    elif not counts["passed"] and not counts["known"]:
        print("nothing was checked")
        status = status or UNREACHED
    elif unreached:
        print(f"level 3 was not reached: {unreached}")
        status = status or UNREACHED
    elif options.only:
        print("no failure in the requested checks")
    else:
        end = ", but for what is known:" if known else ""
        print(f"conforms to driver.h {report['abi']}, level 3, seed {options.seed}{end}")
    for check in known:
        print(f"  known: {check['name']} ({check['known']})")
    return 1 if failures else status


def run(options: Options) -> int:
    """All levels up to 3; the exit status, as openreg-check's."""
    begin = time.monotonic()
    for name in sorted(os.environ):
        if name.startswith("OPENREG_OPERATORS"):
            print(f"openreg-check: level 3 doesn't heed the variable {name}: unset it", file=sys.stderr)
            return 2
    with tempfile.TemporaryDirectory() as folder:
        status, report = _lower_levels(options, Path(folder))
    has_ended = status not in (0, 1) or report.get("verdict", "no driver") in ("no driver", "unfinished")
    if options.json and "verdict" in report:  # else there is no such driver
        verdict = report["verdict"] if has_ended else "unfinished"  # a run that is ended by force leaves this
        Path(options.json).write_text(json.dumps(report | {"verdict": verdict, "conforms": False}, indent=1) + "\n")
    if has_ended:
        return status or 1
    wanted = [name for name in all_checks() if not options.only or any(name.startswith(o) for o in options.only)]
    environment = _environment(options, report["driver"])
    print(f'level 3: PyTorch on "{report["driver"]}", seed {options.seed}', flush=True)
    for name in wanted:
        result = run_check(all_checks()[name], options, environment)
        apply_known(result, options.known)
        _print_result(result, options)
        report["checks"].append(result)
    report |= {"level": 3, "seconds": round(time.monotonic() - begin, 3)}
    return _finish(options, report, status)


def explain(pattern: str) -> bool:
    """Prints rule and hint of the checks whose names begin so, or of all; whether there are any."""
    names = list(all_checks()) if pattern == "all" else _names_of(pattern)
    for name in names:
        print(f"{name}  (level 3)")
        for label, text in (("rule", all_checks()[name].rule), ("hint", all_checks()[name].hint)):
            print(textwrap.fill(text, 98, initial_indent=f"  {label}   ", subsequent_indent=" " * 9))
    return bool(names)


def main(words: list[str]) -> int:
    """Runs the command; `words` follow ``check``."""
    options = parse(words)
    if options is not None and options.explain is not None:
        is_known = options.explain != "all" and bool(_names_of(options.explain))
        status = 0 if is_known else subprocess.run([str(PROGRAM), *words], check=False).returncode
        if is_known or (options.explain == "all" and status == 0):
            sys.stdout.flush()
            explain(options.explain)
        return status
    if options is not None and options.is_list:
        level = "2" if options.level == 3 else str(options.level)
        status = subprocess.run([str(PROGRAM), "--list", "--level", level], check=False).returncode
        if status == 0 and options.level == 3:
            print("".join(f"3  {name}\n" for name in all_checks()), end="")
        return status
    if options is None or options.level != 3 or not options.driver:
        return subprocess.run([str(PROGRAM), *words], check=False).returncode
    return run(options)
