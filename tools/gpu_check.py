# SPDX-License-Identifier: BSD-3-Clause
"""Checks everything that takes a GPU, on the machine that this runs on: ``make gpu-check``.

Builds with the torch and the CUDA of the machine, without the network, and runs in turn
    smoke      ten lines in one process: whose allocator is in place, a few operators, memory, the end of the process
    drivers    the tests of the CUDA driver, and of HIP's calls over CUDA where HIP's headers are, on the GPU
    python     the tests made for real GPUs
    figures    copies, submission, allocation, events, a training step, beside CUDA's own
    demo       examples/train_digits.py on the GPU
    profile    where the time of an operator and of a transformer's block goes
    sanitizer  NVIDIA's compute-sanitizer over the smoke, where it is installed
    operators  PyTorch's database of operators, forward and backward, against the device `cuda` in another process:
               float32 and bfloat16
    suites     the operator and training suites on a simulated device and the GPU, for information
What tells most for its seconds comes first. Each part has its budget of seconds, and one that crashes or hangs costs
only itself. Results are written as they come: a table, --json, and with --output a folder with every command's whole
output. It needs no make, GoogleTest or expecttest. Status 0: all as it should be; 1: something is not; 77: there is no
GPU.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NO_GPU = 77
REHEARSAL = "OPENREG_GPU_CHECK_REHEARSAL"
DRIVER_TESTS = ("gpu_slots_test", "gpu_peer_test", "gpu_vmm_test")  # those that don't need a fake
TAIL = 3000
"""Characters of a failed command's output that are printed and in the JSON; the whole is in the folder of --output."""
PARTS = ("smoke", "drivers", "python", "figures", "compile", "demo", "profile", "sanitizer", "operators", "suites")
ALLOCATOR = """
import torch, torch_openreg
x = torch.ones(1 << 20, device="openreg") + 1
place = torch.openreg.operator_stats()["gpu_allocator"]
assert place == "openreg", f"PyTorch's kernels allocate from {place!r}, not from openreg"
"""
"""What every program that is to measure or compare begins with."""

SMOKE = (
    ALLOCATOR
    + """
import sys
print("allocator:", place)
assert x.sum().item() == 2 << 20
a = torch.randn(256, 256); b = (a.to("openreg") @ a.to("openreg")).cpu()
torch.testing.assert_close(b, a @ a, atol=0.5, rtol=0.02)
y = torch.randn(4, 3, 8, 8, device="openreg", requires_grad=True)
torch.nn.functional.conv2d(y, torch.randn(5, 3, 3, 3, device="openreg")).sum().backward()
assert y.grad.isfinite().all()
assert torch.openreg.operator_stats()["staged_calls"] == 0, torch.openreg.operator_stats()["staged"]
free, total = torch.openreg.mem_get_info()
torch.openreg.synchronize(); torch.openreg.empty_cache()
before = torch.openreg.mem_get_info()[0]; reserved = torch.openreg.memory_reserved()
kept = [torch.empty(1 << 20, dtype=torch.uint8, device="openreg") for _ in range(200)]
taken, asked = before - torch.openreg.mem_get_info()[0], torch.openreg.memory_reserved() - reserved
print(f"200 MiB in blocks of 1 MiB: {asked >> 20} MiB reserved, {taken >> 20} MiB gone from the GPU")
assert taken <= asked + (4 << 20), (taken, asked)
print("end")
"""
)

PROFILE = (
    ALLOCATOR
    + """
import sys
sys.path.insert(0, "tools")
from gpu_figures import Block
from torch.profiler import ProfilerActivity, profile
a, b = (torch.ones(16, device="openreg") for _ in range(2))
block = Block(512, 8).to("openreg", torch.bfloat16)
z = torch.randn(4, 256, 512).to("openreg", torch.bfloat16).requires_grad_()
for name, work in (("a + b", lambda: a + b), ("block", lambda: block(z).sum().backward())):
    work(); torch.openreg.synchronize()
    with profile(activities=[ProfilerActivity.CPU]) as found:
        for _ in range(int(sys.argv[1])):
            work()
        torch.openreg.synchronize()
    print(name); print(found.key_averages().table(sort_by="self_cpu_time_total", row_limit=15))
"""
)


@dataclass
class Outcome:
    """What came of one part."""

    part: str
    state: str = "passed"
    """passed, failed, left out."""
    summary: str = ""
    seconds: float = 0.0
    details: dict[str, Any] = field(default_factory=dict)

    def fail(self, summary: str) -> Outcome:
        """Marks it as failed."""
        self.state, self.summary = "failed", summary
        return self


@dataclass
class Ran:
    """A command that has ended, or was ended."""

    status: int | None
    """None: it ran out of time."""
    output: str


@dataclass(frozen=True)
class Figure:
    """A figure of openreg's beside its reference, and the aim of the one divided by the other."""

    name: str
    value: float
    reference: float
    aim: float
    at_least: bool

    @property
    def ratio(self) -> float:
        """The figure in units of its reference."""
        return self.value / self.reference if self.reference else float("inf")

    @property
    def met(self) -> bool:
        """Whether the aim is reached."""
        return self.ratio >= self.aim if self.at_least else self.ratio <= self.aim


AIMS: dict[str, tuple[float, bool]] = {
    "host to device": (0.98, True),
    "device to host": (0.98, True),
    "device to device": (0.98, True),
    "a + b, 16 elements": (1.3, False),
    "transformer block": (1.03, False),
    "allocation": (1.0, False),
    "event": (1.0, False),
    "stream switch": (1.0, False),
}
"""By the start of a figure's name: the aim, and whether more is better (GB/s) or less (ns)."""
COMPILED_AIMS: dict[str, tuple[float, bool]] = {
    "compiled pointwise, 16 elements": (1.5, False),
    "compiled pointwise, 64 Mi": (1.03, False),
    "compiled transformer block": (1.1, False),
}
"""The same of torch.compile, with a graph's call into the device on top of `cuda`'s: tens of microseconds."""


QUICK_ENTRIES = ("add/float32", "matmul/float32", "mul/bfloat16", "sum/float32")
"""Of a rehearsal."""


def find_gpu() -> str | None:
    """Name of the first NVIDIA GPU, by CUDA's driver alone; None without one.

    OPENREG_GPU_CHECK_REHEARSAL names what stands in for one: the parts then run over it as they would on a GPU.
    """
    if os.environ.get(REHEARSAL):
        return os.environ[REHEARSAL]
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    count, device, name = ctypes.c_int(0), ctypes.c_int(0), ctypes.create_string_buffer(128)
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)) or count.value == 0:
        return None
    if cuda.cuDeviceGet(ctypes.byref(device), 0) or cuda.cuDeviceGetName(name, 128, device):
        return "NVIDIA GPU"
    return name.value.decode(errors="replace")


def run(command: list[str], seconds: float, environment: dict[str, str] | None = None) -> Ran:
    """Runs a command in the checkout and ends it, with all it has started, after `seconds`."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=max(seconds, 1.0))
        return Ran(process.returncode, output)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return Ran(None, output)


def how_it_ended(ran: Ran) -> str:
    """Of a command that did not succeed."""
    if ran.status is None:
        return "out of time"
    return f"signal {-ran.status}" if ran.status < 0 else f"status {ran.status}"


def last_line(ran: Ran) -> str:
    """What pytest says at its end, or how it was ended."""
    lines = ran.output.strip().splitlines()
    return lines[-1].strip("= ") if lines and ran.status is not None else how_it_ended(ran)


def python_environment(build: Path, **more: str) -> dict[str, str]:
    """Variables of a process that uses the checkout's package, or where that isn't built the installed one."""
    package = ROOT / "python"
    own = [str(package)] if (package / "torch_openreg" / "lib").is_dir() else []
    path = os.pathsep.join([*own, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {
        "PYTHONPATH": path,
        "OPENREG_BUILD_DIR": str(build),
        "OPENREG_PREFERENCES": os.devnull,
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        **more,
    }


class Check:
    """One run over all parts."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.build: Path = options.build.resolve()
        self.jobs: int = options.jobs
        self.googletest: Path | None = options.googletest
        self.samples: int = options.samples
        self.quick: bool = options.quick
        self.reference: str = options.reference
        self.skip_build: bool = options.skip_build
        self.output: Path | None = options.output
        self.deadline: float = options.started + options.budget
        self.outcomes: list[Outcome] = []

    def left(self, at_most: float) -> float:
        """Seconds for the next command."""
        return max(0.0, min(at_most, self.deadline - time.monotonic()))

    def part(self, name: str, work: Callable[[Outcome], None]) -> Outcome:
        """Runs a part; what it raises is its failure and nobody else's."""
        outcome = Outcome(name)
        start = time.monotonic()
        if self.left(1) <= 0:
            outcome.fail("no time left")
        else:
            try:
                work(outcome)
            except Exception as error:
                outcome.fail(f"{type(error).__name__}: {error}")
        outcome.seconds = round(time.monotonic() - start, 1)
        self.outcomes.append(outcome)
        print(line_of(outcome), flush=True)
        return outcome

    def command(self, outcome: Outcome, what: str, ran: Ran) -> bool:
        """Notes how a command of the part went; whether it succeeded."""
        self.log(outcome, what, ran)
        if ran.status == 0:
            return True
        outcome.fail(f"{what}: {how_it_ended(ran)}")
        outcome.details[what] = ran.output[-TAIL:]
        return False

    def log(self, outcome: Outcome, what: str, ran: Ran) -> None:
        """Appends all that a command has said to the folder's one file of logs."""
        if self.output is not None:
            with (self.output / "logs.txt").open("a") as file:
                file.write(f"===== {outcome.part}, {what}: {how_it_ended(ran)}\n{ran.output}\n")

    def build_all(self, outcome: Outcome) -> None:
        """The package, then the C++ tests where GoogleTest is: they may fail without costing the rest."""
        if self.skip_build:
            outcome.summary = "skipped: what is there is used"
            return
        googletest = self.googletest_arguments()
        hip = "-DOPENREG_HIP_ON_NVIDIA=" + ("ON" if has_hip_headers() else "OFF")
        python = f"-DPython3_EXECUTABLE={sys.executable}"
        configure = ["cmake", "-S", ".", "-B", str(self.build), python, "-DOPENREG_CUDA=ON", hip, *googletest]
        if shutil.which("ninja"):
            configure += ["-G", "Ninja"]
        # A first import of torch is part of it, which reads gigabytes of libraries.
        if not self.command(outcome, "configure", run(configure, self.left(150))):
            return
        make = ["cmake", "--build", str(self.build), "--parallel", str(self.jobs), "--target"]
        if not self.command(outcome, "build", run([*make, "openreg_package"], self.left(300))):
            return
        install = ["cmake", "--install", str(self.build), "--prefix", "python/torch_openreg"]
        if not self.command(outcome, "install", run(install, self.left(30))):
            return
        built: list[str] = ["openreg_package"]
        missing: list[str] = []
        for target in self.driver_targets():
            ran = run([*make, target], self.left(60))
            self.log(outcome, target, ran)
            (built if ran.status == 0 else missing).append(target)
        outcome.summary = ", ".join(built) + (f"; not built: {', '.join(missing)}" if missing else "")

    def googletest_arguments(self) -> list[str]:
        """Nothing is fetched: tests in C++ are built from sources or an installed GoogleTest, or not at all."""
        if self.googletest is not None:
            return ["-DOPENREG_BUILD_TESTS=ON", f"-DFETCHCONTENT_SOURCE_DIR_GOOGLETEST={self.googletest}"]
        installed = any(Path(root, "gtest/gtest.h").exists() for root in ("/usr/include", "/usr/local/include"))
        return ["-DOPENREG_BUILD_TESTS=" + ("ON" if installed else "OFF")]

    def driver_targets(self) -> list[str]:
        """The tests of the drivers that CMake has made targets of, and the libraries that they load."""
        known = run(["cmake", "--build", str(self.build), "--target", "help"], 30).output
        targets = set(re.findall(r"\w+", known))
        wanted = (
            *DRIVER_TESTS,
            "openreg_hip_nvidia",
            *(f"libopenreg_{name}_fake" for name in ("cuda", "hip", "hip_nvidia")),
        )
        return [name for name in wanted if name in targets]

    def drivers(self, outcome: Outcome) -> None:
        """GoogleTest programs of the drivers, on the real libraries."""
        programs = [path for path in (self.build / "tests/runtime" / name for name in DRIVER_TESTS) if path.exists()]
        folder = self.build / "runtime/drivers/gpu"
        libraries = [folder / f"libopenreg_{name}.so" for name in ("cuda", "hip_nvidia")]
        libraries = [library for library in libraries if library.exists()]
        if not programs:
            outcome.state, outcome.summary = (
                "left out",
                "no GoogleTest on this machine (--googletest PATH of its sources)",
            )
            return
        total = 0
        for library in libraries:
            before = total
            for program in programs:
                what = f"{library.stem}: {program.name}"
                ran = run([str(program), "--gtest_filter=*/real"], self.left(60), {"TEST_GPU_DRIVER": str(library)})
                passed = re.search(r"\[  PASSED  \] (\d+) test", ran.output)
                number = int(passed.group(1)) if passed else 0
                total += number
                outcome.details[f"{what}, passed"] = number
                self.command(outcome, what, ran)
            if total == before and outcome.state == "passed":  # one program alone may need a second GPU
                outcome.fail(f"{library.stem}: no test ran")
        if outcome.state == "passed":
            outcome.summary = f"{total} tests passed"

    def on_gpu(self, **more: str) -> dict[str, str]:
        """Variables of a process on the GPU alone."""
        return python_environment(self.build, OPENREG_DRIVERS="cuda", **more)

    def smoke(self, outcome: Outcome) -> None:
        """SMOKE, up to the status of the process."""
        ran = run([sys.executable, "-c", SMOKE], self.left(90), self.on_gpu())
        outcome.details["output"] = ran.output[-TAIL:]
        if self.command(outcome, "smoke", ran):
            outcome.summary = "; ".join(ran.output.strip().splitlines()[:-1])

    def pytest(self, outcome: Outcome, name: str, seconds: float, environment: dict[str, str]) -> Ran:
        """One file of tests; the names of those that failed are in the details."""
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", f"tests/python/{name}"]
        ran = run(command, self.left(seconds), environment)
        outcome.details[f"{name}, failed"] = re.findall(r"^FAILED (\S+)", ran.output, re.MULTILINE)
        return ran

    def python(self, outcome: Outcome) -> None:
        """The tests made for a real GPU."""
        name = "gpu/test_real_gpu.py"
        ran = self.pytest(outcome, name, 150, self.on_gpu(TEST_REAL_GPU="1"))
        if self.command(outcome, name, ran):
            outcome.summary = last_line(ran)

    def suites(self, outcome: Outcome) -> None:
        """The suites of the CPU's devices, for information: they ask for the CPU's bits in places.

        They use openreg:1; device 0 is a simulated one, so that there are two on a machine with one GPU.
        """
        mixed = {"OPENREG_DRIVERS": "sim,cuda", "OPENREG_SIM_DEVICES": "1", "OPENREG_CUDA_VISIBLE_DEVICES": "0"}
        summaries = []
        for name in ("operators/test_operators.py", "training/test_training.py"):
            ran = self.pytest(outcome, name, 90, python_environment(self.build, **mixed))
            self.log(outcome, name, ran)
            summaries.append(f"{name}: {last_line(ran)}")
        outcome.summary = "; ".join(summaries)

    def profile(self, outcome: Outcome) -> None:
        """PROFILE: tables in the logs."""
        # A rehearsal's GPU is a processor without bfloat16: seconds for each pass through the block.
        rounds, limit = ("1", 300) if self.quick else ("20", 60)
        ran = run([sys.executable, "-c", PROFILE, rounds], self.left(limit), self.on_gpu())
        if self.command(outcome, "profile", ran):
            outcome.details["tables"] = ran.output[:12000]
            outcome.summary = "tables in the results"

    def sanitizer(self, outcome: Outcome) -> None:
        """The smoke under compute-sanitizer's memcheck."""
        program = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
        if not Path(program).exists():
            outcome.state, outcome.summary = "left out", "no compute-sanitizer on this machine"
            return
        command = [program, "--tool", "memcheck", "--error-exitcode", "9", sys.executable, "-c", SMOKE]
        ran = run(command, self.left(100), self.on_gpu())
        if self.command(outcome, "memcheck", ran):
            outcome.summary = "no error"

    def demo(self, outcome: Outcome) -> None:
        """The demonstration, on the GPU alone."""
        command = [sys.executable, "examples/train_digits.py", "--output", str(self.build / "demo")]
        ran = run(command, self.left(60), self.on_gpu())
        outcome.details["output"] = ran.output[-TAIL:]
        if self.command(outcome, "examples/train_digits.py", ran):
            if "keeps its own allocator" in ran.output:
                outcome.fail("PyTorch has kept its own allocator")
                return
            gaps = re.search(r"cpu and openreg:0 differ by.*", ran.output)
            outcome.summary = gaps.group() if gaps else ""

    def operators(self, outcome: Outcome) -> None:
        """See gpu_operators.py."""
        path = self.build / "gpu-operators.json"
        path.unlink(missing_ok=True)
        seconds = self.left(220)
        command = [sys.executable, "tools/gpu_operators.py", "--folder", str(self.build / "gpu-operators")]
        command += ["--json", str(path), "--budget", str(max(seconds - 15, 5)), "--samples", str(self.samples)]
        command += ["--jobs", str(min(self.jobs, 12)), "--reference", self.reference]
        if self.quick:
            command += ["--entries", *QUICK_ENTRIES]
        ran = run(command, seconds, self.on_gpu())
        self.log(outcome, "gpu_operators.py", ran)
        if path.exists():
            outcome.details.update(json.loads(path.read_text()))
            outcome.summary = outcome.details["summary"]
        if ran.status != 0:
            summary = outcome.summary or how_it_ended(ran)
            outcome.fail(summary).details["output"] = ran.output[-TAIL:]

    def figures(self, outcome: Outcome) -> None:
        """Twice in turn, openreg and CUDA each in a process of its own; the better of the two counts."""
        self.measure(outcome, 1 if self.quick else 2, 60)

    def compile(self, outcome: Outcome) -> None:
        """The same of torch.compile, once: compiling takes most of the time."""
        self.measure(outcome, 1, 150, "--compiled")

    def measure(self, outcome: Outcome, rounds: int, seconds: float, *more: str) -> None:
        """Runs gpu_figures.py on both devices and compares.

        Args:
            outcome: Of the part.
            rounds: How often.
            seconds: What a process may take.
            *more: Arguments for gpu_figures.py.
        """
        best: dict[str, dict[str, float]] = {"openreg": {}, "cuda": {}}
        ways: list[str] = []
        for _ in range(rounds):
            for device, known in best.items():
                # Where there is no `cuda`, in a rehearsal, openreg is measured beside itself.
                named = device if self.reference == "cuda" else "openreg"
                command = [sys.executable, "tools/gpu_figures.py", "--device", named, *more, *["--quick"] * self.quick]
                ran = run(command, self.left(seconds), self.on_gpu())
                lines = [line for line in ran.output.splitlines() if line.startswith("{")]
                if not self.command(outcome, " ".join([f"gpu_figures.py --device {device}", *more]), ran) or not lines:
                    return
                keep_best(known, json.loads(lines[-1]))
                ways += [line for line in ran.output.splitlines() if " compiled with" in line]
        compared = compare_figures(best["openreg"], best["cuda"])
        outcome.details["figures"] = [{**asdict(one), "ratio": one.ratio, "met": one.met} for one in compared]
        missed = [one for one in compared if not one.met]
        outcome.summary = "; ".join([f"{len(compared) - len(missed)} of {len(compared)} aims reached", *ways])
        if (missed and not self.quick) or not compared:
            outcome.fail(outcome.summary)
        print(table_of_figures(compared), flush=True)


def has_hip_headers() -> bool:
    """Whether HIP's headers are there, with those for NVIDIA."""
    roots = (os.environ.get("ROCM_PATH", "/opt/rocm") + "/include", "/usr/include")
    return any(Path(root, "hip/nvidia_detail/nvidia_hip_runtime_api.h").exists() for root in roots)


def aim_of(name: str) -> tuple[float, bool] | None:
    """The aim of a figure, by the start of its name."""
    aims = AIMS | COMPILED_AIMS
    return next((aim for start, aim in aims.items() if name.startswith(start)), None)


def keep_best(known: dict[str, float], fresh: dict[str, float]) -> None:
    """Takes over what is better in `fresh`: more of GB/s, less of nanoseconds."""
    for name, value in fresh.items():
        aim = aim_of(name)
        better = max if aim is not None and aim[1] else min
        known[name] = better(known.get(name, value), value)


def compare_figures(ours: dict[str, float], theirs: dict[str, float]) -> list[Figure]:
    """The figures that both have and that have an aim, in their order."""
    figures = []
    for name, value in ours.items():
        aim = aim_of(name)
        if aim is not None and name in theirs:
            figures.append(Figure(name, value, theirs[name], *aim))
    return figures


def table_of_figures(figures: list[Figure]) -> str:
    """A line each: figure, reference, ratio, aim."""
    lines = [f"  {'figure':36} {'openreg':>12} {'cuda':>12} {'ratio':>7}  aim"]
    for one in figures:
        sign = ">=" if one.at_least else "<="
        unit = "GB/s" if one.at_least else "ns"
        lines.append(
            f"  {one.name:36} {one.value:12.1f} {one.reference:12.1f} {one.ratio:7.3f}  {sign} {one.aim} ({unit})"
            f"{'' if one.met else '  MISSED'}"
        )
    return "\n".join(lines)


def line_of(outcome: Outcome) -> str:
    """One line of the summary."""
    return f"  {outcome.part:10} {outcome.state:9} {outcome.seconds:7.1f} s  {outcome.summary}"


def write_json(path: Path, gpu: str, outcomes: list[Outcome]) -> None:
    """Everything, for programs."""
    path.write_text(json.dumps({"gpu": gpu, "parts": [asdict(outcome) for outcome in outcomes]}, indent=1) + "\n")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build-gpu", help="folder to build in")
    parser.add_argument("--budget", type=float, default=570, help="seconds for everything (default 570)")
    parser.add_argument("--skip-build", action="store_true", help="uses what was built or unpacked before")
    parser.add_argument("--output", type=Path, help="a folder for results, table and all logs, written as they come")
    parser.add_argument("--quick", action="store_true", help="small figures and few operators: to see that all runs")
    parser.add_argument("--reference", default="cuda", help="device that operators are compared with (default cuda)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--samples", type=int, default=2, help="samples an operator (default 2)")
    parser.add_argument("--googletest", type=Path, help="GoogleTest's sources, where it is not installed")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="only these, after the build")
    parser.add_argument("--json", type=Path, help="write all results here")
    options = parser.parse_args(arguments)
    options.started = time.monotonic()
    return options


def main(arguments: list[str] | None = None) -> int:
    """0, 1 or 77."""
    options = parse(arguments)
    gpu = find_gpu()
    if gpu is None:
        print("gpu-check: no NVIDIA GPU here: CUDA's driver is missing or finds none. Nothing was checked.")
        return NO_GPU
    print(f"gpu-check: {gpu}", flush=True)
    if options.output is not None:
        options.output.mkdir(parents=True, exist_ok=True)
    check = Check(options)

    def write() -> None:
        if options.json is not None:
            write_json(options.json, gpu, check.outcomes)
        if options.output is not None:
            write_json(options.output / "results.json", gpu, check.outcomes)
            (options.output / "table.txt").write_text("\n".join([f"{gpu}:", *map(line_of, check.outcomes), ""]))

    if check.part("build", check.build_all).state == "passed":
        for name in PARTS:
            if name in options.parts:
                write()
                check.part(name, getattr(check, name))
    write()
    print("\n".join(["", f"{gpu}:", *map(line_of, check.outcomes)]))
    for outcome in check.outcomes:
        for what, text in outcome.details.items():
            if outcome.state == "failed" and isinstance(text, str):
                print(f"\n{outcome.part}, {what}:\n{text}")
    return int(any(outcome.state == "failed" for outcome in check.outcomes))


if __name__ == "__main__":
    sys.exit(main())
