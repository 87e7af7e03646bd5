# SPDX-License-Identifier: BSD-3-Clause
"""The device table changed by C code of the same process: what was derived from the table before no longer counts."""

from __future__ import annotations

from typing import Any

_C_LIBRARY = """
import ctypes
from pathlib import Path
import torch_openreg
c = ctypes.CDLL(str(Path(torch_openreg.__file__).parent / "lib/libopenreg.so.1"))
def use_drivers(names):
    assert c.openreg_drivers_use(names) == 0
"""


# acceptance 5.44: operators run as the new driver needs it, whoever has chosen it
def test_operators_follow_a_choice_made_in_c(python: Any, toy: str) -> None:
    python(
        _C_LIBRARY
        + f"""
openreg.register_driver_plugin("toy", library_path={toy!r})
for names, staged in ((b"sim", 0), (b"toy", 1), (b"sim", 0)):
    use_drivers(names)
    openreg.reset_operator_stats()
    x = torch.arange(4.0, device="openreg")
    assert (x + 1).tolist() == [1, 2, 3, 4]
    del x
    openreg.empty_cache()
    assert ("aten::add" in openreg.operator_stats()["staged"]) == bool(staged), (names, openreg.operator_stats())
"""
    )


# acceptance 5.44: what Python keeps of the drivers follows too
def test_python_follows_changes_made_in_c(python: Any, toy: str) -> None:
    python(
        _C_LIBRARY
        + f"""
openreg.register_driver_plugin("toy", library_path={toy!r}, priority=-1)
openreg.use_driver("sim")
before = openreg.drivers()
assert list(before) == ["sim"]
assert openreg.is_initialized()
assert openreg.gpu_device() == torch.device("openreg")
use_drivers(b"toy,sim")
assert list(openreg.drivers()) == ["toy", "sim"]
assert openreg.device_count() > 2
assert c.openreg_shutdown() == 0
assert not openreg.is_initialized()
assert openreg.device_count() == 2
assert openreg.gpu_device() == torch.device("cpu")
assert torch.ones(2, device="openreg").sum().item() == 2
assert openreg.is_initialized()
"""
    )


# a seed set while there is no table holds for the next one, whoever builds it
def test_a_seed_outlives_a_shutdown_made_in_c(python: Any) -> None:
    python(
        _C_LIBRARY
        + """
openreg.manual_seed(3)
expected = torch.rand(4, device="openreg").cpu()
openreg.empty_cache()
assert c.openreg_shutdown() == 0
openreg.manual_seed(3)
assert not openreg.is_initialized()
assert torch.rand(4, device="openreg").tolist() == expected.tolist()
"""
    )
