# SPDX-License-Identifier: BSD-3-Clause
"""Collectives in captured graphs: nothing is sent during the capture, and each replay sends what is in memory then.

The file is also the program of a rank (two_ranks.py).
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from two_ranks import NIGHTLY_STAGED, WORLD, Checks, assert_ended_well, assert_passed, fixture_of

pytestmark = pytest.mark.skipif(
    not hasattr(torch._C, "_acceleratorGraph"), reason="PyTorch has graphs of accelerators since 2.13"
)

CHECKS = Checks("")
check = CHECKS.check


def captured(work: Callable[[], Any]) -> tuple[Any, Any]:
    graph = torch.openreg.OpenRegGraph()
    with torch.openreg.graph(graph):
        result = work()
    return graph, result


def mine(rank: int, device: torch.device, factor: int = 1) -> torch.Tensor:
    """0, 1, 2, 3 in rank 0 and 10, 11, 12, 13 in rank 1, times the factor."""
    return (torch.arange(4.0, device=device) + 10 * rank) * factor


def all_reduce(x: torch.Tensor) -> torch.Tensor:
    out = x.clone()
    dist.all_reduce(out)
    return out


def all_reduce_later(x: torch.Tensor) -> torch.Tensor:
    out = x.clone()
    work = dist.all_reduce(out, async_op=True)
    other = x * 2
    work.wait()
    return out + other - other


def all_reduce_by_its_future(x: torch.Tensor) -> torch.Tensor:
    out = x.clone()
    work = dist.all_reduce(out, async_op=True)
    return work.get_future().wait()[0] * 1


def all_gather(x: torch.Tensor) -> torch.Tensor:
    outs = [torch.empty_like(x) for _ in range(WORLD)]
    dist.all_gather(outs, x)
    return torch.cat(outs)


def all_gather_into_tensor(x: torch.Tensor) -> torch.Tensor:
    out = x.new_empty(WORLD * len(x))
    dist.all_gather_into_tensor(out, x)
    return out


def reduce_scatter_tensor(x: torch.Tensor) -> torch.Tensor:
    out = x.new_empty(len(x) // WORLD)
    dist.reduce_scatter_tensor(out, x)
    return out


def all_to_all_single(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    dist.all_to_all_single(out, x)
    return out


def broadcast(x: torch.Tensor) -> torch.Tensor:
    out = x.clone()
    dist.broadcast(out, src=1)
    return out


def functional(x: torch.Tensor) -> torch.Tensor:
    from torch.distributed import _functional_collectives as functional

    return functional.all_reduce(x, "sum", dist.group.WORLD) + 1


def messages(x: torch.Tensor) -> torch.Tensor:
    out, peer = torch.empty_like(x), 1 - dist.get_rank()
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, peer), dist.P2POp(dist.irecv, out, peer)]):
        work.wait()
    return out


def a_block(x: torch.Tensor) -> torch.Tensor:
    out = x.clone()
    with dist.distributed_c10d._coalescing_manager(device=x.device, async_ops=True) as block:
        dist.all_reduce(out[:2])
        dist.all_reduce(out[2:])
    other = x * 2
    block.wait()
    return out + other


def a_block_of_one_call(x: torch.Tensor) -> torch.Tensor:
    outs = [x.new_empty(WORLD * len(part)) for part in x.split(2)]
    with dist.distributed_c10d._coalescing_manager():
        for out, part in zip(outs, x.split(2), strict=True):
            dist.all_gather_into_tensor(out, part)
    return torch.cat(outs)


def message_by_message(x: torch.Tensor) -> torch.Tensor:
    out, peer = torch.empty_like(x), 1 - dist.get_rank()
    sent = dist.isend(x, peer)
    other = x * 2
    received = dist.irecv(out, peer)
    received.wait()
    out = out + other
    sent.wait()
    return out


def on_another_stream(x: torch.Tensor) -> torch.Tensor:
    out, side = x.clone(), torch.openreg.Stream()
    side.wait_stream(torch.openreg.current_stream())
    with torch.openreg.stream(side):
        work = dist.all_reduce(out, async_op=True)
    work.wait()
    return out + 1


COLLECTIVES = [
    all_reduce,
    all_reduce_later,
    all_reduce_by_its_future,
    all_gather,
    all_gather_into_tensor,
    reduce_scatter_tensor,
    all_to_all_single,
    broadcast,
    functional,
    messages,
    a_block,
    a_block_of_one_call,
    message_by_message,
    on_another_stream,
]


@check("")
def replays_compute_what_eager_calls_do(rank: int, device: torch.device) -> None:
    """Each collective, also in memory that the graph made, with the inputs of the replay."""
    for collective in COLLECTIVES:
        x = mine(rank, device)
        graph, out = captured(functools.partial(collective, x))
        for factor in (1, 3):
            x.copy_(mine(rank, device, factor))
            graph.replay()
            got = out.cpu()
            assert torch.equal(got, collective(x).cpu()), collective.__name__


@check("")
def nothing_is_sent_during_a_capture(rank: int, device: torch.device) -> None:
    """One rank may capture alone."""
    x = mine(rank, device)
    if rank == 0:
        captured(lambda: dist.all_reduce(x))
        assert torch.equal(x, mine(rank, device))
    dist.all_reduce(x)
    assert torch.equal(x, mine(0, device) + mine(1, device))


@check("")
def what_cant_be_captured(rank: int, device: torch.device) -> None:
    """A barrier, for which the host waits; asking whether a collective has ended; tensors of the CPU go on as ever."""
    x = mine(rank, device)
    with pytest.raises(RuntimeError, match="has failed: c10d::barrier can't be captured"):
        with torch.openreg.graph(torch.openreg.OpenRegGraph()):
            dist.barrier(device_ids=[rank])
    with pytest.raises(RuntimeError, match="has failed: querying the event"):
        with torch.openreg.graph(torch.openreg.OpenRegGraph()):
            dist.all_reduce(x, async_op=True).is_completed()
    host = torch.ones(2)

    def work() -> None:
        dist.all_reduce(host)
        x.add_(1)

    captured(work)
    assert host.tolist() == [WORLD] * 2


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad(set_to_none=True)
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


@check("")
def data_parallel_training(rank: int, device: torch.device) -> None:
    """DDP's forward, backward and the optimizer's step, captured once: parameters and losses are those of eager steps."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(6, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, 3)).to(device)
    eager = nn.parallel.DistributedDataParallel(copy.deepcopy(layers), bucket_cap_mb=0.0005)
    torch.manual_seed(1 + rank)
    batches = [(torch.randn(8, 6).to(device), torch.randn(8, 3).to(device)) for _ in range(15)]
    optimizer = torch.optim.Adam(eager.parameters(), lr=0.01, capturable=True)
    expected = [step_of(eager, optimizer, *batch).item() for batch in batches]

    side = torch.openreg.Stream()
    with torch.openreg.stream(side):
        model = nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=0.0005)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, capturable=True)
        # As on CUDA, DDP is warm after eleven steps: it has arranged its buckets, and taken its times.
        losses = [step_of(model, optimizer, *batch).item() for batch in batches[:11]]
        x, y = (tensor.clone() for tensor in batches[11])
    graph = torch.openreg.OpenRegGraph()
    with torch.openreg.graph(graph, stream=side):
        loss = step_of(model, optimizer, x, y)
    for batch in batches[11:]:
        x.copy_(batch[0])
        y.copy_(batch[1])
        graph.replay()
        losses.append(loss.item())
    torch.testing.assert_close(losses, expected)
    for ours, theirs in zip(model.state_dict().values(), eager.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs)


@check("")
def sharded_tensors(rank: int, device: torch.device) -> None:
    """A DTensor's operators are those of its shard and their collectives."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("openreg", (WORLD,))
    a = distribute_tensor(torch.randn(4, 6, device=device), mesh, [Shard(1)])
    b = distribute_tensor(torch.randn(6, 4, device=device), mesh, [Shard(0)])

    def work() -> torch.Tensor:
        return (a @ b).redistribute(mesh, [Replicate()]).to_local()

    work()
    graph, out = captured(work)
    for _ in range(2):
        a.mul_(2)
        graph.replay()
        torch.testing.assert_close(out.clone(), work())


ranks = fixture_of(__file__, "auto", NIGHTLY_STAGED, "driver")


@pytest.mark.parametrize("name", list(CHECKS.names()))
def test_two_ranks(ranks: list[dict[str, Any]], name: str) -> None:
    """One check in both ranks."""
    assert_passed(ranks, name)


def test_both_ranks_end_well(ranks: list[dict[str, Any]]) -> None:
    """No crash at the end."""
    assert_ended_well(ranks)


if __name__ == "__main__":
    CHECKS.main()
