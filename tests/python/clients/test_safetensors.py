# SPDX-License-Identifier: BSD-3-Clause
"""safetensors: tensors and models written from the device and read onto it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("safetensors")

import safetensors
import safetensors.torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, load_file, load_model, save, save_file, save_model

DEV = torch.device("openreg:1")
# safetensors has a list of device names; a bare index means the accelerator of the process.
INDEX = DEV.index

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)


def tensors() -> dict[str, torch.Tensor]:
    made = {str(dtype): torch.arange(-3, 9).reshape(3, 4).to(dtype) for dtype in DTYPES}
    return {**made, "empty": torch.empty(0, 3), "scalar": torch.tensor(2.5), "fp8": torch.ones(4).to(torch.float8_e5m2)}


# each dtype from one device to the other and to the host
def test_files_of_tensors(tmp_path: Path) -> None:
    expected = tensors()
    path = tmp_path / "a.safetensors"
    save_file({name: t.to("openreg:0") for name, t in expected.items()}, path, metadata={"from": "openreg"})
    there, here = load_file(path, device=INDEX), load_file(path)
    assert set(there) == set(here) == set(expected)
    for name, tensor in expected.items():
        assert there[name].device == DEV and here[name].device.type == "cpu"
        assert there[name].dtype == here[name].dtype == tensor.dtype and there[name].shape == tensor.shape
        for read in (there[name].cpu(), here[name]):
            assert torch.equal(
                read.view(torch.uint8) if read.dim() else read, tensor.view(torch.uint8) if tensor.dim() else tensor
            )


# parts of a file: keys, metadata, whole tensors and slices, straight onto the device
def test_reading_parts(tmp_path: Path) -> None:
    x = torch.arange(12.0).reshape(3, 4)
    path = tmp_path / "a.safetensors"
    save_file({"x": x.to(DEV)}, path, metadata={"from": "openreg"})
    with safe_open(path, "pt", device=INDEX) as file:
        assert list(file.keys()) == ["x"] and file.metadata() == {"from": "openreg"}
        assert file.get_tensor("x").device == DEV
        part = file.get_slice("x")
        assert part.get_shape() == [3, 4]
        assert part[1:, :2].device == DEV and torch.equal(part[1:, :2].cpu(), x[1:, :2])


# bytes, tensors that are views, and what safetensors refuses: memory that two tensors share
def test_bytes_and_shared_memory() -> None:
    x = torch.arange(6.0, device=DEV)
    read = load(save({"x": x[2:4].clone(), "t": x.reshape(2, 3).t().contiguous()}))
    assert read["x"].tolist() == [2.0, 3.0] and read["t"].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    with pytest.raises(RuntimeError, match="share memory"):
        save({"x": x, "part": x[:2]})


# a model with a shared weight, which is written once
def test_models(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(3, 3, bias=False)
            self.b = nn.Linear(3, 3)
            self.b.weight = self.a.weight

    model, other = Tied().to(DEV), Tied().to("openreg:0")
    path = tmp_path / "model.safetensors"
    save_model(model, path)
    with safe_open(path, "pt") as file:
        assert len(file.keys()) == 2
    assert load_model(other, path, device=INDEX) == (set(), [])
    assert other.a.weight is other.b.weight and other.a.weight.device == torch.device("openreg:0")
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a.cpu(), b.cpu())


# with the connection its names are known, under which name ever a library has imported the function; without it no more
def test_names_of_devices(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"x": torch.arange(3.0)}, path)
    import torch_openreg.contrib.safetensors as connection

    connection.enable()
    try:
        torch.openreg.set_device(1)
        for device, expected in (
            ("openreg", DEV),
            ("openreg:0", torch.device("openreg:0")),
            (DEV, DEV),
            ("privateuseone:1", DEV),
            (0, torch.device("openreg:0")),
            ("cpu", torch.device("cpu")),
        ):
            assert load_file(path, device=device)["x"].device == expected
        with safetensors.safe_open(path, "pt", "openreg:1") as file:
            assert file.get_tensor("x").tolist() == [0.0, 1.0, 2.0] and file.get_tensor("x").device == DEV
        model = nn.ParameterDict({"x": nn.Parameter(torch.zeros(3, device=DEV))})
        assert load_model(model, path, device="openreg:1") == (set(), []) and model["x"].tolist() == [0.0, 1.0, 2.0]
        with pytest.raises(SafetensorError, match="device nothing is invalid"):
            load_file(path, device="nothing")
        with pytest.raises(FileNotFoundError):
            load_file(tmp_path / "none", device="openreg:1")
        kept = safetensors.safe_open
    finally:
        connection.disable()
    assert not connection.is_enabled() and safetensors.safe_open is safetensors.torch.safe_open is safe_open
    for opened in (safe_open, kept):
        with pytest.raises(SafetensorError, match="device openreg:1 is invalid"):
            opened(path, "pt", device="openreg:1")
