# SPDX-License-Identifier: BSD-3-Clause
"""Tensors, storages and devices in files and pickles; storages by themselves."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch


def _saved(thing: Any, **how: Any) -> Any:
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, **how)


# every direction between the CPU and the devices, by every kind of map_location, with both unpicklers
@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("source", ["cpu", "openreg:0", "openreg:1"])
@pytest.mark.parametrize(
    ("where", "sink"),
    [
        ("cpu", "cpu"),
        ("openreg:1", "openreg:1"),
        ("openreg", "openreg:0"),
        (torch.device("openreg:1"), "openreg:1"),
        (torch.device("openreg"), "openreg:0"),
        ({"cpu": "openreg:1", "openreg:0": "openreg:1", "openreg:1": "openreg:1"}, "openreg:1"),
        ({"cpu": "cpu", "openreg:0": "cpu", "openreg:1": "cpu"}, "cpu"),
        (lambda storage, location: storage, "cpu"),
        (lambda storage, location: storage.openreg(1), "openreg:1"),
    ],
    ids=["cpu", "text", "no-index", "device", "device-no-index", "dict-to", "dict-from", "callable", "callable-to"],
)
def test_directions(source: str, where: Any, sink: str, weights_only: bool) -> None:
    base = torch.arange(6.0, device=source)
    loaded = _saved([base, base[2:4]], map_location=where, weights_only=weights_only)
    assert [x.device for x in loaded] == [torch.device(sink)] * 2
    loaded[1].fill_(9)
    assert loaded[0].tolist() == [0, 1, 9, 9, 4, 5]  # still one storage


# a mapped file is read into device memory: it is right, and the file is not written to
def test_mmap(tmp_path: Path) -> None:
    for source in ("cpu", "openreg:1"):
        path = tmp_path / source.replace(":", "")
        torch.save(torch.arange(1000.0, device=source), path)
        for where in ("openreg:0", "cpu"):
            loaded = torch.load(path, mmap=True, map_location=where)
            assert loaded.device == torch.device(where)
            assert torch.equal(loaded.cpu(), torch.arange(1000.0))
            loaded.zero_()
        assert torch.equal(torch.load(path, map_location="cpu"), torch.arange(1000.0))


def _tagged(tag: str) -> io.BytesIO:
    """A file of a tensor that was on a device of another name, of as many letters as openreg has."""
    file = io.BytesIO()
    torch.save(torch.arange(3.0, device="openreg:1"), file, _use_new_zipfile_serialization=False)
    assert len(tag) == len("openreg:1") and file.getvalue().count(b"openreg:1") == 1
    return io.BytesIO(file.getvalue().replace(b"openreg:1", tag.encode()))


# a tag that nobody knows is that of a device which is named otherwise here; a device of PyTorch's is none of ours
@pytest.mark.parametrize("where", [None, {"cpu": "openreg:0"}, lambda storage, location: None])
def test_an_unknown_tag_of_a_file(where: Any) -> None:
    assert torch.load(_tagged("somchip:1"), map_location=where).device == torch.device("openreg:1")
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.load(_tagged("vulkan:11"))


# a name that the program gives and nobody knows is misspelt: an error, as without this package
@pytest.mark.parametrize("name", ["cdua:0", "gpu", "openregx:1", "somchip"])
def test_a_misspelt_map_location(name: str, tmp_path: Path) -> None:
    torch.save(torch.zeros(1), tmp_path / "cpu.pt")
    for source in (tmp_path / "cpu.pt", _tagged("somchip:1")):
        for where in (name, {"cpu": name, "somchip:1": name}, lambda storage, location: _restored(storage, name)):
            with pytest.raises(RuntimeError, match=f"tagged with {name}"):
                torch.load(source, map_location=where)
            if isinstance(source, io.BytesIO):
                source.seek(0)


def _restored(storage: Any, name: str) -> Any:
    return torch.serialization.default_restore_location(storage, name)


def test_an_index_out_of_range_names_the_count() -> None:
    with pytest.raises(RuntimeError, match=r"OPENREG device 5 but torch.openreg.device_count\(\) is 2.*map_location"):
        _saved(torch.zeros(1), map_location="openreg:5")


# where there is no backend torch names the device of the file, and map_location="cpu" reads it
@pytest.mark.parametrize("weights_only", [True, False])
def test_without_the_backend(python: Any, tmp_path: Path, weights_only: bool) -> None:
    path = tmp_path / "x.pt"
    model = torch.nn.Linear(2, 1).to("openreg:1")
    torch.save({"model": model.state_dict(), "x": torch.arange(3.0, device="openreg:0")}, path)
    out = python(
        f"""
        import torch
        assert not hasattr(torch, "openreg")
        try:
            torch.load({str(path)!r}, weights_only={weights_only})
        except RuntimeError as error:
            print(error)
        for how in ("cpu", lambda storage, location: storage):
            print(torch.load({str(path)!r}, map_location=how, weights_only={weights_only})["x"].tolist())
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    lines = out.stdout.splitlines()
    assert "don't know how to restore data location" in lines[0]
    assert "(tagged with openreg:" in lines[0]
    assert lines[1:] == ["[0.0, 1.0, 2.0]"] * 2


def test_storages_move_and_copy() -> None:
    storage = torch.arange(6.0, device="openreg:1").untyped_storage()
    assert storage.device == torch.device("openreg:1")
    assert storage.is_openreg  # type: ignore[attr-defined]
    host = storage.cpu()
    assert host.device.type == "cpu"
    assert host.tolist() == storage.tolist()
    assert host.openreg().device == torch.device("openreg:0")  # type: ignore[attr-defined]
    assert host.openreg(1).tolist() == host.tolist()  # type: ignore[attr-defined]
    assert storage.clone().device == storage.device
    for device in ("cpu", "openreg:0"):
        assert torch.UntypedStorage(24, device=device).copy_(storage).tolist() == host.tolist()
    assert storage[4:8].tolist() == host[4:8].tolist()
    storage[3] = 7
    assert storage[3] == 7
    assert torch.UntypedStorage(4, device="openreg:1").fill_(3).tolist() == [3] * 4
    twin = copy.deepcopy(storage)
    twin.fill_(0)
    assert twin.device == storage.device
    assert storage[3] == 7


def test_storages_resize() -> None:
    x = torch.arange(4.0, device="openreg:1")
    storage = x.untyped_storage()
    storage.resize_(64)
    assert storage.nbytes() == 64
    assert x.tolist() == [0, 1, 2, 3]
    storage.resize_(8)
    assert storage.tolist() == torch.arange(2.0).untyped_storage().tolist()
    storage.resize_(0)
    assert (storage.nbytes(), storage.data_ptr()) == (0, 0)


# host memory can't become a device's: buffers and shared mappings of files are refused, private ones are copied
def test_files_and_buffers(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    torch.arange(4.0).numpy().tofile(path)
    with pytest.raises(NotImplementedError, match=r"shared=True\): a file can't be mapped into the memory"):
        torch.from_file(str(path), shared=True, size=4, device="openreg")
    x = torch.from_file(str(path), shared=False, size=4, dtype=torch.float32, device="openreg:1")
    assert x.device == torch.device("openreg:1")
    assert x.tolist() == [0, 1, 2, 3]
    x.zero_()
    assert np.fromfile(path, np.float32).tolist() == [0, 1, 2, 3]
    with pytest.raises(TypeError):
        torch.UntypedStorage.from_buffer(b"abcd", dtype=torch.uint8, device="openreg")  # type: ignore[call-overload]


def test_numpy_asks_for_a_copy() -> None:
    x = torch.arange(3.0, device="openreg")
    for call in (x.numpy, lambda: np.asarray(x), x.__array__):
        with pytest.raises(TypeError, match=r"can't convert openreg:0 device type tensor to numpy. Use Tensor.cpu\(\)"):
            call()
    assert x.numpy(force=True).tolist() == [0, 1, 2]


def test_devices_are_pickled() -> None:
    for device in ("openreg:1", "openreg"):
        assert pickle.loads(pickle.dumps(torch.device(device))) == torch.device(device)


# as torch.cuda's: a stream or an event means nothing elsewhere
@pytest.mark.parametrize("kind", ["Stream", "Event"])
def test_streams_and_events_are_not(kind: str) -> None:
    for thing in (getattr(torch.openreg, kind)(), getattr(torch, kind)("openreg")):
        for function in (pickle.dumps, copy.deepcopy, _saved):
            with pytest.raises(TypeError, match=f"cannot pickle .*{kind}"):
                function(thing)
