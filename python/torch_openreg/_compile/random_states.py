# SPDX-License-Identifier: BSD-3-Clause
"""Random operators that a backward pass computes again, as under checkpointing, draw what the forward pass drew.

Imported after torch._functorch._aot_autograd.utils, which keeps the types of devices whose generators hand states on
within graphs (``graphsafe_set_state()``).
"""

from __future__ import annotations

from _torch_openreg_device_name import device_name

_NAME = device_name()


def register() -> None:
    """Registers the device type. Repeating it changes nothing."""
    from torch._functorch._aot_autograd import utils

    utils.register_graphsafe_rng_device_type(_NAME)
