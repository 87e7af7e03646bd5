# SPDX-License-Identifier: BSD-3-Clause
"""A staged operator copies what its tensors cover, not their storages, and leaves everything else as it was."""

from __future__ import annotations

import textwrap

import pytest
from finished import Program

START = """
import torch
D = torch.device("openreg")


def copied(work):
    "The bytes that the operators of `work` copied, both directions together."
    torch.openreg.reset_operator_stats()
    work()
    return torch.openreg.operator_stats()["staged_bytes"]
"""


@pytest.fixture
def staged(python: Program) -> Program:
    """Runs a program after START whose operators are staged."""

    return lambda code: python(START + textwrap.dedent(code), OPENREG_OPERATORS="staged")


# four elements of a storage of 4 MiB cost what four elements cost
def test_cost_follows_the_view(staged: Program) -> None:
    staged(
        """
        base = torch.arange(1 << 20, dtype=torch.float32, device=D)
        assert copied(lambda: base[:4] + 1) == 16 + 16
        assert copied(lambda: base[8:12].add_(1)) == 16 + 16
        assert copied(lambda: torch.add(base[:4], base[-4:], out=base[100:104])) == 3 * 16 + 16
        assert base[8:12].tolist() == [9.0, 10.0, 11.0, 12.0]
        expected = torch.arange(1 << 20, dtype=torch.float32)
        expected[8:12] += 1
        expected[100:104] = expected[:4] + expected[-4:]
        assert torch.equal(base.cpu(), expected)
        """
    )


# views of one storage share the copy: what overlaps travels once, and what one writes the other reads
def test_overlapping_views_of_one_storage(staged: Program) -> None:
    staged(
        """
        base = torch.arange(64.0, device=D)
        near = torch.arange(64.0)
        for x in (base, near):
            x[4:20].add_(x[20:36])
            x[10:30].mul_(x[5])
            torch._foreach_add_([x[:8], x[4:12], x[40:]], 1.0)
            torch.mul(x[:8], 3, out=x[32:40])
        assert torch.equal(base.cpu(), near)
        assert copied(lambda: base[0:16] + base[8:24].sum()) > 0
        assert copied(lambda: torch.equal(base[0:16], base[8:24])) == 24 * 4
        """
    )


# elements between those of a strided view are what they were
def test_gaps_between_elements_stay(staged: Program) -> None:
    staged(
        """
        base = torch.arange(100.0, device=D).view(10, 10)
        near = torch.arange(100.0).view(10, 10)
        for x in (base, near):
            x[:, 3].mul_(2)
            x.t()[2:4].add_(x[5, ::2].sum())
            x.diagonal().fill_(7)
            x[::3, ::4].zero_()
        assert torch.equal(base.cpu(), near)
        """
    )


# a view that a kernel makes larger takes its storage along: the rest of it is kept
def test_a_resized_view_keeps_its_storage(staged: Program) -> None:
    staged(
        """
        import warnings
        warnings.simplefilter("ignore")
        results = []
        for device in (D, "cpu"):
            base = torch.arange(1 << 16, dtype=torch.float32, device=device)
            out = base[:0]
            torch.add(torch.ones(100, device=device), 1, out=out)
            grown = base[5:7]
            torch.add(torch.ones(1 << 17, device=device), 1, out=grown)
            results.append((base.cpu(), out.cpu(), grown.cpu(), base.untyped_storage().nbytes()))
        for one, other in zip(*results):
            assert one == other if isinstance(one, int) else torch.equal(one, other)
        """
    )


# operators that reach beyond their tensors, into the storage, see all of it
def test_operators_that_reach_beyond_their_tensors(staged: Program) -> None:
    staged(
        """
        base, near = torch.arange(32.0, device=D), torch.arange(32.0)
        view, near_view = base[8:12], near[8:12]
        assert torch.equal(torch.as_strided_copy(view, (4,), (2,), 1).cpu(), torch.as_strided_copy(near_view, (4,), (2,), 1))
        scattered = torch.as_strided_scatter(view, torch.zeros(2, device=D), (2,), (1,), 9)
        assert torch.equal(scattered.cpu(), torch.as_strided_scatter(near_view, torch.zeros(2), (2,), (1,), 9))
        """
    )


# batch normalisation writes running statistics that its schema calls read
def test_writes_that_the_schema_does_not_say(staged: Program) -> None:
    staged(
        """
        results = []
        for device in (D, "cpu"):
            torch.manual_seed(0)
            x = torch.randn(8, 3, 4, 4).to(device)
            stats = torch.stack([torch.zeros(3), torch.ones(3)]).to(device)
            torch.native_batch_norm(x, None, None, stats[0], stats[1], True, 0.1, 1e-5)
            results.append(stats.cpu())
        assert torch.equal(*results) and results[0].ne(0).any()
        """
    )


# of operators of others nothing is known: storages are copied whole, and every write is found
def test_custom_operators_see_whole_storages(staged: Program) -> None:
    staged(
        """
        @torch.library.custom_op("extents::neighbour", mutates_args=(), device_types="cpu")
        def neighbour(x: torch.Tensor) -> torch.Tensor:
            "Reads the element after its argument, and writes the one before."
            around = x.as_strided((3,), (1,), x.storage_offset() - 1)
            result = around[2].clone()
            around[0] = -1
            return result

        base = torch.arange(8.0, device=D)
        assert neighbour(base[3:4]).item() == 4
        assert base.tolist() == [0, 1, -1, 3, 4, 5, 6, 7]
        """
    )


# what the schema doesn't say is watched by tests; an operator that is known to say all is quiet, and the watch sees one
# that doesn't
def test_undeclared_writes_are_seen_by_the_watch(staged: Program) -> None:
    staged(
        """
        from torch_openreg import _C
        _C._watch_undeclared_writes(True)
        x = torch.randn(16, device=D)
        x.add_(1); torch.sort(x); torch.nn.functional.gelu(x)
        assert _C._undeclared_writes() == set()
        library = torch.library.Library("aten", "IMPL")
        def writes(input):
            input.detach().data_ptr()  # the kernel below is the CPU's, so this is the staged copy
            import ctypes
            ctypes.c_float.from_address(input.data_ptr()).value = 3.0
            return input.clone()
        library.impl("relu", writes, "CPU")
        torch.relu(torch.randn(16, device=D))
        assert _C._undeclared_writes() == {"aten::relu"}, _C._undeclared_writes()
        """
    )


# buffers are kept between calls, and given back with the cache
def test_staging_buffers_are_kept_and_given_back(staged: Program) -> None:
    staged(
        """
        from torch_openreg import _C
        x = torch.ones(1 << 18, device=D)
        y = x + x
        kept = _C._kept_staging_bytes()
        assert kept == 2 * x.nbytes, kept  # x once, and the result
        for _ in range(10):
            y = x + x
        assert _C._kept_staging_bytes() == kept
        torch.openreg.empty_cache()
        assert _C._kept_staging_bytes() == 0
        assert (x + y).sum().item() == 3 * (1 << 18)
        """
    )


# a copy-on-write storage of a device that isn't current parts on its own device when a staged operator writes it
def test_lazy_clones_part_on_their_device(staged: Program) -> None:
    staged(
        """
        x = torch.ones(3, device="openreg:1")
        y, z = x._lazy_clone(), x._lazy_clone()
        before = torch.openreg.memory_allocated(0)
        y.add_(1)
        x.mul_(5)
        assert torch.openreg.memory_allocated(0) == before
        assert [t.cpu().tolist() for t in (x, y, z)] == [[5, 5, 5], [2, 2, 2], [1, 1, 1]]
        for t in (x, y, z):
            there = torch.empty_like(t)
            there.copy_(t, non_blocking=True)
            assert there.tolist() == t.tolist()
        """
    )
