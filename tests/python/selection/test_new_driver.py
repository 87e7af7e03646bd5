# SPDX-License-Identifier: BSD-3-Clause
"""python -m torch_openreg new: the repository that it writes builds, installs, trains and passes the checks as it is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from declared_names import declare
from finished import finished

from torch_openreg import _new
from torch_openreg.__main__ import main

NO_VARIABLES = {k: v for k, v in os.environ.items() if not k.startswith(("OPENREG_", "PYTHONPATH"))}


def run(folder: Path, *arguments: str, **environment: str) -> str:
    done = finished([sys.executable, *arguments], cwd=folder, env=NO_VARIABLES | environment, timeout=200)
    return done.stdout + done.stderr


def files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


# the way of a vendor: new, sdist, wheel of that, install, check by name, train; the layer of OPENREG_VALIDATE has nothing to
# say. The wheel is for any Python 3 and takes the tag that an index wants
@pytest.mark.slow
def test_a_new_driver_works_at_once(tmp_path: Path) -> None:
    printed = run(tmp_path, "-m", "torch_openreg", "new", "my_chip")
    folder = tmp_path / "torch-my-chip"
    assert "python -m torch_openreg check my_chip" in printed
    package = folder / "src" / "torch_my_chip"
    (package / "more.h").write_text("int openreg_my_chip_more(void);\n")
    (package / "more.c").write_text('#include "more.h"\n\nint openreg_my_chip_more(void)\n{\n    return 1;\n}\n')
    run(folder, "setup.py", "--quiet", "sdist", "--dist-dir", str(tmp_path))
    sdist = tmp_path / "torch_my_chip-0.1.0.tar.gz"
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert {name for name in files_of(folder) if not name.startswith((".", "build/"))} <= packed
    pip = ("-m", "pip", "--disable-pip-version-check", "--no-input")
    options = ("--no-build-isolation", "--no-deps", "--no-index")
    run(tmp_path, *pip, "wheel", *options, "--wheel-dir", "wheels", str(sdist))
    (built,) = (tmp_path / "wheels").glob("torch_my_chip-0.1.0-py3-none-linux_*.whl")
    run(
        *(tmp_path, "-m", "auditwheel", "repair", "--wheel-dir", "dist", str(built)),
        PATH=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
    )
    (wheel,) = (tmp_path / "dist").glob("torch_my_chip-0.1.0-py3-none-manylinux*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert "torch_my_chip/driver.so" in archive.namelist()
        assert [name for name in archive.namelist() if name.endswith(".so")] == ["torch_my_chip/driver.so"]
    run(tmp_path, *pip, "install", *options[1:], "--target", "packages", str(wheel))
    variables = {"PYTHONPATH": str(tmp_path / "packages")}
    checked = run(folder, "-m", "torch_openreg", "check", "my_chip", "--level", "1", "--time", "0.1", **variables)
    assert "conforms to driver.h" in checked
    variables["OPENREG_VALIDATE"] = "1"
    trained = run(
        folder,
        "-m",
        "pytest",
        "-q",
        "-s",
        "-p",
        "no:cacheprovider",
        "tests",
        "-k",
        "trains or names or demo",
        **variables,
    )
    assert "3 passed" in trained
    assert "OPENREG_VALIDATE:" not in trained


# a driver is compiled again whatever an earlier build has left: an error in a header is an error of the wheel
@pytest.mark.slow
@pytest.mark.parametrize(
    "which", ["include/openreg/driver.h", pytest.param("src/torch_mychip/own.h", marks=pytest.mark.long)]
)
def test_a_changed_header_is_compiled(tmp_path: Path, which: str) -> None:
    folder = _new.make_driver("mychip", tmp_path / "driver")
    source = folder / "src" / "torch_mychip" / "driver.c"
    (source.parent / "own.h").touch()
    source.write_text('#include "own.h"\n' + source.read_text())
    run(folder, "setup.py", "--quiet", "bdist_wheel")
    header = folder / which
    before = header.stat()
    header.write_text(header.read_text() + "#error changed\n")
    os.utime(header, ns=(before.st_atime_ns, before.st_mtime_ns))  # as one that was put back out of an archive
    done = finished([sys.executable, "setup.py", "--quiet", "bdist_wheel"], status=None, cwd=folder, env=NO_VARIABLES)
    assert done.returncode != 0
    assert "#error changed" in done.stdout + done.stderr


# what the vendor's users read has the vendor's name alone: "openreg" is the name of a dependency
def test_users_read_the_vendors_name(tmp_path: Path) -> None:
    folder = _new.make_driver("mychip", tmp_path / "driver")
    for name in ("README.md", "demo.py"):
        assert "openreg" not in (folder / name).read_text().lower(), name
    project = (folder / "pyproject.toml").read_text()
    described = project[project.index("[project]") : project.index("dependencies")]
    assert "openreg" not in described
    assert 'name = "torch-mychip"' in described


# the package has the headers of every extension that a driver may have, and what they include
def test_headers(tmp_path: Path, root: Path) -> None:
    headers = root / "runtime/include/openreg"
    of_drivers = {
        path.name for path in headers.glob("*.h") if re.search(r"define OPENREG_\w+_NAME \"openreg\.", path.read_text())
    }
    assert of_drivers >= {"kernels.h", "ipc.h", "vmm.h", "comm.h", "schedule.h"}
    unlike_cuda = {"handle_addresses.h", "software_streams.h", "word_copies.h"}
    wanted, seen = {"driver.h", *of_drivers, *unlike_cuda}, set()
    while wanted:
        name = wanted.pop()
        seen.add(name)
        wanted |= set(re.findall(r"#include <openreg/(\w+\.h)>", (headers / name).read_text())) - seen
    folder = _new.make_driver("mychip", tmp_path / "driver")
    assert {path.name for path in (folder / "include/openreg").iterdir()} == seen


# every word of the templates is replaced, in names and in texts, and the headers are those of this package
def test_files(tmp_path: Path) -> None:
    folder = _new.make_driver("x9", tmp_path / "deep" / "driver")
    names = files_of(folder)
    assert names >= {
        ".github/workflows/ci.yml",
        ".github/workflows/release.yml",
        ".gitignore",
        "CMakeLists.txt",
        "CONTRIBUTING.md",
        "LICENSE",
        "MANIFEST.in",
        "README.md",
        "include/openreg/driver.h",
        "demo.py",
        "pyproject.toml",
        "setup.py",
        "tests/test_driver.py",
        "src/torch_x9/__init__.py",
        "src/torch_x9/driver.c",
    }
    for name in names:
        text = (folder / name).read_text()
        for word in ("@NAME@", "@DEVICE@", "@UPPER@", "@DASHED@", "@YEAR@", "@ABI@", "@VERSION@"):
            assert word not in text, name
    assert 'x = "torch_x9"' in (folder / "pyproject.toml").read_text()  # a device's name has no digits
    assert "torch.x." in (folder / "tests" / "test_driver.py").read_text()
    driver = (folder / "src" / "torch_x9" / "driver.c").read_text()
    assert '.name = "x9"' in driver
    assert driver.count("X9:") >= 7  # a mark in each function that a vendor fills in


REASONS = {
    **{code: f'return openreg_fail(host, OPENREG_E_{code}, 0, "no chip in slot 3");'
       for code in ("NO_DEVICE", "INCOMPATIBLE", "INVALID", "NOMEM", "INTERNAL", "DEVICE_LOST", "UNSUPPORTED", "BUSY")},
    "an unknown code": 'return openreg_fail(host, 1000, 0, "no chip in slot 3");',
    "no devices": "return *count = 0, OPENREG_OK;",
    "no library": "",
    "the package fails": "",
}  # fmt: skip
TEXTS = {"no devices": "no devices", "no library": "driver.so: No such file", "the package fails": "ZeroDivisionError"}


def vendor(tmp_path: Path, statement: str, before: str = "    long devices = 2;") -> tuple[Path, Path]:
    """The written repository, and a folder for PYTHONPATH as pip leaves it; `statement` is the first of the driver's."""
    folder = _new.make_driver("mychip", tmp_path / "driver")
    site, source = tmp_path / "site", folder / "src" / "torch_mychip"
    declare(site, "torch_mychip", "mychip", drivers={"mychip": "torch_mychip"})
    package = site / "torch_mychip"
    package.mkdir()
    (package / "__init__.py").write_text((source / "__init__.py").read_text())
    text = (source / "driver.c").read_text()
    assert text.count(before) == 1
    (source / "driver.c").write_text(text.replace(before, f"    if (1) {{ {statement} }}\n{before}"))
    command = [os.environ.get("CC", "cc"), "-std=gnu11", "-shared", "-fPIC", f"-I{folder / 'include'}"]
    subprocess.run([*command, str(source / "driver.c"), "-o", str(package / "driver.so")], check=True)
    return folder, site


# The codes that are told as the first of them is.
ALIKE = ("INVALID", "NOMEM", "INTERNAL", "DEVICE_LOST", "UNSUPPORTED", "BUSY")


# on a machine without the device there is none: no simulator answers to the vendor's name, and the first use says why in
# the driver's own words; so does the demo
@pytest.mark.parametrize("why", [pytest.param(w, marks=pytest.mark.long) if w in ALIKE else w for w in REASONS])
def test_a_driver_that_is_not_there(python: Any, tmp_path: Path, why: str) -> None:
    folder, site = vendor(tmp_path, REASONS[why])
    reason = TEXTS.get(why, "no chip in slot 3")
    if why == "no library":
        (site / "torch_mychip" / "driver.so").unlink()
    elif why == "the package fails":
        (site / "torch_mychip" / "__init__.py").write_text("1 / 0\n")
    python(
        f"""
        assert torch.mychip.device_count() == torch.accelerator.device_count() == 0
        assert not torch.mychip.is_available() and not torch.accelerator.is_available()
        torch.manual_seed(1)
        for use in (
            lambda: torch.ones(2, device="mychip"),
            lambda: torch.ones(2).mychip(),
            lambda: torch.nn.Linear(2, 2).to("mychip:0"),
            torch.mychip.init,
            torch.mychip.current_device,
            torch.mychip.get_device_name,
            torch.mychip.synchronize,
            torch.mychip.current_stream,
            torch.mychip.mem_get_info,
        ):
            try:
                use()
            except (RuntimeError, MemoryError, NotImplementedError) as error:
                assert {reason!r} in str(error) and "OPENREG_DRIVERS=sim" in str(error), error
            else:
                raise AssertionError("it works")
        text = torch.mychip.diagnose()
        assert {reason!r} in text, text
        assert not set(text.replace("'", " ").split()) & {{"cuda", "hip", "OpenReg", "openreg"}}, text
        """,
        PYTHONPATH=str(site),
    )
    if why == "NO_DEVICE":
        demo = (folder / "demo.py").read_text()
        assert reason in python(demo, status=1, PYTHONPATH=str(site)).stderr
        assert "simulated" in python(demo, PYTHONPATH=str(site), OPENREG_DRIVERS="sim").stdout


# where devices are counted and then don't open, they are available until that is known, and none from then on
def test_devices_that_do_not_open(python: Any, tmp_path: Path) -> None:
    _, site = vendor(tmp_path, REASONS["INTERNAL"], before="    openreg_instance const chip = calloc(1, sizeof *chip);")
    python(
        """
        assert torch.mychip.is_available() and torch.mychip.device_count() == 2
        for _ in range(3):
            try:
                torch.ones(2, device="mychip")
            except RuntimeError as error:
                assert "no chip in slot 3" in str(error), error
            else:
                raise AssertionError("it works")
            assert not torch.mychip.is_available() and not torch.accelerator.is_available()
            assert torch.mychip.device_count() == torch.accelerator.device_count() == 0
        """,
        PYTHONPATH=str(site),
    )


# where the vendor's driver works, what lists drivers and devices has no others
def test_the_vendors_devices_alone(python: Any, tmp_path: Path) -> None:
    _, site = vendor(tmp_path, "")
    python(
        """
        chip = torch.mychip
        assert list(chip.drivers()) == ["mychip"] and chip.default_driver() == "mychip"
        assert [d.name for d in chip.devices()] == ["mychip 0", "mychip 1"]
        text = chip.diagnose()
        assert "Nothing to be done" in text
        assert not set(text.split()) & {"sim", "cuda", "hip", "OpenReg"}, text
        """,
        PYTHONPATH=str(site),
    )


# under the name that nobody declares the documented order holds: the simulator comes last
def test_without_the_vendors_name_the_simulator_is_last(python: Any, tmp_path: Path) -> None:
    _, site = vendor(tmp_path, REASONS["NO_DEVICE"])
    for name in ("openreg", "ownname"):
        python(
            f"assert torch.ones(2, device={name!r}).sum().item() == 2 and openreg.default_driver() == 'sim'",
            PYTHONPATH=str(site),
            OPENREG_DEVICE_NAME=name,
        )


# the library alone, as CMake builds it
@pytest.mark.slow
def test_cmake(tmp_path: Path) -> None:
    folder = _new.make_driver("mychip", tmp_path / "driver")
    subprocess.run(["cmake", "-S", str(folder), "-B", str(tmp_path / "build")], check=True, capture_output=True)
    subprocess.run(["cmake", "--build", str(tmp_path / "build")], check=True, capture_output=True)
    assert (tmp_path / "build" / "libopenreg_mychip.so").exists()


# a name that no driver, C function or variable can have, or that is taken: an error with the rule, and no folder
@pytest.mark.parametrize(
    "name",
    [
        "",
        "My",
        "9x",
        "my-chip",
        "a" * 32,
        "x.y",
        "../x",
        "cuda",
        "sim",
        "openreg",
        "nn",
        "item",
        "opencl",
        "vulkan2",
        "class",
    ],
)
def test_unfit_names(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", name, "--directory", str(tmp_path / "driver")]) == 1
    error = capsys.readouterr().err
    rules = ("begins with a letter", "is taken by torch-openreg itself", "has a meaning", "is no name for a device")
    assert any(rule in error for rule in rules)
    assert not (tmp_path / "driver").exists()


# what is there stays as it is, even an empty folder
def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "mychip", "--directory", str(tmp_path)]) == 1
    assert "is there already" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
