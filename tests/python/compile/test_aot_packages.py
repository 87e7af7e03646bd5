# SPDX-License-Identifier: BSD-3-Clause
"""AOTInductor's packages for openreg, and graphs that Inductor writes in C++ (config.cpp_wrapper)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
import torch._inductor
from finished import Program, finished
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")


PACKAGE = Path(torch.__file__).parent


class Net(nn.Module):
    """Layers, an input that is written and comes back as a view, and a result on the host."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))

    def forward(self, x: torch.Tensor, shift: torch.Tensor) -> tuple[torch.Tensor, ...]:
        shift.add_(1)
        y = self.layers(x + shift)
        return y, y.sum().cpu(), shift.view(4, 4)


def compile_net(path: Path, device: str) -> None:
    """Exports a Net that is on a device, for batches of 2 to 64, and packs what AOTInductor makes of it."""
    batch = torch.export.Dim("batch", min=2, max=64)
    exported = torch.export.export(
        Net().eval().to(device),
        (torch.randn(8, 16, device=device), torch.zeros(16, device=device)),
        dynamic_shapes=({0: batch}, None),
    )
    torch._inductor.aoti_compile_and_package(exported, package_path=str(path))


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("package") / "net.pt2"
    compile_net(path, "openreg:0")
    return path


# in a process that has compiled nothing, on every device, aliased and staged; inputs, buffers and results of the host
# are what they are in eager mode on the CPU
RUN = """
import torch
import torch._inductor
from test_aot_packages import Net

for device in ("openreg:1", "openreg:0"):
    run = torch._inductor.aoti_load_package(PATH)
    expected = Net().eval()
    for size in (2, 9, 9):
        x, shift = torch.randn(size, 16), torch.randn(16)
        mine = shift.to(device)
        got = None
        before = torch.openreg.memory_allocated(device)
        got = run(x.to(device), mine)
        assert torch.openreg.memory_allocated(device) > before
        want = expected(x, shift)
        assert [str(t.device) for t in got] == [device, "cpu", device]
        torch.testing.assert_close((*got, mine), (*want, shift), check_device=False, rtol=1e-4, atol=1e-5)

    # weights of any device
    other = Net().eval()
    torch.nn.init.normal_(other.layers[0].weight)
    names = set(run.get_constant_fqns())
    weights = {k: v.detach().to(device) for k, v in other.state_dict().items() if k in names}
    assert "layers.0.weight" in weights
    run.load_constants(weights, check_full_update=True)
    x = torch.randn(3, 16)
    shift = torch.zeros(16)
    got = run(x.to(device), shift.to(device))[0].cpu()
    torch.testing.assert_close(got, other(x, shift)[0].detach(), rtol=1e-4, atol=1e-5)

stats = torch.openreg.operator_stats()
assert ("openreg::compiled_graph_" in stats["staged"]) == STAGED, stats
"""


@pytest.mark.parametrize("staged", [False, True])
def test_a_package_runs_on_every_device(python: Program, package: Path, staged: bool) -> None:
    program = f"PATH, STAGED = {str(package)!r}, {staged}\n" + RUN
    python(program, timeout=400, PYTHONPATH=os.pathsep.join(sys.path), OPENREG_OPERATORS="staged" if staged else None)


# errors of the graph and of the caller are errors, and the next call works
def test_wrong_inputs(package: Path) -> None:
    run = torch._inductor.aoti_load_package(str(package))
    x, shift = torch.randn(4, 16, device="openreg"), torch.zeros(16, device="openreg")
    with pytest.raises(RuntimeError, match="openreg:0 and openreg:1"):
        run(x, shift.to("openreg:1"))
    assert run(x, shift)[0].shape == (4, 4)


# weights that stay the caller's must be in the host's memory: those of a device are refused, not read
def test_weights_of_the_caller(package: Path) -> None:
    run = torch._inductor.aoti_load_package(str(package))
    names = set(run.get_constant_fqns())
    weights = {k: v.detach() for k, v in Net().state_dict().items() if k in names}
    there = {k: v.to("openreg") for k, v in weights.items()}
    with pytest.raises(RuntimeError, match="user_managed=True"):
        run.load_constants(there, check_full_update=True, user_managed=True)
    run.load_constants(weights, check_full_update=True, user_managed=True)
    x, shift = torch.randn(4, 16), torch.zeros(16)
    got = run(x.to("openreg"), shift.to("openreg"))[0].cpu()
    torch.testing.assert_close(got, Net()(x, shift)[0].detach(), rtol=1e-4, atol=1e-5)


# the operator around a graph is not for programs to call
def test_the_operator_alone() -> None:
    for operator in (torch.ops.openreg.compiled_graph, torch.ops.openreg.compiled_graph_):
        with pytest.raises(RuntimeError, match="not to be called"):
            operator([torch.ones(3, device="openreg")])
        with pytest.raises(RuntimeError, match="not to be called"):
            operator([torch.ones(3)])


# a graph without inputs of the device gives results on the device that the package was loaded for
def test_device_of_results(tmp_path: Path) -> None:
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.arange(4.0))

        def forward(self) -> torch.Tensor:
            return self.weight * 2

    exported = torch.export.export(Constant().to("openreg"), ())
    path = torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "constant.pt2"))
    for index, device in ((1, "openreg:1"), (-1, "openreg:0")):
        result = torch._inductor.aoti_load_package(path, device_index=index)()
        assert (str(result.device), result.tolist()) == (device, [0, 2, 4, 6])


CPP = """
#include <ATen/ATen.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <cstdio>

int main(int, char** arguments) {
  const c10::InferenceMode mode;
  torch::inductor::AOTIModelPackageLoader loader(arguments[1]);
  const at::Device device("open" "reg:1");  // the name where no package declares another
  const at::Tensor shift = at::zeros({16}, at::TensorOptions().device(device));
  const auto results = loader.run({at::ones({5, 16}, at::TensorOptions().device(device)), shift});
  std::printf("%s %s %.6f %.1f\\n", results[0].device().str().c_str(), results[1].device().str().c_str(),
      results[1].item<float>(), shift.sum().item<float>());
}
"""


# from C++, in a process without Python
def test_a_program_without_python(tmp_path: Path, package: Path) -> None:
    from torch_openreg import config

    ours = config.torch_lib_dir()
    (tmp_path / "main.cpp").write_text(CPP)
    command = ["g++", "-std=c++20", "-O0", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    command += ["-isystem", str(PACKAGE / "include"), "main.cpp", "-o", "main", f"-L{PACKAGE / 'lib'}", f"-L{ours}"]
    # Nothing names a symbol of libtorch_openreg.so: its registrations are what is wanted.
    command += ["-Wl,--no-as-needed", "-ltorch_openreg", "-ltorch", "-ltorch_cpu", "-lc10"]
    command += [f"-Wl,-rpath,{PACKAGE / 'lib'}:{ours}"]
    finished(command, cwd=tmp_path, timeout=300)
    done = finished([tmp_path / "main", package], timeout=120, env={"OPENREG_DRIVERS": "sim"})
    device, host, total, shift = done.stdout.split()
    expected = Net().eval()(torch.ones(5, 16), torch.zeros(16))
    assert (device.partition(":")[2], host, float(shift)) == ("1", "cpu", 16.0)
    assert float(total) == pytest.approx(expected[1].item(), rel=1e-4)
    assert "libpython" not in finished(["ldd", tmp_path / "main"]).stdout


# a package, which runs whatever the device is named, gives PyTorch's own name of it where openreg is not imported
def test_a_package_without_openreg(python: Program, package: Path) -> None:
    program = f"""
        import torch
        import torch._inductor
        try:
            torch._inductor.aoti_load_package({str(package)!r})
        except RuntimeError as error:
            print(error)
    """
    assert "privateuseone" in python(program, TORCH_DEVICE_BACKEND_AUTOLOAD="0").stdout


# JIT graphs in C++: forward and backward, dynamic sizes, written inputs, views, numbers and tensors of the host
CPP_WRAPPER = """
import copy
import torch
import torch._inductor.config

torch._inductor.config.cpp_wrapper = True
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
there = copy.deepcopy(model).to("openreg:1")
compiled = torch.compile(there, dynamic=True)
for size in (8, 5):
    x = torch.randn(size, 16)
    a, b = model(x).square().mean(), compiled(x.to("openreg:1")).square().mean()
    a.backward()
    b.backward()
    assert str(b.device) == "openreg:1"
    torch.testing.assert_close(a, b.cpu())
    ours, theirs = ([p.grad for p in each.parameters()] for each in (there, model))
    torch.testing.assert_close(ours, theirs, check_device=False)


def work(a, b, c):
    b.add_(1)
    return a.sin() + b.cos() + c, a.view(-1), a.shape[0] * 2, a.sum().cpu()


compiled = torch.compile(work, dynamic=True)
for size in (4, 6):
    a, b, c = torch.randn(size, 5), torch.randn(size, 5), torch.randn(())
    aa, bb = a.to("openreg"), b.to("openreg")
    want, got = work(a, b, c), compiled(aa, bb, c)
    assert got[2] == want[2] and str(got[3].device) == "cpu" and str(got[0].device) == "openreg:0"
    torch.testing.assert_close((*got, bb), (*want, b), check_device=False)

# frozen weights, which are the graph's own
torch._inductor.config.freezing = True
torch._dynamo.reset()
with torch.no_grad():
    x = torch.randn(3, 16)
    torch.testing.assert_close(model(x), torch.compile(there.eval())(x.to("openreg:1")).cpu())

staged = torch.openreg.operator_stats()["staged"]
names = {"openreg::compiled_graph", "openreg::compiled_graph_"}
assert names & set(staged) == (names if STAGED else set()), staged
"""


@pytest.mark.parametrize("staged", [pytest.param(False, marks=pytest.mark.long), True])
def test_cpp_wrapper(python: Program, staged: bool) -> None:
    python(f"STAGED = {staged}\n" + CPP_WRAPPER, timeout=400, OPENREG_OPERATORS="staged" if staged else None)


# results on a device that the graph names, forward and backward, in C++: the device, values, gradients and shared memory
OTHER_DEVICE = """
import torch
import torch._inductor.config

torch._inductor.config.cpp_wrapper = True


def work(x, y):
    y.add_(1)
    there = (x.to("openreg:1") * 2).sin()
    ones = torch.ones(3, device="openreg:1")
    back = there.to("openreg:0") + x
    view = back.expand(2, *back.shape)
    return there, ones, back, view, y.t(), (y + there).sum().cpu()


compiled = torch.compile(work, fullgraph=True)
for training in (False, True):
    torch.manual_seed(0)
    host, other = torch.randn(4, 4), torch.randn(4, 4)
    x, y = host.to("openreg:0").requires_grad_(training), other.to("openreg:1")
    got = compiled(x, y)
    devices = [str(t.device) for t in (*got, y)]
    assert devices == ["openreg:1", "openreg:1", "openreg:0", "openreg:0", "openreg:1", "cpu", "openreg:1"], devices
    assert got[3].untyped_storage().data_ptr() == got[2].untyped_storage().data_ptr()
    assert got[4].untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
    host.requires_grad_(training)
    other.add_(1)
    want = (host * 2).sin()
    want = (want, torch.ones(3), want + host, (want + host).expand(2, 4, 4), other.t(), (other + want).sum())
    torch.testing.assert_close([t.cpu() for t in got], list(want))
    if training:
        (got[0].cpu() + got[2].cpu() * 3).sum().backward()
        (want[0] + want[2] * 3).sum().backward()
        assert str(x.grad.device) == "openreg:0"
        torch.testing.assert_close(x.grad.cpu(), host.grad)

# without tensors among the inputs
made = torch.compile(lambda: (torch.ones(2, device="openreg:1"), torch.ones(3, device="openreg:0")))()
assert [str(t.device) for t in made] == ["openreg:1", "openreg:0"], made
"""


@pytest.mark.long
@pytest.mark.parametrize("staged", [False, True])
def test_results_on_another_device(python: Program, staged: bool) -> None:
    python(OTHER_DEVICE, timeout=400, OPENREG_OPERATORS="staged" if staged else None)


# the same of a package: what was on the inputs' device stays with them, the rest is where the graph says
def test_a_package_with_results_on_another_device(tmp_path: Path) -> None:
    class Moves(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            there = x.to("openreg:1") * 2
            return x + 1, there, there.t(), torch.ones(3, device="openreg:1"), there.sum().cpu()

    x = torch.randn(4, 5)
    exported = torch.export.export(Moves(), (x.to("openreg:0"),))
    path = torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "moves.pt2"))
    run = torch._inductor.aoti_load_package(path)
    for device in ("openreg:0", "openreg:1"):
        got = run(x.to(device))
        assert [str(t.device) for t in got] == [device, "openreg:1", "openreg:1", "openreg:1", "cpu"]
        torch.testing.assert_close([t.cpu() for t in got], [x + 1, x * 2, (x * 2).t(), torch.ones(3), (x * 2).sum()])
        assert got[1].untyped_storage().data_ptr() == got[2].untyped_storage().data_ptr()


# an exception in the graph is raised, and leaves nothing behind
def test_errors_go_through() -> None:
    from torch_openreg import _C_compile

    x = torch.ones(3, device="openreg")

    def fails(inputs: list[object]) -> list[object]:
        raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        _C_compile._compiled_run_whole(fails, [x], False, -1, (), False)
    with pytest.raises(TypeError):
        _C_compile._compiled_run_whole(lambda inputs: 5, [x], False, -1, (), False)  # type: ignore[arg-type, return-value]
    sums = _C_compile._compiled_run_whole(lambda inputs: [inputs[0] + inputs[1], 5], [x, 2], False, -1, (), False)
    assert sums[0].tolist() == [3] * 3
    assert sys.exc_info() == (None, None, None)
