# SPDX-License-Identifier: BSD-3-Clause
"""Memory: statistics, limits, pinned memory, and what the host may not touch."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

MIB = 1 << 20


def test_statistics_follow_tensors() -> None:
    gc.collect()
    torch.openreg.empty_cache()
    before = torch.openreg.memory_allocated(1)
    elsewhere = torch.openreg.memory_allocated(0)
    torch.openreg.reset_peak_memory_stats(1)
    x = torch.empty(3 * MIB, dtype=torch.uint8, device="openreg:1")
    y = torch.empty(100, dtype=torch.uint8, device="openreg:1")
    assert torch.openreg.memory_allocated(1) == before + 3 * MIB + 512
    assert torch.openreg.memory_allocated("openreg:0") == elsewhere
    assert torch.openreg.memory_reserved(1) >= torch.openreg.memory_allocated(1)
    del x, y
    assert torch.openreg.memory_allocated(1) == before
    assert torch.openreg.max_memory_allocated(1) == before + 3 * MIB + 512
    assert torch.openreg.memory_reserved(1) >= 3 * MIB  # cached
    assert torch.openreg.max_memory_reserved(1) >= torch.openreg.memory_reserved(1)
    torch.openreg.reset_peak_memory_stats(1)
    assert torch.openreg.max_memory_allocated(1) == before
    torch.openreg.empty_cache()
    assert torch.openreg.memory_reserved(1) < 3 * MIB


def test_statistics_have_the_names_of_torch_cuda() -> None:
    x = torch.empty(1000, device="openreg:0")
    stats = torch.openreg.memory_stats()
    for quantity in ("allocation", "segment", "active", "inactive_split"):
        for name in (quantity, f"{quantity}_bytes" if quantity != "allocation" else "allocated_bytes"):
            if name == "segment_bytes":
                name = "reserved_bytes"
            for pool in ("all", "small_pool", "large_pool"):
                for figure in ("current", "peak", "allocated", "freed"):
                    assert isinstance(stats[f"{name}.{pool}.{figure}"], int)
    assert stats["requested_bytes.all.current"] >= 4000
    assert {"num_ooms", "num_alloc_retries"} <= set(stats)
    assert list(stats) == sorted(stats)
    del x
    torch.openreg.reset_accumulated_memory_stats()
    assert torch.openreg.memory_stats()["allocation.all.allocated"] == 0


def test_summary_and_snapshot() -> None:
    x = torch.empty(5 * MIB, dtype=torch.uint8, device="openreg:1")
    text = torch.openreg.memory_summary("openreg:1")
    lines = text.splitlines()
    assert len({len(line) for line in lines}) == 1
    assert "openreg:1 memory summary" in text
    assert "from large pool" in text
    assert "from large pool" not in torch.openreg.memory_summary(1, abbreviated=True)
    segments = torch.openreg.memory_snapshot(1)
    assert {segment["device"] for segment in segments} == {1}
    blocks = [block for segment in segments for block in segment["blocks"]]
    mine = next(block for block in blocks if block["address"] == x.data_ptr())
    assert mine["state"] == "active_allocated"
    assert mine["requested_size"] == 5 * MIB
    assert sum(s["total_size"] for s in segments) == torch.openreg.memory_reserved(1)
    assert len(torch.openreg.memory_snapshot()) >= len(segments)


# The blocks that a call takes with tensors of floats (a, b), a mask (m) and integers (i): its result's, none in place.
NUMBERS: dict[str, tuple[int, Callable[..., object]]] = {
    "a + 1": (1, lambda a, b, m, i: a + 1),
    "1 - a": (1, lambda a, b, m, i: 1 - a),
    "a * 2.5": (1, lambda a, b, m, i: a * 2.5),
    "a / True": (1, lambda a, b, m, i: a / True),
    "a % 3": (1, lambda a, b, m, i: a % 3),
    "a ** 3": (1, lambda a, b, m, i: a**3),
    "2 ** a": (1, lambda a, b, m, i: 2**a),
    "a + torch.tensor(2)": (1, lambda a, b, m, i: a + torch.tensor(2)),
    "a > 1": (1, lambda a, b, m, i: a > 1),
    "a == 1j": (2, lambda a, b, m, i: a == 1j),  # and `a` as complex numbers: as large as `a`, no number
    "i & 1": (1, lambda a, b, m, i: i & 1),
    "i == True": (1, lambda a, b, m, i: i == True),  # noqa: E712
    "a.half() - 1": (2, lambda a, b, m, i: a.half() - 1),
    "a += 1": (0, lambda a, b, m, i: a.add_(1)),
    "a *= torch.tensor(2)": (0, lambda a, b, m, i: a.mul_(torch.tensor(2))),
    "a /= 2": (0, lambda a, b, m, i: a.div_(2)),
    "a.fill_(2)": (0, lambda a, b, m, i: a.fill_(2)),
    "a.fill_(torch.tensor(2))": (0, lambda a, b, m, i: a.fill_(torch.tensor(2))),
    "a[:] = 2": (
        1 if torch.__version__ < (2, 15) else 0,
        lambda a, b, m, i: a.__setitem__(slice(None), 2),
    ),  # PyTorch's tensor of the number; CPU's for "cuda"
    "torch.add(a, b, alpha=2)": (1, lambda a, b, m, i: torch.add(a, b, alpha=2)),
    "torch.where(m, a, torch.tensor(1))": (1, lambda a, b, m, i: torch.where(m, a, torch.tensor(1))),
    "torch.where(m, a, 1)": (2, lambda a, b, m, i: torch.where(m, a, 1)),  # a tensor of PyTorch's, also on CUDA
    "torch.where(m, 1, 2.0)": (3, lambda a, b, m, i: torch.where(m, 1, 2.0)),
    "a.masked_fill(m, 1)": (1, lambda a, b, m, i: a.masked_fill(m, 1)),
    "a.masked_fill_(m, torch.tensor(1))": (0, lambda a, b, m, i: a.masked_fill_(m, torch.tensor(1))),
    "a.addcmul(a, b, value=2)": (1, lambda a, b, m, i: a.addcmul(a, b, value=2)),
    "a.addcdiv_(a, b, value=2)": (0, lambda a, b, m, i: a.addcdiv_(a, b, value=2)),
    "a.lerp(b, 1)": (1, lambda a, b, m, i: a.lerp(b, 1)),
    "a.clamp(0, 1)": (1, lambda a, b, m, i: a.clamp(0, 1)),
    "a.clamp_(torch.tensor(0))": (0, lambda a, b, m, i: a.clamp_(torch.tensor(0))),
    "torch.maximum(a, torch.tensor(1))": (1, lambda a, b, m, i: torch.maximum(a, torch.tensor(1))),
    "torch.atan2(a, torch.tensor(1))": (1, lambda a, b, m, i: torch.atan2(a, torch.tensor(1))),
    "torch._foreach_add_([a, b], 1)": (0, lambda a, b, m, i: torch._foreach_add_([a, b], 1)),
    "torch.nn.functional.threshold": (1, lambda a, b, m, i: torch.nn.functional.threshold(a, 1, 2)),
    "torch.nn.functional.leaky_relu": (1, lambda a, b, m, i: torch.nn.functional.leaky_relu(a, 2)),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_take_no_memory_of_the_device(name: str) -> None:
    """A number of the program, in whichever type an operator wants it, is no block: a call allocates its result."""
    blocks, call = NUMBERS[name]
    a, b = (torch.rand(1024, device="openreg:1") for _ in range(2))
    m, i = a > 0.5, torch.arange(1024, dtype=torch.int32, device="openreg:1")
    torch.openreg.reset_accumulated_memory_stats(1)
    call(a, b, m, i)
    assert torch.openreg.memory_stats(1)["allocation.all.allocated"] == blocks


def test_a_loop_with_a_number_reserves_what_its_buffers_need(python: Any) -> None:
    """CUDA's report of the same loop has these figures: two buffers a segment, and of three buffers two segments."""
    python(
        """
        import torch
        b = torch.ones(1 << 18, device="openreg")
        for _ in range(10):
            b = b.clone() + 1
        assert torch.openreg.max_memory_allocated() == 3 << 20, torch.openreg.max_memory_allocated()
        assert torch.openreg.memory_reserved() == 4 << 20, torch.openreg.memory_reserved()
        assert torch.openreg.memory_stats()["allocation.all.allocated"] == 21
        """
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128, torch.int8])
def test_results_of_one_number_are_memory_of_the_device(dtype: torch.dtype) -> None:
    before = torch.openreg.memory_allocated(1)
    x = torch.tensor([3, 1], dtype=dtype, device="openreg:1")
    total = x.sum()
    view = total.view(1)
    view += 2
    assert total.item() == 6 and total.data_ptr() == view.data_ptr() and total.device == x.device
    assert torch.openreg.memory_allocated(1) == before + 2 * 512
    out = torch.empty(0, dtype=dtype, device="openreg:1")
    torch.sum(x, 0, keepdim=True, out=out)
    assert out.add_(1).item() == 5 and torch.openreg.memory_allocated(1) == before + 3 * 512


@pytest.mark.parametrize(
    "name",
    [
        "memory_stats",
        "memory_allocated",
        "max_memory_allocated",
        "memory_reserved",
        "max_memory_reserved",
        "reset_peak_memory_stats",
        "reset_accumulated_memory_stats",
        "mem_get_info",
        "memory_summary",
        "memory_snapshot",
    ],
)
def test_wrong_devices(name: str) -> None:
    function = getattr(torch.openreg, name)
    for index in (2, -1, -2, 256):
        with pytest.raises(RuntimeError, match=rf"out of range.*\[0, 2\), but got {index}"):
            function(index)
    with pytest.raises(ValueError, match="Expected an openreg device"):
        function("cpu")
    with pytest.raises(TypeError, match="A device must be"):
        function(1.5)


# out of memory: typed, with figures, and the next smaller allocation works
def test_out_of_memory(python: Any) -> None:
    out = python(
        """
        import torch
        total = torch.openreg.mem_get_info(0)[1]
        assert total == 64 << 20, total
        keep = torch.empty(16 << 20, dtype=torch.uint8, device="openreg:0")
        keep.fill_(3)
        try:
            torch.empty(60 << 20, dtype=torch.uint8, device="openreg:0")
        except torch.OutOfMemoryError as error:
            print(error)
        small = torch.ones(1 << 20, dtype=torch.uint8, device="openreg:0")
        assert small.sum().item() == 1 << 20 and keep.min().item() == 3
        assert torch.openreg.memory_stats(0)["num_ooms"] == 1
        torch.empty(60 << 20, dtype=torch.uint8, device="openreg:1")
        try:
            x = keep.to(torch.float64)  # in an operator
        except torch.OutOfMemoryError:
            print("again")
        assert (keep + 1).max().item() == 4
        """,
        OPENREG_SIM_MEMORY=str(64 << 20),
    )
    text = out.stdout
    assert text.endswith("again\n")
    for word in ("openreg:0", "60.00 MiB", "free"):
        assert word in text, text


def test_sizes_that_overflow() -> None:
    for size in (1 << 50, 1 << 62):
        with pytest.raises(RuntimeError):
            torch.empty(size, dtype=torch.float64, device="openreg")
    assert torch.ones(4, device="openreg").sum().item() == 4


# host access to device memory: a fault that names device and block, never silence
def test_host_access_faults(python: Any) -> None:
    out = python(
        """
        import ctypes, torch
        x = torch.ones(1000, device="openreg:1")
        print(hex(x.data_ptr()), flush=True)
        ctypes.c_char.from_address(x.data_ptr() + 8).value
        """,
        status=None,
    )
    assert out.returncode < 0
    assert "openreg:1" in out.stderr
    assert out.stdout.strip() in out.stderr


def test_pinned_memory() -> None:
    x = torch.arange(1000.0)
    pinned = x.pin_memory()
    assert pinned.is_pinned()
    assert not x.is_pinned()
    assert pinned[10:].is_pinned()
    assert torch.equal(pinned, x)
    assert torch.empty(3, pin_memory=True).is_pinned()
    there = pinned.to("openreg:1", non_blocking=True)
    back = torch.empty(1000, pin_memory=True)
    back.copy_(there, non_blocking=True)
    torch.openreg.synchronize(1)
    assert torch.equal(back, x)
    assert not there.is_pinned()


# PyTorch dereferences a null pointer here on a backend without a host allocator.
def test_empty_host_cache() -> None:
    kept = torch.arange(1000).pin_memory()
    del kept
    torch.accelerator.empty_host_cache()
    again = torch.arange(1000).pin_memory()
    assert again.is_pinned()
    torch.accelerator.empty_host_cache()
    assert torch.equal(again, torch.arange(1000))


def test_mem_get_info() -> None:
    free, total = torch.openreg.mem_get_info(0)
    assert 0 < free <= total
    x = torch.empty(64 * MIB, dtype=torch.uint8, device="openreg:0")
    assert torch.openreg.mem_get_info(0)[0] < total
    assert torch.accelerator.get_memory_info(0)[1] == total
    del x
