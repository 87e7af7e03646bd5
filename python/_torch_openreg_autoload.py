# SPDX-License-Identifier: BSD-3-Clause
"""Entry point of the group ``torch.backends``: what ``import torch`` runs to find the device ``openreg``.

It is a module of its own, beside the package, because importing the package registers the device, and whether to
register is what is decided here. Nothing in here may break ``import torch``.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings

_CUDA_WITHOUT_INITIALISING = "PYTORCH_NVML_BASED_CUDA_CHECK"


def own_accelerator() -> str | None:
    """Names the accelerator that torch itself was built for, if this machine can use it.

    PyTorch has one accelerator a process. As soon as openreg is registered it is that one, and ``backward()`` on any
    other accelerator fails.

    Returns:
        The device type ("cuda", "xpu", "mps", ...), or None if there is none or it is openreg already.
    """
    import torch

    device = torch.accelerator.current_accelerator()
    if device is None or device.type in ("openreg", torch._C._get_privateuse1_backend_name()):
        return None
    # torch.cuda.is_available() would otherwise initialise CUDA, after which the process can't fork any more.
    before = os.environ.get(_CUDA_WITHOUT_INITIALISING)
    os.environ[_CUDA_WITHOUT_INITIALISING] = "1"
    try:
        return device.type if getattr(torch, device.type).is_available() else None
    finally:
        if before is None:
            del os.environ[_CUDA_WITHOUT_INITIALISING]
        else:
            os.environ[_CUDA_WITHOUT_INITIALISING] = before


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
        import torch_openreg  # noqa: F401
    except Exception as error:
        # Where warnings are errors torch must still be importable.
        with contextlib.suppress(Warning):
            warnings.warn(
                f"torch_openreg was not loaded, so there is no device 'openreg': {error} "
                "(`import torch_openreg` raises the whole error; TORCH_DEVICE_BACKEND_AUTOLOAD=0 turns autoloading "
                "off.)",
                RuntimeWarning,
                stacklevel=2,
            )
