# SPDX-License-Identifier: BSD-3-Clause
"""The wheel: what is in it, that it works installed, and that a third party can build a driver against it."""

from __future__ import annotations

import email
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import textwrap
import zipfile
from pathlib import Path

import pytest
import torch
from finished import finished
from packaging.requirements import Requirement

from torch_openreg import _new

MINOR = ".".join(torch.__version__.split(".")[:2])
PARTS = ("", "_compile", "_distributed", "_graph", "_profile")  # of the shim: a library each

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this checkout. It takes the libraries of the build directory where there is one.

    In an environment that has a wheel in the place of the checkout (tools/wheel_test.py) it is that file.
    """
    if "OPENREG_TEST_WHEEL" in os.environ:
        return Path(os.environ["OPENREG_TEST_WHEEL"])
    root = Path(__file__).resolve().parents[3]
    folder = tmp_path_factory.mktemp("wheel")
    environment = dict(os.environ)
    build = Path(os.environ.get("OPENREG_BUILD_DIR", root / "build"))
    if (build / "CMakeCache.txt").exists():
        environment["OPENREG_BUILD_DIR"] = str(build)
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-build-isolation"),
            *("--no-deps", "--wheel-dir", str(folder), str(root)),
        ],
        check=True,
        env=environment,
    )
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel, which sees the packages (torch, ...) of this one but not this checkout."""
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    site = next(folder.glob("lib/python*/site-packages"))
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"),
            *("--target", str(site), str(wheel)),
        ],
        check=True,
    )
    # A plain path, whose own .pth files are not read: the editable install of this checkout stays out of sight.
    (site / "packages.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def run(venv: Path, code: str, **environment: str) -> str:
    """Runs code in the virtual environment and returns what it printed."""
    done = finished(
        [str(venv / "bin" / "python"), "-c", textwrap.dedent(code)],
        cwd=venv,
        env={k: v for k, v in os.environ.items() if not k.startswith(("OPENREG_", "PYTHONPATH", "TORCHINDUCTOR_"))}
        | environment,
    )
    return done.stdout


def test_contents(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for wanted in (
        "torch_openreg/lib/libopenreg.so.1",
        "torch_openreg/lib/libopenreg.so",
        *(f"torch_openreg/lib/torch{MINOR}/libtorch_openreg{part}.so" for part in PARTS),
        *(
            f"torch_openreg/lib/torch{MINOR}/_C{part}" + sysconfig.get_config_var("EXT_SUFFIX")
            for part in ("", "_compile", "_distributed")
        ),
        f"torch_openreg/lib/torch{MINOR}/_build_info.py",
        "torch_openreg/py.typed",
        "torch_openreg/include/openreg/openreg.h",
        "torch_openreg/include/openreg/driver.h",
        "torch_openreg/include/openreg/status.h",
        "torch_openreg/include/torch_openreg/shim/device/device.h",
        "torch_openreg/include/torch_openreg/shim/device/host_address.h",
        "torch_openreg/lib/pkgconfig/openreg.pc",
        "torch_openreg/share/cmake/openreg/openregConfig.cmake",
        "torch_openreg/bin/openreg-check",
        "torch_openreg/bin/openreg-info",
        "torch_openreg/openreg/__init__.py",
        "torch_openreg/templates/driver/pyproject.toml.in",
        "torch_openreg/templates/driver/src/torch_NAME/driver.c.in",
        "torch_openreg/templates/driver/dot_github/workflows/ci.yml.in",
        "_torch_openreg_accelerator.py",
        "_torch_openreg_autoload.py",
        "_torch_openreg_device_name.py",
        "torch_openreg_lab/pytest_plugin.py",
        "torch_openreg_mypy.py",
        "torch_openreg_lab/checks.py",
    ):
        assert wanted in names, names
    # A part for each minor version of torch that it is built against, and for no other that an earlier build has left.
    # What isn't built against torch is there once.
    shims = {name for name in names if name.endswith("/libtorch_openreg.so")}
    minors = set(re.findall(r"torch_openreg/lib/torch([\d.]+)/_C\.", "\n".join(names)))
    assert shims == {f"torch_openreg/lib/torch{minor}/libtorch_openreg.so" for minor in minors}
    assert len([name for name in names if name.endswith("/libopenreg.so.1")]) == 1
    if "OPENREG_TEST_WHEEL" not in os.environ:
        assert minors == {MINOR}
    # It requires one of these.
    (metadata,) = [name for name in names if name.endswith("/METADATA")]
    required = email.message_from_bytes(zipfile.ZipFile(wheel).read(metadata)).get_all("Requires-Dist")
    (torches,) = [Requirement(text).specifier for text in required if Requirement(text).name == "torch"]
    assert {f"2.{n}" for n in range(100) if f"2.{n}.1" in torches} == minors
    assert "none-any" not in wheel.name


# what ships is hardened, and says nothing of where it was built
def test_binaries_are_hardened(wheel: Path, root: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    places = [os.fsencode(place) for place in (root, sys.prefix, sysconfig.get_path("purelib"))]
    checked = 0
    for file in sorted(tmp_path.rglob("*")):
        if not file.is_file() or (content := file.read_bytes())[:4] != b"\x7fELF":
            continue
        headers = finished(["readelf", "-dlW", file]).stdout
        symbols = finished(["readelf", "-W", "--dyn-syms", file]).stdout
        assert re.search(r"\(FLAGS_1\).*\bNOW\b", headers), file.name
        assert "GNU_RELRO" in headers, file.name
        assert re.search(r"GNU_STACK.* RW ", headers), file.name
        assert "TEXTREL" not in headers, file.name
        assert "__stack_chk_fail" in symbols, file.name
        # No thread-local that needs memory when a thread first uses it; CUDA's static runtime has some.
        if file.name.startswith("libopenreg") and file.name != "libopenreg_cuda.so":
            assert "__tls_get_addr" not in symbols, file.name
        if file.name.startswith(("libopenreg.so", "openreg-check")):
            assert "__snprintf_chk" in symbols or "__vsnprintf_chk" in symbols, file.name
        assert not [place for place in (*places, b"site-packages/torch/") if place in content], file.name
        checked += 1
    assert checked >= 14


# an index takes it: the tag names a glibc, all but torch is in it, and it is small
def test_the_tag_of_an_index(wheel: Path, root: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(root / "tools/repair_wheel.py"), str(wheel), "--into", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    (repaired,) = tmp_path.glob("*.whl")
    tag = re.search(r"-manylinux_2_(\d+)_x86_64\.whl$", repaired.name)
    assert tag is not None, repaired.name
    if platform.libc_ver() <= ("glibc", "2.36"):  # built here: with Debian 12's it loads on RHEL 9
        assert int(tag[1]) <= 34, repaired.name
    assert repaired.stat().st_size < 20e6
    before, after = zipfile.ZipFile(wheel).namelist(), zipfile.ZipFile(repaired).namelist()
    assert sorted(name for name in before if ".so" in name) == sorted(name for name in after if ".so" in name)


# built for several versions of Python it becomes a wheel for each, which differ in the extension module alone
def test_a_wheel_for_each_python(wheel: Path, root: Path, tmp_path: Path) -> None:
    here = f"torch_openreg/lib/torch{MINOR}/_C" + sysconfig.get_config_var("EXT_SUFFIX")
    other = f"torch_openreg/lib/torch{MINOR}/_C.cpython-399-x86_64-linux-gnu.so"
    several = tmp_path / wheel.name
    # For the test the other Python's module is a copy of this one's.
    with zipfile.ZipFile(wheel) as archive, zipfile.ZipFile(several, "w", zipfile.ZIP_DEFLATED) as copy:
        for name in archive.namelist():
            copy.writestr(archive.getinfo(name), archive.read(name))
        copy.writestr(other, archive.read(here))
    command = [sys.executable, str(root / "tools/repair_wheel.py"), str(several), "--into", str(tmp_path / "dist")]
    subprocess.run(command, check=True, capture_output=True)
    made = {path.name.split("-")[2]: path for path in (tmp_path / "dist").iterdir()}
    current = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    assert set(made) == {current, "cp399"}
    contents = {}
    for tag, path in made.items():
        assert re.search(rf"-{tag}-{tag}-manylinux_2_\d+_x86_64\.whl$", path.name), path.name
        archive = zipfile.ZipFile(path)
        (tags,) = [name for name in archive.namelist() if name.endswith(".dist-info/WHEEL")]
        assert f"Tag: {tag}-{tag}-manylinux" in archive.read(tags).decode()
        (record,) = [name for name in archive.namelist() if name.endswith(".dist-info/RECORD")]
        assert {line.split(",")[0] for line in archive.read(record).decode().splitlines()} == set(archive.namelist())
        contents[tag] = {name: archive.read(name) for name in archive.namelist() if name not in (tags, record)}
        modules = {name for name in contents[tag] if re.search(r"/_C(_[a-z]+)?\.", name)}
        assert (here in modules, other in modules) == (tag == current, tag == "cp399")
        for name in modules:
            assert contents[tag].pop(name)
    assert contents[current] == contents["cp399"]


# what is built against several versions of torch wants one of these, and none between
@pytest.mark.parametrize(
    ("versions", "requirement"),
    [
        (("2.15.0+cu132",), "torch==2.15.*"),
        (("2.13.0+cpu", "2.12.1"), "torch<2.14,>=2.12"),
        (("2.15.0", "2.9.1", "2.11.0"), "torch!=2.10.*,!=2.12.*,!=2.13.*,!=2.14.*,<2.16,>=2.9"),
    ],
)
def test_the_requirement_on_torch(root: Path, tmp_path: Path, versions: tuple[str, ...], requirement: str) -> None:
    builds = [tmp_path / version for version in versions]
    for build, version in zip(builds, versions, strict=True):
        build.mkdir()
        (build / "CMakeCache.txt").write_text(f"OPENREG_TORCH_BUILT_FOR:INTERNAL={version}\n")
    subprocess.run(
        [sys.executable, "setup.py", "--quiet", "egg_info", "--egg-base", str(tmp_path)],
        cwd=root,
        check=True,
        capture_output=True,
        env=os.environ | {"OPENREG_BUILD_DIR": os.pathsep.join(map(str, builds))},
    )
    (written,) = tmp_path.glob("*.egg-info/requires.txt")
    assert requirement in written.read_text().splitlines()


# the licence travels with the wheel, and its metadata name it
def test_licence(wheel: Path, root: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (folder,) = {name.split("/")[0] for name in archive.namelist() if name.endswith(".dist-info/METADATA")}
    metadata = email.message_from_bytes(archive.read(f"{folder}/METADATA"))
    assert metadata["License-Expression"] == "BSD-3-Clause"
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert metadata["Author"] == "The torch-openreg authors"
    # An expression and a classifier of the licence exclude each other.
    assert not [name for name in metadata.get_all("Classifier") if name.startswith("License ::")]
    assert archive.read(f"{folder}/licenses/LICENSE") == (root / "LICENSE").read_bytes()


# the version and what `pip show` prints are those of the header and of pyproject.toml
def test_version_and_metadata(installed: Path) -> None:
    out = run(
        installed,
        """
        import importlib.metadata, torch, torch_openreg
        facts = importlib.metadata.metadata("torch-openreg")
        print(torch_openreg.__version__, facts["Version"], torch_openreg._C.__file__ is not None)
        print(facts["Summary"])
        print(facts["Requires-Python"], "Programming Language :: C" in facts.get_all("Classifier"))
        """,
    ).splitlines()
    version = out[0].split()[0]
    assert out[0] == f"{version} {version} True"
    assert "PyTorch device 'openreg'" in out[1]
    assert out[2] == ">=3.10 True"
    code = "import sys; from torch_openreg.__main__ import main; sys.exit(main(['--version']))"
    assert run(installed, code).startswith(f"torch-openreg {version} for torch 2.")


# the first program of README.md runs in an environment that has torch and the wheel
def test_first_program(installed: Path, root: Path) -> None:
    text = (root / "README.md").read_text(encoding="utf-8")
    program = text.split("## A first program\n```python\n")[1].split("```")[0]
    out = run(installed, program).splitlines()
    assert out[0].startswith("openreg:0 ")
    assert "bytes on OpenReg simulated device 0" in out[1]


@pytest.fixture(scope="module")
def vendors(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with torch and what torch requires, and nothing else; the wheel; and that of what `new` writes."""
    folder = tmp_path_factory.mktemp("vendor")
    driver = _new.make_driver("mychip", folder / "torch-mychip")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
    alone = ("--quiet", "--no-index", "--no-deps")
    command = [*pip, "wheel", *alone, "--no-build-isolation", "--wheel-dir", str(folder), str(driver)]
    subprocess.run(command, check=True)
    (package,) = folder.glob("torch_mychip-*-py3-none-linux_*.whl")
    venv = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    site = next(venv.glob("lib/python*/site-packages"))
    pending, seen = ["torch", "tomlkit"], set()
    while pending:
        distribution = importlib.metadata.distribution(pending.pop())
        if distribution.name in seen:
            continue
        seen.add(distribution.name)
        for requirement in map(Requirement, distribution.requires or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                pending.append(requirement.name)
        for name in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not (site / name).is_symlink():  # CUDA's libraries have one folder
                (site / name).symlink_to(distribution.locate_file(name))
    assert not {"pytest", "numpy", "torch-openreg"} & seen
    into = (*pip, "--python", str(venv / "bin" / "python"))
    subprocess.run([*into, "install", *alone, str(wheel), str(package)], check=True)
    subprocess.run([*into, "check"], check=True)
    return venv


# two wheels beside torch are enough for the vendor's users: the program of the vendor's README and its demo
def test_a_vendors_environment(vendors: Path) -> None:
    driver = vendors.parent / "torch-mychip"
    program = (driver / "README.md").read_text().split("```python\n")[1].split("```")[0]
    printed = run(vendors, program)
    assert re.fullmatch(r"[\d.]+ .*mychip.* \d+\n", printed), printed
    demo = (driver / "demo.py").read_text()
    assert "bytes of mychip:0" in run(vendors, demo.replace("sys.exit(main())", "assert main() == 0"))


# there a function is compiled, too, with PyTorch's own settings, and ranks communicate
@pytest.mark.long
def test_more_in_a_vendors_environment(vendors: Path) -> None:
    out = run(
        vendors,
        f"""
        import torch, torch.distributed as dist
        x = torch.arange(6.0, device="mychip").reshape(2, 3)
        print(torch.compile(lambda x: (x.sin() @ x.t()).sum())(x).device)
        dist.init_process_group(init_method="file://{vendors / "store"}", rank=0, world_size=1)
        dist.all_reduce(x)
        print(x.sum().item())
        dist.destroy_process_group()
        """,
    )
    assert out == "mychip:0\n15.0\n"


# acceptance 4.33: an installed wheel is found by `import torch`
def test_import_torch_is_enough(installed: Path) -> None:
    out = run(
        installed,
        """
        import sys, torch
        x = torch.empty(1, device="openreg")
        print(x.device, sys.modules["torch_openreg"].__file__)
        """,
    )
    assert out.startswith("openreg:0 ")
    assert str(installed) in out
    out = run(installed, "import torch; print(hasattr(torch, 'openreg'))", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert out == "False\n"


# the wheel's plugin of pytest, in a session that begins after `import torch`: no warning, and the machine is there
def test_pytest_plugin(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text("def test_one(openreg_devices):\n    assert len(openreg_devices) == 3\n")
    out = run(
        installed,
        f"""
        import sys, torch, pytest
        sys.exit(pytest.main(["-W", "error", "-p", "no:cacheprovider", "--openreg=3", {str(tmp_path)!r}]))
        """,
    )
    assert "openreg: 3 simulated devices" in out
    assert "1 passed" in out


def test_openreg_info(installed: Path) -> None:
    code = "import sys; sys.argv = ['openreg-info']; from _openreg_info import main; main()"
    out = run(installed, code, OPENREG_SIM_DEVICES="3")
    assert "sim" in out
    assert "openreg:2" in out


# both commands run the same program, which finds the library beside it
def test_openreg_check(installed: Path) -> None:
    code = "import sys; sys.argv = ['openreg-check', 'sim', '--only', 'table,copy']; from _openreg_check import main; main()"
    assert "no failure in the requested checks" in run(installed, code)
    code = "import sys; from torch_openreg.__main__ import main; sys.exit(main(['check', 'sim', '--only', 'runtime.copy']))"
    assert "1 passed, 0 failed" in run(installed, code)


DRIVER = r"""
#include <openreg/driver.h>
#include <stdlib.h>
#include <string.h>

static const openreg_host *runtime;

static openreg_status open_(const openreg_host *host, const openreg_option *options, uint32_t n, openreg_instance *out)
{
    (void)options, (void)n;
    runtime = host;
    *out = (openreg_instance)&runtime;
    return OPENREG_OK;
}
static openreg_status close_(openreg_instance instance) { (void)instance; return OPENREG_OK; }
static openreg_status count(openreg_instance instance, int32_t *out) { (void)instance; *out = 1; return OPENREG_OK; }
static openreg_status alloc(openreg_instance instance, int32_t dev, const openreg_alloc_info *info, void **out)
{
    (void)instance, (void)dev;
    void *p = info->size > (1u << 30) ? NULL : malloc(info->size);
    if (p == NULL)
        return openreg_fail(runtime, OPENREG_E_NOMEM, 0, "third: no %llu bytes", (unsigned long long)info->size);
    *out = p;
    return OPENREG_OK;
}
static openreg_status release(openreg_instance instance, int32_t dev, void *ptr)
{
    (void)instance, (void)dev;
    free(ptr);
    return OPENREG_OK;
}
static openreg_status copy(openreg_instance instance, int32_t stream_dev, openreg_driver_stream stream, void *dst,
                           int32_t dst_dev, const void *src, int32_t src_dev, uint64_t size)
{
    (void)instance, (void)dst_dev, (void)src_dev, (void)stream_dev, (void)stream;
    memcpy(dst, src, size);
    return OPENREG_OK;
}
static openreg_status sync_(openreg_instance instance, int32_t dev) { (void)instance, (void)dev; return OPENREG_OK; }

static const openreg_driver table = {
    .struct_size = sizeof table, .abi_minor = OPENREG_ABI_MINOR, .name = "third", .version = "3.0",
    .open = open_, .close = close_, .device_count = count, .mem_alloc = alloc, .mem_free = release, .copy = copy,
    .device_sync = sync_,
};

__attribute__((visibility("default"))) openreg_status openreg_driver_query_v1(const openreg_host *host,
                                                                              const openreg_driver **out)
{
    (void)host;
    *out = &table;
    return OPENREG_OK;
}
"""

PROGRAM = r"""
#include <openreg/openreg.h>
#include <stdio.h>
int main(void)
{
    printf("%s %d\n", openreg_version(), (int)openreg_device_count());
    return 0;
}
"""

CMAKE = """
cmake_minimum_required(VERSION 3.22)
project(third C)
find_package(openreg 0.1 REQUIRED)
openreg_add_driver(third third.c)
add_executable(program program.c)
target_link_libraries(program PRIVATE openreg::openreg)
"""


# a program is compiled by pkg-config alone, and finds the library by itself
def test_pkg_config(installed: Path, tmp_path: Path) -> None:
    if shutil.which("pkg-config") is None:
        pytest.skip("there is no pkg-config")
    (tmp_path / "program.c").write_text(PROGRAM)
    where = run(installed, "import torch_openreg.config as c; print(c.pkgconfig_dir())").strip()
    flags = finished(
        ["pkg-config", "--cflags", "--libs", "openreg"], env=os.environ | {"PKG_CONFIG_PATH": where}
    ).stdout.split()
    program = tmp_path / "program"
    subprocess.run(["cc", "-std=gnu11", "-Werror", str(tmp_path / "program.c"), *flags, "-o", str(program)], check=True)
    printed = finished([str(program)], env={"OPENREG_SIM_DEVICES": "3"})
    assert printed.stdout.split()[1] == "3"


# a third party compiles a driver against an installed wheel, and it becomes a device of torch
@pytest.mark.parametrize("way", ["root", pytest.param("dir", marks=pytest.mark.long)])
def test_third_party_driver(installed: Path, tmp_path: Path, way: str) -> None:
    cmake = shutil.which("cmake") or str(Path(sys.executable).parent / "cmake")
    (tmp_path / "third.c").write_text(DRIVER)
    (tmp_path / "program.c").write_text(PROGRAM)
    (tmp_path / "CMakeLists.txt").write_text(CMAKE)
    option, argument = {"root": ("--prefix", "openreg_ROOT"), "dir": ("--cmake-dir", "openreg_DIR")}[way]
    where = run(
        installed, f"import sys; sys.argv = ['config', {option!r}]; import torch_openreg.config as c; c.main()"
    ).strip()
    assert where.startswith(str(installed))
    build = tmp_path / "build"
    subprocess.run(
        [cmake, "-S", str(tmp_path), "-B", str(build), f"-D{argument}={where}", "-DCMAKE_C_FLAGS=-Wall -Werror"],
        check=True,
    )
    subprocess.run([cmake, "--build", str(build)], check=True)

    library = build / "libopenreg_third.so"
    exported = finished(["nm", "-D", "--defined-only", str(library)]).stdout
    assert [line.split()[-1] for line in exported.splitlines()] == ["openreg_driver_query_v1"]
    printed = finished([str(build / "program")], env={"OPENREG_SIM_DEVICES": "5"})
    assert printed.stdout.split()[1] == "5"

    out = run(
        installed,
        """
        import torch
        print(torch.openreg.get_device_properties(0).driver, torch.openreg.device_count())
        x = torch.randn(4, 4)
        y = (x.to("openreg") @ x.to("openreg")).relu()
        assert torch.allclose(y.cpu(), (x @ x).relu())
        try:
            torch.empty(1 << 31, dtype=torch.uint8, device="openreg")
        except torch.OutOfMemoryError as error:
            assert 'driver "third"' in str(error), error
        model = torch.nn.Linear(4, 2).to("openreg")
        model(x.to("openreg")).sum().backward()
        print(model.weight.grad.device)
        """,
        OPENREG_DRIVER_LIBRARIES=f"third:{library}",
    )
    assert out.split() == ["third", "1", "openreg:0"]
