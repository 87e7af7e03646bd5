# SPDX-License-Identifier: BSD-3-Clause
"""torch-openreg: accelerators behind a C driver interface, as the PyTorch device ``openreg``.

Importing this package registers the device: ``torch.openreg`` and the device strings ``"openreg"`` and
``"privateuseone"`` exist from then on. No driver is opened by that; the first use of a device does it.
An installed package is imported by ``import torch`` itself (see ``_torch_openreg_autoload``).

PYTEST_DONT_REWRITE: a session that begins after ``import torch`` would warn that it can't rewrite assertions in here.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from torch_openreg import _registration

if TYPE_CHECKING:  # the same module, with its types
    from torch_openreg import openreg
else:
    openreg = _registration.register()


openreg._lazy._open_laboratory()  # C++ may open the drivers: pinned memory needs no word of Python's
if _registration.is_as_cuda():  # by name: contrib is above the package
    importlib.import_module("torch_openreg.contrib.cuda_to_openreg")
if _registration.connects_libraries():
    importlib.import_module("torch_openreg.contrib._on_import")


def _autoload() -> None:
    """Entry point of the in-tree backend of the same name; importing the package has done its work."""


from torch_openreg._build_info import OPENREG_VERSION as __version__  # noqa: E402

__all__ = ["__version__", "openreg"]
