# SPDX-License-Identifier: BSD-3-Clause
"""torch.compile for openreg: what PyTorch's compilers must know of the device, registered when they are imported.

Importing this package imports nothing of Dynamo or Inductor. docs/compile.md describes the parts.
"""

from __future__ import annotations

from torch_openreg._compile._hooks import install

__all__ = ["install"]
