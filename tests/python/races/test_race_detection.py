# SPDX-License-Identifier: BSD-3-Clause
"""torch.openreg's race detector: what a report says, what is allowed, modes, and what operators tell of their tensors."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from torch_openreg import _C

DEVICE = "openreg"
PythonRunner = Callable[..., "subprocess.CompletedProcess[str]"]
_KEPT: list[torch.Tensor] = []


@pytest.fixture(autouse=True)
def _forgets() -> Iterator[None]:
    torch.openreg.synchronize()
    yield
    torch.openreg.synchronize()
    torch.openreg.clear_races()
    _KEPT.clear()


def _race(after: Callable[[torch.Tensor], object] = torch.Tensor.clone) -> None:
    """Writes a tensor on the current stream, and uses it on another. It stays, so that nobody gets its memory."""
    a = torch.zeros(64, device=DEVICE)
    _KEPT.append(a)
    with torch.openreg.stream(torch.openreg.Stream()):
        after(a)


# A report has both uses with their lines, operators and streams, the bytes and the remedy.
def test_report() -> None:
    side = torch.openreg.Stream()
    a = torch.empty(64, device=DEVICE)
    with torch.openreg.detect_races() as found:
        a[16:].fill_(1)
        with torch.openreg.stream(side):
            a[8:32].mul_(2)
    (race,) = found
    assert race.kind == "write-write"
    assert (race.first.operator, race.second.operator) == ("aten::fill_", "aten::mul_")
    assert (race.size, race.offset) == (64, 64)
    assert race.address == a.data_ptr() + 64
    assert race.first.device == torch.device("openreg:0")
    assert (race.first.stream, race.second.stream) == (0, side.stream_id)
    assert race.first.writes
    assert race.second.writes
    here = Path(__file__).name
    assert f"{here}:" in race.first.place
    assert race.first.place.endswith("in test_report")
    assert race.first.place != race.second.place
    assert "wait_stream" in race.remedy
    assert str(race) == race.text
    for part in (race.first.place, race.second.place, race.remedy):
        assert part in race.text


# A report of reuse says which line let the last reference go, in its text, too; others say nothing of the kind.
def test_reuse_names_the_line_that_freed() -> None:
    side = torch.openreg.Stream()

    def drop(tensors: list[torch.Tensor]) -> None:
        tensors.clear()

    with torch.openreg.detect_races() as found:
        a = torch.ones(5000, device=DEVICE)
        address = a.data_ptr()
        side.wait_stream(torch.openreg.current_stream())
        with torch.openreg.stream(side):
            _KEPT.append(a * 2)
        tensors = [a]
        del a
        drop(tensors)
        b = torch.zeros(5000, device=DEVICE)
        assert b.data_ptr() == address
        _race()
    reuse, other = found
    assert (reuse.kind, other.kind, other.freed) == ("reuse", "read-write", "")
    assert reuse.freed == f"{Path(__file__).name}:{drop.__code__.co_firstlineno + 1} in drop"
    assert f"\n  freed at {reuse.freed}\n" in reuse.text
    assert "freed at" not in other.text


# With stacks each use has all of Python's, the innermost line first, and so have the text and the exception; a line that is
# reached in two ways has two. Without, there are none.
def test_stacks() -> None:
    side = torch.openreg.Stream()
    a = torch.zeros(64, device=DEVICE)

    def write() -> None:
        a.fill_(1)

    def outer() -> None:
        write()

    def race() -> None:
        with torch.openreg.stream(side):
            a.clone()
        torch.openreg.synchronize()

    torch.openreg.synchronize()
    with torch.openreg.detect_races(stacks=True) as found:
        for first in (write, outer):
            first()
            race()
    assert len(found) == 2
    short, deep = (race.first.stack for race in found)
    assert [line.rpartition(" in ")[2] for line in short[:2]] == ["write", "test_stacks"]
    assert [line.rpartition(" in ")[2] for line in deep[:3]] == ["write", "outer", "test_stacks"]
    assert short[0] == deep[0] == found[0].first.place == found[1].first.place
    assert short[3:] == deep[4:]
    assert len(short) > 10  # pytest's own lines
    for line in (*deep, *found[1].second.stack):
        assert f"    {line}\n" in found[1].text
    assert found[1].second.stack[0].endswith(" in race")

    torch.openreg.clear_races()
    with pytest.raises(torch.openreg.RaceError) as raised:
        with torch.openreg.detect_races(raises=True, stacks=True):
            outer()
            race()
    assert "stack of the first use:\n" in str(raised.value)
    assert all(f"    {line}\n" in str(raised.value) for line in deep[:2])
    with torch.openreg.detect_races() as found:
        outer()
        race()
    assert (found[0].first.stack, found[0].second.stack) == ((), ())
    assert "stack of" not in found[0].text


# In mode "raise" the second operator doesn't run, and the error is a RuntimeError with the report as its text.
def test_raise() -> None:
    a = torch.zeros(64, device=DEVICE)
    with pytest.raises(torch.openreg.RaceError, match=r"race: nothing orders two writes: 256 bytes") as raised:
        with torch.openreg.detect_races(raises=True):
            a.fill_(1)
            with torch.openreg.stream(torch.openreg.Stream()):
                a.fill_(2)
    assert isinstance(raised.value, RuntimeError)
    assert a.tolist() == [1.0] * 64


# A race in a thread of autograd raises where backward() was called.
def test_raise_in_backward() -> None:
    x = torch.ones(64, device=DEVICE, requires_grad=True)
    y = x * 2
    with pytest.raises(torch.openreg.RaceError):
        with torch.openreg.detect_races(raises=True):
            with torch.openreg.stream(torch.openreg.Stream()):
                start = torch.ones(64, device=DEVICE)
            y.backward(start)


# A line whose comment gives a reason is part of no race; a comment without one allows nothing. With stacks, too.
@pytest.mark.parametrize("stacks", [False, True])
def test_comment_allows_a_line(stacks: bool) -> None:
    a = torch.zeros(64, device=DEVICE)
    with torch.openreg.detect_races(stacks=stacks) as found:
        a.fill_(1)  # openreg: race-ok the reader takes either value
        with torch.openreg.stream(torch.openreg.Stream()):
            a.clone()
    assert found == []
    with torch.openreg.detect_races(stacks=stacks) as found:
        a.fill_(1)  # openreg: race-ok
        with torch.openreg.stream(torch.openreg.Stream()):
            a.clone()
    assert len(found) == 1


# What runs inside of allow_races() is part of no race, before or behind it.
def test_allow_races() -> None:
    a = torch.zeros(64, device=DEVICE)
    with torch.openreg.detect_races() as found:
        with torch.openreg.allow_races("the reader takes either value"):
            a.fill_(1)
        with torch.openreg.stream(torch.openreg.Stream()):
            a.clone()
    assert found == []
    with pytest.raises(ValueError, match="needs a reason"), torch.openreg.allow_races(" "):
        pass


# Detection goes off with its block, also by an exception, and nests.
def test_detection_ends_with_its_block() -> None:
    before = _C._races_flags()
    with pytest.raises(KeyError), torch.openreg.detect_races():
        raise KeyError
    assert _C._races_flags() == before
    with torch.openreg.detect_races() as outer:
        _race()
        with torch.openreg.detect_races() as inner:
            _race(torch.Tensor.sum)
        _race(torch.Tensor.neg)
    assert len(inner) == 1
    assert len(outer) == 3


# Memory that nothing has written is told of where that is asked for: operators' results, copies and fills write it.
def test_uninitialized() -> None:
    def use() -> None:
        a = torch.empty(64, device=DEVICE)
        a[:32].fill_(1)
        a[:32].clone()
        torch.ones(8, device=DEVICE).tolist()
        torch.ones(8).to(DEVICE).sum()
        torch.cat([a[:4], a[4:8]]).sum()
        a.clone()

    with torch.openreg.detect_races() as found:
        use()
    assert found == []
    with torch.openreg.detect_races(uninitialized=True) as found:
        use()
    (race,) = found
    assert race.kind == "uninitialized"
    assert race.second.operator == "aten::copy_"
    assert race.offset == 128


_SYNCHRONIZING: dict[str, Callable[[torch.Tensor], object]] = {
    "item": lambda a: a[0].item(),
    "cpu": lambda a: a.cpu(),
    "tolist": lambda a: a.tolist(),
    "nonzero": lambda a: a.nonzero(),
    "masked_select": lambda a: a.masked_select(a > 0),
    "index with a mask": lambda a: a[a > 0],
    "equal": lambda a: torch.equal(a, a),
    "synchronize": lambda a: torch.openreg.synchronize(),
}


# A program that goes on with the streams and events of a lost device gets the device's own errors, in mode raise, too, and
# a report that says where it was lost.
@pytest.mark.fresh  # the line is in no file, and that of the interpreter that forks is
def test_lost_device(python: PythonRunner) -> None:
    code = """
        import contextlib, torch, torch_openreg
        side = torch.openreg.Stream("openreg:1")
        x = torch.ones(64, device="openreg:1")
        event = side.record_event()
        with torch.openreg.faults("openreg:1 lost at copy 1"):
            with contextlib.suppress(RuntimeError):
                x.cpu()
            print(len(torch.openreg.races()))
            with contextlib.suppress(RuntimeError):
                torch.openreg.current_stream("openreg:0").wait_event(event)
            try:
                side.synchronize()
            except RuntimeError as error:
                print(type(error).__name__, "was lost in an earlier call" in str(error))
            del x, event
        for race in torch.openreg.races():
            print(race.kind, race.first.operator, race.second.operator, race.first.device, race.size)
        print(race.text)
    """
    done = python(code, OPENREG_SIM_RACES="raise", OPENREG_DEVICES="2")
    lines = done.stdout.splitlines()
    assert lines.pop(6).startswith("  use: openreg_stream_synchronize is called on stream 0x20021 of openreg:1, at ")
    assert lines == [
        "0",
        "RuntimeError True",
        "lost-device openreg_memcpy openreg_stream_wait_event openreg:1 0",
        "lost-device openreg_memcpy openreg_stream_synchronize openreg:1 0",
        "race: a stream or event is used of a device that was lost",
        "  lost: openreg_memcpy is called on openreg:1, at <string>:8 in <module>",
        "  remedy: after the error that reports the loss go on with another device, or select drivers again",
    ]


# What the host learns of results orders it behind the stream, as on a GPU.
@pytest.mark.parametrize("name", _SYNCHRONIZING)
def test_operators_that_wait(name: str) -> None:
    a = torch.ones(64, device=DEVICE)
    with torch.openreg.detect_races() as found:
        a.fill_(3)
        _SYNCHRONIZING[name](a)
        with torch.openreg.stream(torch.openreg.Stream()):
            a.fill_(4)
    assert found == []


_ASYNCHRONOUS: dict[str, Callable[[torch.Tensor], object]] = {
    "add": lambda a: a + 1,
    "copy on the device": lambda a: torch.empty_like(a).copy_(a),
    "index by positions": lambda a: a[torch.zeros(2, dtype=torch.int64, device=DEVICE)],
    "cat": lambda a: torch.cat([a, a]),
    "stack": lambda a: torch.stack([a, a]),
    "copy to pinned": lambda a: torch.empty(64, pin_memory=True).copy_(a, non_blocking=True),
    "matmul": lambda a: a.view(8, 8) @ a.view(8, 8),
    "foreach": lambda a: torch._foreach_add([a, a], 1.0),
    "linear": lambda a: torch.nn.functional.linear(a.view(8, 8), a.view(8, 8)),
    "conv2d": lambda a: torch.nn.functional.conv2d(a.view(1, 1, 8, 8), a[:4].view(1, 1, 2, 2)),
    "lstm": lambda a: torch.nn.LSTM(8, 8, device=DEVICE)(a.view(8, 8)),
    "sort": lambda a: a.sort(),
    "sparse": lambda a: torch.sparse_coo_tensor(torch.zeros(1, 64, dtype=torch.int64, device=DEVICE), a, (1,)) * 2,
}


# Every operator's tensors are noted, whichever way it takes, and none that works on the device orders the host.
@pytest.mark.parametrize("name", _ASYNCHRONOUS)
def test_operators_that_do_not_wait(name: str) -> None:
    a = torch.ones(64, device=DEVICE)
    torch.openreg.synchronize()
    with torch.openreg.detect_races() as found:
        _ASYNCHRONOUS[name](a)
        with torch.openreg.stream(torch.openreg.Stream()):
            a.fill_(4)
    assert {race.kind for race in found} == {"read-write"}
    assert found[0].second.operator == "aten::fill_"


# The same where operators work on copies in host memory, and on kernels of a driver: detection is the device's.
def test_staged(python: PythonRunner) -> None:
    code = """
        import torch, torch_openreg
        a = torch.zeros(64, device="openreg")
        with torch.openreg.stream(torch.openreg.Stream()):
            a.mul_(2)
        races = torch.openreg.races()
        print([(race.kind, race.first.operator, race.second.operator) for race in races])
        torch.openreg.synchronize()
        with torch.openreg.stream(torch.openreg.Stream()):
            (a * 2 + 1).sum().item()
        print(len(torch.openreg.races()))
    """
    done = python(code, OPENREG_OPERATORS="staged", OPENREG_SIM_RACES="report")
    first, second = done.stdout.splitlines()
    assert first.startswith("[('write-write',")
    assert first.endswith("'aten::mul_')]")
    assert second == "1"
    assert "race: nothing orders two writes" in done.stderr


# OPENREG_SIM_RACES=raise stops a program; a value that isn't known is told of.
def test_variable(python: PythonRunner) -> None:
    code = """
        import torch, torch_openreg
        a = torch.zeros(64, device="openreg")
        with torch.openreg.stream(torch.openreg.Stream()):
            a.mul_(2)
    """
    assert "RaceError: race: nothing orders two writes" in python(code, status=1, OPENREG_SIM_RACES="raise").stderr
    assert "race" not in python(code, OPENREG_SIM_RACES=None).stderr
    assert "invalid value maybe in env var OPENREG_SIM_RACES" in python(code, OPENREG_SIM_RACES="maybe").stderr


# A race of the host can't be stopped: the next wait raises it, and a program that ends before that ends with status 1.
@pytest.mark.parametrize(
    ("end", "status", "says"),
    [
        ("", 1, "ended with a race"),
        ("raise SystemExit(3)", 3, "race: the host"),
        ("torch.openreg.synchronize()", 1, "RaceError: race: the host"),
        ("torch.accelerator.synchronize()", 1, "RaceError: race: the host"),
        ("torch.openreg.current_stream().synchronize()", 1, "RaceError: race: the host"),
        ("torch.openreg.current_stream().record_event().synchronize()", 1, "RaceError: race: the host"),
        ("import os\nif os.fork() != 0: print(os.wait()[1]); os._exit(0)", 0, "race: the host"),
    ],
)
def test_race_of_the_host_at_the_end(python: PythonRunner, end: str, status: int, says: str) -> None:
    code = (
        "import torch\nx = torch.zeros(1 << 20, pin_memory=True)\ny = x.to('openreg', non_blocking=True)\nx.add_(1)\n"
    )
    done = python(code + end, status=status, OPENREG_SIM_RACES="raise")
    assert says in done.stderr
    assert done.stdout in ("", "0\n")
    assert python(code, OPENREG_SIM_RACES="report").stdout == ""


# Collectives that are waited for are in order, by wait() or by the future; those that aren't are not, though gloo's may be
# done already.
@pytest.mark.parametrize(
    ("waits", "expected"), [("work.wait()", []), ("future.wait()", []), ("time.sleep(1)", ["write-write"])]
)
def test_collectives(python: PythonRunner, tmp_path: Path, waits: str, expected: list[str]) -> None:
    code = f"""
        import time, torch, torch_openreg
        import torch.distributed as dist
        dist.init_process_group("gloo", init_method="file://{tmp_path / "store"}", rank=0, world_size=1)
        gradient = torch.ones(64, device="openreg")
        work = dist.all_reduce(gradient, async_op=True)
        future = work.get_future()
        {waits}
        gradient.mul_(0.5)
        print([race.kind for race in torch.openreg.races()])
        work.wait()
        dist.destroy_process_group()
    """
    assert python(code, OPENREG_SIM_RACES="report").stdout.strip() == str(expected)


# The memory of a collective is kept until it is done: who drops the Work and the tensor has no race with the next owner.
@pytest.mark.parametrize("first", ["work", "gradient"])
def test_dropped_collectives(python: PythonRunner, tmp_path: Path, first: str) -> None:
    code = f"""
        import time, torch, torch_openreg
        import torch.distributed as dist
        dist.init_process_group("gloo", init_method="file://{tmp_path / "store"}", rank=0, world_size=1)
        for _ in range(20):
            gradient = torch.ones(64, device="openreg")
            address = gradient.data_ptr()
            work = dist.all_reduce(gradient, async_op=True)
            {first} = None
            work = gradient = None
            deadline = time.monotonic() + 20
            others = []
            while address not in [other.data_ptr() for other in others]:  # until the collective is done it gets other blocks
                assert time.monotonic() < deadline
                others.append(torch.zeros(64, device="openreg"))
        print([race.kind for race in torch.openreg.races()])
        dist.destroy_process_group()
    """
    assert python(code, OPENREG_SIM_RACES="report").stdout.strip() == "[]"


# Threads of a program that hand tensors over and wait as they should are in no report.
def test_threads_with_waits() -> None:
    results: list[torch.Tensor] = []
    with torch.openreg.detect_races(raises=True) as found:
        stream = torch.openreg.Stream()

        def work() -> None:
            with torch.openreg.stream(stream):
                for number in range(50):
                    results.append(torch.full((64,), float(number), device=DEVICE) * 2)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        torch.openreg.current_stream().wait_stream(stream)
        for result in results:
            result.record_stream(torch.openreg.current_stream())
        assert sum(result.sum() for result in results).item() == 64 * 50 * 49
        results.clear()
    assert found == []


# A training step has no race, in any of the ways in which autograd and optimizers use streams.
@pytest.mark.parametrize("side", [False, True])
def test_training_has_none(side: bool) -> None:
    with torch.openreg.detect_races(raises=True) as found:
        stream = torch.openreg.Stream()
        model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)).to(DEVICE)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            x = torch.randn(8, 16).to(DEVICE)
            if side:
                stream.wait_stream(torch.openreg.current_stream())
            with torch.openreg.stream(stream if side else torch.openreg.current_stream()):
                loss = model(x).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            if side:
                torch.openreg.current_stream().wait_stream(stream)
                x.record_stream(stream)
    assert found == []


def test_unknown_flags() -> None:
    """An unknown flag is refused, and changes nothing."""
    before = _C._races_flags()
    with pytest.raises(RuntimeError, match="unknown flags"):
        _C._races_set(64)
    assert _C._races_flags() == before
