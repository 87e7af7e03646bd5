# SPDX-License-Identifier: BSD-3-Clause
"""The pages' code: each block is quoted from a source or from a command's output (tools/docs.py), or is run here, or
says in a comment before it why it is not, and what does run it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import torch_openreg.config

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "docs/site/index.md"]
# A block may have a comment in the line before it: why it is not run, or what its names are on the page's behalf.
FENCE = re.compile(
    r"^(?:<!-- (?P<kind>not run|run with): (?P<note>[^\n]+) -->\n)?```(?P<language>[a-z]+)\n(?P<code>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


class Block(NamedTuple):
    """A block of code on a page that is not quoted."""

    page: str
    line: int
    language: str
    code: str
    kind: str | None
    note: str | None

    @property
    def is_run(self) -> bool:
        """Whether a test below runs it."""
        return self.language in ("python", "c") and self.kind != "not run"


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page, without those that tools/docs.py keeps equal to their sources."""
    text = re.sub(
        r"<!-- quote: .*?<!-- end quote -->",
        lambda found: "\n" * found[0].count("\n"),
        page.read_text(encoding="utf-8"),
        flags=re.DOTALL,
    )
    name = str(page.relative_to(ROOT))
    return [
        Block(name, text.count("\n", 0, found.start("code")), *found.group("language", "code", "kind", "note"))
        for found in FENCE.finditer(text)
    ]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
PYTHON = [block for block in BLOCKS if block.language == "python" and block.is_run]
C = [block for block in BLOCKS if block.language == "c" and block.is_run]


# a block that nothing runs says why, and what it names instead is there
def test_every_block_is_run_or_says_why() -> None:
    assert [f"{b.page}:{b.line} ({b.language})" for b in BLOCKS if not b.is_run and b.kind != "not run"] == []
    assert len(PYTHON) > 12
    assert len(C) > 0
    named = {path for block in BLOCKS for path in re.findall(r"\btests/[\w/.]*\w", block.note or "")}
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


# Runs the files that it is given, each in a child of one interpreter that has imported torch: importing it for each
# takes longer than all blocks. Prints the numbers of those that fail, with what they have written.
RUNNER = """
import os, sys, traceback
import torch
for number, path in enumerate(sys.argv[1:]):
    child = os.fork()
    if child == 0:
        os.chdir(os.path.dirname(path))
        try:
            exec(compile(open(path).read(), path, "exec"), {"__name__": "__main__"})
            status = 0
        except BaseException:
            traceback.print_exc()
            status = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    if os.waitpid(child, 0)[1] != 0:
        print(f"FAILED {number}", flush=True)
"""


# the blocks of Python run as they are, each in a process and a folder of its own
@pytest.mark.timeout(600)
def test_python(tmp_path: Path) -> None:
    together, alone = [], []
    for number, block in enumerate(PYTHON):
        path = tmp_path / str(number) / "block.py"
        path.parent.mkdir()
        path.write_text(f"{block.note or ''}\n{block.code}", encoding="utf-8")
        # What sets variables before it imports torch, and what starts processes, needs an interpreter of its own.
        needs_own = "os.environ" in path.read_text(encoding="utf-8") or "multiprocessing" in block.code
        (alone if needs_own else together).append((path, block))
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OPENREG_")}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env=clean,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    done = run("-c", RUNNER, *(str(path) for path, _ in together))
    assert done.returncode == 0, done.stdout
    failed = [together[int(number)][1] for number in re.findall(r"^FAILED (\d+)$", done.stdout, re.MULTILINE)]
    assert [f"{block.page}:{block.line}" for block in failed] == [], done.stdout
    for path, block in alone:
        done = run(str(path))
        assert done.returncode == 0, f"{block.page}:{block.line}\n{done.stdout}"


# the programs in C compile without a warning, and run
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.parametrize("block", C, ids=lambda block: f"{block.page}:{block.line}")
def test_c(block: Block, tmp_path: Path) -> None:
    (tmp_path / "program.c").write_text(block.code)
    include, lib = torch_openreg.config.include_dir(), torch_openreg.config.lib_dir()
    subprocess.run(
        [
            *("cc", "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{include}", "program.c", f"-L{lib}", "-lopenreg"),
            *(f"-Wl,-rpath,{lib}", "-o", "program"),
        ],
        check=True,
        cwd=tmp_path,
    )
    subprocess.run([tmp_path / "program"], check=True)
