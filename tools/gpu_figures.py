# SPDX-License-Identifier: BSD-3-Clause
"""Times one device, `openreg` or `cuda`, and prints one line of JSON: GB/s of copies, nanoseconds of everything else.

The two have the same names for the same thing, and are compared by gpu_check.py. For `cuda` the copies between host and
device are CUDA's own cudaMemcpyAsync(), without PyTorch.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._triton import has_triton

MIB = 1 << 20
GIB = 1 << 30


class Block(nn.Module):
    """A transformer's block: attention and a network, before each a normalisation.

    Args:
        width: Features.
        heads: Of the attention.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inward, self.outward = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.network = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, length, width) to the same."""
        batch, length, width = x.shape
        split = self.inward(self.first(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.outward(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.network(self.second(x))


class Figures:
    """The figures of one device.

    Args:
        device: "openreg" or "cuda".
        quick: Small sizes and few rounds, to see that everything runs.
    """

    def __init__(self, device: str, quick: bool) -> None:
        self.device = torch.device(device, 0)
        self.module: Any = getattr(torch, device)
        self.quick = quick
        self.rounds = 2 if quick else 15
        self.found: dict[str, float] = {}

    def least(self, work: Callable[[], object], count: int, finish: bool = True) -> float:
        """The least nanoseconds of `count` calls in a row, over the rounds, a call.

        Args:
            work: What is timed.
            count: Calls in a round.
            finish: Whether the device's work counts, and not its submission alone.
        """
        best = float("inf")
        count = min(count, 4) if self.quick else count
        work()
        self.module.synchronize()
        gc.disable()
        try:
            for _ in range(self.rounds):
                start = time.perf_counter_ns()
                for _ in range(count):
                    work()
                if finish:
                    self.module.synchronize()
                best = min(best, (time.perf_counter_ns() - start) / count)
                self.module.synchronize()
        finally:
            gc.enable()
        return best

    def sizes(self) -> dict[str, int]:
        """Of copies."""
        return {"1 MiB": MIB} if self.quick else {"1 MiB": MIB, "16 MiB": 16 * MIB, "256 MiB": 256 * MIB, "1 GiB": GIB}

    def copies(self) -> None:
        """Pinned memory to the device and back, and inside the device."""
        for title, size in self.sizes().items():
            count = max(1, min(64, 256 * MIB // size))
            host = torch.empty(size, dtype=torch.uint8).pin_memory()
            near = torch.empty(size, dtype=torch.uint8, device=self.device)
            for name, to, source, kind in (("host to device", near, host, 1), ("device to host", host, near, 2)):
                time_ = self.least(self.copy_between(to, source, kind), count)
                self.found[f"{name}, {title}"] = size / time_
            other = torch.empty_like(near)
            self.found[f"device to device, {title}"] = size / self.least(lambda a=other, b=near: a.copy_(b), count)

    def copy_between(self, to: torch.Tensor, source: torch.Tensor, kind: int) -> Callable[[], object]:
        """The copy_ of openreg, CUDA's own call for `cuda`."""
        if self.device.type != "cuda":
            return lambda: to.copy_(source, non_blocking=True)
        runtime = ctypes.CDLL(f"libcudart.so.{(torch.version.cuda or '12').split('.')[0]}")
        runtime.cudaMemcpyAsync.argtypes = [
            *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
        ]
        stream = torch.cuda.current_stream().cuda_stream
        arguments = to.data_ptr(), source.data_ptr(), to.nbytes, kind, stream

        def copy() -> None:
            status = runtime.cudaMemcpyAsync(*arguments)
            if status != 0:
                raise RuntimeError(f"cudaMemcpyAsync: {status}")

        return copy

    def calls(self) -> None:
        """What the host does for a small operator, an allocation, an event, a stream."""
        a, b = (torch.ones(16, device=self.device) for _ in range(2))
        self.found["a + b, 16 elements, submitted"] = self.least(lambda: a + b, 1000, finish=False)
        for title, size in (("512 bytes", 512), ("1 MiB", MIB), ("64 MiB", 64 * MIB)):
            self.found[f"allocation and free, {title}"] = self.least(
                lambda n=size: torch.empty(n, dtype=torch.uint8, device=self.device), 1000, finish=False
            )
        event = self.module.Event()

        def record() -> None:
            event.record()
            event.query()

        self.found["event, record and query"] = self.least(record, 1000, finish=False)
        side = self.module.Stream()

        def switch() -> None:
            with self.module.stream(side):
                pass

        self.found["stream switch, there and back"] = self.least(switch, 1000, finish=False)

    def compiled(self) -> None:
        """torch.compile on the GPU: pointwise operators in one kernel, and the transformer's block.

        Prints what compiled them, and the block's time as a part of that in eager mode.
        """
        # Inductor's default for the name cuda; for openreg the backend that compiles for the GPU.
        backend = "openreg" if self.device.type == "openreg" else "inductor"

        def pointwise(x: torch.Tensor) -> torch.Tensor:
            return ((x + 1).relu() * 2).sigmoid()

        work: Any = torch.compile(pointwise, backend=backend)
        for title, size in (("16 elements", 16), ("64 Mi elements", MIB if self.quick else 64 * MIB)):
            x = torch.randn(size)
            near = x.to(self.device)
            torch.testing.assert_close(work(near).cpu(), pointwise(x), rtol=1e-4, atol=1e-5)
            self.found[f"compiled pointwise, {title}"] = self.least(lambda near=near: work(near), 100)
        name, eager = "compiled transformer block, bf16, forward and backward", "the same in eager mode"
        self.training(name, backend)
        self.training(eager)
        share = self.found[name] / self.found.pop(eager)
        way = f"with Triton {version('triton')}" if has_triton() else "without Triton, operator by operator"
        print(f"{self.device.type} compiled {way}: the block takes {share:.2f} of its time in eager mode", flush=True)

    def training(self, name: str = "transformer block, bf16, forward and backward", backend: str | None = None) -> None:
        """A transformer's block, forward and backward, bfloat16.

        Args:
            name: The figure's name.
            backend: What it is compiled with; None: it is not.
        """
        width, heads, batch, length = (64, 4, 2, 16) if self.quick else (2048, 16, 8, 1024)
        torch.manual_seed(0)
        block: Any = Block(width, heads).to(self.device, torch.bfloat16)
        if backend is not None:
            block = torch.compile(block, backend=backend)
        x = torch.randn(batch, length, width).to(self.device, torch.bfloat16).requires_grad_()

        def step() -> None:
            block(x).sum().backward()
            block.zero_grad(set_to_none=True)
            x.grad = None

        self.found[name] = self.least(step, 10)


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--device", choices=["openreg", "cuda"], required=True)
    parser.add_argument("--quick", action="store_true", help="small sizes: to see that it runs")
    parser.add_argument("--compiled", action="store_true", help="torch.compile alone")
    options = parser.parse_args()
    if options.device == "openreg":
        import torch_openreg  # noqa: F401

        (torch.ones(1, device="openreg") + 1).cpu()
        if torch.openreg.operator_stats()["gpu_allocator"] == "torch":
            raise RuntimeError("PyTorch has kept its own allocator: figures with copied results would mean nothing")
    figures = Figures(options.device, options.quick)
    if options.compiled:
        figures.compiled()
    else:
        figures.copies()
        figures.calls()
        figures.training()
    print(json.dumps(figures.found), flush=True)


if __name__ == "__main__":
    main()
