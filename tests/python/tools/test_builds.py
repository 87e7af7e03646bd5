# SPDX-License-Identifier: BSD-3-Clause
"""One package for several versions of torch: which binary part is chosen, and what is said where there is none."""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
import torch

from torch_openreg import _C, _build_info, _builds, config

MODULE = "_C" + EXTENSION_SUFFIXES[0]


@pytest.fixture
def libraries(tmp_path: Path) -> Callable[..., Path]:
    """Makes a folder of libraries with binary parts for versions of torch."""

    def make(*minors: str, module: str = MODULE) -> Path:
        for minor in minors:
            (tmp_path / f"torch{minor}").mkdir()
            (tmp_path / f"torch{minor}" / module).touch()
        (tmp_path / "libopenreg.so.1").touch()
        return tmp_path

    return make


# the folder is that of torch's minor version, whatever follows it in the version's name
@pytest.mark.parametrize(
    ("version", "minor"),
    [("2.13.0", "2.13"), ("2.13.1+cpu", "2.13"), ("2.15.0a0+git0123abc", "2.15"), ("2.9.0.dev20251101+cu130", "2.9")],
)
def test_the_folder_is_that_of_the_minor_version(libraries: Callable[..., Path], version: str, minor: str) -> None:
    here = libraries("2.9", "2.13", "2.15")
    assert _builds.folder_for(version, here) == here / f"torch{minor}"


# versions are ordered by number, and nothing else beside them counts
def test_the_folders_in_order(libraries: Callable[..., Path]) -> None:
    here = libraries("2.13", "2.9", "2.11", "3.0")
    (here / "torch2.x").mkdir()
    assert list(_builds.folders(here)) == ["2.9", "2.11", "2.13", "3.0"]


# a version without a binary part: which ones there are, which is installed, and what to do
@pytest.mark.parametrize(
    ("minors", "text"), [(("2.13",), "torch 2.13 here"), (("2.15", "2.11", "2.13"), "torch 2.11, 2.13 and 2.15 here")]
)
def test_a_version_without_a_binary_part(libraries: Callable[..., Path], minors: tuple[str, ...], text: str) -> None:
    with pytest.raises(ImportError) as raised:
        _builds.folder_for("2.16.0+cpu", libraries(*minors))
    message = str(raised.value)
    assert message.startswith(f"torch_openreg is built for {text}, but torch 2.16.0+cpu is installed. ")
    assert "pip install --no-build-isolation" in message


def test_no_binary_part_at_all(libraries: Callable[..., Path]) -> None:
    with pytest.raises(ImportError, match="has no binary part here"):
        _builds.folder_for("2.13.0", libraries())


# the extension module is for one version of Python, which the folder's name doesn't tell
def test_another_python(libraries: Callable[..., Path]) -> None:
    here = libraries("2.13", module="_C.cpython-39-x86_64-linux-gnu.so")
    with pytest.raises(ImportError, match=r"torch 2\.13 has no extension module for this Python") as raised:
        _builds.folder_for("2.13.0", here)
    assert "there is: _C.cpython-39-x86_64-linux-gnu.so" in str(raised.value)


# what runs here is what was built against this torch
def test_what_is_loaded_is_of_this_torch() -> None:
    folder = Path(config.torch_lib_dir())
    minor = _builds.minor(torch.__version__)
    assert folder == Path(config.lib_dir()) / f"torch{minor}"
    assert Path(_C.__file__).parent == Path(_build_info.__file__).parent == folder
    assert _builds.minor(_C._torch_version) == _builds.minor(_build_info.TORCH_VERSION) == minor
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if ".so" in line}
    assert [name for name in mapped if name.endswith("/libtorch_openreg.so")] == [str(folder / "libtorch_openreg.so")]


# repeated, as a module is reloaded, it changes nothing
def test_the_folder_is_looked_in_once_and_first() -> None:
    path = ["somewhere"]
    _builds.choose(torch.__version__, path)
    _builds.choose(torch.__version__, path)
    assert path == [config.torch_lib_dir(), "somewhere"]
