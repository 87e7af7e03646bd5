# SPDX-License-Identifier: BSD-3-Clause
"""torch.compile with backends that need no code generation, torch.export, torch.fx and TorchScript on the device."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim, export

DEV = "openreg:1"
HERE = torch.device(DEV)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")


class Net(nn.Module):
    """A few layers, a buffer, a tensor made while it runs, and a branch on a shape."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv1d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 2)
        self.register_buffer("scale", torch.tensor([0.5, 2.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.convolution(x)).relu().mean(-1)
        if x.shape[0] > 100:
            hidden = hidden * 2
        return self.head(hidden) * self.scale + torch.arange(2, device=x.device)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def steps(model: nn.Module, forward: Any, device: str) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(3)
    for size in (4, 4, 6):
        x = torch.randn(size, 3, 8, generator=generator).to(device)
        optimizer.zero_grad()
        loss = forward(x).square().mean()
        loss.backward()
        optimizer.step()
    return [loss.detach(), *(value.detach() for value in model.state_dict().values())]


# captured by dynamo, and taken through autograd's own tracing: training equals the plain module's, for changing shapes
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "aot_eager_decomp_partition"])
def test_compiled_training_equals_the_plain_module(backend: str, dynamic: bool | None) -> None:
    plain = Net().to(DEV)
    compiled = copy.deepcopy(plain)
    expected = steps(plain, plain, DEV)
    got = steps(compiled, torch.compile(compiled, backend=backend, dynamic=dynamic, fullgraph=True), DEV)
    for a, b in zip(got, expected, strict=True):
        assert a.device == HERE
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


# results of convolutions in channels last, whose flattening needs a copy
def test_channels_last_in_a_compiled_function() -> None:
    layer = nn.Conv2d(3, 2, 3).to(DEV)
    x = torch.randn(2, 3, 5, 5, device=DEV).to(memory_format=torch.channels_last)

    def function(x: torch.Tensor) -> torch.Tensor:
        return (layer(x).flatten(1) * 2).sum()

    found = []
    for run in (function, torch.compile(function, backend="aot_eager", fullgraph=True)):
        leaf = x.detach().clone().requires_grad_()
        run(leaf).backward()
        found.append(leaf.grad)
    assert torch.equal(found[0], found[1]) and found[0].stride() == found[1].stride()


# what dynamo must know of the device: streams, guards, factories, autocast, random numbers, moves to the host
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_code_that_names_the_device(backend: str) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = torch.ones(2, device="openreg:1") + torch.zeros(2, device=x.device)
        with torch.autocast("openreg", dtype=torch.bfloat16):
            product = x @ x
        dropped = nn.functional.dropout(x, 0.5)
        return made, product, dropped, x.cpu() + 1, x.to("openreg:0") * 2

    x = torch.randn(2, 2, device=DEV)
    torch.manual_seed(4)
    expected = function(x)
    torch.manual_seed(4)
    got = torch.compile(function, backend=backend, fullgraph=True)(x)
    for a, b in zip(got, expected, strict=True):
        assert a.device == b.device and a.dtype == b.dtype
        assert torch.equal(a, b)


# a compiled function is compiled anew for another device, not run with the first one's constants
def test_another_device_is_another_graph() -> None:
    counter = torch._dynamo.testing.CompileCounter()

    def function(x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(2, device=x.device)

    compiled = torch.compile(function, backend=counter)
    for device in ("cpu", "openreg:0", DEV, DEV):
        result = compiled(torch.ones(2, device=device))
        assert result.device == torch.device(device) and result.tolist() == [2.0, 2.0]
    assert counter.frame_count == 3


# questions to the device inside a compiled function break the graph or are answered, but never wrongly
def test_questions_inside_a_compiled_function() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        if torch.openreg.is_available() and x.is_openreg and x.device.type == "openreg":
            return x * torch.openreg.device_count()
        return x

    x = torch.ones(2, device=DEV)
    assert torch.compile(function, backend="eager")(x).tolist() == [2.0, 2.0]

    def on_a_stream(x: torch.Tensor) -> torch.Tensor:
        with torch.openreg.device(1), torch.openreg.stream(torch.openreg.Stream(1)):
            y = x * 3
        torch.openreg.synchronize(1)
        return y + 1

    assert torch.compile(on_a_stream, backend="eager")(x).tolist() == [4.0, 4.0]


# an exported program keeps device, weights and dynamic sizes, is saved and loaded, and runs as the module did
def test_export(tmp_path: Path) -> None:
    model = Net().eval().to(DEV)
    x = torch.randn(4, 3, 8, device=DEV)
    program = export(model, (x,), dynamic_shapes={"x": {0: Dim("batch", min=2, max=64)}})
    assert {t.device for t in program.state_dict.values()} == {HERE}
    torch.export.save(program, tmp_path / "net.pt2")
    loaded = torch.export.load(tmp_path / "net.pt2")
    assert {t.device for t in loaded.state_dict.values()} == {HERE}
    for size in (4, 7):
        x = torch.randn(size, 3, 8, device=DEV)
        for found in (program, loaded):
            assert torch.equal(found.module()(x), model(x))
    lowered = program.run_decompositions()
    torch.testing.assert_close(lowered.module()(x), model(x))
    with pytest.raises(Exception, match="batch|100|guard|size"):
        program.module()(torch.randn(80, 3, 8, device=DEV))


# a program that was exported on the CPU is moved to the device, constants inside included
def test_an_exported_program_moves() -> None:
    from torch.export.passes import move_to_device_pass

    cpu = Net().eval()
    x = torch.randn(4, 3, 8)
    moved = move_to_device_pass(export(cpu, (x,)), DEV)
    assert {t.device for t in moved.state_dict.values()} == {HERE}
    torch.testing.assert_close(moved.module()(x.to(DEV)).cpu(), cpu(x))


# symbolic tracing and scripts: older ways to keep a module, saved and loaded onto another device
def test_fx_and_torchscript(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).to(DEV)
    x = torch.randn(5, 3, device=DEV)
    graph = torch.fx.symbolic_trace(model)
    assert torch.equal(graph(x), model(x))
    torch.fx.passes.shape_prop.ShapeProp(graph).propagate(x)
    for script in (torch.jit.script(model), torch.jit.trace(model, (x,))):
        assert torch.equal(script(x), model(x))
        script.save(str(tmp_path / "script.pt"))
        loaded = torch.jit.load(str(tmp_path / "script.pt"), map_location="openreg:0")
        assert {p.device for p in loaded.parameters()} == {torch.device("openreg:0")}
        assert torch.equal(loaded(x.to("openreg:0")).cpu(), model(x).cpu())


# the derivative inside a compiled function, and recomputation
def test_compiled_derivatives_and_checkpoints() -> None:
    x = torch.randn(3, device=DEV)
    plain = torch.func.grad(lambda t: (t.sin() * t).sum())(x)
    compiled = torch.compile(lambda t: torch.func.grad(lambda u: (u.sin() * u).sum())(t), backend="aot_eager")
    assert torch.equal(compiled(x), plain)

    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh()).to(DEV)

    def run(x: torch.Tensor) -> torch.Tensor:
        return torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).sum()

    leaf = x.clone().requires_grad_()
    torch.compile(run, backend="aot_eager", fullgraph=True)(leaf).backward()
    other = x.clone().requires_grad_()
    run(other).backward()
    torch.testing.assert_close(leaf.grad, other.grad)
