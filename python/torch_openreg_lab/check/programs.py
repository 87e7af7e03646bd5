# SPDX-License-Identifier: BSD-3-Clause
"""Random tensor programs on openreg devices against the same programs on the CPU: the check ``programs.random``.

A program is a list of steps that read and write tensors ``x0``, ``x1``, ... on two devices and in host memory: views,
in-place operators, types, copies between all of them, streams, events, threads. It is written down as Python that
follows PyTorch's rules for streams (waits between them, ``record_stream()``, a wait before the host reads what is
copied asynchronously), so that both runs must give the same bytes, sizes, strides and errors. A program that differs
is made as small as possible, and is a script that shows the difference.
"""

from __future__ import annotations

import itertools
import math
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

PLACES = ("d0", "d1", "cpu", "pin")
DTYPES = ("float32", "float64", "int64", "int32", "uint8", "bool", "float16", "bfloat16", "complex64", "int16")
STREAMS = 3  # of a device; 0 is the default one

# What may be done with `a` (and `b`, on the same device): text for a new tensor, and whether that is a view of `a`.
VIEWS = (
    "a.t() if a.dim() == 2 else a.unsqueeze(0)",
    "a.transpose(0, -1)",
    "a.flatten()[{k}:]",
    "a[{k} % max(a.size(0), 1)]",
    "a[..., ::2]",
    "a[1:]",
    "a.narrow(-1, 0, (a.size(-1) + 1) // 2)",
    "a.diagonal() if a.dim() > 1 else a.view(-1)",
    "a.expand(2, *a.shape)",
    "a.movedim(0, -1)",
    "a.view(-1)",
    # A bool whose byte is neither 0 nor 1 means nothing in particular.
    "a.view(torch.uint8) if a.dtype != torch.bool else a.t()",
    "a.view(torch.int16) if a.dtype != torch.bool else a.squeeze(0)",
    "torch.view_as_real(a)",
    "a.conj()",
    "a.detach()",
    "torch._neg_view(a) if a.is_floating_point() else a.t()",
    "a.squeeze()",
    "a.as_strided((2, 2), (1, 1))",
    "a.unfold(0, 2, 1)",
)
IN_PLACE = (
    "a.zero_()",
    "a.fill_({v})",
    "a.fill_(0)",
    "a.add_({v})",
    "a.mul_({v})",
    "a.neg_()",
    "a[...] = {v}",
    "a[1:] = 0",
    "a.clamp_(-3, 3)",
    "a.bitwise_not_()",
    "a.transpose_(0, -1)",
    "a.unsqueeze_(0)",
    "a.squeeze_()",
    "a.masked_fill_(a == {v}, 1)",
    "a.index_fill_(0, torch.tensor([0], device=a.device), {v})",
    "a.logical_not_()",
    "torch._foreach_zero_([a])",
    "torch._foreach_add_([a], {v})",
    "a.set_(a.clone())",
    "a.resize_(3).fill_({v}) if a.storage_offset() == 0 else a.zero_()",  # else memory before it is uninitialised
    "a.copy_(a.clone().flip(0))",
)
BINARY_IN_PLACE = ("a.add_(b)", "a.mul_(b)", "a.copy_(b)", "a[...] = b", "a.sub_(b)", "torch.add(a, b, out=a)")
FRESH = (
    "a.clone()",
    "a.contiguous()",
    "a + {v}",
    "a * 2",
    "a == {v}",
    "a.flip(0)",
    "a.sum()",
    "a.amax() if a.numel() else a",
    "a.to(torch.{dtype})",
    "torch.cat([a, a])",
    "torch.zeros_like(a)",
    "torch.full_like(a, {v})",
    "a.new_ones(3)",
    "a.resolve_conj().resolve_neg()",
    "torch.where(a == {v}, a, -a)",
    "a.argsort(stable=True)",
    "a.nonzero()",
    "a.repeat(2)",
    "a.type(torch.{dtype})",
    "a.to(memory_format=torch.channels_last)",
)
BINARY_FRESH = ("a + b", "a * b", "torch.stack([a, b])", "torch.cat([a, b])", "a == b", "torch.where(b == 0, a, b)")


@dataclass
class Step:
    """One line of a program."""

    kind: str
    name: int  # of the tensor that it makes, or writes
    other: int = 0
    text: str = ""
    place: str = "d0"
    stream: int = 0
    how: int = 0
    numbers: dict[str, Any] = field(default_factory=dict)


Program = list[list[Step]]


# ----------------------------------------------------------------------------------------------------- generation


def generate(rng: random.Random) -> Program:
    """A few threads of steps; mostly one."""
    return [_steps(rng, 1000 * i) for i in range(3 if rng.random() < 0.2 else 1)]


def _steps(rng: random.Random, first: int) -> list[Step]:
    names = itertools.count(first)
    places: dict[int, str] = {}
    steps: list[Step] = []

    def numbers() -> dict[str, Any]:
        value = rng.choice([0, 1, -1, 2, 3, 7, 0.5, True])
        return {"v": value, "k": rng.randrange(5), "dtype": rng.choice(DTYPES)}

    def step(kind: str, name: int, **what: Any) -> None:
        steps.append(Step(kind, name, stream=rng.randrange(STREAMS), how=rng.randrange(12), numbers=numbers(), **what))

    def made(place: str) -> int:
        name = next(names)
        places[name] = place
        return name

    def create() -> None:
        place = rng.choice(PLACES)
        shape = [rng.choice([0, 1, 2, 3, 4, 5, 7]) for _ in range(rng.randrange(5))]
        if rng.random() < 0.01:
            shape = [rng.choice([1 << 16, 1 << 16, 1 << 16, (1 << 20) + 3, (5 << 20) + 1])]
        values = f"torch.arange({math.prod(shape)}).remainder({rng.choice([3, 7, 251])})"
        text = f"{values}.to(torch.{rng.choice(DTYPES)}).view({shape})"
        step("create", made(place), text=text, place=place)

    for _ in range(rng.randrange(3, 60)):
        draw = rng.random()
        if len(places) < 2 or (draw < 0.14 and len(places) < 14):
            create()
            continue
        name = rng.choice(list(places))
        near = rng.choice([other for other in places if _same_device(places[other], places[name])])
        if draw < 0.30:
            step("view", made(places[name]), other=name, text=rng.choice(VIEWS), place=places[name])
        elif draw < 0.50:
            text = rng.choice(IN_PLACE)
            if "resize" in text and places[name] == "pin":
                continue  # PyTorch's pinned memory has its size for good
            step("write", name, other=name, text=text, place=places[name])
        elif draw < 0.62:
            text = rng.choice(BINARY_IN_PLACE)
            if "out=" in text and places[name] == "pin":
                continue  # as above
            step("write", name, other=near, text=text, place=places[name])
        elif draw < 0.72:
            place = "cpu" if places[name] == "pin" else places[name]
            text, other = (rng.choice(FRESH), name) if rng.random() < 0.6 else (rng.choice(BINARY_FRESH), near)
            # The result's operands are `name` and `other`; it may be `a` itself.
            stream = rng.randrange(STREAMS)
            steps.append(Step("fresh", made(place), name, text, place, stream, other, numbers()))
        elif draw < 0.92:
            step("copy", name, other=rng.choice(list(places)), place=places[name])
        else:
            step("delete", name)
            del places[name]
    return steps


def _same_device(a: str, b: str) -> bool:
    host = ("cpu", "pin")
    return a == b or (a in host and b in host)


# ------------------------------------------------------------------------------------------------------ as Python


class _Writer:
    """Writes one thread's steps as lines, and follows which streams use which memory."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.place: dict[int, str] = {}
        self.root: dict[int, int] = {}  # whose memory it is
        self.made_on: dict[int, int] = {}  # by root: the stream that it was allocated on
        self.last: dict[int, int] = {}  # by root: the stream of the latest use
        self.pending = False  # a copy with host memory is under way
        self.streams = [0, 0]

    def write(self, steps: list[Step]) -> list[str]:
        for step in steps:
            operands = self._operands(step)
            if any(name not in self.place for name in operands):
                continue  # what made it was left out
            getattr(self, "_" + step.kind)(step)
        self._settle()
        return self.lines

    def _operands(self, step: Step) -> list[int]:
        operands = {"create": [], "view": [step.other], "delete": [step.name], "fresh": [step.other, step.how]}
        return operands.get(step.kind, [step.name, step.other])

    def _settle(self) -> None:
        if self.pending:
            self.lines.append("settle()")
            self.pending = False

    def _use(self, names: list[int], stream: int, how: int) -> None:
        """The tensors are used next: by `stream` of their device, or by the host."""
        for place in {self.place[name] for name in names}:
            if place not in ("d0", "d1"):
                self._settle()
            self._stream_of(place, stream)
        for name in names:
            root = self.root[name]
            if self.place[name] not in ("d0", "d1"):
                continue
            device = int(self.place[name][1])
            before = self.last[root]
            if before != stream:
                self.lines.append(f"order({device}, {before}, {stream}, {how % 4})")
                self.last[root] = stream
            if self.made_on[root] != stream:
                self.lines.append(f"record(x{name}, {device}, {stream})")

    def _add(self, name: int, place: str, stream: int, root: int | None = None) -> None:
        self.place[name] = place
        self.root[name] = name if root is None else root
        if root is None:
            self.made_on[name] = self.last[name] = stream

    def _create(self, step: Step) -> None:
        self._stream_of(step.place, step.stream)
        self.lines.append(f"x{step.name} = to({step.text}, {step.place!r})")
        self._add(step.name, step.place, step.stream)

    def _stream_of(self, place: str, stream: int) -> None:
        if place in ("d0", "d1") and self.streams[int(place[1])] != stream:
            self.lines.append(f"use({place[1]}, {stream})")
            self.streams[int(place[1])] = stream

    def _view(self, step: Step) -> None:
        self._use([step.other], step.stream, step.how)
        self.lines.append(f"x{step.name} = attempt(lambda a, b: {_filled(step)}, x{step.other}, x{step.other})")
        self._add(step.name, self.place[step.other], step.stream, self.root[step.other])

    def _fresh(self, step: Step) -> None:
        self._use([step.other, step.how], step.stream, 1)
        self.lines.append(f"x{step.name} = attempt(lambda a, b: {_filled(step)}, x{step.other}, x{step.how})")
        # It may be its operand (contiguous() of what is so): then it is the same memory.
        self.lines.append(f"x{step.name} = x{step.name}.clone()")
        self._add(step.name, "cpu" if self.place[step.other] == "pin" else self.place[step.other], step.stream)

    def _write(self, step: Step) -> None:
        self._use([step.name, step.other], step.stream, step.how)
        text = _filled(step)
        if " = " in text:
            target, value = text.split(" = ")
            text = f"a.__setitem__({'...' if target == 'a[...]' else 'slice(1, None)'}, {value})"
        self.lines.append(f"attempt(lambda a, b: {text}, x{step.name}, x{step.other}, True)")
        if "set_" in text or "resize_" in text:
            # Other memory from here on, of the stream that is current; what was its own lives as long as its views.
            self.made_on[self.root[step.name]] = -1

    def _copy(self, step: Step) -> None:
        asynchronous = step.how % 2 == 0
        self._use([step.name, step.other], step.stream, step.how // 2)
        # The CPU converts first and negates then, which bools refuse and imaginary zeros show; a copy between devices
        # negates first.
        source = "b if a.dtype == b.dtype else b.resolve_neg()"
        self.lines.append(
            f"attempt(lambda a, b: a.copy_({source}, non_blocking={asynchronous}), x{step.name}, x{step.other}, True)"
        )
        places = {self.place[step.name], self.place[step.other]}
        if asynchronous and len(places) > 1:
            self.pending = True

    def _delete(self, step: Step) -> None:
        if self.place[step.name] not in ("d0", "d1"):
            self._settle()
        self.lines.append(f"del x{step.name}")
        del self.place[step.name]


def _filled(step: Step) -> str:
    text = step.text
    for key, value in step.numbers.items():
        text = text.replace("{" + key + "}", str(value))
    return text


HEAD = '''
import math
import threading
import warnings
import torch

warnings.simplefilter("ignore")

def program(on_device):
    """Runs the threads; what each of their tensors is in the end."""
    streams = [[None] * 3, [None] * 3]
    local = threading.local()

    def use(device, stream):
        if on_device:
            torch.openreg.set_stream(local.streams[device][stream])

    def order(device, before, after, how):
        if not on_device:
            return
        first, later = local.streams[device][before], local.streams[device][after]
        if how == 0:
            first.synchronize()
        elif how == 1:
            later.wait_stream(first)
        else:
            event = first.record_event() if how == 2 else torch.openreg.Event(enable_timing=True)
            if how == 3:
                event.record(first)
            later.wait_event(event)

    def record(tensor, device, stream):
        if on_device:
            tensor.record_stream(local.streams[device][stream])

    def settle():
        if on_device:
            for stream in local.streams[0] + local.streams[1]:
                stream.synchronize()

    def to(tensor, place):
        if place == "pin":
            return tensor.pin_memory() if on_device else tensor
        name = torch._C._get_privateuse1_backend_name()
        return tensor.to(f"{name}:{place[1]}") if on_device and place != "cpu" else tensor

    def is_written_twice(x):
        # Elements at the same place, of which the last one written stays: kernels have orders of their own.
        if x.numel() == 0:
            return False
        reach = 0
        for stride, size in sorted(zip(x.stride(), x.shape)):
            if size > 1 and stride <= reach:
                return True
            reach += stride * (size - 1)
        return False

    def is_too_large(a, b):
        # [65536, 1] and [65536] make four thousand million elements.
        shape = zip(reversed((1,) * b.dim() + a.shape), reversed((1,) * a.dim() + b.shape))
        return math.prod(max(sizes) for sizes in shape) > 1 << 26

    def attempt(function, a, b, writes=False):
        if is_too_large(a, b):
            return a
        # Which overlaps are an error differs between PyTorch's devices.
        overlaps = a is not b and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
        if writes and (overlaps or is_written_twice(a)):
            return a
        try:
            result = function(a, b)
        except (RuntimeError, IndexError, NotImplementedError, ValueError, TypeError) as error:
            # A driver's kernel is not called where it has nothing to write, and so it can't refuse a type there.
            told = "" if writes and a.numel() == 0 else "RuntimeError" if isinstance(error, RuntimeError) else None
            local.errors.append(type(error).__name__ if told is None else told)
            return a
        local.errors.append("")
        return a if result is None else result

    def start():
        local.errors = []
        if on_device:
            default = [torch.openreg.default_stream(d) for d in (0, 1)]
            local.streams = [
                [default[d], torch.openreg.Stream(d), torch.openreg.Stream(d, priority=-1)] for d in (0, 1)
            ]
            torch.openreg.set_device(0)

    def state(names):
        """Sizes, strides, types, lazy bits and bytes of the tensors."""
        if on_device:
            for device in (0, 1):
                torch.openreg.synchronize(device)
                torch.openreg.set_stream(torch.openreg.default_stream(device))
        result = {"errors": list(local.errors)}
        for name, x in names.items():
            if isinstance(x, torch.Tensor):
                # Strides of dimensions of one element, and of tensors without elements, say nothing.
                strides = [stride if size > 1 and x.numel() else 0 for size, stride in zip(x.shape, x.stride())]
                told = x.shape, strides, x.storage_offset(), x.dtype, x.is_conj(), x.is_neg()
                plain = x.detach().cpu().resolve_conj().resolve_neg().contiguous()
                result[name] = told, bytes(plain.flatten().view(torch.uint8).numpy()) if plain.numel() else b""
        return result
'''


def source(program: Program) -> str:
    """The program as a script, which fails where the runs differ."""
    lines = [HEAD]
    for number, steps in enumerate(program):
        lines.append(f"    def thread_{number}():")
        lines.append("        start()")
        lines += ["        " + line for line in _Writer().write(steps)]
        lines.append("        return state({k: v for k, v in locals().items() if k[0] == 'x'})\n")
    functions = ", ".join(f"thread_{i}" for i in range(len(program)))
    lines.append(
        f"""    functions = [{functions}]
    results = [None] * len(functions)
    failures = []

    def run(i):
        try:
            results[i] = functions[i]()
        except BaseException as error:
            failures.append(f"{{type(error).__name__}}: {{error}}")

    if len(functions) == 1:
        run(0)
    else:
        threads = [threading.Thread(target=run, args=(i,)) for i in range(len(functions))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return results, failures


def difference():
    "What differs between the devices and the CPU, or nothing."
    want, got = program(False), program(True)
    if want[1] or got[1]:
        return "" if bool(want[1]) and bool(got[1]) else f"on the CPU: {{want[1]}}, on the devices: {{got[1]}}"
    for thread, (a, b) in enumerate(zip(want[0], got[0])):
        for name in a:
            if a[name] != b[name]:
                what = "its bytes" if name != "errors" and a[name][0] == b[name][0] else "it"
                told = [x[name] if what == "it" else x[name][1][:64] for x in (a, b)]
                text = f"{{told[0]}} and {{told[1]}}"
                return f"thread {{thread}}, {{name}}: {{what}} on the CPU and on the devices: {{text}}"
    return ""
"""
    )
    return "\n".join(lines)


# --------------------------------------------------------------------------------------------- running and shrinking


def difference(program: Program) -> str:
    """What differs, run in this process."""
    space: dict[str, Any] = {}
    text = source(program)
    exec(compile(text, "<program>", "exec"), space)
    return str(space["difference"]())


def difference_in_process(program: Program, timeout: float = 300) -> str:
    """What differs, or how the process ended, in a process of its own."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(source(program) + "\nprint(difference())\n")
        script.flush()
        try:
            done = subprocess.run(
                [sys.executable, script.name], capture_output=True, text=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired:
            return f"no end within {timeout:.0f} seconds"
    return f"status {done.returncode}: {done.stderr[-300:]}" if done.returncode else done.stdout.strip()


def shrink(program: Program, differs: Callable[[Program], str], seconds: float) -> Program:
    """A smaller program that differs too."""
    end = time.monotonic() + seconds
    attempts = 3 if len(program) > 1 else 1

    def fails(candidate: Program) -> bool:
        return any(differs(candidate) for _ in range(attempts))

    for smaller in [[steps] for steps in program] if len(program) > 1 else []:
        if fails(smaller):
            program = smaller
            break
    for thread in range(len(program)):
        chunk = len(program[thread])
        while chunk:
            at = 0
            while at < len(program[thread]) and time.monotonic() < end:
                smaller = [list(steps) for steps in program]
                del smaller[thread][at : at + chunk]
                if fails(smaller):
                    program = smaller
                else:
                    at += chunk
            chunk //= 2
    for step in itertools.chain(*program):
        before = step.stream
        step.stream = 0
        if before and not (time.monotonic() < end and fails(program)):
            step.stream = before
    return program
