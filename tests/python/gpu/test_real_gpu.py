# SPDX-License-Identifier: BSD-3-Clause
"""What only a real GPU can show: run by `make gpu-check`, skipped elsewhere. One GPU is enough."""

from __future__ import annotations

import os
import sys

import pytest
import torch
import torch.nn.functional as F
from finished import finished
from torch import nn

pytestmark = pytest.mark.skipif(
    os.environ.get("TEST_REAL_GPU") != "1", reason="needs a GPU and TEST_REAL_GPU=1: make gpu-check"
)

D = torch.device("openreg:0")


def all_on_gpu() -> bool:
    """Whether every operator since the counts were reset ran a kernel of the GPU."""
    stats = torch.openreg.operator_stats()
    return stats["staged_calls"] == 0 and stats["aliased_calls"] > 0


@pytest.fixture(autouse=True)
def _counts() -> None:
    torch.openreg.init()
    assert torch.openreg.operator_stats()["gpu_allocator"] == "openreg"
    torch.openreg.reset_operator_stats()


def test_the_device_is_the_gpu() -> None:
    """openreg's first device is one of the CUDA driver, and this PyTorch has kernels for it."""
    assert torch.openreg.devices()[0].driver == "cuda"
    assert (torch.ones(3, device=D) + 1).tolist() == [2.0] * 3
    assert all_on_gpu(), torch.openreg.operator_stats()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_matrix_products(dtype: torch.dtype) -> None:
    """cuBLAS works on openreg's memory and stream."""
    a, b = torch.randn(128, 64, dtype=dtype), torch.randn(64, 96, dtype=dtype)
    result = a.to(D) @ b.to(D)
    torch.testing.assert_close(result.cpu(), a @ b, atol=0.3 if dtype == torch.bfloat16 else 0.05, rtol=0.02)
    assert all_on_gpu(), torch.openreg.operator_stats()


def test_results_are_in_openregs_cache() -> None:
    """PyTorch's interface for allocators gives kernels blocks of openreg's cache: its figures are true."""
    x = torch.ones(1 << 20, device=D)
    _ = x + x  # what libraries keep for themselves is there now
    torch.openreg.synchronize()
    before = torch.openreg.memory_allocated()
    y = x + x
    assert torch.openreg.memory_allocated() == before + y.nbytes
    del y
    assert torch.openreg.memory_allocated() == before


def test_out_of_memory_is_an_error_and_no_more() -> None:
    """More than the GPU has is refused with the usual type, and the device works on."""
    x = torch.ones(1 << 20, device=D)
    with pytest.raises(torch.OutOfMemoryError):
        F.pad(x, (0, 1 << 42))
    assert (x + 1)[7].item() == 2


def test_streams_are_kept_in_order_by_events_alone() -> None:
    """A kernel on a side stream waits for nothing but what it is told to, and is waited for where it is said."""
    side = torch.openreg.Stream(D)
    x = torch.randn(2048, 2048, device=D)
    for _ in range(10):
        x = x @ x / x.abs().max()
    side.wait_stream(torch.openreg.current_stream(D))
    with torch.openreg.stream(side):
        y = x * 2
    x.record_stream(side)
    torch.openreg.current_stream(D).wait_stream(side)
    assert torch.equal(y.cpu(), (x * 2).cpu())


def test_pinned_copies_overlap_and_are_right() -> None:
    """Copies from pinned memory return before they are done, and kernels behind them see their bytes."""
    host = torch.randn(1 << 24).pin_memory()
    near = torch.empty(1 << 24, device=D)
    near.copy_(host, non_blocking=True)
    back = torch.empty_like(host).pin_memory()
    back.copy_(near * 2, non_blocking=True)
    torch.openreg.synchronize()
    assert torch.equal(back, host * 2)


def test_random_numbers_follow_openregs_seed() -> None:
    """With and without a generator argument, and by state."""

    def draw() -> torch.Tensor:
        return torch.cat([torch.rand(100, device=D), F.dropout(torch.ones(100, device=D), 0.5)]).cpu()

    torch.manual_seed(3)
    first = draw()
    torch.manual_seed(3)
    assert torch.equal(draw(), first)
    state = torch.openreg.get_rng_state(D)
    second = draw()
    torch.openreg.set_rng_state(state, D)
    assert torch.equal(draw(), second) and not torch.equal(first, second)


@pytest.mark.parametrize("width", [64, 20])
def test_attention(width: int) -> None:
    """The fused kernels, or the plain formula where they don't take the width."""

    def run(device: torch.device, dtype: torch.dtype) -> list[torch.Tensor]:
        torch.manual_seed(0)
        tensors = [torch.randn(2, 4, 64, width).to(device, dtype).requires_grad_() for _ in range(3)]
        result = F.scaled_dot_product_attention(*tensors, is_causal=True)
        result.float().square().sum().backward()
        return [result.detach().cpu().float(), *(tensor.grad.cpu().float() for tensor in tensors)]

    torch.testing.assert_close(run(D, torch.bfloat16), run(torch.device("cpu"), torch.float32), atol=0.2, rtol=0.1)
    assert all_on_gpu(), torch.openreg.operator_stats()


def test_a_convolutional_network_trains_as_on_the_cpu() -> None:
    """cuDNN forward and backward, a foreach optimizer, autocast with a scaler."""

    def train(device: torch.device, mixed: bool) -> float:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 10)
        ).to(device)
        images, labels = torch.randn(32, 3, 8, 8).to(device), torch.arange(32).remainder(10).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        scaler = torch.amp.GradScaler(device.type, enabled=mixed)
        for _ in range(5):
            optimizer.zero_grad()
            with torch.autocast(device.type, dtype=torch.float16, enabled=mixed):
                loss = F.cross_entropy(model(images), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return loss.item()

    expected = train(torch.device("cpu"), mixed=False)
    assert train(D, mixed=False) == pytest.approx(expected, rel=0.02, abs=0.02)
    assert all_on_gpu(), torch.openreg.operator_stats()
    assert train(D, mixed=True) == pytest.approx(expected, rel=0.1, abs=0.1)


def test_recurrent_networks() -> None:
    """The cells, forward and backward."""
    torch.manual_seed(0)
    model = nn.LSTM(8, 16, 2)
    x = torch.randn(5, 3, 8)
    expected = model(x)[0]
    result = model.to(D)(x.to(D))[0]
    result.sum().backward()
    torch.testing.assert_close(result.cpu(), expected, atol=1e-3, rtol=1e-3)


def program(code: str) -> str:
    """What a process of its own prints; its status must be 0."""
    done = finished(
        [sys.executable, "-c", "import torch, torch_openreg\nD = torch.device('openreg:0')\n" + code], timeout=120
    )
    return done.stdout


BACKENDS = {
    "math": nn.attention.SDPBackend.MATH,
    "flash": nn.attention.SDPBackend.FLASH_ATTENTION,
    "efficient": nn.attention.SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": nn.attention.SDPBackend.CUDNN_ATTENTION,
}


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("width", [64, 128, 256])
@pytest.mark.parametrize("backend", list(BACKENDS))
def test_each_attention_backend_with_gradients(backend: str, width: int, dropout: float) -> None:
    """The backend that a user asks for gives the plain formula's results and gradients; with dropout, finite ones."""
    torch.manual_seed(0)
    parts = [torch.randn(2, 4, 128, width, dtype=torch.bfloat16) for _ in range(3)]
    near = [part.to(D).requires_grad_() for part in parts]
    try:
        with nn.attention.sdpa_kernel(BACKENDS[backend]):
            ours = F.scaled_dot_product_attention(*near, dropout_p=dropout, is_causal=True)
    except RuntimeError as error:
        if "No available kernel" in str(error) or "No viable backend" in str(error):
            pytest.skip(f"PyTorch has no {backend} kernel for this width and GPU: {str(error).splitlines()[0]}")
        raise
    ours.float().sum().backward()
    assert all(part.grad is not None and bool(part.grad.isfinite().all()) for part in near)
    assert torch.openreg.operator_stats()["staged_calls"] == 0, torch.openreg.operator_stats()["staged"]
    if dropout == 0:
        far = [part.float().requires_grad_() for part in parts]
        F.scaled_dot_product_attention(*far, is_causal=True).sum().backward()
        for one, other in zip(near, far, strict=True):
            assert one.grad is not None and other.grad is not None
            torch.testing.assert_close(one.grad.cpu().float(), other.grad, atol=0.1, rtol=0.05)


def test_cudnn_benchmark_does_not_stop_convolutions() -> None:
    """The commonest line of vision scripts: the switch is turned off with a warning, and convolutions run."""
    said = program(
        "torch.backends.cudnn.benchmark = True\n"
        "net = torch.nn.Conv2d(3, 8, 3).to(D)\n"
        "net(torch.randn(2, 3, 16, 16, device=D)).sum().backward()\n"
        "print(torch.backends.cudnn.benchmark, net.weight.grad.isfinite().all().item())"
    )
    assert said.split() == ["False", "True"]


def test_pinned_factories_are_pinned_for_openreg() -> None:
    """torch.empty(pin_memory=True): known to openreg, so copies don't wait and the block isn't reused under them."""
    x = torch.empty(64 << 20, dtype=torch.uint8, device=D)
    block = torch.empty(64 << 20, dtype=torch.uint8, pin_memory=True).fill_(7)
    assert block.is_pinned()
    torch.openreg.synchronize()
    x.copy_(block, non_blocking=True)
    assert not torch.openreg.current_stream().query()  # 64 MiB take milliseconds
    del block
    torch.empty(64 << 20, dtype=torch.uint8, pin_memory=True).fill_(9)
    assert bool((x == 7).all())


def test_a_data_loader_with_workers_and_pinned_batches() -> None:
    """Workers are forked before and after the GPU is in use; batches come pinned and arrive whole."""
    data = torch.utils.data.TensorDataset(torch.arange(256.0).view(64, 4))
    for _ in range(2):
        loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=2, pin_memory=True)
        batches = []
        for (batch,) in loader:
            assert batch.is_pinned()
            batches.append(batch.to(D, non_blocking=True))
        assert torch.equal(torch.cat(batches).cpu(), torch.arange(256.0).view(64, 4))


def test_many_side_streams_stay_in_order() -> None:
    """Work handed from stream to stream by events, 200 times, with blocks freed in between."""
    streams = [torch.openreg.Stream(D) for _ in range(8)]
    x = torch.zeros(1 << 20, device=D)
    torch.openreg.synchronize()
    for step in range(200):
        before, after = streams[step % 8], streams[(step + 1) % 8]
        with torch.openreg.stream(before):
            x = x + 1
            x.record_stream(after)
        after.wait_stream(before)
    torch.openreg.synchronize()
    assert bool((x == 200).all())


def test_a_device_side_assert_is_an_error_and_the_process_ends_by_itself() -> None:
    """An index out of range raises at the next call that asks, every later call raises too, and the status is ours."""
    said = program(
        "table = torch.zeros(4, device=D)\n"
        "for _ in range(3):\n"
        "    try:\n"
        "        table[torch.tensor([99], device=D)].cpu()\n"
        "        print('none')\n"
        "    except RuntimeError as error:\n"
        "        print('raised')\n"
        "print('end', flush=True)\n"
        "import os; os._exit(0)"
    )
    assert said.split()[-4:] == ["raised", "raised", "raised", "end"]


def test_the_process_ends_cleanly_with_tensors_alive() -> None:
    """Tensors in globals, pinned memory, streams and cuBLAS' workspaces are left to the end of the process."""
    program(
        "x = torch.randn(512, 512, device=D); y = x @ x; p = y.cpu().pin_memory()\n"
        "s = torch.openreg.Stream(); z = x.to(D, non_blocking=True)\n"
        "print(y.sum().item())"
    )


def test_a_forked_child_is_refused_with_words() -> None:
    """CUDA's state does not survive fork(): the child gets an error, the parent goes on."""
    said = program(
        "import os\n"
        "x = torch.ones(3, device=D) + 1\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try:\n"
        "        torch.ones(3, device=D)\n"
        "    except RuntimeError as error:\n"
        "        print('fork' in str(error), flush=True)\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "print((x + 1).tolist())"
    )
    assert said.split("\n")[0] == "True" and "[3.0, 3.0, 3.0]" in said


def test_segments_take_no_more_than_they_say() -> None:
    """A segment of 2 MiB takes 2 MiB of the GPU's memory: what is gone from it is what is reserved."""
    torch.openreg.synchronize()
    torch.openreg.empty_cache()
    free, reserved = torch.openreg.mem_get_info()[0], torch.openreg.memory_reserved()
    kept = [torch.empty(1 << 20, dtype=torch.uint8, device=D) for _ in range(200)]
    gone = free - torch.openreg.mem_get_info()[0]
    asked = torch.openreg.memory_reserved() - reserved
    assert len(kept) == 200 and gone <= asked + (4 << 20), (gone, asked)


def test_graphs_are_the_vendors() -> None:
    """What only queues work is one launch of CUDA's: no operator is called in a replay, and its results are those of then."""
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8)).to(D)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(32, 64, device=D), torch.randn(32, 8, device=D)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    side = torch.openreg.Stream()
    with torch.openreg.stream(side):
        for _ in range(3):
            step()
    torch.openreg.synchronize()
    first = [p.detach().clone() for p in model.parameters()]
    graph = torch.openreg.OpenRegGraph()
    with torch.openreg.graph(graph, stream=side):
        loss = step()
    torch.openreg.reset_operator_stats()
    graph.replay()
    torch.openreg.synchronize()
    assert torch.openreg.operator_stats()["aliased_calls"] == 0, torch.openreg.operator_stats()
    replayed = [loss.item(), *(p.detach().clone() for p in model.parameters())]
    with torch.no_grad():
        for p, before in zip(model.parameters(), first, strict=True):
            p.copy_(before)
    eager = [step().item(), *model.parameters()]
    for ours, theirs in zip(replayed, eager, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
