# SPDX-License-Identifier: BSD-3-Clause
"""Importing this makes ``import torchvision`` work beside a torch for the CPU, whatever torchvision was built for.

The extension of a torchvision for CUDA does not load there. Torchvision goes on without it, but fails where it describes
two of the extension's operators to PyTorch. So they are declared before that, without kernels; models, transforms and timm
call none of them.
"""

from __future__ import annotations

import sys

_kept: list[object] = []  # operators go with their library object


class _Finder:
    """Finds nothing, and is asked before torchvision's descriptions are imported."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        del path, target
        if name == "torchvision._meta_registrations" and not sys.modules["torchvision.extension"]._has_ops():
            import torch

            library = torch.library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms"):
                library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            _kept.append(library)


sys.meta_path.insert(0, _Finder)  # type: ignore[arg-type]
