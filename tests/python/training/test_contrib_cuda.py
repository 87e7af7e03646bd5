# SPDX-License-Identifier: BSD-3-Clause
"""Programs written for CUDA run on openreg after one import, and everything is as before once it is taken back."""

from __future__ import annotations

import copy
import io
import os
import pickle
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from finished import finished
from torch import nn

REAL_DEVICE = torch.device


@pytest.fixture(scope="module")
def redirect() -> Any:
    """The module, taken back at once: it is switched on for each test."""
    from torch_openreg.contrib import cuda_to_openreg

    cuda_to_openreg.disable()
    return cuda_to_openreg


@pytest.fixture(autouse=True)
def on(redirect: Any) -> Iterator[None]:
    with redirect.enabled():
        yield


@pytest.fixture
def off(redirect: Any, on: None) -> Iterator[None]:
    """For tests that switch it on for themselves."""
    with redirect.disabled():
        yield


def test_an_unmodified_script(root: Path) -> None:
    """examples/cuda_script.py trains, with mixed precision, streams, events and a checkpoint."""
    script = root / "examples/cuda_script.py"
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "torch_openreg.contrib.cuda_to_openreg",
        str(script),
        "--epochs",
        "2",
    ]
    done = finished(command, timeout=120)
    assert "OpenReg simulated device 0 of 2" in done.stdout
    assert "accuracy: " in done.stdout
    assert "openreg" not in script.read_text().replace("It knows nothing of openreg", "").replace(
        "torch_openreg.contrib.cuda_to_openreg", ""
    )


def scripted_factories(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros([2], device=x.device) + torch.ones_like(x) + torch.full([2], 3.0, device=torch.device("cpu"))


@pytest.mark.usefixtures("off")
def test_torchscript_knows_factories(redirect: Any) -> None:
    """Scripted factories are PyTorch's operators while "cuda" is redirected and after; so torch.distributed.optim imports."""
    with redirect.enabled():
        scripted = torch.jit.script(scripted_factories)
        assert scripted(torch.ones(2)).tolist() == [4.0, 4.0]
    assert torch.jit.script(scripted_factories)(torch.ones(2)).tolist() == [4.0, 4.0]
    program = "import torch.distributed.optim"
    finished([sys.executable, "-W", "ignore", "-c", program], env=os.environ | {"OPENREG_AS_CUDA": "1"}, timeout=300)


def scripted_devices(x: torch.Tensor) -> list[torch.Tensor]:
    y = torch.ones(2, device="cuda") + torch.zeros(2, device=torch.device("cuda:0"))
    z = torch.zeros_like(x, device="cuda:1") + x.to("cuda:1") + x.new_ones(2, device="cuda:1")
    return [y, y.to(device="cuda"), x.cuda(), z, torch.ones(2, device="cpu"), z.to("cpu")]


def scripted_branches(x: torch.Tensor) -> int:
    if x.is_cuda and x.device.type == "cuda" and x.device.type in ("cuda", "xpu"):
        return 1
    return 2 if not (x + 1).is_cuda and x.device.type != "cuda" else 3


class Scripted(nn.Module):
    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return scripted_devices(x)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.usefixtures("off")
def test_torchscript_knows_devices_in_text(redirect: Any) -> None:
    """Literals in a scripted function, and in one that it calls, are the devices that they are without scripting."""
    with redirect.enabled():
        scripted = [torch.jit.script(scripted_devices), torch.jit.script(Scripted())]
        for call in (*scripted, scripted_devices):
            assert [str(y.device) for y in call(torch.ones(2))] == [*["cuda:0"] * 3, "cuda:1", "cpu", "cpu"]
        for call in (torch.jit.script(scripted_branches), scripted_branches):
            assert [call(torch.ones(2, device=device)) for device in ("cuda", "cpu")] == [1, 2]


def test_names_of_devices() -> None:
    """Strings, torch.device and its isinstance, with and without an index."""
    for name, index in (("cuda", None), ("cuda:1", 1)):
        device = torch.device(name)
        assert (device.type, device.index) == ("cuda", index)
        assert isinstance(device, torch.device)
        assert isinstance(device, REAL_DEVICE)
    assert torch.device("cuda", 1) == REAL_DEVICE("openreg:1")
    assert torch.device("cpu") == REAL_DEVICE("cpu")
    assert not isinstance("cuda", torch.device)
    assert torch.device(torch.device("cuda:1")).index == 1
    assert (torch.device | None) == (REAL_DEVICE | None)
    assert pickle.loads(pickle.dumps(torch.device("cuda:1"))) == REAL_DEVICE("openreg:1")
    with torch.device("cuda:1"):
        assert torch.ones(1).device == REAL_DEVICE("openreg:1")


def test_devices_say_cuda() -> None:
    """x.device.type, str(), repr() and formats, wherever the device comes from; not to PyTorch, which looks up modules by it."""
    x = torch.ones(2, device="cuda:1")
    for device in (
        x.device,
        x.untyped_storage().device,
        torch.accelerator.current_accelerator(),
        torch.device("openreg:1"),
    ):
        assert device.type == getattr(device, "type") == "cuda"  # noqa: B009
        assert device == REAL_DEVICE("openreg", device.index) == torch.device("cuda", device.index)
    assert (str(x.device), f"{x.device}", "%s" % x.device) == ("cuda:1",) * 3  # noqa: UP031
    assert repr(torch.device("cuda")) == "device(type='cuda')"
    assert repr(x.device) == "device(type='cuda', index=1)"
    assert torch.device(str(x.device)) == torch.device(x.device.type, x.device.index) == x.device
    assert torch.get_device_module(x.device.type) is torch.get_device_module() is torch.cuda
    assert torch.cuda.mem_get_info(x.device.type) == torch.openreg.mem_get_info(0)
    assert getattr(torch, x.device.type).current_device() == 0
    assert pickle.loads(pickle.dumps(x.device)) == copy.deepcopy(x.device) == x.device
    assert (torch.device("cpu").type, str(torch.device("meta"))) == ("cpu", "meta")
    assert "device='openreg:1'" in repr(x)  # PyTorch's code
    with torch.autocast(device_type=x.device.type):
        assert (x @ x).dtype == torch.float16
    for package, found in (
        ("torch.nn", "openreg"),
        ("torch", "openreg"),
        ("torch_geometric", "cuda"),
        ("torchvision.ops", "cuda"),
    ):
        assert eval("device.type", {"__name__": package, "device": x.device}) == found


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_code_takes_the_same_branch() -> None:
    """A branch by the device's type is compiled as it runs without compilation."""

    def branch(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.device.type == "cuda" and x.is_cuda else x * 3

    x = torch.ones(2, device="cuda")
    assert torch.compile(branch, backend="eager", fullgraph=True)(x).tolist() == branch(x).tolist() == [2.0, 2.0]
    assert torch.compile(branch, backend="eager", fullgraph=True)(x.cpu()).tolist() == [3.0, 3.0]


# what CUDA programs ask, each of a tensor
QUERIES: dict[str, Callable[[torch.Tensor], Any]] = {
    "the device's text": lambda x: (str(x.device), repr(x.device), f"{x.device}", f"{x.device!r:>30}"),
    "format()": lambda x: (format(x.device), "{} {d}".format(x.device, d=x.device)),  # noqa: UP032
    "%": lambda x: ("%s" % x.device, "%s %r" % (x.device, x.device)),  # noqa: UP031
    "the text of a device without index": lambda x: f"{torch.device('cuda')} {torch.device('cpu')}",
    "type()": lambda x: (x.type(), x.half().type(), x.cpu().type()),
    "autocast's type": lambda x: (torch.get_autocast_dtype("cuda"), torch.get_autocast_gpu_dtype()),
    "whether there is autocast": lambda x: (torch.is_autocast_enabled("cuda"), torch.is_autocast_enabled()),
    "tensor types": lambda x: (x.type(torch.cuda.HalfTensor).dtype, x.type(torch.cuda.LongTensor).device),
    "properties": lambda x: (torch.cuda.get_device_properties(0).name, torch.cuda.get_device_capability()),
    "current_device()": lambda x: x.device.index == torch.cuda.current_device(),
}


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_compiled_code_gets_the_same_answer(query: Callable[[torch.Tensor], Any]) -> None:
    """What it knows while it is traced is what the code gets without compilation."""

    def function(x: torch.Tensor) -> tuple[Any, torch.Tensor]:
        return query(x), x + 1

    torch.compiler.reset()
    for x in (torch.ones(2, device="cuda:1"), torch.ones(2)):
        assert torch.compile(function, backend="eager", fullgraph=True)(x)[0] == query(x)


@pytest.mark.parametrize("autocast", [lambda: torch.autocast("cuda", torch.bfloat16), lambda: torch.autocast("cuda")])
def test_compiled_code_goes_on_under_autocast(autocast: Callable[[], torch.autocast]) -> None:
    """Where a graph ends inside of autocast, or between its making and its begin, the rest runs under it."""

    def inside(x: torch.Tensor) -> torch.Tensor:
        with autocast():
            y = x @ x
            torch._dynamo.graph_break()
            return y @ x

    def before(x: torch.Tensor) -> torch.Tensor:
        context = autocast()
        torch._dynamo.graph_break()
        with context:
            return x @ x

    x = torch.randn(4, 4, device="cuda")
    for function in (inside, before):
        compiled = torch.compile(function, backend="eager")(x)
        assert compiled.dtype == autocast().fast_dtype
        assert torch.equal(compiled, function(x))


def test_no_device_is_no_change() -> None:
    """torch.cuda.device(-1) leaves the device as it is; compiled, too."""

    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.cuda.device(-1):
            return x + torch.ones(2, device="cuda")

    with torch.cuda.device(1):
        for run in (function, torch.compile(function, backend="eager", fullgraph=True)):
            assert run(torch.ones(2, device="cuda")).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("options", [{"backend": "aot_eager"}, {}, {"mode": "reduce-overhead"}], ids=str)
def test_compiled_code_makes_tensors_where_the_default_is(options: dict[str, Any]) -> None:
    """The default device is CUDA's current one; a graph of CUDA's, which the last asks for, isn't made."""
    torch.compiler.reset()
    torch.set_default_device("cuda")
    try:
        made = torch.compile(lambda: torch.ones(2) + torch.arange(2.0), **options)()
    finally:
        torch.set_default_device(None)
    assert made.is_cuda
    assert made.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("arguments", [(), (None,), ("cuda",), (torch.device("cuda", 1),)])
def test_compiled_code_has_the_device_module(arguments: tuple[Any, ...]) -> None:
    """torch.get_device_module() is torch.cuda inside of a graph, too, and compiled once."""

    def function(x: torch.Tensor) -> tuple[str, torch.Tensor]:
        module = torch.get_device_module(*arguments)
        return module.__name__, x + module.current_device()

    torch.compiler.reset()  # one code object for each of the arguments
    x = torch.ones(2, device="cuda")
    compiled = torch.compile(function, backend="eager", fullgraph=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for name, result in (compiled(x), compiled(x), function(x)):
            assert name == "torch.cuda"
            assert result.tolist() == [1.0, 1.0]


def test_factories_are_as_builtins() -> None:
    """Kept as a class's attribute a factory binds no object; it is pickled, copied, compiled and shown as PyTorch's own."""

    class Keeps:
        make = torch.empty
        fill = torch.full

    assert Keeps().make(2, device="cuda").is_cuda
    assert Keeps().fill((2,), 3.0, device="cuda").tolist() == [3.0, 3.0]
    for factory in (torch.empty, torch.zeros, torch.full, torch.tensor, torch.arange, torch.fft.rfftfreq):
        assert pickle.loads(pickle.dumps(factory)) is factory
        assert copy.deepcopy(factory) is factory
        assert "built-in" in repr(factory)
        assert callable(factory) and factory.__doc__ and factory.__name__

    @torch.compile(backend="eager", fullgraph=True)
    def compiled(x: torch.Tensor) -> torch.Tensor:
        y = torch.ones(2, device="cuda") + torch.zeros_like(x) + torch.full((2,), 2.0, device=x.device)
        return y + torch.fft.fftfreq(2, device="cuda")

    assert compiled(torch.ones(2, device="cuda")).tolist() == [3.0, 2.5]


def test_factories_are_all_known(redirect: Any) -> None:
    """Each function of torch that takes a device, by PyTorch's schemas."""
    schemas = [schema for schema in torch._C._jit_get_all_schemas() if schema.name.startswith("aten::")]
    with_device = {one.name[6:] for one in schemas if any(argument.name == "device" for argument in one.arguments)}
    public = {name: getattr(torch, name) for name in with_device if hasattr(torch, name) and not name.startswith("_")}
    assert len(public) > 40
    unknown = {name for name, found in public.items() if not isinstance(found, (redirect.Factory, redirect.Facade))}
    assert unknown == set()


def test_a_stream_is_kept_busy() -> None:
    """torch.cuda._sleep(): events of other streams come before, and the time is the stream's."""
    busy, other = torch.cuda.Stream(), torch.cuda.Stream()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(busy):
        begin.record()
        torch.cuda._sleep(50_000_000)
        end.record()
    with torch.cuda.stream(other):
        torch.ones(2, device="cuda").add_(1)
    other.synchronize()
    assert not end.query()
    end.synchronize()
    assert begin.elapsed_time(end) >= 50
    torch.cuda.Event(external=True).record()


# what CUDA programs write, each with the index of the device that the result is on
MAKERS: dict[str, tuple[Any, int]] = {
    "torch.empty": (lambda: torch.empty(2, device="cuda:1"), 1),
    "torch.ones, index": (lambda: torch.ones(2, device="cuda"), 0),
    "torch.tensor": (lambda: torch.tensor([1.0], device=torch.device("cuda:1")), 1),
    "torch.zeros_like": (lambda: torch.zeros_like(torch.ones(2), device="cuda:1"), 1),
    "torch.arange": (lambda: torch.arange(3, device="cuda:1"), 1),
    "torch.randn": (lambda: torch.randn(3, device="cuda:1", generator=torch.Generator("cuda:1")), 1),
    "torch.as_tensor": (lambda: torch.as_tensor([1, 2], device="cuda"), 0),
    "torch.normal": (lambda: torch.normal(0.0, 1.0, (2,), device="cuda:1"), 1),
    "torch.nested": (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], device="cuda:1"), 1),
    "torch._empty_affine_quantized": (
        lambda: torch._empty_affine_quantized((2,), scale=1.0, zero_point=0, dtype=torch.qint8, device="cuda:1"),
        1,
    ),
    "torch.fft.fftfreq": (lambda: torch.fft.fftfreq(4, device="cuda:1"), 1),
    "Tensor.cuda()": (lambda: torch.ones(2).cuda(), 0),
    "Tensor.cuda(1)": (lambda: torch.ones(2).cuda(1), 1),
    "Tensor.cuda(str)": (lambda: torch.ones(2).cuda("cuda:1", non_blocking=True), 1),
    "Tensor.cuda(device=)": (lambda: torch.ones(2).cuda(device=REAL_DEVICE("cuda:1")), 1),
    "Tensor.to": (lambda: torch.ones(2).to("cuda:1"), 1),
    "Tensor.to, type": (lambda: torch.ones(2).to("cuda:1", torch.float16), 1),
    "Tensor.to(device=)": (lambda: torch.ones(2).to(device="cuda:1", dtype=torch.float64), 1),
    "Tensor.to, CUDA's device": (lambda: torch.ones(2).to(REAL_DEVICE("cuda:1")), 1),
    "Tensor.new_zeros": (lambda: torch.ones(2).new_zeros(3, device="cuda:1"), 1),
    "Tensor.type": (lambda: torch.ones(2).type("torch.cuda.HalfTensor"), 0),
    "torch.cuda.FloatTensor": (lambda: torch.cuda.FloatTensor([1.0, 2.0]), 0),
    "Tensor.pin_memory": (lambda: torch.ones(2).pin_memory("cuda").to("cuda:1"), 1),
    "Module.cuda": (lambda: nn.Linear(2, 2).cuda(1).weight, 1),
    "Module.to": (lambda: nn.Linear(2, 2).to("cuda:1").weight, 1),
    "Module(device=)": (lambda: nn.Linear(2, 2, device="cuda:1").weight, 1),
    "Module.to_empty": (lambda: nn.Linear(2, 2, device="meta").to_empty(device="cuda:1").weight, 1),
    "storage": (
        lambda: torch.tensor([], device="cuda:1").set_(torch.ones(2).untyped_storage().cuda(1).cpu().cuda(1)),
        1,
    ),
}


@pytest.mark.parametrize("name", MAKERS)
def test_tensors_and_modules(name: str) -> None:
    """Each way to say "on CUDA" ends on the openreg device of the same index."""
    make, index = MAKERS[name]
    made = make()
    assert made.device == REAL_DEVICE("openreg", index)
    assert made.is_cuda
    assert made.is_quantized or made.untyped_storage().is_cuda


def test_the_module_torch_cuda() -> None:
    """torch.cuda answers as torch.openreg does, also for "cuda:1"; what openreg lacks stays CUDA's."""
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == torch.openreg.device_count() == 2
    assert torch.cuda.get_device_name("cuda:1") == torch.openreg.get_device_name(1)
    torch.cuda.set_device("cuda:1")
    assert torch.cuda.current_device() == 1
    with torch.cuda.device("cuda:0"):
        assert torch.cuda.current_device() == 0
    torch.cuda.set_device(0)
    block = torch.empty(1 << 20, device="cuda:1")
    assert torch.cuda.memory_allocated("cuda:1") >= block.nbytes
    assert torch.cuda.memory.memory_allocated(torch.device("cuda:1")) >= block.nbytes
    torch.cuda.synchronize("cuda:1")
    torch.cuda.manual_seed_all(3)
    first = torch.rand(2, device="cuda")
    torch.cuda.manual_seed_all(3)
    assert torch.equal(torch.rand(2, device="cuda").cpu(), first.cpu())
    state = torch.cuda.get_rng_state("cuda:1")
    torch.cuda.set_rng_state(state, "cuda:1")
    with torch.random.fork_rng(devices=["cuda:1"]):
        torch.rand(2, device="cuda:1")
    assert torch.equal(torch.cuda.get_rng_state(1), state)
    with torch.random.fork_rng(devices=[0], device_type="cuda"):
        pass
    assert torch.cuda._utils._get_device_index("cuda:1") == 1
    stream = torch.cuda.Stream(device="cuda:1", priority=-1)
    assert isinstance(stream, torch.cuda.Stream)
    for external in (torch.cuda.ExternalStream, torch.cuda.get_stream_from_external):
        assert external(stream.cuda_stream, device="cuda:1").device.index == 1
    with torch.cuda.stream(stream):
        assert torch.cuda.current_stream("cuda:1") == stream
        assert torch._C._cuda_getCurrentRawStream(1) == stream.native_handle  # bitsandbytes takes it when imported
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    event.synchronize()
    assert isinstance(event, torch.cuda.Event)

    class Mine(torch.cuda.Stream):
        pass

    assert isinstance(Mine(), torch.openreg.Stream)


@pytest.mark.skipif(not hasattr(torch._C, "_acceleratorGraph"), reason="PyTorch has graphs of accelerators since 2.13")
def test_graphs() -> None:
    """torch.cuda's names of graphs, in both of their modules."""
    assert torch.cuda.CUDAGraph is torch.cuda.graphs.CUDAGraph
    x = torch.zeros(4, device="cuda")
    made = torch.cuda.CUDAGraph()
    with torch.cuda.graph(cuda_graph=made, pool=torch.cuda.graph_pool_handle(), stream=torch.cuda.Stream()):
        assert torch.cuda.is_current_stream_capturing()
        y = x * 2 + 1
    x.fill_(3)
    made.replay()
    assert y.tolist() == [7] * 4
    layer = torch.cuda.make_graphed_callables(nn.Linear(4, 2).cuda(), (torch.ones(3, 4, device="cuda"),))
    assert layer(torch.zeros(3, 4, device="cuda")).shape == (3, 2)


@pytest.mark.usefixtures("off")
def test_kernels_for_cuda(redirect: Any) -> None:
    """An operator of the program's without a kernel for the CPU runs the one for CUDA; autocast casts what it is given."""
    x = torch.zeros(2, device="openreg")
    name = "openreg_cuda"

    @torch.library.custom_op(f"{name}::of_class", mutates_args=(), device_types="cuda")
    def of_class(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    of_class.register_fake(torch.empty_like)
    with torch.library._scoped_library(name, "FRAGMENT") as library:
        for own in ("of_library", "with_two"):
            library.define(f"{own}(Tensor x) -> Tensor")
            library.impl(own, lambda x: x + 2, "CUDA")
        library.impl("with_two", lambda x: x + 3, "CPU")
        operators = getattr(torch.ops, name)
        with redirect.enabled():
            for operator, added in ((of_class, 1), (operators.of_library, 2), (operators.with_two, 3)):
                assert operator(x).tolist() == [added] * 2
            assert torch.compile(lambda x: of_class(x) * 2, backend="aot_eager", fullgraph=True)(x).tolist() == [2, 2]
            of_class.register_autocast("cuda", torch.float16)
            with torch.autocast("cuda"):
                assert of_class(x).dtype == torch.float16
        with pytest.raises(NotImplementedError, match="there is no kernel for openreg"):
            operators.of_library(x)


TESTS_FOR_CUDA = """
import unittest, torch
from torch.testing._internal import common_device_type, common_utils, jit_utils
assert jit_utils.CUDA_VERSION == 12080
class TestStreams(common_utils.TestCase):
    def test_stream(self, device):
        assert torch.cuda.current_stream().stream_id != 0 and torch.ones(2, device=device).is_cuda
common_device_type.instantiate_device_type_tests(TestStreams, globals(), only_for="cuda")
result = unittest.TestResult()
unittest.defaultTestLoader.loadTestsFromTestCase(TestStreamsCUDA).run(result)
assert (result.testsRun, result.errors, result.failures) == (1, [], []), result.errors
assert torch.cuda.current_stream().stream_id == 0
"""


def test_pytorchs_classes_of_tests() -> None:
    """Those for CUDA run each test on a stream of its own, and look at CUDA's version."""
    command = [sys.executable, "-W", "ignore", "-c", TESTS_FOR_CUDA]
    finished(command, env=os.environ | {"OPENREG_AS_CUDA": "1"}, timeout=300)


@pytest.mark.parametrize("location", ["cuda:1", torch.device("cuda:1"), {"cpu": "cuda:1"}], ids=str)
def test_exported_programs_move(location: Any) -> None:
    """From the CPU to "cuda", with the devices in their graphs, and back."""

    class Module(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.ones(2, device=x.device)

    exported = torch.export.export(Module(), (torch.ones(2),))
    moved = torch.export.passes.move_to_device_pass(exported, location)
    assert moved.module()(torch.ones(2, device="cuda:1")).device == torch.device("cuda:1")
    back = torch.export.passes.move_to_device_pass(moved, {"cuda:1": "cpu"})
    assert back.module()(torch.ones(2)).tolist() == [2, 2]


def test_weights_of_four_bits() -> None:
    """As torchao calls CUDA's operators for them; the shape of packed weights is CUDA's."""
    rows, columns, group = 64, 256, 32
    numbers = torch.randint(0, 16, (rows, columns), dtype=torch.int32)
    scales = torch.randn(columns // group, rows, 2, dtype=torch.bfloat16)
    x = torch.randn(5, columns, dtype=torch.bfloat16)
    scale, zero = scales.float().transpose(0, 1).split(1, dim=-1)
    expected = x.float() @ ((numbers.view(rows, -1, group) - 8) * scale + zero).view(rows, columns).T
    in_bytes = (numbers[:, ::2] << 4 | numbers[:, 1::2]).to(torch.uint8)
    packed = torch.ops.aten._convert_weight_to_int4pack(in_bytes.cuda(), 8)
    assert (packed.shape, packed.dtype) == ((8, 2, 32, 4), torch.int32)
    out = torch.ops.aten._weight_int4pack_mm(x.cuda(), packed, group, scales.cuda())
    assert out.is_cuda
    torch.testing.assert_close(out.cpu().float(), expected, rtol=0.02, atol=0.5)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_mixed_precision() -> None:
    """autocast in its three spellings with CUDA's default type, GradScaler, and functions of one's own."""
    a = torch.ones(4, 4, device="cuda")
    for context in (torch.autocast("cuda"), torch.amp.autocast("cuda"), torch.cuda.amp.autocast()):
        with context:
            assert torch.is_autocast_enabled("cuda")
            assert (a @ a).dtype == torch.float16
    with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
        assert (a @ a).dtype == torch.bfloat16
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (a @ a).dtype == torch.float32

    class Own(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
            return gradients[0] * 2

    for scaler in (torch.amp.GradScaler("cuda"), torch.cuda.amp.GradScaler(), torch.GradScaler()):
        weight = torch.ones(4, 4, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        with torch.autocast("cuda"):
            loss = Own.apply(weight).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        assert scaler.is_enabled()
        torch.testing.assert_close(weight.detach().cpu(), torch.full((4, 4), 0.8))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:PyTorch is not compiled with NCCL")
def test_autocast_without_a_device() -> None:
    """What PyTorch has for CUDA from the time before other devices had autocast, and replicas of DataParallel."""
    a = torch.ones(4, 4, device="cuda")
    before = torch.get_autocast_gpu_dtype()
    assert not torch.is_autocast_enabled()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert torch.is_autocast_enabled()
        assert torch.get_autocast_gpu_dtype() == torch.bfloat16
        torch.set_autocast_gpu_dtype(torch.float16)
        assert (a @ a).dtype == torch.float16
        torch.set_autocast_enabled(False)
        assert (a @ a).dtype == torch.float32
        torch.set_autocast_enabled(enabled=True)
        assert nn.DataParallel(nn.Linear(4, 4).cuda())(a).dtype == torch.float16
    assert torch.get_autocast_gpu_dtype() == before
    for dtype in (torch.float32, torch.float64):
        with torch.autocast("cuda", dtype=dtype):
            assert (a.half() @ a).dtype == dtype


def test_files(redirect: Any) -> None:
    """Files name CUDA's devices; map_location in all its forms, for those of openreg and of a machine with CUDA too."""
    file = io.BytesIO()
    torch.save({"a": torch.arange(3.0).cuda(1)}, file)
    seen = []

    def by_function(storage: Any, location: str) -> Any:
        seen.append(location)
        return storage.cuda(0)

    locations = (("cuda:0", 0), (torch.device("cuda", 1), 1), ({"cuda:1": "cuda:0"}, 0), (by_function, 0), (None, 1))
    for location, index in locations:
        file.seek(0)
        assert torch.load(file, map_location=location)["a"].device == REAL_DEVICE("openreg", index)
    with redirect.disabled():  # and one of openreg's
        own = io.BytesIO()
        torch.save(torch.arange(3.0, device="openreg:1"), own)
    for location in ({"cuda:1": "cuda:0"}, by_function):
        own.seek(0)
        assert torch.load(own, map_location=location).device == REAL_DEVICE("openreg:0")
    assert seen == ["cuda:1", "cuda:1"]
    # The same bytes, as CUDA would have tagged them: both names of the device are nine characters with their index.
    foreign = io.BytesIO()
    torch.save(torch.arange(3.0), foreign, _use_new_zipfile_serialization=False)
    tagged = foreign.getvalue().replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:1")
    assert tagged != foreign.getvalue()
    assert torch.load(io.BytesIO(tagged)).device == REAL_DEVICE("openreg:1")


def test_memory_history(tmp_path: Path) -> None:
    """Recorded, taken and written by the names that PyTorch's documentation gives for CUDA."""
    seen: list[tuple[int, ...]] = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *values: seen.append(values))
    torch.cuda.memory._record_memory_history(max_entries=100, device="cuda")
    try:
        block = torch.empty(4096, dtype=torch.uint8, device="cuda:1")
        trace = torch.cuda.memory._snapshot("cuda:1")["device_traces"][1]
        assert block.data_ptr() in [event["addr"] for event in trace if event["action"] == "alloc"]
        torch.cuda.memory._dump_snapshot(str(tmp_path / "snapshot.pickle"))
        assert pickle.loads((tmp_path / "snapshot.pickle").read_bytes())["segments"]
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(1 << 40, dtype=torch.uint8, device="cuda:1")
        assert [values[:2] for values in seen] == [(1, 1 << 40)]
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


@pytest.mark.parametrize("names", [None, ["kernel"]], ids=["all", "kernels"])
def test_ranges_and_the_profiler(names: list[str] | None) -> None:
    """Ranges of nvtx are ranges of torch.profiler, and its activity CUDA is openreg's, whatever part of it is asked for."""
    activity = torch.profiler.ProfilerActivity
    a = torch.ones(8, 8, device="cuda")
    of_device = activity.CUDA if names is None else {activity.CUDA: names}
    with torch.profiler.profile(activities=[activity.CPU, of_device]) as profiled:
        torch.cuda.nvtx.range_push("outer")
        with torch.cuda.nvtx.range("inner {}", 1):
            a @ a
        torch.cuda.nvtx.range_pop()
        torch.cuda.nvtx.mark("here")
        torch.cuda.nvtx.range_end(torch.cuda.nvtx.range_start("started"))
    rows = {event.key for event in profiled.key_averages()}
    assert {"outer", "inner 1", "here", "started"} <= rows
    if torch.__version__ >= (2, 12) and activity.PrivateUse1 in torch.profiler.supported_activities():
        assert "aten::mm [aliased]" in rows


def test_the_runtime_of_cuda() -> None:
    """Its profiler is started and stopped; checkpoints are staged in memory that PyTorch registers with it."""
    from torch.distributed.checkpoint._state_dict_stager import StateDictStager

    runtime = torch.cuda.cudart()
    with torch.cuda.profiler.profile():
        torch.cuda.check_error(runtime.cudaProfilerStart())
    assert runtime.cudaMemGetInfo(1) == torch.cuda.mem_get_info("cuda:1")
    with pytest.raises(torch.cuda.CudaError, match=r"CUDA error 2 \(2\)"):
        torch.cuda.check_error(2)
    weight = torch.randn(1000, device="cuda")
    stager = StateDictStager(pin_memory=True, share_memory=True)
    staged = stager.stage({"weight": weight})["weight"]
    assert staged.is_shared()
    assert torch.equal(staged, weight.cpu())
    stager.close()


# a checkpoint of torch.distributed, which asks torch.cuda for the device whose tensors it copies to the host
@pytest.mark.usefixtures("off")
def test_distributed_checkpoint(redirect: Any, tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    with redirect.enabled():
        assert torch._utils._get_available_device_type() == "openreg"
        # Of the current device: PyTorch waits for the copies of no other one.
        dcp.save({"a": torch.arange(4.0, device="cuda")}, checkpoint_id=tmp_path, no_dist=True)
        loaded = {"a": torch.zeros(4, device="cuda")}
        dcp.load(loaded, checkpoint_id=tmp_path, no_dist=True)
        assert loaded["a"].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert "_get_available_device_type" not in str(redirect.redirected())


def test_defaults() -> None:
    """set_default_device and the older set_default_tensor_type."""
    dtype = torch.get_default_dtype()
    try:
        torch.set_default_device("cuda:1")
        assert torch.ones(1).device == REAL_DEVICE("openreg:1")
        torch.set_default_tensor_type("torch.cuda.DoubleTensor")
        assert torch.ones(1).type() == "torch.cuda.DoubleTensor"
        assert torch.zeros(1, device="cpu").type(torch.ones(1).type()).is_cuda
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(dtype)


@pytest.mark.usefixtures("off")
def test_taken_back(redirect: Any) -> None:
    """After disable() every name is the object that it was; twice on or off is once; disabled() is for a block."""

    def names() -> dict[tuple[str, str], Any]:
        owners = (
            torch,
            torch.cuda,
            torch.Tensor,
            torch.cuda.memory,
            torch.cuda.nvtx,
            torch.cuda.amp,
            torch.amp,
            torch.fft,
        )
        owners += (torch.serialization, torch.storage._StorageBase, torch.amp.autocast_mode.autocast, torch.distributed)
        owners += (torch.amp.grad_scaler.GradScaler, torch.profiler.profiler._KinetoProfile, torch.cuda.random)
        owners += (torch.jit.frontend.ExprBuilder,)
        return {(repr(owner), name): value for owner in owners for name, value in vars(owner).items()}

    before = names()
    redirect.enable()
    redirect.enable()
    assert redirect.is_enabled()
    changed = [key for key, value in names().items() if before.get(key) is not value]
    assert len(changed) > 100
    assert "torch.cuda.synchronize" in redirect.redirected()
    assert "torch.Tensor.cuda" in redirect.redirected()
    with redirect.disabled():
        assert torch.device is REAL_DEVICE
        assert not torch.cuda.is_available()
    assert torch.cuda.is_available()
    redirect.disable()
    redirect.disable()
    after = names()
    assert after.keys() == before.keys()
    assert [key for key in before if before[key] is not after[key]] == []
    assert redirect.redirected() == []
    with redirect.enabled():
        tensor = torch.ones(2).cuda()
        model = copy.deepcopy(nn.Linear(2, 2).cuda())
    assert tensor.device.type == model.weight.device.type == "openreg"
    assert (str(tensor.device), repr(tensor.device)) == ("openreg:0", "device(type='openreg', index=0)")
    with pytest.raises((AssertionError, RuntimeError)):
        torch.ones(1).cuda()


def test_importing_is_enough() -> None:
    """The import alone redirects, wherever it stands; openreg itself never imports it."""
    code = """
    import sys, torch, torch_openreg
    assert not [name for name in sys.modules if name.startswith("torch_openreg.contrib")]
    import torch_openreg.contrib.cuda_to_openreg
    assert torch.zeros(1, device="cuda:1").device.index == 1
    """
    finished([sys.executable, "-c", textwrap.dedent(code)], timeout=120)


def test_importing_late(tmp_path: Path) -> None:
    """Dynamo, which has tables of PyTorch's functions by then, knows what stands for them."""
    program = tmp_path / "late.py"  # Dynamo reads the source
    program.write_text("""
import torch
torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
import torch_openreg.contrib.cuda_to_openreg

@torch.compile(backend="eager", fullgraph=True)
def function(x):
    return torch.get_device_module("cuda").__name__, str(x.device), torch.ones(2, device="cuda") + x

assert function(torch.ones(2, device="cuda"))[:2] == ("torch.cuda", "cuda:0")
""")
    finished([sys.executable, program], timeout=120)
