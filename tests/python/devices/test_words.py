# SPDX-License-Identifier: BSD-3-Clause
"""What a user of a device with a vendor's name reads: nowhere "openreg", but where it is no name of the device."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from finished import finished

PERMITTED = (
    r"\S*torch[-_]openreg\S*",  # the distribution, its modules and files, its logger
    r"\bOPENREG_DEVICE_NAME=openreg\b",
    r"\bOPENREG_\w+",  # variables, and C's constants
    r"\bopenreg_\w+",  # the C prefix; markers and fixtures of the pytest plugin
    r"\bopenreg::",  # the namespace of operators, and of C++
    r"(?<!torch\.)\bopenreg[/.][\w.]+",  # C's headers, extensions of drivers
    r"--openreg[\w-]*",  # options of the pytest plugin
    r"\bopenreg-(check|info|sim)\b",  # programs, and what the simulated devices' driver calls its threads
    r"OpenReg (simulated|mock|C API) ",  # its devices, and drivers in C
    r"\bopenreg: (\d|most device memory|the same order)",  # the pytest plugin's own lines
    r"device type at start of device string: openreg",  # PyTorch's error for the word that the user has written,
    r"\(torch\.openreg is torch\.mychip\)",  # and the hint behind it
    r"\bOPENREG_[*<]\S*",  # variables of any driver, in help()
    r"\bOpenRegGraph\b",  # a class of the library's, as CUDAGraph is one of torch.cuda; torch.accelerator.Graph is for any
    r"# openreg: race-ok",  # a comment that the race detector reads
    r"allocate: ``\"openreg\"``;",  # the allocator in PyTorch's place is the library's
)


def not_permitted(text: str) -> list[str]:
    """Lines that have the word where it is not permitted. The folders of the checkout and of Python may have any name."""
    for folder in (str(Path(__file__).resolve().parents[3]), sys.prefix):
        text = text.replace(folder, "")
    found = []
    for line in text.splitlines():
        rest = line
        for pattern in PERMITTED:
            rest = re.sub(pattern, "", rest)
        if "openreg" in rest.lower():
            found.append(line[:300])
    return found


# whatever the folders of the checkout and of Python are called
def test_folders_may_have_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", "/home/openreg/env")
    assert not_permitted("File /home/openreg/env/lib/x.py, line 3") == []
    assert not_permitted("a device of openreg") == ["a device of openreg"]


# The first argument is a folder for files. What is printed is searched.
PROGRAM = """
import logging, os, pickle, sys, warnings
import torch, torch.distributed as dist
folder = sys.argv[1]
warnings.simplefilter("always")
logging.getLogger("torch_openreg").setLevel(logging.DEBUG)
chip = torch.mychip
count = 0

def failing(call):
    global count
    try:
        call()
    except Exception as error:
        count += 1
        print(type(error).__name__, str(error), repr(error))

# ---- str and repr
x = torch.arange(6.0, device="mychip").reshape(2, 3)
stream, event = chip.Stream(), chip.Event(enable_timing=True)
pool = chip.MemPool()
for value in (
    x, x.device, x.type(), x.untyped_storage(), x.to_sparse() if False else x.dtype, stream, event, pool,
    torch.Generator(device="mychip"), chip.get_device_properties(0), chip.get_device_driver(), chip.devices(),
    chip.current_stream(), chip.memory_summary(), chip.memory_stats(), chip.operator_stats(), chip.driver_records(),
    chip.default_generators, torch.nn.Linear(2, 2).to("mychip").weight,
    chip.host_memory_stats(), chip.device(0), torch.autocast("mychip"), torch.nn.Parameter(x), chip.FloatTensor,
):
    print(str(value), repr(value), sep="\\n")
print(chip.diagnose(), chip.operator_report())
from torch_openreg.__main__ import _parser, main
print(_parser().format_help(), main(["info"]))

# ---- errors
other = torch.ones(2, device="mychip:1")
live = torch.empty(1000, device="mychip")
one, two = chip.Event(enable_timing=True), chip.Event(enable_timing=True)
one.record(chip.default_stream(0)); two.record(chip.default_stream(1))
for call in (
    lambda: torch.ones(1, device="mychip:9"), lambda: chip.set_device(9), lambda: chip.set_device("cpu"),
    lambda: chip.nothing, lambda: x + torch.ones(3), lambda: x[0, :2] + other,
    lambda: x.numpy(), lambda: torch.empty(1 << 60, device="mychip"), lambda: torch.empty(1 << 44, device="mychip"),
    lambda: one.elapsed_time(two), lambda: chip.Event().elapsed_time(one), lambda: chip.use_driver("nothing"),
    lambda: chip.ExternalStream(8), lambda: torch.from_file("/dev/zero", shared=True, size=4, device="mychip"),
    lambda: torch.empty(1, device="mychip", layout=torch.sparse_coo), lambda: chip.get_rng_state(9),
    lambda: torch.randn(2, device="mychip", generator=torch.Generator()), lambda: chip.mem_get_info(9),
    lambda: torch.randn(2, generator=torch.Generator(device="mychip")), lambda: chip.get_device_name(9),
    lambda: chip.set_operator_policy("never"), lambda: chip.faults("mychip:77 nomem").__enter__(),
    lambda: chip.faults("mychip:x nomem").__enter__(), lambda: torch.nn.DataParallel(torch.nn.Linear(2, 2)).to("mychip:1")(x),
    lambda: chip.caching_allocator_delete(8), lambda: chip.caching_allocator_delete(live.data_ptr() + 512),
    lambda: chip.set_per_process_memory_fraction(7.0), lambda: torch.load("/dev/null"), lambda: x.record_stream(chip.Stream(1)),
    lambda: torch.from_dlpack(x.__dlpack__(dl_device=(2, 0))),
    lambda: chip.dump_flight_recorder(), lambda: chip.list_gpu_processes(9),
    lambda: torch.nn.functional.conv2d(x, x), lambda: x @ x, lambda: torch.linalg.cholesky(-torch.eye(2, device="mychip")),
    lambda: torch.ones(2, 2, device="mychip").pin_memory(), lambda: torch.zeros(3, device="mychip").share_memory_(),
    lambda: chip.default_stream(0).wait_event(torch.Event("cpu")), lambda: chip.set_preferred_driver("a b"),
):
    failing(call)
assert count > 30, count  # some are no errors with each version of PyTorch
for plan, call in (
    ("nomem at allocation 1", lambda: torch.empty(1 << 24, device="mychip")),
    ("mychip:0 error at operator 1", lambda: x + 1),
    ("mychip:1 lost after 5 copies; mychip:0 ecc at copy 1", lambda: x.cpu()),
):
    with chip.faults(plan) as plan:
        failing(call)
        print(plan, repr(plan))

# ---- operators
with chip.operator_policy("forbid", mode="aliased"):
    failing(lambda: x + 1)
with chip.operator_policy("warn", mode="aliased"):
    x * 2

# ---- a child made by fork()
sys.stdout.flush()
child = os.fork()
if child == 0:
    failing(lambda: torch.ones(1, device="mychip"))
    sys.stdout.flush()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0

# ---- races, records, traces, snapshots
chip.record_flight(64)
with chip.detect_races() as found:
    with chip.stream(stream):
        y = torch.ones(1000, device="mychip")
        y.add_(1)
    y.mul_(2)
print(*found, *map(repr, found), sep="\\n")
assert found
chip.dump_flight_recorder(folder + "/flight.json")
chip.record_flight(0)
from torch.profiler import ProfilerActivity, profile
chip.memory._record_memory_history()
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1], profile_memory=True, with_stack=True) as run:
    (x @ x.t()).relu().sum().item()
print(run.key_averages().table())
run.export_chrome_trace(folder + "/trace.json")
chip.memory._dump_snapshot(folder + "/snapshot.pickle")
print(pickle.load(open(folder + "/snapshot.pickle", "rb")))
chip.memory._record_memory_history(enabled=None)
with chip.profiler.trace() as ranges:
    failing(lambda: chip.profiler.trace().__enter__())
    x + 1
print(ranges)

# ---- files
torch.save({"x": x, "m": torch.nn.Linear(2, 2).to("mychip").state_dict()}, folder + "/saved.pt")
from torch._inductor.utils import run_and_get_code
import torch.distributed.checkpoint as dcp
dcp.save({"x": x}, checkpoint_id=folder + "/dcp")
exported = torch.export.export(torch.nn.Linear(3, 2).to("mychip"), (x,))
print(exported)
torch.export.save(exported, folder + "/exported.pt2")

# ---- generated code
code = run_and_get_code(torch.compile(lambda x: (x.sin() @ x.t()).sum() + torch.rand(2, device=x.device)), x)[1]
print(*code, sep="\\n")

# ---- process groups
dist.init_process_group(init_method=f"file://{folder}/store", rank=0, world_size=1)
group = dist.distributed_c10d._get_default_group()
print(dist.get_backend(), dist.get_backend_config(), group, group._get_backend(x.device), dist.Backend.backend_list)
for call in (
    lambda: dist.all_reduce(torch.ones(2, device="mychip", dtype=torch.bfloat16).to(torch.complex32)),
    lambda: dist.all_gather([torch.ones(2)], torch.ones(2, device="mychip")),
    lambda: dist.all_reduce(torch.ones(2, device="mychip").to_sparse()),
    lambda: dist.init_process_group("nothing"),
):
    failing(call)
print(torch.distributed.device_mesh.init_device_mesh("mychip", (1,)), count)
assert count > 35, count
dist.destroy_process_group()

# ---- what is left for the end of the process: the report of operators, a hint
torch.ones(2, device="open" + "reg")
"""


# strings, errors, warnings, log lines, reports, traces, snapshots, saved files and generated code
def test_of_a_program(python: Any, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    (tmp_path / "files").mkdir()
    out = python(
        f"import runpy, sys; sys.argv = ['program', r'{tmp_path / 'files'}']; runpy.run_path(r'{program}')",
        status=1,
        timeout=280,
        OPENREG_DEVICE_NAME="mychip",
        OPENREG_OPERATORS_REPORT="1",
        OPENREG_SIM_RACES=None,  # it has a race of its own
        OPENREG_LOG_LEVEL="debug",
        OPENREG_UNKNOWN="1",
    )
    assert "hint: the device is named 'mychip' here" in out.stderr, out.stderr
    texts = {"stdout": out.stdout, "stderr": out.stderr}
    for path in (tmp_path / "files").rglob("*"):
        if path.is_file():
            texts[path.name] = path.read_bytes().decode("latin-1")
    assert len(texts) >= 8
    found = [f"{name}: {line}" for name, text in texts.items() for line in not_permitted(text)]
    assert not found, "\n".join(found)
    assert all("mychip" in texts[name] for name in ("stdout", "stderr", "flight.json", "saved.pt", "exported.pt2"))
    assert "Cannot re-initialize mychip in forked subprocess" in out.stdout
    assert "while the mychip driver(s) sim are open" in out.stderr


# the pytest plugin: its report of the machine, of leaks, hidden copies, memory and skipped tests
def test_of_the_pytest_plugin(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest, torch\n"
        "kept = []\n"
        "def test_opens_the_devices(openreg_device):\n"
        "    torch.zeros(1, device=openreg_device)\n"
        "def test_leaks(openreg_device):\n"
        "    kept.append(torch.ones(1000, device=openreg_device))\n"
        "    torch.mychip.set_device(1)\n"
        "    torch.mychip.set_stream(torch.mychip.Stream())\n"
        "def test_copies(openreg_device):\n"
        "    helper = compile('list(x)', 'helper.py', 'eval')\n"
        "    eval(helper, {'x': torch.ones(2, device=openreg_device), 'list': lambda x: x.tolist()})\n"
        "    exec(compile('x.numpy(force=True)\\nfloat(x[0])', 'h.py', 'exec'), {'x': torch.ones(2).to(openreg_device)})\n"
        "@pytest.mark.openreg_devices(3)\n"
        "def test_needs_more(openreg_device):\n"
        "    pass\n"
    )
    options = ("--openreg=2", "--openreg-leaks=error", "--openreg-strict", "--openreg-seed=1")
    done = finished(
        [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", *options, "test_it.py"],
        status=None,
        cwd=tmp_path,
        env={**os.environ, "OPENREG_DEVICE_NAME": "mychip"},
    )
    for text in (
        "on mychip:0",
        "another current stream on mychip:1",
        "copies it to the host",
        "needs 3 mychip devices",
    ):
        assert text in done.stdout, f"{text}\n{done.stdout}\n{done.stderr}"
    found = not_permitted(done.stdout + done.stderr)
    assert not found, "\n".join(found)


# help() of each public module, class and function, and of what the pytest plugin adds: no program names them all, so they are
# walked, and that they are many is checked
def test_of_help(python: Any, tmp_path: Path) -> None:
    out = python(
        """
        import pydoc, types
        import torch
        import torch_openreg_lab.pytest_plugin
        seen, pending = {}, [torch.mychip, torch_openreg_lab.pytest_plugin]
        while pending:
            value = pending.pop()
            if id(value) in seen:
                continue
            seen[id(value)] = value
            print(pydoc.render_doc(value, renderer=pydoc.plaintext))
            for name, member in vars(value).items() if isinstance(value, types.ModuleType) else ():
                if name.startswith("_") or not callable(member) and not isinstance(member, types.ModuleType):
                    continue
                home = member.__name__ if isinstance(member, types.ModuleType) else getattr(member, "__module__", None)
                if (home or "").startswith(("torch_openreg.openreg", "torch_openreg_lab")):
                    pending.append(member)
        for owner in (torch.Tensor, torch.nn.Module, torch.UntypedStorage):
            print(pydoc.render_doc(owner.mychip, renderer=pydoc.plaintext))
        print("objects:", len(seen))
        """,
        OPENREG_DEVICE_NAME="mychip",
    )
    assert int(out.stdout.rpartition("objects:")[2]) > 150
    found = not_permitted(out.stdout)
    assert not found, "\n".join(found)
