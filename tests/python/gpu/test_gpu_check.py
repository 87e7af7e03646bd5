# SPDX-License-Identifier: BSD-3-Clause
"""tools/gpu_check.py and its parts, as far as a machine without a GPU can show: on the fakes, and by their functions."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from pathlib import Path

import gpu_check  # conftest.py says where
import gpu_figures
import on_gpu
import pool
import pytest
from finished import finished

ROOT = Path(__file__).resolve().parents[3]

START = """
import ctypes, os, runpy, sys
fake = ctypes.CDLL(os.environ["FAKE_TORCH_CUDA"])
"""


@pytest.fixture
def tool_environment(driver_environment: dict[str, str], torch_cuda: dict[str, str]) -> dict[str, str]:
    """The tools' processes load the stand-in for PyTorch's library before anything else."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("OPENREG_", "PYTEST_"))}
    return {**inherited, **driver_environment, **torch_cuda}


def test_without_a_gpu_it_says_so() -> None:
    """Status 77, one line, and nothing is built."""
    if gpu_check.find_gpu() is not None:
        pytest.skip("there is a GPU")
    done = finished(["make", "--no-print-directory", "gpu-check", f"PYTHON={sys.executable}"], status=None, cwd=ROOT)
    assert "no NVIDIA GPU here" in done.stdout
    assert "77" in done.stderr  # make's own status is 2
    assert gpu_check.main([]) == 77
    assert not (ROOT / "build-gpu").exists()


def test_a_part_that_fails_costs_itself_alone(tmp_path: Path) -> None:
    """A program that isn't there, a bad status, a text and a command without end are failures; the next one runs."""
    crash = [sys.executable, "-c", "print('last words', flush=True); import os; os.abort()"]

    def part(what: str, arguments: list[str], seconds: float = 30, **more: object) -> gpu_check.Outcome:
        command = gpu_check.Command(what, arguments, seconds, **more)
        return gpu_check.run_part(what, [command], time.monotonic() + 60, tmp_path / "logs.txt")

    missing = part("missing", ["/no/such/program"])
    assert missing.state == "failed" and missing.summary.startswith("missing: FileNotFoundError")
    hangs = part("sleep", ["sleep", "60"], 1)
    assert (hangs.state, hangs.summary) == ("failed", "sleep: out of time") and hangs.seconds < 20
    crashes = part("abort", crash)
    assert (crashes.summary, crashes.details["abort"]) == ("abort: signal 6", "last words\n")
    assert part("echo", ["echo", "3 of 4"], never="of 4").state == "failed"
    assert part("echo", ["echo", "3 of 4"], summary="all").summary == "echo: no 'all' in its output"
    passes = part("echo", ["echo", "3 of 4"], summary=r"^\d of")
    assert (passes.state, passes.summary) == ("passed", "3 of")
    assert part("abort", crash, informative=True).state == "passed"
    assert "===== abort, abort: signal 6\nlast words" in (tmp_path / "logs.txt").read_text()
    assert gpu_check.run_part("sanitizer", [], time.monotonic() + 60).state == "left out"


def test_nothing_starts_when_the_time_is_up() -> None:
    """A part that the budget leaves no time for is a failure that says so."""
    outcome = gpu_check.run_part("late", [gpu_check.Command("true", ["true"], 30)], time.monotonic())
    assert (outcome.state, outcome.summary) == ("failed", "true: no time left")


@pytest.mark.parametrize("last", ["3 passed, 1 skipped in 1.2s", "==== 1 failed, 2 passed in 3.4s ===="])
def test_pytests_last_line_is_the_summary(last: str) -> None:
    """Without what it is drawn with."""
    assert re.findall(gpu_check.PYTEST, f"..F [100%]\nFAILED a.py::b - 1 is 2\n{last}\n", re.MULTILINE) == [
        last.strip("= ")
    ]


def test_figures_are_compared_by_their_aims(tmp_path: Path) -> None:
    """More is better for copies, less for times; the better of two runs counts; what has no counterpart is left out."""
    ours: dict[str, float] = {}
    gpu_figures.keep_best(ours, {"host to device, 1 MiB": 20.0, "event, record and query": 900.0})
    gpu_figures.keep_best(ours, {"host to device, 1 MiB": 25.0, "event, record and query": 1000.0, "unknown": 1.0})
    assert ours["host to device, 1 MiB"] == 25.0 and ours["event, record and query"] == 900.0
    figures = gpu_figures.compare(ours, {"host to device, 1 MiB": 25.0, "event, record and query": 850.0})
    assert [(one["name"], one["met"]) for one in figures] == [
        ("host to device, 1 MiB", True),
        ("event, record and query", False),
    ]
    table = gpu_figures.table(figures)
    assert "MISSED" in table.splitlines()[2] and "MISSED" not in table.splitlines()[1]

    outcome = gpu_check.Outcome("figures", "failed", "1 of 2 aims reached", 1.5, {"figures": [1]})
    gpu_check.write_results(gpu_check.parse(["--json", str(tmp_path / "out.json")]), "H200", [outcome])
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["gpu"] == "H200" and written["parts"][0]["summary"] == "1 of 2 aims reached"
    assert "1 of 2 aims reached" in outcome.line()


WORKER = """
import os, sys, time
print("ready", flush=True)
for line in sys.stdin:
    item = line.strip()
    if item == "crash":
        os.abort()
    if item == "hang":
        time.sleep(60)
    print(item.upper(), flush=True)
"""


def test_operators_survive_a_crash_and_a_hang(tmp_path: Path) -> None:
    """The item that ends its worker is lost and said to be; all others are dealt with."""
    worker = pool.Worker([sys.executable, "-c", WORKER], dict(os.environ), tmp_path / "log")
    items = ["a", "crash", "b", "hang", "c"]
    answers = {item: str(answer).strip() for item, answer in pool.ask_all(items, [worker], 2.0, time.monotonic() + 60)}
    assert answers.pop("crash").startswith("crashed, status -6")
    assert answers == {"a": "A", "b": "B", "hang": "hung", "c": "C"}


def test_verdicts() -> None:
    """What differs, fails on one alone, fails on both, is lost or was not reached."""
    import torch

    def result(*values: float, **more: str) -> dict[str, object]:
        return {"samples": [{"forward": [torch.tensor(values)]}], **more}

    def state(*arguments: object) -> str:
        return on_gpu.compare(*arguments)[0]

    crashed = pool.LostError("crashed, status -6")
    assert state(result(1.0), result(1.0)) == "passed"
    assert state(result(1.0), result(1.5)) == "differs"
    assert state(result(1.0, 2.0), result(1.0)) == "differs"
    assert state(result(1.0, error="no"), result(1.0)) == "fails"
    assert state(result(1.0), result(1.0, error="no")) == "both fail"
    assert state(crashed, result(1.0)) == "crashed"
    assert state(crashed, crashed) == "both fail"
    assert state(result(1.0), crashed) == "not reached"
    assert state(None, result(1.0)) == "not reached"
    verdicts = {"a/float32": ("passed", ""), "b/float32": ("differs", "forward")}
    report = on_gpu.report([*verdicts, "c/float32"], verdicts)
    assert report["summary"] == "float32: 1 differs, 1 not reached, 1 passed"
    assert report["wrong"] == {"b/float32": "differs: forward"}


def test_what_cannot_be_compared_is_left_out() -> None:
    """Uninitialised results and operators that take tensors of the type cuda alone; everything else is there."""
    names = {entry.split("/")[0].split(".")[0] for entry in on_gpu.entries_of(["float32"])}
    assert not names & {"empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided", "empty_permuted"}
    assert not [name for name in names if name.startswith("jiterator")]
    assert {"add", "new_zeros", "resize_as", "nn"} & names >= {"add", "new_zeros", "nn"}


def test_any_exception_of_a_comparison_is_its_own_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison that raises what nobody thought of is a difference with its words, and the others go on."""
    import torch

    def breaks(*_arguments: object, **_options: object) -> None:
        raise NotImplementedError("no such layout")

    monkeypatch.setattr(torch.testing, "assert_close", breaks)
    result = {"samples": [{"forward": [torch.ones(1)]}]}
    assert on_gpu.compare(result, result) == ("differs", "forward: no such layout")


def test_a_worker_with_the_wrong_allocator_says_so(tmp_path: Path, tool_environment: dict[str, str]) -> None:
    """Where PyTorch has kept its allocator, nothing is compared, and the reason is in the result."""
    command = [sys.executable, str(ROOT / "tests/opinfo/on_gpu.py"), "--work", "openreg"]
    (tmp_path / "sitecustomize.py").write_text(PRELOAD)
    more = {"PYTHONPATH": str(tmp_path), "FAKE_TORCH_CUDA_IN_USE": "1"}
    done = finished(command, status=None, env={**tool_environment, **more}, input="")
    assert done.returncode != 0
    assert "PyTorch has kept its own allocator" in done.stderr


@pytest.mark.long
def test_operators_are_compared_across_processes(tmp_path: Path, tool_environment: dict[str, str]) -> None:
    """The whole way, with the stand-in's device against the CPU: forward, backward, and a draw by one seed."""
    entries = ["add/float32", "matmul/float32", "mul/bfloat16", "nn.functional.conv2d/float32", "sum/float32"]
    path = tmp_path / "operators.json"
    # The processes that it starts load the stand-in too: LD_PRELOAD has no use for the shell's programs, so only here.
    preload = {**tool_environment, "LD_PRELOAD": tool_environment["FAKE_TORCH_CUDA"]}
    finished(
        [
            *(sys.executable, str(ROOT / "tests/opinfo/on_gpu.py"), "--logs", str(tmp_path)),
            *("--reference", "cpu", "--jobs", "1", "--json", str(path), "--entries", *entries),
        ],
        env=preload,
        timeout=280,
    )
    assert json.loads(path.read_text())["counts"] == {"float32": {"passed": 4}, "bfloat16": {"passed": 1}}


@pytest.mark.parametrize("more", [[], pytest.param(["--compiled"], marks=pytest.mark.long)])
def test_figures_run_on_the_stand_in(tool_environment: dict[str, str], more: list[str]) -> None:
    """Each figure has a number; with small sizes, because these are no real ones."""
    code = START + "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    done = finished(
        [sys.executable, "-c", code, str(ROOT / "tools/gpu_figures.py"), "--device", "openreg", "--quick", *more],
        env=tool_environment,
        timeout=280,
    )
    figures = json.loads(done.stdout.splitlines()[-1])
    assert all(value > 0 for value in figures.values())
    assert not more or "openreg compiled without Triton" in done.stdout
    aims = gpu_figures.COMPILED_AIMS if more else gpu_figures.AIMS
    assert {start for start in aims if any(name.startswith(start) for name in figures)} == set(aims)


PRELOAD = """
import ctypes, os
for name in ("libc10.so", "libtorch_cpu.so"):
    ctypes.CDLL(os.path.join(os.environ["TORCH_LIBRARIES"], name))
ctypes.CDLL(os.environ["FAKE_TORCH_CUDA"])
"""


def test_the_demo_allows_for_how_a_gpu_rounds(tool_environment: dict[str, str]) -> None:
    """Its tolerances are wider than 1e-3 a convolution (TF32) moves the results, on a GPU's kernels alone."""
    code = START + (
        "import pathlib\n"
        "for name in ('libc10.so', 'libtorch_cpu.so'): ctypes.CDLL(os.path.join(os.environ['TORCH_LIBRARIES'], name))\n"
        "import torch, torch_openreg\n"
        f"demo = runpy.run_path({str(ROOT / 'examples/train_digits.py')!r})\n"
        "torch.manual_seed(0)\n"
        "net, x = torch.nn.Conv2d(3, 4, 3), torch.randn(2, 3, 8, 8)\n"
        "far = net(x), net.to('openreg')(x.to('openreg')).cpu()\n"
        "print((far[0] - far[1]).abs().max().item(), *demo['tolerances']())\n"
    )
    noisy = {**tool_environment, "FAKE_TORCH_CUDA_NOISE": "1e-3"}
    done = finished([sys.executable, "-c", code], env=noisy, timeout=120)
    gap, accuracy, loss = map(float, done.stdout.split()[-3:])
    assert 1e-4 < gap < loss
    assert (accuracy, loss) == (0.01, 0.05)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_first_minutes_are_rehearsed(tmp_path: Path, tool_environment: dict[str, str]) -> None:
    """tools/gpu_first.sh over the fakes: no make, no GoogleTest; a table, results and logs are written as they come."""
    (tmp_path / "preload").mkdir()
    (tmp_path / "preload" / "sitecustomize.py").write_text(PRELOAD)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in (
        "bash",
        "dirname",
        "mkdir",
        "tar",
        "gzip",
        "date",
        "head",
        "tail",
        "grep",
        "nproc",
        "df",
        "stat",
        "cp",
    ):
        found = shutil.which(name)
        assert found is not None
        (programs / name).symlink_to(found)
    environment = {
        **tool_environment,
        "PATH": str(programs),
        "PYTHON": sys.executable,
        "PYTHONPATH": str(tmp_path / "preload"),
        "OPENREG_GPU_CHECK_REHEARSAL": "stand-in for a GPU",
        "GPU_CHECK_OPTIONS": f"--skip-build --quick --reference cpu --jobs 2 --build {tmp_path / 'build'}",
        "SECONDS_LEFT": "550",
    }
    done = finished(
        ["bash", str(ROOT / "tools/gpu_first.sh"), str(tmp_path / "out"), "rehearsal"],
        status=None,
        env=environment,
        timeout=580,
    )
    out = tmp_path / "out"
    said = done.stdout[-6000:] + done.stderr[-3000:]
    results = {part["part"]: part for part in json.loads((out / "results.json").read_text())["parts"]}
    states = {name: part["state"] for name, part in results.items()}
    wanted = {"smoke", "figures", "profile", "operators"}
    assert states == dict.fromkeys(wanted, "passed"), said
    assert done.returncode == 0, said
    assert "allocator: openreg" in results["smoke"]["summary"]
    assert results["operators"]["summary"] == "float32: 3 passed; bfloat16: 1 passed"
    assert "make: none" in (out / "facts.txt").read_text()
    assert "===== smoke, smoke" in (out / "logs.txt").read_text()
    assert (out / "table.txt").read_text().startswith("stand-in for a GPU")
