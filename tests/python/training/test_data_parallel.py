# SPDX-License-Identifier: BSD-3-Clause
"""torch.nn.DataParallel over openreg devices, and the functions of torch.nn.parallel.comm that it is made of."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from comparing import assert_same
from torch import nn
from torch.nn.parallel import comm, data_parallel
from torch.testing import assert_close

pytestmark = pytest.mark.filterwarnings("ignore:PyTorch is not compiled with NCCL")


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2))


@pytest.mark.parametrize("where", ["cpu", "openreg:0"])
def test_training_equals_one_device(where: str) -> None:
    """Outputs and gradients of a model over both devices are those of the model on the CPU."""
    model = network()
    parallel = nn.DataParallel(copy.deepcopy(model).to("openreg:0"))
    assert parallel.device_ids == [0, 1]
    x = torch.randn(6, 4)
    for count in (6, 5, 1):
        expected, got = model(x[:count]), parallel(x[:count].to(where))
        expected.sum().backward()
        got.sum().backward()
        assert_same(got, expected, "openreg:0")
    assert_same([p.grad for p in parallel.parameters()], [p.grad for p in model.parameters()], "openreg:0")
    assert torch.openreg.current_device() == 0


def test_replicas_run_on_their_devices() -> None:
    """Each replica sees its part of the batch on its own device, and keyword arguments; buffers come along."""
    seen = []

    class Note(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("offset", torch.ones(1))
            self.scale = nn.Parameter(torch.full((1,), 2.0))

        def forward(self, x: torch.Tensor, factor: int = 1) -> dict[str, torch.Tensor]:
            seen.append((x.device.index, self.offset.device.index, self.scale.device.index, len(x)))
            return {"y": x * self.scale * factor + self.offset}

    x = torch.arange(5.0)
    got = nn.DataParallel(Note().to("openreg"), output_device=1)(x, factor=3)
    assert sorted(seen) == [(0, 0, 0, 3), (1, 1, 1, 2)]
    assert got["y"].device == torch.device("openreg:1")
    assert got["y"].tolist() == [1.0, 7.0, 13.0, 19.0, 25.0]
    with torch.no_grad():
        assert data_parallel(Note().to("openreg"), x)["y"].tolist() == [1.0, 3.0, 5.0, 7.0, 9.0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_replicas_compute_under_autocast(dtype: torch.dtype) -> None:
    """In the caller's type, with one replica and with several; after it they compute as before."""
    layer = nn.Linear(4, 3).to("openreg")
    x = torch.randn(6, 4, device="openreg")
    for devices in ([0, 1], [0]):
        parallel = nn.DataParallel(layer, devices)
        with torch.autocast("openreg", dtype=dtype):
            assert parallel(x).dtype == data_parallel(layer, x, devices).dtype == dtype
            assert_close(parallel(x), layer(x))
            with torch.autocast("openreg", enabled=False):
                assert parallel(x).dtype == torch.float32
        assert parallel(x).dtype == torch.float32
    copies = [layer, copy.deepcopy(layer).to("openreg:1")]
    with torch.autocast("openreg", dtype=dtype):
        assert [y.dtype for y in nn.parallel.parallel_apply(copies, [x, x.to("openreg:1")])] == [dtype] * 2


@pytest.mark.parametrize("where", ["cpu", "openreg:0", "openreg:1"])
def test_scatter_and_gather(where: str) -> None:
    """Parts of a tensor on the devices, and the tensor again, along any dimension and into tensors that are given."""
    x = torch.arange(24.0).reshape(4, 6).to(where)
    for dim, sizes in ((0, None), (1, None), (1, [1, 5])):
        parts = comm.scatter(x, [0, 1], sizes, dim)
        assert [part.device.index for part in parts] == [0, 1]
        assert [part.size(dim) for part in parts] == (sizes or [x.size(dim) // 2] * 2)
        for target, index in (("cpu", None), ("openreg:1", 1)):
            again = comm.gather(parts, dim, target)
            assert (again.device.type, again.device.index) == (target.partition(":")[0], index)
            assert torch.equal(again.cpu(), x.cpu())
        out = torch.zeros(4, 6, device="openreg:1")
        assert comm.gather(parts, dim, out=out) is out
        assert torch.equal(out.cpu(), x.cpu())
        blanks = [torch.zeros_like(part) for part in parts]
        comm.scatter(x, dim=dim, out=blanks)
        assert all(torch.equal(blank, part) for blank, part in zip(blanks, parts, strict=True))
    scalars = [torch.tensor(1.0, device="openreg:0"), torch.tensor(2.0, device="openreg:1")]
    assert comm.gather(scalars).tolist() == [1, 2]


def test_scattered_parts_keep_their_layout() -> None:
    """channels_last stays so, and the part for the tensor's own device is a view of it, as on CUDA."""
    x = torch.arange(96.0, device="openreg:0").reshape(4, 4, 2, 3).to(memory_format=torch.channels_last)
    parts = comm.scatter(x, [0, 1])
    assert all(part.is_contiguous(memory_format=torch.channels_last) for part in (*parts, comm.gather(parts)))
    assert parts[0].data_ptr() == x.data_ptr()


def test_broadcast() -> None:
    """Copies on each device; the first is the tensor itself."""
    x, y = torch.arange(3.0, device="openreg:0"), torch.ones(2, 2, device="openreg:0")
    copies = comm.broadcast(x, [0, 1])
    assert [each.device.index for each in copies] == [0, 1]
    assert all(each.tolist() == [0, 1, 2] for each in copies)
    first, second = comm.broadcast_coalesced([x, y], [0, 1])
    assert first[0] is x
    assert [each.device.index for each in second] == [1, 1]
    assert torch.equal(second[1].cpu(), y.cpu())
    out = [torch.empty(3, device="openreg:1"), torch.empty(3, device="openreg:0")]
    comm.broadcast(x, out=out)
    assert all(each.tolist() == [0, 1, 2] for each in out)
    assert comm.reduce_add([x, copies[1]], 0).tolist() == [0, 2, 4]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: comm.scatter(x, [0, 1], [1]), "same length"),
        (lambda x: comm.scatter(x, []), "at least one"),
        (lambda x: comm.scatter(x, out=[]), "at least one"),
        (lambda x: comm.gather([]), "at least one"),
        (lambda x: comm.gather([x, x], out=torch.empty(3, device="openreg")), r"the shape \(8,\)"),
        (lambda x: comm.gather([x, x.cpu()]), "input tensor at index 1 has device 'cpu'"),
        (lambda x: comm.gather([x, x[None]]), "tensor at index 1 has 2 dimensions"),
        (lambda x: comm.gather([x[None], x[None, 1:]]), r"at index 1 has invalid shape \(1, 3\)"),
        (lambda x: comm.scatter(x, out=[torch.empty(4)]), "output tensor at index 0 has device 'cpu'"),
        (lambda x: comm.scatter(x[None], dim=1, out=[x.expand(2, 4)]), r"incorrect shape: \(2, 4\)"),
        (lambda x: comm.scatter(x, out=[x[None]]), r"incorrect shape: \(1, 4\)"),
        (lambda x: comm.scatter(x, out=[x[:1], x[:2]]), "Expected 4, but got total 3"),
        (lambda x: comm.broadcast(x, out=[torch.empty(4)]), "output tensor at index 0 has device 'cpu'"),
        (lambda x: comm.broadcast(x, out=[torch.empty(3, device="openreg")]), "the shape"),
        (lambda x: comm.broadcast_coalesced([x], [1, 0]), "all tensors must be on openreg:1"),
    ],
)
def test_errors(call: Any, text: str) -> None:
    """What can't be done is a RuntimeError before anything is copied."""
    with pytest.raises(RuntimeError, match=text):
        call(torch.arange(4.0, device="openreg:0"))
