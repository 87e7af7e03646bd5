# SPDX-License-Identifier: BSD-3-Clause
"""The device under a vendor's name: who chooses it, what carries it, and what goes between names."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import _torch_openreg_device_name as naming
import pytest
from declared_names import declare
from finished import finished

from torch_openreg import _registration

NAMED = {"OPENREG_DEVICE_NAME": "mychip"}


# strings, methods, the module under both names, defaults that follow
def test_everything_has_the_name(python: Any) -> None:
    out = python(
        """
        import copy, pickle, sys, torch
        x = torch.ones(3, device="mychip:1")
        assert repr(x) == "tensor([1., 1., 1.], device='mychip:1')" and str(x.device) == "mychip:1"
        assert torch.device("privateuseone:1") == x.device == torch.device("mychip", 1)
        assert x.is_mychip and x.mychip(0).get_device() == 0 and not hasattr(x, "is_openreg")
        assert torch.nn.Linear(2, 2).mychip().weight.is_mychip
        assert x.untyped_storage().is_mychip and x.type() == "torch.mychip.FloatTensor"
        assert torch.openreg is torch.mychip is sys.modules["torch.mychip"] is sys.modules["torch.openreg"]
        import torch.mychip.random, torch.openreg.random
        assert torch.mychip.random is torch.openreg.random
        torch.mychip.set_device("mychip:1")
        assert torch.mychip.current_device() == 1 and torch.accelerator.current_accelerator().type == "mychip"
        assert "mychip" in repr(torch.mychip.current_stream()) and "openreg" not in repr(torch.mychip.current_stream())
        assert "mychip" in torch.mychip.memory_summary() and "openreg" not in torch.mychip.memory_summary()
        assert torch.get_device_module("mychip") is torch.get_device_module() is torch.mychip
        with torch.autocast("mychip", dtype=torch.bfloat16):
            assert (torch.ones(2, 2, device="mychip") @ torch.ones(2, 2, device="mychip")).dtype == torch.bfloat16
        assert torch.amp.GradScaler("mychip").is_enabled()
        g = torch.Generator(device="mychip").manual_seed(1)
        torch.randn(2, device="mychip", generator=g)
        torch.mychip.manual_seed_all(5)
        with torch.random.fork_rng([0, 1], device_type="mychip"):
            a = torch.rand(2, device="mychip")
        assert torch.equal(a, torch.rand(2, device="mychip"))
        assert torch.utils.dlpack.from_dlpack(x).device == x.device
        assert copy.deepcopy(x).device == pickle.loads(pickle.dumps(x)).device == x.device
        with torch.device("mychip:1"):
            assert torch.empty(1).device == x.device
        try:
            torch.mychip.set_device("openreg:1")
        except ValueError as error:
            assert str(error) == "Expected a mychip device, but got 'openreg:1'."
        else:
            raise AssertionError("not refused")
        """,
        **NAMED,
    )
    assert out.stderr == ""


# "openreg" is PyTorch's to refuse, and the hint follows an uncaught error; other errors are left alone
def test_hint_after_the_old_name(python: Any) -> None:
    out = python("import torch; torch.ones(2, device='openreg:1')", status=1, **NAMED)
    assert "device type at start of device string: openreg" in out.stderr
    assert out.stderr.splitlines()[-1].startswith("hint: the device is named 'mychip' here")
    out = python("import torch; torch.ones(2, device='openregs')", status=1, **NAMED)
    assert "hint:" not in out.stderr
    out = python("import torch; torch.ones(2, device='mychip')", status=1)
    assert "hint:" not in out.stderr


# torch.compile asks for thousands of names that torch hasn't
def test_a_missing_name_reads_no_folder(python: Any) -> None:
    python(
        """
        import sys, torch
        assert not hasattr(torch, "nothing")
        read = []
        sys.addaudithook(lambda event, arguments: read.append(arguments) if event in ("os.listdir", "open") else None)
        for _ in range(3):
            assert not hasattr(torch, "nothing")
        assert not read, read
        """,
        **NAMED,
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(
            (name, "has a meaning for that name already")
            for name in ("cuda", "opencl", "nn", "item", "gpu", "batch_sizes")
        ),
        ("privateuseone", "has a meaning for that name already"),
        *((name, "is no name for a device") for name in ("chip2", "MyChip", "my-chip", "class", "a" * 32)),
    ],
)
# names of PyTorch's own and bad identifiers are errors that say so, and torch goes on without the device
def test_refused_names(python: Any, name: str, text: str) -> None:
    out = python(
        "import torch; print(torch.ones(2).sum().item(), torch._C._get_privateuse1_backend_name())",
        OPENREG_DEVICE_NAME=name,
    )
    assert out.stdout.split() == ["2.0", "privateuseone"]
    assert text in out.stderr and f"{name!r} (OPENREG_DEVICE_NAME)" in out.stderr


# so are those that a package declares, by its name
@pytest.mark.parametrize("name", ["cuda", "MyChip"])
def test_refused_names_of_a_package(python: Any, tmp_path: Path, name: str) -> None:
    out = python(
        "import torch; print(torch._C._get_privateuse1_backend_name())",
        PYTHONPATH=str(declare(tmp_path, "torch_bad", name)),
    )
    assert out.stdout.split() == ["privateuseone"]
    assert f"{name!r} (torch-bad)" in out.stderr, out.stderr


NAME = "import torch; print(torch.accelerator.current_accelerator(), hasattr(torch, 'openreg'))"


# one declared name is the device, without its package being imported; the variable goes before it
def test_a_declared_name(python: Any, tmp_path: Path) -> None:
    path = str(declare(tmp_path, "torch_openreg_mychip", "mychip"))
    out = python(NAME, PYTHONPATH=path)
    assert (out.stdout.split(), out.stderr) == (["mychip", "True"], "")
    for wish in ("openreg", "other"):
        out = python(NAME, PYTHONPATH=path, OPENREG_DEVICE_NAME=wish)
        assert (out.stdout.split(), out.stderr) == ([wish, "True"], "")
    out = python(NAME + "; print(torch.zeros(1).openreg())", status=1, PYTHONPATH=path)


# two vendors in one environment: neither is taken, which is said once; the variable decides
def test_several_declared_names(python: Any, tmp_path: Path) -> None:
    declare(tmp_path, "torch_openreg_mychip", "mychip")
    path = str(declare(tmp_path, "torch_openreg_other", "otherchip"))
    out = python(NAME, PYTHONPATH=path)
    assert out.stdout.split() == ["openreg", "True"]
    assert out.stderr.count("Several device names are declared") == 1
    assert "mychip (torch-openreg-mychip), otherchip (torch-openreg-other)" in out.stderr
    out = python(NAME, PYTHONPATH=path, OPENREG_DEVICE_NAME="otherchip")
    assert (out.stdout.split(), out.stderr) == (["otherchip", "True"], "")


# how to choose is in the error itself, of each name that isn't taken; other errors are PyTorch's own
@pytest.mark.parametrize("chosen", [None, "otherchip"])
def test_the_error_says_how_to_choose(python: Any, tmp_path: Path, chosen: str | None) -> None:
    declare(tmp_path, "torch_openreg_mychip", "mychip")
    path = str(declare(tmp_path, "torch_openreg_other", "otherchip"))
    out = python(
        f"""
        import torch
        chosen = {chosen!r}
        def text(kind, call):
            try:
                call()
            except kind as error:
                return str(error)
            raise AssertionError("no error")
        texts = [
            text(AttributeError, lambda: torch.mychip),
            text(AttributeError, lambda: torch.mychip.is_available()),
            *(text(RuntimeError, lambda: torch.device(*given)) for given in (("mychip",), ("mychip:1",), ("mychip", 1))),
            text(RuntimeError, lambda: torch.set_default_device("mychip")),
        ]
        for each in texts:
            assert each.count("OPENREG_DEVICE_NAME=mychip.") == 1, each
            assert "mychip (torch-openreg-mychip), otherchip (torch-openreg-other)" in each or chosen, each
        assert "'mychip'" in texts[0] and "device string: mychip" in texts[2]
        assert not hasattr(torch, "mychip") and torch.device("cpu").type == "cpu"
        assert "OPENREG" not in text(AttributeError, lambda: torch.nothing)
        assert "OPENREG" not in text(RuntimeError, lambda: torch.device("nothing"))
        if chosen:
            assert "device='otherchip'" in text(RuntimeError, lambda: torch.device("openreg"))
        """,
        PYTHONPATH=path,
        OPENREG_DEVICE_NAME=chosen,
    )
    assert "hint:" not in out.stderr
    out = python("import torch; torch.device('mychip')", status=1, PYTHONPATH=path, OPENREG_DEVICE_NAME=chosen)
    assert out.stderr.count("hint:") == 1
    out = python("import torch; torch.ones(1, device='mychip')", status=1, PYTHONPATH=path, OPENREG_DEVICE_NAME=chosen)
    assert out.stderr.splitlines()[-1].startswith("hint:")


# the module says its name: in its repr, in the error about what it lacks
def test_the_module_has_the_name(python: Any) -> None:
    code = """
        import sys, torch
        name = torch._C._get_privateuse1_backend_name()
        module = getattr(torch, name)
        assert repr(module).startswith(f"<module 'torch.{name}' from ")
        try:
            module.nothing
        except AttributeError as error:
            assert str(error) == f"module 'torch.{name}' has no attribute 'nothing'"
        assert sys.modules["torch_openreg.openreg"] is module is torch.get_device_module()
    """
    for name in ("mychip", "openreg"):
        python(code, OPENREG_DEVICE_NAME=name)


# two vendors with a driver each: both drivers are there, under the name that is chosen, alone or side by side
def test_two_vendors_drivers(python: Any, tmp_path: Path, toy_library: Path) -> None:
    for vendor in ("alpha", "beta"):
        module = f"torch_{vendor}"
        declare(tmp_path, module, f"{vendor}chip", drivers={vendor: module})
        (tmp_path / f"{module}.py").write_text(
            "from torch_openreg import openreg\n"
            "def initialize():\n"
            f"    openreg.register_driver_plugin({vendor!r}, library_path={str(toy_library)!r})\n"
        )
    path = str(tmp_path)
    code = """
        import torch
        device = torch.accelerator.current_accelerator()
        places = [f"{device}:{i}" for i in range(torch.accelerator.device_count())]
        values = [(torch.ones(2, device=place) + 1).sum().item() for place in places]
        print(device, sorted({torch.openreg.get_device_driver(place).name for place in places}), set(values))
    """
    for name, drivers in (("betachip", "beta"), ("openreg", "alpha,beta")):
        out = python(code, PYTHONPATH=path, OPENREG_DEVICE_NAME=name, OPENREG_DRIVERS=drivers)
        assert out.stdout == f"{name} {drivers.split(',')} {{4.0}}\n"


# two packages that declare one name are no conflict
def test_one_name_of_two_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declare(tmp_path, "torch_alpha", "alphachip")
    declare(tmp_path, "torch_alpha_extras", "alphachip")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv(naming.VARIABLE, raising=False)
    assert naming.declared() == {"alphachip": "torch-alpha"}
    assert naming.choose() == "alphachip"


# a driver's description file declares a name, too
def test_a_name_in_a_description(python: Any, tmp_path: Path) -> None:
    description = tmp_path / "chip.json"
    description.write_text('{"library_path": "driver.so", "device_name": "mychip"}')
    out = python(NAME, OPENREG_DRIVER_LIBRARIES=f"chip:{description}")
    assert out.stdout.split() == ["mychip", "True"]


# the choice costs no import: neither the vendor's package, nor importlib.metadata's parsing, nor a driver
@pytest.mark.fresh
def test_reading_the_choice_is_cheap(python: Any, tmp_path: Path) -> None:
    path = str(declare(tmp_path, "torch_openreg_mychip", "mychip"))
    out = python(
        """
        import sys
        import _torch_openreg_device_name as naming
        assert naming.choose() == "mychip"
        assert "torch" not in sys.modules and "importlib.metadata" not in sys.modules
        import torch
        assert not torch.mychip.is_initialized() and not any("no_such" in name for name in sys.modules)
        """,
        PYTHONPATH=path,
    )
    assert out.stderr == ""


# another package that has taken the very name is not taken for this one
def test_the_name_is_taken_by_another(python: Any) -> None:
    code = """
        import sys, types, torch
        module = types.ModuleType("foreign_openreg")
        torch.utils.rename_privateuse1_backend("{taken}")
        torch._register_device_module("{taken}", module)
        try:
            import torch_openreg
        except ImportError as error:
            print(error)
    """
    for taken in ("mychip", "openreg"):
        out = python(code.format(taken=taken), TORCH_DEVICE_BACKEND_AUTOLOAD="0", OPENREG_DEVICE_NAME=taken)
        assert f"'{taken}' has taken it by foreign_openreg" in out.stdout


# PyTorch's in-tree test extension has the same module: where it hides this package, or lies over its files, import torch
# says whose file was found, also to a vendor's users, runs nothing of it and registers nothing over it
@pytest.mark.parametrize("over", [False, True])
def test_in_tree_extension_is_recognised(python: Any, tmp_path: Path, over: bool) -> None:
    package = tmp_path / "torch_openreg"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import sys\nprint('imported')\nimport torch\nimport torch_openreg._C\nfrom . import openreg\n"
        "torch.utils.rename_privateuse1_backend('openreg')\n"
        "torch._register_device_module('openreg', openreg)\ndef _autoload(): pass\n"
    )
    if over:  # both are in one folder, as `pip install --target` leaves them
        for path in Path(_registration.__file__).parent.iterdir():
            if path.name not in ("__init__.py", "__pycache__"):
                (package / path.name).symlink_to(path)
    code = "import torch; print(torch.ones(1).item(), torch._C._get_privateuse1_backend_name())"
    declare(tmp_path, "torch_openreg_mychip", "mychip")
    for name in (None, "openreg"):
        out = python(code, PYTHONPATH=str(tmp_path), OPENREG_DEVICE_NAME=name)
        assert out.stdout.split() == ["1.0", "privateuseone"]
        assert out.stderr.count(f"{package / '__init__.py'} is another package of that name") == 1


# checkpoints go between names without map_location, in both directions
@pytest.mark.long
def test_files_go_between_names(python: Any, tmp_path: Path) -> None:
    save = "import torch; torch.save({{'x': torch.arange(3.0, device='{0}:1')}}, r'{1}')"
    load = "import torch; x = torch.load(r'{1}'{2})['x']; print(x.device, x.sum().item())"
    for name, other in (("openreg", "mychip"), ("mychip", "openreg"), ("mychip", "otherchip")):
        file = tmp_path / f"{name}.pt"
        python(save.format(name, file), OPENREG_DEVICE_NAME=name)
        assert f"{name}:1".encode() in file.read_bytes()
        for argument, device in (("", f"{other}:1"), (f", map_location='{other}:0'", f"{other}:0")):
            out = python(load.format(other, file, argument), OPENREG_DEVICE_NAME=other)
            assert out.stdout.split() == [device, "3.0"]


# folders of torch.distributed.checkpoint, of a model that FSDP2 has sharded and of its optimizer: the second program
# loads what the first has saved under another name
def test_sharded_checkpoints_go_between_names(python: Any, tmp_path: Path) -> None:
    code = """
        import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
        from torch.distributed.fsdp import fully_shard
        name, before, after, store = {0!r}, {1!r}, {2!r}, {3!r}
        dist.init_process_group(init_method="file://" + store, rank=0, world_size=1)
        torch.manual_seed(0 if before is None else 1)
        model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)).to(name)
        fully_shard(model, mesh=dist.device_mesh.init_device_mesh(name, (1,)))
        optimizer = torch.optim.Adam(model.parameters())
        x = torch.arange(8.0, device=name).reshape(2, 4)
        if before is None:
            model(x).sum().backward()
            optimizer.step()
        state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
        if before is not None:
            dcp.load(state, checkpoint_id=before)
            set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
            state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
        dcp.save(state, checkpoint_id=after)
        kept = [v["exp_avg"].full_tensor() for v in optimizer.state.values()]
        assert {{y.device.type for y in (model(x), *kept)}} == {{name}} and len(kept) == 4 and kept[0].abs().sum() > 0
        print(torch.cat([y.flatten().cpu() for y in (model(x), *kept)]).tolist())
        dist.destroy_process_group()
    """
    outcomes, before = [], None
    for number, name in enumerate(("openreg", "mychip")):
        after = str(tmp_path / str(number))
        program = code.format(name, before, after, str(tmp_path / f"store{number}"))
        outcomes.append(python(program, OPENREG_DEVICE_NAME=name).stdout)
        before = after
    assert outcomes[0].startswith("[") and outcomes == [outcomes[0]] * 2


@pytest.mark.parametrize(
    "backend", ["inductor", *(pytest.param(other, marks=pytest.mark.long) for other in ("aot_eager", "mychip"))]
)
def test_compiles(python: Any, backend: str) -> None:
    out = python(
        f"""
        import torch
        def f(x, w):
            return (x @ w).relu().sum() + torch.arange(3, device=x.device).sum()
        x, w = torch.randn(4, 4, device="mychip:1"), torch.randn(4, 4, device="mychip:1", requires_grad=True)
        y = torch.compile(f, backend="{backend}", fullgraph=True)(x, w)
        y.backward()
        torch.testing.assert_close(y, f(x, w))
        print(y.device, w.grad.device)
        """,
        **NAMED,
    )
    assert out.stdout.split() == ["mychip:1", "mychip:1"]


# a package of AOTInductor that was made under one name runs under the other
@pytest.mark.long
def test_packages_go_between_names(python: Any, tmp_path: Path) -> None:
    package = tmp_path / "model.pt2"
    make = f"""
        import torch, torch._inductor
        model = torch.nn.Linear(3, 2).eval().to("{{0}}")
        exported = torch.export.export(model, (torch.ones(1, 3, device="{{0}}"),))
        torch._inductor.aoti_compile_and_package(exported, package_path=r"{package}")
    """
    use = f"""
        import torch, torch._inductor
        print(torch._inductor.aoti_load_package(r"{package}")(torch.ones(1, 3, device="{{0}}")).device)
    """
    for name, other in (("openreg", "mychip"), ("mychip", "openreg")):
        python(make.format(name), OPENREG_DEVICE_NAME=name)
        for user in (name, other):
            assert python(use.format(user), OPENREG_DEVICE_NAME=user).stdout.split() == [f"{user}:0"]


# programs for CUDA run on it, in devices, methods and autocast
def test_cuda_means_it(python: Any) -> None:
    out = python(
        """
        import torch
        x = torch.ones(2, 2, device="cuda:1")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            y = x.cuda(0) @ torch.ones(2, 2).cuda()
        print(x.device, y.device, y.dtype, x.is_cuda, torch.cuda.device_count(), torch.device("mychip", 1))
        print(x.device == torch.device("cuda:1"), repr(x[0]).partition("device=")[2])
        """,
        OPENREG_AS_CUDA="1",
        **NAMED,
    )
    assert out.stdout.split() == ["cuda:1", "cuda:0", "torch.bfloat16", "True", "2", "cuda:1", "True", "'mychip:1')"]


# process groups: the default backend, the names of backends, DDP
def test_distributed(python: Any) -> None:
    out = python(
        """
        import tempfile, torch, torch.distributed as dist
        for backend in (None, "mychip_gloo", "openreg_gloo", "cpu:gloo,mychip:mychip_gloo"):
            dist.init_process_group(backend, init_method=f"file://{tempfile.mkdtemp()}/s", rank=0, world_size=1)
            x = torch.ones(2, device="mychip:1")
            dist.all_reduce(x)
            model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1).to("mychip:1"))
            model(x).sum().backward()
            assert dist.new_group()._get_backend(x.device).name() == "mychip_gloo"
            print(next(model.parameters()).grad.device)
            dist.destroy_process_group()
        mesh_store = tempfile.mkdtemp()
        dist.init_process_group(init_method=f"file://{mesh_store}/s", rank=0, world_size=1)
        mesh = torch.distributed.device_mesh.init_device_mesh("mychip", (1,))
        from torch.distributed.tensor import distribute_tensor, Replicate
        print(distribute_tensor(torch.ones(2), mesh, [Replicate()]).to_local().device)
        """,
        **NAMED,
    )
    assert out.stdout.split() == ["mychip:1"] * 4 + ["mychip:0"]


# a trace names the devices by it
def test_profiles(python: Any, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    python(
        f"""
        import torch
        from torch.profiler import ProfilerActivity, profile
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as run:
            torch.ones(8, device="mychip").add_(1).cpu()
        assert str(ProfilerActivity.MYCHIP) == "ProfilerActivity.MYCHIP"
        run.export_chrome_trace(r"{trace}")
        """,
        **NAMED,
    )
    text = trace.read_text()
    assert "mychip:0" in text
    assert "openreg:0" not in text


# errors of C++ name the device
def test_errors_name_the_device(python: Any) -> None:
    python(
        """
        import torch
        for call in (
            lambda: torch.sparse_coo_tensor([[0]], [1.0]).to("mychip"),
            lambda: torch.empty(1, device="mychip", layout=torch.sparse_coo),
            lambda: torch.from_file("/dev/zero", shared=True, size=4, device="mychip"),
        ):
            try:
                call()
            except (RuntimeError, NotImplementedError) as error:
                assert "openreg " not in str(error) and "an openreg" not in str(error), error
        """,
        **NAMED,
    )


# a sample of this suite's plugin: pytest --openreg under the name
def test_the_pytest_plugin(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(openreg_device):\n    assert str(openreg_device) == 'mychip:0'\n")
    finished(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--openreg=2", "test_it.py"],
        cwd=tmp_path,
        env={**os.environ, **NAMED},
    )
