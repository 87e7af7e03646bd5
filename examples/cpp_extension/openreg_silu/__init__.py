# SPDX-License-Identifier: BSD-3-Clause
"""An operator in C++ with a kernel for openreg."""

from pathlib import Path

import torch

torch.ops.load_library(str(Path(__file__).with_name("_library.so")))


def scaled_silu(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """Returns ``x * sigmoid(scale * x)``, with a derivative."""
    return torch.ops.openreg_silu.scaled_silu(x, scale)
