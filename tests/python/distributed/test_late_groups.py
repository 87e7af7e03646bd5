# SPDX-License-Identifier: BSD-3-Clause
"""Groups connect at their first use: those that nobody uses cost no thread and no connection, in whatever way the others begin."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

WORLD = 4
BACKENDS = ("openreg_gloo", "gloo")


def threads() -> list[str]:
    names = []
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # it has ended
            names.append(path.read_text().strip())
    return sorted(names)


def threads_of_gloo() -> int:
    """Those of connected groups, without the short one that answers another rank's message, however late that comes."""
    while "openreg:connect" in threads():  # of a case before, whose group this rank has not used
        time.sleep(0.01)
    return sum("gloo" in name for name in threads())


def sockets() -> int:
    links = []
    for entry in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{entry}"))
        except OSError:  # that of the list
            continue
    return sum(link.startswith("socket:") for link in links)


def many_unused_groups(rank: int, device: torch.device) -> None:
    kept = [dist.new_group(list(range(WORLD)), backend="openreg_gloo")]  # the first one starts the thread that listens
    dist.barrier()  # and each rank's connections to rank 0's store
    before = len(threads()), sockets()  # one that has just begun may lack its name yet
    kept += [dist.new_group(list(range(WORLD)), backend="openreg_gloo") for _ in range(100)]
    counted = len(threads()), sockets()
    dist.barrier()  # a rank that uses one has the others connect it
    x = torch.ones(2, device=device)
    dist.all_reduce(x, group=kept[50])
    assert x.tolist() == [WORLD] * 2
    assert counted == before, f"{counted} are not {before}"


def send_to_the_second(rank: int, device: torch.device, group: Any) -> None:
    x = torch.full((3,), float(rank), device=device)
    if rank == 0:
        dist.send(x, 1, group=group)
    elif rank == 1:
        dist.recv(x, 0, group=group)
        assert x.tolist() == [0.0] * 3


def two_ranks_of_four(rank: int, device: torch.device) -> None:
    """The other ranks never use the group."""
    for backend in BACKENDS:
        send_to_the_second(rank, device, dist.new_group(list(range(WORLD)), backend=backend))


def ring_of_messages(rank: int, device: torch.device) -> None:
    """Each rank posts what it is to receive before what it sends, as no rank has used the group."""
    for backend in BACKENDS:
        group = dist.new_group(list(range(WORLD)), backend=backend)
        received, sent = torch.empty(2, device=device), torch.full((2,), float(rank), device=device)
        works = [
            dist.irecv(received, (rank - 1) % WORLD, group=group),
            dist.isend(sent, (rank + 1) % WORLD, group=group),
        ]
        for work in works:
            assert work is not None
            work.wait()
        assert received.tolist() == [float((rank - 1) % WORLD)] * 2


def sums_as_on_the_cpu(rank: int, device: torch.device) -> None:
    """To the bit, which with more than two ranks depends on the order of the sums: gloo has more than one."""
    group = dist.new_group(list(range(WORLD)), backend="gloo")
    parts = list(torch.randn(WORLD, 100, generator=torch.Generator().manual_seed(rank)))
    sums = []
    for place in (torch.device("cpu"), device):
        own, out, whole = torch.cat(parts).to(place), torch.empty(2, 100, device=place), parts[0].clone().to(place)
        dist.reduce_scatter(out[0], list(own.clone().chunk(WORLD)), group=group)  # gloo writes to its inputs
        dist.reduce_scatter_tensor(out[1], own, group=group)
        dist.all_reduce(whole, group=group)
        sums.append(torch.cat([*out, whole]).cpu())
    assert torch.equal(*sums)


def block_of_messages(rank: int, device: torch.device) -> None:
    group = dist.new_group(list(range(WORLD)), backend="openreg_gloo")
    received, sent = torch.empty(2, device=device), torch.full((2,), float(rank), device=device)
    operations = [
        dist.P2POp(dist.irecv, received, (rank - 1) % WORLD, group),
        dist.P2POp(dist.isend, sent, (rank + 1) % WORLD, group),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert received.tolist() == [float((rank - 1) % WORLD)] * 2


def from_any_source(rank: int, device: torch.device) -> None:
    group = dist.new_group(list(range(WORLD)), backend="openreg_gloo")
    x = torch.full((1,), float(rank), device=device)
    if rank == 0:
        found = set()
        for _ in range(2):
            source = dist.recv(x, group=group)
            assert x.item() == source
            found.add(source)
        assert found == {1, 2}
    elif rank < 3:
        dist.send(x, 0, group=group)


def late_rank(rank: int, device: torch.device) -> None:
    """The last rank comes when the others have waited for a while, and uses two groups in the other order."""
    pair = [dist.new_group(list(range(WORLD)), backend="openreg_gloo") for _ in range(2)]
    x = [torch.ones(1, device=device) for _ in pair]
    order = (0, 1)
    if rank == WORLD - 1:
        time.sleep(0.3)
        order = (1, 0)
    works = [dist.all_reduce(x[number], group=pair[number], async_op=True) for number in order]
    for work in works:
        assert work is not None
        work.wait()
    assert [each.item() for each in x] == [WORLD] * 2


def parts_of_the_world(rank: int, device: torch.device) -> None:
    """Groups that only their ranks make, and a mesh's."""
    pair = [rank // 2 * 2, rank // 2 * 2 + 1]
    group = dist.new_group(pair, backend="openreg_gloo", use_local_synchronization=True)
    x = torch.ones(1, device=device)
    dist.all_reduce(x, group=group)
    assert x.item() == 2
    mesh = dist.device_mesh.init_device_mesh("openreg", (2, 2), mesh_dim_names=("a", "b"))
    dist.all_reduce(x, group=mesh.get_group("b"))
    assert x.item() == 4


def two_threads_use_it_first(rank: int, device: torch.device) -> None:
    group = dist.new_group(list(range(WORLD)), backend="openreg_gloo")
    x = [torch.ones(1, device=device) for _ in range(2)]
    barrier = threading.Barrier(2)

    def work(number: int) -> None:
        barrier.wait()
        if number == 0:
            dist.send(x[0], (rank + 1) % WORLD, group=group, tag=7)
        else:
            dist.recv(x[1], (rank - 1) % WORLD, group=group, tag=7)

    running = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def what_describes_a_group(rank: int, device: torch.device) -> None:
    """Answered without connecting it. Meshes and compiled collectives find a group by its name."""
    for backend in BACKENDS:
        before = threads_of_gloo()
        group = dist.new_group(list(range(WORLD)), backend=backend, group_desc="all")
        assert (dist.get_backend(group), dist.get_rank(group), dist.get_world_size(group)) == (backend, rank, WORLD)
        assert dist.get_process_group_ranks(group) == list(range(WORLD))
        assert dist.distributed_c10d._resolve_process_group(group.group_name) is group
        assert group.group_desc == "all"
        dist.distributed_c10d._set_pg_timeout(dist.distributed_c10d.default_pg_timeout, group)
        if backend != "gloo":  # whose part for the CPU is PyTorch's, and connects at once
            assert threads_of_gloo() == before
        dist.barrier()  # gloo's connecting fails on a rank that another one has already left
        begin = time.monotonic()
        dist.destroy_process_group(group)
        assert time.monotonic() - begin < 1


def dropped_by_a_rank(rank: int, device: torch.device) -> None:
    """A rank that has destroyed a group lets the others connect theirs."""
    group = dist.new_group(list(range(WORLD)), backend="openreg_gloo")
    if rank == WORLD - 1:
        dist.destroy_process_group(group)
    dist.barrier()
    send_to_the_second(rank, device, group)


def ended_before_its_use(rank: int, device: torch.device) -> None:
    """abort() and shutdown() have nothing to end, and the group's options are known, which torch 2.15 reads of each."""
    group = dist.new_group(list(range(WORLD)), backend="openreg_gloo", timeout=timedelta(seconds=77))
    backend = group._get_backend(device)
    backend.abort()
    backend.shutdown()
    backend.set_timeout(timedelta(seconds=78))
    before = threads_of_gloo()
    assert backend.options._timeout == timedelta(seconds=78)
    assert threads_of_gloo() == before
    dist.barrier()  # a rank that uses it has the others connect it
    gathered: list[Any] = [None] * WORLD
    dist.all_gather_object(gathered, {"rank": rank}, group=group)
    assert gathered == [{"rank": each} for each in range(WORLD)]
    assert backend.options._timeout == timedelta(seconds=78)


def after_a_rank_has_left(rank: int, device: torch.device, store: dist.Store) -> None:
    """The last one to be called: the default group is destroyed."""
    group = dist.new_group(list(range(WORLD)), backend="openreg_gloo")
    dist.barrier()
    if rank == WORLD - 1:
        dist.destroy_process_group()
        store.set("one has left", "")
    elif rank == 0:
        store.wait(["one has left"])
        with pytest.raises(RuntimeError, match=r"3\] have left torch.distributed"):
            dist.send(torch.ones(1, device=device), 1, group=group)
    if dist.is_initialized():
        dist.destroy_process_group()


CASES = (
    many_unused_groups,
    two_ranks_of_four,
    ring_of_messages,
    sums_as_on_the_cpu,
    block_of_messages,
    from_any_source,
    late_rank,
    parts_of_the_world,
    two_threads_use_it_first,
    what_describes_a_group,
    dropped_by_a_rank,
    ended_before_its_use,
)


def rank_main(rank: int, folder: Path) -> None:
    import traceback
    import warnings

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.openreg.set_device(rank % torch.openreg.device_count())
    device = torch.device("openreg", torch.openreg.current_device())
    store = dist.TCPStore("localhost", int(os.environ["PORT"]), WORLD, rank == 0) if "PORT" in os.environ else None
    store = store or dist.FileStore(str(folder / "store"), WORLD)
    # A rank that fails has the others fail, and not wait until the test does.
    dist.init_process_group("openreg_gloo", store=store, rank=rank, world_size=WORLD, timeout=timedelta(seconds=60))
    errors = {}
    for case in CASES:
        try:
            case(rank, device)
            errors[case.__name__] = ""
        except BaseException:
            errors[case.__name__] = traceback.format_exc()
        (folder / f"rank{rank}").write_text(json.dumps(errors))
        dist.barrier()
    is_seen = len(threading.enumerate()) > 1 or "openreg:groups" not in threads()
    errors["the thread isn't in Python's list"] = str(threading.enumerate()) if is_seen else ""
    try:
        after_a_rank_has_left(rank, device, store)
        errors[after_a_rank_has_left.__name__] = ""
    except BaseException:
        errors[after_a_rank_has_left.__name__] = traceback.format_exc()
    errors["the thread ends"] = "" if "openreg:groups" not in threads() else str(threads())
    (folder / f"rank{rank}").write_text(json.dumps(errors))


def free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("localhost", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="module", params=["files", "tcp"])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("OPENREG_", "TORCH_DISTRIBUTED_"))}
    settings = kept | {"OPENREG_SIM_DEVICES": "2", "OPENREG_PREFERENCES": os.devnull, "OMP_NUM_THREADS": "1"}
    if request.param == "tcp":
        settings["PORT"] = str(free_port())
    command = [sys.executable, __file__]
    started = [
        subprocess.Popen([*command, str(rank), str(folder)], env=settings, stderr=subprocess.PIPE, text=True)
        for rank in range(WORLD)
    ]
    found = []
    for rank, process in enumerate(started):
        try:
            _, output = process.communicate(timeout=150)
        except subprocess.TimeoutExpired:
            process.kill()
            _, output = process.communicate()
        report = folder / f"rank{rank}"
        errors = json.loads(report.read_text()) if report.exists() else {}
        found.append({"errors": errors, "status": process.returncode, "output": output})
    return found


OF_THE_THREAD = ["the thread isn't in Python's list", "the thread ends"]


@pytest.mark.parametrize("name", [*(case.__name__ for case in (*CASES, after_a_rank_has_left)), *OF_THE_THREAD])
def test_first_use(ranks: list[dict[str, Any]], name: str) -> None:
    for rank, report in enumerate(ranks):
        assert report["errors"].get(name, f"not run\n{report['output']}") == "", f"rank {rank}"


# a rank that is asked while its own use of the group fails waits for that, and doesn't begin again
def test_asked_while_it_connects() -> None:
    from torch_openreg import _C_distributed

    calls, has_begun, may_end = [], threading.Event(), threading.Event()

    def make(timeout: timedelta) -> Any:
        calls.append(timeout)
        has_begun.set()
        may_end.wait()
        raise RuntimeError("the others are gone")

    late = _C_distributed._LateGloo(0, 2, timedelta(seconds=9), make)

    errors: list[str] = []

    def use() -> None:
        try:
            late.connect()
        except RuntimeError as error:
            errors.append(str(error))

    using, asked = (threading.Thread(target=use) for _ in range(2))
    using.start()
    has_begun.wait()
    asked.start()
    may_end.set()
    using.join()
    asked.join()
    assert calls == [timedelta(seconds=9)] and len(errors) == 1 and "the others are gone" in errors[0]


def test_ranks_end_well(ranks: list[dict[str, Any]]) -> None:
    assert [report["status"] for report in ranks] == [0] * WORLD, ranks


if __name__ == "__main__":
    rank_main(int(sys.argv[1]), Path(sys.argv[2]))
