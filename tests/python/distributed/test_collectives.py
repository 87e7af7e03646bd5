# SPDX-License-Identifier: BSD-3-Clause
"""torch.distributed with openreg tensors: two processes, each with two simulated devices, against gloo on the CPU.

The file is also the program of a rank: one pair of processes runs every check, with operators aliased and staged.
"""

from __future__ import annotations

import copy
import datetime
import gc
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.testing import assert_close
from two_ranks import WORLD, Check, Checks, Peer, assert_ended_well, assert_passed, fixture_of, give_up_after

from torch_openreg import _C_distributed

VARIABLE = "OPENREG_ENABLE_GLOO_COLLECTIVES"
CPU = torch.device("cpu")

PLAIN, PAIRED, OURS, UNNAMED = "gloo", "cpu:gloo,openreg:openreg_gloo", "openreg_gloo", ""
BOTH, ALONE = "cpu:gloo,openreg:gloo", "openreg:gloo"
ALL = (PLAIN, PAIRED, OURS, UNNAMED, BOTH, ALONE)

CHECKS = Checks(*ALL)
check = CHECKS.check


def values(device: torch.device, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Another content in each rank."""
    return (torch.arange(1, 1 + torch.Size(shape).numel()) + 10 * dist.get_rank()).reshape(shape).to(device, dtype)


def blanks(device: torch.device, *shape: int) -> list[torch.Tensor]:
    return [torch.full(shape, -1.0, device=device) for _ in range(WORLD)]


def finish(work: Any) -> None:
    """Waits for what a collective returned, a Work or a future; None is a finished one."""
    if work is not None:
        work.wait()


def reduced(op: Any, dtype: torch.dtype = torch.float32) -> Callable[[torch.device, bool], list[torch.Tensor]]:
    def run(device: torch.device, later: bool) -> list[torch.Tensor]:
        x = values(device, 3, 4, dtype=dtype)
        finish(dist.all_reduce(x, op, async_op=later))
        return [x]

    return run


def broadcast(device: torch.device, later: bool) -> list[torch.Tensor]:
    x = values(device, 5)
    finish(dist.broadcast(x, 1, async_op=later))
    return [x]


def reduce(device: torch.device, later: bool) -> list[torch.Tensor]:
    x = values(device, 5)
    finish(dist.reduce(x, 1, async_op=later))
    return [x] if dist.get_rank() == 1 else []


def all_gather(device: torch.device, later: bool) -> list[torch.Tensor]:
    out = blanks(device, 2, 3)
    finish(dist.all_gather(out, values(device, 2, 3), async_op=later))
    return out


def all_gather_into_tensor(device: torch.device, later: bool) -> list[torch.Tensor]:
    out = torch.empty(4, 3, device=device)
    finish(dist.all_gather_into_tensor(out, values(device, 2, 3), async_op=later))
    return [out]


def all_gather_in_place(device: torch.device, later: bool) -> list[torch.Tensor]:
    out = torch.zeros(4, 3, device=device)
    mine = out.chunk(WORLD)[dist.get_rank()]
    mine.copy_(values(device, 2, 3))
    finish(dist.all_gather_into_tensor(out, mine, async_op=later))
    return [out]


def gather(device: torch.device, later: bool) -> list[torch.Tensor]:
    out = blanks(device, 2, 3) if dist.get_rank() == 1 else None
    finish(dist.gather(values(device, 2, 3), out, 1, async_op=later))
    return out or []


def scatter(device: torch.device, later: bool) -> list[torch.Tensor]:
    out = torch.empty(3, device=device)
    parts = [values(device, 3), values(device, 3) * 2] if dist.get_rank() == 0 else None
    finish(dist.scatter(out, parts, 0, async_op=later))
    return [out]


def reduce_scatter(device: torch.device, later: bool) -> list[torch.Tensor]:
    out = torch.empty(3, device=device)
    finish(dist.reduce_scatter(out, [values(device, 3), values(device, 3) * 2], async_op=later))
    return [out]


def reduce_scatter_tensor(device: torch.device, later: bool) -> list[torch.Tensor]:
    out = torch.empty(2, 3, device=device)
    finish(dist.reduce_scatter_tensor(out, values(device, 4, 3), async_op=later))
    return [out]


def all_to_all(device: torch.device, later: bool) -> list[torch.Tensor]:
    out = blanks(device, 2)
    finish(dist.all_to_all(out, [values(device, 2), values(device, 2) * 2], async_op=later))
    return out


def all_to_all_single(device: torch.device, later: bool) -> list[torch.Tensor]:
    mine, other = (3, 1) if dist.get_rank() == 0 else (2, 2)
    sizes = [mine, other] if dist.get_rank() == 0 else [other, mine]
    received = [3, 2] if dist.get_rank() == 0 else [1, 2]
    out = torch.empty(sum(received), device=device)
    finish(dist.all_to_all_single(out, values(device, 4), received, sizes, async_op=later))
    return [out]


def send_and_receive(device: torch.device, later: bool) -> list[torch.Tensor]:
    out, peer = torch.zeros(4, device=device), 1 - dist.get_rank()
    if later:
        sending, receiving = dist.isend(values(device, 4), peer), dist.irecv(out, peer)
        finish(sending)
        finish(receiving)
    elif peer == 1:
        dist.send(values(device, 4), peer)
    else:
        assert dist.recv(out) == peer  # from any rank
    return [out]


def send_in_a_batch(device: torch.device, later: bool) -> list[torch.Tensor]:
    out, peer = torch.zeros(4, device=device), 1 - dist.get_rank()
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, values(device, 4), peer), dist.P2POp(dist.irecv, out, peer)]
    ):
        work.wait()
    return [out]


def coalesced(device: torch.device, later: bool) -> list[torch.Tensor]:
    x = [values(device, 2), values(device, 3)]
    finish(dist.all_reduce_coalesced(x, async_op=later))
    return x


def in_a_block(device: torch.device, later: bool) -> list[torch.Tensor]:
    """Collectives that are queued, and ones that are called at once; gloo alone refuses the device."""
    x, y = [values(device, 2), values(device, 3)], [values(device, 4), values(device, 5)]
    named = device if device.type == "openreg" else None
    with dist._coalescing_manager(device=named, async_ops=later) as block:
        for each in x:
            dist.all_reduce(each)
    finish(block if later else None)
    with dist._coalescing_manager(device=named, async_ops=later and named is not None) as block:
        for each in y:
            dist.broadcast(each, src=1)
    finish(block if later and named is not None else None)
    return [*x, *y]


def transposed(device: torch.device, later: bool) -> list[torch.Tensor]:
    x = values(device, 3, 4).t()
    finish(dist.all_reduce(x, async_op=later))
    return [x]


def scalar_and_empty(device: torch.device, later: bool) -> list[torch.Tensor]:
    x = [values(device).squeeze(), torch.empty(0, device=device)]
    finish(dist.all_reduce(x[0], async_op=later))
    finish(dist.broadcast(x[1], 0, async_op=later))
    return x


def view_of_a_larger_storage(device: torch.device, later: bool) -> list[torch.Tensor]:
    whole = values(device, 6, 2)
    finish(dist.all_reduce(whole[2:4], async_op=later))
    return [whole]


def parameter(device: torch.device, later: bool) -> list[torch.Tensor]:
    x = nn.Parameter(values(device, 3))
    finish(dist.broadcast(x, 0, async_op=later))
    assert x.requires_grad
    return [x.detach()]


def wrong_sizes(device: torch.device, later: bool) -> list[torch.Tensor]:
    finish(dist.all_gather([torch.empty(3, device=device), torch.empty(3, 1, device=device)], values(device, 3)))
    return []


OPS = dist.ReduceOp
COLLECTIVES: dict[str, Callable[[torch.device, bool], list[torch.Tensor]]] = {
    "sum": reduced(OPS.SUM),
    "product": reduced(OPS.PRODUCT),
    "min": reduced(OPS.MIN),
    "max": reduced(OPS.MAX),
    "average": reduced(OPS.AVG),
    "bits": reduced(OPS.BXOR, torch.int64),
    "bits of floats, an error": reduced(OPS.BAND),
    "bfloat16": reduced(OPS.SUM, torch.bfloat16),
    "complex": reduced(OPS.SUM, torch.complex64),
} | {
    function.__name__: function
    for function in (
        broadcast,
        reduce,
        all_gather,
        all_gather_into_tensor,
        all_gather_in_place,
        gather,
        scatter,
        reduce_scatter,
        reduce_scatter_tensor,
        all_to_all,
        all_to_all_single,
        send_and_receive,
        send_in_a_batch,
        coalesced,
        in_a_block,
        transposed,
        scalar_and_empty,
        view_of_a_larger_storage,
        parameter,
        wrong_sizes,
    )
}


def outcome(function: Any, device: torch.device, later: bool) -> Any:
    try:
        results = function(device, later)
        if device.type == "openreg":
            torch.openreg.synchronize(device)  # what failed after wait() is told by the next that waits for the stream
        return results
    except (RuntimeError, ValueError, TypeError) as error:
        return type(error).__name__ + ": " + gloo_text(error)


def gloo_text(error: BaseException) -> str:
    """What gloo says, without the time in brackets at its start, and without the call that told it."""
    first_line = re.sub(r'^openreg_\w+: driver "\w+": ', "", str(error).splitlines()[0])
    return re.sub(r"\[.*?\]", "", first_line)


def wait_for_results(work: Any, device: torch.device) -> None:
    """Waits for a collective as who reads its results on the host: wait() alone makes a stream wait."""
    work.wait()
    torch.openreg.synchronize(device)


def as_on_the_cpu(name: str) -> Check:
    """Results, and errors, are those of gloo with CPU tensors; called in the ordinary way and with async_op."""

    def run(rank: int, device: torch.device) -> None:
        for later in (False, True):
            expected, got = outcome(COLLECTIVES[name], CPU, later), outcome(COLLECTIVES[name], device, later)
            if isinstance(expected, str):
                assert got == expected, (got, expected)
                continue
            assert not isinstance(got, str), got
            assert all(tensor.device == device for tensor in got)
            assert_close([tensor.cpu() for tensor in got], expected, rtol=0, atol=0)
        assert torch.openreg.current_device() == rank

    return run


CHECKS.by_backend[PLAIN] = {f"as on the CPU: {name}": as_on_the_cpu(name) for name in COLLECTIVES}


@check(*ALL)
def sum_is_in_every_rank(rank: int, device: torch.device) -> None:
    """Every way to make a group serves openreg; the ones with gloo for the CPU serve that too."""
    x = torch.full((3,), 1.0 + rank, device=device)
    dist.all_reduce(x)
    assert x.tolist() == [3.0] * 3
    dist.barrier()
    if dist.get_backend() != ALONE:
        y = torch.full((3,), 1.0 + rank)
        dist.all_reduce(y)
        assert y.tolist() == [3.0] * 3


@check(*ALL)
def device_is_served_from_the_start(rank: int, device: torch.device) -> None:
    """A new group has its backend for openreg before the first collective, and batches and blocks may be the first."""
    group = dist.new_group()
    assert group._get_backend(device).name() == "openreg_gloo"
    assert group._get_backend(device).supports_coalescing
    out = torch.zeros(2, device=device)
    batch = [dist.P2POp(dist.isend, values(device, 2), 1 - rank, group), dist.P2POp(dist.irecv, out, 1 - rank, group)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    assert out.tolist() == [1.0 + 10 * (1 - rank), 2.0 + 10 * (1 - rank)]
    x = values(device, 2)
    with dist._coalescing_manager(dist.new_group(), device):
        dist.all_reduce(x, group=group)
    assert x.tolist() == [12.0, 14.0]


@check(PLAIN, OURS)
def off(rank: int, device: torch.device) -> None:
    """The variable decides at each collective of openreg tensors; those of CPU tensors and the group stay."""
    group = dist.new_group()
    try:
        for value, text in (
            ("0", f"openreg tensors are off: {VARIABLE}=0"),
            ("yes", f"{VARIABLE} must be '0' or '1', but is 'yes'"),
            ("\udcff\n", rf"{VARIABLE} must be '0' or '1', but is '\\xff\\x0a'"),
        ):
            os.environ[VARIABLE] = value
            for function in (dist.all_reduce, lambda x, group: dist.all_gather(blanks(x.device, 3), x, group=group)):
                with pytest.raises(RuntimeError, match=text):
                    function(torch.ones(3, device=device), group=group)
            x = torch.ones(3)
            dist.all_reduce(x, group=group)
            dist.barrier(group=group)
            assert x.tolist() == [2.0] * 3
        for value in ("", "1"):
            os.environ[VARIABLE] = value
            y = torch.ones(3, device=device)
            dist.all_reduce(y, group=group)
            assert y.tolist() == [2.0] * 3
    finally:
        os.environ.pop(VARIABLE, None)


@check(PLAIN, UNNAMED)
def monitored_barrier(rank: int, device: torch.device) -> None:
    """Without a name the backend is gloo, too: PyTorch asks for that name."""
    assert dist.get_backend() == "gloo"
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=20))


@check(PAIRED, OURS, BOTH)
def monitored_barrier_of_a_group(rank: int, device: torch.device) -> None:
    """The group's own function asks for no name."""
    dist.group.WORLD.monitored_barrier(datetime.timedelta(seconds=20))


@check(PLAIN, OURS, PAIRED, BOTH)
def split_off(rank: int, device: torch.device) -> None:
    """split_group() on a group that is bound to its device, as by init_process_group(device_id=...); and new groups."""
    world = dist.group.WORLD
    world.bound_device_id = device
    try:
        alone = dist.split_group(split_ranks=[[0], [1]])
        both = dist.split_group(split_ranks=[[0, 1]], timeout=datetime.timedelta(seconds=20))
        x = torch.ones(2, device=device)
        dist.all_reduce(x, group=alone)
        assert x.tolist() == [1.0] * 2
        for where in (device, CPU):
            y = torch.ones(2, device=where)
            dist.all_reduce(y, group=both)
            assert y.tolist() == [2.0] * 2
        assert both._get_backend(device).name() == "openreg_gloo"
        assert dist.get_process_group_ranks(alone) == [rank]
        groups = [dist.new_group([each]) for each in range(WORLD)]  # a rank outside is asked to take part in a split
        dist.all_reduce(x, group=groups[rank])
        assert x.tolist() == [1.0] * 2
    finally:
        world.bound_device_id = None


@check(PLAIN)
def error_in_a_block(rank: int, device: torch.device) -> None:
    """The works of a block are waited for together, and its error is that of the call that failed."""
    group = give_up_after(dist.new_group(), 1)
    if rank == 0:
        backend = group._get_backend(device)
        backend._start_coalescing()
        dist.all_reduce(torch.ones(3, device=device), group=group, async_op=True)
        work = backend._end_coalescing()
        with pytest.raises(RuntimeError):
            wait_for_results(work, device)
        assert work.is_completed()
        assert not work.is_success()
    dist.barrier()


@check(PLAIN)
def tensor_with_gaps(rank: int, device: torch.device) -> None:
    """The elements between those of the tensor stay; gloo itself would take the memory as if it were dense."""
    whole = torch.full((3, 4), 1.0 + rank, device=device)
    dist.all_reduce(whole[:, ::2])
    assert whole.tolist() == [[3.0, 1.0 + rank] * 2] * 3


@check(PLAIN, UNNAMED)
def numbers_of_elements(rank: int, device: torch.device) -> None:
    """As with NCCL, one tensor for all ranks may have any shape of the right number of elements; another is an error."""
    mine = values(device, 2, 3)
    expected = torch.cat([torch.arange(1.0, 7), torch.arange(11.0, 17)])
    for shape in ((12,), (WORLD, 2, 3), (3, 4)):
        out = torch.empty(shape, device=device)
        dist.all_gather_into_tensor(out, mine)
        assert_close(out.cpu().flatten(), expected)
        whole = values(device, *shape)
        part = torch.empty(2, 3, device=device)
        dist.reduce_scatter_tensor(part, whole)
        assert_close(part.cpu().flatten(), torch.arange(1.0, 13).chunk(WORLD)[rank] * 2 + 10)
    with pytest.raises(RuntimeError, match="size"):
        dist.all_gather_into_tensor(torch.empty(13, device=device), mine)


@check(PLAIN)
def other_device(rank: int, device: torch.device) -> None:
    """Tensors of a device that is not current, and of both devices at once."""
    other = torch.device("openreg", 1 - rank)
    x = values(other, 4)
    dist.all_reduce(x)
    assert x.tolist() == [12.0, 14.0, 16.0, 18.0]
    out = torch.empty(8, device=device)
    dist.all_gather_into_tensor(out, values(other, 4))
    assert out.tolist() == [1.0, 2.0, 3.0, 4.0, 11.0, 12.0, 13.0, 14.0]
    assert torch.openreg.current_device() == rank


@check(PLAIN)
def uneven_lists(rank: int, device: torch.device) -> None:
    """Lists of tensors of other sizes, as with NCCL; gloo takes none. Results with gaps, and what doesn't fit, too."""
    for later in (False, True):
        out = [torch.zeros(rank + 2 * i, device=device) for i in range(WORLD)]
        finish(dist.all_to_all(out, [values(device, 2 * rank + i) for i in range(WORLD)], async_op=later))
        sent = [[1.0 + 10 * i + j for j in range(rank + 2 * i)] for i in range(WORLD)]
        assert [each.tolist() for each in out] == sent
        gaps = torch.zeros(4, 2, device=device)
        parts = [gaps[:1, 0], gaps[1:3, 0]]
        sending = [values(device, 1 + rank) for i in range(WORLD)]
        finish(dist.all_to_all(parts, sending, async_op=later))
        assert gaps[:, 0].tolist() == [1.0, 11.0, 12.0, 0.0]
        for op, expected in ((OPS.SUM, [12.0, 14.0]), (OPS.MAX, [11.0, 12.0])):
            out_of_own = torch.zeros(rank + 1, device=device)
            inputs = [values(device, i + 1) for i in range(WORLD)]
            finish(dist.reduce_scatter(out_of_own, inputs, op, async_op=later))
            assert out_of_own.tolist() == expected[: rank + 1]
            assert [each.tolist() for each in inputs] == [values(CPU, i + 1).tolist() for i in range(WORLD)]
        for own in (values(device, rank + 1), values(device, rank + 1).cpu().repeat_interleave(2).to(device)[::2]):
            gathered = [torch.zeros(1, device=device), torch.zeros(2, 3, device=device)[:, 1]]
            finish(dist.all_gather(gathered, own, async_op=later))
            assert [each.tolist() for each in gathered] == [[1.0], [11.0, 12.0]]


@check(PLAIN)
def sparse_sum(rank: int, device: torch.device) -> None:
    """A sparse tensor has the sum of all ranks' afterwards, of indices that only some of them have, too."""
    for later in (False, True):
        x = torch.sparse_coo_tensor([[0, 1 + rank]], [1.0, 5.0], (4,)).to(device)
        finish(dist.all_reduce(x, async_op=later))
        assert x.device == device
        assert x.to_dense().tolist() == [2.0, 5.0, 5.0, 0.0]


@check(PLAIN)
def results_of_a_work(rank: int, device: torch.device) -> None:
    """The future and result() hold the caller's tensors; a callback sees the result."""
    x = torch.full((3,), 1.0 + rank, device=device)
    work = dist.all_reduce(x, async_op=True)
    doubled = work.get_future().then(lambda future: future.value()[0] * 2)
    assert doubled.wait().tolist() == [6.0] * 3
    assert doubled.value().device == device
    (value,) = work.get_future().wait()
    assert value.data_ptr() == x.data_ptr()
    assert x.tolist() == [3.0] * 3
    work.wait()
    assert work.is_completed()
    assert work.is_success()
    (result,) = work.result()
    assert result.data_ptr() == x.data_ptr()
    out = blanks(device, 2)
    work = dist.all_gather(out, torch.ones(2, device=device), async_op=True)
    assert [t.data_ptr() for t in work.get_future().wait()] == [t.data_ptr() for t in out]


@check(PLAIN)
def work_on_the_stream_comes_first(rank: int, device: torch.device) -> None:
    """A collective sees what the calling thread's current stream was still to write."""
    source = torch.full((1 << 22,), 1.0 + rank).pin_memory()
    x, scratch = torch.zeros_like(source, device=device), torch.zeros_like(source, device=device)
    stream = torch.openreg.Stream(device)
    stream.wait_stream(torch.openreg.current_stream(device))  # which writes the zeros
    with torch.openreg.stream(stream):
        for _ in range(50):
            scratch.copy_(source, non_blocking=True)
        x.copy_(source, non_blocking=True)
        work = dist.all_reduce(x, async_op=True)
    work.wait()
    assert torch.equal(x.cpu(), torch.full_like(source, 3.0))


@check(PLAIN)
def input_that_nobody_keeps(rank: int, device: torch.device) -> None:
    """Memory of an input is not used for other tensors before the peer has it."""
    peer = Peer(rank)
    if rank == 0:
        work = dist.isend(torch.ones(1 << 22, device=device), 1)
        others = [torch.zeros(1 << 22, device=device) for _ in range(2)]
        peer.come()
        work.wait()
        del others
    else:
        x = torch.zeros(1 << 22, device=device)
        dist.recv(x, 0)
        assert torch.equal(x.cpu(), torch.ones(1 << 22))


@check(PLAIN)
def waiting_leaves_the_interpreter_alone(rank: int, device: torch.device) -> None:
    """Other Python threads run while a rank waits for the other one."""
    group, peer, x = dist.new_group(), Peer(rank), torch.ones(3, device=device)

    def tick() -> None:
        for _ in range(10):
            time.sleep(0.01)
        peer.come()

    thread = threading.Thread(target=tick)
    if rank == 0:
        thread.start()
    dist.all_reduce(x, group=group)
    torch.openreg.synchronize(device)
    assert x.tolist() == [2.0] * 3
    if rank == 0:
        thread.join()


@check(PLAIN)
def wait_with_a_timeout(rank: int, device: torch.device) -> None:
    """wait() gives up in time, and a later one has the result."""
    group, x = dist.new_group(), torch.full((3,), 1.0 + rank, device=device)
    dist.all_reduce(torch.ones(1, device=device), group=group)
    peer = Peer(rank)
    work = dist.all_reduce(x, group=group, async_op=True)
    if rank == 0:
        with pytest.raises(RuntimeError, match="timed out"):
            work.wait(datetime.timedelta(milliseconds=100))
        assert not work.is_completed()
        peer.come()
    work.wait()
    assert x.tolist() == [3.0] * 3
    part, peer = torch.zeros(1, device=device), Peer(rank)
    work = dist.reduce_scatter_tensor(part, torch.full((2,), 1.0 + rank, device=device), group=group, async_op=True)
    if rank == 0:
        with pytest.raises(RuntimeError, match=r"(?s)timed out.*In reduce_scatter_tensor in rank 0 of 2"):
            work.wait(datetime.timedelta(milliseconds=100))
        peer.come()
    work.wait()
    assert part.tolist() == [3.0]


@check(PLAIN)
def dropped_while_a_peer_is_awaited(rank: int, device: torch.device) -> None:
    """A backend whose last owner is Python waits for its threads when it goes, and they want the GIL to drop tensors."""
    group = dist.new_group()
    backend = group._get_backend(device)
    dist.all_reduce(torch.ones(1, device=device), group=group)
    if rank == 1:
        time.sleep(0.5)
    dist.all_reduce(torch.ones(3, device=device), group=group, async_op=True)
    dist.destroy_process_group(group)
    del group, backend


@check(PLAIN)
def failure_in_the_background(rank: int, device: torch.device) -> None:
    """A peer that never comes: gloo's error reaches who waits for the stream, the Work and its future, and a later wait()."""
    texts, lines = [], []
    for where in (CPU, device):
        group = give_up_after(dist.new_group(), 1)
        if rank == 0:
            work = dist.all_reduce(torch.ones(3, device=where), group=group, async_op=True)
            with pytest.raises(RuntimeError) as raised:
                wait_for_results(work, device)
            texts.append(gloo_text(raised.value))
            lines = str(raised.value).splitlines()
            torch.openreg.synchronize(device)  # who was told is not told again
            with pytest.raises(RuntimeError) as raised:
                work.wait()
            assert gloo_text(raised.value) == texts[-1]
            assert work.is_completed()
            assert not work.is_success()
            with pytest.raises(RuntimeError):
                work.get_future().wait()
        dist.barrier()
    if rank == 0:
        assert texts[1] == texts[0] != ""
        assert lines[1] == f"In all_reduce in rank 0 of 2: float32[3] on {device}. (OPENREG_E_INTERNAL)"


@check(PLAIN)
def failure_names_the_call(rank: int, device: torch.device) -> None:
    """A timeout says which collective it was, in which rank, of which tensors; sends and, where staged, receives, too."""
    calls = {
        "send": lambda group: dist.isend(torch.ones(1 << 22, device=device), 1, group=group),
        "recv": lambda group: dist.irecv(torch.ones(2, 5, device=device), 1, group=group),
        "all_gather": lambda group: dist.all_gather(
            blanks(device, 2), torch.ones(2, device=device), group=group, async_op=True
        ),
    }
    tensors = {
        "send": f"float32[4194304] on {device}",
        "recv": f"float32[2, 5] on {device}",
        "all_gather": f"float32[2] on {device}, float32[2] on {device}, float32[2] on {device}",
    }
    # gloo's sends and receives have the timeout that their group was made with, for good, and each from its wait() on.
    del calls["send" if os.environ["OPENREG_OPERATORS"] == "staged" else "recv"]
    groups = {name: dist.new_group(timeout=datetime.timedelta(seconds=5)) for name in calls}
    if rank == 0:
        works = {name: call(groups[name]) for name, call in calls.items()}
        for name, work in works.items():
            with pytest.raises(RuntimeError) as raised:
                work.wait()
                torch.openreg.current_stream(device).synchronize()  # the device has the errors of all three
            assert f"In {name} in rank 0 of 2: {tensors[name]}." in str(raised.value)
    dist.barrier()


@check(PLAIN)
def nothing_is_kept(rank: int, device: torch.device) -> None:
    """After collectives, also failed and forgotten ones, no device memory stays in use."""
    gc.collect()
    before = torch.openreg.memory_allocated(device)
    for run in (all_gather, all_to_all_single, reduce_scatter_tensor, send_and_receive, reduced(OPS.SUM), wrong_sizes):
        outcome(run, device, True)
    dist.all_reduce(torch.ones(1000, device=device), async_op=True)
    dist.barrier()
    deadline = time.monotonic() + 5
    while torch.openreg.memory_allocated(device) != before:
        assert time.monotonic() < deadline, torch.openreg.memory_allocated(device) - before
        time.sleep(0.01)


@check(PLAIN)
def in_inference_mode(rank: int, device: torch.device) -> None:
    """The first collective of a group may come in inference mode."""
    with torch.inference_mode():
        x = torch.full((3,), 1.0 + rank, device=device)
        dist.all_reduce(x, group=dist.new_group())
        assert x.tolist() == [3.0] * 3


@check(PLAIN)
def group_of_some_ranks(rank: int, device: torch.device) -> None:
    """A group of one rank sums over that one."""
    groups = [dist.new_group([each]) for each in range(WORLD)]
    x = torch.full((3,), 1.0 + rank, device=device)
    dist.all_reduce(x, group=groups[rank])
    assert x.tolist() == [1.0 + rank] * 3


@check(PLAIN, UNNAMED, PAIRED, BOTH)
def cpu_and_device_in_other_orders(rank: int, device: torch.device) -> None:
    """Collectives of CPU and of openreg tensors don't meet: threads may call them in orders that differ between ranks."""
    for i in range(20):
        x, y = torch.full((3,), 1.0 + rank), torch.full((3,), 10.0 + 10 * rank, device=device)
        works = [dist.all_reduce(each, async_op=True) for each in ((x, y) if rank == 0 else (y, x))]
        for work in works:
            work.wait()
        assert (x.tolist(), y.tolist()) == ([3.0] * 3, [30.0] * 3), i


@check(PLAIN, UNNAMED)
def two_threads(rank: int, device: torch.device) -> None:
    """One thread's collectives of CPU tensors run beside another's of openreg tensors."""
    results: list[float] = []

    def on_the_cpu() -> None:
        for i in range(100):
            x = torch.full((7,), float(i + rank))
            dist.all_reduce(x)
            results.append(x[0].item())

    worker = threading.Thread(target=on_the_cpu)
    worker.start()
    on_device = []
    for i in range(100):
        y = torch.full((7,), 1000.0 * (i + rank), device=device)
        dist.all_reduce(y)
        on_device.append(y[0].item())
    worker.join()
    assert results == [2.0 * i + 1 for i in range(100)]
    assert on_device == [1000.0 * (2 * i + 1) for i in range(100)]


@check(PLAIN)
def message_to_a_peer_that_comes_later(rank: int, device: torch.device) -> None:
    """A receive and a small message that are begun first don't hold up the caller, as with CPU tensors."""
    for first in range(WORLD):
        group = dist.new_group()
        x, y = torch.zeros(2, device=device), torch.ones(2, device=device)
        if rank == first:
            works = [dist.irecv(x, 1 - rank, group), dist.isend(y, 1 - rank, group)]
            dist.barrier()
        else:
            dist.barrier()
            works = [dist.isend(y, 1 - rank, group), dist.irecv(x, 1 - rank, group)]
        for work in works:
            assert work is not None
            work.wait()
        assert x.tolist() == [1.0] * 2


@check(PLAIN)
def saving_while_training(rank: int, device: torch.device) -> None:
    """A checkpoint is written by another thread, with collectives of its own, while training goes on."""
    import torch.distributed.checkpoint as checkpoint

    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 3).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    folder = Path(sys.argv[2])
    for i in range(3):
        saved = {"weight": model.module.weight.detach().clone(), "tensor": torch.full((5,), float(i), device=device)}
        writing = checkpoint.async_save(dict(saved), checkpoint_id=str(folder / f"checkpoint{i}"))
        steps = 0
        while True:
            model(torch.full((2, 4), float(rank), device=device)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            done = torch.tensor(float(writing.done()), device=device)
            dist.all_reduce(done, dist.ReduceOp.MIN)
            if done.item() and steps >= 10:
                break
        writing.result()
        loaded = {name: torch.zeros_like(tensor) for name, tensor in saved.items()}
        checkpoint.load(loaded, checkpoint_id=str(folder / f"checkpoint{i}"))
        assert all(torch.equal(loaded[name], tensor) for name, tensor in saved.items())


@check(PLAIN)
def future_of_a_block(rank: int, device: torch.device) -> None:
    """The one Work of a block has a future, which is done with the last collective, and the results of all."""
    x, y = values(device, 2), values(device, 3)
    group = dist.group.WORLD
    assert group is not None
    backend = group._get_backend(device)
    backend._start_coalescing()
    for tensor in (x, y):
        group.allreduce([tensor])
    work = backend._end_coalescing()
    parts = work.get_future().wait()
    assert len(parts) == 2
    work.wait()
    assert (
        [tensor.tolist() for tensor in work.result()] == [x.tolist(), y.tolist()] == [[12.0, 14.0], [12.0, 14.0, 16.0]]
    )


@check(*ALL)
def objects(rank: int, device: torch.device) -> None:
    """Collectives of Python objects, with openreg tensors in them."""
    gathered: list[Any] = [None] * WORLD
    dist.all_gather_object(gathered, {"rank": rank, "tensor": torch.full((2,), rank, device="openreg:0")})
    assert [entry["rank"] for entry in gathered] == [0, 1]
    assert [entry["tensor"].tolist() for entry in gathered] == [[0, 0], [1, 1]]
    listed: list[Any] = [("from", rank), None]
    dist.broadcast_object_list(listed, 1, device=device)
    assert listed == [("from", 1), None]


@check(PLAIN, ALONE)
def functional_collectives(rank: int, device: torch.device) -> None:
    """The collectives that return new tensors, which torch.compile and DTensor use."""
    world = dist.group.WORLD
    x = torch.full((2,), 1.0 + rank, device=device)
    assert functional.all_reduce(x, "sum", world).tolist() == [3.0] * 2
    assert functional.all_gather_tensor(x, 0, world).tolist() == [1.0, 1.0, 2.0, 2.0]
    assert functional.reduce_scatter_tensor(x, "sum", 0, world).tolist() == [3.0]
    assert functional.all_to_all_single(values(device, 2), None, None, world).tolist() == [1.0 + rank, 11.0 + rank]
    assert [t.tolist() for t in functional.all_reduce_coalesced([x, x * 2], "sum", world)] == [[3.0] * 2, [6.0] * 2]
    gathered = functional.all_gather_into_tensor_coalesced([x, x * 2], world)
    assert [t.tolist() for t in gathered] == [[1.0, 1.0, 2.0, 2.0], [2.0, 2.0, 4.0, 4.0]]
    scattered = functional.reduce_scatter_tensor_coalesced([x, x * 2], "sum", [0, 0], world)
    assert [t.tolist() for t in scattered] == [[3.0], [6.0]]
    assert x.tolist() == [1.0 + rank] * 2


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


def train(model: nn.Module, rank: int, device: torch.device) -> list[float]:
    """Three steps with data that differ between the ranks; returns the losses."""
    torch.manual_seed(1 + rank)
    x, y = torch.randn(6, 8).to(device), torch.randn(6, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


DDP = nn.parallel.DistributedDataParallel


@check(PLAIN)
def data_parallel_training(rank: int, device: torch.device) -> None:
    """DistributedDataParallel on openreg trains as it does on the CPU, in each of its modes."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    cpu = DDP(network())
    expected = train(cpu, rank, CPU)
    assert expected[-1] < expected[0]
    for arguments in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}, {"hook": True}):
        hooked = bool(arguments.pop("hook", False))
        model = DDP(network().to(device), device_ids=[device], **arguments)
        if hooked:
            model.register_comm_hook(None, default_hooks.allreduce_hook)
        assert train(model, rank, device) == pytest.approx(expected, rel=1e-5)
        for (name, there), here in zip(model.state_dict().items(), cpu.state_dict().values(), strict=True):
            assert there.device == device
            assert_close(there.cpu(), here, msg=name)


@check(UNNAMED, ALONE)
def data_parallel_training_without_a_name(rank: int, device: torch.device) -> None:
    """DistributedDataParallel in other groups than gloo's; gradients are the same in both ranks."""
    model = DDP(network().to(device))
    train(model, rank, device)
    weights: list[Any] = [None] * WORLD
    dist.all_gather_object(weights, model.module[0].weight.tolist())
    assert weights[0] == weights[1]


@check(PLAIN)
def sharded_training(rank: int, device: torch.device) -> None:
    """fully_shard() on openreg gives the losses of DistributedDataParallel on the CPU."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    base = nn.Sequential(*(layer for layer in network() if not isinstance(layer, nn.BatchNorm1d)))
    expected = train(DDP(copy.deepcopy(base)), rank, CPU)
    model, mesh = base.to(device), init_device_mesh("openreg", (WORLD,))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    assert train(model, rank, device) == pytest.approx(expected, rel=1e-5)


@check(PLAIN, UNNAMED)
def distributed_tensors(rank: int, device: torch.device) -> None:
    """A DTensor is sharded, summed and gathered over a mesh of openreg devices."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("openreg", (WORLD,))
    whole = torch.arange(16.0).reshape(4, 4)
    sharded = distribute_tensor(whole.to(device), mesh, [Shard(0)])
    assert sharded.to_local().device == device
    assert torch.equal(sharded.to_local().cpu(), whole.chunk(WORLD)[rank])
    assert sharded.sum().full_tensor().item() == 120.0
    assert torch.equal(sharded.redistribute(mesh, [Replicate()]).to_local().cpu(), whole)


ranks = fixture_of(__file__, "auto", "staged")


# acceptance 5.9: each collective, and what is built on them, in two processes
@pytest.mark.parametrize("name", list(CHECKS.names()))
def test_two_ranks(ranks: list[dict[str, Any]], name: str) -> None:
    assert_passed(ranks, name)


# the threads of gloo let go of tensors that Python knows while a rank ends
def test_ranks_end_well(ranks: list[dict[str, Any]]) -> None:
    assert_ended_well(ranks)


# acceptance 5.9: what PyTorch knows of the device after the import, which opened no driver
def test_registered_with_torch_distributed(python: Any) -> None:
    python(
        """
        import copyreg, torch, torch.distributed as dist, torch_openreg
        from torch_openreg import _C
        from torch_openreg._integration import distributed as _distributed
        make = dist.distributed_c10d._new_process_group_helper
        _distributed.install()
        assert dist.distributed_c10d._new_process_group_helper is make
        assert not _C._is_initialized()
        assert dist.Backend.OPENREG_GLOO == "openreg_gloo"
        assert dist.get_default_backend_for_device("openreg") == "gloo"
        assert dist.Backend.backend_capability["gloo"].count("openreg") == 1
        assert dist.Backend.backend_capability["openreg_gloo"] == ["openreg", "cpu"]
        assert dist.ProcessGroupGloo._Options in copyreg.dispatch_table
        """
    )


# PyTorch 2.14 and newer load a backend by its entry point: a function that registers it, where nothing has loaded openreg
def test_entry_point_of_the_backend(python: Any) -> None:
    python(
        """
        import torch, torch.distributed as dist
        from importlib.metadata import entry_points
        assert "OPENREG_GLOO" not in dist.Backend._plugins
        [entry] = entry_points(group="torch.distributed.backends", name="openreg_gloo")
        entry.load()()
        assert "OPENREG_GLOO" in dist.Backend._plugins
        dist.init_process_group("openreg_gloo", store=dist.HashStore(), rank=0, world_size=1)
        x = torch.ones(2, device="openreg")
        dist.all_reduce(x)
        assert x.tolist() == [1, 1]
        dist.destroy_process_group()
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )


# acceptance 5.9: with 0 a collective of openreg tensors is refused however the group was made; those of the CPU work
@pytest.mark.parametrize("backend", [backend or None for backend in ALL])
def test_switched_off(backend: str | None, python: Any, tmp_path: Path) -> None:
    python(
        f"""
        import torch, torch.distributed as dist
        store = dist.FileStore({str(tmp_path / "store")!r}, 1)
        dist.init_process_group({backend!r}, rank=0, world_size=1, store=store)
        calls = [lambda x: dist.all_reduce(x), lambda x: dist.all_gather([x.clone()], x), lambda x: dist.broadcast(x, 0)]
        for call in calls:
            try:
                call(torch.ones(3, device="openreg"))
            except RuntimeError as error:
                assert "openreg tensors are off: {VARIABLE}=0" in str(error), error
            else:
                raise AssertionError("not refused")
            if {backend!r} != "openreg:gloo":
                call(torch.ones(3))
        dist.destroy_process_group()
        """,
        **{VARIABLE: "0"},
    )


# what a program passes by mistake is a TypeError
@pytest.mark.parametrize("function", [_C_distributed._serve_process_group, _C_distributed._staged_backend])
@pytest.mark.parametrize("argument", [None, 1, "gloo", object], ids=repr)
def test_wrong_arguments(function: Any, argument: object) -> None:
    with pytest.raises(TypeError, match="expected a"):
        function(argument)


if __name__ == "__main__":
    CHECKS.main()
