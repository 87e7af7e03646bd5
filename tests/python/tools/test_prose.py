# SPDX-License-Identifier: BSD-3-Clause
"""The words that CONTRIBUTING.md replaces ("Words") don't occur in prose: pages, comments, docstrings and messages."""

from __future__ import annotations

import re
from pathlib import Path

# Files and folders that are held to it; tests follow as they are edited.
CLEAN = (
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "SECURITY.md", "RELEASING.md", "docs"),
    *("benchmarks", "csrc", "examples", "python", "runtime", "shim", "tools"),
    *("tests/acceptance.md", "tests/drivers/frozen/README.md"),
)
# What the build puts into the package of a checkout.
GENERATED = tuple(f"python/torch_openreg/{name}/" for name in ("bin", "include", "lib", "share"))
# Where such a word is right: the file and the words found, with the reason.
EXCEPTIONS = {
    ("benchmarks/bench.py", "laboratory"): "the name of a group of figures, which --group takes",
}

BE = r"(?:is|are|was|were|be|been|being)"
PATTERN = (
    rf"\b{BE} (?:told|asked|seen|alive)\b|\btells? of\b|\bha(?:s|ve) passed\b|\bwhoever\b|\bof itself\b|\blikewise\b|\bmeanwhile\b"
    rf"|\b{BE} of (?:a|an|the|this|its|their|one|another|no)\b|\bso (?:much|many)\b(?! (?:as|that)\b)|\bg(?:ive|ives|iving|ave|iven) back\b"
    rf"|\b{BE} there(?=[.,;:)])|(?<![/\w])laboratory\b(?!\.md|/)|\bmore than that there\b|\bbegun and not ended\b|(?<=[.:;] )(?-i:Of) (?!course|\d)"
)
# A phrase may go on in the next line, of a comment too.
WORDS = re.compile(PATTERN.replace("] )", "]\\s)").replace(" ", r"[\s*#/]+"), re.IGNORECASE)
# What is no prose on a page: blocks of code, comments, code in a line, targets of links.
CODE = re.compile(r"^```.*?^```$|<!--.*?-->|`[^`\n]+`|\]\([^)\n]*\)", re.DOTALL | re.MULTILINE)
C_TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
PYTHON_TEXT = re.compile(r'#[^\n]*|"""(?:\\.|[^\\])*?"""|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)
SOURCES = {".c": C_TEXT, ".cc": C_TEXT, ".cpp": C_TEXT, ".h": C_TEXT, ".py": PYTHON_TEXT, ".pyi": PYTHON_TEXT}


def prose(path: Path) -> str:
    """The prose of a file, each line in its place."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return CODE.sub(lambda code: "`" + "\n" * code[0].count("\n"), text)
    kept, end = [], 0
    for part in SOURCES[path.suffix].finditer(text):
        kept += ["\n" * text.count("\n", end, part.start()), part[0]]
        end = part.end()
    return "".join(kept)


def test_words(root: Path) -> None:
    found = []
    for name in CLEAN:
        for path in sorted((root / name).rglob("*")) or [root / name]:
            if path.suffix == ".md" or path.suffix in SOURCES:
                page = str(path.relative_to(root))
                text = "" if page.startswith(GENERATED) else prose(path)
                for hit in WORDS.finditer(text):
                    if (page, hit[0].lower()) not in EXCEPTIONS:
                        found.append(f"{page}:{text.count(chr(10), 0, hit.start()) + 1}: {hit[0]!r}")
    assert not found, "\n".join(["see Words in CONTRIBUTING.md", *found])
