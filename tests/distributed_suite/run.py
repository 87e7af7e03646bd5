# SPDX-License-Identifier: BSD-3-Clause
"""PyTorch's own tests of torch.distributed on openreg, each failure against gloo on the CPU.

They are those that torch's wheel has: ``torch/testing/_internal/distributed/distributed_test.py``. They are run in ways:

* device: the tests for gloo, with openreg as the default device;
* cuda: those for gloo's CUDA tensors, with OPENREG_AS_CUDA=1;
* nccl: those for NCCL, with OPENREG_AS_CUDA=1;
* cpu: the reference, only for what fails in the way "device".

A process imports torch and the tests and makes a copy of itself for each rank of each test. A failure that known.py doesn't
list is an error, and so is an entry whose test passes.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

from known import KNOWN

WAYS = {
    "device": {"BACKEND": "gloo"},
    "cuda": {"BACKEND": "gloo", "OPENREG_AS_CUDA": "1"},
    "nccl": {"BACKEND": "nccl", "OPENREG_AS_CUDA": "1"},
    "cpu": {"BACKEND": "gloo"},
}
GRACE = 10  # seconds for the others when a rank has failed

Result = dict[str, Any]


def suite() -> Any:
    """The class of the tests."""
    import torch
    import torch.distributed as dist

    if os.environ["BACKEND"] == "nccl":  # the tests want a library to be there that OPENREG_AS_CUDA=1 does without
        dist.is_nccl_available = lambda: True
        torch.cuda.nccl.version = lambda: (2, 27, 0)
    from torch.testing._internal.distributed import distributed_test

    distributed_test.Barrier.sync.__func__.__defaults__ = (None, 60)  # ten seconds are few for a busy machine

    class TestOpenreg(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def _run_uneven_inputs_test(self, test_case: Any, iterations: Any, find_unused_params: bool) -> None:
            if test_case.inp[0].dim() == 3:  # a hundred steps with images of a megapixel are an hour of a CPU
                test_case = test_case._replace(inp=test_case.inp[..., :64, :64])
            super()._run_uneven_inputs_test(test_case, iterations, find_unused_params)

    return TestOpenreg


def run_rank(cases: Any, name: str, way: str, rank: int, folder: Path) -> Result:
    """Runs a test in this process, which is a rank of it."""
    import unittest
    from datetime import timedelta

    import torch
    import torch.distributed as dist
    from torch.testing._internal import common_distributed, common_utils
    from torch.testing._internal.distributed import distributed_test

    skips = {skip.exit_code: skip.message for skip in common_distributed.TEST_SKIPS.values()}
    case = cases(name)
    case.rank, case.file_name = rank, str(folder / "store")
    seconds = distributed_test.CUSTOM_PG_TIMEOUT.get(name, distributed_test.default_pg_timeout)
    try:
        if way != "cpu":
            torch.openreg.set_device(rank)
        if way == "device":
            torch.set_default_device(torch.device("openreg", rank))
        dist.init_process_group(
            init_method=case.init_method,
            backend=os.environ["BACKEND"],
            world_size=int(case.world_size),
            rank=rank,
            timeout=timedelta(seconds=seconds),
        )
        case._barrier()
        common_utils.set_rng_seed()
        getattr(case, name)()
        case._barrier()
        if dist.is_initialized():
            dist.destroy_process_group()
    except unittest.SkipTest as skip:
        return {"outcome": "skip", "text": str(skip)}
    except SystemExit as ended:
        if ended.code in skips:
            return {"outcome": "skip", "text": skips[ended.code]}
        return {"outcome": "pass" if not ended.code else "fail", "text": f"exit status {ended.code}"}
    except BaseException:
        return {"outcome": "fail", "text": traceback.format_exc()}
    return {"outcome": "pass", "text": ""}


def start_rank(cases: Any, name: str, way: str, rank: int, folder: Path) -> int:
    """Makes the process of a rank; it writes its result into the folder."""
    process = os.fork()
    if process != 0:
        return process
    os.setpgid(0, 0)  # with what the test starts
    output = os.open(folder / f"output{rank}", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    result = run_rank(cases, name, way, rank, folder)
    partial = folder / f"partial{rank}"
    partial.write_text(json.dumps(result))
    partial.rename(folder / f"rank{rank}")
    os._exit(0)  # an interpreter that ends takes seconds here, most of them in the tests' own modules


def run_test(cases: Any, name: str, way: str, ranks: int, limit: float) -> Result:
    """Runs a test in all of its ranks; the result is the worst of theirs. Tests with a timeout of their own have that."""
    from torch.testing._internal.distributed import distributed_test

    limit = max(limit, distributed_test.CUSTOM_PG_TIMEOUT.get(name, 0))
    folder = Path(tempfile.mkdtemp())
    for each in ("barrier", "test_dir", "init_dir"):
        (folder / each).mkdir()
    os.environ["TEMP_DIR"] = str(folder)
    os.environ["INIT_METHOD"] = f"file://{folder}/init_dir/shared_init_file"
    begin = time.monotonic()
    running = {start_rank(cases, name, way, rank, folder): rank for rank in range(ranks)}
    status: dict[int, int] = {}
    end = begin + limit
    while running and time.monotonic() < end:
        for process, rank in list(running.items()):
            found, code = os.waitpid(process, os.WNOHANG)
            if found:
                del running[process]
                status[rank] = os.waitstatus_to_exitcode(code)
                report = folder / f"rank{rank}"
                if not report.exists() or json.loads(report.read_text())["outcome"] == "fail":
                    end = min(end, time.monotonic() + GRACE)
        time.sleep(0.02)
    for process in running:
        os.killpg(process, signal.SIGKILL)
        os.waitpid(process, 0)
    results: list[Result] = []
    for rank in range(ranks):
        report = folder / f"rank{rank}"
        result = json.loads(report.read_text()) if report.exists() else {"outcome": "fail", "text": "no result"}
        if rank in running.values() and result["outcome"] != "fail":
            result = {"outcome": "fail", "text": f"not done after {time.monotonic() - begin:.0f} s"}
        elif status.get(rank, 0) != 0:
            result = {"outcome": "fail", "text": f"{result['text']}\nended with {status[rank]}"}
        if result["outcome"] == "fail":
            output = (folder / f"output{rank}").read_text(errors="replace")
            result["text"] = f"rank {rank}: {result['text']}\n{output[-3000:]}"
        results.append(result)
    shutil.rmtree(folder)
    for outcome in ("fail", "skip", "pass"):
        found_results = [each for each in results if each["outcome"] == outcome]
        if found_results:
            text = "\n".join(dict.fromkeys(each["text"] for each in found_results))
            return {"outcome": outcome, "text": text, "seconds": round(time.monotonic() - begin, 1)}
    raise AssertionError("no ranks")


def worker(way: str, ranks: int, limit: float, report: str) -> None:
    """The program of a way: runs the tests that it reads, and writes a line for each."""
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)
    cases = suite()
    names = [line.strip() for line in sys.stdin]
    if names == ["*"]:
        names = sorted(each for each in dir(cases) if each.startswith("test_"))
    with Path(report).open("w") as lines:
        for name in names:
            function = getattr(cases, name)
            if getattr(function, "__unittest_skip__", False):  # only unittest itself looks at this mark
                result = {"outcome": "skip", "text": function.__unittest_skip_why__, "seconds": 0}
            else:
                result = run_test(cases, name, way, ranks, limit)
            lines.write(json.dumps({"name": name, **result}) + "\n")
            lines.flush()


def run_way(way: str, ranks: int, names: list[str], limit: float, folder: Path) -> dict[str, Result]:
    """Runs tests in a process of its own.

    Args:
        way: A key of WAYS.
        ranks: The number of processes of a test.
        names: Of tests; "*" alone means all.
        limit: Seconds for one test.
        folder: For the report.

    Returns:
        The results by the names of tests.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OPENREG_", "TORCH_"))}
    environment = (
        kept
        | WAYS[way]
        | {
            "WORLD_SIZE": str(ranks),
            "OPENREG_SIM_DEVICES": str(max(4, ranks)),
            "OPENREG_PREFERENCES": os.devnull,
            "MASTER_ADDR": "127.0.0.1",
            "OMP_NUM_THREADS": "1",
        }
    )
    report = folder / f"{way}-{ranks}.jsonl"
    command = [sys.executable, __file__, "--worker", way, "--ranks", str(ranks), "--limit", str(limit)]
    subprocess.run([*command, "--json", str(report)], input="\n".join(names), text=True, env=environment, check=True)
    results = [json.loads(line) for line in report.read_text().splitlines()]
    return {result["name"]: result for result in results}


def judge(way: str, ranks: int, results: dict[str, Result], on_cpu: dict[str, Result]) -> list[str]:
    """What is wrong with the results of a way: failures that nobody knows, known ones that passed."""
    errors = []
    for name, result in results.items():
        entries = [known for known in KNOWN if known.covers(way, ranks, name)]
        if result["outcome"] == "fail" and not entries and on_cpu.get(name, {}).get("outcome") != "fail":
            errors.append(f"{way}/{ranks}/{name} fails:\n{result['text']}")
        if result["outcome"] == "pass" and any(not known.sometimes for known in entries):
            errors.append(f"{way}/{ranks}/{name} passes, and known.py says that it doesn't")
    return errors


def main() -> None:
    """Runs what the arguments say; exits with 1 if something isn't as known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", default=["device", "cuda", "nccl"], choices=[*WAYS])
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 3])
    parser.add_argument("--limit", type=float, default=90, help="seconds for a test")
    parser.add_argument("--json", default="distributed-suite.json", help="where the results go")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("tests", nargs="*", default=["*"], help="names; all without")
    options = parser.parse_args()
    if options.worker:
        worker(options.worker, options.ranks[0], options.limit, options.json)
        return
    errors: list[str] = []
    everything: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for ranks in options.ranks:
            for way in options.ways:
                results = run_way(way, ranks, options.tests, options.limit, Path(folder))
                failed = [name for name, result in results.items() if result["outcome"] == "fail"]
                on_cpu: dict[str, Result] = {}
                if way == "device" and failed:
                    on_cpu = run_way("cpu", ranks, failed, options.limit, Path(folder))
                errors += judge(way, ranks, results, on_cpu)
                everything[f"{way}/{ranks}"] = {"tests": results, "on the CPU": on_cpu}
                counts = collections.Counter(result["outcome"] for result in results.values())
                same = sum(result["outcome"] == "fail" for result in on_cpu.values())
                print(
                    f"{way}, {ranks} ranks: {counts['pass']} pass, {counts['skip']} are skipped, {counts['fail']} fail, "
                    f"{same} of them on the CPU too",
                    flush=True,
                )
                Path(options.json).write_text(json.dumps(everything, indent=1))
    print("\n\n".join(errors) or "All is as known.")
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
