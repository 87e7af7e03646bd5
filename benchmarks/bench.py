# SPDX-License-Identifier: BSD-3-Clause
"""Times openreg, each figure beside its reference in the same run: `make bench`.

A figure and its reference take turns, so that a change in the machine's load meets both; the least of the rounds
counts. The table says how each compares with its aim. A figure that misses its aim is shown, and nothing fails.
"""

from __future__ import annotations

import argparse
import ctypes.util
import functools
import gc
import gzip
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import collectives
import torch
import torch.nn.functional as F
from models import Decoder, Gpt, Lstm, digits, mlp, resnet18, small_resnet, wide_mlp
from torch import nn
from torch.profiler import ProfilerActivity, profile

from torch_openreg import _C

DEVICE = "openreg:0"
MIB = 1 << 20


@dataclass
class Figure:
    """One line of the table."""

    name: str
    value: float  # of what `measure` names
    reference: float  # the same, of `reference_name`
    reference_name: str
    score: float  # what the aim speaks of
    unit: str  # of the score: "ns", "us", "ms", "x" (times the reference), "x as fast" or "objects"
    aim: float
    at_least: bool = False
    measure: str = "nanoseconds"  # or "bytes" or "objects": of value and reference

    @property
    def met(self) -> bool:
        """Whether the aim is reached."""
        return self.score >= self.aim if self.at_least else self.score <= self.aim


def time_once(work: Callable[[], object], count: int) -> float:
    """Nanoseconds per call over `count` calls."""
    calls = range(count)
    start = time.perf_counter_ns()
    for _ in calls:
        work()
    return (time.perf_counter_ns() - start) / count


def least(*measures: Callable[[], float], rounds: int = 15) -> list[float]:
    """The least that each of some measurements gives, which take turns: the last of a round is the first of the next."""
    found: list[list[float]] = [[] for _ in measures]
    gc.collect()
    gc.disable()
    try:
        for turn in range(rounds):
            for place in range(len(measures))[:: 1 if turn % 2 else -1]:
                found[place].append(measures[place]())
    finally:
        gc.enable()
    return [min(each) for each in found]


def time_pair(ours: Callable[[], object], theirs: Callable[[], object], rounds: int = 15) -> list[float]:
    """Times both in turn and returns the least nanoseconds per call of each."""
    count = 1
    while time_once(theirs, count) * count < 5e6:  # about 10 ms a round
        count *= 2
    for work in (ours, theirs):
        time_once(work, count)
    return least(*(functools.partial(time_once, work, count) for work in (ours, theirs)), rounds=rounds)


def time_with_and_without(
    work: Callable[[], object], instrument: Callable[[], AbstractContextManager[object]]
) -> list[float]:
    """The least nanoseconds of a call inside the instrument's context, and outside; rounds of both take turns."""
    count = max(1, round(2e7 / time_once(work, 3)))

    def measure(context: Callable[[], AbstractContextManager[object]]) -> float:
        with context():
            work()
            return time_once(work, count)

    return least(lambda: measure(instrument), lambda: measure(nullcontext), rounds=25)


def quotient(name: str, value: float, reference: float, what: str, aim: float, measure: str = "nanoseconds") -> Figure:
    """A figure that is to be at most `aim` times its reference."""
    return Figure(name, value, reference, what, value / reference, "x", aim, measure=measure)


def speed(name: str, value: float, reference: float, what: str, aim: float) -> Figure:
    """A time that is to be at least `aim` times as short as its reference."""
    return Figure(name, value, reference, what, reference / value, "x as fast", aim, at_least=True)


def within(name: str, value: float, reference: float, what: str, unit: str, aim: float) -> Figure:
    """A figure that is to be at most `aim`, which is in `unit`: of a time, or "x", times its reference."""
    return Figure(
        name, value, reference, what, value / {"ns": 1, "us": 1e3, "ms": 1e6, "x": reference}[unit], unit, aim
    )


def ratio(name: str, ours: Callable[[], object], theirs: Callable[[], object], what: str, aim: float) -> Figure:
    """A call that is to take at most `aim` times as long as its reference."""
    value, reference = time_pair(ours, theirs)
    return quotient(name, value, reference, what, aim)


def numbers_of(program: Path, *arguments: str, data: bytes = b"", **variables: str) -> dict[str, float]:
    """What a program prints, a name and a number on each line."""
    command = [str(program), *arguments]
    done = subprocess.run(command, input=data, env=os.environ | variables, stdout=subprocess.PIPE, check=True)
    return {line.split()[0]: float(line.split()[1]) for line in done.stdout.decode().splitlines()}


def c_figures(programs: Path) -> list[Figure]:
    """Figures of the C and C++ programs."""
    times = numbers_of(programs / "runtime_bench") | numbers_of(programs / "guard_bench")
    figures = []
    for name, title, aim in (
        ("current_device", "C current_device", 1.0),
        ("set_device", "C set_device to the same", 2.0),
        ("exchange_device", "C exchange_device there and back", 5.0),
    ):
        for threads in (1, 2):
            value, reference = times[f"{name}/{threads}"], times[f"{name}:call/{threads}"]
            suffix = "" if threads == 1 else ", 2 threads"
            figures.append(within(title + suffix, value, reference, "an exported call", "ns", aim))
    same, cpu = times["guard_same"], times["guard_cpu"]
    figures.append(within("c10::DeviceGuard, same device", same, cpu, "guard of the CPU", "ns", 10.0))
    for size, label in ((512, "512 B"), (1 << 16, "64 KiB"), *((n * MIB, f"{n} MiB") for n in (1, 16, 64))):
        value, reference = times[f"cache_{size}/1"], times[f"cache_{size}:malloc/1"]
        figures.append(within(f"cache alloc + free, {label}", value, reference, "malloc + free", "ns", 40.0))
    for size, label in ((512, "512 B"), (64 * MIB, "64 MiB")):
        one, two = times[f"cache_{size}/1"], times[f"cache_{size}/2"]
        title = f"cache, 2 threads on 2 devices, {label}"
        figures.append(Figure(title, two, one, "1 thread", 2 * one / two, "x as fast", 1.9, at_least=True))
    return figures


def growth_figures(programs: Path) -> list[Figure]:
    """Figures of growth_bench: what an operation costs as more is kept. Ratios of two sizes, or of an aim in time."""
    program = programs / "growth_bench"
    times = numbers_of(program)
    figures = []
    for title, name, small, large, unit, aim in (
        ("malloc behind 10,000 blocks too small", "misfits", 1000, 10000, "us", 2.0),
        ("the oldest of 10,000 pools, in and out", "pools_enter", 100, 10000, "x", 2.0),
        ("a pool's life beside 1,000 others", "pools_live", 100, 1000, "x", 2.0),
        ("empty_cache, a segment of 10,000", "empty_cache", 1000, 10000, "x", 1.2),
        ("a pinned block beside 100,000 others", "pinned", 1000, 100000, "x", 2.0),
        ("longest stall, a queue of 100,000", "queue_stall", 10000, 100000, "ms", 0.1),
    ):
        value, reference = times[f"{name}/{large}"], times[f"{name}/{small}"]
        figures.append(within(title, value, reference, f"{small:,}", unit, aim))
    references = [("free, malloc", times)]
    if (jemalloc := ctypes.util.find_library("jemalloc")) is not None:
        references.append(("jemalloc", numbers_of(program, "replace", LD_PRELOAD=jemalloc)))
    for name, found in references:
        for count, label in ((1000, "1,000"), (100000, "100,000")):
            value, reference = found[f"replace/{count}"], found[f"replace:malloc/{count}"]
            figures.append(quotient(f"random block of {label} replaced", value, reference, name, 2.0))
    return figures


def on_tensors(operator: Callable[..., object]) -> Callable[[str, int], Callable[[], object]]:
    """A function of device and number of elements that makes a call of an operator on three tensors."""

    def make(device: str, elements: int) -> Callable[[], object]:
        torch.manual_seed(0)
        a, b, c = (torch.rand(elements).add_(0.1).to(device) for _ in range(3))
        return lambda: operator(a, b, c)

    return make


VIEWS = ("a.view(-1)", "a[0]")
SMALL = {
    "a + b": on_tensors(lambda a, b, c: a + b),
    "a.add_(b)": on_tensors(lambda a, b, c: a.add_(b)),
    "torch.add(out=)": on_tensors(lambda a, b, c: torch.add(a, b, out=c)),
    "a.view(-1)": on_tensors(lambda a, b, c: a.view(-1)),
    "a[0]": on_tensors(lambda a, b, c: a[0]),
    "a.sum()": on_tensors(lambda a, b, c: a.sum()),
}
LARGE = {
    "a + b": on_tensors(lambda a, b, c: a + b),
    "a * b": on_tensors(lambda a, b, c: a * b),
    "a / b": on_tensors(lambda a, b, c: a / b),
    "a + 2": on_tensors(lambda a, b, c: a + 2),
    "a.add_(b, alpha=0)": on_tensors(lambda a, b, c: a.add_(b, alpha=0)),
    "torch.mul(out=)": on_tensors(lambda a, b, c: torch.mul(a, b, out=c)),
    "addcmul": on_tensors(torch.addcmul),
    "relu": on_tensors(lambda a, b, c: torch.relu(a)),
    "gelu": on_tensors(lambda a, b, c: F.gelu(a)),
    "sigmoid": on_tensors(lambda a, b, c: torch.sigmoid(a)),
    "tanh": on_tensors(lambda a, b, c: torch.tanh(a)),
    "exp": on_tensors(lambda a, b, c: torch.exp(a)),
    "log": on_tensors(lambda a, b, c: torch.log(a)),
    "sqrt": on_tensors(lambda a, b, c: torch.sqrt(a)),
    "where": on_tensors(lambda a, b, c: torch.where(a > b, a, b)),
    "a > b": on_tensors(lambda a, b, c: a > b),
    "clamp": on_tensors(lambda a, b, c: torch.clamp(a, 0.2, 0.8)),
    "sum": on_tensors(lambda a, b, c: a.sum()),
    "softmax, rows of 1024": on_tensors(lambda a, b, c: a.view(-1, 1024).softmax(-1)),
    "layer norm, rows of 1024": on_tensors(lambda a, b, c: F.layer_norm(a.view(-1, 1024), (1024,))),
}


def replay_figures(programs: Path) -> list[Figure]:
    """Figures of recorded requests: time against malloc(), peaks against what the program has in use."""
    figures = []
    for path in sorted((Path(__file__).parent / "traces").glob("*.trace.gz")):
        name = path.name.split(".")[0]
        found = numbers_of(programs / "replay_bench", name, data=gzip.decompress(path.read_bytes()))
        value, reference = found[f"replay_{name}"], found[f"replay_{name}:malloc"]
        live = found[f"peak_live_{name}"]
        figures.append(quotient(f"replay of {name}, an operation", value, reference, "malloc, free", 1.0))
        for peak, what, aim in (
            ("allocated", "peak allocated", 1.1),
            ("reserved", "peak reserved", 1.5),
            ("growing", "peak, expandable segments", 1.5),
        ):
            most = found[f"peak_{peak}_{name}"]
            figures.append(quotient(f"replay of {name}, {what}", most, live, "live", aim, "bytes"))
    return figures


def operator_figures() -> list[Figure]:
    """Figures of single calls against CPU tensors."""
    ours, theirs = torch.openreg.current_device, torch.accelerator.current_device_index
    figures = [ratio("torch.openreg.current_device()", ours, theirs, "torch.accelerator", 1.0)]
    made = [functools.partial(torch.empty, 16, device=device) for device in (DEVICE, "cpu")]
    figures.append(ratio("torch.empty(16)", *made, "CPU", 1.15))
    figures += [
        ratio(f"{name}, 16 elements", call(DEVICE, 16), call("cpu", 16), "CPU", 1.1 if name in VIEWS else 1.3)
        for name, call in SMALL.items()
    ]
    figures += [
        ratio(f"{name}, 1 M elements", call(DEVICE, MIB), call("cpu", MIB), "CPU", 1.02) for name, call in LARGE.items()
    ]
    a, b = torch.randn(512, 512), torch.randn(512, 512)
    x, y = a.to(DEVICE), b.to(DEVICE)
    figures.append(ratio("mm, 512 x 512", lambda: torch.mm(x, y), lambda: torch.mm(a, b), "CPU", 1.02))
    return figures


def copy_figures() -> list[Figure]:
    """Figures of copies of 64 MiB."""
    source = torch.randn(16 * MIB)
    source.to(DEVICE)  # its block is in the cache from here on
    value, reference = time_pair(lambda: source.to(DEVICE), source.clone, rounds=9)
    there, here = torch.empty_like(source, device=DEVICE), torch.empty_like(source)
    return [
        speed("64 MiB .to(device), cached", value, reference, "a fresh CPU copy", 7.0),
        ratio("64 MiB copy_ into a tensor", lambda: there.copy_(source), lambda: here.copy_(source), "CPU copy_", 1.05),
    ]


def training_step(make: Callable[[], nn.Module], inputs: torch.Tensor, device: str) -> Callable[[], None]:
    """A function that makes one step."""
    torch.manual_seed(0)
    model = make().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = inputs.to(device), torch.randint(0, 10, inputs.shape[:1]).to(device)

    def run() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return run


def step_figure(title: str, make: Callable[[], nn.Module], inputs: torch.Tensor, aim: float) -> Figure:
    """A training step on openreg against the CPU."""
    return ratio(title, training_step(make, inputs, DEVICE), training_step(make, inputs, "cpu"), "CPU", aim)


def profiler_figures(rounds: int = 15, steps: int = 5) -> list[Figure]:
    """Training steps under torch.profiler, without its start and end: what the rows of the device cost."""
    step = training_step(small_resnet, torch.randn(8, 3, 32, 32), DEVICE)
    step()
    host, device = ProfilerActivity.CPU, ProfilerActivity.PrivateUse1
    kinds: list[tuple[ProfilerActivity, ...]] = [(), (host,), (device,), (host, device)]

    def measure(activities: tuple[ProfilerActivity, ...]) -> float:
        with profile(activities=activities) if activities else nullcontext():
            return time_once(step, steps)

    found = least(*(functools.partial(measure, kind) for kind in kinds), rounds=rounds)

    def figure(ours: tuple[ProfilerActivity, ...], theirs: tuple[ProfilerActivity, ...], what: str) -> Figure:
        names = " + ".join("CPU" if activity is host else "PrivateUse1" for activity in ours)
        value, reference = (found[kinds.index(kind)] for kind in (ours, theirs))
        return quotient(f"small ResNet step, profiled {names}", value, reference, what, 1.05)

    return [
        figure((host, device), (host,), "profiled CPU"),
        figure((device,), (), "not profiled"),
        figure((host, device), (), "not profiled"),
    ]


def wrapper_figures(calls: int = 100) -> list[Figure]:
    """How many objects the calls of an operator make to show its arguments to the CPU's kernel, once warm."""
    figures = []
    for name, call in SMALL.items():
        work = call(DEVICE, 16)
        work()
        before = _C._kernel_tensors_made()
        for _ in range(calls):
            work()
        made = (_C._kernel_tensors_made() - before) / calls
        title = f"wrappers made by a call of {name}"
        figures.append(Figure(title, made, 0, "none", made, "objects", 0, measure="objects"))
    return figures


def training_figures() -> list[Figure]:
    """Figures of training steps, and of an optimizer alone."""
    torch.manual_seed(0)
    figures = [
        step_figure("MLP step, batch 32, 784-256-10", mlp, torch.randn(32, 784), 1.08),
        step_figure("small ResNet step", small_resnet, torch.randn(8, 3, 32, 32), 1.03),
        step_figure("ResNet-18 step, 32 x 32, batch 16", resnet18, torch.randn(16, 3, 32, 32), 1.03),
        step_figure("GPT step, 4 layers of 128, batch 8 x 64", Gpt, torch.randint(0, 256, (8, 64)), 1.03),
        step_figure("LSTM step, 2 layers of 128, batch 16 x 32", Lstm, torch.randn(16, 32, 64), 1.03),
    ]

    def adam(device: str) -> Callable[[], object]:
        parameters = [nn.Parameter(torch.randn(16, 16, device=device)) for _ in range(200)]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        return torch.optim.Adam(parameters, foreach=True).step

    with torch.autograd.set_multithreading_enabled(False):
        title = "MLP step, autograd without its threads"
        figures.append(step_figure(title, mlp, torch.randn(32, 784), 1.05))
    figures.append(ratio("foreach Adam, 200 parameters of 16 x 16", adam(DEVICE), adam("cpu"), "CPU", 1.15))
    return figures


def staged_figures() -> list[Figure]:
    """Operators on memory that the host can't reach: in a process with OPENREG_OPERATORS=staged.

    Each curve has two sizes, so that it shows a slope and not a point.
    """
    figures = []
    for elements, label in ((MIB // 16, "256 KiB"), (4 * MIB, "16 MiB")):
        near = [torch.randn(elements) for _ in range(2)]
        far = [tensor.to(DEVICE) for tensor in near]
        kept = [torch.empty(elements) for _ in range(4)]

        def on_cpu(near: list[torch.Tensor] = near, kept: list[torch.Tensor] = kept) -> None:
            for copy, source in zip(kept, near, strict=False):
                copy.copy_(source)
            torch.add(kept[0], kept[1], out=kept[2])
            kept[3].copy_(kept[2])

        what = "CPU's add and 3 copies"
        figures.append(ratio(f"staged a + b of {label}", lambda far=far: far[0] + far[1], on_cpu, what, 1.5))
    small, large = (torch.zeros(elements, device=DEVICE) for elements in (1024, 4 * MIB))
    for title, call in (
        ("staged x[:4] + 1, storage of 16 MiB", lambda x: x[:4] + 1),
        ("staged x[4:8].add_(1), 16 MiB", lambda x: x[4:8].add_(1)),
    ):
        figures.append(ratio(title, functools.partial(call, large), functools.partial(call, small), "4 KiB", 2.0))
    for width in (16, 2048):
        layers = functools.partial(wide_mlp, width)
        figures.append(step_figure(f"staged MLP step, width {width}", layers, torch.randn(32, width), 1.6))
    for width in (128, 512):
        gpt = functools.partial(Gpt, width)
        tokens = torch.randint(0, 256, (4, 64))
        figures.append(step_figure(f"staged GPT step, width {width}", gpt, tokens, 1.6))
    return figures


def compiled_figures() -> list[Figure]:
    """torch.compile on openreg against torch.compile on the CPU; compiling itself is not timed."""
    compiled = torch.compile

    def pointwise(x: torch.Tensor) -> torch.Tensor:
        return ((x + 1).relu() * 2).sigmoid()

    figures = []
    for elements, label, aim in ((16, "16 elements", 1.0), (MIB, "1 Mi elements", 0.9)):
        work = compiled(pointwise)
        near = torch.randn(elements)
        far = near.to(DEVICE)
        title = f"compiled pointwise, {label}"
        figures.append(ratio(title, functools.partial(work, far), functools.partial(work, near), "CPU compiled", aim))
        torch._dynamo.reset()

    def step(make: Callable[[], nn.Module], inputs: torch.Tensor, device: str, trains: bool) -> Callable[[], None]:
        torch.manual_seed(0)
        model = compiled(make().to(device))
        x = inputs.to(device)

        def run() -> None:
            if not trains:
                with torch.no_grad():
                    model(x)
                return
            model(x).sum().backward()
            model.zero_grad()

        return run

    encoder = functools.partial(nn.TransformerEncoderLayer, 128, 4, 512, dropout=0.0, batch_first=True)
    for title, make, inputs, trains, aim in (
        ("compiled MLP forward, batch 32", mlp, torch.randn(32, 784), False, 1.0),
        ("compiled transformer layer, both ways", encoder, torch.randn(8, 64, 128), True, 1.02),
        ("compiled MLP, forward and backward", mlp, torch.randn(32, 784), True, 1.05),
    ):
        ours, theirs = (step(make, inputs, device, trains) for device in (DEVICE, "cpu"))
        # PyTorch hands the backward pass of any device but the CPU to a thread: 100 us and more a step, shown elsewhere.
        with torch.autograd.set_multithreading_enabled(False):
            figures.append(ratio(title, ours, theirs, "CPU compiled", aim))
        torch._dynamo.reset()
    return figures


def list_figures() -> list[Figure]:
    """Operators on lists of tensors, and figures of the allocator, each at two sizes."""
    figures = []
    for count, label in ((10, "10"), (1000, "1,000")):
        near = [torch.rand(16) for _ in range(count)]
        far = [tensor.to(DEVICE) for tensor in near]
        for name, work in (
            ("cat", torch.cat),
            ("stack", torch.stack),
            ("_foreach_add_", lambda tensors: torch._foreach_add_(tensors, 0.0)),
            ("_foreach_mul", lambda tensors: torch._foreach_mul(tensors, 1.0)),
        ):
            calls = [functools.partial(work, tensors) for tensors in (far, near)]
            figures.append(ratio(f"{name} of {label} tensors of 16", *calls, "CPU", 1.2))

    pools: list[object] = []
    for count, label in ((1, "1 pool"), (1000, "1,000 pools")):
        while len(pools) < count:
            pool = torch.openreg.MemPool()
            with torch.openreg.use_mem_pool(pool):
                torch.empty(16, device=DEVICE)
            pools.append(pool)
        value, reference = time_pair(torch.openreg.memory_allocated, torch.openreg.current_device)
        figures.append(within(f"memory_allocated(), {label}", value, reference, "current_device()", "us", 1.0))
    return figures


def race_figures() -> list[Figure]:
    """Steps while races are looked for, against steps without. Off and on take turns."""

    def looking(work: Callable[[], None], flags: int = 1) -> Callable[[], None]:
        def run() -> None:
            before = _C._races_set(flags)
            work()
            _C._races_set(before)

        return run

    figures = []
    for title, make, inputs in (
        ("demo's step, batch 64", digits, torch.randn(64, 1, 8, 8)),
        ("MLP step, batch 32, 784-256-10", mlp, torch.randn(32, 784)),
        ("small ResNet step", small_resnet, torch.randn(8, 3, 32, 32)),
    ):
        step = training_step(make, inputs, DEVICE)
        figures.append(ratio(f"races looked for: {title}", looking(step), step, "not looked for", 1.5))
        figures.append(ratio(f"races, with stacks: {title}", looking(step, 9), step, "not looked for", 3.0))
    a, b = torch.randn(16, device=DEVICE), torch.randn(16, device=DEVICE)

    def add_with(flags: int) -> float:
        before = _C._races_set(flags)
        value = min(time_once(lambda: a + b, 2000) for _ in range(15))
        _C._races_set(before)
        return value

    reference = add_with(0)
    for title, flags in (("races looked for", 1), ("races, with stacks", 9)):
        value = add_with(flags)
        more = value - reference
        figures.append(Figure(f"{title}: a + b of 16", value, reference, "not looked for", more, "ns", 1000))
    return figures


def collective_figures() -> list[Figure]:
    """Collectives between two processes, over gloo, against the CPU's; and one beside products against one before them."""
    took = {name: 1e9 * each for name, each in collectives.with_a_peer().items()}

    def over_cpu(name: str) -> Figure:
        value, reference = took[name], took[f"{name} on the CPU"]
        aim = 1.2 if collectives.is_short(name) else 1.1
        return quotient(f"{name}, 2 processes", value, reference, "CPU, gloo", aim)

    def overlap(title: str, where: str) -> Figure:
        return speed(title, took[f"at once{where}"], took[f"in turns{where}"], "one after the other", 1.5)

    return [
        *(over_cpu(f"{name}, {size}") for name in collectives.NAMES for size in collectives.SIZES),
        overlap("all_reduce, 64 MiB, beside products in one process", ", in one"),
        overlap("all_reduce, 64 MiB, beside products in both", ""),
    ]


def capture(work: Callable[[], object], stream: torch.openreg.Stream | None = None) -> torch.openreg.OpenRegGraph:
    """A graph of the work, whose first two calls were made."""
    graph = torch.openreg.OpenRegGraph()
    with torch.openreg.graph(graph, stream=stream):
        work()
    return graph


def graphed(work: Callable[[], object]) -> torch.openreg.OpenRegGraph:
    """A graph of the work, captured after two calls of it."""
    stream = torch.openreg.Stream()
    with torch.openreg.stream(stream):
        for _ in range(2):
            work()
    return capture(work, stream)


FIRST_CAPTURE = f"""
import time
import torch
torch.ones(4, device={DEVICE!r}).add_(1)
start = time.perf_counter_ns()
with torch.openreg.graph(torch.openreg.OpenRegGraph()):
    pass
print(time.perf_counter_ns() - start)
"""


def first_capture_of_a_process() -> Figure:
    """What a process pays once for graphs: the part is loaded and registers itself with PyTorch."""
    took = [
        float(subprocess.run([sys.executable, "-c", FIRST_CAPTURE], capture_output=True, check=True, text=True).stdout)
        for _ in range(5)
    ]
    return within("graph: a process's first capture, of nothing", min(took), 0, "", "ms", 10)


def memory_of_a_step(make: Callable[[], nn.Module], inputs: torch.Tensor) -> tuple[int, int, int]:
    """Bytes beside the model: of a graph of a step with what a replay takes for a while, of a capture, of an eager step."""

    def peak(work: Callable[[], object]) -> int:
        torch.openreg.synchronize()
        torch.openreg.reset_peak_memory_stats()
        work()
        torch.openreg.synchronize()
        return torch.openreg.max_memory_allocated()

    step = training_step(make, inputs, DEVICE)
    model = torch.openreg.memory_allocated()
    step()
    eager = peak(step) - model
    graphs: list[torch.openreg.OpenRegGraph] = []
    captured = peak(lambda: graphs.append(capture(step))) - model
    return peak(graphs[0].replay) - model, captured, eager


def graph_figures() -> list[Figure]:
    """Replays of captured graphs against the same work of the CPU, and captures against the work itself."""

    def adds(tensor: torch.Tensor) -> None:
        for _ in range(100):
            tensor.add_(1)

    ours, theirs = torch.zeros(16, device=DEVICE), torch.zeros(16)
    empty = graphed(lambda: None)
    value = min(time_once(empty.replay, 2000) for _ in range(15))
    figures = [
        ratio("graph: 100 add_ of 16", graphed(lambda: adds(ours)).replay, lambda: adds(theirs), "CPU", 0.7),
        within("graph: replay of nothing", value, 0, "", "us", 1),
        first_capture_of_a_process(),
    ]
    kinds: list[tuple[str, Callable[[], nn.Module], Callable[[int], torch.Tensor], int, float]] = [
        ("MLP's step, batch 32", mlp, lambda batch: torch.randn(batch, 784), 32, 0.8),
        ("GPT's step", functools.partial(Gpt, 128), lambda batch: torch.randint(0, 256, (batch, 64)), 4, 1.0),
    ]
    for title, make, inputs_of, batch, aim in kinds:
        inputs = inputs_of(batch)
        step = training_step(make, inputs, DEVICE)
        others = [training_step(make, inputs_of(batch + other), DEVICE) for other in range(1, 8)]
        for each in others:
            each()
            each()
        first = min(time_once(functools.partial(capture, each), 1) for each in others)
        graph = graphed(step)
        figures.append(ratio(f"graph: {title}", graph.replay, training_step(make, inputs, "cpu"), "CPU", aim))
        again = ratio(f"graph: capture of {title}", functools.partial(capture, step), step, "the step", 3.0)
        figures += [quotient(f"graph: first capture of {title}", first, again.reference, "the step", 3.0), again]
        taken, at_capture, eager = memory_of_a_step(make, inputs)
        figures.append(quotient(f"graph: memory of {title}", taken, eager, "eager", 1.0, "bytes"))
        figures.append(quotient(f"graph: memory of a capture of {title}", at_capture, eager, "eager", 2.0, "bytes"))
    torch.manual_seed(0)
    decoder, replay = Decoder(), graphed(Decoder().to(DEVICE)).replay
    figures.append(ratio("graph: a token with a static cache", replay, decoder, "CPU", 0.8))
    return figures


@contextmanager
def recording() -> Iterator[None]:
    """The flight recorder is on, as with OPENREG_FLIGHT_RECORDER=4096."""
    torch.openreg.record_flight(4096)
    yield
    torch.openreg.record_flight(0)


def laboratory_figures() -> list[Figure]:
    """The demo's step with the lab's instruments, against the step without. openreg:0 has no seed, openreg:1 has."""
    inputs, title = torch.randn(64, 1, 8, 8), "demo's step, batch 64"
    step = training_step(digits, inputs, DEVICE)
    plan = "error at op 1000000000; nomem at 1000000000; copy slow 10x at 1000000000"
    figures = []
    for name, instrument, aim in (
        ("flight recorder on", recording, 1.02),
        ("faults that don't hit", lambda: torch.openreg.faults(plan), 1.05),
    ):
        value, reference = time_with_and_without(step, instrument)
        figures.append(quotient(f"{name}: {title}", value, reference, "off", aim))
    seeded = training_step(digits, inputs, "openreg:1")
    return [*figures, ratio(f"work in a seed's order: {title}", seeded, step, "no seed", 1.2)]


GROUPS: dict[str, tuple[Callable[[], list[Figure]], dict[str, str]]] = {
    "staged": (staged_figures, {"OPENREG_OPERATORS": "staged"}),
    "compiled": (compiled_figures, {}),
    "races": (race_figures, {}),
    "collectives": (collective_figures, {}),
    "graphs": (graph_figures, {}),
    "laboratory": (
        laboratory_figures,
        # A mock's devices are simulated ones with options of their own.
        {"OPENREG_DRIVERS": "sim,cuda", "OPENREG_SIM_DEVICES": "1"}
        | {"OPENREG_USE_MOCK_GPU": "cuda", "OPENREG_CUDA_SEED": "0"},
    ),
    "lists": (list_figures, {"OPENREG_SIM_MEMORY": "16G"}),
}
"""Figures that need a process of their own, and its variables."""


def figures_of_group(name: str, threads: int) -> list[Figure]:
    """Runs a group in a process of its own; a failure is printed, and its figures are missing."""
    command = [sys.executable, __file__, "--group", name, "--threads", str(threads)]
    done = subprocess.run(command, env=os.environ | GROUPS[name][1], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        print(f"bench: the figures of '{name}' are missing: status {done.returncode}", file=sys.stderr)
        return []
    return [Figure(**fields) for fields in json.loads(done.stdout.splitlines()[-1])]


def overlap_figure(rounds: int = 15) -> Figure:
    """A copy from pinned memory on one stream and products on another: both at once, against one after the other."""
    side = torch.openreg.Stream(DEVICE)
    source = torch.ones(32 * MIB).pin_memory()
    sink = torch.empty_like(source, device=DEVICE)
    factor = torch.randn(256, 256, device=DEVICE)

    def queue_copy() -> None:
        with torch.openreg.stream(side):
            sink.copy_(source, non_blocking=True)

    def compute(products: int) -> None:
        for _ in range(products):
            torch.mm(factor, factor)
        torch.openreg.current_stream(DEVICE).synchronize()

    def copy() -> None:
        queue_copy()
        side.synchronize()

    compute(10)
    copy()
    # As many products as take the time of the copy: then twice the speed is what could be had at most.
    products = max(
        1,
        round(min(time_once(copy, 3) for _ in range(5)) / min(time_once(lambda: compute(5), 3) / 5 for _ in range(5))),
    )

    def both() -> None:
        queue_copy()
        compute(products)
        side.synchronize()

    def in_turn() -> None:
        copy()
        compute(products)

    value, reference = time_pair(both, in_turn, rounds)
    return speed("copy of 128 MiB beside products", value, reference, "in turn", 1.6)


def loader_figure(rounds: int = 7) -> Figure:
    """An epoch of training from a DataLoader with a worker, with pinned batches, against the CPU's without."""
    images, labels = torch.randn(256, 3, 32, 32), torch.randint(0, 10, (256,))
    dataset = torch.utils.data.TensorDataset(images, labels)

    def epoch(device: str) -> Callable[[], object]:
        on_device = device != "cpu"
        model = small_resnet().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        loader = torch.utils.data.DataLoader(
            dataset, batch_size=32, num_workers=1, persistent_workers=True, pin_memory=on_device
        )

        def run() -> None:
            for image, label in loader:
                image, label = (x.to(device, non_blocking=on_device) for x in (image, label))
                optimizer.zero_grad()
                F.cross_entropy(model(image), label).backward()
                optimizer.step()
            if on_device:
                torch.openreg.synchronize(device)

        return run

    value, reference = time_pair(epoch(DEVICE), epoch("cpu"), rounds)
    return speed("epoch from a DataLoader, pinned", value, reference, "CPU, not pinned", 0.98)


def import_figure(runs: int = 7) -> Figure:
    """Time of `import torch_openreg` after `import torch`."""
    code = (
        "import time; a = time.perf_counter_ns(); import torch; b = time.perf_counter_ns();"
        "import torch_openreg; print(b - a, time.perf_counter_ns() - b)"
    )
    environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    times = []
    for _ in range(runs):
        printed = subprocess.run(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, check=True, env=environment
        ).stdout
        times.append([int(word) for word in printed.split()])
    value = statistics.median(pair[1] for pair in times)
    reference = statistics.median(pair[0] for pair in times)
    return within("import torch_openreg", value, reference, "import torch", "ms", 60.0)


def human(value: float, measure: str = "nanoseconds") -> str:
    """A quantity with its unit."""
    if measure == "objects":
        return f"{value:g}"
    if measure == "bytes":
        return f"{value / MIB:.4g} MiB"
    for limit, unit in ((1e3, "ns"), (1e6, "us"), (1e9, "ms")):
        if value < limit:
            return f"{value / (limit / 1e3):.4g} {unit}"
    return f"{value / 1e9:.4g} s"


def main() -> None:
    """Runs everything and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--programs", type=Path, help="folder of the C programs; without it their figures are left out")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch's CPU kernels (default 1)")
    parser.add_argument("--group", choices=list(GROUPS), help="prints these figures alone, as JSON")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    if options.group:
        print(json.dumps([asdict(figure) for figure in GROUPS[options.group][0]()]))
        return
    figures: list[Figure] = []
    if options.programs:
        figures += c_figures(options.programs) + replay_figures(options.programs) + growth_figures(options.programs)
    figures += operator_figures()
    figures += wrapper_figures()
    figures += copy_figures()
    figures += training_figures()
    figures += profiler_figures()
    for group in GROUPS:
        figures += figures_of_group(group, options.threads)
    figures += [overlap_figure(), loader_figure()]
    figures.append(import_figure())

    print(f"torch {torch.__version__}, {platform.machine()}, {os.cpu_count()} cores, {options.threads} thread(s)\n")
    print(f"| {'figure':<44} | {'openreg':>9} | {'reference':>28} | {'result':>15} | {'aim':>9} |    |")
    print(f"|{'-' * 46}|{'-' * 11}|{'-' * 30}|{'-' * 17}|{'-' * 11}|----|")
    for figure in figures:
        quantity = f" {human(figure.reference, figure.measure)}" if figure.reference else ""
        reference = f"{figure.reference_name}{quantity}"
        result = f"{figure.score:.2f} {figure.unit}"
        aim = f"{'>=' if figure.at_least else '<='} {figure.aim:g}"
        mark = "ok" if figure.met else "--"
        value = human(figure.value, figure.measure)
        print(f"| {figure.name:<44} | {value:>9} | {reference:>28} | {result:>15} | {aim:>9} | {mark} |")
    missed = sum(not figure.met for figure in figures)
    print(f"\n{len(figures) - missed} of {len(figures)} figures reach their aim")

    if options.json:
        lines = [asdict(figure) | {"met": figure.met} for figure in figures]
        options.json.write_text(json.dumps({"torch": torch.__version__, "figures": lines}, indent=1) + "\n")


if __name__ == "__main__":
    main()
