# SPDX-License-Identifier: BSD-3-Clause
"""A pass over graphs before they are lowered. Imported when Inductor registers code generators."""

from __future__ import annotations

import torch
from _torch_openreg_device_name import device_name
from torch._inductor.custom_graph_pass import CustomGraphModulePass

_NAME = device_name()


class NameDevices(CustomGraphModulePass):
    """Gives ``device="openreg"`` the index of the device that was current where the program said so.

    The graph doesn't say which that was (``with torch.openreg.device(1)``), but the tensors that were traced do.
    """

    def __call__(self, gm: torch.fx.GraphModule) -> None:
        for node in gm.graph.nodes:
            device = node.kwargs.get("device")
            traced = node.meta.get("val")
            if (
                isinstance(device, torch.device)
                and device.type == _NAME
                and device.index is None
                and isinstance(traced, torch.Tensor)
                and traced.device.type == _NAME
            ):
                node.update_kwarg("device", traced.device)

    def uuid(self) -> str:
        """Returns what the pass adds to the key of cached graphs; config.py has the version."""
        return "openreg.NameDevices"
