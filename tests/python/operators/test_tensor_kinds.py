# SPDX-License-Identifier: BSD-3-Clause
"""Sparse, quantized and nested tensors: made, moved, computed with and changed on the device.

``make opinfo`` compares their operators with the CPU's; here is what that doesn't do: moves between devices, memory,
saving, and training with them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

DEV = "openreg:1"
OTHER = "openreg:0"

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch calls all of these kinds prototypes


def dense() -> torch.Tensor:
    return torch.tensor([[0.0, 1.0, 0.0, 2.0], [3.0, 0.0, 0.0, 0.0], [0.0, 0.0, 4.0, 5.0], [6.0, 0.0, 0.0, 7.0]])


def per_channel(x: torch.Tensor) -> torch.Tensor:
    scales = torch.tensor([0.1, 0.2, 0.3, 0.4], device=x.device)
    return torch.quantize_per_channel(x, scales, torch.tensor([0, 1, 2, 3], device=x.device), 0, torch.quint8)


def nested(x: torch.Tensor) -> torch.Tensor:
    return torch.nested.as_nested_tensor([x[:1].clone(), x[1:].clone()])


KINDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "coo": lambda x: x.to_sparse(),
    "coo hybrid": lambda x: x.to_sparse(1),
    "csr": lambda x: x.to_sparse_csr(),
    "csc": lambda x: x.to_sparse_csc(),
    "bsr": lambda x: x.to_sparse_bsr((2, 2)),
    "bsc": lambda x: x.to_sparse_bsc((2, 2)),
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.1, 3, torch.quint8),
    "quantized by channel": per_channel,
    "nested": nested,
    "jagged": lambda x: torch.nested.as_nested_tensor([x[:1].clone(), x[1:].clone()], layout=torch.jagged),
}


def to_dense(x: torch.Tensor) -> torch.Tensor:
    if x.is_quantized:
        return x.dequantize()
    if x.is_nested:
        return torch.nested.to_padded_tensor(x, -1.0)
    return x.to_dense()


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest) -> Callable[[torch.Tensor], torch.Tensor]:
    return KINDS[request.param]


# made on the device or moved there, it is the same tensor; and it moves on, and back
def test_made_and_moved(make) -> None:
    expected = make(dense())
    for there in (make(dense().to(DEV)), expected.to(DEV), expected.to(OTHER).to(DEV)):
        assert there.device == torch.device(DEV)
        assert there.layout == expected.layout
        assert there.dtype == expected.dtype
        assert to_dense(there).device == torch.device(DEV)
        assert_close(to_dense(there).cpu(), to_dense(expected), rtol=0, atol=0)
        back = there.cpu()
        assert back.device.type == "cpu"
        assert_close(to_dense(back), to_dense(expected), rtol=0, atol=0)


# its parts are in the device's memory, and go when it goes
def test_memory_is_the_devices(make) -> None:
    gc.collect()
    before = torch.openreg.memory_allocated(DEV)
    there = make(dense()).to(DEV)
    assert torch.openreg.memory_allocated(DEV) > before
    del there
    gc.collect()
    assert torch.openreg.memory_allocated(DEV) == before


def test_clone_and_current_device(make) -> None:
    there = make(dense().to(DEV))
    copy = there.clone()
    assert copy.device == torch.device(DEV)
    assert_close(to_dense(copy), to_dense(there), rtol=0, atol=0)
    assert torch.openreg.current_device() == 0


def test_two_devices_are_an_error() -> None:
    for kind in ("coo", "csr"):
        here, there = (KINDS[kind](dense().to(device)) for device in (OTHER, DEV))
        with pytest.raises(RuntimeError, match="same device"):
            torch.add(here, there)


@pytest.mark.parametrize("kind", ["coo", "csr", "bsr", "quantized", "quantized by channel"])
def test_saved_and_loaded(kind: str, tmp_path: Path) -> None:
    there = KINDS[kind](dense().to(DEV))
    torch.save(there, tmp_path / "saved.pt")
    loaded = torch.load(tmp_path / "saved.pt")
    assert loaded.device == torch.device(DEV)
    assert_close(to_dense(loaded), to_dense(there), rtol=0, atol=0)


# each quantized type that the device says it has: made there, with the CPU's values
def test_quantized_types() -> None:
    types = {torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4}
    assert types <= set(torch.accelerator.get_device_capability()["supported_dtypes"])
    for dtype in types:
        there, here = (torch.quantize_per_tensor(dense().to(place), 0.1, 3, dtype) for place in (DEV, "cpu"))
        assert there.device == torch.device(DEV) and there.dtype == dtype
        assert_close(there.dequantize().cpu(), here.dequantize(), rtol=0, atol=0)


# indices and values are not copied on the way in or out
def test_a_sparse_tensor_shares_the_memory_of_its_parts() -> None:
    indices, values = torch.tensor([[0, 1], [1, 0]], device=DEV), torch.tensor([1.0, 2.0], device=DEV)
    coo = torch.sparse_coo_tensor(indices, values, (2, 2), is_coalesced=True)
    assert coo._values().data_ptr() == values.data_ptr()
    assert coo.values().data_ptr() == values.data_ptr()
    values.mul_(3)
    assert coo.to_dense().tolist() == [[0, 3], [6, 0]]
    crow = torch.tensor([0, 1, 2], device=DEV)
    csr = torch.sparse_csr_tensor(crow, indices[1], values, (2, 2))
    assert csr.values().data_ptr() == values.data_ptr()
    csr.values().zero_()
    assert values.tolist() == [0, 0]


# in place: values, structure, size, and whether it is coalesced, on the tensor itself
def test_sparse_tensors_change_in_place() -> None:
    there = dense().to(DEV).to_sparse()
    same = there
    there.mul_(2)
    there.add_(there.clone())
    assert same is there
    assert_close(there.to_dense().cpu(), dense() * 4, rtol=0, atol=0)
    there.sparse_resize_((6, 6), 2, 0)
    assert there.shape == (6, 6)
    there.zero_()
    assert there._nnz() == 0
    twice = torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (2,), device=DEV)
    assert not twice.is_coalesced()
    assert twice.coalesce().values().tolist() == [3]
    out = torch.empty(0, device=DEV, layout=torch.sparse_coo)
    torch.add(dense().to(DEV).to_sparse(), dense().to(DEV).to_sparse(), out=out.sparse_resize_((4, 4), 2, 0))
    assert_close(out.to_dense().cpu(), dense() * 2, rtol=0, atol=0)


def test_gradients_of_sparse_products() -> None:
    gradients = []
    for device in ("cpu", DEV):
        x = dense().to(device).requires_grad_()
        y = (dense() + 1).to(device).requires_grad_()
        (torch.sparse.mm(x.to_sparse(), y).sum() + torch.sparse.sum(y.to_sparse() * 2)).backward()
        gradients.append((x.grad.cpu(), y.grad.cpu()))
    assert_close(gradients[1], gradients[0], rtol=0, atol=0)


# quantized modules: the packed weights stay on the host, inputs and results are the device's
def test_quantized_operators() -> None:
    results = []
    for device in ("cpu", DEV):
        x = torch.quantize_per_tensor(dense().to(device), 0.1, 0, torch.quint8)
        y = torch.ops.quantized.add(x, x, 0.2, 0)
        y[0] = x[1]
        assert y.device == torch.device(device)
        assert y.q_scale() == 0.2
        results.append(torch.relu(y).dequantize().cpu())
    assert_close(results[1], results[0], rtol=0, atol=0)
    scales = per_channel(dense().to(DEV)).q_per_channel_scales()
    assert scales.device == torch.device(DEV)
    assert_close(scales.cpu(), torch.tensor([0.1, 0.2, 0.3, 0.4]).double())


@pytest.mark.parametrize("kind", ["nested", "jagged"])
def test_nested_tensors_in_a_model(kind: str) -> None:
    results = []
    for device in ("cpu", DEV):
        torch.manual_seed(0)
        layer = torch.nn.Linear(4, 3).to(device)
        x = KINDS[kind](dense().to(device))
        y = torch.nn.functional.softmax(layer(x), dim=-1)
        assert y.device == torch.device(device)
        parts = y.unbind()
        torch.cat(parts).square().sum().backward()
        results.append((torch.cat(parts).detach().cpu(), layer.weight.grad.cpu()))
    assert_close(results[1], results[0], rtol=0, atol=0)


# what a gradient needs is kept by the kernel although it sees views of the tensors
@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)])
def test_gradients_of_reducing_products(reduce: str, wanted: tuple[bool, bool]) -> None:
    def gradients(device: str) -> list[torch.Tensor]:
        a = dense().to(device).to_sparse_csr().requires_grad_(wanted[0])
        b = torch.arange(8.0, device=device).reshape(4, 2).requires_grad_(wanted[1])
        torch.sparse.mm(a, b, reduce).sum().backward()
        return [t.grad.to_dense().cpu() for t in (a, b) if t.grad is not None]

    expected, got = gradients("cpu"), gradients(DEV)
    assert len(got) == sum(wanted)
    assert_close(got, expected)


# a tensor that is said to be coalesced is looked at
def test_invariants_of_coalesced_tensors() -> None:
    indices, values = torch.tensor([[0, 1], [0, 2]], device=DEV), torch.ones(2, device=DEV)
    made = torch.sparse_coo_tensor(indices, values, (2, 3), check_invariants=True, is_coalesced=True)
    assert made.is_coalesced()
    assert made.to_dense().cpu().tolist() == [[1, 0, 0], [0, 0, 1]]
    twice = torch.tensor([[0, 0], [1, 1]], device=DEV)
    with pytest.raises(RuntimeError, match="cannot set is_coalesced"):
        torch.sparse_coo_tensor(twice, values, (2, 3), check_invariants=True, is_coalesced=True)
