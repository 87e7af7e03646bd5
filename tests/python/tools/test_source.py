# SPDX-License-Identifier: BSD-3-Clause
"""The sources and libraries themselves: quoted parts, exported symbols, headers that compile."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import torch_openreg.config

MARKERS = {
    "OPENREG SetDevice FUNCTION",
    "OPENREG set_device FUNCTION",
    "MODULE SET DEVICE HELPER",
    "OPENREG MODULE METHODS",
    "PYTHON SET DEVICE FUNCTION",
    "OPENREG DEVICE MGMT GUARD IMPL EXAMPLE",
}


def quoted(root: Path) -> dict[str, list[str]]:
    """Lines between each pair of markers in the sources. Fails on a pair that is missing, doubled or turned round."""
    found: dict[str, list[str]] = {}
    files = [path for folder in ("shim", "csrc", "python") for path in (root / folder).rglob("*")]
    for path in files:
        if path.suffix not in (".cpp", ".h", ".py"):
            continue
        open_marker = None
        for line in path.read_text(encoding="utf-8").splitlines():
            match = re.search(r"LITERALINCLUDE (START|END): (.+?)\s*$", line)
            if match is None:
                if open_marker is not None:
                    found[open_marker].append(line)
            elif match[1] == "START":
                assert open_marker is None, f"{path}: {match[2]} starts inside {open_marker}"
                assert match[2] not in found, f"{match[2]} is there twice"
                open_marker = match[2]
                found[open_marker] = []
            else:
                assert open_marker == match[2], f"{path}: {match[2]} ends without a start"
                open_marker = None
        assert open_marker is None, f"{path}: {open_marker} has no end"
    return found


# the variables that the sources read, but for those of single drivers, are the known ones; drivers that would have one of them as
# an option are refused
def test_variables_of_the_runtime(root: Path) -> None:
    from torch_openreg._discovery import variables

    read = set()
    for folder in ("runtime/src", "runtime/lab", "shim", "csrc", "python"):
        for path in (root / folder).rglob("*"):
            if path.suffix in (".c", ".h", ".cpp", ".py"):
                text = path.read_text(encoding="utf-8")
                read |= set(re.findall(r'(?:variable|env|environ|environ\.get)[\[(]\"OPENREG_([A-Z_]+)"', text))
                read |= set(re.findall(r'_VARIABLE "OPENREG_([A-Z_]+)"', text))
    read = {name for name in read if not name.startswith("SIM_")}
    assert len(read) > 15 and read <= set(variables._KNOWN)
    reserved = (root / "runtime/src/registry/driver_names.c").read_text(encoding="utf-8")
    for name in variables._KNOWN:
        assert "_" not in name or f'"OPENREG_{name}"' in reserved or f'"OPENREG_{name}_' in reserved, name


_SOURCE_SUFFIXES = (".c", ".h", ".cc", ".cpp", ".py", ".pyi", ".cmake", ".cmake.in", ".toml")
_SOURCE_NAMES = ("CMakeLists.txt", "Makefile")


def _is_source(path: Path) -> bool:
    if path.name.endswith(_SOURCE_SUFFIXES) or path.name in _SOURCE_NAMES:
        return True
    with path.open("rb") as file:
        return file.read(2) == b"#!"


# each source file says under which licence it may be used, in its first line or right below "#!"
def test_every_source_names_its_licence(root: Path) -> None:
    if not (root / ".git").exists():
        pytest.skip("not a checkout of git: which files belong to the project is not known")
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True, cwd=root).stdout
    sources = [path for name in listed.splitlines() if (path := root / name).is_file() and _is_source(path)]
    assert len(sources) > 300, "git ls-files names too few sources"
    without = []
    for path in sources:
        lines = path.read_text(encoding="utf-8").splitlines()[:2]
        first = lines[1:] if lines[:1] and lines[0].startswith("#!") else lines[:1]
        if not first or "SPDX-License-Identifier: BSD-3-Clause" not in first[0]:
            without.append(str(path.relative_to(root)))
    assert without == []


# acceptance 4.23
def test_every_marker_is_there(root: Path) -> None:
    found = quoted(root)
    assert set(found) >= MARKERS
    for marker in MARKERS:
        assert any(line.strip() for line in found[marker]), marker


# acceptance 4.24
def test_fifth_line_of_the_method_table_binds_set_device(root: Path) -> None:
    assert "_set_device" in quoted(root)["OPENREG MODULE METHODS"][4]


# acceptance 4.17
@pytest.mark.parametrize("name", ["_getDeviceCount", "_getDevice", "_setDevice", "_exchangeDevice"])
def test_helper_functions_have_the_documents_names(root: Path, name: str) -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (root / "csrc").rglob("*.cpp"))
    assert re.search(rf"\b{name}\(PyObject\*", text)


# nothing but openreg_ symbols leaves the runtime
def test_runtime_exports_only_its_own_names() -> None:
    library = Path(torch_openreg.config.lib_dir()) / "libopenreg.so.1"
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True
    ).stdout
    # "A" is the version node itself
    names = [line.split()[-1] for line in listing.splitlines() if line.split()[-2] != "A"]
    assert "openreg_set_device@@OPENREG_1" in names
    assert {name.split("@@")[1] for name in names} == {"OPENREG_1", "OPENREG_INTERNAL"}
    assert [name for name in names if not name.startswith("openreg_")] == []


# the runtime needs neither C++ nor Python nor torch
def test_runtime_links_only_the_c_library() -> None:
    library = Path(torch_openreg.config.lib_dir()) / "libopenreg.so.1"
    listing = subprocess.run(["readelf", "-d", str(library)], capture_output=True, text=True, check=True).stdout
    needed = set(re.findall(r"\(NEEDED\).*\[(.+?)\]", listing))
    assert needed <= {
        "libc.so.6",
        "libpthread.so.0",
        "libdl.so.2",
        "libm.so.6",
        "ld-linux-x86-64.so.2",
        "ld-linux-aarch64.so.1",
    }


HEADERS = sorted(path.name for path in (Path(torch_openreg.config.include_dir()) / "openreg").glob("*.h"))


def test_every_header_is_installed(root: Path) -> None:
    assert sorted(path.name for path in (root / "runtime/include/openreg").glob("*.h")) == HEADERS


@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize(
    ("compiler", "flags", "suffix"),
    [
        ("gcc", ["-std=c11"], "c"),
        ("gcc", ["-std=gnu11"], "c"),
        ("g++", ["-std=c++17"], "cpp"),
        ("g++", ["-std=c++20"], "cpp"),
        ("clang", ["-std=c11"], "c"),
        ("clang++", ["-std=c++17"], "cpp"),
    ],
)
def test_headers_compile_alone(tmp_path: Path, header: str, compiler: str, flags: list[str], suffix: str) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    source = tmp_path / f"alone.{suffix}"
    source.write_text(f"#include <openreg/{header}>\nint main(void) {{ return 0; }}\n")
    subprocess.run(
        [
            *(compiler, *flags, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"),
            *("-I", torch_openreg.config.include_dir(), str(source)),
        ],
        check=True,
    )


# the bindings in C are C11 without warnings
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_c_bindings_compile_without_warnings(root: Path, compiler: str) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    sources = sorted((root / "csrc").rglob("*.c"))
    assert len(sources) >= 9
    warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wstrict-prototypes", "-Wmissing-prototypes", "-Werror"]
    subprocess.run(
        [
            *(
                compiler,
                "-std=c11",
                "-fsyntax-only",
                *warnings,
                "-I",
                str(root),
                "-I",
                torch_openreg.config.include_dir(),
            ),
            *("-isystem", sysconfig.get_path("include"), *map(str, sources)),
        ],
        check=True,
    )


# what the documentation quotes is what the sources say (after a change: python tools/docs.py)
def test_documentation_is_fresh(root: Path) -> None:
    subprocess.run([sys.executable, str(root / "tools" / "docs.py"), "--check"], check=True, cwd=root)


def anchors(page: Path) -> set[str]:
    """The names that links into a page of Markdown may end in."""
    headings = re.findall(r"^#{1,6} (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


# links between pages, and from pages into the tree, lead somewhere
def test_links_of_the_documentation(root: Path) -> None:
    pages = [*root.glob("*.md"), *(root / "docs").glob("*.md"), *(root / "examples").rglob("*.md")]
    assert len(pages) > 20
    broken = []
    for page in pages:
        text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            name, _, anchor = target.partition("#")
            there = (page.parent / name).resolve() if name else page
            if target.startswith(("https://", "mailto:")):
                continue
            if not there.exists() or (anchor and anchor not in anchors(there)):
                broken.append(f"{page.relative_to(root)}: {target}")
    assert broken == []


# every page of docs/ is in its index
def test_the_index_of_the_documentation_is_complete(root: Path) -> None:
    index = (root / "docs" / "README.md").read_text(encoding="utf-8")
    pages = {page.name for page in (root / "docs").glob("*.md")} - {"README.md"}
    assert {page for page in pages if f"]({page})" not in index} == set()


# files that the pages for those who work on the project name exist: "memory/cache.c" may leave out the folders above
def test_files_that_the_documentation_names(root: Path) -> None:
    if not (root / ".git").exists():
        pytest.skip("not a checkout of git: which files belong to the project is not known")
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True, cwd=root).stdout.split()
    missing = []
    for page in ("ARCHITECTURE.md", "CONTRIBUTING.md", "docs/operators.md", "docs/distributed.md"):
        for name in re.findall(r"`([\w./]+\.(?:c|h|cpp|py))`", (root / page).read_text(encoding="utf-8")):
            if not any(f"/{path}".endswith(f"/{name}") for path in listed):
                missing.append(f"{page}: {name}")
    assert missing == []
