# SPDX-License-Identifier: BSD-3-Clause
"""Compares PyTorch's database of operators on openreg with the device `cuda`, forward and backward.

Once openreg is registered, backward on `cuda` fails in the process. So each device has processes of its own, which
answer with what they got. An operator that crashes its process costs itself alone.
"""

from __future__ import annotations

import argparse
import base64
import itertools
import json
import os
import pickle
import sys
import time
import types
import unittest
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from pool import LostError, Worker, ask_all

DTYPES = ("float32", "bfloat16")
ENTRY_SECONDS = 30.0
LOST_CONTEXT = (
    *("CUDA error", "device-side assert", "illegal memory access", "misaligned address"),
    *("unspecified launch failure", "is lost"),
)
# Their results are whatever memory held.
UNINITIALISED = frozenset(
    (
        *("empty", "empty_like", "empty_permuted", "empty_strided"),
        *("new_empty", "new_empty_strided", "resize_", "resize_as_"),
    )
)
# They compile a kernel for tensors of the device type cuda, and take no others.
CUDA_ONLY = "jiterator_"

Result = dict[str, Any]
"""Of an entry, "mul.variant/float32": {"samples": [...]}, and "error": text where one ended it."""


def entries_of(dtypes: Iterable[str]) -> dict[str, tuple[Any, torch.dtype]]:
    """OpInfo and dtype by entry, of what PyTorch says CUDA supports and two devices can be compared by."""
    try:
        import expecttest  # noqa: F401
    except ImportError:  # PyTorch's helpers derive a class from this one; nothing of it is used here
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stand_in
    from torch.testing._internal.common_methods_invocations import op_db

    found = {}
    for name, info in itertools.product(dtypes, op_db):
        dtype = getattr(torch, name)
        if info.name in UNINITIALISED or info.name.startswith(CUDA_ONLY) or dtype not in info.dtypesIfCUDA:
            continue
        operator = f"{info.name}.{info.variant_test_name}" if info.variant_test_name else info.name
        found[f"{operator}/{name}"] = (info, dtype)
    return found


def run_entry(info: Any, dtype: torch.dtype, device: str, samples: int) -> Result:
    """Results of the first samples; an error ends the entry and is its last result."""
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


def _run_sample(info: Any, sample: Any, device: str, backward: bool) -> dict[str, Any]:
    from torch_openreg_lab.check.paired_tensors import Mover, tensors_of

    def on_host(value: Any) -> list[torch.Tensor]:
        return [tensor.detach().cpu().resolve_conj().resolve_neg() for tensor in tensors_of(value)]

    input_, args, kwargs = Mover(device)((sample.input, tuple(sample.args), dict(sample.kwargs)))
    torch.manual_seed(11)
    result = info.op(input_, *args, **kwargs)
    outcome = {"forward": on_host(result)}
    inputs = [tensor for tensor in tensors_of((input_, args, kwargs)) if tensor.requires_grad]
    outputs = [tensor for tensor in tensors_of(sample.output_process_fn_grad(result)) if tensor.requires_grad]
    if backward and inputs and outputs:
        gradients = torch.autograd.grad(outputs, inputs, [torch.ones_like(o) for o in outputs], allow_unused=True)
        outcome["backward"] = on_host(gradients)
    return outcome


def work(device: str, samples: int) -> None:
    """Reads entries from standard input and answers each by a line with its result."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    if device.startswith("openreg"):
        import torch_openreg  # noqa: F401

        # Before the database: importing it asks torch.cuda for properties, and PyTorch would keep its own allocator.
        (torch.ones(1, device=device) + 1).cpu()
        if torch.openreg.operator_stats()["gpu_allocator"] == "torch":
            raise RuntimeError("PyTorch has kept its own allocator: this would compare copies of results, not results")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    entries = entries_of(DTYPES)
    print("ready", file=answers)
    for line in sys.stdin:
        result = run_entry(*entries[line.strip()], device, samples)
        print(base64.b64encode(pickle.dumps(result)).decode(), file=answers)
        if any(text in result.get("error", "") for text in LOST_CONTEXT):
            os._exit(3)  # nothing works in this process any more


def results_on(device: str, options: argparse.Namespace, deadline: float) -> Iterator[tuple[str, Result | LostError]]:
    """By entry, as they come; until the deadline."""
    environment = {"OMP_NUM_THREADS": "1", **os.environ}  # the workers share the processors
    command = [sys.executable, __file__, "--work", device, "--samples", str(options.samples)]
    options.logs.mkdir(parents=True, exist_ok=True)
    workers = [Worker(command, environment, options.logs / f"{device}-{n}.log") for n in range(options.jobs)]
    for entry, answer in ask_all(options.entries, workers, ENTRY_SECONDS, deadline):
        try:
            yield entry, answer if isinstance(answer, LostError) else pickle.loads(base64.b64decode(answer))
        except Exception as error:  # whatever a type of PyTorch's raises that can't be restored
            yield entry, LostError(f"its results can't be read: {error}")


def _difference(ours: dict[str, Any], theirs: dict[str, Any]) -> str | None:
    for what in sorted(theirs):
        if len(ours.get(what, ())) != len(theirs[what]):
            return f"{what}: {len(ours.get(what, ()))} tensors, not {len(theirs[what])}"
        for one, other in zip(ours[what], theirs[what], strict=True):
            try:
                torch.testing.assert_close(one, other, equal_nan=True, check_stride=True)
            except Exception as error:  # of whatever kind: it is this comparison's, and the others go on
                return f"{what}: {(str(error) or type(error).__name__).splitlines()[0]}"
    return None


def compare(ours: Result | LostError | None, theirs: Result | LostError | None) -> tuple[str, str]:
    """What came of an entry, on openreg and on the reference; None: it was not reached.

    Returns:
        passed, both fail, differs, fails (on openreg alone), crashed or not reached; and why.
    """
    if isinstance(ours, LostError):
        return "both fail" if isinstance(theirs, LostError) else "crashed", str(ours)
    if ours is None or theirs is None or isinstance(theirs, LostError):
        return "not reached", ""
    if "error" in ours or "error" in theirs:
        why = f"{ours.get('error', 'works')} | reference: {theirs.get('error', 'works')}"
        return "both fail" if "error" in theirs else "fails", why
    for one, other in zip(ours["samples"], theirs["samples"], strict=True):
        difference = _difference(one, other)
        if difference is not None:
            return "differs", difference
    return "passed", ""


def report(entries: Iterable[str], verdicts: dict[str, tuple[str, str]]) -> dict[str, Any]:
    """Counts by state and dtype, and everything that is not as on the reference."""
    counts: dict[str, Counter[str]] = {}
    wrong: dict[str, str] = {}
    for entry in entries:
        state, why = verdicts.get(entry, ("not reached", ""))
        counts.setdefault(entry.rsplit("/", 1)[1], Counter())[state] += 1
        if state in ("differs", "fails", "crashed"):
            wrong[entry] = f"{state}: {why}"
    texts = [f"{dtype}: " + ", ".join(f"{n} {state}" for state, n in sorted(c.items())) for dtype, c in counts.items()]
    return {"summary": "; ".join(texts), "counts": counts, "wrong": wrong}


def main() -> int:
    """0 if every entry that was reached on both is the same on both."""
    start = time.monotonic()  # importing the database takes ten seconds of the budget
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--logs", type=Path, default=Path("gpu-operators"), help="a folder for what processes say")
    parser.add_argument("--device", default="openreg")
    parser.add_argument("--reference", default="cuda")
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES)
    parser.add_argument("--entries", nargs="+", help="only these, as mul/float32")
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--budget", type=float, default=220, help="seconds")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--work", metavar="DEVICE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work, options.samples)
        return 0
    options.entries = options.entries or list(entries_of(options.dtypes))
    # Half of what is left each, but for the comparison and the processes' ends.
    end = start + options.budget * 0.9 - 5
    theirs = dict(results_on(options.reference, options, (time.monotonic() + end) / 2))
    verdicts: dict[str, tuple[str, str]] = {}
    written = 0.0
    for entry, ours in results_on(options.device, options, end):
        verdicts[entry] = compare(ours, theirs.get(entry))
        if options.json is not None and time.monotonic() > written + 20:  # whoever ends this finds what there was
            options.json.write_text(json.dumps(report(options.entries, verdicts), indent=1) + "\n")
            written = time.monotonic()
    found = report(options.entries, verdicts)
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    print(found["summary"])
    for entry, why in found["wrong"].items():
        print(f"  {entry}: {why}")
    reached = sum(counts["passed"] for counts in found["counts"].values())
    return int(bool(found["wrong"]) or reached == 0)


if __name__ == "__main__":
    sys.exit(main())
