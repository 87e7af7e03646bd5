# SPDX-License-Identifier: BSD-3-Clause
"""The sources and libraries themselves: quoted parts, exported symbols, variables."""

from __future__ import annotations

import re
import shutil
import subprocess
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


def test_every_header_is_installed(root: Path) -> None:
    installed = Path(torch_openreg.config.include_dir(), "openreg")
    wanted = [path.name for path in (root / "runtime/include/openreg").glob("*.h")]
    assert sorted(wanted) == sorted(path.name for path in installed.glob("*.h"))


# the bindings in C are C11 without warnings
@pytest.mark.parametrize("compiler", ["gcc"])
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
