# SPDX-License-Identifier: BSD-3-Clause
"""torch.compile with its default backend: what is compiled for openreg computes what runs on the CPU."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo.testing
from comparing import drawn_by_seed
from torch import nn
from torch._inductor.utils import run_and_get_code
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves, tree_map_only

from torch_openreg_lab.check.paired_tensors import tensors_of

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")

DEVICES = ["openreg:0", "openreg:1"]


def on(device: str, tree: Any) -> Any:
    """The same tensors and modules on a device, copied."""
    moved = tree_map_only(torch.Tensor, lambda t: t.detach().clone().to(device).requires_grad_(t.requires_grad), tree)
    return tree_map_only(nn.Module, lambda m: copy.deepcopy(m).to(device), moved)


def check(function: Callable[..., Any], *arguments: Any, device: str = "openreg:1", **options: Any) -> None:
    """Results, gradients and changed arguments are those of the function as it runs on the CPU."""
    answers = []
    for place in ("cpu", device):
        torch._dynamo.reset()
        torch.manual_seed(7)
        given = on(place, arguments)
        result = (function if place == "cpu" else torch.compile(function, **options))(*given)
        tensors = tensors_of(result)
        assert all(str(t.device) == place for t in tensors)
        wanted = [t for t in tensors if t.requires_grad]
        if wanted:
            sum(t.float().square().mean() for t in wanted).backward()
        leaves = tensors_of(given)
        for module in (m for m in tree_leaves(given) if isinstance(m, nn.Module)):
            leaves += [*module.parameters(), *module.buffers()]
        gradients = [t.grad for t in leaves if t.is_leaf]
        answers.append([*tensors, *leaves, *gradients])
    torch.testing.assert_close(answers[1], answers[0], check_device=False, rtol=1e-4, atol=1e-5)


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.LayerNorm(32), nn.Linear(32, 4))


def convolutions() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 9, 5)
    )


def transformer() -> nn.Module:
    torch.manual_seed(3)
    return nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)


def call(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return module(x)


# one kernel, on both devices, whichever is current
@pytest.mark.parametrize("device", DEVICES)
def test_pointwise_and_reductions(device: str) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = torch.relu(x * y + 1).sin()
        return z, z.sum(-1), z.amax(0), z.softmax(1), (z > 0.5).any()

    check(function, torch.randn(8, 16), torch.randn(8, 16), device=device, fullgraph=True)


# forward and backward of the usual layers: results, gradients, running statistics
@pytest.mark.parametrize(
    ("module", "shape"),
    [(net, (8, 16)), (convolutions, (2, 3, 8, 8)), pytest.param(transformer, (2, 5, 16), marks=pytest.mark.long)],
)
def test_models_train(module: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    check(call, module(), torch.randn(shape, requires_grad=True), fullgraph=True)


# sizes that change: as few graphs as the CPU needs, and no more for further sizes
def test_dynamic_shapes() -> None:
    counts = {}
    for device in ("cpu", "openreg:0"):
        torch._dynamo.reset()
        graphs = torch._dynamo.testing.CompileCounterWithBackend("inductor")
        model = on(device, [net()])[0]
        compiled = torch.compile(model, backend=graphs, dynamic=True)
        torch.manual_seed(0)
        results = []
        for size in (3, 5, 8, 11):
            loss = compiled(torch.randn(size, 16).to(device)).softmax(-1).square().sum()
            loss.backward()
            results.append(loss.item())
        counts[device] = (graphs.frame_count, pytest.approx(results, rel=1e-4))
    assert counts["openreg:0"][0] == counts["cpu"][0] <= 2
    assert counts["openreg:0"][1] == counts["cpu"][1].expected


# arguments that the function writes, also through views of them
def test_mutated_arguments_and_views() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x.add_(1)
        x[1:, ::2].mul_(2)
        y.t().copy_(x[:4, :4])
        return x.view(-1)[3:9], x.t(), y + 1

    check(function, torch.randn(6, 4), torch.zeros(4, 4), fullgraph=True)


# gathers, scatters, sorts, scans and accumulation by index
def test_indexing() -> None:
    def function(x: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, ...]:
        gathered = x.gather(1, index)
        scattered = torch.zeros_like(x).scatter_add(1, index, x)
        put = x.clone().index_put_((index[0],), x[:3], accumulate=True)
        return gathered, scattered, put, x.cumsum(1), *x.sort(1), *x.topk(2, 1), torch.where(x > 0, x, 0.5)

    check(function, torch.randn(4, 3), torch.tensor([[0, 1, 2], [2, 1, 0], [0, 0, 1], [1, 1, 1]]))


# dropout draws from the device's own stream of numbers: equal seeds, equal masks; and its share is right
def test_dropout_follows_the_seed() -> None:
    function = torch.compile(lambda x: F.dropout(x, 0.25) * 1)
    x = torch.ones(4096, device="openreg:1", requires_grad=True)
    result = drawn_by_seed(lambda: function(x))
    assert abs((result == 0).float().mean().item() - 0.25) < 0.05
    result.sum().backward()
    assert torch.equal(x.grad, result.detach())  # the backward pass has the same mask


# tensors of the host among the arguments, moves in both directions, and a number in a tensor of the host
def test_host_and_device_in_one_graph() -> None:
    def function(x: torch.Tensor, host: torch.Tensor, number: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        moved = host.to(x.device).sin() + x * number
        return moved, (moved * 2).cpu() + host.cos()

    torch.manual_seed(0)
    x, host, number = torch.randn(8, 4), torch.randn(8, 4), torch.tensor(3.0)
    expected = function(x, host, number)
    got = torch.compile(function, fullgraph=True)(x.to("openreg:1"), host, number)
    assert [t.device.type for t in got] == ["openreg", "cpu"]
    torch.testing.assert_close([t.cpu() for t in got], list(expected))


# the same computation of the host and of a device in one graph: equal source, two kernels
def test_equal_kernels_of_host_and_device_in_one_graph() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sin() * 2 + 1, y.sin() * 2 + 1

    x = torch.randn(100)
    for first, second in (("cpu", "openreg:0"), ("openreg:0", "cpu")):
        torch._dynamo.reset()
        a, b = torch.compile(function, fullgraph=True)(x.to(first), x.to(second))
        torch.testing.assert_close(a.cpu(), b.cpu())


# the same source for the CPU and for openreg, called in turn: libraries are never shared
def test_equal_source_for_host_and_device_in_turn() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.cos() * 3 - 1

    compiled = torch.compile(function)
    x = torch.randn(64)
    for device in ("openreg:0", "cpu", "openreg:0", "openreg:1", "cpu", "openreg:0"):
        got = compiled(x.to(device))
        assert str(got.device) == device
        torch.testing.assert_close(got.cpu(), function(x))


# memory comes from the device that the graph is for, not from the current one
def test_memory_is_the_devices_own() -> None:
    compiled = torch.compile(lambda x: (x * 2).sum() + x)
    x = torch.randn(1 << 16, device="openreg:1")
    compiled(x)
    before = [torch.openreg.memory_stats(i)["allocation.all.allocated"] for i in (0, 1)]
    kept = compiled(x)
    after = [torch.openreg.memory_stats(i)["allocation.all.allocated"] for i in (0, 1)]
    assert kept.device.index == 1
    assert after[0] == before[0]
    assert after[1] > before[1]


# a graph with both devices in it
def test_two_devices_in_one_graph() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2 + y.to(x.device), (x.to(y.device) + 1) * y

    x, y = torch.randn(9), torch.randn(9)
    got = torch.compile(function, fullgraph=True)(x.to("openreg:0"), y.to("openreg:1"))
    assert [str(t.device) for t in got] == ["openreg:0", "openreg:1"]
    torch.testing.assert_close([t.cpu() for t in got], list(function(x, y)))


# a kernel runs after what is queued on the current stream of its device
def test_kernels_wait_for_the_current_stream() -> None:
    compiled = torch.compile(lambda x: x * 2 + 1)
    source = torch.arange(1 << 22, dtype=torch.float32).pin_memory()
    x = torch.zeros_like(source, device="openreg:0")
    compiled(x)
    stream = torch.openreg.Stream("openreg:0")
    stream.wait_stream(torch.openreg.current_stream("openreg:0"))
    with torch.openreg.stream(stream):
        for _ in range(4):
            x.zero_()
            x.copy_(source, non_blocking=True)
            got = compiled(x)
            torch.testing.assert_close(got.cpu(), source * 2 + 1)


# the modes that torch.compile has
@pytest.mark.parametrize("mode", ["max-autotune", pytest.param("reduce-overhead", marks=pytest.mark.long)])
def test_modes(mode: str) -> None:
    check(call, net(), torch.randn(8, 16), mode=mode)


# float16, bfloat16, float64, integers, bool
@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.bfloat16, torch.int32, torch.bool),
        *(pytest.param(other, marks=pytest.mark.long) for other in (torch.float16, torch.float64, torch.uint8)),
    ],
)
def test_types(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x & y) | (x ^ y) if dtype == torch.bool else x * y + x, x == y, x.sum()

    check(function, torch.randint(0, 5, (5, 7)).to(dtype), torch.randint(0, 5, (5, 7)).to(dtype))


# the step of an optimizer, compiled
@pytest.mark.parametrize("optimizer", [pytest.param(torch.optim.Adam, marks=pytest.mark.long), torch.optim.SGD])
def test_compiled_optimizers(optimizer: type[torch.optim.Optimizer]) -> None:
    answers = []
    for device in ("cpu", "openreg:1"):
        torch._dynamo.reset()
        model = net().to(device)
        steps = optimizer(model.parameters(), lr=0.01)
        step = torch.compile(steps.step)
        for seed in range(3):
            x = torch.randn(8, 16, generator=torch.Generator().manual_seed(seed)).to(device)
            steps.zero_grad()
            model(x).square().mean().backward()
            step()
        answers.append([p.detach().cpu() for p in model.parameters()])
    torch.testing.assert_close(answers[1], answers[0], rtol=1e-3, atol=1e-5)


# a branch on data, inside the graph
def test_cond() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda t: t.sin() * 2, lambda t: t.cos() + 1, (x,))

    check(function, torch.ones(6), fullgraph=True)
    check(function, -torch.ones(6), fullgraph=True)


# activations that are computed again in the backward pass
def test_checkpointing() -> None:
    def function(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False).sin()

    check(function, net(), torch.randn(8, 16, requires_grad=True), fullgraph=True)


# what a backward pass computes again draws the numbers of the forward pass: those of the device, and equal for equal seeds
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_checkpointing_draws_the_same_again(backend: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.utils.checkpoint.checkpoint(lambda y: F.dropout(y, 0.5) * 2, x, use_reentrant=False)

    def gradient() -> torch.Tensor:
        torch._dynamo.reset()
        x = torch.ones(8, 16, device="openreg:1", requires_grad=True)
        results = torch.compile(function, backend=backend, fullgraph=True)(x)
        results.sum().backward()
        assert torch.equal(results, x.grad)
        return x.grad

    drawn_by_seed(gradient)


# the same of operators for which Inductor has no code: they run as they are, with the state of the forward pass
@pytest.mark.parametrize(
    "draw",
    [
        lambda x: torch.poisson(x * 3),
        lambda x: torch.multinomial(x + 1, 16),
        lambda x: torch.randperm(16, device=x.device) + torch.randperm(16, device=x.device) / 32,
    ],
    ids=["poisson", "multinomial", "randperm_twice"],
)
def test_checkpointing_of_fallbacks_draws_the_same_again(draw: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.utils.checkpoint.checkpoint(lambda y: y * draw(y.detach()), x, use_reentrant=False)

    x = torch.rand(8, 16, device="openreg:1").requires_grad_()
    draws = []
    for seed in (1, 1):
        torch._dynamo.reset()  # PyTorch seeds the states that a graph keeps when it first runs
        compiled = torch.compile(function, fullgraph=True)
        torch.manual_seed(seed)
        for _ in range(2):
            x.grad = None
            results = compiled(x)
            results.sum().backward()
            torch.testing.assert_close(x.grad * x, results)
            draws.append(x.grad)
    assert torch.equal(draws[0], draws[2])
    assert torch.equal(draws[1], draws[3])
    assert not torch.equal(draws[0], draws[1])


# an operator of the program's own in the middle of a graph
def test_custom_operators() -> None:
    @torch.library.custom_op("openreg_compile_test::scaled", mutates_args=())
    def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
        return x * factor

    @scaled.register_fake
    def _(x: torch.Tensor, factor: float) -> torch.Tensor:
        return torch.empty_like(x)

    check(lambda x: scaled(x.sin(), 3.0) + 1, torch.randn(6), fullgraph=True)


# autocast inside and outside of the compiled function
@pytest.mark.parametrize("inside", [True, False])
def test_autocast(inside: bool) -> None:
    model, x = net(), torch.randn(8, 16)
    answers = []
    for device in ("cpu", "openreg"):
        torch._dynamo.reset()
        module = copy.deepcopy(model).to(device)

        def function(t: torch.Tensor, module: nn.Module = module, kind: str = device) -> torch.Tensor:
            if not inside:
                return module(t)
            with torch.autocast(kind, dtype=torch.bfloat16):
                return module(t)

        compiled = torch.compile(function)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=not inside):
            answers.append(compiled(x.to(device)))
    assert answers[0].dtype == answers[1].dtype == torch.bfloat16
    torch.testing.assert_close(answers[1].cpu(), answers[0], rtol=2e-2, atol=2e-2)


# a value that Python asks for splits the graph
def test_graph_breaks() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        if y.sum().item() > 0:
            y = y + 1
        return y.cos()

    check(function, torch.ones(5))


# an exported program, compiled
def test_exported_programs() -> None:
    model, x = net(), torch.randn(8, 16)
    program = torch.export.export(copy.deepcopy(model).to("openreg:0"), (x.to("openreg:0"),))
    got = torch.compile(program.module())(x.to("openreg:0"))
    torch.testing.assert_close(got.cpu(), model(x), rtol=1e-4, atol=1e-5)


# attention: training keeps the fused kernel, as the CPU's does
@pytest.mark.parametrize("causal", [True, False])
def test_attention_stays_fused_in_training(causal: bool) -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    arguments = [torch.randn(2, 2, 8, 4, requires_grad=True) for _ in range(3)]
    check(function, *arguments, fullgraph=True)
    torch._dynamo.reset()
    _, code = run_and_get_code(torch.compile(function), *on("openreg:0", arguments))
    assert any("flash_attention_for_cpu" in text for text in code)


# no memory is kept when the results are gone
def test_no_memory_is_left() -> None:
    compiled = torch.compile(lambda x: (x.sin() * x).sum(0).relu())
    x = torch.randn(256, 64, device="openreg:0", requires_grad=True)
    compiled(x).sum().backward()
    x.grad = None
    before = torch.openreg.memory_allocated(0)
    for _ in range(3):
        compiled(x).sum().backward()
        x.grad = None
    assert torch.openreg.memory_allocated(0) == before


# the backend's own name
def test_the_backend_has_a_name() -> None:
    got = torch.compile(lambda x: x.sin() + 1, backend="openreg", mode="max-autotune")(
        torch.ones(4, device="openreg:0")
    )
    torch.testing.assert_close(got.cpu(), torch.ones(4).sin() + 1)


# torch.openreg's functions of devices, streams and events inside of one graph
def test_functions_of_the_module_are_traced() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        here = torch.openreg.current_device()
        side = torch.openreg.Stream()
        side.wait_stream(torch.openreg.current_stream())
        with torch.openreg.stream(side):
            y = x * 2
        event = torch.openreg.Event()
        event.record(side)
        event.wait()
        torch.openreg.synchronize()
        with torch.openreg.device(1):
            other = torch.ones(3, device="openreg")
        return y + here + torch.openreg.device_count(), other + 1

    x = torch.ones(3, device="openreg:0")
    for backend in ("eager", "inductor"):
        torch._dynamo.reset()
        got = torch.compile(function, backend=backend, fullgraph=True)(x)
        assert [str(t.device) for t in got] == ["openreg:0", "openreg:1"]
        assert [t.tolist() for t in got] == [[4, 4, 4], [2, 2, 2]]
        assert torch.openreg.current_device() == 0


# as FSDP's hooks do: what they call of the module is no frame to compile, as torch.cuda's functions are none
def test_functions_that_code_outside_of_graphs_calls() -> None:
    @torch.compiler.disable(recursive=False)
    def hook(x: torch.Tensor) -> torch.Tensor:
        return x + torch.openreg.current_stream().device_index

    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(lambda x: hook(x * 2) + 1, backend=counter)
    assert compiled(torch.ones(3, device="openreg:1")).tolist() == [3.0, 3.0, 3.0]
    assert counter.frame_count == 2  # before the hook and behind it


# the current device is guarded: what was traced for one isn't used for another
def test_the_current_device_is_guarded() -> None:
    compiled = torch.compile(lambda x: x + torch.openreg.current_device(), fullgraph=True)
    x = torch.zeros(2, device="openreg:0")
    assert compiled(x).tolist() == [0, 0]
    with torch.openreg.device(1):
        assert compiled(x).tolist() == [1, 1]
    assert compiled(x).tolist() == [0, 0]


# and so are its properties
@pytest.mark.parametrize("with_index", [False, True])
def test_properties_are_constants(with_index: bool) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        index = 1 if with_index else None
        properties, capability = torch.openreg.get_device_properties(index), torch.openreg.get_device_capability(index)
        return x + properties.ordinal + len(torch.openreg.get_device_name(index)) + capability[0]

    compiled = torch.compile(function, backend="eager", fullgraph=True)
    x = torch.zeros((), device="openreg:0")
    for device in (0, 1, 0):
        with torch.openreg.device(device):
            assert compiled(x).item() == function(x).item()


def kernels(function: Callable[..., Any], *arguments: torch.Tensor) -> list[str]:
    """The C++ of the kernels that a function is compiled to."""
    _, code = run_and_get_code(torch.compile(function, fullgraph=True), *arguments)
    return re.findall(r"r'''(.*?)'''", "\n".join(code), re.DOTALL)


# where Inductor chooses by the name of the device what suits C++, openreg gets the CPU's choice: the very same kernels
@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: torch.cat([x * 2, y + 1], 1),
        lambda x, y: F.pad(x, (0, 3)) * 2,
        lambda x, y: (x / 49).floor() + y / 3,
        lambda x, y: x.t().argmax() + y.t().argmin(keepdim=True),
        lambda x, y: (x.exp() / x.exp().sum(), (x.tanh() + y).log_softmax(1)),
    ],
    ids=["cat", "pad", "div", "argmax", "heavy"],
)
def test_kernels_are_those_of_the_cpu(function: Callable[..., Any]) -> None:
    x, y = torch.randn(24, 16), torch.randn(24, 16)
    found = []
    for device in ("cpu", "openreg:1"):
        torch._dynamo.reset()
        found.append(kernels(function, x.to(device), y.to(device)))
    if "argmax" not in function.__code__.co_names:  # which is flattened first
        assert found[0] == found[1] != []
    check(function, x, y, fullgraph=True)


# sums that several threads add to one tensor, by an index, in an order of the memory that isn't the index's
def test_parallel_sums_in_another_order() -> None:
    index = torch.randint(0, 64, (64,))
    x, w = torch.randn(64, 64, requires_grad=True), torch.randn(64, 64)
    check(lambda x, w, i: x.cumsum(0)[:, i].t().contiguous().t() * w, x, w, index, fullgraph=True)


# variance in two steps where there is little to sum up, as for the CPU
def test_variance_of_few_elements() -> None:
    found = kernels(lambda x: (x.var(1), *torch.var_mean(x, 0)), torch.randn(24, 16, device="openreg:1"))
    assert found and not any("welford" in kernel.lower() for kernel in found)
    check(lambda x: (x.var(1), *torch.var_mean(x, 0)), torch.randn(24, 16), fullgraph=True)
