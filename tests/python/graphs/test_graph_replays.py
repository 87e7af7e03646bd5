# SPDX-License-Identifier: BSD-3-Clause
"""What a replay does is what the captured program does: values, modes, memory and generators, and refusals where it can't be."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from capturing import captured, warmed_up
from torch import nn
from torch.utils.checkpoint import checkpoint

D = "openreg"
F = nn.functional


def check(function: Callable[..., Any], *inputs: torch.Tensor) -> None:
    "Replays give what eager calls give with the same bits, for inputs unlike those of the capture."
    graph, results = captured(lambda: function(*inputs))
    first = [x.detach().clone() for x in inputs]
    for factor in (0.5, 1.0, -1.0):
        with torch.no_grad():
            for x, value in zip(inputs, first, strict=True):
                x.copy_(value * factor)
        expected = [t.detach().clone() for t in function(*inputs)]
        with torch.no_grad():
            for t in results:
                t.fill_(float("nan"))
        graph.replay()
        torch.testing.assert_close([t.detach() for t in results], expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.binary_cross_entropy_with_logits])
def test_losses_and_their_gradients(loss: Callable[..., torch.Tensor], reduction: str) -> None:
    "Kernels whose storage is larger than their result."
    x, y = torch.randn(6, 5, device=D, requires_grad=True), torch.rand(6, 5, device=D)

    def work(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        value = loss(x, y, reduction=reduction)
        return value, *torch.autograd.grad(value.sqrt(), [x])

    check(work, x, y)


def test_layouts_of_results() -> None:
    "Results in channels_last, transposed, and with strides of their own."
    image = torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last).to(D)
    check(lambda x: [F.pad(x, (1, 1, 1, 1), mode=mode) for mode in ("reflect", "replicate")], image)
    matrix = torch.randn(5, 4, device=D)
    norm = nn.BatchNorm1d(5).to(D)
    check(lambda x: [norm(x.t())], matrix)
    wide = torch.randn(4, 6, device=D, requires_grad=True)
    check(lambda x: torch.autograd.grad(F.logsigmoid(x.t()).sum(), [x]), wide)


def test_a_norm_in_training_keeps_its_statistics() -> None:
    "Its kernel writes running statistics, which its schema doesn't say: undone after the capture, updated by each replay."
    torch.manual_seed(0)
    norm, x = nn.BatchNorm2d(3).to(D), torch.randn(4, 3, 5, 5, device=D)
    eager = nn.BatchNorm2d(3).to(D)
    graph, _ = captured(lambda: norm(x))
    assert (norm.running_mean.tolist(), norm.num_batches_tracked.item()) == ([0] * 3, 0)
    for _ in range(3):
        graph.replay()
        eager(x)
    assert torch.equal(norm.running_mean, eager.running_mean)
    assert torch.equal(norm.running_var, eager.running_var)
    assert norm.num_batches_tracked.item() == 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_transformer_block_in_half_precision(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True).to(D, dtype)
    x = torch.randn(2, 5, 16).to(D, dtype)

    def work(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out = block(x)
        return out, *torch.autograd.grad(out.float().square().sum(), [*block.parameters()])

    check(work, x)


@pytest.mark.parametrize("grad", [True, False])
def test_modes_are_those_of_the_capture(grad: bool) -> None:
    "Kernels ask whether gradients are wanted: a replay runs as the capture did, whatever its caller has set."
    torch.manual_seed(0)
    layer, x = nn.LSTM(4, 3).to(D), torch.randn(5, 2, 4, device=D)
    with torch.set_grad_enabled(grad):
        expected = layer(x)[0].detach().clone()
        graph, (out, _) = captured(lambda: layer(x))
    with torch.set_grad_enabled(not grad), torch.inference_mode(grad):
        graph.replay()
        assert torch.is_grad_enabled() is not grad
    assert torch.equal(out.detach(), expected)


def test_the_number_of_threads_is_that_of_the_capture() -> None:
    "Sums depend on it; autograd's threads may have another one than the thread that replays."
    x = torch.randn(1 << 18, device=D, dtype=torch.bfloat16)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        expected = x.float().sum().item()
        graph, total = captured(lambda: x.float().sum())
        torch.set_num_threads(1)
        graph.replay()
        assert (total.item(), torch.get_num_threads()) == (expected, 1)
    finally:
        torch.set_num_threads(before)


def test_a_generator_that_a_capture_uses_first(python: Any) -> None:
    "It is made and seeded there."
    python(
        "import torch\n"
        "x, graph = torch.ones(1000, device='openreg'), torch.openreg.OpenRegGraph()\n"
        "with torch.openreg.graph(graph):\n    y = torch.nn.functional.dropout(x)\n"
        "graph.replay()\nassert 0 < (y == 0).sum().item() < 1000\n"
    )


def test_a_replay_in_a_capture_leaves_the_modes() -> None:
    "It runs under those of its own capture, and what follows under the program's."
    x = torch.ones(4, device=D)
    with torch.no_grad():
        inner, y = captured(lambda: x * 2)
    stream = torch.openreg.Stream()
    with torch.enable_grad():
        outer, grad = captured(lambda: (inner.replay(), torch.is_grad_enabled())[1], stream=stream)
    outer.replay()
    assert (grad, y.tolist()) == (True, [2] * 4)


def test_sizes_that_a_capture_changes() -> None:
    "resize_() and resize_as_() keep what was there, in memory of the graph, too."
    x = torch.arange(4.0, device=D)

    def work() -> torch.Tensor:
        grown = x + 1
        grown.resize_(8)
        grown[4:] = x
        return grown

    graph, out = captured(work)
    x.fill_(3)
    graph.replay()
    assert out.tolist() == [4] * 4 + [3] * 4


def test_storages_that_a_capture_changes() -> None:
    "UntypedStorage.resize_() keeps what was there; memory that was freed and comes again is the graph's."
    x, bare = torch.arange(4.0, device=D), torch.zeros(8, device=D)
    bare.untyped_storage().resize_(0)

    def work() -> torch.Tensor:
        grown = x + 1
        grown.untyped_storage().resize_(32)
        grown = torch.as_strided(grown, (8,), (1,))
        grown[4:] = x
        bare.untyped_storage().resize_(32)
        bare.copy_(grown)
        out = bare * 2
        bare.untyped_storage().resize_(0)
        return out

    graph, out = captured(work)
    for value in (3, 4):
        x.fill_(value)
        graph.replay()
        assert out.tolist() == [2 * value + 2] * 4 + [2 * value] * 4


def test_other_streams_meanwhile() -> None:
    "They may read what the capture reads, and write it: that stays. What the capture has changed is refused."
    x, y, other = torch.ones(4, device=D), torch.zeros(4, device=D), torch.openreg.Stream()

    def work() -> torch.Tensor:
        doubled = x * 2
        with torch.openreg.stream(other):
            y.copy_(x)
            x.fill_(5)
        return doubled

    graph, out = captured(work)
    torch.openreg.synchronize()
    assert (x.tolist(), y.tolist()) == ([5] * 4, [1] * 4)
    graph.replay()
    assert out.tolist() == [10] * 4

    def change() -> None:
        x.add_(1)
        with torch.openreg.stream(other):
            y.copy_(x)

    with pytest.raises(RuntimeError, match="its stream is not part of the capture"):
        captured(change)
    assert x.tolist() == [5] * 4


@pytest.mark.parametrize("reentrant", [True, False])
def test_graph_checkpoint_preserve_rng_state(reentrant: bool) -> None:
    "The second pass draws the mask of the first one, in each replay another."
    torch.manual_seed(0)
    layer, x = nn.Linear(8, 8).to(D), torch.randn(4, 8, device=D, requires_grad=True)

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        out = checkpoint(lambda x: F.dropout(layer(x), 0.5), x, use_reentrant=reentrant)
        x.grad = None
        out.square().sum().backward()
        return out, x.grad

    side = torch.openreg.Stream()
    torch.openreg.manual_seed(5)
    expected = warmed_up(lambda: [t.detach().clone() for t in step()], side)
    torch.openreg.synchronize()
    before = torch.openreg.get_rng_state()
    graph, results = captured(step, stream=side)
    assert torch.equal(torch.openreg.get_rng_state(), before)
    torch.openreg.manual_seed(5)
    graph.replay()
    assert all(torch.equal(t.detach(), wanted) for t, wanted in zip(results, expected, strict=True))
    graph.replay()
    assert not torch.equal(results[0].detach(), expected[0])


def test_states_of_generators() -> None:
    "A state that the capture has got can be set in it; seeds, and states from outside, are refused by the program's line."
    x = torch.empty(16, device=D)

    def work() -> torch.Tensor:
        with torch.random.fork_rng(device_type=D, devices=[0]):
            a = torch.rand_like(x)
        return a, torch.rand_like(x)

    graph, (a, b) = captured(work)
    graph.replay()
    assert torch.equal(a, b)
    first = a.clone()
    graph.replay()
    assert torch.equal(a, b) and not torch.equal(a, first)
    state = torch.openreg.get_rng_state()
    for change in (lambda: torch.openreg.set_rng_state(state), lambda: torch.openreg.manual_seed(1)):
        with pytest.raises(RuntimeError, match=r"generator can't be captured at test_graph_replays.py:\d+"):
            captured(change)


def test_memory_of_a_capture_on_another_stream() -> None:
    "Work on a stream or device that isn't part of the capture would read what no replay writes."
    x = torch.ones(4, device=f"{D}:0")

    def work() -> None:
        there = x.to(f"{D}:1", non_blocking=True)
        there.add_(1)

    with pytest.raises(RuntimeError, match=r"aten::add_.*its stream is not part of the capture, whose memory it uses"):
        captured(work)
    assert x.tolist() == [1] * 4


def test_a_driver_that_is_chosen_anew(python: Any) -> None:
    "Memory of a graph goes with its driver: a replay is an error."
    ran = python(
        "import torch\n"
        "graph = torch.openreg.OpenRegGraph()\n"
        "with torch.openreg.graph(graph):\n    torch.ones(4, device='openreg')\n"
        "torch.openreg._clear_drivers()\ntorch.openreg.use_driver('sim')\n"
        "x = torch.zeros(4, device='openreg')\n"
        "try:\n    graph.replay()\nexcept RuntimeError as error:\n    print(error)\n"
        "graph.reset()\n"
    )
    assert "captured before the drivers were chosen again" in ran.stdout


def test_reset_waits_for_each_stream() -> None:
    "Replays that are queued on several streams end before their memory is given out again."
    x = torch.randn(256, 256, device=D)
    graph, out = captured(lambda: (x @ x).sum())
    results = []
    for _ in range(4):
        results.append(warmed_up(lambda: graph.replay() or out.clone(), torch.openreg.Stream()))
    graph.reset()
    assert len({result.item() for result in results}) == 1


def test_a_failed_capture_lets_go_outside_of_its_locks() -> None:
    "What dies with it may ask about captures."
    asked = []

    class Asks:
        def __del__(self) -> None:
            asked.append(torch.openreg.is_current_stream_capturing())

    x, side = torch.ones(4, device=D), torch.openreg.Stream()

    def work() -> None:
        held = torch.ones(4, device=D)
        held.untyped_storage()._asks = Asks()  # type: ignore[attr-defined]
        held += x
        side.wait_stream(torch.openreg.current_stream())  # never joined

    with pytest.raises(RuntimeError, match="has not waited"):
        captured(work)
    assert asked == [False] or asked == [True]


def test_a_lazy_clone() -> None:
    "It is a clone: a write to it leaves the tensor as it was."
    x = torch.ones(4, device=D)

    def work() -> tuple[torch.Tensor, torch.Tensor]:
        inner = x * 2
        return inner, inner._lazy_clone().add_(5)

    graph, (inner, clone) = captured(work)
    graph.replay()
    assert (inner.tolist(), clone.tolist()) == ([2] * 4, [7] * 4)


def test_inference_mode_around_a_part() -> None:
    "A mode that was entered before a capture must last as long; one inside of it is part of it."
    x = torch.ones(4, device=D)

    def work() -> torch.Tensor:
        with torch.inference_mode():
            y = x + 1
        return y * 2

    graph, out = captured(work)
    x.fill_(4)
    graph.replay()
    assert out.tolist() == [10] * 4
    graph = torch.openreg.OpenRegGraph()
    with torch.openreg.stream(torch.openreg.Stream()):
        with torch.inference_mode():
            graph.capture_begin()
        with pytest.raises(
            RuntimeError, match="the stream is being captured, and this call is not part of the capture"
        ):
            x + 1
        with pytest.raises(RuntimeError, match="in a thread or mode that is not part of the capture"):
            graph.capture_end()
        graph = torch.openreg.OpenRegGraph()
        with torch.inference_mode():
            graph.capture_begin()
        with pytest.raises(RuntimeError, match="inference_mode"):
            graph.capture_end()
        graph = torch.openreg.OpenRegGraph()
        graph.capture_begin()
        with torch.inference_mode():
            x + 1
            graph.capture_end()
    assert (x + 1).tolist() == [5] * 4  # the thread's operators are its own again


def test_another_thread_ends_a_capture() -> None:
    "An error; the thread that began it goes on as if there had been none."
    x, graph, stream = torch.ones(4, device=D), torch.openreg.OpenRegGraph(), torch.openreg.Stream()
    with torch.openreg.stream(stream):
        graph.capture_begin(capture_error_mode="relaxed")
        x += 1
        with ThreadPoolExecutor() as pool, pytest.raises(RuntimeError, match="must end in the thread that began it"):
            pool.submit(graph.capture_end).result()
        x += 1
    stream.synchronize()
    assert x.tolist() == [2] * 4


def test_results_that_overlap() -> None:
    "An error of the operator is one at the capture."
    x, out = torch.ones(4, device=D), torch.zeros(1, device=D).expand(4)
    with pytest.raises(RuntimeError, match="single memory location"):
        captured(lambda: torch.add(x, x, out=out))


def test_writes_that_a_schema_hides() -> None:
    "What a custom operator writes without saying so is undone, too, whatever its size."
    with torch.library._scoped_library("openreg_graphs", "DEF") as library:
        library.define("count_up(Tensor x) -> Tensor")
        library.impl("count_up", lambda x: x.add_(1).sum(), "CPU")
        x = torch.zeros(1 << 16, device=D)
        graph, out = captured(lambda: torch.ops.openreg_graphs.count_up(x))
        assert x[-1].item() == 0
        for count in (1, 2):
            graph.replay()
            assert (x[-1].item(), out.item()) == (count, count * x.numel())


def test_an_answer_to_the_host() -> None:
    "What a custom operator says of data is not known at the capture; it is refused."
    with torch.library._scoped_library("openreg_graphs", "DEF") as library:
        library.define("count(Tensor x) -> int")
        library.impl("count", lambda x: int(x.sum()), "CPU")
        x = torch.ones(3, device=D)
        for ask in (lambda: torch.ops.openreg_graphs.count(x), lambda: bool(x.sum()), lambda: torch.equal(x, x)):
            with pytest.raises(RuntimeError, match="what it gives depends on data"):
                captured(ask)


def test_higher_order_operators() -> None:
    "What they call is captured; what looks at data is refused by name."
    from torch._higher_order_ops.map import map as map_over

    x = torch.randn(3, 4, device=D)
    check(lambda x: [map_over(lambda row: row.sin() * 2, x)], x)
    with pytest.raises(RuntimeError, match=r"can't be captured at test_graph_replays.py:\d+.*depends on data"):
        captured(lambda: torch.cond(x.sum() > 0, lambda: x.sin(), lambda: x.cos()))


@pytest.mark.parametrize("cell", [nn.GRUCell, nn.LSTMCell, nn.RNNCell])
def test_cells(cell: type[nn.Module]) -> None:
    torch.manual_seed(0)
    layer = cell(4, 3, bias=False).to(D)

    def work(x: torch.Tensor) -> list[torch.Tensor]:
        out = layer(x)
        return [out[0] if isinstance(out, tuple) else out]

    check(work, torch.randn(2, 4, device=D))


def test_views_race_with_nothing() -> None:
    "The detector reports none for views, changes of sizes, and a capture's own run."
    z = torch.randn(4, dtype=torch.complex64, device=D)
    torch.openreg.synchronize()
    with torch.openreg.detect_races() as found:
        graph, _ = captured(lambda: (z.real + z.imag).resize_(8))
        graph.replay()
        torch.openreg.synchronize()
    assert not found


def test_the_default_stream() -> None:
    "It can't be captured, nor join a capture."
    default = torch.openreg.default_stream()

    def fork() -> None:
        default.wait_stream(torch.openreg.current_stream())

    with pytest.raises(RuntimeError, match="default"):
        captured(fork)


def test_an_empty_graph_warns() -> None:
    with pytest.warns(UserWarning, match="The graph is empty"):
        captured(lambda: None)


def test_first_use_imports_little(python: Any) -> None:
    ran = python(
        "import sys, torch\n"
        "x = torch.ones(4, device='openreg') + 1\n"
        "before = len(sys.modules)\n"
        "graph = torch.openreg.OpenRegGraph()\n"
        "with torch.openreg.graph(graph):\n    y = torch.nn.functional.layer_norm(x.sin(), (4,))\n"
        "print(len(sys.modules) - before)\n"
    )
    assert int(ran.stdout) < 20


def test_a_fork_after_many_nodes() -> None:
    "The search for branches that race looks at what the branches have, not at all pairs."
    x, side = torch.ones(4, device=D), torch.openreg.Stream()

    def work() -> None:
        for _ in range(8000):
            x.add_(1)
        side.wait_stream(torch.openreg.current_stream())
        with torch.openreg.stream(side):
            y = x + 1
        torch.openreg.current_stream().wait_stream(side)
        x.add_(y)

    graph = torch.openreg.OpenRegGraph()
    stream = torch.openreg.Stream()
    with torch.openreg.stream(stream):
        graph.capture_begin()
        work()
        begun = time.process_time()
        graph.capture_end()
        spent = time.process_time() - begun
    assert spent < 0.5  # all pairs take seconds


@pytest.mark.parametrize("how", ["freed", "moved"])
def test_memory_that_died_since_the_capture(how: str) -> None:
    "A replay says which operator uses it, instead of writing into what others have."
    x = torch.ones(1024, device=D)
    graph, _ = captured(lambda: x.sin())
    graph.replay()
    x.untyped_storage().resize_(0 if how == "freed" else 1 << 20)
    places = (r" \(captured at .*\)", r" \(at .*\)") if os.environ.get("OPENREG_SIM_RACES") else ("", "")
    text = r"memory that aten::sin uses{} has been freed or moved{} since the capture"
    with pytest.raises(RuntimeError, match=text.format(*places)):
        graph.replay()


@pytest.mark.parametrize("how", ["x.untyped_storage().resize_(0)", "x.resize_(1 << 20)"])
def test_memory_that_died_is_reported_with_its_lines(how: str) -> None:
    "While races are looked for: where the operator was captured, and where the memory went."
    x = torch.ones(1024, device=D)

    def work() -> torch.Tensor:
        return x.sin()

    def drop() -> None:
        exec(how, {"x": x})

    with torch.openreg.detect_races():
        graph, _ = captured(work)
        graph.replay()
        drop()
    lines = r"aten::sin uses \(captured at .* in work\) has been freed or moved \(at .* in drop\) since the capture"
    with pytest.raises(RuntimeError, match=lines):
        graph.replay()


def test_a_profile_that_begins_in_a_capture() -> None:
    "Its start waits for the device, which ends the capture with an error; the process goes on."
    x = torch.ones(4, device=D)

    def work() -> None:
        x.sin()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.PrivateUse1]):
            x.cos()

    with pytest.raises(RuntimeError, match="synchronizing the device can't be captured"):
        captured(work)
    assert (x + 1).tolist() == [2] * 4


def test_static_inputs_that_are_still_written() -> None:
    "A capture waits for what was queued before it, as it puts memory back to what it was."
    x = torch.zeros(1 << 20, device=D)
    busy, stream = torch.openreg.Stream(), torch.openreg.Stream()
    graph = torch.openreg.OpenRegGraph()
    busy.wait_stream(torch.openreg.current_stream())
    with torch.openreg.stream(busy):
        for _ in range(20):
            x += 1
    with torch.openreg.stream(stream):
        graph.capture_begin()
        x.mul_(2)
        graph.capture_end()
    torch.openreg.synchronize()
    assert x[-1].item() == 20
