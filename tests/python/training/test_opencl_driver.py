# SPDX-License-Identifier: BSD-3-Clause
"""examples/opencl_driver: a driver over OpenCL with kernels of its own, built and used as a vendor would."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from finished import Program, finished

import torch_openreg.config

ROOT = Path(__file__).resolve().parents[3]

# A platform that uses more cores than there are would slow the tests beside this one. PoCL has a device for each word.
ENVIRONMENT = {"POCL_DEVICES": "pthread pthread", "OMP_NUM_THREADS": "1"}


def missing() -> str:
    """What this machine lacks for the driver, or nothing."""
    for header in ("CL/cl.h", "clblast_c.h"):
        if not any(Path(folder, header).exists() for folder in ("/usr/include", "/usr/local/include")):
            return f"no {header} here"
    if not list(Path("/etc/OpenCL/vendors").glob("*.icd")):
        return "no OpenCL platform here"
    return "" if shutil.which("cmake") else "no cmake here"


pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The driver, built by its own CMake file against the headers of this package."""
    build = tmp_path_factory.mktemp("opencl")
    package = Path(torch_openreg.config.prefix())
    source = ROOT / "examples" / "opencl_driver"
    for arguments in (["-S", str(source), "-B", str(build), f"-Dopenreg_ROOT={package}"], ["--build", str(build)]):
        done = finished(["cmake", *arguments])
        assert "warning:" not in done.stdout + done.stderr
    return build / "libopenreg_opencl.so"


def variables(library: Path) -> dict[str, str]:
    return {"OPENREG_DRIVER_LIBRARIES": f"opencl:{library}", "OPENREG_DRIVERS": "opencl", **ENVIRONMENT}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the driver's package, as pip installs it."""
    folder = tmp_path_factory.mktemp("packages")
    source = shutil.copytree(ROOT / "examples" / "opencl_driver", folder / "source")
    options = ("--no-build-isolation", "--no-deps", "--no-index", "--no-input", "--disable-pip-version-check")
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(folder / "here"), str(source)]
    finished(command)
    return folder / "here"


# each rule of driver.h: no failure, and what is skipped is what the table lacks
@pytest.mark.long
def test_conforms(library: Path, tmp_path: Path) -> None:
    report = tmp_path / "check.json"
    command = [sys.executable, "-m", "torch_openreg", "check", str(library), "--level", "1", "--time", "0.1"]
    finished([*command, "--json", str(report)], env=os.environ | ENVIRONMENT)
    checks = json.loads(report.read_text())["checks"]
    skipped = {check["name"] for check in checks if check["outcome"] == "skipped"}
    assert skipped <= {
        *("lifecycle.count_unopened", "lifecycle.count_fork", "lifecycle.describe", "lifecycle.describe_capacity"),
        *("lifecycle.describe_repeated", "probe.device"),
        *("process.fork_child", "info.active", "info.active_asks", "info.bind"),
        *("memory.alias_distance", "memory.alias_contents", "memory.fence"),
        *("wide.sizes", "wide.on_device"),  # they take more time
    }


# seven functions over OpenCL keep every rule, in about 150 lines
def test_the_smallest_driver(tmp_path: Path) -> None:
    source, built = ROOT / "examples" / "opencl_driver" / "minimal.c", tmp_path / "libopenreg_minimal.so"
    lines = [line for line in source.read_text().splitlines() if line.strip()]
    assert len(lines) <= 150, len(lines)
    headers = torch_openreg.config.include_dir()
    flags = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden", f"-I{headers}")
    libraries = ("-lOpenCL", "-lpthread", "-o", str(built))
    finished([os.environ.get("CC", "cc"), *flags, str(source), *libraries])
    command = [sys.executable, "-m", "torch_openreg", "check", str(built), "--level", "1", "--time", "0.1"]
    done = finished(command, env=os.environ | ENVIRONMENT)
    assert "level 1, seed 1" in done.stdout


DIGITS = """
import importlib.util, sys, torch
spec = importlib.util.spec_from_file_location("train_digits", sys.argv[1])
demo = sys.modules["train_digits"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(demo)
with torch.openreg.operator_policy("forbid"):
    one = demo.train([torch.device("openreg:0")], "opencl", epochs=1, progress=False)
cpu = demo.train([torch.device("cpu")], "cpu", epochs=1, progress=False)
assert abs(one.losses[0] - cpu.losses[0]) < 1e-4, (one.losses, cpu.losses)
assert abs(one.test_loss - cpu.test_loss) < 1e-3, (one.test_loss, cpu.test_loss)
assert demo.tolerances() == demo.DRIVER_TOLERANCES
staged = set(torch.openreg.operator_stats()["staged"])
assert staged <= {"aten::_local_scalar_dense"}, staged  # item(): one element is read
"""


# the demo's network (convolutions, batch norm, pooling, SGD) trains on kernels of the driver alone, as on the CPU
@pytest.mark.long
def test_digits(library: Path, root: Path, python: Program) -> None:
    code = DIGITS.replace("sys.argv[1]", repr(str(root / "examples" / "train_digits.py")))
    python(code, timeout=250, **variables(library))


GPT = """
import torch
import torch.nn.functional as F
from torch import nn

class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inputs, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, time, width = x.shape
        parts = self.inputs(self.before(x)).split(width, dim=2)
        q, k, v = (part.view(batch, time, self.heads, -1).transpose(1, 2) for part in parts)
        seen = torch.ones(time, time, dtype=torch.bool, device=x.device).tril()
        scores = (q @ k.transpose(-2, -1) * q.size(-1) ** -0.5).masked_fill(~seen, float("-inf"))
        x = x + self.output((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, time, width))
        return x + self.down(F.gelu(self.up(self.between(x))))

class Gpt(nn.Module):
    def __init__(self, words=32, width=32, time=16):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(time, width)
        self.blocks = nn.Sequential(Block(width, 4), Block(width, 4))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, x):
        places = self.places(torch.arange(x.size(1), device=x.device))
        return self.head(self.norm(self.blocks(self.words(x) + places)))

def train(device, steps):
    torch.manual_seed(0)
    model = Gpt().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        first = torch.randint(0, 32, (8, 1), generator=generator)
        x = ((first + torch.arange(17) * 3) % 32).to(device)
        loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses

with torch.ocl.operator_policy("forbid"):
    there = train("ocl:1", 12)
here = train("cpu", 12)
assert max(abs(a - b) for a, b in zip(here, there)) < 1e-4, (here, there)
assert there[-1] < 0.5 * there[0], there
"""


# installed, the driver's devices have its own name; a GPT of two layers with AdamW trains on the second of them, on kernels
# of the driver alone, as on the CPU
def test_gpt(packages: Path, python: Program) -> None:
    python(GPT, timeout=250, PYTHONPATH=str(packages), OPENREG_DRIVERS="opencl", **ENVIRONMENT)


# a captured training step calls the driver's kernels, and its losses are the CPU's; the contract of graphs in C holds, too
def test_graphs(library: Path, python: Program) -> None:
    code = f"""
        import subprocess, sys
        import torch
        import torch.nn.functional as F
        from torch import nn

        def train(device, captures):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4)).to(device)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            batches = [(torch.randn(6, 8), torch.randint(0, 4, (6,))) for _ in range(6)]
            x, y = (tensor.to(device) for tensor in batches[0])
            def step():
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                return loss
            losses = []
            def run(batch, work):
                x.copy_(batch[0])
                y.copy_(batch[1])
                losses.append(work().item())
            if not captures:
                for batch in batches:
                    run(batch, step)
                return losses
            side, graph = torch.openreg.Stream(), torch.openreg.OpenRegGraph()
            with torch.openreg.stream(side):
                for batch in batches[:2]:
                    run(batch, step)
            with torch.openreg.graph(graph, stream=side):
                loss = step()
            for batch in batches[2:]:
                run(batch, lambda: graph.replay() or loss)
            return losses

        if hasattr(torch._C, "_acceleratorGraph"):  # since PyTorch 2.13
            torch.openreg.set_device(1)
            torch.testing.assert_close(train("openreg:1", True), train("cpu", False), rtol=1e-4, atol=1e-5)
        checked = [sys.executable, "-m", "torch_openreg", "check", {str(library)!r}, "--only", "graph"]
        done = subprocess.run(checked, capture_output=True, text=True)
        assert done.returncode == 0 and " 0 failed, 0 skipped" in done.stdout, done.stdout
    """
    python(code, **variables(library))


# what kernels refuse runs on copies, and a vendor's error comes with its code
def test_other_types_and_errors(library: Path, python: Program) -> None:
    code = """
        import torch
        x = torch.arange(6.0).reshape(2, 3)
        for dtype in (torch.float16, torch.bfloat16, torch.complex64, torch.int8):
            y = x.to(dtype)
            assert torch.equal((y.to("openreg").t() + 1).cpu(), y.t() + 1), dtype
        def outcome(function, x):
            try:
                return function(x).tolist()
            except RuntimeError as error:
                return str(error)
        # PyTorch's own shape functions raise nothing here: its kernels do
        for dtype in (torch.bool, torch.uint8, torch.int64):
            for function in (
                lambda x: x.mul_(1.5), lambda x: x.mul_(3), lambda x: x - True, lambda x: x.abs(), lambda x: x.relu(),
                lambda x: x < -1, lambda x: x == 300, lambda x: ~x, lambda x: x.argmax(), lambda x: x.float().bitwise_not(),
            ):
                y = torch.tensor([1, 0, 1]).to(dtype)
                assert outcome(function, y.clone()) == outcome(function, y.to("openreg")), dtype
        try:
            torch.empty(1 << 50, device="openreg")
        except torch.OutOfMemoryError:
            pass
        else:
            raise AssertionError("no error")
        assert torch.equal((x.to("openreg:1") * 2).to("openreg:0").cpu(), x * 2)
    """
    python(code, **variables(library), OPENREG_OPENCL_MEMORY="64")
