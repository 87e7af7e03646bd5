# SPDX-License-Identifier: BSD-3-Clause
"""Checks that the rooms of the source tree depend on each other in one direction only.

Eight checks, each of which prints one line for every dependency that it refuses:

* ``runtime/src``: no object file refers to a symbol of a higher room (read with ``nm``), and no source includes a
  header of one.
* ``runtime/drivers``: no source includes a header but its driver's own and the installed ones, and no room includes
  one of its.
* ``runtime/lab``: no source includes a header of the rooms but the few that it may, no room includes one of its, and
  libopenreg.so has no symbol of an instrument.
* ``runtime/src`` and ``runtime/lab``: each lock has a stage in ``base/fork.h``.
* ``runtime/include``: no function takes a callback for later, but the observer's and those listed with a reason.
* ``runtime/check``: no source includes a header of those rooms, but the list of slots.
* ``shim`` and ``csrc``: no source includes a header of a higher room, or of a part that is loaded later.
* ``python/``: the modules import each other without a circle, neither at their head nor inside functions, and none
  imports one of a higher room. To import a module of a package is to import the package, and ``import_module("...")``
  counts as an import.

Run ``python tools/check_rooms.py --build build``: exits with 1 where a check fails. Without ``--build`` symbols are not
read. Nothing of the package is imported.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# From the ground up: a room may use those before it. The simulated devices are a driver beside the rooms: they use none
# of them, and the registry names their table.
RUNTIME_ROOMS = ("base", "watch", "driver", "device", "memory", "registry", "selection")
SIM = "sim"
SIM_IS_USED_BY = ("registry",)

# libopenreg_lab.so, runtime/lab: its rooms use each other, the ground, what calls observers, and a few headers more.
# No other library uses theirs: libopenreg.so opens the lab's library when one of its tools is first used.
LAB = "lab"
LAB_ROOMS = ("faults", "races", "recorder", "trace", "validation")
# The rooms and single headers that these libraries may use, beside what calls observers. libopenreg_graph.so and
# libopenreg_sharing.so are one room each, which nobody uses either.
PARTS_USE = ("base", "watch")
PARTS = {
    LAB: (
        *(*LAB_ROOMS, "calls.h", "device/lab_access.h", "driver/attached_layers.h"),
        *("driver/extensions.h", "driver/host_errors.h"),
    ),
    "graph": ("capture.h", "nodes.h", "device/lab_access.h"),
    "sharing": (
        *("exports.h", "handle.h", "imports.h", "leases.h", "device/lab_access.h"),
        *("driver/driver_calls.h", "driver/extensions.h", "memory/cache.h"),
    ),
}
LAB_SYMBOL = re.compile(
    r"openreg_(?:races?|fault_(?:plan|layer)|faults|recorder|flight|trace|validation|ledger|shadow)_"
)
# What libopenreg.so keeps of these words: a clock, and the handler of touched fences.
CORE_SYMBOLS = ("openreg_trace_clock",)

# Functions of public headers that take a callback for later, and why each is no event of an observer.
CALLBACK_SETTERS = {
    "openreg_observe": "the one table",
    "openreg_log_set_callback": "where lines go: it serves the caller, and changes nothing",
    "openreg_set_discovery_callback": "the runtime asks the language for drivers: it needs the answer",
    "openreg_set_places": "the runtime asks the language where its program is: it needs the answer",
    "openreg_set_blocking_hooks": "the language's lock, around what waits",
}
CALLBACK_SETTER = re.compile(
    r"^(?:OPENREG_API|static inline)\b[^;{}]*?\b(openreg_(?:\w+_)?set_\w+|openreg_observe)"
    r"\((?=[^;{}]*(?:\(\*|_callback\b|_function\b|_fn\b|_hook\b|_places\b|_observer\b))[^;{}]*\)",
    re.MULTILINE,
)

# A lock of the runtime, and how a module says what a fork does to it: holds it, or has handlers of its own.
LOCK = re.compile(r"^static openreg_lock (\w+)", re.MULTILINE)
HELD_LOCK = re.compile(r"openreg_fork_hold\(\w+, &(\w+)\)")

# openreg-check looks at drivers from outside: of the runtime's own headers it may use this one, and nobody uses its.
CHECK = "check"
CHECK_USES = ("driver/driver_slots.h",)

# Folders of shim and csrc, bottom up. Those in `optional` are libraries of their own, loaded when first used.
# They use what is below them, not each other, and nobody uses more of them than the header of their entry.
SHIM_ROOMS = (
    *("base", "observe", "device", "memory"),
    *(f"operators/{room}" for room in ("policy", "native", "fallback", "aten")),
    *(f"optional/{part}" for part in ("compile", "distributed", "graph", "kernels", "profile")),
    "registration",
)
CSRC_ROOMS = (
    *("base", "observe", "device", "memory", "operators"),
    *("optional/compile", "optional/distributed", "optional/cuda", ""),
)
ENTRY = "entry.h"

# Modules that the build makes.
PYTHON_BUILT = tuple(
    f"torch_openreg.{name}" for name in ("_C", "_C_compile", "_C_cuda", "_C_distributed", "_build_info")
)

# The rooms of the Python packages, from the ground up: each a list of modules, or of packages with what is in them.
PYTHON_ROOMS: Sequence[Sequence[str]] = (
    (*PYTHON_BUILT, "torch_openreg._builds", "torch_openreg._after_fork", "_torch_openreg_device_name"),
    ("torch_openreg.config", "_torch_openreg_accelerator"),
    ("torch_openreg._discovery",),
    ("torch_openreg._integration",),
    ("torch_openreg.openreg",),
    ("torch_openreg._compile",),
    ("torch_openreg._registration",),
    ("torch_openreg",),
    ("torch_openreg.contrib",),
    ("torch_openreg_lab",),
    ("torch_openreg._new", "torch_openreg.__main__"),
)

# Imports that run up, by name and only where somebody requests it, "module -> module", each with its reason.
PYTHON_EXCEPTIONS: Mapping[str, str] = {
    "torch_openreg -> torch_openreg.contrib.cuda_to_openreg": "OPENREG_AS_CUDA=1",
    "torch_openreg -> torch_openreg.contrib._on_import": "OPENREG_CONTRIB",
    "torch_openreg.openreg._lazy -> torch_openreg_lab.races": "OPENREG_RACES names lines of the program",
}

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def may_use(lower: str, higher: str, rooms: Sequence[str]) -> bool:
    """Whether a file in the room `lower` may use one in the room `higher`."""
    if lower == higher:
        return True
    if SIM in (lower, higher):
        return lower in SIM_IS_USED_BY
    return rooms.index(higher) <= rooms.index(lower)


# ------------------------------------------------------------------------------------------------------------ symbols


def object_modules(build: Path) -> dict[str, Path]:
    """The runtime's object files in a build tree by module, as ``memory/cache.c`` or ``sim/sim_memory.c``."""
    source = build / "runtime" / "CMakeFiles" / "openreg_objects.dir" / "src"
    found = {str(path.relative_to(source).with_suffix("")): path for path in source.rglob("*.o")}
    sim = build / "runtime" / "drivers" / "sim" / "CMakeFiles" / "openreg_sim_objects.dir"
    found.update({f"{SIM}/{path.stem}": path for path in sim.glob("*.o")})
    return found


def read_symbols(path: Path) -> tuple[set[str], set[str]]:
    """The symbols that an object file defines for others, and those that it wants."""
    defined: set[str] = set()
    wanted: set[str] = set()
    # Of a library the local ones too: what is hidden there is in it all the same.
    options = ["-g"] if path.suffix == ".o" else []
    listing = subprocess.run(["nm", *options, str(path)], capture_output=True, text=True, check=True).stdout
    for line in listing.splitlines():
        *_, kind, name = line.split()
        (wanted if kind in "Uw" else defined).add(name.split("@")[0])
    return defined, wanted


def check_symbols(objects: Mapping[str, Path]) -> Iterator[str]:
    """One line for every symbol of a higher room that a module refers to."""
    symbols = {module: read_symbols(path) for module, path in objects.items()}
    owners = {name: module for module, (defined, _) in symbols.items() for name in defined}
    for module, (_, wanted) in sorted(symbols.items()):
        for name in sorted(wanted & owners.keys()):
            owner = owners[name]
            if not may_use(room_of(module), room_of(owner), RUNTIME_ROOMS):
                yield f"runtime: {module} uses {name}, which is above it in {owner}"


def room_of(module: str) -> str:
    """The room of a module or header of the runtime: its folder."""
    return module.split("/", 1)[0]


# ----------------------------------------------------------------------------------------------------------- includes


def includes_of(path: Path) -> list[str]:
    """What a C or C++ file includes in quotes."""
    return INCLUDE.findall(path.read_text(encoding="utf-8"))


def sources(folder: Path) -> list[Path]:
    """All C and C++ files below a folder."""
    return sorted(path for path in folder.rglob("*") if path.suffix in (".c", ".h", ".cpp"))


def refused_includes(root: Path) -> Iterator[tuple[str, Callable[[Path, str], bool], str]]:
    """Of each rule a folder below runtime, whether a file there may not include a header, and what is said of that."""
    for part, used in PARTS.items():
        allowed = (*PARTS_USE, *used)
        owner = f"the {part}" if part == LAB else part
        yield part, lambda _, header, a=allowed: not {header, room_of(header)} & {*a}, f"is not {owner}'s to use"
    for folder in ("src", "drivers"):
        yield folder, lambda _, header: room_of(header) in LAB_ROOMS, "belongs to the lab"
    yield "src", lambda path, header: is_above(path.relative_to(root / "runtime/src"), header), "is above it"
    yield "drivers", lambda path, header: "/" in header or not (path.parent / header).exists(), "is not its driver's"
    yield "src", lambda _, header: "drivers/" in header, "is a driver's"
    of_check = {*CHECK_USES, *(path.name for path in sources(root / "runtime" / CHECK))}
    yield CHECK, lambda _, header: header not in of_check, "belongs to the runtime"


def is_above(path: Path, header: str) -> bool:
    """Whether a header is in a higher room than a file below runtime/src."""
    room, target = path.parts[0], room_of(header)
    return {room, target} <= {*RUNTIME_ROOMS} and not may_use(room, target, RUNTIME_ROOMS)


def check_runtime_includes(root: Path) -> Iterator[str]:
    """One line for every file in no room, and for every header that a file of the runtime includes and may not."""
    for path in sources(root / "runtime" / "src"):
        if path.relative_to(root).parts[2] not in RUNTIME_ROOMS:
            yield f"runtime: {path.relative_to(root)} is in no room"
    for folder, is_refused, why in refused_includes(root):
        for path in sources(root / "runtime" / folder):
            for header in includes_of(path):
                if is_refused(path, header):
                    yield f"runtime: {path.relative_to(root)} includes {header}, which {why}"


def check_callback_setters(root: Path) -> Iterator[str]:
    """One line for every function of a public header that takes a callback for later, outside of the observer."""
    for path in sources(root / "runtime" / "include"):
        for name in CALLBACK_SETTER.findall(path.read_text(encoding="utf-8")):
            if name not in CALLBACK_SETTERS:
                yield f"runtime: {path.relative_to(root)} has the callback setter {name}: make it an observer's"


def check_library(build: Path) -> Iterator[str]:
    """One line for every symbol of libopenreg.so that is an instrument's."""
    library = build / "runtime" / "libopenreg.so.1"
    if library.exists():
        for name in sorted(read_symbols(library)[0]):
            if LAB_SYMBOL.match(name) and name not in CORE_SYMBOLS:
                yield f"runtime: libopenreg.so has {name}, which belongs into libopenreg_lab.so"


def check_fork_stages(root: Path) -> Iterator[str]:
    """One line for every lock of the runtime that no stage of a fork names: a child may find half of what it guards."""
    for folder in ("src", *PARTS):
        for path in sources(root / "runtime" / folder):
            text = path.read_text(encoding="utf-8")
            if "openreg_fork_handle(" in text:
                continue
            for lock in sorted(set(LOCK.findall(text)) - set(HELD_LOCK.findall(text))):
                yield f"runtime: {path.relative_to(root)} has the lock {lock} without a stage in base/fork.h"


def split(name: str) -> tuple[str, str]:
    """The layer and the room of a file: ``shim`` and ``operators/aten`` of ``shim/operators/aten/copy.h``."""
    layer, *room, _ = name.split("/")
    return layer, "/".join(room)


def may_include(room: str, header: str, rooms: Sequence[str]) -> bool:
    """Whether a file of a room of shim or csrc may include a header of the same."""
    _, target = split(header)
    if room == target:
        return True
    if target.startswith("optional/") and not (room == "registration" and header.endswith("/" + ENTRY)):
        return False
    return target in rooms and rooms.index(target) < rooms.index(room)


def check_torch_includes(root: Path) -> Iterator[str]:
    """One line for every header of a higher room that a file of shim or csrc includes."""
    core = [room for room in SHIM_ROOMS if not room.startswith("optional/")]
    for path in [*sources(root / "shim"), *sources(root / "csrc")]:
        name = str(path.relative_to(root))
        layer, room = split(name)
        if room not in (SHIM_ROOMS if layer == "shim" else CSRC_ROOMS):
            yield f"{layer}: {name} is in no room"
            continue
        for header in includes_of(path):
            other, target = split(header) if header.startswith(("shim/", "csrc/")) else ("", "")
            if other == layer:
                is_below = may_include(room, header, SHIM_ROOMS if layer == "shim" else CSRC_ROOMS)
            else:  # a binding of a part may use that part of the shim
                is_below = other == "" or (layer == "csrc" and target in (room, *core))
            if not is_below:
                yield f"{layer}: {name} includes {header}, which is above it"


# ------------------------------------------------------------------------------------------------------------- Python


def module_name(path: Path, root: Path) -> str:
    """``torch_openreg.openreg.memory`` of a file; a package is named without ``__init__``."""
    parts = list(path.relative_to(root).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_for_types(node: ast.stmt) -> bool:
    """Whether a statement is ``if TYPE_CHECKING:``, whose imports never run."""
    if not isinstance(node, ast.If):
        return False
    return isinstance(node.test, (ast.Name, ast.Attribute)) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def import_by_name(node: ast.AST) -> ast.Import | None:
    """The import that a call ``import_module("name")`` is."""
    if not isinstance(node, ast.Call) or len(node.args) != 1 or not isinstance(node.args[0], ast.Constant):
        return None
    called = getattr(node.func, "attr", getattr(node.func, "id", None))
    name = node.args[0].value
    return ast.Import([ast.alias(name)]) if called == "import_module" and isinstance(name, str) else None


def import_statements(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """All imports of a module that can run, also those inside functions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif (by_name := import_by_name(node)) is not None:
            yield by_name
        elif not (isinstance(node, ast.If) and is_for_types(node)):
            yield from import_statements(node)


def imported_modules(path: Path, name: str, known: Iterable[str]) -> set[str]:
    """The modules among `known` that the file of module `name` imports.

    With a module come the packages that it is in, but for those that the importing module is in itself: they are being
    initialised already.
    """
    modules = set(known)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found: set[str] = set()
    for node in import_statements(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
            continue
        base = node.module or ""
        if node.level:
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*above, base] if base else above)
        for alias in node.names:
            member = f"{base}.{alias.name}"
            found.add(member if member in modules else base)
    found &= modules
    own = {name, *packages_of(name)}
    return (found | {package for module in found for package in packages_of(module)} & (modules - own)) - {name}


def packages_of(name: str) -> list[str]:
    """The packages that a module is in: ``a`` and ``a.b`` of ``a.b.c``."""
    parts = name.split(".")
    return [".".join(parts[:i]) for i in range(1, len(parts))]


def find_circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The groups of more than one module of which each imports all others, directly or not."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        seen: set[str] = set()
        pending = list(graph[start])
        while pending:
            module = pending.pop()
            if module not in seen:
                seen.add(module)
                pending.extend(graph[module])
        reached[start] = seen
    groups = {
        frozenset(other for other in reached[module] if module in reached[other])
        for module in graph
        if module in reached[module]
    }
    return sorted(sorted(group) for group in groups)


def python_room(name: str) -> int | None:
    """The number of a module's room in PYTHON_ROOMS, or None. The name torch_openreg stands for the package alone."""
    top = name.partition(".")[0]
    for prefix in (name, *reversed(packages_of(name))):
        if prefix == top == "torch_openreg" != name:
            break
        for number, room in enumerate(PYTHON_ROOMS):
            if prefix in room:
                return number
    return None


def check_python_rooms(graph: Mapping[str, set[str]]) -> Iterator[str]:
    """One line for every import of a module in a higher room, and for every module of the packages that is in none."""
    for name, imports in sorted(graph.items()):
        room = python_room(name)
        if room is None:
            if name.startswith("torch_openreg."):
                yield f"python: {name} is in no room"
            continue
        for imported in sorted(imports):
            above = python_room(imported)
            if above is not None and above > room:
                yield f"python: {name} imports {imported}, which is above it"


def check_python(root: Path, exceptions: Mapping[str, str] = PYTHON_EXCEPTIONS) -> Iterator[str]:
    """One line for every import that runs up or is part of a circle, and for every exception that is not needed."""
    folder = root / "python"
    built = folder / "torch_openreg" / "lib"
    files = {module_name(path, folder): path for path in sorted(folder.rglob("*.py")) if built not in path.parents}
    graph: dict[str, set[str]] = {name: set() for name in PYTHON_BUILT}
    for name, path in files.items():
        graph[name] = imported_modules(path, name, {*files, *PYTHON_BUILT})
    for exception in exceptions:
        module, _, imported = exception.partition(" -> ")
        if module not in graph:
            continue  # another tree
        if imported not in graph[module]:
            yield f"python: the exception '{exception}' is not needed"
        graph[module] -= {imported, *packages_of(imported)}
    yield from check_python_rooms(graph)
    for circle in find_circles(graph):
        for module in circle:
            for imported in sorted(graph[module] & set(circle)):
                yield f"python: {module} imports {imported}, in a circle of {len(circle)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs all checks; 1 if one fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--build", type=Path, help="a build tree, for the symbols of the runtime's object files")
    parser.add_argument("--root", type=Path, default=ROOT, help="the source tree; default: this one")
    options = parser.parse_args(arguments)
    found = [
        *check_runtime_includes(options.root),
        *check_callback_setters(options.root),
        *check_fork_stages(options.root),
        *check_torch_includes(options.root),
        *check_python(options.root),
    ]
    if options.build is not None:
        objects = object_modules(options.build)
        if not objects:
            parser.error(f"{options.build} has no object files of the runtime")
        found += check_symbols(objects)
        found += check_library(options.build)
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
