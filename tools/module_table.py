# SPDX-License-Identifier: BSD-3-Clause
"""Writes docs/module-completeness.md: what of ``torch.cuda`` is in ``torch.openreg``, and why the rest is not.

Three questions: which public names of the installed ``torch.cuda`` are there; which names does the installed PyTorch
look up on the module of any device (its sources are read for that); which names does ``torch.openreg`` have besides.

Run ``python tools/module_table.py`` to rewrite the page, ``--check`` to exit with 1 where it is stale or where a name
is neither there nor has a reason in ``torch_openreg.openreg._absent``.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

import torch_openreg  # noqa: F401
from torch_openreg.openreg import _absent

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "module-completeness.md"

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


def sources() -> Iterator[Path]:
    """PyTorch's own files."""
    root = Path(torch.__file__).parent
    for path in sorted(root.rglob("*.py")):
        if not {"testing", "test"} & set(path.relative_to(root).parts):
            yield path


def looked_up() -> dict[str, int]:
    """Names that the installed PyTorch looks up on the module of any device, and in how many files."""
    names: dict[str, int] = {}
    for path in sources():
        text = path.read_text(errors="replace")
        if not any(word in text for word in (*GETTERS, *HOLDERS, "getattr(torch, ")):
            continue
        lookups = Lookups()
        lookups.visit(ast.parse(text))
        for name in lookups.found:
            if not name.startswith("__") and name not in OF_TYPES:
                names[name] = names.get(name, 0) + 1
    return names


def minor_version() -> str:
    """Of the installed PyTorch: "2.13"."""
    return ".".join(torch.__version__.split(".")[:2])


def public_names(module: object) -> list[str]:
    """Names without an underscore in front."""
    return [name for name in dir(module) if not name.startswith("_")]


def is_there(name: str) -> bool:
    """Whether torch.openreg has a name."""
    return hasattr(torch.openreg, name)


def unexplained() -> list[str]:
    """Names that are missing without a reason."""
    wanted = {*public_names(torch.cuda), *looked_up()}
    return sorted(name for name in wanted if not is_there(name) and _absent.reason(name) is None)


def code(names: list[str]) -> str:
    """A list of names for the page."""
    return ", ".join(f"`{name}`" for name in names)


def page() -> str:
    """The page."""
    cuda, asked = public_names(torch.cuda), looked_up()
    present = [name for name in cuda if is_there(name)]
    reasons: dict[str, list[str]] = {}
    for name in sorted({*cuda, *asked}):
        if not is_there(name):
            reasons.setdefault(_absent.reason(name) or "**unknown**", []).append(name)
    own = sorted(set(public_names(torch.openreg)) - set(cuda))
    lines = [
        "# What of `torch.cuda` is in `torch.openreg`",
        "",
        f"Written by `python tools/module_table.py` from PyTorch {minor_version()}; a test fails where a name is",
        "neither there nor has a reason. A name that isn't there raises an `AttributeError` with the reason, so",
        "`hasattr()` is False.",
        "",
        "## There, with the meaning of `torch.cuda`",
        code(present),
        "",
        "## Not there, and why",
        "| names | reason |",
        "|---|---|",
        *(f"| {code(names)} | {why} |" for why, names in sorted(reasons.items())),
        "",
        "## Looked up by PyTorch on the module of any device",
        "Read in its sources: what it asks of the modules that `torch.get_device_module()` and its like return. All of",
        "these are there, except those above.",
        "",
        code(sorted(name for name in asked if is_there(name))),
        "",
        "## Of `torch.openreg` alone",
        code(own),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Writes or checks."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 where the page is stale")
    options = parser.parse_args()
    missing = unexplained()
    if missing:
        print(f"torch.openreg has neither these names nor a reason in _absent.py: {', '.join(missing)}")
    text = page()
    if not options.check:
        PAGE.write_text(text)
    elif f"from PyTorch {minor_version()};" not in PAGE.read_text():
        print(f"{PAGE.relative_to(ROOT)} is of another PyTorch: not compared")
    elif PAGE.read_text() != text:
        print(f"{PAGE.relative_to(ROOT)} is stale: run python tools/module_table.py")
        return 1
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
