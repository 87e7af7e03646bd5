# SPDX-License-Identifier: BSD-3-Clause
"""Compares PyTorch's database of operators on openreg with the device `cuda`, forward and backward.

Once openreg is registered, backward on `cuda` fails in the process. So each device has processes of its own, which
write what they got; then both are compared. An operator that crashes its process costs itself alone.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import select
import subprocess
import sys
import threading
import time
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

DTYPES = ("float32", "bfloat16")
STARTUP_SECONDS = 120.0
ENTRY_SECONDS = 30.0
LOST_CONTEXT = (
    *("CUDA error", "device-side assert", "illegal memory access", "misaligned address"),
    *("unspecified launch failure", "is lost"),
)
# Their results are whatever memory held.
UNINITIALISED = frozenset(
    (
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "resize_as_",
    )
)
# They compile a kernel for tensors of the device type cuda, and take no others.
CUDA_ONLY = "jiterator_"

Results = dict[str, Any]
"""By entry, "mul.variant/float32": {"error": text} or {"samples": [...]}; what was not reached is missing."""

# ------------------------------------------------------------------------------------------------ one process's work


def _import_database() -> Any:
    try:
        import expecttest  # noqa: F401
    except ImportError:  # PyTorch's helpers derive a class from this one; nothing of it is used here
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = __import__("unittest").TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stand_in
    from torch.testing._internal import common_methods_invocations

    return common_methods_invocations


def entries_of(dtypes: Iterable[str]) -> dict[str, tuple[Any, Any]]:
    """OpInfo and dtype by entry, of what PyTorch says CUDA supports and two devices can be compared by."""
    import torch

    found = {}
    for name in dtypes:
        dtype = getattr(torch, name)
        for info in _import_database().op_db:
            if info.name in UNINITIALISED or info.name.startswith(CUDA_ONLY):
                continue
            if dtype in info.dtypesIfCUDA:
                operator = f"{info.name}.{info.variant_test_name}" if info.variant_test_name else info.name
                found[f"{operator}/{name}"] = (info, dtype)
    return found


def _moved(value: Any, device: str) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach().to(device).requires_grad_(value.requires_grad)
    if isinstance(value, (list, tuple)):
        items = [_moved(item, device) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {key: _moved(item, device) for key, item in value.items()}
    return device if isinstance(value, torch.device) or value == "cpu" else value


def _tensors(value: Any) -> Iterator[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)


def _on_host(value: Any) -> Any:
    return [tensor.detach().cpu().resolve_conj().resolve_neg() for tensor in _tensors(value)]


def _run_sample(info: Any, sample: Any, device: str, backward: bool) -> dict[str, Any]:
    import torch

    input_ = _moved(sample.input, device)
    args, kwargs = _moved(tuple(sample.args), device), _moved(dict(sample.kwargs), device)
    torch.manual_seed(11)
    result = info.op(input_, *args, **kwargs)
    outcome: dict[str, Any] = {"forward": _on_host(result)}
    inputs = [tensor for tensor in _tensors((input_, args, kwargs)) if tensor.requires_grad]
    outputs = [tensor for tensor in _tensors(sample.output_process_fn_grad(result)) if tensor.requires_grad]
    if backward and inputs and outputs:
        gradients = torch.autograd.grad(outputs, inputs, [torch.ones_like(o) for o in outputs], allow_unused=True)
        outcome["backward"] = _on_host([gradient for gradient in gradients if gradient is not None])
    return outcome


def run_entry(info: Any, dtype: Any, device: str, samples: int) -> dict[str, Any]:
    """Results of the first samples; an error ends the entry and is its last result."""
    import itertools

    import torch

    torch.manual_seed(5)
    backward = info.supports_autograd and dtype in info.supported_backward_dtypes("cuda")
    done: list[dict[str, Any]] = []
    try:
        for sample in itertools.islice(info.sample_inputs("cpu", dtype, requires_grad=backward), samples):
            state = torch.get_rng_state()
            done.append(_run_sample(info, sample, device, backward))
            torch.set_rng_state(state)
    except Exception as error:
        return {"samples": done, "error": f"{type(error).__name__}: {error}"[:300]}
    return {"samples": done}


def work(device: str, samples: int, folder: Path) -> None:
    """Reads entries from standard input, answers each by a line, and leaves the results in a file of the folder."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    import torch

    if device.startswith("openreg"):
        import torch_openreg  # noqa: F401

        # Before the database: importing it asks torch.cuda for properties, and PyTorch would keep its own allocator.
        (torch.ones(1, device=device) + 1).cpu()
        if torch.openreg.operator_stats()["gpu_allocator"] == "torch":
            raise RuntimeError("PyTorch has kept its own allocator: this would compare copies of results, not results")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    entries = entries_of(DTYPES)
    with (folder / f"{os.getpid()}.pickle").open("wb") as file:
        print("ready", file=answers)
        for line in sys.stdin:
            entry = line.strip()
            result = run_entry(*entries[entry], device, samples)
            pickle.dump((entry, result), file)
            file.flush()
            print(json.dumps(entry), file=answers)
            if any(text in result.get("error", "") for text in LOST_CONTEXT):
                os._exit(3)  # nothing works in this process any more


# ------------------------------------------------------------------------------------------------ several processes


class Worker:
    """A process that takes one item a line; it is started when first needed and again after it was lost."""

    def __init__(self, command: list[str], log: Path | None = None) -> None:
        self._command = command
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    def ask(self, item: str, seconds: float) -> str | None:
        """None if the process has dealt with the item, else how it was lost."""
        try:
            process = self._started()
            assert process.stdin is not None
            print(item, file=process.stdin, flush=True)
            self._wait_for_line(process, seconds)
        except TimeoutError:
            self.stop()
            return "hung"
        except (EOFError, BrokenPipeError):
            return f"crashed, status {self.stop()}{self._last_words()}"
        return None

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines() if self._log is not None else []
        return f": {lines[-1][:200]}" if lines else ""

    def stop(self) -> int | None:
        """Ends the process; its status."""
        process, self._process = self._process, None
        if process is None:
            return None
        if process.stdin is not None:
            with suppress(BrokenPipeError):
                process.stdin.close()
        try:
            return process.wait(3)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            with open(self._log or os.devnull, "w") as errors:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    env={"OMP_NUM_THREADS": "1", **os.environ},  # the workers share the processors
                )
            self._wait_for_line(self._process, STARTUP_SECONDS)
        return self._process

    @staticmethod
    def _wait_for_line(process: subprocess.Popen[str], seconds: float) -> None:
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], seconds)[0]:
            raise TimeoutError
        if not process.stdout.readline():
            raise EOFError


def run_all(
    items: Iterable[str], command: list[str], jobs: int, deadline: float, logs: Path | None = None
) -> dict[str, str]:
    """Gives every item to one of `jobs` workers until the deadline.

    Args:
        items: What each of a worker's lines says.
        command: Starts a worker.
        jobs: Workers.
        deadline: By time.monotonic().
        logs: A folder for what the workers write to stderr.

    Returns:
        The items that lost their worker, and how.
    """
    queue: SimpleQueue[str] = SimpleQueue()
    for item in items:
        queue.put(item)
    lost: dict[str, str] = {}

    def one(number: int) -> None:
        worker = Worker(command, None if logs is None else logs / f"worker-{number}.log")
        try:
            while time.monotonic() < deadline:
                item = queue.get_nowait()
                how = worker.ask(item, min(ENTRY_SECONDS, max(deadline - time.monotonic(), 1)))
                if how is not None and time.monotonic() < deadline:
                    lost[item] = how
        except Empty:
            pass
        finally:
            worker.stop()

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, range(jobs)))
    return lost


def read_results(folder: Path) -> Results:
    """What the processes have left; the last result of one that crashed may be cut off."""
    results: Results = {}
    for path in sorted(folder.glob("*.pickle")):
        with path.open("rb") as file:
            while True:
                try:
                    entry, result = pickle.load(file)
                except (EOFError, pickle.UnpicklingError):
                    break
                results[entry] = result
    return results


# ------------------------------------------------------------------------------------------------------- comparison


@dataclass(frozen=True)
class Verdict:
    """What came of an entry."""

    state: str
    """passed; both fail; differs; fails (on openreg alone); crashed; not reached."""
    why: str = ""


def _difference(ours: dict[str, Any], theirs: dict[str, Any]) -> str | None:
    import torch

    for what in sorted(theirs):
        if len(ours.get(what, ())) != len(theirs[what]):
            return f"{what}: {len(ours.get(what, ()))} tensors, not {len(theirs[what])}"
        for one, other in zip(ours[what], theirs[what], strict=True):
            try:
                torch.testing.assert_close(one, other, equal_nan=True, check_stride=True)
            except Exception as error:  # of whatever kind: it is this comparison's, and the others go on
                return f"{what}: {(str(error) or type(error).__name__).splitlines()[0]}"
    return None


def compare(ours: Any, theirs: Any, lost: str | None, reference_lost: str | None) -> Verdict:
    """An entry's results on openreg against those on the reference."""
    if lost is not None:
        return Verdict("both fail" if reference_lost is not None else "crashed", lost)
    if ours is None or theirs is None:
        return Verdict("not reached")
    if "error" in ours or "error" in theirs:
        why = f"{ours.get('error', 'works')} | reference: {theirs.get('error', 'works')}"
        return Verdict("both fail" if "error" in theirs else "fails", why)
    for one, other in zip(ours["samples"], theirs["samples"], strict=True):
        difference = _difference(one, other)
        if difference is not None:
            return Verdict("differs", difference)
    return Verdict("passed")


def compare_all(
    entries: Iterable[str], ours: Results, theirs: Results, lost: dict[str, str], reference_lost: dict[str, str]
) -> dict[str, Any]:
    """The report: counts by state and dtype, and everything that is not as on the reference."""
    by_dtype: dict[str, Counter[str]] = {}
    wrong: dict[str, str] = {}
    for entry in entries:
        verdict = compare(ours.get(entry), theirs.get(entry), lost.get(entry), reference_lost.get(entry))
        by_dtype.setdefault(entry.rsplit("/", 1)[1], Counter())[verdict.state] += 1
        if verdict.state in ("differs", "fails", "crashed"):
            wrong[entry] = f"{verdict.state}: {verdict.why}"
    texts = [
        f"{dtype}: " + ", ".join(f"{n} {state}" for state, n in sorted(c.items())) for dtype, c in by_dtype.items()
    ]
    return {"summary": "; ".join(texts), "counts": by_dtype, "wrong": wrong}


def run_device(device: str, folder: Path, options: argparse.Namespace, deadline: float) -> dict[str, str]:
    """Runs the entries on a device; which were lost."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.pickle"):
        old.unlink()
    command = [sys.executable, __file__, "--work", device, "--folder", str(folder), "--samples", str(options.samples)]
    return run_all(options.chosen, command, options.jobs, deadline, folder)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--folder", type=Path, required=True, help="for the processes' results")
    parser.add_argument("--device", default="openreg")
    parser.add_argument("--reference", default="cuda")
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES)
    parser.add_argument("--entries", nargs="+", help="only these, as mul/float32")
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--budget", type=float, default=220, help="seconds")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--work", metavar="DEVICE", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None, say: Callable[[str], None] = print) -> int:
    """0 if every entry that was reached on both is the same on both."""
    start = time.monotonic()  # importing the database takes ten seconds of the budget
    options = parse(arguments)
    if options.work:
        work(options.work, options.samples, options.folder)
        return 0
    options.chosen = options.entries or list(entries_of(options.dtypes))
    # Half of what is left each, but for the comparison and the processes' ends.
    end = start + options.budget * 0.9 - 5
    middle = (time.monotonic() + end) / 2
    reference_lost = run_device(options.reference, options.folder / "reference", options, middle)
    theirs = read_results(options.folder / "reference")

    def write(lost: dict[str, str]) -> dict[str, Any]:
        ours = read_results(options.folder / "openreg")
        report = compare_all(options.chosen, ours, theirs, lost, reference_lost)
        if options.json is not None:
            options.json.write_text(json.dumps(report, indent=1) + "\n")
        return report

    stop = threading.Event()

    def write_now_and_then() -> None:  # whoever ends this process finds what there was
        while not stop.wait(20):
            write({})

    writer = threading.Thread(target=write_now_and_then, daemon=True)
    writer.start()
    lost = run_device(options.device, options.folder / "openreg", options, end)
    stop.set()
    writer.join()
    report = write(lost)
    say(report["summary"])
    for entry, why in report["wrong"].items():
        say(f"  {entry}: {why}")
    reached = sum(counts["passed"] for counts in report["counts"].values())
    return int(bool(report["wrong"]) or reached == 0)


if __name__ == "__main__":
    sys.exit(main())
