# SPDX-License-Identifier: BSD-3-Clause
"""to_device(): what is nested in containers."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

to_device = torch.openreg.to_device
Pair = namedtuple("Pair", "a b")


@dataclass(frozen=True)
class Batch:
    x: torch.Tensor
    name: str


# acceptance 2.7
def test_containers_keep_their_type() -> None:
    """Tensors move, containers keep type and order, all else passes through."""
    x = torch.arange(3)
    moved = to_device({"a": (x, 3)}, "openreg:1")
    assert isinstance(moved, dict)
    assert isinstance(moved["a"], tuple)
    assert moved["a"][0].device == torch.device("openreg:1")
    assert moved["a"][0].tolist() == [0, 1, 2]
    assert moved["a"][1] == 3

    marker = object()
    for container, path in (
        (Pair(x, marker), lambda c: c.a),
        ([x, marker], lambda c: c[0]),
        (OrderedDict(k=x, m=marker), lambda c: c["k"]),
        (defaultdict(list, {"k": x}), lambda c: c["k"]),
        (MappingProxyType({"k": x}), lambda c: c["k"]),
        (frozenset([x]), lambda c: next(iter(c))),
        (Batch(x, "n"), lambda c: c.x),
    ):
        moved = to_device(container, "openreg:1")
        assert type(moved) is type(container)
        assert path(moved).device == torch.device("openreg:1")
        assert path(container).device.type == "cpu"  # the original is as it was
    assert to_device(defaultdict(list, {"k": x}), "openreg:1").default_factory is list
    assert to_device(Pair(x, marker), "openreg").b is marker
    assert to_device(marker, "openreg") is marker


# acceptance 2.7
def test_modules_packed_sequences_and_shared_tensors() -> None:
    """A module moves in place, a packed sequence as a whole, and one tensor in two places stays one."""
    x = torch.ones(2)
    module = torch.nn.Linear(2, 2)
    first, second, linear, packed = to_device((x, x, module, pack_sequence([x])), "openreg:1")
    assert first is second
    assert linear is module
    assert module.weight.device == torch.device("openreg:1")
    assert packed.data.device == torch.device("openreg:1")


# acceptance 2.7
@pytest.mark.parametrize(
    ("device", "error"), [("openreg:9", RuntimeError), ("cuda", ValueError), (None, ValueError), (1.5, TypeError)]
)
def test_a_bad_device_is_refused(device: Any, error: type[Exception]) -> None:
    """Before anything moves."""
    module = torch.nn.Linear(1, 1)
    with pytest.raises(error):
        to_device([module], device)
    assert module.weight.device.type == "cpu"


# acceptance 2.19
def test_a_tensor_that_is_there_already_is_itself() -> None:
    """No copy is made, on the CPU as on openreg."""
    x = torch.ones(2)
    assert to_device(x, torch.openreg.cpu_device()) is x
    y = x.to("openreg:1")
    assert to_device([y], "openreg:1")[0] is y
