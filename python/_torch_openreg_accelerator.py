# SPDX-License-Identifier: BSD-3-Clause
"""The accelerator that PyTorch itself was built for.

It is a module of its own, beside the package: both the package and the entry point that decides whether to import it
ask for it. PYTEST_DONT_REWRITE (see the package)
"""

from __future__ import annotations

import os

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
    if device is None or device.type == torch._C._get_privateuse1_backend_name():
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
