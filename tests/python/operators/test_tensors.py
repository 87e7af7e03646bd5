# SPDX-License-Identifier: BSD-3-Clause
"""Tensors on their way: pickling, saving, copying, and questions over several devices."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch


def test_non_blocking_copies_keep_their_order() -> None:
    pinned = torch.zeros(1 << 18).pin_memory()
    there = torch.empty(1 << 18, device="openreg:0")
    for turn in range(10):
        pinned.fill_(turn)
        there.copy_(pinned, non_blocking=True)
        there.add_(1)  # behind the copy, on the same stream
        torch.openreg.synchronize()  # before the host writes again
        assert there.min().item() == there.max().item() == turn + 1


@pytest.mark.parametrize("device", ["openreg:0", "openreg:1"])
def test_deepcopy(device: str) -> None:
    x = torch.arange(6.0, device=device, requires_grad=True)
    y = copy.deepcopy(x)
    assert y.device == x.device
    assert y.requires_grad
    assert torch.equal(x.cpu(), y.cpu())
    with torch.no_grad():
        y += 1
    assert not torch.equal(x.cpu(), y.cpu())
    pair = {"a": x.detach()[:3], "b": x.detach()}
    both = copy.deepcopy(pair)
    both["b"][0] = 100.0
    assert both["a"][0].item() == 100.0  # still one storage
    model = torch.nn.LSTM(3, 4).to(device)
    twin = copy.deepcopy(model)
    assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    assert all(b.device == torch.device(device) for b in twin.parameters())


@pytest.mark.parametrize("way", ["torch", "pickle", "legacy"])
def test_save_and_load(way: str) -> None:
    x = torch.randn(4, 5, device="openreg:1")
    saved: Any = {"x": x, "view": x[1:], "number": 3, "strided": x.t()}
    file = io.BytesIO()
    if way == "pickle":
        loaded = pickle.loads(pickle.dumps(saved))
    else:
        torch.save(saved, file, _use_new_zipfile_serialization=way == "torch")
        file.seek(0)
        loaded = torch.load(file)
    assert loaded["x"].device == x.device
    assert loaded["strided"].stride() == (1, 5)
    for key in ("x", "view", "strided"):
        assert torch.equal(loaded[key].cpu(), saved[key].cpu())
    if way == "pickle":
        return
    loaded["x"][1].fill_(7)
    assert loaded["view"][0].tolist() == [7.0] * 5  # sharing survives


@pytest.mark.parametrize(
    ("where", "device"),
    [
        ("cpu", "cpu"),
        ("openreg:0", "openreg:0"),
        ("privateuseone:0", "openreg:0"),
        ({"openreg:1": "openreg:0"}, "openreg:0"),
        (torch.device("openreg:1"), "openreg:1"),
    ],
    ids=str,
)
def test_map_location(where: Any, device: str, tmp_path: Path) -> None:
    torch.save(torch.arange(5.0, device="openreg:1"), tmp_path / "saved.pt")
    loaded = torch.load(tmp_path / "saved.pt", map_location=where)
    assert loaded.device == torch.device(device)
    assert loaded.tolist() == [0, 1, 2, 3, 4]


# what was saved on a device that is not there says so
def test_load_without_the_device(python: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save(torch.arange(5.0, device="openreg:1"), path)
    out = python(
        f"""
        import torch
        try:
            torch.load({str(path)!r})
        except RuntimeError as error:
            print(error)
        print(torch.load({str(path)!r}, map_location="cpu").tolist())
        """,
        OPENREG_SIM_DEVICES="1",
    )
    assert "map_location" in out.stdout
    assert out.stdout.endswith("[0.0, 1.0, 2.0, 3.0, 4.0]\n")


# a checkpoint of openreg can be read where there is no openreg
def test_state_dict_round_trip_through_the_cpu(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2)).to("openreg:1")
    torch.save(model.state_dict(), tmp_path / "saved.pt")
    state = torch.load(tmp_path / "saved.pt", map_location="cpu")
    assert {value.device.type for value in state.values()} == {"cpu"}
    again = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2)).to("openreg:0")
    again.load_state_dict(state)
    torch.testing.assert_close(again.state_dict(), model.state_dict(), check_device=False, rtol=0, atol=0)


def test_numpy_needs_the_cpu() -> None:
    with pytest.raises(TypeError, match="openreg"):
        torch.ones(2, device="openreg").numpy()


# acceptance 2.16
# integers of less than a byte move
@pytest.mark.parametrize("name", [f"{kind}{bits}" for kind in ("uint", "int") for bits in range(1, 8)])
def test_sub_byte_integers_move(name: str) -> None:
    x = torch.arange(12, dtype=torch.uint8).reshape(3, 4).view(getattr(torch, name))
    moved = x.to("openreg:1")
    assert moved.dtype == x.dtype
    for back in (moved.cpu(), moved.t().to("openreg:0").cpu().t()):
        assert torch.equal(back.view(torch.uint8), x.view(torch.uint8))


# a lazy clone is a tensor of its own as soon as either is written
def test_lazy_clone() -> None:
    x = torch.ones(3, device="openreg:1")
    y = x._lazy_clone()
    z = x._lazy_clone()
    y.add_(1)
    x.mul_(5)
    assert [t.cpu().tolist() for t in (x, y, z)] == [[5, 5, 5], [2, 2, 2], [1, 1, 1]]
    for t in (x, y, z):  # in memory of its own device, although another one is current
        there = torch.empty_like(t)
        there.copy_(t, non_blocking=True)
        assert there.tolist() == t.tolist()


# what resize_() adds is filled in deterministic mode, as on the CPU
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_resize_fills_in_deterministic_mode(dtype: torch.dtype) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        near, far = (torch.ones(2, dtype=dtype, device=device).resize_(5) for device in ("cpu", "openreg"))
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(far.cpu().nan_to_num(-1), near.nan_to_num(-1))


# what is asked of tensors, not of their data, may be asked of tensors of two devices
def test_questions_across_devices() -> None:
    import torch.autograd.forward_ad as forward_ad

    near, far = torch.ones(2), torch.ones(2, device="openreg")
    assert torch.is_same_size(near, far)
    assert not near.is_set_to(far)
    assert not far.is_set_to(near)
    with forward_ad.dual_level():
        for one, other in (("cpu", "openreg"), ("openreg", "cpu"), ("openreg:0", "openreg:1")):
            dual = forward_ad.make_dual(torch.ones(2, device=one), torch.ones(2, device=one))
            copied = torch.zeros(2, device=other).copy_(dual)
            assert forward_ad.unpack_dual(copied).tangent is not None


# lists over several devices are worked through tensor by tensor
def test_lists_over_devices() -> None:
    tensors = [torch.ones(2, device="openreg:0"), torch.ones(2, device="openreg:1")]
    added = torch._foreach_add(tensors, 1.0)
    assert [t.device.index for t in added] == [0, 1]
    torch._foreach_mul_(tensors, tensors)
    torch._foreach_add_(tensors, 2.0)
    assert [t.cpu().tolist() for t in tensors] == [[3, 3], [3, 3]]
    assert [t.item() for t in torch._foreach_norm(tensors, 1)] == [6, 6]
