# SPDX-License-Identifier: BSD-3-Clause
"""What is built on collectives and asks the device for more: DTensor's random numbers, SyncBatchNorm, DDP's times.

The file is also the program of a rank (two_ranks.py).
"""

from __future__ import annotations

import copy
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.testing import assert_close
from two_ranks import NIGHTLY_STAGED, WORLD, Checks, assert_ended_well, assert_passed, fixture_of

CHECKS = Checks("")
check = CHECKS.check


def mesh_of_all() -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("openreg", (WORLD,))


def placements() -> list[list[Any]]:
    from torch.distributed.tensor import Replicate, Shard

    return [[Shard(0)], [Shard(1)], [Replicate()]]


@check("")
def random_tensors(rank: int, device: torch.device) -> None:
    """rand() and randn() of a DTensor are those of a plain tensor on the CPU, on each placement, one after the other."""
    from torch.distributed import tensor as dtensor

    mesh = mesh_of_all()
    torch.manual_seed(3)
    expected = [torch.rand(5, 4), torch.randn(3, 17), torch.rand(2, 2, dtype=torch.float64)]
    for where in placements():
        torch.manual_seed(3)
        made = [
            dtensor.rand(5, 4, device_mesh=mesh, placements=where),
            dtensor.randn(3, 17, device_mesh=mesh, placements=where),
            dtensor.rand(2, 2, dtype=torch.float64, device_mesh=mesh, placements=where),
        ]
        assert all(each.to_local().device == device for each in made)
        for got, right in zip(made, expected, strict=True):
            assert_close(got.full_tensor().cpu(), right, rtol=0, atol=0)


@check("")
def random_operators(rank: int, device: torch.device) -> None:
    """Dropout, bernoulli and the like give one result on each placement; outside a DTensor ranks go on alike."""
    from torch.distributed.tensor import distribute_tensor

    mesh, results = mesh_of_all(), []
    whole = torch.linspace(0.1, 0.9, 35).reshape(7, 5)
    for where in placements():
        torch.manual_seed(4)
        x = distribute_tensor(whole.to(device), mesh, where).requires_grad_()
        y = nn.functional.dropout(x, 0.5)
        y.sum().backward()
        given = distribute_tensor(torch.zeros(4, 4, device=device), mesh, where)
        given.uniform_(2, 3)
        drawn = [y, x.grad, torch.bernoulli(x.detach()), torch.rand_like(x), torch.randint_like(x, 100), given]
        results.append([each.full_tensor().cpu() for each in drawn] + [torch.rand(3, device=device).cpu()])
    assert 0 < (results[0][0] == 0).sum() < 35
    assert results[0][5].min() >= 2
    for other in results[1:]:
        assert_close(other, results[0], rtol=0, atol=0)
    gathered: list[Any] = [None] * WORLD
    dist.all_gather_object(gathered, results[0][-1])
    assert torch.equal(gathered[0], gathered[1])


@check("")
def random_numbers_of_a_generator(rank: int, device: torch.device) -> None:
    """A generator that is given draws, and goes on from there; the device's own does not move."""
    from torch.distributed.tensor import distribute_tensor

    mesh = mesh_of_all()
    generator = torch.Generator().manual_seed(5)
    expected = [torch.empty(4, 3).uniform_(generator=generator), torch.empty(4, 3).normal_(generator=generator)]
    for where in placements():
        torch.manual_seed(6)
        mine = torch.Generator(device).manual_seed(5)
        x = distribute_tensor(torch.zeros(4, 3, device=device), mesh, where)
        got = [x.uniform_(generator=mine).full_tensor().cpu(), x.normal_(generator=mine).full_tensor().cpu()]
        assert_close(got, expected, rtol=0, atol=0)
        own = torch.rand(2, device=device).cpu()
        torch.manual_seed(6)
        assert torch.equal(own, torch.rand(2))


@check("")
def ranks_with_different_seeds(rank: int, device: torch.device) -> None:
    """The first random operator of a program takes rank 0's state for all, as on other devices."""
    from torch.distributed import tensor as dtensor
    from torch.distributed.tensor import Replicate, _random

    _random._rng_tracker = None
    torch.manual_seed(10 + rank)
    x = dtensor.rand(3, device_mesh=mesh_of_all(), placements=[Replicate()]).to_local().cpu()
    torch.manual_seed(10)
    assert torch.equal(x, torch.rand(3))


@check("")
def sharded_model_from_meta(rank: int, device: torch.device) -> None:
    """fully_shard() of a model on meta, then to_empty() and reset_parameters(): the weights of a model on the CPU."""
    from torch.distributed.fsdp import fully_shard

    def layers() -> nn.Sequential:
        return nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))

    with torch.device("meta"):
        model = layers()
    for each in (*model, model):
        fully_shard(each, mesh=mesh_of_all())
    model.to_empty(device=device)
    expected = layers()
    for each in (model, expected):
        torch.manual_seed(1)
        for layer in each:
            layer.reset_parameters()
    for got, right in zip(model.parameters(), expected.parameters(), strict=True):
        assert_close(got.full_tensor().cpu(), right, rtol=0, atol=0)
    model(torch.ones(2, 5, device=device)).sum().backward()


def normalized(
    rank: int, device: torch.device, parts: list[slice], dtype: torch.dtype = torch.float32, **options: Any
) -> None:
    """SyncBatchNorm over the parts of a batch against BatchNorm over the batch, on the CPU."""
    torch.manual_seed(0)
    shape = (8, 3, 4, 2)
    x, factor = torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype)
    if options.pop("channels_last", False):
        x = x.contiguous(memory_format=torch.channels_last)
    expected = nn.BatchNorm2d(3, dtype=dtype if dtype == torch.float64 else None, **options)
    if expected.affine:
        nn.init.normal_(expected.weight)
        nn.init.normal_(expected.bias)
    model = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(expected)).to(device)
    part = parts[rank]
    for _ in range(2):
        whole, mine = x.clone().requires_grad_(), x[part].to(device).requires_grad_()
        right, got = expected(whole), model(mine)
        (right * factor).sum().backward()
        (got * factor[part].to(device)).sum().backward()
        assert (got.dtype, got.device) == (dtype, device)
        assert_close(got.cpu(), right[part])
        if mine.grad is not None or len(mine):  # PyTorch has none for no data
            assert_close(mine.grad.cpu(), whole.grad[part])
    for name, there in model.state_dict().items():
        assert_close(there.cpu(), expected.state_dict()[name], msg=name)
    for there, here in zip(model.parameters(), expected.parameters(), strict=True):
        gradient = torch.zeros_like(there) if there.grad is None else there.grad.clone()
        dist.all_reduce(gradient)
        assert_close(gradient.cpu(), here.grad)


@check("")
def synchronized_batch_norm(rank: int, device: torch.device) -> None:
    """The same numbers as one normalization of the whole batch: output, gradients, running statistics."""
    halves, uneven = [slice(0, 4), slice(4, 8)], [slice(0, 3), slice(3, 8)]
    normalized(rank, device, halves)
    normalized(rank, device, uneven, momentum=0.3, eps=1e-3)
    normalized(rank, device, uneven, channels_last=True)
    normalized(rank, device, uneven, torch.float64)
    normalized(rank, device, uneven, affine=False)
    normalized(rank, device, uneven, momentum=None)
    normalized(rank, device, uneven, track_running_stats=False)
    normalized(rank, device, [slice(0, 8), slice(8, 8)])  # a rank without data


@check("")
def synchronized_batch_norm_in_bfloat16(rank: int, device: torch.device) -> None:
    """Statistics are float, results of the type of the input."""
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(rank)).to(device, torch.bfloat16)
    mean, scale = torch.batch_norm_stats(x, 1e-5)
    assert mean.dtype == scale.dtype == torch.float32
    assert_close(mean.cpu(), x.cpu().float().mean(0))
    got = nn.SyncBatchNorm(3).to(device)(x)
    assert got.dtype == torch.bfloat16


@check("")
def times_of_data_parallel_training(rank: int, device: torch.device) -> None:
    """DistributedDataParallel measures forward, backward and communication on the device."""
    model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64).to(device))
    model._set_ddp_runtime_logging_sample_rate(1)
    for _ in range(3):
        model(torch.ones(8, 64, device=device)).sum().backward()
    with model.no_sync():
        model(torch.ones(8, 64, device=device)).sum().backward()
    model(torch.ones(8, 64, device=device)).sum().backward()
    times = model._get_ddp_logging_data()
    for name in ("forward_compute_time", "backward_compute_time", "backward_comm_time"):
        assert 0 < times[f"avg_{name}"] < 10e9, name


@check("")
def where_pytorch_has_no_place(rank: int, device: torch.device) -> None:
    """What docs/distributed.md lists is refused by PyTorch, and what it names instead works."""
    from torch.distributed import _symmetric_memory
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4).to(device))
    if torch.version.cuda is None:  # a torch for CUDA lets the hook pass, on whatever device
        with pytest.raises(TypeError, match="BF16 all reduce communication hook required CUDA"):
            model.register_comm_hook(None, bf16_compress_hook)
    else:
        model.register_comm_hook(None, bf16_compress_hook)
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4).to(device))
    model.register_comm_hook(None, lambda group, bucket: bf16_compress_hook(group, bucket))
    model(torch.full((2, 4), 1.0 + rank, device=device)).sum().backward()
    assert model.module.weight.grad.tolist() == [[3.0] * 4] * 4
    with pytest.raises(RuntimeError, match="does not support device type openreg"):
        _symmetric_memory.empty(4, device=device)


ranks = fixture_of(__file__, "auto", NIGHTLY_STAGED)


# acceptance 5.9: what training with several processes asks of the device, in two processes
@pytest.mark.parametrize("name", list(CHECKS.names()))
def test_two_ranks(ranks: list[dict[str, Any]], name: str) -> None:
    assert_passed(ranks, name)


# PyTorch warns once where it has no timer for a device
def test_no_warning_of_missing_times(ranks: list[dict[str, Any]]) -> None:
    assert_ended_well(ranks)
    assert "Time stats" not in ranks[0]["output"] + ranks[1]["output"]


# parts of tensors that are sharded twice along one dimension, as by fully_shard() over tensor parallelism, are no views
def test_a_shard_that_is_no_view() -> None:
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    from torch_openreg._integration.dtensor_random import _WholeTensor

    torch.manual_seed(0)
    whole = torch.rand(8, 3)
    seen = torch.zeros(8, 3)
    for coordinate in itertools.product(range(2), range(2)):
        mesh = SimpleNamespace(size=lambda dimension: 2, get_local_rank=lambda dimension, at=coordinate: at[dimension])
        spec = SimpleNamespace(shape=whole.shape, mesh=mesh, placements=(_StridedShard(0, split_factor=2), Shard(0)))
        mode = _WholeTensor(spec)
        torch.manual_seed(0)
        with mode:
            part = torch.rand(2, 3, device="openreg")
        assert torch.equal(part.cpu(), mode._split(whole))
        torch.manual_seed(0)
        with mode:
            given = torch.zeros(2, 3, device="openreg").uniform_()
        assert torch.equal(given, part)
        seen += torch.isin(whole, part.cpu())
        with pytest.raises(RuntimeError, match="should have the shape"), mode:
            torch.zeros(3, 3, device="openreg").uniform_()
    assert seen.min() == seen.max() == 1


# an operator that PyTorch calls with the GIL, as on DTensors, waits for its stream without: what is before it there may be
# behind a collective whose thread wants the GIL
@pytest.mark.timeout(120)
def test_operators_wait_without_the_gil(python: Any) -> None:
    python(
        """
        import ctypes, os
        import torch, torch.distributed as dist
        from torch.distributed.tensor import Replicate, distribute_tensor, init_device_mesh
        from torch_openreg import config

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        mesh = init_device_mesh("openreg", (1,))
        x = distribute_tensor(torch.ones(4, device="openreg"), mesh, [Replicate()])
        x + 1
        torch.openreg.synchronize()
        library = ctypes.PyDLL(os.path.join(config.lib_dir(), "libopenreg.so.1"))  # its calls keep the GIL
        calls = []
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda argument: calls.append(1))  # takes the GIL
        side = torch.openreg.Stream()
        with torch.openreg.stream(side):
            assert library.openreg_stream_launch_host_func(0, ctypes.c_int64(side.stream_id), function, None) == 0
            y = x + 1
        assert calls == [1]
        torch.openreg.current_stream().wait_stream(side)
        assert y.full_tensor().tolist() == [2.0] * 4
        dist.destroy_process_group()
        """
    )


if __name__ == "__main__":
    CHECKS.main()
