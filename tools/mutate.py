# SPDX-License-Identifier: BSD-3-Clause
"""Plants single defects in a copy of the sources and shows which of them no test finds.

A mutant is a copy with one change: a comparison turned, a condition negated, a bound moved by one, an error ignored, a
wait dropped, a lock dropped, a statement dropped. The copy is built and its tests run until one fails; then the mutant
is killed. A mutant that passes every test has survived: a test is missing, or the change means nothing (say so).

    make mutate                                             # a sample of the runtime, and its score
    python tools/mutate.py --sample 200 --seed 3 runtime/src/memory
    python tools/mutate.py --kinds lock --sanitize thread   # whether the thread sanitizer sees a dropped lock
    python tools/mutate.py --python --sample 30             # the Python package
    python tools/mutate.py --opencl --check PROGRAM         # what openreg-check sees of a driver over OpenCL
    python tools/mutate.py --only runtime/src/memory/copy.c:142:compare

Only what is committed is mutated. Nothing is written outside the build folder. The status is 0 whatever the score is;
1 where the tests fail without a mutant.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

C_PATHS = ("runtime/src", "runtime/drivers")
PYTHON_PATHS = ("python/torch_openreg",)
EQUIVALENT = ROOT / "tools/equivalent_mutants.txt"
OPENCL_PATHS = ("examples/opencl_driver/src/torch_openreg_opencl",)

# What the Python tests of a sample are: the rooms that are quick and import nothing large.
PYTHON_TESTS = ("tests/python/devices", "tests/python/selection", "tests/python/memory", "tests/python/tools")


@dataclass(frozen=True)
class Mutant:
    """One planted defect.

    Attributes:
        path: file, relative to the root of the checkout.
        line: its first line, from 1.
        kind: which kind of defect.
        before: the text that is replaced.
        after: the text in its place.
        start: offset of `before` in the file, in characters.
        words: the text of its first line.
    """

    path: str
    line: int
    kind: str
    before: str
    after: str
    start: int
    words: str

    @property
    def name(self) -> str:
        """Place and kind, as ``--only`` takes it."""
        return f"{self.path}:{self.line}:{self.kind}"

    def apply(self, text: str) -> str:
        """The file's text with the defect."""
        return text[: self.start] + self.after + text[self.start + len(self.before) :]


@dataclass
class Result:
    """What became of a mutant.

    Attributes:
        mutant: the defect.
        outcome: "killed", "survived", "timeout" (counted as killed) or "not compiled" (counted as none).
        killer: the first failing test.
        seconds: wall-clock time.
    """

    mutant: Mutant
    outcome: str
    killer: str
    seconds: float


# ------------------------------------------------------------------------------------------------------- C, by its text

COMMENT_OR_TEXT = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL)

TURNED = {"==": "!=", "!=": "==", "<": "<=", "<=": "<", ">": ">=", ">=": ">"}
COMPARE = re.compile(r"(?<= )(==|!=|<=|>=|<|>)(?= )")
LOGIC = re.compile(r"(?<= )(&&|\|\|)(?= )")
IF = re.compile(r"\b(?:if|while) \(")
BY_ONE = re.compile(r" [+-] 1\b(?!\.)")
RETURN_ERROR = re.compile(
    r"\breturn (?!OPENREG_OK\b|status\b|NULL\b|false\b|true\b)(OPENREG_E_\w+|openreg_error_set\([^;]*\));"
)
RETURN_BOOL = re.compile(r"\breturn (true|false);")
CHECKED = re.compile(r"\bOPENREG_RETURN_NOT_OK\((?=[^;]*\);)")
LOCK = re.compile(
    r"^[ \t]+(?:\(void\))?(\w+_lock_acquire\w*|\w*_candidates_lock|pthread_mutex_lock)\([^;{}]*\);", re.MULTILINE
)
WAIT = re.compile(
    r"^[ \t]+(?:\(void\))?(\w*(?:_wait|_sync|_synchronize|_join|_drain|_settle)\w*)\([^;{}]*\);", re.MULTILINE
)
STATEMENT = re.compile(
    r"^[ \t]+((?:\(void\))?\w+\([^;{}]*\)|[\w>.\[\]*-]+ (?:[-+|&]?=) [^;{}]+|\+\+[\w>.-]+|[\w>.-]+(?:\+\+|--));$",
    re.MULTILINE,
)
DECLARATION = re.compile(r"^(?:return|goto|break|continue|typedef|extern|static|const|struct|else)\b")

# Statements without which nothing can be observed: what a declared variable needs, logging, and giving back.
MEANS_NOTHING = re.compile(
    r"\b(?:openreg_log\w*|openreg_warn\w*|assert|_Static_assert|free|va_end|va_start|OPENREG_UNUSED)\b"
)


def blanked(text: str) -> str:
    """The text with comments, texts and preprocessor lines as blanks; offsets stay."""
    text = COMMENT_OR_TEXT.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)
    return re.sub(
        r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda match: re.sub(r"[^\n]", " ", match.group()), text, flags=re.MULTILINE
    )


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


def function_end(text: str, start: int) -> int:
    """Offset of the end of the function around `start`: bodies end with a bracket in the first column."""
    end = text.find("\n}", start)
    return len(text) if end < 0 else end


def c_mutants(path: str, source: str) -> Iterator[Mutant]:
    """Every defect that can be planted in one C file."""
    text = blanked(source)
    lines = source.splitlines()

    def at(start: int, end: int, kind: str, after: str) -> Mutant:
        line = source.count("\n", 0, start) + 1
        return Mutant(path, line, kind, source[start:end], after, start, lines[line - 1].strip())

    for match in COMPARE.finditer(text):
        yield at(*match.span(), "compare", TURNED[match.group()])
    for match in LOGIC.finditer(text):
        yield at(*match.span(), "logic", "||" if match.group() == "&&" else "&&")
    for match in IF.finditer(text):
        end = closing(text, match.end() - 1)
        if end > 0 and text[match.start()] == "i":
            yield at(match.end() - 1, end + 1, "negate", f"(!{source[match.end() - 1 : end + 1]})")
    for match in BY_ONE.finditer(text):
        yield at(*match.span(), "bound", "")
    for match in RETURN_ERROR.finditer(text):
        yield at(*match.span(), "error", "return OPENREG_OK;")
    for match in RETURN_BOOL.finditer(text):
        yield at(*match.span(), "answer", "return false;" if match.group(1) == "true" else "return true;")
    for match in CHECKED.finditer(text):
        yield at(*match.span(), "error", "(void)(")
    for match in LOCK.finditer(text):
        # The lock, with its release up to the end of the function.
        end = function_end(text, match.end())
        name = match.group(1)
        family = re.sub(r"_acquire\w*$", "", name)
        release = f"{family}_release" if family != name else name.replace("_lock", "_unlock")
        body = source[match.start() : end]
        yield at(
            match.start(), end, "lock", re.sub(rf"\b(?:{re.escape(name)}|{re.escape(release)})\(", "(void)(", body)
        )
    for match in WAIT.finditer(text):
        yield at(match.start(), match.end(), "wait", "")
    for match in STATEMENT.finditer(text):
        words = match.group(1)
        if (
            DECLARATION.match(words)
            or MEANS_NOTHING.search(words)
            or LOCK.match(match.group())
            or WAIT.match(match.group())
        ):
            continue
        if re.match(r"\w+ \w+ = ", words) or re.search(r"lock\w*\(", words):
            continue
        yield at(match.start(1), match.end(), "drop", ";")


# -------------------------------------------------------------------------------------------------- Python, by its tree

TURNED_NODES: dict[type[ast.cmpop], str] = {
    ast.Eq: "!=", ast.NotEq: "==", ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip


def python_mutants(path: str, source: str) -> Iterator[Mutant]:
    """Every defect that can be planted in one Python file."""
    starts = [0]
    lines = source.splitlines()
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    raw = source.encode()

    def span(node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        first = starts[node.lineno - 1] + node.col_offset
        last = starts[node.end_lineno - 1] + node.end_col_offset
        return len(raw[:first].decode()), len(raw[:last].decode())

    def replaced(node: ast.expr | ast.stmt, kind: str, after: str) -> Mutant:
        start, end = span(node)
        return Mutant(path, node.lineno, kind, source[start:end], after, start, lines[node.lineno - 1].strip())

    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
            yield replaced(node, "compare", f"({left} {TURNED_NODES[type(node.ops[0])]} {right})")
        elif isinstance(node, ast.BoolOp):
            word = " or " if isinstance(node.op, ast.And) else " and "
            yield replaced(node, "logic", "(" + word.join(f"({ast.unparse(value)})" for value in node.values) + ")")
        elif isinstance(node, ast.If | ast.IfExp):
            if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
                yield replaced(node.test, "negate", f"(not ({ast.unparse(node.test)}))")
        elif isinstance(node, ast.Raise):
            yield replaced(node, "error", "pass")
        elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
            yield replaced(node, "answer", "return None")
        elif isinstance(node, ast.With) and "lock" in ast.unparse(node.items[0].context_expr):
            yield replaced(node.items[0].context_expr, "lock", "__import__('contextlib').nullcontext()")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield replaced(node, "drop", "pass")


# ------------------------------------------------------------------------------------------------------ build and run


# A mutant whose loop doesn't end must not take the machine's memory. Not under sanitizers, whose shadows are larger.
HEAP_LIMIT = 8 << 30


def limit_heap() -> None:
    """Bounds the private memory of a child process and its children."""
    resource.setrlimit(resource.RLIMIT_DATA, (HEAP_LIMIT, HEAP_LIMIT))


class Tree:
    """A copy of the committed sources that mutants are planted in."""

    def __init__(self, folder: Path) -> None:
        self.source = folder / "source"
        shutil.rmtree(self.source, ignore_errors=True)
        self.source.mkdir(parents=True)
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", str(self.source)], input=archive, check=True)
        self.planted: Mutant | None = None

    def plant(self, mutant: Mutant) -> None:
        """Writes the defect into the copy."""
        self.planted = mutant
        file = self.source / mutant.path
        file.write_text(mutant.apply(file.read_text()))

    def heal(self, mutant: Mutant, text: str) -> None:
        """Takes the defect out again."""
        self.planted = None
        (self.source / mutant.path).write_text(text)


class Runtime:
    """Builds and tests a copy of the C runtime."""

    def __init__(self, folder: Path, jobs: int, sanitize: str, exclude: str) -> None:
        self.tree = Tree(folder)
        self.exclude = exclude
        self.build = folder / ("build-" + (sanitize or "plain"))
        self.jobs = jobs
        self.sanitize = sanitize
        # Shared libraries are replaced beneath the test programs, which need not be linked again.
        configure = ["cmake", "-S", str(self.tree.source), "-B", str(self.build), "-G", "Ninja"]
        configure += ["-DOPENREG_BUILD_TORCH=OFF", "-DCMAKE_LINK_DEPENDS_NO_SHARED=ON"]
        configure += [f"-DOPENREG_SANITIZE={sanitize}"] if sanitize else []
        subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)

    def compile(self) -> bool:
        """Builds the copy; False where the compiler refuses it."""
        command = ["cmake", "--build", str(self.build), "--parallel", str(self.jobs)]
        return subprocess.run(command, capture_output=True, timeout=3600, check=False).returncode == 0

    def first_failure(self, limit: float) -> str:
        """Runs the tests until one fails.

        Args:
            limit: seconds that one test may take.

        Returns:
            The failing test's name; "" where all pass.
        """
        command = [
            "ctest",
            "--test-dir",
            str(self.build),
            "-j",
            str(self.jobs),
            "--stop-on-failure",
            "--timeout",
            str(limit),
            # A test that passes at its second run was disturbed by other work on the machine: it found nothing.
            "--repeat",
            "until-pass:2",
        ]
        command += ["--exclude-regex", self.exclude] if self.exclude else []
        limits = None if self.sanitize else limit_heap
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, preexec_fn=limits)
        if done.returncode == 0:
            return ""
        failed = re.search(
            r"^\s*\d+ - (\S+) \((\w+)", done.stdout[done.stdout.find("The following tests FAILED") :], re.MULTILINE
        )
        return f"{failed.group(1)} ({failed.group(2)})" if failed else "ctest failed"


class Package:
    """Tests a copy of the Python package, whose libraries are those of the checkout."""

    def __init__(self, folder: Path, jobs: int, tests: Sequence[str]) -> None:
        self.tree = Tree(folder)
        self.jobs = jobs
        self.tests = tests
        package = Path("python/torch_openreg")
        for built in (ROOT / package).rglob("*"):
            target = self.tree.source / built.relative_to(ROOT)
            if built.is_file() and not target.exists() and "__pycache__" not in built.parts:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(built, target, follow_symlinks=True)

    def compile(self) -> bool:
        """Nothing is to be built: a mutant that doesn't compile fails its tests."""
        return True

    def first_failure(self, limit: float) -> str:
        """As `Runtime.first_failure`."""
        environment = {**os.environ, "PYTHONPATH": str(self.tree.source / "python"), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider"]
        command += ["-n", str(self.jobs), "--dist", "loadfile", "--timeout", str(int(limit)), *self.tests]
        done = subprocess.run(
            command, cwd=self.tree.source, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            return ""
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
        return failed.group(1) if failed else f"pytest ended with {done.returncode}"


# Checks, or rooms of them, that find most of what is planted in a file of the driver over OpenCL; tried in this order.
KERNELS = ("kernel.values", "kernel.products", "kernel.reductions", "kernel.windows", "kernel.moves", "kernel")
FIRST = {
    "elements.c": ("kernel.moves", "kernel.values", "kernel"),
    "indexing.c": ("kernel.windows", "kernel.layers", "kernel"),
    "launch.c": KERNELS,
    "matrix.c": ("kernel.products", "kernel.windows", "kernel"),
    "rows.c": ("kernel.reductions", "kernel.layers", "kernel"),
    **dict.fromkeys(("queues.c", "host_calls.c", "signals.c"), ("event,stream,host_func,copy,fill", "leak", "thread")),
}


class Driver:
    """Builds a copy of the driver over OpenCL, and checks it with the checkout's openreg-check."""

    def __init__(self, folder: Path, check: Path, level_3: bool) -> None:
        self.tree = Tree(folder)
        self.check = check.resolve()
        self.level_3 = level_3
        self.library = folder / "libopenreg_opencl.so"
        listed = subprocess.run([str(self.check), "--list"], check=True, capture_output=True, text=True).stdout
        self.rooms = list(dict.fromkeys(re.findall(r"^\d\s+(\w+)\.", listed, re.MULTILINE)))

    def compile(self) -> bool:
        """Builds the copy, of a mutant its one file; False where the compiler refuses it."""
        compiler = os.environ.get("CC", "cc")
        flags = ["-std=gnu11", "-O1", "-fPIC", "-fvisibility=hidden", f"-I{self.tree.source / 'runtime/include'}"]
        mutated = self.tree.source / self.tree.planted.path if self.tree.planted else None
        objects = []
        for source in sorted((self.tree.source / OPENCL_PATHS[0]).glob("*.c")):
            compiled = self.library.parent / (source.stem + (".mutant.o" if source == mutated else ".o"))
            objects.append(str(compiled))
            if mutated is not None and source != mutated:
                continue
            command = [compiler, *flags, "-c", str(source), "-o", str(compiled)]
            if subprocess.run(command, capture_output=True, check=False).returncode != 0:
                return False
        command = [compiler, "-shared", *objects, "-o", str(self.library), "-lOpenCL", "-lclblast", "-lpthread", "-lm"]
        command += [f"-Wl,--version-script={self.tree.source / 'tests/drivers/driver.map'}"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def first_failure(self, limit: float) -> str:
        """As `Runtime.first_failure`: the first check that fails."""
        planted = self.tree.planted
        first = FIRST.get(Path(planted.path).name, ()) if planted else ()
        tried = [room for rooms in first for room in rooms.split(",")]
        rest = ",".join(room for room in self.rooms if room not in tried)
        words = [str(self.check), str(self.library), "--timeout", str(max(1, int(limit))), "--only"]
        commands = [[*words, rooms] for rooms in (*first, rest) if rooms]
        if self.level_3:
            words = [sys.executable, "-m", "torch_openreg", "check", str(self.library), "--level", "3", "--time", "2"]
            commands.append([*words, "--only", "operators,training,streams,programs"])
        return next(filter(None, map(self.failure_of, commands)), "")

    def failure_of(self, command: Sequence[str]) -> str:
        """The first check that fails in one run of the program; "" where none does."""
        environment = {**os.environ, "POCL_DEVICES": "pthread pthread", "OMP_NUM_THREADS": "1"}
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, text=True, errors="replace", cwd=self.library.parent
        ) as running:
            assert running.stdout is not None
            for line in running.stdout:
                if line.startswith("FAIL  "):
                    running.terminate()
                    return line.split()[1]
        return "" if running.returncode == 0 else f"{Path(command[0]).name} ended with {running.returncode}"


def judge(program: Runtime | Package | Driver, mutant: Mutant, limit: float) -> Result:
    """Plants a mutant, builds, tests, and takes it out again."""
    began = time.monotonic()
    text = (program.tree.source / mutant.path).read_text()
    program.tree.plant(mutant)
    try:
        killer = program.first_failure(limit) if program.compile() else None
    finally:
        program.tree.heal(mutant, text)
    outcome = "not compiled" if killer is None else "survived" if not killer else "killed"
    if killer and "(Timeout" in killer:
        outcome = "timeout"
    return Result(mutant, outcome, killer or "", time.monotonic() - began)


def all_mutants(paths: Sequence[str], python: bool) -> list[Mutant]:
    """Every mutant of the files that git knows under `paths`."""
    suffix = ".py" if python else ".c"
    archive = subprocess.run(["git", "archive", "HEAD", *paths], cwd=ROOT, check=True, capture_output=True).stdout
    mutants: list[Mutant] = []
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for member in files:
            content = files.extractfile(member) if member.name.endswith(suffix) else None
            if content is not None:
                text = content.read().decode()
                mutants += python_mutants(member.name, text) if python else c_mutants(member.name, text)
    return mutants


def equivalents() -> dict[tuple[str, str, str, str], str]:
    """Mutants that nobody can tell from the source, with the reason: by path, kind, text of the line and of the change.

    Raises:
        ValueError: a line is no such.
    """
    found = {}
    for line in EQUIVALENT.read_text().splitlines():
        if line and not line.startswith("#"):
            path, kind, words, after, reason = line.split("\t")
            found[path, kind, words, after] = reason
    return found


def identity(mutant: Mutant) -> tuple[str, str, str, str]:
    """As `equivalents` names it: lines may move."""
    return mutant.path, mutant.kind, mutant.words, " ".join(mutant.after.split())[:60]


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
    parser.add_argument("--python", action="store_true", help="mutates the Python package")
    parser.add_argument("--opencl", action="store_true", help="mutates the driver over OpenCL; openreg-check judges")
    parser.add_argument("--check", type=Path, default=ROOT / "build/runtime/openreg-check", help="for --opencl")
    parser.add_argument("--level-3", action="store_true", help="for --opencl: openreg-check's survivors go to level 3")
    parser.add_argument("--sample", type=int, default=60, help="how many mutants, chosen by the seed; 0: all")
    parser.add_argument("--seed", type=int, default=None, help="of the sample; printed")
    parser.add_argument(
        "--kinds", default="", help="only these kinds, by comma: compare,logic,negate,bound,error,answer,lock,wait,drop"
    )
    parser.add_argument("--only", action="append", default=[], help="only the mutants FILE:LINE:KIND; may be repeated")
    parser.add_argument("--sanitize", default="", help="builds with this sanitizer: thread, or address,undefined")
    parser.add_argument("--tests", nargs="*", default=list(PYTHON_TESTS), help="test files for --python")
    parser.add_argument("--exclude", default="", metavar="REGEX", help="leaves these tests of the runtime out")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds that one test may take")
    parser.add_argument("--build", type=Path, default=ROOT / "build-mutate", help="where the copy is made")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--json", type=Path, default=None, help="writes the results to this file")
    parser.add_argument("--list", action="store_true", help="prints the mutants, and runs none")
    given = parser.parse_args()

    usual = PYTHON_PATHS if given.python else OPENCL_PATHS if given.opencl else C_PATHS
    mutants = all_mutants(given.paths or usual, given.python)
    kinds = set(filter(None, given.kinds.split(",")))
    known = equivalents()
    mutants = [m for m in mutants if (not kinds or m.kind in kinds) and (given.only or identity(m) not in known)]
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
    program: Runtime | Package | Driver = (
        Package(given.build, given.jobs, given.tests)
        if given.python
        else Driver(given.build, given.check, given.level_3)
        if given.opencl
        else Runtime(given.build, given.jobs, given.sanitize, given.exclude)
    )
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
