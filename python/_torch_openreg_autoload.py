# SPDX-License-Identifier: BSD-3-Clause
"""Entry point of the group ``torch.backends``: what ``import torch`` runs to find the device.

It is a module of its own, beside the package, because importing the package registers the device, and whether to
register is what is decided here. Nothing in here may break ``import torch``. PYTEST_DONT_REWRITE (see the package)
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import warnings

from _torch_openreg_accelerator import own_accelerator

_OWN = b"connects_libraries"  # in torch_openreg/__init__.py, compiled or not


def _foreign() -> str | None:
    """The file of another package that ``import torch_openreg`` would run here, or None; it isn't run for that.

    PyTorch's in-tree test extension has the name of this package, of its distribution and of its module. It may come
    first on the path, or its files may lie over those of this package: what counts is what the file says.
    """
    found = importlib.util.find_spec("torch_openreg")
    if found is None:  # the import says so
        return None
    if found.origin is None:  # a folder without the file
        return str(next(iter(found.submodule_search_locations or ()), found))
    with open(found.origin, "rb") as file:
        return None if _OWN in file.read(1 << 16) else found.origin


def _autoload() -> None:
    """Registers openreg at the end of ``import torch``, unless that would disturb.

    ``OPENREG_AUTOLOAD=1`` registers always, ``OPENREG_AUTOLOAD=0`` never; without it openreg is registered unless
    torch has an accelerator of its own that works here. ``TORCH_DEVICE_BACKEND_AUTOLOAD=0`` is torch's own switch for
    all backends. A failure is reported once, as a warning; ``import torch_openreg`` then raises the error itself.
    """
    if "torch_openreg" in sys.modules:  # `import torch_openreg` is what imports torch here
        return
    wish = os.environ.get("OPENREG_AUTOLOAD", "")
    if wish == "0":
        return
    try:
        if wish != "1" and own_accelerator() is not None:
            return
        foreign = _foreign()
        if foreign is not None:
            raise ImportError(
                f"{foreign} is another package of that name, such as PyTorch's own test extension, and was not run. "
                "Both are named torch_openreg and take PyTorch's one place for such a device: uninstall one, or give "
                "each an environment of its own."
            )
        importlib.import_module("torch_openreg")
    except Exception as error:
        # Where warnings are errors torch must still be importable.
        with contextlib.suppress(Warning):
            warnings.warn(
                f"torch_openreg was not loaded, so its devices are not there: {error} "
                "(`import torch_openreg` raises the whole error; TORCH_DEVICE_BACKEND_AUTOLOAD=0 turns autoloading "
                "off.)",
                RuntimeWarning,
                stacklevel=2,
            )
