# SPDX-License-Identifier: BSD-3-Clause
"""Collectives by the driver's own library: the CUDA driver over fakes of CUDA's runtime and of NCCL, two processes.

The fake of NCCL moves bytes between the processes when a device's stream comes to the call, 20 ms late (FAKE_GPU_NCCL_DELAY_US).
"""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from two_ranks import DRIVERS, WORLD, Checks, fake_nccl, give_up_after, reports_of

CHECKS = Checks("gloo")
check = CHECKS.check("gloo")


def values(rank: int, *sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Numbers of a rank's own, whose sums are exact in every type."""
    return (torch.arange(torch.Size(sizes).numel()) % 5 + 1 + rank).reshape(sizes).to(dtype)


def same(device: torch.device, call: Callable[..., Any], *tensors: torch.Tensor) -> None:
    """A call changes tensors of the device as it changes those of the CPU, which gloo has."""
    on_device = [tensor.to(device) for tensor in tensors]
    call(*on_device)
    call(*tensors)
    for ours, theirs in zip(on_device, tensors, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs)


@check
def results_are_those_of_the_cpu(rank: int, device: torch.device) -> None:
    """Each collective, also of tensors with gaps between their elements."""
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8):
        same(device, dist.all_reduce, values(rank, 33, dtype=dtype))
    for op in (dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT):
        same(device, lambda x, op=op: dist.all_reduce(x, op), values(rank, 7))
    same(device, lambda x: dist.all_reduce(x.t()), values(rank, 4, 3))
    same(device, lambda x: dist.broadcast(x, 1), values(rank, 5))
    same(device, lambda x: dist.broadcast(x, 0), values(rank, 5).bool())
    same(device, lambda x: dist.all_gather_into_tensor(x, x[:3] + rank), torch.zeros(3 * WORLD))
    same(device, lambda out, x: dist.reduce_scatter_tensor(out, x), torch.zeros(3), values(rank, 3 * WORLD))
    same(device, lambda x, y, z: dist.all_gather([x, y], z), torch.zeros(3), torch.zeros(3), values(rank, 3))
    same(device, lambda out, x: dist.all_to_all_single(out, x), torch.zeros(6, 2), values(rank, 6, 2))
    sent, got = ([1, 3], [1, 2]) if rank == 0 else ([2, 2], [3, 2])
    same(
        device,
        lambda out, x: dist.all_to_all_single(out, x, got, sent),
        torch.zeros(sum(got), 2),
        values(rank, sum(sent), 2),
    )
    parts = [values(rank, 3), values(rank, 3) + 1]
    own = torch.zeros(3, device=device)
    dist.reduce_scatter(own, [part.to(device) for part in parts])
    assert own.tolist() == (values(0, 3) + values(1, 3) + 2 * rank).tolist()
    dist.reduce_scatter_tensor(own, torch.cat(parts).to(device), dist.ReduceOp.AVG)
    assert own.tolist() == ((values(0, 3) + values(1, 3)) / 2 + rank).tolist()
    outs = [torch.zeros(1 + rank, device=device) for _ in range(WORLD)]
    dist.all_to_all(outs, [values(rank, 1 + to).to(device) for to in range(WORLD)])
    assert [out.tolist() for out in outs] == [values(of, 1 + rank).tolist() for of in range(WORLD)]
    uneven = [torch.zeros(2 + of, device=device) for of in range(WORLD)]
    dist.all_gather(uneven, values(rank, 2 + rank).to(device))
    assert [out.tolist() for out in uneven] == [values(of, 2 + of).tolist() for of in range(WORLD)]
    x = values(rank, 4).to(device)
    dist.reduce(x, 1)
    assert rank == 0 or x.tolist() == (values(0, 4) + values(1, 4)).tolist()
    big = torch.full((1 << 20,), 1.0 + rank, device=device)
    dist.all_reduce(big, dist.ReduceOp.AVG)
    assert big.cpu().eq(1.5).all()
    dist.all_reduce(big, dist._make_nccl_premul_sum(2.0))
    assert big.cpu().eq(6).all()


@check
def gaps(rank: int, device: torch.device) -> None:
    """Of tensors with gaps between their elements the elements are written, and not the gaps (gloo of the CPU writes those)."""
    for call in (dist.all_reduce, lambda x: dist.all_reduce(x, dist.ReduceOp.AVG), lambda x: dist.broadcast(x, 1)):
        ours = values(rank, 4, 3).to(device)
        call(ours[:, 1])
        plain = values(rank, 4, 3).to(device)
        row = plain[:, 1].clone()
        call(row)
        plain[:, 1] = row
        torch.testing.assert_close(ours.cpu(), plain.cpu())
        assert (row.cpu() != values(rank, 4, 3)[:, 1]).any() or rank == 1
    ours = values(rank, 4, 3).to(device)
    dist.all_reduce(ours[:, 1])
    assert ours[:, 1].tolist() == (values(0, 4, 3) + values(1, 4, 3))[:, 1].tolist()
    out = torch.zeros(2 * WORLD, 3, device=device)
    dist.all_gather_into_tensor(out.t()[1], values(rank, 2, 2).to(device)[:, 1])
    expected = torch.zeros(2 * WORLD, 3)
    expected[:, 1] = torch.cat([values(of, 2, 2)[:, 1] for of in range(WORLD)])
    assert out.tolist() == expected.tolist()


@check
def types_that_the_library_lacks(rank: int, device: torch.device) -> None:
    """Sums of bool are "or", complex sums those of the parts; what can't be reduced is an error, and moves all the same."""
    flags = torch.tensor([False, rank == 0, True], device=device)
    dist.all_reduce(flags)
    assert flags.tolist() == [False, True, True]
    z = torch.full((3,), 1 + 2j * (rank + 1), device=device)
    dist.all_reduce(z)
    assert z.tolist() == [2 + 6j] * 3
    short = torch.full((3,), rank, dtype=torch.int16, device=device)
    with pytest.raises(TypeError, match="can't reduce Short"):
        dist.all_reduce(short)
    dist.broadcast(short, 1)
    assert short.tolist() == [1, 1, 1]
    with pytest.raises(NotImplementedError, match="bit operations"):
        dist.all_reduce(torch.ones(3, dtype=torch.int32, device=device), dist.ReduceOp.BXOR)


@check
def forgotten_wait(rank: int, device: torch.device) -> None:
    """The call is work of a stream: who reads before wait() has the old values, and the host goes on."""
    out = torch.zeros(1000 * WORLD, device=device)
    torch.openreg.synchronize()
    work = dist.all_gather_into_tensor(out, torch.full((1000,), 1.0 + rank, device=device), async_op=True)
    early = out.clone()
    assert not work.is_completed()
    work.wait()
    assert early.tolist() == [0.0] * 1000 * WORLD
    assert out.tolist() == [1.0] * 1000 + [2.0] * 1000
    assert work.is_completed() and work.is_success()


@check
def memory_is_kept(rank: int, device: torch.device) -> None:
    """Tensors that the program drops are kept until the stream has passed the call."""
    works = []
    results = []
    for i in range(8):
        x = torch.full((5000,), float(i + rank), device=device)
        results.append(torch.zeros(5000 * WORLD, device=device))
        works.append(dist.all_gather_into_tensor(results[-1], x, async_op=True))
        del x
        torch.full((5000,), -1.0, device=device)
    for i, (work, result) in enumerate(zip(works, results, strict=True)):
        work.wait()
        assert result.cpu().tolist() == [float(i)] * 5000 + [float(i + 1)] * 5000


@check
def messages(rank: int, device: torch.device) -> None:
    """send() and recv(), and both at once in a block."""
    x = values(rank, 9).to(device)
    if rank == 0:
        dist.send(x, 1)
    else:
        dist.recv(x, 0)
    assert x.tolist() == values(0, 9).tolist()
    out, own = torch.zeros(9, device=device), values(rank, 9).to(device)
    operations = [dist.P2POp(dist.isend, own, 1 - rank), dist.P2POp(dist.irecv, out, 1 - rank)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert out.tolist() == values(1 - rank, 9).tolist()


@check
def blocks(rank: int, device: torch.device) -> None:
    """Collectives of a coalescing manager run as one."""
    tensors = [values(rank, n).to(device) for n in (3, 5)]
    with dist._coalescing_manager(device=device, async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    assert [tensor.tolist() for tensor in tensors] == [(values(0, n) + values(1, n)).tolist() for n in (3, 5)]


@check
def training(rank: int, device: torch.device) -> None:
    """A step of DistributedDataParallel gives both ranks the mean gradient."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    plain = torch.nn.Linear(4, 2)
    plain.load_state_dict(model.state_dict())
    ddp = torch.nn.parallel.DistributedDataParallel(model.to(device))
    batches = [values(r, 3, 4) for r in range(WORLD)]
    ddp(batches[rank].to(device)).sum().backward()
    (sum(plain(batch).sum() for batch in batches) / WORLD).backward()
    torch.testing.assert_close(model.weight.grad.cpu(), plain.weight.grad)


@check
def peer_that_never_comes(rank: int, device: torch.device) -> None:
    """A timeout names the call, the ranks and the shapes; the group is then dead, another works."""
    group = dist.new_group([0, 1])
    x = torch.ones(2, 3, device=device)
    dist.all_reduce(x, group=group)
    assert x.cpu().eq(2).all()
    dist.barrier()
    give_up_after(group, 2)
    if rank == 0:
        works = [dist.all_reduce(x, group=group, async_op=True) for _ in range(2)]
        for work in works:
            with pytest.raises(
                dist.DistBackendError, match=r"Timed out(.|\n)*In all_reduce in rank 0 of 2: float32\[2, 3\]"
            ):
                work.wait(datetime.timedelta(seconds=20))
            assert work.is_completed() and not work.is_success()
        with pytest.raises(dist.DistBackendError, match="Timed out"):
            dist.all_reduce(x, group=group)
        with pytest.raises(RuntimeError, match="Timed out"):  # the stream that waits has it, too
            torch.openreg.synchronize()
    dist.barrier()
    x.fill_(1.0)
    dist.all_reduce(x)
    assert x.cpu().eq(2).all()


@check
def peer_that_comes_too_late(rank: int, device: torch.device) -> None:
    """The first call of a group has an error in both ranks, where the library would have the second wait for ever."""
    group = give_up_after(dist.new_group([0, 1]), 1)
    x = torch.ones(3, device=device)
    if rank == 0:
        with pytest.raises(
            dist.DistBackendError, match=r"have not come: 1\nIn all_reduce in rank 0 of 2: float32\[3\]"
        ):
            dist.all_reduce(x, group=group)
        dist.barrier()
    else:
        dist.barrier()
        with pytest.raises(dist.DistBackendError, match=r"Another rank has timed out(.|\n)*rank 1 of 2: float32\[3\]"):
            dist.all_reduce(x, group=group)


@check
def aborted_group(rank: int, device: torch.device) -> None:
    """abort() ends what waits for a peer, within the time of the watch; other groups go on."""
    group = dist.new_group([0, 1])
    x = torch.ones(3, device=device)
    dist.all_reduce(x, group=group)
    torch.openreg.synchronize()
    dist.barrier()
    if rank == 0:
        work = dist.all_reduce(x, group=group, async_op=True)
        group._get_backend(device).abort()
        with pytest.raises(dist.DistBackendError, match=r"aborted(.|\n)*In all_reduce in rank 0 of 2: float32\[3\]"):
            work.wait(datetime.timedelta(seconds=20))
        with pytest.raises(dist.DistBackendError, match="aborted"):
            dist.all_reduce(x, group=group)
    dist.barrier()
    x.fill_(1.0)
    dist.all_reduce(x)
    assert x.cpu().eq(2).all()


@check
def aborted_group_at_its_first_call(rank: int, device: torch.device) -> None:
    """A thread that waits for another to make the group's communicator makes none once the group is aborted."""
    group = give_up_after(dist.new_group([0, 1]), 3)
    if rank == 0:
        x, errors = torch.ones(3, device=device), []

        def first_call() -> None:
            with pytest.raises(dist.DistBackendError) as error:
                dist.all_reduce(x, group=group)
            errors.append(str(error.value))

        threads = [threading.Thread(target=first_call) for _ in range(2)]
        for thread in threads:
            thread.start()
        time.sleep(1)  # both are in the call
        group._get_backend(device).abort()
        for thread in threads:
            thread.join()
        assert sum("aborted" in error for error in errors) == 1, errors
    dist.barrier()


@check
def wrong_sizes(rank: int, device: torch.device) -> None:
    """Tensors that don't fit are errors before anything is queued, as the library would write beyond their ends; ranks, too."""
    x, y = torch.ones(3, device=device), torch.ones(4, device=device)
    with pytest.raises(RuntimeError):
        dist.all_to_all_single(y, y, [2, 2], [1, 3])
    with pytest.raises(RuntimeError, match="must not be negative"):
        dist.all_to_all_single(y, y, [-1, 5], [-1, 5])
    with pytest.raises(RuntimeError):
        dist.reduce_scatter(x, [x, y])
    with pytest.raises(RuntimeError):
        dist.all_to_all([x, x], [y, y])
    for call in (dist.send, dist.recv):
        with pytest.raises(RuntimeError, match="to or receive from rank 2 of its group"):
            call(x, 2)
    dist.all_reduce(x)
    assert x.cpu().eq(2).all()


@check
def exit_without_destroy(rank: int, device: torch.device) -> None:
    """A group that nobody destroys doesn't keep the process from ending."""
    dist.all_reduce(torch.ones(3, device=device), group=dist.new_group([0, 1]), async_op=True)


DEATH = Checks("gloo")


@DEATH.check("gloo")
def peer_that_dies(rank: int, device: torch.device) -> None:
    """The error of a peer that has ended names the call, the ranks and the shapes."""
    x = torch.ones(3, device=device)
    dist.all_reduce(x)
    torch.openreg.synchronize()
    dist.barrier()
    if rank == 1:
        os._exit(0)
    work = dist.all_reduce(x, async_op=True)
    with pytest.raises(RuntimeError, match=r"a peer has ended(.|\n)*In all_reduce in rank 0 of 2: float32\[3\]"):
        work.wait(datetime.timedelta(seconds=20))


# With ids of another vendor's size.
WIDE = Checks("gloo")
WIDE.check("gloo")(results_are_those_of_the_cpu)


def ranks_of_torchrun() -> None:
    """The program of a rank that torchrun has started, of any number: each call, with every root and parts of other sizes."""
    dist.init_process_group()
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("openreg", int(os.environ["LOCAL_RANK"]))
    torch.openreg.set_device(device)
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8):
        same(device, dist.all_reduce, values(rank, 33, dtype=dtype))
    for op in (dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT):
        same(device, lambda x, op=op: dist.all_reduce(x, op), values(rank, 7))
    for root in range(world):
        same(device, lambda x, root=root: dist.broadcast(x, root), values(rank, 5))
        x = values(rank, 4).to(device)
        dist.reduce(x, root)
        assert rank != root or x.tolist() == sum(values(of, 4) for of in range(world)).tolist()
    same(device, lambda out, x: dist.all_gather_into_tensor(out, x), torch.zeros(3 * world), values(rank, 3))
    same(device, lambda out, x: dist.reduce_scatter_tensor(out, x), torch.zeros(3), values(rank, 3 * world))
    same(device, lambda out, x: dist.all_to_all_single(out, x), torch.zeros(2 * world, 2), values(rank, 2 * world, 2))
    sent, got = [(rank + 2 * to) % 4 for to in range(world)], [(of + 2 * rank) % 4 for of in range(world)]
    same(
        device,
        lambda out, x: dist.all_to_all_single(out, x, got, sent),
        torch.zeros(sum(got), 2),
        values(rank, sum(sent), 2),
    )
    outs = [torch.zeros(size, device=device) for size in got]
    dist.all_to_all(outs, [values(rank, size).to(device) for size in sent])
    assert [out.tolist() for out in outs] == [values(of, size).tolist() for of, size in enumerate(got)]
    outs = [torch.zeros((of * 3) % 5, device=device) for of in range(world)]  # rank 0 has nothing
    dist.all_gather(outs, values(rank, (rank * 3) % 5).to(device))
    assert [out.tolist() for out in outs] == [values(of, (of * 3) % 5).tolist() for of in range(world)]
    part = torch.zeros(3, device=device)
    dist.reduce_scatter(part, [values(rank, 3).to(device) * (to + 1) for to in range(world)])
    assert part.tolist() == (sum(values(of, 3) for of in range(world)) * (rank + 1)).tolist()
    previous = (rank - 1) % world
    out, own = torch.zeros(9, device=device), values(rank, 9).to(device)
    ring = [dist.P2POp(dist.isend, own, (rank + 1) % world), dist.P2POp(dist.irecv, out, previous)]
    for work in dist.batch_isend_irecv(ring):
        work.wait()
    assert out.tolist() == values(previous, 9).tolist()
    pair = dist.new_group([0, world - 1])
    if rank in (0, world - 1):
        x = values(rank, 5).to(device)
        dist.all_reduce(x, group=pair)
        assert x.tolist() == (values(0, 5) + values(world - 1, 5)).tolist()
    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2, device=device))
    ddp(values(rank, 3, 4).to(device)).sum().backward()
    expected = sum(values(of, 3, 4).sum(0) for of in range(world)) / world
    torch.testing.assert_close(ddp.module.weight.grad.cpu(), expected.expand(2, 4))
    dist.destroy_process_group()


def run_ranks(folder: Path, **environment: str) -> list[dict[str, Any]]:
    return reports_of(__file__, folder, FAKE_GPU_NCCL_DELAY_US="20000", **fake_nccl(), **environment)


@pytest.mark.parametrize("count", [3, pytest.param(4, marks=pytest.mark.long)])
def test_more_ranks(count: int) -> None:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("OPENREG_", "TORCH_DISTRIBUTED_"))}
    settings = {"OPENREG_PREFERENCES": os.devnull, "OMP_NUM_THREADS": "1", "FAKE_GPU_DEVICES": str(count)}
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*command, f"--nproc-per-node={count}", __file__],
        env=kept | settings | fake_nccl() | {"FAKE_GPU_NCCL_DELAY_US": "2000"},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_ranks(tmp_path_factory.mktemp("ranks"))


# The error of a peer that has ended names the call, the ranks and the shapes; also where the host waits in a stream's place
@pytest.mark.parametrize("without", ["", "stream_wait"])
def test_a_peer_that_dies(tmp_path: Path, without: str) -> None:
    layers = {"OPENREG_LAYERS": f"without:{DRIVERS / 'without_layer.so'}", "OPENREG_CUDA_WITHOUT": without}
    report = run_ranks(tmp_path, PEER_DIES="1", **(layers if without else {}))[0]
    assert report["errors"].get("gloo/peer_that_dies", report["output"][-3000:]) == ""


# HCCL's ids have 4,108 bytes: they reach the driver whole through torch.distributed
def test_ids_of_another_size(tmp_path: Path) -> None:
    layers = f"id:{DRIVERS / 'id_layer.so'}"
    for rank, report in enumerate(run_ranks(tmp_path, WIDE="1", OPENREG_LAYERS=layers, OPENREG_LOG_LEVEL="info")):
        assert report["errors"].get("gloo/results_are_those_of_the_cpu", report["output"][-3000:]) == ""
        assert f"rank {rank} has an id of 4108 bytes" in report["output"]


@pytest.mark.parametrize("name", list(CHECKS.names()))
@pytest.mark.parametrize("rank", range(WORLD))
def test_collectives_by_the_drivers_library(reports: list[dict[str, Any]], rank: int, name: str) -> None:
    report = reports[rank]
    assert name in report["errors"], report["output"][-4000:]
    assert not report["errors"][name], report["errors"][name]
    assert report["status"] == 0, report["output"][-4000:]


if __name__ == "__main__" and "TORCHELASTIC_RUN_ID" in os.environ:
    ranks_of_torchrun()
elif __name__ == "__main__":
    (DEATH if os.environ.get("PEER_DIES") else WIDE if os.environ.get("WIDE") else CHECKS).main()
