# SPDX-License-Identifier: BSD-3-Clause
"""torch.openreg has what torch.cuda has, or says why not; importing changes in PyTorch what is written down; stubs."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from finished import finished

from torch_openreg import _C
from torch_openreg.openreg import _absent

O = torch.openreg  # noqa: E741


# Functions of PyTorch that return the module of a device, by the last part of their name.
GETTERS = {"get_device_module", "_get_device_module", "_get_custom_mod_func", "get_device_handle", "_get_device_handle"}
# Names that PyTorch's files give to such a module where it is passed on.
HOLDERS = {"device_module", "_device_module", "device_mod", "_device_handle", "device_handle", "custom_backend_module"}
# What is looked up on types of elements, which are found in the same way: getattr(torch, name).itemsize.
OF_TYPES = {"dtype", "_dtype", "itemsize"}


def last_name(node: ast.expr) -> str:
    """`c` of `a.b.c`, or an empty text."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def constant(node: ast.expr) -> str | None:
    """A text that stands in the source."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


class Lookups(ast.NodeVisitor):
    """Collects the names that one file looks up on modules of devices."""

    def __init__(self) -> None:
        self.found: set[str] = set()
        self.holders = set(HOLDERS)

    def is_module(self, node: ast.expr) -> bool:
        """Whether an expression is the module of some device, as far as its form says."""
        if isinstance(node, ast.Call):
            name = last_name(node.func)
            if name == "getattr" and node.args and last_name(node.args[0]) == "torch":
                return len(node.args) > 1 and constant(node.args[1]) is None
            return name in GETTERS
        return last_name(node) in self.holders

    def visit_Assign(self, node: ast.Assign) -> None:
        """A variable of the file that holds such a module."""
        if self.is_module(node.value):
            self.holders |= {last_name(target) for target in node.targets} - {""}
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """`module.name`."""
        if self.is_module(node.value):
            self.found.add(node.attr)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """`getattr(module, "name")`, `hasattr(module, "name")` and `_get_custom_mod_func("name")`."""
        name = last_name(node.func)
        text: str | None = None
        if name in {"getattr", "hasattr"} and len(node.args) > 1 and self.is_module(node.args[0]):
            text = constant(node.args[1])
        elif name == "_get_custom_mod_func" and node.args:
            text = constant(node.args[0])
        if text is not None:
            self.found.add(text)
        self.generic_visit(node)


def looked_up() -> set[str]:
    """Names that the installed PyTorch looks up on the module of any device: its sources are read."""
    names: set[str] = set()
    folder = Path(torch.__file__).parent
    for path in folder.rglob("*.py"):
        if {"testing", "test"} & set(path.relative_to(folder).parts):
            continue
        text = path.read_text(errors="replace")
        if any(word in text for word in (*GETTERS, *HOLDERS, "getattr(torch, ")):
            lookups = Lookups()
            lookups.visit(ast.parse(text))
            names |= lookups.found
    return {name for name in names if not name.startswith("__")} - OF_TYPES


def test_names_are_there_or_have_a_reason() -> None:
    """Each public name of torch.cuda, and each that PyTorch looks up on modules of devices, is there or has a reason."""
    asked = looked_up()
    assert {"current_device", "set_rng_state", "Stream"} <= asked
    wanted = {name for name in dir(torch.cuda) if not name.startswith("_")} | asked
    assert sorted(name for name in wanted if not hasattr(O, name) and _absent.reason(name) is None) == []


def test_what_is_missing_says_why() -> None:
    """A name of torch.cuda that isn't there raises with its reason, and hasattr() is False; others raise as ever."""
    missing = [name for name in _absent.REASONS if name in dir(torch.cuda) and not hasattr(O, name)]
    assert {"nvtx", "CUDAGraph", "cudart", "temperature"} <= set(missing)
    for name in missing:
        with pytest.raises(AttributeError, match=re.escape(f"has no attribute '{name}': {_absent.REASONS[name]}")):
            getattr(O, name)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'$"):
        O.nonsense  # noqa: B018


def test_reasons_are_for_names_that_are_missing() -> None:
    """A name that has come to exist loses its reason, which no one would ever read."""
    assert [name for name in _absent.REASONS if hasattr(O, name)] == []


def test_what_a_device_can_do() -> None:
    """Questions of torch.cuda with a plain answer."""
    assert O.get_arch_list() == []
    assert O.get_gencode_flags() == ""
    assert O.is_tf32_supported() is False
    assert O.is_current_stream_capturing() is False
    assert (O.has_half, O.has_magma) == (True, False)
    assert O.OutOfMemoryError is torch.OutOfMemoryError
    assert O.AcceleratorError is torch.AcceleratorError
    block = torch.empty(1 << 20, device="openreg:1")
    assert O.device_memory_used(1) >= block.nbytes


def test_peers(python: Any) -> None:
    """Simulated devices reach each other, a device isn't its own peer, and different drivers share nothing."""
    assert O.can_device_access_peer(0, "openreg:1") is True
    assert O.can_device_access_peer(1, 1) is False
    with pytest.raises(RuntimeError, match="out of range"):
        O.can_device_access_peer(0, 9)
    with pytest.raises(ValueError, match="Expected an openreg device"):
        O.can_device_access_peer("cpu", 0)
    code = "import torch; assert not torch.openreg.can_device_access_peer(0, 2)"
    python(
        code,
        OPENREG_DRIVERS="sim,cuda",
        OPENREG_USE_MOCK_GPU="cuda",
        OPENREG_SIM_MEMORY="64M",
        OPENREG_CUDA_MEMORY="64M",
    )


def test_sync_debug_mode() -> None:
    """Only "default" can be set; wrong values raise as in torch.cuda."""
    O.set_sync_debug_mode("default")
    O.set_sync_debug_mode(0)
    assert O.get_sync_debug_mode() == 0
    for mode in ("warn", 2):
        with pytest.raises(NotImplementedError, match=r"profiler\.trace"):
            O.set_sync_debug_mode(mode)
    with pytest.raises(RuntimeError, match="invalid value of debug_mode.*'loud'"):
        O.set_sync_debug_mode("loud")
    with pytest.raises(ValueError, match="3"):
        O.set_sync_debug_mode(3)


@pytest.mark.parametrize("name", O.tensor_types.__all__)
def test_legacy_types_of_tensors(name: str) -> None:
    """They make tensors as torch's own do, know their instances, and are what Tensor.type() calls them."""
    made = getattr(O, name)(2, 3)
    like = getattr(torch, name)(2, 3)
    assert (made.shape, made.dtype, made.device.type) == (like.shape, like.dtype, "openreg")
    assert isinstance(made, getattr(O, name))
    assert not isinstance(like, getattr(O, name))
    assert not isinstance(made.to(torch.complex64), getattr(O, name))
    assert made.type() == f"torch.{made.device.type}.{name}"
    assert getattr(O, name)([1, 0]).tolist() == [1, 0]
    with pytest.raises(TypeError, match="of its own type"):
        getattr(O, name)(like)


def documented_changes(root: Path) -> set[str]:
    """Names in the table of docs/pytorch-integration.md."""
    text = (root / "docs" / "pytorch-integration.md").read_text()
    table = text.split("## What importing changes in PyTorch")[1].split("\n## ")[0]
    return {name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`([^`]+)`", row)}


@pytest.mark.fresh
def test_importing_changes_what_is_documented_and_nothing_else(root: Path, python: Any) -> None:
    """Every attribute of PyTorch's modules and classes is compared before and after the import, containers by size."""
    code = """
    import sys, types, warnings
    warnings.simplefilter("ignore")
    import torch, torch.distributed, torch.multiprocessing, torch.profiler, torch.utils._device, torch.utils.data

    def note(seen, where, what):
        size = len(what) if isinstance(what, (dict, list, set)) else None
        seen[where] = (what, size)

    def snapshot(modules):
        seen = {}
        for name in modules:
            for key, value in list(vars(sys.modules[name]).items()):
                note(seen, f"{name}.{key}", value)
                if isinstance(value, type) and value.__module__.partition(".")[0] == "torch":
                    for member, what in list(vars(value).items()):
                        note(seen, f"{value.__module__}.{value.__qualname__}.{member}", what)
        return seen

    modules = [name for name, module in sys.modules.items()
               if name.partition(".")[0] == "torch" and isinstance(module, types.ModuleType)]
    before = snapshot(modules)
    import torch_openreg
    after = snapshot(modules)
    own = tuple(name + "." for name in ("torch.openreg", "torch_openreg"))
    for name in before.keys() | after.keys():
        if name.startswith(own):
            continue
        old, new = before.get(name, (None, "missing")), after.get(name, (None, "missing"))
        if old[0] is not new[0] or old[1] != new[1]:
            print(name)
    """
    printed = python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0", OPENREG_DEVICE_NAME="open" + "reg").stdout.split()
    documented = documented_changes(root)
    assert set(printed) <= documented
    assert {"torch.openreg", "torch.Tensor.openreg", "torch.nn.modules.module.Module.openreg"} <= set(printed)


def test_the_stub_of_the_binary_module_is_complete(root: Path) -> None:
    """_C.pyi declares each name of _C, and no other."""
    tree = ast.parse((root / "python/torch_openreg/_C.pyi").read_text())
    declared = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    declared |= {
        node.target.id for node in tree.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assert declared == {name for name in dir(_C) if not name.startswith("__")}


@pytest.mark.parametrize("name", ["open" + "reg", pytest.param("mychip", marks=pytest.mark.long)])
def test_types_reach_the_user(root: Path, tmp_path: Path, name: str) -> None:
    """The package says that it is typed, and mypy finds wrong types in a program that uses it, and nothing else."""
    pytest.importorskip("mypy", reason="mypy is not installed")
    assert (root / "python/torch_openreg/py.typed").is_file()
    program = tmp_path / "program.py"
    program.write_text(
        "import torch\n"
        "from torch import nn\n"
        "from torch_openreg import openreg\n"
        "\n"
        "name: str = openreg.get_device_name(0)\n"
        "with openreg.profiler.trace() as ranges:\n"
        "    total: int = sum(entry.bytes for entry in ranges)\n"
        f"free, whole = openreg.mem_get_info('{name}:1')\n"
        "share: float = free / whole\n"
        "torch.openreg.set_device(0)\n"
        f"with torch.{name}.stream(torch.{name}.Stream()):\n"
        f"    x: torch.Tensor = torch.ones(2).{name}(1, non_blocking=True)\n"
        f"layer: nn.Linear = nn.Linear(2, 2).{name}(torch.device('{name}'))\n"
        f"there: bool = x.is_{name}\n"
        "wrong: str = openreg.device_count()  # wrong\n"
        f"torch.{name}.set_device([])  # wrong\n"
        f"torch.{name}.get_devcie_name(0)  # wrong\n"
        f"x.{name}(1.5)  # wrong\n"
        f"layer.{name}(device={{}})  # wrong\n"
        f"wrong = x.is_{name}  # wrong\n"
        f"x.is_{'mychip' if name != 'mychip' else 'open' + 'reg'}  # wrong\n"
    )
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = true\nplugins = torch_openreg_mypy\n")
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path / "cache"), "--follow-imports=silent"]
    done = finished(
        [*command, "program.py"],
        status=None,
        cwd=tmp_path,
        env={"MYPYPATH": str(root / "python"), "PATH": "/usr/bin:/bin", "OPENREG_DEVICE_NAME": name},
    )
    lines = program.read_text().splitlines()
    wrong = [str(number) for number, line in enumerate(lines, 1) if line.endswith("# wrong")]
    assert re.findall(r"program\.py:(\d+)", done.stdout) == wrong, done.stdout + done.stderr


def test_the_tests_that_the_page_names_exist(root: Path) -> None:
    """Every test that docs/pytorch-integration.md names is there, and every row names one."""
    text = (root / "docs" / "pytorch-integration.md").read_text()
    named = re.findall(r"`([\w/]+\.(?:py|cc))::([\w.]+)`", text)
    assert len(named) > 60
    sources = {path.name: path.read_text() for path in (root / "tests").rglob("*_test.cc")}
    sources |= {path.name: path.read_text() for path in (root / "tests").rglob("test_*.py")}
    for file, name in named:
        pattern = rf"^def {name}\(" if file.endswith(".py") else r"^TEST(_F)?\({}, {}\)".format(*name.split("."))
        assert re.search(pattern, sources.get(file, ""), re.MULTILINE), f"there is no test {file}::{name}"
    after = text.split("## C++ interfaces")[1]
    rows = [row for row in after.splitlines() if row.startswith("| ") and "PyTorch asks for" not in row]
    assert [row for row in rows if "::" not in row.rpartition(" | ")[2]] == []
