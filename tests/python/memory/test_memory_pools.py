# SPDX-License-Identifier: BSD-3-Clause
"""Private pools, limits, settings, caching and pinned memory of torch.openreg.memory."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import torch_openreg

MIB = 1 << 20
memory = torch.openreg.memory


@pytest.fixture(autouse=True)
def starts_empty() -> Iterator[None]:
    """Cached memory of other tests is not this one's; settings are as before afterwards."""
    gc.collect()
    torch.openreg.empty_cache()
    yield
    set_conf(FIRST)
    torch.openreg.set_per_process_memory_fraction(1.0, 0)
    torch.openreg.set_per_process_memory_fraction(1.0, 1)


FIRST = (
    "max_split_size_mb:17592186044415,max_non_split_rounding_mb:20,"
    "roundup_power2_divisions:1,expandable_segments:False,per_process_memory_fraction:1.0"
)


def set_conf(text: str) -> None:
    torch._C._accelerator_setAllocatorSettings(text)


def on_device(size: int, device: str = "openreg:0") -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device=device)


def segment_of(tensor: torch.Tensor) -> dict[str, Any]:
    for segment in torch.openreg.memory_snapshot():
        if segment["address"] <= tensor.data_ptr() < segment["address"] + segment["total_size"]:
            return segment
    raise AssertionError("no segment")


# ------------------------------------------------------------------------------------------------------ the names


def test_names_of_torch_cuda_memory() -> None:
    """Every public name of torch.cuda.memory is there, but that of CUDA's own allocators."""
    ours = set(dir(torch.openreg.memory))
    assert set(torch.cuda.memory.__all__) - ours == {"CUDAPluggableAllocator"}
    for name in torch.cuda.memory.__all__:
        if name != "CUDAPluggableAllocator":
            assert getattr(torch.openreg, name) is getattr(torch.openreg.memory, name), name
    for name in ("_record_memory_history", "_snapshot", "_dump_snapshot", "_set_memory_metadata"):
        assert hasattr(torch.openreg.memory, name)


def test_accelerator_memory_is_complete() -> None:
    """Every function of torch.accelerator.memory works and agrees."""
    x = on_device(5 * MIB)
    accelerator = torch.accelerator
    assert accelerator.memory_allocated() == torch.openreg.memory_allocated() >= x.numel()
    assert accelerator.memory_reserved() == torch.openreg.memory_reserved()
    assert accelerator.max_memory_allocated() == torch.openreg.max_memory_allocated()
    assert accelerator.max_memory_reserved() == torch.openreg.max_memory_reserved()
    ours, theirs = torch.openreg.memory_stats(), accelerator.memory_stats()
    assert {key: ours[key] for key in theirs if key in ours} == {key: theirs[key] for key in theirs if key in ours}
    assert len(set(theirs) - set(ours)) <= 1  # num_oom_rejections, a policy that only CUDA has
    if hasattr(accelerator, "get_memory_info"):
        assert accelerator.get_memory_info(0) == torch.openreg.mem_get_info(0)
    accelerator.reset_peak_memory_stats()
    accelerator.reset_accumulated_memory_stats()
    accelerator.empty_cache()
    if hasattr(accelerator, "empty_host_cache"):
        accelerator.empty_host_cache()


def test_nested_statistics() -> None:
    """The nested form holds the same figures as the flat one."""
    nested = torch.openreg.memory_stats_as_nested_dict(1)
    flat = torch.openreg.memory_stats(1)
    assert nested["allocation"]["small_pool"]["peak"] == flat["allocation.small_pool.peak"]
    assert nested["oversize_segments"]["current"] == flat["oversize_segments.current"] == 0
    assert flat["max_split_size"] == -1


def test_old_names_warn() -> None:
    with pytest.warns(FutureWarning, match="memory_reserved"):
        assert torch.openreg.memory_cached(0) == torch.openreg.memory_reserved(0)
    with pytest.warns(FutureWarning, match="max_memory_reserved"):
        torch.openreg.max_memory_cached(0)
    for name in ("reset_max_memory_allocated", "reset_max_memory_cached"):
        with pytest.warns(FutureWarning, match=name):
            getattr(torch.openreg, name)(0)


def test_what_openreg_has_not_is_refused() -> None:
    assert torch.openreg.get_allocator_backend() == "native"
    with pytest.raises(NotImplementedError, match="which processes"):
        torch.openreg.list_gpu_processes(0)
    with pytest.raises(NotImplementedError, match="no other allocators"):
        torch.openreg.change_current_allocator(object())


# ----------------------------------------------------------------------------------------- blocks without a tensor


def test_raw_blocks() -> None:
    """Memory without a tensor: counted, of the device and stream asked for, freed once."""
    before = torch.openreg.memory_allocated(1)
    stream = torch.openreg.Stream(device=1)
    for where in (stream, stream.stream_id, None, 0):
        address = torch.openreg.caching_allocator_alloc(3 * MIB, 1, where)
        assert torch.openreg.memory_allocated(1) == before + 3 * MIB
        torch.openreg.caching_allocator_delete(address)
        assert torch.openreg.memory_allocated(1) == before
        with pytest.raises(RuntimeError, match="freed already"):
            torch.openreg.caching_allocator_delete(address)
    assert torch.openreg.caching_allocator_alloc(0) == 0
    torch.openreg.caching_allocator_delete(0)
    with pytest.raises(RuntimeError, match="belongs to openreg:1"):
        torch.openreg.caching_allocator_alloc(1, 0, stream)
    with pytest.raises(TypeError, match="stream"):
        torch.openreg.caching_allocator_alloc(1, 0, "stream")  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="out of range"):
        torch.openreg.caching_allocator_alloc(1, 7)
    with pytest.raises(torch.OutOfMemoryError):
        torch.openreg.caching_allocator_alloc(1 << 46, 0)


def test_bindings_check_their_arguments() -> None:
    """What is not of the kind that a binding takes is a TypeError, not an error of the converter."""
    for name, arguments in (
        ("_raw_alloc", ("x", 1, 0)),
        ("_raw_delete", (None,)),
        ("_memory_pool_enter", (0, 1)),
        ("_memory_pool_retain", (0, (0, 1))),
        ("_memory_snapshot", ("x", True)),
        ("_set_memory_fraction", (0,)),
        ("_allocation_traceback", ("x",)),
        ("_record_memory_history", ()),
    ):
        with pytest.raises(TypeError, match="invalid argument to"):
            getattr(torch_openreg._C, name)(*arguments)


# ------------------------------------------------------------------------------------------------- caching, limits


def test_without_caching_memory_goes_back_at_once() -> None:
    before = torch.openreg.memory_reserved(0)
    with torch.openreg.caching_allocator_disabled():
        x, y = on_device(100), on_device(3 * MIB)
        assert segment_of(x)["address"] != segment_of(y)["address"]
        assert torch.openreg.memory_reserved(0) == before + 6 * MIB
        x.fill_(3)
        assert x.sum().item() == 300
        del x
        assert torch.openreg.memory_reserved(0) == before + 4 * MIB
        del y
        assert torch.openreg.memory_reserved(0) == before
    torch.openreg.caching_allocator_enable(False)
    torch.openreg.caching_allocator_enable()
    z = on_device(100)
    kept = torch.openreg.memory_reserved(0)
    del z
    assert torch.openreg.memory_reserved(0) == kept


def test_fraction() -> None:
    """A process gets no more than its part; what it frees it may use again."""
    total = torch.openreg.mem_get_info(0)[1]
    assert torch.openreg.get_per_process_memory_fraction(0) == 1.0
    used = torch.openreg.memory_reserved(0)
    torch.openreg.set_per_process_memory_fraction((used + 32 * MIB) / total, 0)
    x = on_device(20 * MIB)
    with pytest.raises(torch.OutOfMemoryError, match="This process is limited to"):
        on_device(20 * MIB)
    other = on_device(20 * MIB, "openreg:1")
    del x
    x = on_device(24 * MIB)  # after the cached 20 MiB went back
    assert x.numel() == 24 * MIB
    assert other.numel() == 20 * MIB
    for wrong in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="Allowed range"):
            torch.openreg.set_per_process_memory_fraction(wrong, 0)
    with pytest.raises(TypeError, match="must be `float`"):
        torch.openreg.set_per_process_memory_fraction(1, 0)
    for function in (torch.openreg.get_per_process_memory_fraction,):
        with pytest.raises(RuntimeError, match="out of range"):
            function(5)


# ------------------------------------------------------------------------------------------------------- settings


def test_rounding() -> None:
    """roundup_power2_divisions: requests get one of a few sizes between two powers of two."""
    set_conf("roundup_power2_divisions:4")
    for size, block in ((1200, 1536), (4 * MIB + 1, 5 * MIB), (4 * MIB, 4 * MIB), (7 * MIB + 5, 8 * MIB)):
        before = torch.openreg.memory_allocated(0)
        x = on_device(size)
        rounded = torch.openreg.memory_allocated(0) - before
        assert rounded == (block if size > 512 * 4 else 1536), size
        del x
    set_conf("roundup_power2_divisions:[64:8,>:1]")
    before = torch.openreg.memory_allocated(0)
    x = on_device(8 * MIB + 1)
    assert torch.openreg.memory_allocated(0) - before == 9 * MIB
    assert x.numel() == 8 * MIB + 1


def test_split_limit() -> None:
    """max_split_size_mb: larger blocks stay whole, and small requests don't get them."""
    set_conf("max_split_size_mb:32")
    x = on_device(40 * MIB)
    address = x.data_ptr()
    stats = torch.openreg.memory_stats(0)
    assert stats["max_split_size"] == 32 * MIB
    assert stats["oversize_allocations.current"] == stats["oversize_segments.current"] == 1
    del x
    assert torch.openreg.memory_stats(0)["oversize_allocations.current"] == 0
    y = on_device(24 * MIB)
    assert not address <= y.data_ptr() < address + 40 * MIB
    z = on_device(36 * MIB)  # 4 MiB are lost rather than split off
    assert z.data_ptr() == address
    assert len(segment_of(z)["blocks"]) == 1
    torch.openreg.empty_cache()
    del y, z


def test_garbage_collection(python: Any) -> None:
    """garbage_collection_threshold: what was unused longest goes back before the device is full."""
    out = python(
        """
        import torch
        MIB = 1 << 20
        old = torch.empty(16 * MIB, dtype=torch.uint8, device="openreg:0")
        young = torch.empty(12 * MIB, dtype=torch.uint8, device="openreg:0")
        where = old.data_ptr(), young.data_ptr()
        del old
        torch.openreg.memory_stats(0)  # it counts as unused from here on
        torch.empty(100, device="openreg:0")
        del young
        assert torch.openreg.memory_reserved(0) == 30 * MIB
        x = torch.empty(18 * MIB, dtype=torch.uint8, device="openreg:0")
        left = [s["address"] for s in torch.openreg.memory_snapshot(0)]
        assert where[0] not in left and where[1] in left
        assert torch.openreg.memory_stats(0)["num_alloc_retries"] == 0
        print(torch.openreg.memory_reserved(0) // MIB)
        """,
        OPENREG_SIM_MEMORY="64M",
        PYTORCH_ALLOC_CONF="garbage_collection_threshold:0.45",
    )
    assert out.stdout.strip() == "32"


def test_expandable_segments() -> None:
    """expandable_segments: what needs several segments otherwise lies in one, which gives its end back."""
    set_conf("expandable_segments:True")
    pool = torch.openreg.MemPool()
    with torch.openreg.use_mem_pool(pool):
        tensors = [on_device(size * MIB).fill_(size) for size in (3, 25, 40)]
        tensors += [(tensors[0][:MIB] + 1), on_device(3 * MIB)]
    large = [segment for segment in pool.snapshot() if segment["segment_type"] == "large"]
    assert [segment["is_expandable"] for segment in large] == [True]
    assert all(tensors[i][-1].item() == value for i, value in ((0, 3), (1, 25), (2, 40), (3, 4)))
    before = torch.openreg.mem_get_info(0)[0]
    del tensors[1:]
    del pool  # and its memory, but for the first tensor
    assert torch.openreg.mem_get_info(0)[0] >= before + 60 * MIB
    assert tensors[0].sum().item() == 9 * MIB


def test_variable_is_read(python: Any) -> None:
    """PYTORCH_ALLOC_CONF reaches the allocator with all that it may hold."""
    out = python(
        """
        import torch
        x = torch.ones(3, device="openreg")
        settings = torch.openreg.memory._snapshot()["allocator_settings"]
        print(settings["max_split_size"] >> 20, settings["per_process_memory_fraction"],
              torch.openreg.get_per_process_memory_fraction(1), settings["roundup_power2_divisions"]["4"])
        """,
        PYTORCH_ALLOC_CONF="max_split_size_mb:64,per_process_memory_fraction:0.5,backend:native,"
        "roundup_power2_divisions:[4:8,>:2]",
    )
    assert out.stdout.split() == ["64", "0.5", "0.5", "8"]


@pytest.mark.parametrize(
    "text",
    [
        "max_split_size:100",
        "garbage_collection_threshold:1.5",
        "per_process_memory_fraction:2",
        "per_process_memory_fraction:much",
        "backend:cudaMallocAsync",
        "expandable_segments:perhaps",
        "roundup_power2_divisions:3",
    ],
)
def test_bad_settings(text: str) -> None:
    """What PyTorch refuses for CUDA is refused here, with ValueError; CUDA's own backends by a torch that has them."""
    is_left_to_cuda = text.startswith("backend") and torch.version.cuda is not None
    with pytest.raises(RuntimeError if is_left_to_cuda else ValueError):
        set_conf(text)


def test_bad_variable(python: Any) -> None:
    """A wrong variable is an error of the first allocation, and of each that follows."""
    out = python(
        """
        import torch
        for _ in range(2):
            try:
                torch.ones(3, device="openreg")
            except ValueError as error:
                print("spilt_size" in str(error))
        """,
        PYTORCH_ALLOC_CONF="max_spilt_size_mb:64",
    )
    assert out.stdout.split() == ["True", "True"]


@pytest.mark.parametrize("key", ["backend", "per_process_memory_fraction"])
def test_a_value_that_is_no_text(python: Any, key: str) -> None:
    """The error shows bytes that aren't UTF-8, of the keys that are ours."""
    python(
        """
        import pytest, torch
        with pytest.raises(ValueError, match=r"got '1\\\\xff'"):
            torch.ones(3, device="openreg")
        """,
        PYTORCH_ALLOC_CONF=f"{key}:1\udcff",
    )


# ---------------------------------------------------------------------------------------------------------- pools


def test_pool_is_apart() -> None:
    """A pool's tensors share no segment with others, in either direction; empty_cache() leaves it."""
    pool = torch.openreg.MemPool()
    outside = on_device(3 * MIB)
    with torch.openreg.use_mem_pool(pool):
        inside = on_device(3 * MIB)
        assert pool.use_count() == 2
    assert pool.use_count() == 1
    assert segment_of(inside)["segment_pool_id"] == pool.id
    assert segment_of(outside)["segment_pool_id"] == (0, 0)
    del inside
    after = on_device(3 * MIB)
    assert segment_of(after)["segment_pool_id"] == (0, 0)
    torch.openreg.empty_cache()
    (segment,) = pool.snapshot()
    assert segment["active_size"] == 0
    assert torch.openreg.memory_snapshot(mempool_id=pool.id) == torch.openreg.memory_snapshot(pool.id) == [segment]
    with torch.openreg.use_mem_pool(pool):
        again = on_device(2 * MIB)
    assert segment_of(again)["address"] == segment["address"]
    name = "_".join(map(str, pool.id))
    stats = torch.openreg.memory_stats(0)
    assert stats[f"reserved_bytes_by_private_pools.{name}.large_pool.current"] == 20 * MIB
    assert after.numel() + outside.numel() == 6 * MIB


def test_destroyed_pool_returns_its_memory() -> None:
    """What is cached goes back with the pool, what a tensor holds goes back with the tensor."""
    before = torch.openreg.memory_reserved(0)
    pool = torch.openreg.MemPool()
    name = pool.id
    with torch.openreg.use_mem_pool(pool):
        kept = on_device(30 * MIB)
        freed = on_device(40 * MIB)
        small = on_device(100)
    del freed
    assert torch.openreg.memory_reserved(0) == before + 72 * MIB
    del pool
    assert torch.openreg.memory_reserved(0) == before + 32 * MIB
    kept.fill_(1)
    del kept
    assert torch.openreg.memory_reserved(0) == before + 2 * MIB
    del small
    assert torch.openreg.memory_reserved(0) == before
    assert name not in torch.openreg.memory_stats_as_nested_dict(0)["reserved_bytes_by_private_pools"]


def test_pool_of_a_thread() -> None:
    """Only the thread that entered it allocates from a pool; another may be in another."""
    pools = [torch.openreg.MemPool() for _ in range(2)]
    ids: dict[str, tuple[int, int]] = {}
    barrier = threading.Barrier(3)

    def work(name: str, pool: torch.openreg.MemPool | None) -> None:
        if pool is None:
            barrier.wait()
            ids[name] = segment_of(on_device(5000))["segment_pool_id"]
            return
        with torch.openreg.use_mem_pool(pool, 0):
            barrier.wait()
            ids[name] = segment_of(on_device(5000))["segment_pool_id"]

    threads = [threading.Thread(target=work, args=(str(i), p)) for i, p in enumerate([*pools, None])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ids == {"0": pools[0].id, "1": pools[1].id, "2": (0, 0)}


def test_nested_pools_and_devices() -> None:
    """The innermost pool counts, on its device only; a pool that is in use may be deleted."""
    outer, inner = torch.openreg.MemPool(), torch.openreg.MemPool()
    with torch.openreg.use_mem_pool(outer), torch.openreg.use_mem_pool(inner, "openreg:1"):
        assert segment_of(on_device(100))["segment_pool_id"] == outer.id
        assert segment_of(on_device(100, "openreg:1"))["segment_pool_id"] == inner.id
        with torch.openreg.use_mem_pool(inner):
            assert segment_of(on_device(100))["segment_pool_id"] == inner.id
        assert segment_of(on_device(100))["segment_pool_id"] == outer.id
        with pytest.raises(RuntimeError, match="in memory pool .* already"), torch.openreg.use_mem_pool(outer):
            pass
    assert segment_of(on_device(100))["segment_pool_id"] == (0, 0)
    assert outer.use_count() == 1
    identity = inner.id
    with torch.openreg.use_mem_pool(inner):
        del inner
        assert segment_of(on_device(100))["segment_pool_id"] == identity
    assert not torch.openreg.memory_snapshot(identity)


def test_bad_pools() -> None:
    with pytest.raises(NotImplementedError, match="no other allocators"):
        torch.openreg.MemPool(object())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="MemPool"), torch.openreg.use_mem_pool((0, 1)):  # type: ignore[arg-type]
        pass
    with pytest.raises(RuntimeError, match="out of range"), torch.openreg.use_mem_pool(torch.openreg.MemPool(), 9):
        pass


def test_no_split() -> None:
    """In a pool with no_split each tensor has a segment."""
    pool = torch.openreg.MemPool(no_split=True)
    with torch.openreg.use_mem_pool(pool):
        tensors = [on_device(100), on_device(100), on_device(3 * MIB)]
    assert len(pool.snapshot()) == 3
    assert all(len(segment["blocks"]) == 1 for segment in pool.snapshot())
    assert len(tensors) == 3


def test_use_on_oom(python: Any) -> None:
    """A pool that lends its free memory saves a request that would fail; another keeps it."""
    out = python(
        """
        import torch
        for lends in (True, False):
            pool = torch.openreg.MemPool(use_on_oom=lends)
            with torch.openreg.use_mem_pool(pool):
                x = torch.empty(40 << 20, dtype=torch.uint8, device="openreg:0")
            del x
            try:
                y = torch.empty(30 << 20, dtype=torch.uint8, device="openreg:0")
                print(y.data_ptr() == pool.snapshot()[0]["address"])
                del y
            except torch.OutOfMemoryError:
                print("refused")
            del pool
        """,
        OPENREG_SIM_MEMORY="64M",
    )
    assert out.stdout.split() == ["True", "refused"]


def test_pools_at_exit(python: Any) -> None:
    """Pools and tensors that live until the process ends, and one that outlives its driver."""
    out = python(
        """
        import torch, torch_openreg
        pool = torch.openreg.MemPool()
        with torch.openreg.use_mem_pool(pool):
            x = torch.ones(10, device="openreg")
        del x
        torch_openreg._C._shutdown()
        del pool
        pool = torch.openreg.MemPool()
        with torch.openreg.use_mem_pool(pool):
            y = torch.ones(10, device="openreg")
        print("end")
        """
    )
    assert out.stdout.strip() == "end"
    assert not out.stderr


# ----------------------------------------------------------------------------------------------------- pinned memory


def test_host_statistics() -> None:
    """Pinned memory is counted while tensors hold it, while it is cached, and when it goes back."""
    torch.openreg.empty_host_cache()
    torch.openreg.reset_accumulated_host_memory_stats()
    torch.openreg.reset_peak_host_memory_stats()
    before = torch.openreg.host_memory_stats()
    x = torch.empty(3 * MIB, dtype=torch.uint8).pin_memory()
    during = torch.openreg.host_memory_stats()
    assert during["active_requests.current"] == before["active_requests.current"] + 1
    assert during["active_bytes.current"] >= before["active_bytes.current"] + x.numel()
    assert during["num_host_alloc"] == 1
    assert during["host_alloc_time.count"] >= 1
    del x
    cached = torch.openreg.host_memory_stats()
    if torch.__version__ >= (2, 13):  # PyTorch's allocator counted these as active for good
        assert cached["active_requests.current"] == before["active_requests.current"]
    assert cached["allocations.current"] == during["allocations.current"]
    torch.openreg.empty_host_cache()
    after = torch.openreg.host_memory_stats_as_nested_dict()
    assert after["allocations"]["current"] == before["allocations.current"]
    assert after["allocated_bytes"]["peak"] >= 3 * MIB
    torch.openreg.reset_peak_host_memory_stats()
    torch.openreg.reset_accumulated_host_memory_stats()
    assert torch.openreg.host_memory_stats()["num_host_alloc"] == 0
