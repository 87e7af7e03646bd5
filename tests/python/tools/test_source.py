# SPDX-License-Identifier: BSD-3-Clause
"""The sources and libraries themselves: quoted parts, exported symbols, variables."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from finished import finished

import torch_openreg.config

MARKERS = (
    "OPENREG SetDevice FUNCTION",
    "OPENREG set_device FUNCTION",
    "MODULE SET DEVICE HELPER",
    "OPENREG MODULE METHODS",
    "PYTHON SET DEVICE FUNCTION",
    "OPENREG DEVICE MGMT GUARD IMPL EXAMPLE",
)


def quoted(root: Path, marker: str) -> str:
    """The lines between a pair of markers in the sources, of which there is one, its start before its end."""
    files = [path for folder in ("shim", "csrc", "python") for path in sorted((root / folder).rglob("*"))]
    text = "".join(path.read_text(encoding="utf-8") for path in files if path.suffix in (".cpp", ".h", ".py"))
    assert len(re.findall(rf"LITERALINCLUDE (?:START|END): {marker}\s*$", text, re.MULTILINE)) == 2
    (found,) = re.findall(rf"START: {marker}\s*\n(.*?)^[^\n]*END: {marker}\s*$", text, re.DOTALL | re.MULTILINE)
    return found


# the variables that the sources read, but for those of single drivers, are the known ones; drivers that would have one of them as
# an option are refused
def test_variables_of_the_runtime(root: Path) -> None:
    from torch_openreg._discovery import variables

    found = set()
    for folder in ("runtime", "shim", "csrc", "python"):
        for path in (root / folder).rglob("*"):
            if path.suffix in (".c", ".h", ".cpp", ".py"):
                found |= set(re.findall(r"[\"']OPENREG_([A-Z_]+)[\"']", path.read_text(encoding="utf-8")))
    no_variables = ("CAP_", "E_")  # constants by their names
    found = {name for name in found if not name.startswith(("SIM_", *no_variables)) and "_LIBRARY_PATH" not in name}
    assert found == set(variables._KNOWN)
    reserved = (root / "runtime/src/registry/driver_names.c").read_text(encoding="utf-8")
    for name in variables._KNOWN:
        assert "_" not in name or f'"OPENREG_{name}"' in reserved or f'"OPENREG_{name}_' in reserved, name


# acceptance 4.23
@pytest.mark.parametrize("marker", MARKERS)
def test_every_marker_is_there(root: Path, marker: str) -> None:
    assert quoted(root, marker).strip()


# acceptance 4.24
def test_fifth_line_of_the_method_table_binds_set_device(root: Path) -> None:
    assert "_set_device" in quoted(root, "OPENREG MODULE METHODS").splitlines()[4]


# acceptance 4.17
@pytest.mark.parametrize("name", ["_getDeviceCount", "_getDevice", "_setDevice", "_exchangeDevice"])
def test_helper_functions_have_the_documents_names(root: Path, name: str) -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (root / "csrc").rglob("*.cpp"))
    assert re.search(rf"\b{name}\(PyObject\*", text)


# nothing but openreg_ symbols leaves the runtime
def test_runtime_exports_only_its_own_names() -> None:
    library = Path(torch_openreg.config.lib_dir()) / "libopenreg.so.1"
    listing = finished(["nm", "-D", "--defined-only", str(library)]).stdout
    # "A" is the version node itself
    names = [line.split()[-1] for line in listing.splitlines() if line.split()[-2] != "A"]
    assert "openreg_set_device@@OPENREG_1" in names
    assert {name.split("@@")[1] for name in names} == {"OPENREG_1", "OPENREG_INTERNAL"}
    assert [name for name in names if not name.startswith("openreg_")] == []


# the runtime needs neither C++ nor Python nor torch
def test_runtime_links_only_the_c_library() -> None:
    library = Path(torch_openreg.config.lib_dir()) / "libopenreg.so.1"
    listing = finished(["readelf", "-d", str(library)]).stdout
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
