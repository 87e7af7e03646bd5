# SPDX-License-Identifier: BSD-3-Clause
"""This process among those of a distributed program, as torch.distributed knows it."""

from __future__ import annotations

import torch

from torch_openreg import _C


def index_and_count() -> tuple[int, int]:
    """Returns this process's number and the number of processes; (0, 1) where torch.distributed is not initialised."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def tell_runtime() -> None:
    """Hands the numbers to the runtime, for the options ``node_id`` and ``num_nodes`` of drivers opened from now on."""
    _C._set_process(*index_and_count())
