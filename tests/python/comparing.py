# SPDX-License-Identifier: BSD-3-Clause
"""Results of the device against those of the CPU, and of equal seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves

EXACT = {"rtol": 0, "atol": 0}


def assert_same(got: Any, expected: Any, device: str = "openreg:1", **limits: Any) -> None:
    """Each tensor in a nest of containers is on the device, and close to the one in the other nest."""
    ours = tree_leaves(got)
    assert {tensor.device for tensor in ours} == {torch.device(device)}
    assert_close(ours, tree_leaves(expected), check_device=False, **limits)


def drawn_by_seed(draw: Callable[[], torch.Tensor]) -> torch.Tensor:
    """What is drawn for one seed, which is the same each time and not what is drawn for another."""
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(draw())
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    return drawn[0]
