# SPDX-License-Identifier: BSD-3-Clause
"""Entry point of the group ``torch.backends``: what ``import torch`` runs to find the device.

It is a module of its own, beside the package, because importing the package registers the device, and whether to
register is what is decided here. Nothing in here may break ``import torch``. PYTEST_DONT_REWRITE (see the package)
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings

from _torch_openreg_accelerator import own_accelerator


def _autoload() -> None:
    """Registers openreg at the end of ``import torch``, unless that would disturb.

    ``OPENREG_AUTOLOAD=1`` registers always, ``OPENREG_AUTOLOAD=0`` never; without it openreg is registered unless
    torch has an accelerator of its own that works here. ``TORCH_DEVICE_BACKEND_AUTOLOAD=0`` is torch's own switch for
    all backends. A failure is told once, as a warning; ``import torch_openreg`` then raises the error itself.
    """
    if "torch_openreg" in sys.modules:  # `import torch_openreg` is what imports torch here
        return
    wish = os.environ.get("OPENREG_AUTOLOAD", "")
    if wish == "0":
        return
    try:
        if wish != "1" and own_accelerator() is not None:
            return
        import torch_openreg

        if not hasattr(torch_openreg, "_registration"):
            raise ImportError(
                f"{torch_openreg.__file__} is another package of that name, such as PyTorch's own test extension. "
                "Both are named torch_openreg and take PyTorch's one place for such a device: uninstall one."
            )
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
