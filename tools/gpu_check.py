# SPDX-License-Identifier: BSD-3-Clause
"""Checks everything that takes a GPU, on the machine that this runs on: ``make gpu-check``.

Builds with the torch and the CUDA of the machine, without the network, and runs in turn
    smoke      ten lines in one process: whose allocator is in place, a few operators, memory, the end of the process
    drivers    the tests of the CUDA driver, and of HIP's calls over CUDA where HIP's headers are, on the GPU
    python     the tests made for real GPUs
    figures    copies, submission, allocation, events, a training step, beside CUDA's own
    compile    torch.compile beside that of `cuda`
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
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NO_GPU = 77
REHEARSAL = "OPENREG_GPU_CHECK_REHEARSAL"
DRIVER_TESTS = ("gpu_slots_test", "gpu_peer_test", "gpu_vmm_test")  # those that don't need a fake
KEPT, PRINTED = 12000, 3000
"""Characters at the end of a command's output that are in the JSON, and that are printed if it failed."""
PARTS = ("smoke", "drivers", "python", "figures", "compile", "demo", "profile", "sanitizer", "operators", "suites")
LEFT_OUT = {
    "drivers": "no GoogleTest on this machine (--googletest PATH of its sources)",
    "sanitizer": "no compute-sanitizer on this machine",
}
"""Why a part may have no command."""
PYTEST = r"^[ =]*(\d+ (?:passed|failed|skipped|error).*?)[ =]*$"
"""pytest's last line."""
QUICK_ENTRIES = ("add/float32", "matmul/float32", "mul/bfloat16", "sum/float32")
"""Of a rehearsal."""
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
print(f"allocator: {place}; 200 blocks of 1 MiB: {asked >> 20} MiB reserved, {taken >> 20} MiB gone from the GPU")
assert taken <= asked + (4 << 20), (taken, asked)
"""
)

PROFILE = (
    ALLOCATOR
    + """
import sys
sys.path.insert(0, "tools")
from gpu_figures import block
from torch.profiler import ProfilerActivity, profile
a, b = (torch.ones(16, device="openreg") for _ in range(2))
layer = block(512, 8).to("openreg", torch.bfloat16)
z = torch.randn(4, 256, 512).to("openreg", torch.bfloat16).requires_grad_()
for name, work in (("a + b", lambda: a + b), ("block", lambda: layer(z).sum().backward())):
    work(); torch.openreg.synchronize()
    with profile(activities=[ProfilerActivity.CPU]) as found:
        for _ in range(int(sys.argv[1])):
            work()
        torch.openreg.synchronize()
    print(name); print(found.key_averages().table(sort_by="self_cpu_time_total", row_limit=15))
"""
)


@dataclass(frozen=True)
class Command:
    """One of a part's commands."""

    what: str
    arguments: list[str]
    seconds: float
    environment: dict[str, str] = field(default_factory=dict)
    summary: str = ""  # a pattern that its output has if all is well; the last match is what is said of it
    never: str = ""  # a text that its output hasn't if all is well
    informative: bool = False  # whether the part passes without it
    shown: bool = False  # whether its output is printed
    results: Path | None = None  # JSON that it writes, for the details


@dataclass
class Outcome:
    """What came of one part."""

    part: str
    state: str = "passed"  # passed, failed, left out
    summary: str = ""
    seconds: float = 0.0
    details: dict[str, Any] = field(default_factory=dict)
    """By command the end of its output, and the results that it wrote."""
    failed: list[str] = field(default_factory=list)  # commands

    def line(self) -> str:
        """One line of the table."""
        return f"  {self.part:10} {self.state:9} {self.seconds:7.1f} s  {self.summary}"


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


def run(command: Command, seconds: float) -> tuple[str, str]:
    """Runs a command in the checkout and ends it, with all it has started, after `seconds`.

    Returns:
        How it ended, which is "" for status 0, and its output.
    """
    try:
        process = subprocess.Popen(
            command.arguments,
            cwd=ROOT,
            env={**os.environ, **command.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return f"{type(error).__name__}: {error}", ""
    try:
        output, _ = process.communicate(timeout=max(seconds, 1.0))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return "out of time", process.communicate()[0]
    if process.returncode < 0:
        return f"signal {-process.returncode}", output
    return f"status {process.returncode}" if process.returncode else "", output


def run_part(name: str, commands: list[Command], deadline: float, logs: Path | None = None) -> Outcome:
    """Runs a part's commands one after the other; what goes wrong is its failure and nobody else's.

    `deadline` is one of time.monotonic(), and all that the commands say is appended to the file `logs`.
    """
    outcome, start = Outcome(name), time.monotonic()
    said: list[str] = []
    if not commands:
        outcome.state, outcome.summary = "left out", LEFT_OUT.get(name, "")
    for command in commands:
        left = min(command.seconds, deadline - time.monotonic())
        if command.results is not None:
            command.results.unlink(missing_ok=True)
        wrong, output = run(command, left) if left > 0 else ("no time left", "")
        if logs is not None:
            with logs.open("a") as file:
                file.write(f"===== {name}, {command.what}: {wrong or 'status 0'}\n{output}\n")
        matches = re.findall(command.summary, output, re.MULTILINE)
        if not wrong and not matches:
            wrong = f"no {command.summary!r} in its output"
        elif not wrong and command.never and command.never in output:
            wrong = f"{command.never!r} in its output"
        if wrong and not command.informative:
            outcome.state = "failed"
            outcome.failed.append(command.what)
        said.append(": ".join(filter(None, [command.what if wrong or commands[1:] else "", wrong, *matches[-1:]])))
        outcome.details[command.what] = output[-KEPT:]
        tests = re.findall(r"^FAILED (\S+)", output, re.MULTILINE)
        if tests:
            outcome.details[f"{command.what}, failed"] = tests
        if command.results is not None and command.results.exists():
            outcome.details.update(json.loads(command.results.read_text()))
        if command.shown:
            print(output, end="", flush=True)
    outcome.summary = outcome.summary or "; ".join(said)
    outcome.seconds = round(time.monotonic() - start, 1)
    return outcome


def has_header(name: str, *roots: str) -> bool:
    """Whether a header is in one of the folders, or the machine's own."""
    return any(Path(root, name).exists() for root in (*roots, "/usr/include", "/usr/local/include"))


def build_commands(options: argparse.Namespace) -> list[Command]:
    """The package, then the C++ tests where GoogleTest is: they may fail without costing the rest.

    Nothing is fetched: tests are built from sources or an installed GoogleTest, or not at all.
    """
    build = str(options.build)
    tests = options.googletest is not None or has_header("gtest/gtest.h")
    rocm = os.environ.get("ROCM_PATH", "/opt/rocm")
    hip = has_header("hip/nvidia_detail/nvidia_hip_runtime_api.h", f"{rocm}/include")
    configure = ["cmake", "-S", ".", "-B", build, f"-DPython3_EXECUTABLE={sys.executable}", "-DOPENREG_CUDA=ON"]
    for option, is_on in (("HIP_ON_NVIDIA", hip), ("BUILD_TESTS", tests)):
        configure.append(f"-DOPENREG_{option}={'ON' if is_on else 'OFF'}")
    configure += [f"-DFETCHCONTENT_SOURCE_DIR_GOOGLETEST={options.googletest}"] if options.googletest else []
    configure += ["-G", "Ninja"] if shutil.which("ninja") else []
    make = ["cmake", "--build", build, "--parallel", str(options.jobs), "--target"]
    install = ["cmake", "--install", build, "--prefix", "python/torch_openreg"]
    package = " && ".join(map(shlex.join, (configure, [*make, "openreg_package"], install)))
    more = [*(["openreg_hip_nvidia"] if hip else []), *(DRIVER_TESTS if tests else [])]
    return [
        # A first import of torch is part of it, which reads gigabytes of libraries.
        Command("openreg_package", ["sh", "-c", package], 480),
        *(Command(target, [*make, target], 90, informative=True) for target in more),
    ]


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


def driver_commands(build: Path) -> list[Command]:
    """GoogleTest programs of the drivers, on the real libraries; those that were built."""
    libraries = [build / f"runtime/drivers/gpu/libopenreg_{name}.so" for name in ("cuda", "hip_nvidia")]
    programs = [build / "tests/runtime" / name for name in DRIVER_TESTS]
    return [
        Command(
            f"{library.stem}: {program.name}",
            [str(program), "--gtest_filter=*/real"],
            60,
            {"TEST_GPU_DRIVER": str(library)},
            # The others may need a second GPU, or memory that can be mapped.
            rf"\[  PASSED  \] ({'[1-9]' if program.name == DRIVER_TESTS[0] else ''}\d* tests?)",
        )
        for library in libraries
        for program in programs
        if library.exists() and program.exists()
    ]


def commands_of(options: argparse.Namespace) -> dict[str, list[Command]]:
    """By part, on what is built now."""
    build, quick = options.build, ["--quick"] * options.quick
    gpu = python_environment(build, OPENREG_DRIVERS="cuda")
    # Tests use openreg:1; device 0 is a simulated one, so that there are two on a machine with one GPU.
    mixed = {"OPENREG_DRIVERS": "sim,cuda", "OPENREG_SIM_DEVICES": "1", "OPENREG_CUDA_VISIBLE_DEVICES": "0"}
    figures = [sys.executable, "tools/gpu_figures.py", "--reference", options.reference, *quick]
    aims = r"^\d+ of \d+ aims reached.*"
    # A rehearsal's GPU is a processor without bfloat16: seconds for each pass through the block.
    rounds, profile_seconds = ("1", 300) if options.quick else ("20", 60)
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    memcheck = [sanitizer, "--tool", "memcheck", "--error-exitcode", "9", sys.executable, "-c", SMOKE]
    seconds = min(220, options.deadline - time.monotonic())
    operators = [sys.executable, "tests/opinfo/on_gpu.py", "--logs", str(build / "gpu-operators")]
    compared = build / "gpu-operators.json"
    operators += ["--json", str(compared), "--budget", str(max(seconds - 15, 5))]
    operators += ["--samples", str(options.samples), "--jobs", str(min(options.jobs, 12))]
    operators += ["--reference", options.reference, *(["--entries", *QUICK_ENTRIES] if options.quick else [])]

    def pytest(name: str, limit: float, environment: dict[str, str], informative: bool) -> Command:
        flags = ("-q", "--tb=short", "-p", "no:cacheprovider", "-o", "addopts=-ra")  # the project's ask for plugins
        command = [sys.executable, "-m", "pytest", *flags, f"tests/python/{name}"]
        return Command(name, command, limit, environment, PYTEST, informative=informative)

    def measure(limit: float, name: str, *more: str) -> Command:
        path = build / f"gpu-{name}.json"
        return Command(name, [*figures, "--json", str(path), *more], limit, gpu, aims, shown=True, results=path)

    return {
        "build": build_commands(options),
        "smoke": [Command("smoke", [sys.executable, "-c", SMOKE], 90, gpu, "^allocator: .*")],
        "drivers": driver_commands(build),
        "python": [pytest("gpu/test_real_gpu.py", 150, {**gpu, "TEST_REAL_GPU": "1"}, False)],
        "figures": [measure(240, "figures")],
        "compile": [measure(300, "compile", "--compiled")],
        "demo": [
            Command(
                "examples/train_digits.py",
                [sys.executable, "examples/train_digits.py", "--output", str(build / "demo")],
                60,
                gpu,
                "cpu and openreg:0 differ by.*",
                never="keeps its own allocator",
            )
        ],
        "profile": [Command("profile", [sys.executable, "-c", PROFILE, rounds], profile_seconds, gpu)],
        "sanitizer": [Command("memcheck", memcheck, 100, gpu, "ERROR SUMMARY: .*")] if Path(sanitizer).exists() else [],
        "operators": [Command("on_gpu.py", operators, 220, gpu, "^(?:float32|bfloat16): .*", results=compared)],
        # For information: they ask for the CPU's bits in places.
        "suites": [
            pytest(name, 90, python_environment(build, **mixed), True)
            for name in ("operators/test_operators.py", "training/test_training.py")
        ],
    }


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
    options.build = options.build.resolve()
    options.deadline = time.monotonic() + options.budget
    return options


def write_results(options: argparse.Namespace, gpu: str, outcomes: list[Outcome]) -> None:
    """What there is so far: JSON for programs, a table to read."""
    results = json.dumps({"gpu": gpu, "parts": [asdict(outcome) for outcome in outcomes]}, indent=1) + "\n"
    if options.json is not None:
        options.json.write_text(results)
    if options.output is not None:
        (options.output / "results.json").write_text(results)
        (options.output / "table.txt").write_text("\n".join([f"{gpu}:", *(one.line() for one in outcomes), ""]))


def main(arguments: list[str] | None = None) -> int:
    """0, 1 or 77."""
    options = parse(arguments)
    gpu = find_gpu()
    if gpu is None:
        print("gpu-check: no NVIDIA GPU here: CUDA's driver is missing or finds none. Nothing was checked.")
        return NO_GPU
    print(f"gpu-check: {gpu}", flush=True)
    options.build.mkdir(parents=True, exist_ok=True)
    if options.output is not None:
        options.output.mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    for name in [*(["build"] if not options.skip_build else []), *(one for one in PARTS if one in options.parts)]:
        logs = options.output / "logs.txt" if options.output is not None else None
        outcomes.append(run_part(name, commands_of(options)[name], options.deadline, logs))
        print(outcomes[-1].line(), flush=True)
        write_results(options, gpu, outcomes)
        if name == "build" and outcomes[-1].state == "failed":
            break
    print("\n".join(["", f"{gpu}:", *(one.line() for one in outcomes)]))
    for outcome in outcomes:
        for what in outcome.failed:
            print(f"\n{outcome.part}, {what}:\n{outcome.details[what][-PRINTED:]}")
    return int(any(outcome.state == "failed" for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
