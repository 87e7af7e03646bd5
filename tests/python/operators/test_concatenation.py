# SPDX-License-Identifier: BSD-3-Clause
"""cat and stack: of small tensors, which are copied one behind the other, and of those that PyTorch's kernel joins."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest
import torch

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.uint8, torch.float8_e4m3fn)


def outcome(make: Callable[[], torch.Tensor]) -> tuple[object, ...]:
    """What a call gives, or the kind of its error."""
    try:
        made = make()
    except Exception as error:
        return (type(error),)
    bits = made.cpu().resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8)
    return made.dtype, tuple(made.shape), made.stride(), bits.tolist()


def check(near: Sequence[torch.Tensor], dim: int) -> None:
    """cat, stack and cat's `out=` variant give on openreg what they give on the CPU, errors included."""
    far = [tensor.to("openreg:1") for tensor in near]
    for join in (torch.cat, torch.stack):
        assert outcome(lambda join=join: join(far, dim)) == outcome(lambda join=join: join(list(near), dim))
        for tensors, device in ((far, "openreg:1"), (list(near), "cpu")):
            result = outcome(lambda join=join, tensors=tensors: join(tensors, dim))
            if len(result) > 1:
                out = torch.empty(0, dtype=join(tensors, dim).dtype, device=device)
                assert outcome(lambda join=join, tensors=tensors, out=out: join(tensors, dim, out=out))[3] == result[3]


# acceptance 3.1: every number of dimensions, every dimension and those that are none, equal and unequal sizes
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_joins_as_on_the_cpu(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)

    def tensor(*sizes: int) -> torch.Tensor:
        return torch.randint(0, 2, sizes, generator=generator).to(dtype)

    for dims in range(5):
        sizes = (3, 2, 5, 4)[:dims]
        for dim in range(-dims - 2, dims + 2):
            check([tensor(*sizes) for _ in range(3)], dim)
            if -dims <= dim < dims:
                unequal = [[*sizes], [*sizes], [*sizes]]
                unequal[1][dim] += 2
                check([tensor(*shape) for shape in unequal], dim)
                unequal[2][dim] = 0
                check([tensor(*shape) for shape in unequal], dim)


# What does not lie in memory as it is to be read, or is not of one kind, is left to PyTorch's kernel
def test_tensors_that_are_not_plain() -> None:
    base = torch.arange(24.0).to(torch.complex64).view(4, 6)
    plain = torch.arange(24.0).to(torch.complex64).view(4, 6) + 1
    others = (
        base.conj(),
        base.view(6, 4).t(),
        base[:, ::2],
        base.expand(2, 4, 6)[1],
        torch.arange(24, dtype=torch.float64).view(4, 6),
        torch.empty(0, dtype=torch.complex64),
        torch.view_as_real(base).select(-1, 1),
        torch._neg_view(base),
    )
    for other, dim in itertools.product(others, (0, 1)):
        check([plain, other], dim)
        check([other, plain], dim)
    check([base[1:3], plain[2:]], 0)  # plain, with an offset
    check([], 0)
    check([torch.empty(0), torch.rand(2, 3)], 0)
    nchw = torch.rand(2, 3, 4, 5)
    check([nchw.to(memory_format=torch.channels_last), nchw], 1)
    check([torch.rand(2, 3, 1, 1), torch.rand(2, 1, 1, 1)], 1)


# Small tensors and large ones, in every mixture, beside what the call does not name
def test_sizes_and_the_bytes_around_them() -> None:
    for sizes in ((1, 100_000), (5_000, 3_000, 2_000), (4_096,) * 40, (70_000, 70_000)):
        near = [torch.rand(size + 2)[1:-1] for size in sizes]
        check(near, 0)
        rows = [tensor.view(-1, 1) for tensor in near]
        check(rows, 0)


# Gradients, functional transforms and autocast see cat and stack as they do on the CPU
def test_gradients_and_transforms() -> None:
    for join in (torch.cat, torch.stack):
        gradients = []
        for device in ("cpu", "openreg"):
            parts = [torch.arange(3.0, device=device, requires_grad=True) for _ in range(4)]
            (join(parts) * join(parts).exp()).sum().backward()
            gradients.append([part.grad.cpu() for part in parts if part.grad is not None])
        assert len(gradients[1]) == 4
        torch.testing.assert_close(*gradients, rtol=0, atol=0)
        ways = [
            torch.func.vmap(lambda x, join=join: join([x, 2 * x]))(torch.arange(6.0).view(2, 3).to(device)).cpu()
            for device in ("cpu", "openreg")
        ]
        assert torch.equal(*ways)


# One of the tensors is elsewhere: named, as by any operator
@pytest.mark.parametrize("join", [torch.cat, torch.stack], ids=["cat", "stack"])
def test_tensors_of_two_devices_are_refused(join: Callable[[list[torch.Tensor]], torch.Tensor]) -> None:
    here, there = torch.ones(2, device="openreg:0"), torch.ones(2, device="openreg:1")
    for tensors in ([here, there], [here, torch.ones(2)], [torch.ones(2), here]):
        with pytest.raises(RuntimeError, match="two devices|same device"):
            join(tensors)


# What the tensors' stream has yet to bring is there before the bytes are copied
def test_pending_copies_are_waited_for() -> None:
    source = torch.rand(1 << 20).pin_memory()
    stream = torch.openreg.Stream()
    with torch.openreg.stream(stream):
        large = torch.zeros(1 << 20, device="openreg")
        for _ in range(5):
            large.copy_(source, non_blocking=True)
        joined = torch.cat([large[:100], large[-100:]]).cpu()
    assert torch.equal(joined, torch.cat([source[:100], source[-100:]]))


# Counted, traced and refused by the operator policy like every operator
def test_the_call_is_an_operator_like_others() -> None:
    tensors = [torch.ones(4, device="openreg") for _ in range(3)]
    with torch.profiler.profile() as profile:
        torch.cat(tensors)
        torch.stack(tensors)
    names = {event.name for event in profile.events()}
    assert {"aten::cat [aliased]", "aten::stack [aliased]"} <= names
    for join in (torch.cat, torch.stack):
        name = f"aten::{join.__name__}"
        with torch.openreg.operator_policy("forbid", "aliased", [name]), pytest.raises(RuntimeError, match=name):
            join(tensors)
