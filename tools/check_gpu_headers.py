# SPDX-License-Identifier: BSD-3-Clause
"""Compiles the drivers for CUDA and HIP against every version of the vendors' headers that is on the machine.

The headers of the machine's own toolkits, of Triton's wheel, and of folders that are named. One binary serves all
versions of HIP, so what is compiled with each of them is the same machine code, but for what names the version: a
structure or a constant that has changed shows, whether a fake of the vendor's runtime knows it or not.

Run ``python tools/check_gpu_headers.py [FOLDER...]``: a folder holds CUDA's headers, or HIP's below ``hip/``. Exits
with 1 where a driver doesn't compile, or differs.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "runtime" / "drivers" / "gpu"
OF_OTHERS = {"CUDA": ("_hip.c", "_amd.c"), "HIP": ("_cuda.c", "_nvidia.c")}
NAME_VERSIONS = {"gpu_driver.c", "gpu_library_hip.c"}
DEFINITIONS = {"CUDA": (), "HIP": ("-DOPENREG_GPU_HIP", "-D__HIP_PLATFORM_AMD__")}


@dataclass(frozen=True)
class Headers:
    """One version of a vendor's headers: folders in the order in which they are searched."""

    vendor: str
    version: str
    folders: tuple[Path, ...]

    def __str__(self) -> str:
        return f"{self.vendor} {self.version} of {self.folders[0]}"


def _numbers(file: Path, *names: str) -> list[str]:
    text = file.read_text(encoding="utf-8", errors="replace")
    found = (re.search(rf"^#define\s+{name}\s+(\d+)", text, re.MULTILINE) for name in names)
    return [match.group(1) if match else "?" for match in found]


def headers_in(folder: Path) -> Headers | None:
    """What headers a folder has; of Python packages of CUDA, some are in a folder beside it."""
    if (folder / "hip" / "hip_version.h").is_file():
        version = ".".join(_numbers(folder / "hip" / "hip_version.h", "HIP_VERSION_MAJOR", "HIP_VERSION_MINOR"))
        return Headers("HIP", version, (folder,))
    if not (folder / "cuda_runtime_api.h").is_file():
        return None
    (version,) = _numbers(folder / "cuda_runtime_api.h", "CUDART_VERSION")
    beside = (folder, *(folder.parent.parent / name / "include" for name in ("cuda_crt", "cuda_nvcc")))
    folders = tuple(path for path in beside if path == folder or path.is_dir())
    return Headers("CUDA", version, folders) if any((path / "crt").is_dir() for path in folders) else None


def places() -> Iterator[Path]:
    """Where headers may be."""
    yield Path("/usr/include")
    yield from (Path(os.environ[name]) / "include" for name in ("CUDA_PATH", "ROCM_PATH") if os.environ.get(name))
    yield from sorted(path for root in ("/usr/local", "/opt") for path in Path(root).glob("[cr][uo][dc][am]*/include"))
    triton = importlib.util.find_spec("triton")
    if triton is not None and triton.origin is not None:
        yield from (Path(triton.origin).parent / "backends" / vendor / "include" for vendor in ("nvidia", "amd"))


def all_headers(given: Sequence[Path]) -> list[Headers]:
    """Each version once, the oldest first."""
    found: dict[tuple[str, str], Headers] = {}
    for folder in (*given, *places()):
        headers = headers_in(folder.resolve())
        if headers is not None:
            found.setdefault((headers.vendor, headers.version), headers)
    return [found[key] for key in sorted(found)]


def compile_driver(headers: Headers, into: Path) -> Iterator[str]:
    """Compiles each source of the vendor's driver; what fails."""
    includes = [option for folder in headers.folders for option in ("-isystem", str(folder))]
    for source in sorted(SOURCES.glob("*.c")):
        if source.name.endswith(OF_OTHERS[headers.vendor]):
            continue
        # Deprecated: of HIP 6 a function has a new name, which HIP 5 lacks.
        command = ["gcc", "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-deprecated-declarations", "-c"]
        command += [*DEFINITIONS[headers.vendor], "-I", str(ROOT / "runtime/include"), "-I", str(SOURCES), *includes]
        command += [str(source), "-o", str(into / f"{source.stem}.o")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            yield f"{source.relative_to(ROOT)} doesn't compile with {headers}:\n{done.stderr}"


def differences(first: Path, second: Path) -> list[str]:
    """The sources whose machine code differs, but for those that name the version."""
    sources = {f"{path.stem}.c" for path in first.glob("*.o")} - NAME_VERSIONS
    pairs = {name: [folder / f"{Path(name).stem}.o" for folder in (first, second)] for name in sources}
    return sorted(name for name, (a, b) in pairs.items() if not b.is_file() or a.read_bytes() != b.read_bytes())


def main(arguments: Sequence[str] | None = None) -> int:
    """Compiles against each version; 1 if something fails or differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--vendor", choices=sorted(DEFINITIONS), help="this one's alone")
    options = parser.parse_args(arguments)
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        oldest: tuple[Headers, Path] | None = None
        for number, headers in enumerate(all_headers(options.folders)):
            if options.vendor not in (None, headers.vendor):
                continue
            into = Path(scratch) / str(number)
            into.mkdir()
            failed = list(compile_driver(headers, into))
            failures += failed
            print(f"{headers}: {len(failed)} of {len(failed) + len(list(into.glob('*.o')))} sources fail")
            if headers.vendor == "HIP" and not failed:
                oldest = oldest or (headers, into)
                failures += [
                    f"{name} is other code with {headers} than with {oldest[0]}, and one binary is for both"
                    for name in differences(oldest[1], into)
                ]
    print("\n".join(failures) or "the drivers for GPUs compile with all headers that are here")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
