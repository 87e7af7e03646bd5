# SPDX-License-Identifier: BSD-3-Clause
"""tools/check_rooms.py: the tree has no dependency that runs up, and the script finds one that is planted."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from finished import finished


def check(root: Path, tree: Path, *arguments: str) -> tuple[int, str]:
    """The status and the output of the script for a source tree."""
    script = root / "tools" / "check_rooms.py"
    done = finished([sys.executable, str(script), "--root", str(tree), *arguments], status=None)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree with a file in each of two rooms, and a Python package of two modules."""
    write(tmp_path, "runtime/src/base/log.c", '#include "base/log.h"\nvoid openreg_log(void) {}\n')
    write(tmp_path, "runtime/src/base/log.h", "void openreg_log(void);\n")
    write(tmp_path, "runtime/src/memory/cache.h", "void openreg_free_all(void);\n")
    write(
        tmp_path,
        "runtime/src/memory/cache.c",
        '#include "base/log.h"\n#include "memory/cache.h"\nvoid openreg_free_all(void) { openreg_log(); }\n',
    )
    write(tmp_path, "shim/operators/policy/rules.h", "")
    write(tmp_path, "shim/operators/aten/copy.cpp", '#include "shim/operators/policy/rules.h"\n')
    write(tmp_path, "python/package/__init__.py", "from package import lower\n")
    write(tmp_path, "python/package/lower.py", "import os\n")
    write(tmp_path, "python/package/upper.py", "from package.lower import os\n")
    return tmp_path


def write(tree: Path, name: str, text: str) -> None:
    (tree / name).parent.mkdir(parents=True, exist_ok=True)
    (tree / name).write_text(text)


def build(tree: Path) -> Path:
    """Compiles the tree's C files to where CMake puts the runtime's objects."""
    folder = tree / "build" / "runtime" / "CMakeFiles" / "openreg_objects.dir" / "src"
    for source in (tree / "runtime" / "src").rglob("*.c"):
        target = folder / f"{source.relative_to(tree / 'runtime' / 'src')}.o"
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["gcc", "-c", "-I", str(tree / "runtime" / "src"), str(source), "-o", str(target)], check=True)
    return tree / "build"


# a tree without upward dependencies passes, symbols read too
@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
def test_downward_calls_pass(root: Path, tree: Path) -> None:
    assert check(root, tree, "--build", str(build(tree))) == (0, "")


# a call from base to memory is found by its symbol, though nothing is included
@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
def test_planted_upward_call(root: Path, tree: Path) -> None:
    write(
        tree,
        "runtime/src/base/log.c",
        "void openreg_free_all(void);\nvoid openreg_log(void);\nvoid openreg_log(void) { openreg_free_all(); }\n",
    )
    status, output = check(root, tree, "--build", str(build(tree)))
    assert (status, output) == (1, "runtime: base/log.c uses openreg_free_all, which is above it in memory/cache.c\n")


# a callback setter of a public header is refused, and so is a header of the laboratory in a room of the runtime
def test_planted_callback_setter(root: Path, tree: Path) -> None:
    write(
        tree, "runtime/include/openreg/more.h", "OPENREG_API void openreg_set_listener(void (*listener)(void *ctx));\n"
    )
    write(tree, "runtime/src/memory/cache.c", '#include "races/races.h"\n')
    write(tree, "runtime/lab/races/races.c", '#include "memory/cache.h"\n#include "base/log.h"\n')
    status, output = check(root, tree)
    assert status == 1
    assert output.splitlines() == [
        "runtime: runtime/lab/races/races.c includes memory/cache.h, which is not the lab's to use",
        "runtime: runtime/src/memory/cache.c includes races/races.h, which belongs to the lab",
        "runtime: runtime/include/openreg/more.h has the callback setter openreg_set_listener: make it an observer's",
    ]


# a symbol of an instrument in libopenreg.so is refused, though it is hidden
@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
def test_planted_instrument(root: Path, tree: Path) -> None:
    folder = build(tree)
    write(tree, "races.c", "int openreg_races_note(void);\nint openreg_races_note(void) { return 1; }\n")
    library = folder / "runtime" / "libopenreg.so.1"
    command = ["gcc", "-shared", "-fPIC", "-fvisibility=hidden", str(tree / "races.c"), "-o", str(library)]
    subprocess.run(command, check=True)
    status, output = check(root, tree, "--build", str(folder))
    assert status == 1
    assert output == "runtime: libopenreg.so has openreg_races_note, which belongs into libopenreg_lab.so\n"


# each kind of planted dependency is named with both ends
@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "runtime/src/base/log.h",
            '#include "memory/cache.h"\n',
            "runtime: runtime/src/base/log.h includes memory/cache.h, which is above it",
        ),
        (
            "runtime/lab/races/races.c",
            "static openreg_lock lock = OPENREG_LOCK_INITIALIZER;\n",
            "runtime: runtime/lab/races/races.c has the lock lock without a stage in base/fork.h",
        ),
        (
            "runtime/graph/graphs.c",
            '#include "device/stream.h"\n',
            "runtime: runtime/graph/graphs.c includes device/stream.h, which is not graph's to use",
        ),
        ("runtime/src/extra/x.c", "", "runtime: runtime/src/extra/x.c is in no room"),
        (
            "runtime/drivers/sim/sim.c",
            '#include "memory/cache.h"\n',
            "runtime: runtime/drivers/sim/sim.c includes memory/cache.h, which is not its driver's",
        ),
        (
            "shim/operators/policy/rules.h",
            '#include "shim/operators/aten/copy.h"\n',
            "shim: shim/operators/policy/rules.h includes shim/operators/aten/copy.h, which is above it",
        ),
        ("shim/operators/extra/x.cpp", "", "shim: shim/operators/extra/x.cpp is in no room"),
        ("shim/loose.cpp", "", "shim: shim/loose.cpp is in no room"),
        (
            "shim/base/status.cpp",
            '#include "shim/observe/trace.h"\n',
            "shim: shim/base/status.cpp includes shim/observe/trace.h, which is above it",
        ),
        (
            "shim/registration/registration.cpp",
            '#include "shim/optional/profile/rows.h"\n',
            "shim: shim/registration/registration.cpp includes shim/optional/profile/rows.h, which is above it",
        ),
        (
            "shim/optional/profile/rows.cpp",
            '#include "shim/optional/compile/entry.h"\n',
            "shim: shim/optional/profile/rows.cpp includes shim/optional/compile/entry.h, which is above it",
        ),
        (
            "csrc/base/index.h",
            '#include "csrc/module.h"\n',
            "csrc: csrc/base/index.h includes csrc/module.h, which is above it",
        ),
        (
            "csrc/module.cpp",
            '#include "shim/optional/profile/rows.h"\n',
            "csrc: csrc/module.cpp includes shim/optional/profile/rows.h, which is above it",
        ),
        (
            "python/package/lower.py",
            "def late() -> None:\n    from package import upper\n",
            "python: package.lower imports package.upper, in a circle of 2",
        ),
    ],
)
def test_planted_dependency(root: Path, tree: Path, name: str, text: str, expected: str) -> None:
    write(tree, name, text)
    status, output = check(root, tree)
    assert status == 1
    assert expected in output.splitlines()


# the library's registration may include the header of a part's entry, as bindings of a part may include the part
def test_what_may_be_known_of_a_part(root: Path, tree: Path) -> None:
    write(tree, "shim/registration/parts.cpp", '#include "shim/optional/profile/entry.h"\n')
    write(tree, "csrc/optional/compile/graphs.cpp", '#include "shim/optional/compile/graphs.h"\n')
    write(tree, "csrc/memory/pools.cpp", '#include "shim/memory/pools.h"\n#include "csrc/base/bindings.h"\n')
    assert check(root, tree) == (0, "")


# imports for types alone never run
def test_imports_for_types_are_no_circle(root: Path, tree: Path) -> None:
    write(
        tree,
        "python/package/lower.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from package import upper\n",
    )
    assert check(root, tree) == (0, "")


# a build tree without objects is an error, not a success
def test_empty_build_tree(root: Path, tree: Path) -> None:
    status, output = check(root, tree, "--build", str(tree))
    assert status == 2
    assert "has no object files of the runtime" in output


# openreg-check includes no header of the runtime's but the list of slots
def test_the_check_program_is_outside(root: Path, tree: Path) -> None:
    write(tree, "runtime/check/check.h", "")
    write(tree, "runtime/check/main.c", '#include "check.h"\n#include "driver/driver_slots.h"\n')
    assert check(root, tree)[0] == 0
    write(tree, "runtime/check/main.c", '#include "base/log.h"\n')
    status, output = check(root, tree)
    assert status == 1
    assert output == "runtime: runtime/check/main.c includes base/log.h, which belongs to the runtime\n"


# a module's package is imported with it, so a circle through a package's __init__ is found
def test_a_circle_through_a_package(root: Path, tree: Path) -> None:
    write(tree, "python/package/inner/__init__.py", "from package.inner import first\n")
    write(tree, "python/package/inner/first.py", "from package import helper\n")
    write(tree, "python/package/inner/second.py", "")
    assert check(root, tree) == (0, "")
    write(tree, "python/package/helper.py", "def late() -> None:\n    from package.inner import second\n")
    status, output = check(root, tree)
    assert status == 1
    assert "python: package.helper imports package.inner, in a circle of 3" in output.splitlines()


# a module of a room imports none of a room above, at its head, inside a function or by name; each module has a room
@pytest.mark.parametrize(
    "text", ["import torch_openreg_lab", "import importlib\nimportlib.import_module('torch_openreg_lab')"]
)
def test_planted_import_of_a_higher_room(root: Path, tree: Path, text: str) -> None:
    write(tree, "python/torch_openreg_lab/__init__.py", "")
    write(tree, "python/torch_openreg/_discovery/search.py", "")
    assert check(root, tree) == (0, "")
    write(tree, "python/torch_openreg/_discovery/search.py", text + "\n")
    found = "python: torch_openreg._discovery.search imports torch_openreg_lab, which is above it\n"
    assert check(root, tree) == (1, found)
    write(tree, "python/torch_openreg/_discovery/search.py", "")
    write(tree, "python/torch_openreg/extra.py", "")
    assert check(root, tree) == (1, "python: torch_openreg.extra is in no room\n")
