# SPDX-License-Identifier: BSD-3-Clause
"""Tensors that are more than tensors: subclasses, modes, fake and meta tensors of the device."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map, tree_map_only

DEV = "openreg:1"
HERE = torch.device(DEV)


class Named(torch.Tensor):
    """A subclass by __torch_function__ alone: it is kept by operators, and counts them."""

    calls: list[str]

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(function, types, args, kwargs or {})
        Named.calls = [*getattr(Named, "calls", []), function.__name__]
        return result


class Scaled(torch.Tensor):
    """A wrapper subclass: the value is the inner tensor times a factor; operators see plain tensors."""

    inner: torch.Tensor
    factor: float

    @staticmethod
    def __new__(cls, inner: torch.Tensor, factor: float) -> Scaled:
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=inner.device
        )
        made.inner, made.factor = inner, factor
        return made

    def __init__(self, inner: torch.Tensor, factor: float) -> None:
        pass

    def __repr__(self, **_: Any) -> str:
        return f"Scaled({self.inner}, {self.factor})"

    def __tensor_flatten__(self) -> tuple[list[str], float]:
        return ["inner"], self.factor

    @staticmethod
    def __tensor_unflatten__(parts: Any, factor: float, size: Any, stride: Any) -> Scaled:
        return Scaled(parts["inner"], factor)

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (torch.ops.aten._to_copy.default, torch.ops.aten.detach.default, torch.ops.aten.clone.default):
            return Scaled(function(args[0].inner, *args[1:], **kwargs or {}), args[0].factor)
        plain = tree_map_only(Scaled, lambda t: t.inner * t.factor, (args, kwargs or {}))
        return function(*plain[0], **plain[1])


# kept through operators, views, moves, deepcopy and saving
def test_subclasses_by_function(tmp_path: Path) -> None:
    Named.calls = []
    x = torch.arange(4.0).as_subclass(Named)
    there = x.to(DEV)
    assert type(there) is Named and there.device == HERE
    result = (there * 2).reshape(2, 2).t()
    assert type(result) is Named and result.tolist() == [[0.0, 4.0], [2.0, 6.0]]
    assert {"to", "mul", "reshape", "t"} <= set(Named.calls)
    torch.save(there, tmp_path / "saved.pt")
    loaded = torch.load(tmp_path / "saved.pt", weights_only=False)
    assert type(loaded) is Named and loaded.device == HERE and torch.equal(loaded, there)


# a wrapper has the device of what it wraps, moves with it, and computes through it, gradients included
def test_wrapper_subclasses() -> None:
    x = Scaled(torch.ones(2, 3), 2.0)
    there = x.to(DEV)
    assert type(there) is Scaled and there.device == there.inner.device == HERE and there.is_openreg
    assert (there @ torch.ones(3, 1, device=DEV)).tolist() == [[6.0], [6.0]]
    weight = torch.ones(2, 3, device=DEV, requires_grad=True)
    (weight * there).sum().backward()
    assert weight.grad.tolist() == [[2.0] * 3] * 2
    layer = nn.Linear(3, 2)
    layer.weight = nn.Parameter(Scaled(torch.ones(2, 3), 0.5), requires_grad=False)
    layer.to(DEV)
    assert type(layer.weight.data) is Scaled and layer.weight.device == HERE
    assert torch.equal(layer(torch.ones(1, 3, device=DEV)).detach().cpu(), (1.5 + layer.bias.cpu()).detach()[None])


# modes see every function, and every operator down to those that autograd adds
def test_modes() -> None:
    functions: list[Any] = []
    operators: list[str] = []

    class Functions(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            functions.append(function)
            return function(*args, **kwargs or {})

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            operators.append(str(function))
            return function(*args, **kwargs or {})

    x = torch.ones(2, 2, device=DEV, requires_grad=True)
    with Functions(), Operators():
        (x @ x).relu().sum().backward()
    assert torch.Tensor.relu in functions
    assert {"aten.mm.default", "aten.relu.default", "aten.threshold_backward.default"} <= set(operators)
    assert x.grad.device == HERE


# a device without an index is the current one, also for fake tensors; mixed devices are refused
def test_fake_devices() -> None:
    torch.openreg.set_device(1)
    with FakeTensorMode():
        x = torch.empty(2, device="openreg")
        assert x.device == HERE
        assert (x + torch.ones(())).device == HERE
        with pytest.raises(RuntimeError, match="devices|device"):
            x + torch.ones(2)
        module = nn.Linear(2, 2, device="openreg:0")
        assert {p.device for p in module.parameters()} == {torch.device("openreg:0")}


# meta tensors become tensors of the device and back, and operators on them agree in shape and strides
def test_meta_tensors() -> None:
    with torch.device("meta"):
        shell = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    with pytest.raises(NotImplementedError, match="meta"):
        shell.to(DEV)
    made = shell.to_empty(device=DEV)
    assert {t.device for t in made.state_dict().values()} == {HERE}
    x = torch.randn(2, 1, 5, 5, device=DEV)
    described = copy.deepcopy(made).to("meta")(x.to("meta"))
    assert described.shape == made(x).shape


# a convolution's result lies in memory as the real one does, in both directions, or a compiled view would fail
@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("transposed", [False, True])
def test_fake_convolutions_keep_the_memory_format(dimensions: int, transposed: bool) -> None:
    name = f"conv{'_transpose' if transposed else ''}{dimensions}d"
    formats = {2: torch.channels_last, 3: torch.channels_last_3d}
    for memory_format in (torch.contiguous_format, formats.get(dimensions, torch.contiguous_format)):
        x = torch.randn(2, 4, *[6] * dimensions, device=DEV).contiguous(memory_format=memory_format)
        weight = torch.randn(4, 4, *[3] * dimensions, device=DEV)

        def strides(x: torch.Tensor, weight: torch.Tensor) -> list[tuple[int, ...]]:
            x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
            result = getattr(nn.functional, name)(x, weight, stride=2)
            gradients = torch.autograd.grad(result, (x, weight), torch.ones_like(result))
            assert {t.device for t in (result, *gradients)} == {HERE}
            return [t.stride() for t in (result, *gradients)]

        with FakeTensorMode() as mode:
            made = strides(mode.from_tensor(x), mode.from_tensor(weight))
        assert made == strides(x, weight)


# a graph of operators is recorded from real, fake and symbolic tensors, and runs on the device
@pytest.mark.parametrize("kind", ["real", "fake", "symbolic"])
def test_recorded_graphs(kind: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x.sin(), torch.ones(2, 2, device=x.device)]).softmax(0)

    x = torch.randn(3, 2, device=DEV)
    graph = make_fx(function, tracing_mode=kind)(x)
    assert torch.equal(graph(x), function(x))
    ones = [node for node in graph.graph.nodes if "ones" in str(node.target)]
    assert [node.kwargs["device"] for node in ones] == [HERE]


# nested containers of subclasses are walked as others are
def test_trees_of_subclasses() -> None:
    tree = {"a": [Scaled(torch.ones(2, device=DEV), 3.0)], "b": (torch.zeros(1, device=DEV),)}
    doubled = tree_map(lambda t: t * 2, tree)
    assert doubled["a"][0].tolist() == [6.0, 6.0] and doubled["b"][0].device == HERE
    moved = torch.openreg.to_device(tree, "openreg:0")
    assert type(moved["a"][0]) is Scaled and moved["a"][0].inner.device == torch.device("openreg:0")
