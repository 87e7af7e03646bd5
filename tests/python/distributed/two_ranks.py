# SPDX-License-Identifier: BSD-3-Clause
"""Two processes with a process group, each with two simulated devices, that run checks and report what failed.

A test file is also the program of a rank: it registers its checks with `Checks.check()`, ends with `CHECKS.main()`, and
has one pair of processes run all of them.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

WORLD = 2

# Called in both ranks, with the rank and its device.
Check = Callable[[int, torch.device], None]


class Checks:
    """The checks of a file: by the backend that init_process_group() is called with, "" for none; then by name."""

    def __init__(self, *backends: str) -> None:
        self.by_backend: dict[str, dict[str, Check]] = {backend: {} for backend in backends}

    def check(self, *backends: str) -> Callable[[Check], Check]:
        """Has a function called in the groups of these backends."""

        def register(function: Check) -> Check:
            for backend in backends:
                self.by_backend.setdefault(backend, {})[function.__name__] = function
            return function

        return register

    def names(self) -> Iterator[str]:
        """Yields "backend/check"."""
        for backend, checks in self.by_backend.items():
            yield from (f"{backend}/{name}" for name in checks)

    def main(self) -> None:
        """The program of a rank: runs every check and writes the tracebacks, by name."""
        rank, folder = int(sys.argv[1]), Path(sys.argv[2])
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        torch.openreg.set_device(rank)
        errors: dict[str, str] = {}
        for number, (backend, checks) in enumerate(self.by_backend.items()):
            store = dist.FileStore(str(folder / f"store{number}"), WORLD)
            join(backend, rank, dist.PrefixStore("first", store))
            for name, function in checks.items():
                try:
                    function(rank, torch.device("openreg", rank))
                except BaseException:
                    errors[f"{backend}/{name}"] = traceback.format_exc()
                else:
                    errors[f"{backend}/{name}"] = ""
                (folder / f"rank{rank}").write_text(json.dumps(errors))
                # One rank may have left a check in the middle: the next one finds a group where nobody waits for it.
                store.set(f"{name}/{rank}", errors[f"{backend}/{name}"])
                is_last = name == list(checks)[-1]
                if not is_last and any(store.get(f"{name}/{each}") for each in range(WORLD)):
                    dist.destroy_process_group()
                    join(backend, rank, dist.PrefixStore(f"after {name}", store))
            dist.destroy_process_group()


def join(backend: str, rank: int, store: dist.Store) -> None:
    """Makes the group of all ranks, by that backend, "" for none."""
    timeout = datetime.timedelta(seconds=30)
    dist.init_process_group(backend or None, rank=rank, world_size=WORLD, store=store, timeout=timeout)
    Peer.count = 0


def give_up_after(group: dist.ProcessGroup, seconds: float) -> dist.ProcessGroup:
    """Gives a group a timeout. One that `new_group()` is given is that of the connections, too, which a busy machine misses."""
    for device in ("cpu", "openreg"):
        group._get_backend(torch.device(device))._set_default_timeout(datetime.timedelta(seconds=seconds))
    return group


class Peer:
    """Rank 1 comes to the collective when rank 0 lets it."""

    count = 0

    def __init__(self, rank: int) -> None:
        dist.barrier()
        Peer.count += 1
        self.store, self.key = dist.distributed_c10d._get_default_store(), f"come {Peer.count}"
        if rank == 1:
            self.store.wait([self.key], datetime.timedelta(seconds=60))

    def come(self) -> None:
        self.store.set(self.key, "now")


def reports_of(program: str, folder: Path, timeout: float = 150, **environment: str) -> list[dict[str, Any]]:
    """Runs a file in two ranks.

    Args:
        program: The file.
        folder: Of this pair alone.
        timeout: Seconds after which a rank is ended.
        environment: Further variables. Of the caller's none that is openreg's or torch.distributed's is passed on.

    Returns:
        What each rank reports: its errors by check, its status and its output.
    """
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("OPENREG_", "TORCH_DISTRIBUTED_"))}
    settings = kept | {"OPENREG_SIM_DEVICES": "2", "OPENREG_PREFERENCES": os.devnull} | environment
    processes = [
        subprocess.Popen(
            [sys.executable, program, str(rank), str(folder)],
            env=settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(WORLD)
    ]
    reports = []
    for rank, process in enumerate(processes):
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
        report = folder / f"rank{rank}"
        errors = json.loads(report.read_text()) if report.exists() else {}
        reports.append({"errors": errors, "status": process.returncode, "output": output})
    return reports


DRIVERS = Path(os.environ.get("OPENREG_BUILD_DIR", Path(__file__).parents[3] / "build")) / "tests" / "drivers"


def fake_nccl() -> dict[str, str]:
    """The variables of collectives by the driver's own library: the CUDA driver over fakes of CUDA's runtime and of NCCL."""
    library = DRIVERS / "libopenreg_cuda_fake.so"
    if not library.exists():
        pytest.skip(f"{library} is not built: it takes CUDA's headers, and `cmake --build build`")
    return {"OPENREG_DRIVER_LIBRARIES": f"cuda:{library}", "OPENREG_DRIVERS": "cuda", "OPENREG_COMM": "1"}


def fixture_of(program: str, *ways: Any) -> Any:
    """Makes the fixture `ranks` of a file: what each rank of its pair reports.

    Args:
        program: The file.
        ways: "auto": with operators as they are; "staged": on copies of the host; "driver": with the collectives of a driver.
    """

    @pytest.fixture(scope="module", params=ways, name="ranks")
    def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
        variables = fake_nccl() if request.param == "driver" else {"OPENREG_OPERATORS": request.param}
        return reports_of(program, tmp_path_factory.mktemp("ranks"), **variables)

    return ranks


# Where operators run makes no difference to these.
NIGHTLY_STAGED = pytest.param("staged", marks=pytest.mark.long)


def assert_passed(reports: list[dict[str, Any]], name: str) -> None:
    """Fails with the traceback of the check, or the end of a rank's output where it didn't come to it."""
    for report in reports:
        assert report["errors"].get(name, report["output"][-3000:]) == ""


def assert_ended_well(reports: list[dict[str, Any]]) -> None:
    """Fails if a rank ended with another status than 0."""
    assert [report["status"] for report in reports] == [0] * WORLD, reports[0]["output"][-3000:]
