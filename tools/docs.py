# SPDX-License-Identifier: BSD-3-Clause
"""Keeps what docs/ quotes equal to the source it is quoted from.

A page holds directives, each followed by the quoted text and an end mark::

    <!-- quote: shim/device/device.cpp marker OPENREG set_device FUNCTION -->
    <!-- quote: python torch.openreg -->
    <!-- quote: run OPENREG_DRIVERS=sim python -m torch_openreg info -->
    <!-- end quote -->

``marker`` takes the lines between ``LITERALINCLUDE START: X`` and ``LITERALINCLUDE END: X``; ``python`` lists a
module's ``__all__`` with signatures and the first paragraph of each docstring; ``run`` gives a shell command and what
it prints, in an empty folder that the commands of one page share, on a machine that looks as if it had no GPU.

Run ``python tools/docs.py`` to rewrite the pages, ``python tools/docs.py --check`` to exit with 1 where one is stale.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIRECTIVE = re.compile(r"<!-- quote: (?P<what>.+?) -->\n.*?<!-- end quote -->", re.DOTALL)
LANGUAGES = {".h": "c", ".c": "c", ".cpp": "cpp", ".py": "python", ".txt": "cmake"}


def marked(path: Path, name: str) -> str:
    """Lines of ``path`` between its START and END marker ``name``.

    Raises:
        ValueError: A marker is missing, or nothing stands between them.
    """
    found = re.search(
        rf"^[^\n]*LITERALINCLUDE START: {re.escape(name)}\s*\n"
        rf"(?P<body>.*?)^[^\n]*LITERALINCLUDE END: {re.escape(name)}\s*$",
        path.read_text(),
        re.DOTALL | re.MULTILINE,
    )
    if found is None or not found["body"].strip():
        raise ValueError(f"{path.relative_to(ROOT)}: no text between the markers {name!r}")
    return found["body"].rstrip()


def python_api(module_name: str) -> str:
    """A Markdown list of a module's public names: signature and first paragraph of the docstring."""
    importlib.import_module("torch_openreg")
    module: object = sys.modules["torch"]
    for part in module_name.split(".")[1:]:
        module = getattr(module, part)
    lines = []
    for name in sorted(module.__all__, key=str.lower):  # type: ignore[attr-defined]
        value = getattr(module, name)
        if inspect.ismodule(value):
            continue
        try:
            signature = str(inspect.signature(value)) if callable(value) else ""
        except (TypeError, ValueError):
            signature = "(...)"
        signature = re.sub(r" at 0x[0-9a-f]+", "", signature)
        summary = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
        lines.append(f"- `{name}{signature}`  \n  {summary}")
    return "\n".join(lines)


# What a reader's machine may have and this one must seem to lack, so that the output is the same everywhere.
NO_GPU = {
    "OPENREG_CUDA_LIBRARY_PATH": "/nowhere/libopenreg_cuda.so",
    "OPENREG_HIP_LIBRARY_PATH": "/nowhere/libopenreg_hip.so",
    "OPENREG_SYSTEM_ROOT": "/nowhere",
}


def command_output(command: str, folder: str) -> str:
    """A shell command and its output, both streams, as a console block.

    Raises:
        ValueError: It printed nothing, or could not be run at all.
    """
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OPENREG_")}
    path = os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", "")))
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=clean | NO_GPU | {"PATH": path, "XDG_CONFIG_HOME": folder, "COLUMNS": "100"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    output = done.stdout.replace(os.path.realpath(folder), "~/project").rstrip()
    if done.returncode == 127 or not output:
        raise ValueError(f"no output to quote: {command}\n{output}")
    return f"```console\n$ {command}\n{output}\n```"


def quoted(what: str, folder: str) -> str:
    """The text that a directive stands for, as Markdown. Commands run in `folder`."""
    if what.startswith("python "):
        return python_api(what.removeprefix("python "))
    if what.startswith("run "):
        return command_output(what.removeprefix("run "), folder)
    source, name = what.split(" marker ", 1)
    path = ROOT / source
    return f"```{LANGUAGES[path.suffix]}\n{marked(path, name)}\n```"


def refreshed(text: str) -> str:
    """A page's text with every quotation made anew."""
    with tempfile.TemporaryDirectory() as folder:
        return DIRECTIVE.sub(
            lambda m: f"<!-- quote: {m['what']} -->\n{quoted(m['what'], folder)}\n<!-- end quote -->", text
        )


def main() -> int:
    """Rewrites, or with ``--check`` compares, README.md and every page of docs/."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, exit with 1 if a page is stale")
    check = parser.parse_args().check
    stale = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = page.read_text()
        fresh = refreshed(text)
        if fresh != text:
            stale.append(page.relative_to(ROOT))
            if not check:
                page.write_text(fresh)
    for path in stale:
        print(f"{path}: {'stale, run tools/docs.py' if check else 'rewritten'}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
