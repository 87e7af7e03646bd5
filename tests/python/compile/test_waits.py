# SPDX-License-Identifier: BSD-3-Clause
"""Waits in compiled functions come behind the kernels before them, which Inductor fuses and writes late."""

from __future__ import annotations

import os
import re
import sys
import zipfile
from pathlib import Path

import pytest
import torch
import torch._inductor
import torch._inductor.config
from finished import Program
from torch._inductor.utils import run_and_get_code

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")


def with_waits(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor, e: torch.Tensor
) -> list[torch.Tensor]:
    """Fused work of each argument, and behind it one kind of wait."""
    here = torch.openreg.current_stream()
    side, event = torch.openreg.Stream(), torch.openreg.Event()
    results = [(a * 2 + 1).sin()]
    torch.openreg.synchronize()
    results.append((b * 2 + 1).sin())
    torch.accelerator.synchronize()
    results.append((c * 2 + 1).sin())
    here.synchronize()
    results.append((d * 2 + 1).sin())
    event.record()
    results.append((e * 2 + 1).sin())
    side.wait_stream(here)
    return results


WAITS = ["synchronize_device", "synchronize_device", "synchronize_stream", "record_event", "wait_stream"]


def check_order(code: str, waits: list[str]) -> None:
    """In a graph's code each wait comes behind the kernel that reads the argument of the same number."""
    lines = [line for line in code.splitlines() if not line.lstrip().startswith(("#", "//"))]
    of_kernels = [i for i, line in enumerate(lines) if re.search(r"cpp_fused\w+(\(\(|, )", line)]
    calls = re.compile(r'torch\.ops\.streams\.(\w+)\.default\(|"streams::(\w+)"')
    found = [(i, match) for i, line in enumerate(lines) if (match := calls.search(line))]
    assert [match[1] or match[2] for _, match in found] == waits
    for number, (place, _) in enumerate(found):
        reads = re.compile(rf"\b(arg{number}_1|primals_{number + 1})\b")
        assert any(reads.search(lines[i]) for i in of_kernels if i < place), (number, code)


def check_compiled(training: bool) -> None:
    torch.manual_seed(0)
    host = [torch.randn(4, 5 + i, requires_grad=training) for i in range(len(WAITS))]
    there = [x.detach().to("openreg:1").requires_grad_(training) for x in host]
    with torch.openreg.device(1):
        results, code = run_and_get_code(torch.compile(with_waits, fullgraph=True), *there)
    check_order(next(text for text in code if "wait_stream" in text), WAITS)
    expected = [(x * 2 + 1).sin() for x in host]
    torch.testing.assert_close([t.cpu() for t in results], expected)
    if training:
        sum(t.cpu().sum() for t in results).backward()
        sum(t.sum() for t in expected).backward()
        torch.testing.assert_close([x.grad.cpu() for x in there], [x.grad for x in host])


# the device's, a stream's, an event's and another stream's, where the arguments die with the kernel and where they are saved
@pytest.mark.parametrize("training", [False, True])
def test_waits_come_behind_kernels(training: bool) -> None:
    check_compiled(training)


# the same in C++
@pytest.mark.long
@pytest.mark.parametrize("training", [False, True])
def test_waits_come_behind_kernels_in_cpp(python: Program, training: bool) -> None:
    program = f"""
import torch._inductor.config
from test_waits import check_compiled
torch._inductor.config.cpp_wrapper = True
check_compiled({training})
"""
    python(program, timeout=400, PYTHONPATH=os.pathsep.join(sys.path))


class Waits(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (x * 2 + 1).sin()
        torch.openreg.synchronize(0)
        return y.cos()


# the same in a package
@pytest.mark.long
def test_waits_come_behind_kernels_in_packages(python: Program, tmp_path: Path) -> None:
    path = tmp_path / "waits.pt2"
    x = torch.randn(4, 5)
    exported = torch.export.export(Waits(), (x.to("openreg:0"),), strict=True)
    torch._inductor.aoti_compile_and_package(exported, package_path=str(path))
    with zipfile.ZipFile(path) as package:
        code = next(package.read(name).decode() for name in package.namelist() if name.endswith(".wrapper.cpp"))
    body = code[code.index("::run_impl(") :]
    assert 0 < body.index("cpp_fused") < body.index("proxy_executor_call_function(")
    program = f"""
import torch, torch._inductor
x = torch.ones(4, 5, device="openreg:0")
torch.testing.assert_close(torch._inductor.aoti_load_package({str(path)!r})(x), (x * 2 + 1).sin().cos())
"""
    python(program, timeout=400)


# work of the host too, in a graph without a kernel of the device
def test_waits_come_behind_work_of_the_host() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = (x.cpu() * 2 + 1).sin()
        torch.openreg.synchronize()
        return y.cos()

    x = torch.ones(3)
    got = torch.compile(function, fullgraph=True)(x.to("openreg"))
    torch.testing.assert_close(got, (x * 2 + 1).sin().cos())


# a kernel runs on the stream under which the program has called its operators
def test_kernels_stay_on_their_streams() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        side = torch.openreg.Stream()
        y = (x * 2 + 1).sin()
        side.wait_stream(torch.openreg.current_stream())
        with torch.openreg.stream(side):
            z = y.cos() * 3
        return y, z

    x = torch.ones(3)
    got, code = run_and_get_code(torch.compile(function, fullgraph=True), x.to("openreg"))
    torch.openreg.synchronize()
    torch.testing.assert_close([t.cpu() for t in got], list(function(x)))
    assert re.findall(r"with (\w*stream\w*):|(run_kernel)\(", code[0]) == [
        ("default_stream", ""),
        ("", "run_kernel"),
        ("stream1", ""),
        ("", "run_kernel"),
    ]


# C++ is written for one stream: a function that changes streams is refused with the way out
def test_streams_are_refused_in_cpp() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.openreg.stream(torch.openreg.Stream()):
            return x * 2

    with (
        torch._inductor.config.patch(cpp_wrapper=True),
        pytest.raises(Exception, match="another stream .*Turn torch._inductor.config.cpp_wrapper off"),
    ):
        torch.compile(function, fullgraph=True)(torch.ones(3, device="openreg"))
