# SPDX-License-Identifier: BSD-3-Clause
"""Operators where PyTorch's dispatcher modes and transforms cross, against the CPU: ``python tests/fuzz/modes.py --help``.

A program is one of two kinds. A *chain* is a family of operators (tests/python/operators/test_modes.py) under transforms
that are drawn and nested, in a mode that is drawn, of tensors whose memory layout and type are drawn: the CPU's results. A
*list* is an in-place foreach operator over tensors of mixed types that share storages: what the operator does to each
tensor alone, in their order. The first difference ends the run with status 1 and names the seed that repeats it.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python/operators"))

DEVICE = "openreg:1"
REFUSALS = (RuntimeError, NotImplementedError, ValueError, TypeError, IndexError)


def transforms() -> dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]]:
    """Functions of a function of one tensor. Those but "vmap" take and give tensors without a further dimension."""
    import torch
    from test_modes import scalar
    from torch.func import functionalize, grad, jvp, vjp, vmap

    def summed(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x: scalar(function(x))

    return {
        "vmap": vmap,
        "grad": lambda f: grad(summed(f)),
        "vjp": lambda f: lambda x: vjp(summed(f), x)[1](torch.ones((), dtype=x.dtype, device=x.device)),
        "jvp": lambda f: lambda x: jvp(summed(f), (x,), (x,)),
        "functionalize": functionalize,
    }


def laid_out(rng: random.Random) -> Callable[[Any], Any]:
    """A tensor's values in another layout: a part of a larger one, with a step, transposed, or as it is."""
    import torch

    def stepped(x: Any) -> Any:
        wide = torch.zeros(*x.shape[:-1], 2 * x.shape[-1], dtype=x.dtype, device=x.device)
        wide[..., ::2] = x
        return wide[..., ::2]

    def part(x: Any) -> Any:
        return torch.cat([torch.zeros(3, dtype=x.dtype, device=x.device), x.reshape(-1)])[3:].view(x.shape)

    def transposed(x: Any) -> Any:
        return x.transpose(0, -1).contiguous().transpose(0, -1)

    return rng.choice([lambda x: x, stepped, part, transposed])


def run_chain(seed: int, say: Callable[[str], object]) -> str:
    """The difference of a random chain, or ""."""
    import torch
    from test_modes import FAMILIES, MISSING, MODES, batch, first, values
    from torch.testing import assert_close
    from torch.utils._pytree import tree_leaves

    rng = random.Random(seed)
    # Those that choose a kernel, or are taken apart, by what stands behind their tensors come more often; so does vmap() over
    # another transform, where that isn't the outermost thing.
    weights = [3 if "attention" in name or "conv" in name else 1 for name in FAMILIES]
    (family,) = rng.choices(list(FAMILIES), weights)
    function, shapes = FAMILIES[family]
    chain = rng.choices(list(transforms()), [2, 1, 1, 1, 1], k=rng.choice([0, 1, 2, 2]))
    modes = ["none", "backward", "trace", "make_fx", "inference", "fake tensors", "autocast", "deterministic"]
    mode = rng.choice(modes)
    dtype = rng.choice([torch.float32, torch.float32, torch.float64])
    layouts = [laid_out(rng) for _ in shapes]
    shift = rng.uniform(0, 3)
    # y[0] = 0.5 is fill_() on the CPU and CUDA only, where PyTorch makes the number's tensor on the host; elsewhere it is copy_(),
    # whose functional form, that functionalize() makes of it, has no derivative in PyTorch (nor on the CPU, for x[0] = 0.5 of one
    # dimension).
    derived = [*chain, "grad"] if mode == "backward" else chain
    if (
        family == "in place"
        and "functionalize" in derived
        and {"grad", "vjp", "jvp"} & set(derived[derived.index("functionalize") :])
    ):
        return ""
    words = f'"{family}" under {chain or "no transform"} in mode "{mode}", {dtype}'
    # What the table says of one mode holds where the chain has it. Gradients of fused cells have no formula forwards.
    named = {mode, *chain, " of ".join(chain[::-1])}
    if any(family == other and name in named for name, other in MISSING):
        return ""
    if family in ("lstm", "lstm cell", "gru", "gru cell") and "jvp" in chain:
        return ""
    # Only oneDNN's types run an LSTM whole; the others are cells, and fake ones without biases are missing, as on CUDA.
    if family == "lstm" and mode == "fake tensors" and dtype == torch.float64:
        return ""
    # torch.jit.trace records what its own thread calls; autograd calls a device's backward in another, as on CUDA.
    if mode == "trace" and {"grad", "vjp"} & set(chain):
        return ""

    def answer(device: str) -> list[Any]:
        tensors = []
        for i, (shape, layout) in enumerate(zip(shapes, layouts, strict=True)):
            x = values(*shape, shift=shift + i * 0.3).to(dtype)
            for _ in range(chain.count("vmap") if i == 0 else 0):
                x = batch(x)
            tensors.append(layout(x.to(device)))

        def transformed(x: Any, *rest: Any) -> Any:
            one = first(function, rest)
            for name in chain:
                one = transforms()[name](one)
            return one(x)

        return list(tree_leaves(MODES[mode](transformed, *tensors)))

    say("cpu")
    try:
        expected = answer("cpu")
    except Exception:
        return ""  # PyTorch can't do this on the CPU, and says so in many ways
    close = {"rtol": 1e-1, "atol": 1e-1, "check_dtype": False} if mode == "autocast" else {"rtol": 1e-3, "atol": 1e-4}
    say("openreg")
    try:
        got = answer(DEVICE)
        assert len(got) == len(expected), f"{len(got)} results, not {len(expected)}"
        for a, b in zip(got, expected, strict=True):
            if isinstance(b, torch.Tensor):
                assert a.device == torch.device(DEVICE), f"a result on {a.device}"
                within = dict(close)
                # Sums are rounded as their largest terms are.
                if mode == "autocast" and b.is_floating_point() and b.numel():
                    within["atol"] = max(1e-1, 1e-2 * b.detach().nan_to_num().abs().max().item())
                assert_close(a.cpu(), b, **within, equal_nan=True)
            else:
                assert a == ("openreg" if b == "cpu" else b), f"{a!r}, not {b!r}"
    except Exception as error:  # whatever it is, the CPU has a result
        # torch.jit.trace confuses tensors of functionalize() by their addresses: an internal assertion, on the CPU too, in some
        # runs.
        if mode == "trace" and "functionalize" in chain and "list_trace[idx] == nullptr" in str(error):
            return ""
        return f"{words}: {type(error).__name__}: {str(error)[:600]}"
    return ""


UNARY = ("abs", "neg", "sign", "ceil", "exp", "sqrt", "reciprocal", "zero")
WITH_NUMBER = ("add", "sub", "mul", "div", "clamp_min", "clamp_max", "pow")


def run_list(seed: int, say: Callable[[str], object]) -> str:
    """The difference of a random foreach operator from its calls for one tensor each, or ""."""
    import torch

    rng = random.Random(seed)
    types = [torch.int32, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.float32, torch.float16]
    types += [torch.bfloat16, torch.float64, torch.bool, torch.complex64, torch.uint8]
    bases = [(rng.choice(types), rng.randrange(1, 6)) for _ in range(rng.randrange(1, 4))]
    views = []
    for _ in range(rng.randrange(1, 6)):
        base = rng.randrange(len(bases))
        begin = rng.randrange(bases[base][1])
        views.append((base, begin, rng.randrange(begin, bases[base][1]) + 1))
    name = rng.choice(UNARY + WITH_NUMBER)
    number = rng.choice([1, 2, 3, 0.5]) if name in WITH_NUMBER else None
    arguments = () if number is None else (number,)
    operator = getattr(torch, f"_foreach_{name}_")

    def make() -> tuple[list[Any], list[Any]]:
        memory = [(torch.arange(count) + 1).to(dtype).to(DEVICE) for dtype, count in bases]
        return memory, [memory[base][begin:end] for base, begin, end in views]

    say("openreg")
    words = f"_foreach_{name}_{arguments} of {[(str(bases[v[0]][0]), *v) for v in views]}"
    expected, tensors = make()
    try:
        for tensor in tensors:
            operator([tensor], *arguments)
    except REFUSALS:
        return ""  # a type that the operator refuses
    got, tensors = make()
    try:
        operator(tensors, *arguments)
    except REFUSALS as error:
        # On the CPU, too, a list may be refused whose tensors alone are not: results of another type, for example.
        try:
            operator([tensor.cpu() for tensor in tensors], *arguments)
        except REFUSALS:
            return ""
        return f"{words}: {type(error).__name__}: {str(error)[:300]}"
    for a, b in zip(got, expected, strict=True):
        if not torch.equal(a.cpu().view(torch.uint8), b.cpu().view(torch.uint8)):
            return f"{words}: {a.tolist()}, not {b.tolist()}"
    return ""


def work(seed: int, seconds: float, end: int, state: Path) -> int:
    """Programs of the seeds before `end` until the time is over or one differs; the file says which one runs."""
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    assert torch.openreg.device_count() > 1, "programs are for two devices"
    over = time.monotonic() + seconds
    count = 0
    while seed + count < end and (not count or time.monotonic() < over):
        faulthandler.dump_traceback_later(300, exit=True)

        def say(device: str, now: int = seed + count) -> None:
            state.write_text(f"{now} {device}", encoding="utf-8")

        for kind in (run_chain, run_list, run_list):
            # What PyTorch refuses within jvp() of fake tensors leaves keys excluded in this thread, on the CPU too: later
            # programs would have other values.
            with torch._C._PreserveDispatchKeyGuard():
                text = kind(seed + count, say)
            if text:
                faulthandler.cancel_dump_traceback_later()
                print(f"seed {seed + count}: {text}", flush=True)
                return 1
        count += 1
    faulthandler.cancel_dump_traceback_later()
    print(f"{count} chains and {2 * count} lists from seed {seed}, no difference", flush=True)
    return 0


def run_way(way: str, seed: int, seconds: float, programs: int) -> int:
    """One way in a process of its own. Some nests of transforms end the process on the CPU: defects of PyTorch's."""
    over, end = time.monotonic() + seconds, seed + programs
    while True:
        with tempfile.NamedTemporaryFile("r") as state:
            arguments = ["--seed", str(seed), "--seconds", str(over - time.monotonic()), "--way", way]
            arguments += ["--programs", str(end - seed)]
            command = [sys.executable, __file__, *arguments, "--state", state.name]
            status = subprocess.run(command, check=False).returncode
            now, _, device = state.read().partition(" ")
        if status >= 0 and status <= 1:
            return status
        print(f"seed {now}: the process ended with status {status} in the call on {device}", flush=True)
        if device != "cpu":
            return 1
        seed = int(now) + 1
        if time.monotonic() > over or seed == end:
            return 0


def main() -> int:
    """Runs each of the ways in which operators run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--seconds", type=float, default=30, help="for both ways together")
    parser.add_argument("--programs", type=int, default=10**9, help="at most, in each way")
    parser.add_argument("--state", type=Path, default=Path(os.devnull), help=argparse.SUPPRESS)
    parser.add_argument("--way", choices=("auto", "staged"), help="this one alone")
    options = parser.parse_args()
    if options.way:
        os.environ["OPENREG_DRIVERS"] = "sim"
        os.environ["OPENREG_OPERATORS"] = options.way
        print(f"{options.way}: ", end="", flush=True)
        return work(options.seed, options.seconds, options.seed + options.programs, options.state)
    for i, way in enumerate(("auto", "staged")):  # other programs each: most defects are of both
        if run_way(way, options.seed + 500_000 * i, options.seconds / 2, options.programs):
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
