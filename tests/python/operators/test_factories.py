# SPDX-License-Identifier: BSD-3-Clause
"""Every operator that makes a tensor on a device that it is told, found in the dispatcher."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

DEV = torch.device("openreg:1")

# What an argument without a default is given, by name where the type says too little.
BY_NAME: dict[str, Any] = {
    "size": [2, 3],
    "stride": [3, 1],
    "end": 5,
    "start": 1,
    "low": 0,
    "high": 5,
    "steps": 4,
    "n": 3,
    "m": 2,
    "row": 3,
    "col": 3,
    "offset": 0,
    "window_length": 8,
    "fill_value": 2,
    "s": 1.5,
    "physical_layout": [0, 1],
}
# They need a file, arguments that are tensors of another layout, or are no operators that users call.
NOT_CALLED = (
    "from_file",
    "_cudnn_init_dropout_state",
    "_empty_affine_quantized",
    "_empty_per_channel",
    "empty_permuted",
)


def factories() -> list[str]:
    found = []
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        if namespace != "aten" or any(left_out in rest for left_out in NOT_CALLED):
            continue
        base, _, overload = rest.partition(".")
        schema = torch._C._get_schema(f"aten::{base}", overload)
        arguments = {argument.name: str(argument.type) for argument in schema.arguments}
        if "device" in arguments and not any("Tensor" in kind or "Storage" in kind for kind in arguments.values()):
            found.append(f"{base}.{overload or 'default'}")
    return sorted(found)


def called(name: str, device: torch.device) -> Any:
    base, overload = name.split(".")
    operator = getattr(getattr(torch.ops.aten, base), overload)
    positional, named = [], {"device": device}
    for argument in operator._schema.arguments:
        if argument.name in ("device", "generator") or argument.has_default_value():
            continue
        value = BY_NAME.get(argument.name, 2.0 if str(argument.type) in ("float", "number") else 2)
        if argument.kwarg_only:
            named[argument.name] = value
        else:
            positional.append(value)
    return operator(*positional, **named)


# acceptance 3.2, 3.22
# every factory that works on the CPU works here, and gives the same but for random numbers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", factories())
def test_every_factory(name: str) -> None:
    try:
        expected = called(name, torch.device("cpu"))
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        pytest.skip(f"not on the CPU: {type(error).__name__}")
    got = called(name, DEV)
    for a, b in zip(tree_leaves(got), tree_leaves(expected), strict=True):
        assert (a.shape, a.dtype, a.layout, a.device) == (b.shape, b.dtype, b.layout, DEV)
        if a.layout == torch.strided:
            assert a.stride() == b.stride()
        if not any(word in name for word in ("rand", "empty", "_efficient", "_make_dep_token")):
            near, there = (t.to_dense() if t.layout != torch.strided else t for t in (b, a))
            assert torch.equal(there.cpu(), near)


# the search finds them
def test_the_search() -> None:
    found = factories()
    assert len(found) >= 40
    assert {"kaiser_window.beta", "zeros.default", "arange.start_step", "randperm.generator"} <= set(found)
