# SPDX-License-Identifier: BSD-3-Clause
"""Importing this makes ``import torchvision`` work beside a torch for the CPU, whatever torchvision was built for.

The extension of a torchvision for CUDA does not load there. Torchvision goes on without it, but fails where it describes
two of the extension's operators to PyTorch. So they are declared here, without kernels; models, transforms and timm call
none of them.
"""

from __future__ import annotations

import sys

import torch

# Kept: operators go with their library object.
_library: torch.library.Library | None = None


def _declare() -> None:
    global _library
    _library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        _library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


try:
    import torchvision  # noqa: F401
except RuntimeError as error:
    if "torchvision::nms does not exist" not in str(error):
        raise
    for module in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[module]
    _declare()
except ImportError:
    pass  # not installed: nothing to do
