# SPDX-License-Identifier: BSD-3-Clause
"""Plants single defects in a copy of the sources and shows which of them no test finds.

A mutant is a copy with one change: a comparison turned, a condition negated, a bound moved by one, an error ignored, a
wait dropped, a lock dropped, a statement dropped. The copy is built and its tests run until one fails; then the mutant
is killed. A mutant that passes every test has survived: a test is missing, or the change means nothing (say so).

    make mutate                                             # a sample of the runtime, and its score
    python tools/mutate.py --sample 200 --seed 3 runtime/src/memory
    python tools/mutate.py --kinds lock --sanitize thread   # whether the thread sanitizer sees a dropped lock
    python tools/mutate.py --only runtime/src/memory/copy.c:142:compare
    python tools/mutate.py --check build/runtime/openreg-check --sample 0 tests/drivers/handles/driver.c

With --check a driver is mutated, and openreg-check must find what was planted.

Only what is committed is mutated. Nothing is written outside the build folder. The status is 0 whatever the score is;
1 where the tests fail without a mutant.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

USUAL_PATHS = ("runtime/src", "runtime/drivers")


@dataclass(frozen=True)
class Mutant:
    """One planted defect."""

    path: str  # relative to the root of the checkout
    line: int  # its first, from 1
    kind: str
    before: str  # the text that is replaced
    after: str
    start: int  # offset of `before` in the file, in characters

    @property
    def name(self) -> str:
        """Place and kind, as ``--only`` takes it."""
        return f"{self.path}:{self.line}:{self.kind}"

    def apply(self, text: str) -> str:
        """The file's text with the defect."""
        return text[: self.start] + self.after + text[self.start + len(self.before) :]


@dataclass
class Result:
    """What became of a mutant."""

    mutant: Mutant
    outcome: str  # "killed", "survived", "timeout" (counted as killed) or "not compiled" (counted as none)
    killer: str  # the first failing test
    seconds: float  # wall-clock time


COMMENT_OR_TEXT = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL)
PREPROCESSOR = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)

TURNED = {"==": "!=", "!=": "==", "<": "<=", "<=": "<", ">": ">=", ">=": ">", "&&": "||", "||": "&&"}
IF = re.compile(r"\bif \(")
LOCK = re.compile(
    r"^[ \t]+(?:\(void\))?(\w+_lock_acquire\w*|\w*_candidates_lock|pthread_mutex_lock)\([^;{}]*\);", re.MULTILINE
)
WAIT = re.compile(
    r"^[ \t]+(?:\(void\))?(\w*(?:_wait|_sync|_synchronize|_join|_drain|_settle)\w*)\([^;{}]*\);", re.MULTILINE
)
# Defects whose place is what a pattern finds: the kind, the pattern, and what stands there instead.
PATTERNS: tuple[tuple[str, re.Pattern[str], Callable[[str], str]], ...] = (
    ("compare", re.compile(r"(?<= )(==|!=|<=|>=|<|>)(?= )"), TURNED.__getitem__),
    ("logic", re.compile(r"(?<= )(&&|\|\|)(?= )"), TURNED.__getitem__),
    ("bound", re.compile(r" [+-] 1\b(?!\.)"), lambda _: ""),
    (
        "error",
        re.compile(
            r"\breturn (?!OPENREG_OK\b|status\b|NULL\b|false\b|true\b)(OPENREG_E_\w+|openreg_error_set\([^;]*\));"
        ),
        lambda _: "return OPENREG_OK;",
    ),
    ("answer", re.compile(r"\breturn (true|false);"), lambda old: f"return {str('true' not in old).lower()};"),
    ("error", re.compile(r"\bOPENREG_RETURN_NOT_OK\((?=[^;]*\);)"), lambda _: "(void)("),
    ("wait", WAIT, lambda _: ""),
)
STATEMENT = re.compile(
    r"^[ \t]+((?:\(void\))?\w+\([^;{}]*\)|[\w>.\[\]*-]+ (?:[-+|&]?=) [^;{}]+|\+\+[\w>.-]+|[\w>.-]+(?:\+\+|--));$",
    re.MULTILINE,
)
DECLARATION = re.compile(r"^(?:(?:return|goto|break|continue|typedef|extern|static|const|struct|else)\b|\w+ \w+ = )")

# Statements whose absence no test can observe: what a declared variable needs, logging, and freeing.
MEANS_NOTHING = re.compile(
    r"\b(?:openreg_log\w*|openreg_warn\w*|assert|_Static_assert|free|va_end|va_start|OPENREG_UNUSED)\b"
)


def blanked(text: str) -> str:
    """The text with comments, texts and preprocessor lines as blanks; offsets stay."""
    for pattern in (COMMENT_OR_TEXT, PREPROCESSOR):
        text = pattern.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)
    return text


def closing(text: str, opening: int) -> int:
    """Offset of the bracket that closes the one at `opening`; -1 where there is none."""
    depth = 0
    for index in range(opening, len(text)):
        if text[index] == "(":
            depth += 1
        elif text[index] == ")":
            depth -= 1
            if depth == 0:
                return index
    return -1


def c_mutants(path: str, source: str) -> Iterator[Mutant]:
    """Every defect that can be planted in one C file."""
    text = blanked(source)

    def at(start: int, end: int, kind: str, after: str) -> Mutant:
        line = source.count("\n", 0, start) + 1
        return Mutant(path, line, kind, source[start:end], after, start)

    for kind, pattern, after in PATTERNS:
        for match in pattern.finditer(text):
            yield at(*match.span(), kind, after(match.group()))
    for match in IF.finditer(text):
        end = closing(text, match.end() - 1)
        if end > 0:
            yield at(match.end() - 1, end + 1, "negate", f"(!{source[match.end() - 1 : end + 1]})")
    for match in LOCK.finditer(text):
        # The lock, with its release up to the end of the function: bodies end with a bracket in the first column.
        end = text.find("\n}", match.end())
        end = len(text) if end < 0 else end
        name = match.group(1)
        family = re.sub(r"_acquire\w*$", "", name)
        release = f"{family}_release" if family != name else name.replace("_lock", "_unlock")
        body = source[match.start() : end]
        yield at(
            match.start(), end, "lock", re.sub(rf"\b(?:{re.escape(name)}|{re.escape(release)})\(", "(void)(", body)
        )
    for match in STATEMENT.finditer(text):
        words = match.group(1)
        if not (
            DECLARATION.match(words)
            or MEANS_NOTHING.search(words)
            or re.search(r"lock\w*\(", words)
            or LOCK.match(match.group())
            or WAIT.match(match.group())
        ):
            yield at(match.start(1), match.end(), "drop", ";")


# A mutant whose loop doesn't end must not take the machine's memory. Not under sanitizers, whose shadows are larger.
HEAP_LIMIT = 8 << 30


def limit_heap() -> None:
    """Bounds the private memory of a child process and its children."""
    resource.setrlimit(resource.RLIMIT_DATA, (HEAP_LIMIT, HEAP_LIMIT))


def copy_of_sources(folder: Path) -> Path:
    """Unpacks what is committed into a folder below this one, in which mutants are planted, and returns that."""
    source = folder / "source"
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(source)], input=archive, check=True)
    return source


class Runtime:
    """Builds and tests a copy of the C runtime."""

    def __init__(self, folder: Path, jobs: int, sanitize: str, exclude: str) -> None:
        self.source = copy_of_sources(folder)
        self.exclude = exclude
        self.build = folder / ("build-" + (sanitize or "plain"))
        self.jobs = jobs
        self.sanitize = sanitize
        # Shared libraries are replaced beneath the test programs, which need not be linked again.
        configure = ["cmake", "-S", str(self.source), "-B", str(self.build), "-G", "Ninja"]
        configure += ["-DOPENREG_BUILD_TORCH=OFF", "-DCMAKE_LINK_DEPENDS_NO_SHARED=ON"]
        configure += [f"-DOPENREG_SANITIZE={sanitize}"] if sanitize else []
        subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)

    def compile(self) -> bool:
        """Builds the copy; False where the compiler refuses it."""
        command = ["cmake", "--build", str(self.build), "--parallel", str(self.jobs)]
        return subprocess.run(command, capture_output=True, timeout=3600, check=False).returncode == 0

    def first_failure(self, limit: float) -> str:
        """Runs the tests, of which each may take `limit` seconds, until one fails: its name, or ""."""
        command = ["ctest", "--test-dir", str(self.build), "-j", str(self.jobs), "--stop-on-failure"]
        # A test that passes at its second run was disturbed by other work on the machine: it found nothing.
        command += ["--timeout", str(limit), "--repeat", "until-pass:2"]
        command += ["--exclude-regex", self.exclude] if self.exclude else []
        limits = None if self.sanitize else limit_heap
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, preexec_fn=limits)
        if done.returncode == 0:
            return ""
        failed = re.search(
            r"^\s*\d+ - (\S+) \((\w+)", done.stdout[done.stdout.find("The following tests FAILED") :], re.MULTILINE
        )
        return f"{failed.group(1)} ({failed.group(2)})" if failed else "ctest failed"


class Driver:
    """Builds a driver from the C files of some folders, and checks it with openreg-check."""

    def __init__(self, folder: Path, check: Path, paths: Sequence[str], flags: str) -> None:
        self.source = copy_of_sources(folder)
        self.library = folder / "libdriver.so"
        folders = {path if (ROOT / path).is_dir() else str(Path(path).parent) for path in paths}
        self.sources = [str(file) for each in folders for file in sorted((self.source / each).glob("*.c"))]
        include = f"-I{self.source / 'runtime/include'}"
        self.command = ["cc", "-std=gnu11", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", include]
        self.flags = flags.split()
        self.check = [str(check.resolve()), str(self.library), "--level", "2", "--time", "0.1"]

    def compile(self) -> bool:
        """Builds the copy; False where the compiler refuses it."""
        command = [*self.command, *self.sources, *self.flags, "-pthread", "-o", str(self.library)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def first_failure(self, limit: float) -> str:
        """Makes the checks, of which each may take `limit` seconds, until one fails: its name, or ""."""
        command = [*self.check, "--timeout", str(round(limit))]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
        with subprocess.Popen(command, start_new_session=True, **pipes) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if failed := re.match(r"FAIL\s+(\S+)", line):
                    os.killpg(process.pid, signal.SIGKILL)
                    return failed.group(1)
        return "" if process.returncode == 0 else f"status {process.returncode}"


def judge(program: Runtime | Driver, mutant: Mutant, limit: float) -> Result:
    """Plants a mutant, builds, tests, and takes it out again."""
    began = time.monotonic()
    file = program.source / mutant.path
    text = file.read_text()
    file.write_text(mutant.apply(text))
    try:
        killer = program.first_failure(limit) if program.compile() else None
    finally:
        file.write_text(text)
    outcome = "not compiled" if killer is None else "survived" if not killer else "killed"
    if killer and "(Timeout" in killer:
        outcome = "timeout"
    return Result(mutant, outcome, killer or "", time.monotonic() - began)


def all_mutants(paths: Sequence[str], suffixes: tuple[str, ...]) -> list[Mutant]:
    """Every mutant of the files with these suffixes that git knows under `paths`."""
    archive = subprocess.run(["git", "archive", "HEAD", *paths], cwd=ROOT, check=True, capture_output=True).stdout
    mutants: list[Mutant] = []
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for member in files:
            content = files.extractfile(member) if member.name.endswith(suffixes) else None
            if content is not None:
                mutants += c_mutants(member.name, content.read().decode())
    return mutants


def score(results: Sequence[Result]) -> str:
    """One line for each kind of defect, and the whole."""
    lines = []
    found = Counter(result.mutant.kind for result in results if result.outcome in ("killed", "timeout"))
    counted = Counter(result.mutant.kind for result in results if result.outcome != "not compiled")
    for kind in sorted(counted):
        lines.append(f"  {kind:10s} {found[kind]:4d} of {counted[kind]:4d} found")
    total, all_found = sum(counted.values()), sum(found.values())
    lines.append(
        f"  {'all':10s} {all_found:4d} of {total:4d} found" + (f" ({100 * all_found / total:.1f} %)" if total else "")
    )
    return "\n".join(lines)


def main() -> int:
    """Runs the program; its status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("paths", nargs="*", help="files or folders to mutate (default: the runtime and its drivers)")
    parser.add_argument("--sample", type=int, default=60, help="how many mutants, chosen by the seed; 0: all")
    parser.add_argument("--seed", type=int, default=None, help="of the sample; printed")
    parser.add_argument(
        "--kinds", default="", help="only these kinds, by comma: compare,logic,negate,bound,error,answer,lock,wait,drop"
    )
    parser.add_argument("--only", action="append", default=[], help="only the mutants FILE:LINE:KIND; may be repeated")
    parser.add_argument("--sanitize", default="", help="builds with this sanitizer: thread, or address,undefined")
    parser.add_argument("--check", type=Path, help="mutates a driver: this openreg-check must find what is planted")
    parser.add_argument("--flags", default="", help="with --check: more of the compiler's, as -lOpenCL")
    parser.add_argument("--exclude", default="", metavar="REGEX", help="leaves these tests out")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds that one test may take")
    parser.add_argument("--build", type=Path, default=ROOT / "build-mutate", help="where the copy is made")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--json", type=Path, default=None, help="writes the results to this file")
    parser.add_argument("--list", action="store_true", help="prints the mutants, and runs none")
    given = parser.parse_args()

    kinds = set(filter(None, given.kinds.split(",")))
    mutants = [
        m
        for m in all_mutants(given.paths or USUAL_PATHS, (".c", ".h") if given.check else (".c",))
        if not kinds or m.kind in kinds
    ]
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1 << 31)
    possible = len(mutants)
    if given.only:
        mutants = [mutant for mutant in mutants if mutant.name in given.only]
    elif given.sample and given.sample < possible:
        mutants = random.Random(seed).sample(mutants, given.sample)
    print(f"mutate: {len(mutants)} of {possible} mutants, --seed {seed}", flush=True)
    if given.list:
        for mutant in mutants:
            print(f"{mutant.name}: {mutant.before!r} -> {mutant.after!r}")
        return 0

    given.build.mkdir(parents=True, exist_ok=True)
    if given.check:
        program: Runtime | Driver = Driver(given.build, given.check, given.paths, given.flags)
    else:
        program = Runtime(given.build, given.jobs, given.sanitize, given.exclude)
    failing = program.first_failure(300) if program.compile() else "the build"
    if failing:
        print(f"mutate: without a mutant, {failing} fails", file=sys.stderr)
        return 1

    results: list[Result] = []
    for number, mutant in enumerate(mutants, 1):
        result = judge(program, mutant, given.timeout)
        results.append(result)
        change = f"{' '.join(mutant.before.split())[:60]!r} -> {' '.join(mutant.after.split())[:60]!r}"
        print(f"[{number}/{len(mutants)}] {result.outcome:12s} {mutant.name}  {change}  {result.killer}", flush=True)
        if given.json:
            given.json.write_text(json.dumps({"seed": seed, "results": [asdict(each) for each in results]}, indent=1))
    print(score(results))
    for result in results:
        if result.outcome == "survived":
            print(f"  survived: {result.mutant.name}: {' '.join(result.mutant.before.split())[:90]!r}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
