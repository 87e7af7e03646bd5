# SPDX-License-Identifier: BSD-3-Clause
"""tools/check_gpu_headers.py: a version of HIP whose headers would make another binary of the driver is told of."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from finished import finished

ROOT = Path(__file__).resolve().parents[3]
HIP = Path("/usr/include/hip")


def _check(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools/check_gpu_headers.py"), "--vendor", "HIP", str(folder)]
    return finished(command, status=None)


# A later version with the same constants is as the one before; one that has another value of a constant, or lacks a name, isn't.
@pytest.mark.long  # `make lint` has the constants as they are
@pytest.mark.skipif(not (HIP / "hip_version.h").is_file(), reason="needs HIP's headers: libamdhip64-dev")
def test_a_changed_constant_is_found(tmp_path: Path) -> None:
    (tmp_path / "hip").mkdir()
    version = (HIP / "hip_version.h").read_text()
    lines = [
        "#define HIP_VERSION_MAJOR 6" if line.startswith("#define HIP_VERSION_MAJOR") else line
        for line in version.splitlines()
    ]
    (tmp_path / "hip/hip_version.h").write_text("\n".join(lines) + "\n")
    wrapper = tmp_path / "hip/hip_runtime_api.h"
    wrapper.write_text("#include_next <hip/hip_runtime_api.h>\n")
    assert _check(tmp_path).returncode == 0, _check(tmp_path).stdout

    wrapper.write_text(
        "#include_next <hip/hip_runtime_api.h>\n#undef hipStreamNonBlocking\n#define hipStreamNonBlocking 2\n"
    )
    changed = _check(tmp_path)
    assert changed.returncode == 1
    assert "gpu_stream.c is other code with HIP 6.2" in changed.stdout

    wrapper.write_text("#include_next <hip/hip_runtime_api.h>\n#define hipStreamQuery hipStreamQueryOfOld\n")
    lacking = _check(tmp_path)
    assert lacking.returncode == 1
    assert "doesn't compile with HIP 6.2" in lacking.stdout
