# SPDX-License-Identifier: BSD-3-Clause
"""Times openreg beside `cuda`, each in processes of its own, and says where openreg misses its aims.

With --device it times one and prints a line of JSON: GB/s of copies, nanoseconds of everything else. The two have the
same names for the same thing. For `cuda` the copies between host and device are CUDA's own cudaMemcpyAsync(), without
PyTorch.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._triton import has_triton

MIB = 1 << 20
GIB = 1 << 30


AIMS: dict[str, tuple[float, bool]] = {
    "host to device": (0.98, True),
    "device to host": (0.98, True),
    "device to device": (0.98, True),
    "a + b, 16 elements": (1.3, False),
    "transformer block": (1.03, False),
    "allocation": (1.0, False),
    "event": (1.0, False),
    "stream switch": (1.0, False),
}
"""By the start of a figure's name: the aim of openreg's divided by cuda's, and whether more is better (GB/s)."""
COMPILED_AIMS: dict[str, tuple[float, bool]] = {
    "compiled pointwise, 16 elements": (1.5, False),
    "compiled pointwise, 64 Mi": (1.03, False),
    "compiled transformer block": (1.1, False),
}
"""The same of torch.compile, with a graph's call into the device on top of `cuda`'s: tens of microseconds."""


def block(width: int, heads: int) -> nn.Module:
    """A transformer's block: attention and a network, before each a normalisation."""
    return nn.TransformerEncoderLayer(
        width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )


class Figures:
    """The figures of "openreg" or "cuda"; `quick`: of small sizes and few rounds, to see that everything runs."""

    def __init__(self, device: str, quick: bool) -> None:
        self.device = torch.device(device, 0)
        self.module: Any = getattr(torch, device)
        self.quick = quick
        self.rounds = 2 if quick else 15
        self.found: dict[str, float] = {}

    def least(self, work: Callable[[], object], count: int, finish: bool = True) -> float:
        """The least nanoseconds of `count` calls in a row, over the rounds, a call.

        `finish`: whether the device's work counts, and not its submission alone.
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
        pointer = ctypes.c_void_p
        runtime.cudaMemcpyAsync.argtypes = [pointer, pointer, ctypes.c_size_t, ctypes.c_int, pointer]
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
        """The figure `name` of a transformer's block, forward and backward, bfloat16; `backend`: what compiles it."""
        width, heads, batch, length = (64, 4, 2, 16) if self.quick else (2048, 16, 8, 1024)
        torch.manual_seed(0)
        layer: Any = block(width, heads).to(self.device, torch.bfloat16)
        if backend is not None:
            layer = torch.compile(layer, backend=backend)
        x = torch.randn(batch, length, width).to(self.device, torch.bfloat16).requires_grad_()

        def step() -> None:
            layer(x).sum().backward()
            layer.zero_grad(set_to_none=True)
            x.grad = None

        self.found[name] = self.least(step, 10)


def aim_of(name: str) -> tuple[float, bool] | None:
    """The aim of a figure, by the start of its name."""
    return next((aim for start, aim in (AIMS | COMPILED_AIMS).items() if name.startswith(start)), None)


def keep_best(known: dict[str, float], fresh: dict[str, float]) -> None:
    """Takes over what is better in `fresh`: more of GB/s, less of nanoseconds."""
    for name, value in fresh.items():
        aim = aim_of(name)
        better = max if aim is not None and aim[1] else min
        known[name] = better(known.get(name, value), value)


def compare(ours: dict[str, float], theirs: dict[str, float]) -> list[dict[str, Any]]:
    """The figures that both have and that have an aim, in their order."""
    rows: list[dict[str, Any]] = []
    for name, value in ours.items():
        found = aim_of(name)
        if found is None or name not in theirs:
            continue
        aim, at_least = found
        ratio = value / theirs[name] if theirs[name] else float("inf")
        met = ratio >= aim if at_least else ratio <= aim
        bound = f"{'>=' if at_least else '<='} {aim} ({'GB/s' if at_least else 'ns'})"
        rows.append({"name": name, "openreg": value, "cuda": theirs[name], "ratio": ratio, "aim": bound, "met": met})
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """A line each: figure, reference, ratio, aim."""
    lines = [f"  {'figure':36} {'openreg':>12} {'cuda':>12} {'ratio':>7}  aim"]
    for row in rows:
        numbers = f"{row['openreg']:12.1f} {row['cuda']:12.1f} {row['ratio']:7.3f}"
        lines.append(f"  {row['name']:36} {numbers}  {row['aim']}{'' if row['met'] else '  MISSED'}")
    return "\n".join(lines)


def measure_both(options: argparse.Namespace) -> int:
    """In turn, each in a process of its own, twice: the better counts. Once if compiled: that takes most of the time.

    Returns:
        0 if every aim is reached, or was not to be with small sizes.
    """
    best: dict[str, dict[str, float]] = {"openreg": {}, "cuda": {}}
    more = [*(["--quick"] if options.quick else []), *(["--compiled"] if options.compiled else [])]
    ways: list[str] = []
    for _ in range(1 if options.quick or options.compiled else 2):
        for device, known in best.items():
            # Where there is no `cuda`, in a rehearsal, openreg is measured beside itself.
            named = device if options.reference == "cuda" else "openreg"
            command = [sys.executable, __file__, "--device", named, *more]
            seconds = 150 if options.compiled else 60
            lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=seconds, check=True).stdout
            keep_best(known, json.loads(lines.splitlines()[-1]))
            ways += [line for line in lines.splitlines() if " compiled with" in line]
    rows = compare(best["openreg"], best["cuda"])
    if options.json is not None:
        options.json.write_text(json.dumps({"figures": rows}, indent=1) + "\n")
    met = sum(row["met"] for row in rows)
    print(table(rows))
    print("; ".join([f"{met} of {len(rows)} aims reached", *ways]))
    return int(not rows or (met < len(rows) and not options.quick))


def main() -> int:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--device", choices=["openreg", "cuda"], help="times this alone, in this process")
    parser.add_argument("--reference", default="cuda", help="another than cuda, of a rehearsal: openreg beside itself")
    parser.add_argument("--quick", action="store_true", help="small sizes: to see that it runs")
    parser.add_argument("--compiled", action="store_true", help="torch.compile alone")
    parser.add_argument("--json", type=Path, help="write the comparison here")
    options = parser.parse_args()
    if options.device is None:
        return measure_both(options)
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
    return 0


if __name__ == "__main__":
    sys.exit(main())
