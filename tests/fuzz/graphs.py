# SPDX-License-Identifier: BSD-3-Clause
"""Programs in graphs: replays against eager runs on other inputs, bit for bit: ``python tests/fuzz/graphs.py --help``.

A program is some dozens of operators on static tensors and on what it makes: views, writes in place and through views, running
statistics, random numbers, gradients, memory that is freed and used again, branches on a second stream. It runs eagerly on three
sets of inputs, is captured once on one of them, and replayed on each, with all memory of the pool overwritten before. The first
difference ends the run with status 1 and names the seed that repeats it.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python/graphs"))

DEVICE = "openreg"
ROWS, COLUMNS = 4, 6
STEPS = 24


class Program:
    """What one seed draws: each call of `run` makes the same calls."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def statics(self) -> list[Any]:
        """Tensors of the program's own: numbers, running statistics and indices."""
        import torch

        floats = [torch.empty(ROWS, COLUMNS, device=DEVICE) for _ in range(3)]
        return [*floats, torch.empty(COLUMNS, ROWS, device=DEVICE).t(), torch.empty(2, COLUMNS, device=DEVICE)]

    def fill(self, statics: list[Any], inputs: int) -> None:
        """Sets them to the inputs of a number."""
        import torch

        generator = torch.Generator().manual_seed(1000 * self.seed + inputs)
        for tensor in statics:
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
        statics[-1].abs_()

    def run(self, statics: list[Any], side: Any) -> list[Any]:
        """The program; what it has made, at the end."""
        rng = random.Random(self.seed)
        made: list[Any] = []
        for _ in range(STEPS):
            if rng.random() < 0.12:
                self._branch(rng, statics, made, side)
            elif made and rng.random() < 0.15:
                made.pop(rng.randrange(len(made)))
            elif rng.random() < 0.3:
                self._write(rng, statics, made)
            else:
                made.append(self._make(rng, [*statics[:-1], *made]))
        return made

    def _branch(self, rng: random.Random, statics: list[Any], made: list[Any], side: Any) -> None:
        """Two streams, each of which makes tensors from what is there."""
        import torch

        current = torch.openreg.current_stream()
        there = [*statics[:-1], *made]
        side.wait_stream(current)
        with torch.openreg.stream(side):
            new = [self._make(rng, there, random_numbers=False) for _ in range(rng.randrange(1, 4))]
        mine = [self._make(rng, there, random_numbers=False) for _ in range(rng.randrange(1, 4))]
        current.wait_stream(side)
        for tensor in new:
            tensor.record_stream(current)
        made += new + mine

    def _make(self, rng: random.Random, there: list[Any], random_numbers: bool = True) -> Any:
        """A new tensor of ROWS by COLUMNS."""
        import torch
        from torch.nn import functional

        def pick() -> Any:
            return rng.choice(there)

        x = pick()
        kinds: list[Callable[[], Any]] = [
            lambda: x + pick() * rng.choice([2, -0.5, pick()]),
            lambda: torch.where(x > pick(), x, pick()),
            lambda: torch.maximum(x, pick()).sin(),
            lambda: functional.softmax(x, rng.choice([0, 1])) - x.mean(rng.choice([0, 1]), keepdim=True),
            lambda: x @ (pick().t() @ pick()),
            lambda: torch.cat([x, pick()], 1)[:, 2 : COLUMNS + 2],
            lambda: functional.layer_norm(x, (COLUMNS,)),
            lambda: (functional.mse_loss(x, pick()) + x.std()).expand(ROWS, COLUMNS),
            lambda: x.sort(1).values.cumsum(0),
            lambda: x.to(rng.choice([torch.bfloat16, torch.float16])).exp().clamp(max=9).float(),
            lambda: x.index_select(1, pick().argsort(1)[0]),
            lambda: torch.zeros_like(x).scatter_add_(1, pick().argsort(1), pick()),
            lambda: x.view_as(x)[rng.randrange(ROWS)].expand(ROWS, COLUMNS),
            lambda: x.reshape(COLUMNS, ROWS).t(),
            lambda: torch._foreach_add([x, pick()], [pick(), x])[1],
            lambda: self._gradient(rng, x, pick()),
        ]
        if random_numbers:
            kinds += [lambda: functional.dropout(x, 0.5), lambda: torch.rand_like(x) + x]
        return rng.choice(kinds)()

    def _gradient(self, rng: random.Random, x: Any, y: Any) -> Any:
        import torch
        from torch.nn import functional

        with torch.enable_grad():
            leaf = x.detach().clone().requires_grad_()
            losses: list[Callable[[], Any]] = [
                lambda: functional.huber_loss(leaf, y),
                lambda: (functional.logsigmoid(leaf) * y).sum(),
                lambda: functional.gelu(leaf @ y.t()).square().sum(),
                lambda: leaf.softmax(1).var(),
            ]
            return torch.autograd.grad(rng.choice(losses)(), leaf)[0]

    def _write(self, rng: random.Random, statics: list[Any], made: list[Any]) -> None:
        """Writes in place into what isn't a view that overlaps itself."""
        import torch
        from torch.nn import functional

        there = [*statics[:-1], *made]
        dense = [tensor for tensor in there if torch._debug_has_internal_overlap(tensor) == 0]
        x, y = rng.choice(dense), rng.choice(there)
        y = y.clone() if y.untyped_storage()._cdata == x.untyped_storage()._cdata else y
        kinds: list[Callable[[], Any]] = [
            lambda: x.add_(y),
            lambda: x[1:3].mul_(0.5),
            lambda: x[:, ::2].copy_(y[:, ::2]),
            lambda: x.t().sub_(y.t()),
            lambda: torch.tanh(y, out=x) if x.is_contiguous() else x.copy_(y),
            lambda: x.index_add_(0, y.argsort(0)[:, 0], y),
            lambda: functional.batch_norm(x.t(), *self._statistics(statics), training=True),
            lambda: x.clamp_(-3, 3),
            lambda: torch._foreach_mul_([x], [y]),
        ]
        rng.choice(kinds)()

    def _statistics(self, statics: list[Any]) -> tuple[Any, Any]:
        """Running mean and variance of ROWS channels: views of one static tensor."""
        return statics[-1][0][:ROWS], statics[-1][1][:ROWS]


def difference(program: Program) -> str | None:
    """Runs one program; what differs, or None."""
    import torch
    from capturing import spoiler

    side, stream = torch.openreg.Stream(), torch.openreg.Stream()
    expected: dict[int, list[Any]] = {}
    with torch.no_grad():
        for inputs in range(3):
            statics = program.statics()
            program.fill(statics, inputs)
            torch.openreg.manual_seed(inputs)
            with torch.openreg.stream(stream):
                made = program.run(statics, side)
            torch.openreg.synchronize()
            expected[inputs] = [tensor.cpu() for tensor in (*statics, *made)]
        statics = program.statics()
        program.fill(statics, 0)
        before = [tensor.cpu() for tensor in statics]
        graph = torch.openreg.OpenRegGraph()
        with torch.openreg.graph(graph, stream=stream):
            made = program.run(statics, side)
        for number, (tensor, was) in enumerate(zip(statics, before, strict=True)):
            if not torch.equal(tensor.cpu(), was):
                return f"the capture has changed static tensor {number}"
        own = {tensor.untyped_storage()._cdata for tensor in statics}
        spoiled = spoiler(graph, [tensor for tensor in made if tensor.untyped_storage()._cdata not in own])
        for inputs in (1, 0, 2):
            program.fill(statics, inputs)
            spoiled.replay()
            torch.openreg.manual_seed(inputs)
            graph.replay()
            for number, (tensor, wanted) in enumerate(zip([*statics, *made], expected[inputs], strict=True)):
                if not torch.equal(tensor.cpu().nan_to_num(7), wanted.nan_to_num(7)):
                    return f"inputs {inputs}: tensor {number} of {len(wanted)} differs"
    return None


def main() -> int:
    """Status 1 on a difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--programs", type=int, default=10**9, help="at most")
    options = parser.parse_args()
    os.environ.setdefault("OPENREG_DRIVERS", "sim")
    import torch

    if not hasattr(torch._C, "_acceleratorGraph"):
        print("this torch has no graphs of accelerators")
        return 0
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    end = time.monotonic() + options.seconds
    count = 0
    while count < options.programs and (count == 0 or time.monotonic() < end):
        seed = options.seed + count
        try:
            found = difference(Program(seed))
        except Exception:
            print(f"graphs: seed {seed}:", file=sys.stderr)
            raise
        if found is not None:
            print(f"graphs: seed {seed}: {found}\nrepeat: python tests/fuzz/graphs.py --programs 1 --seed {seed}")
            return 1
        count += 1
    print(f"graphs: {count} programs, seed {options.seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
