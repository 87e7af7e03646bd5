# SPDX-License-Identifier: BSD-3-Clause
"""The same tensors on another device, storage by storage, and the comparison of what two devices made of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


class Mover:
    """Copies whole storages to a device, so that tensors that share memory share it there, with the same strides."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self._storages: dict[int, torch.UntypedStorage] = {}

    def __call__(self, value: Any) -> Any:
        """`value` with every tensor in it a copy on the device, and every "cpu" that names a device exchanged."""
        return tree_map(self._leaf, value, is_leaf=lambda x: isinstance(x, torch.Tensor))

    def _leaf(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, torch.device) or (isinstance(value, str) and value == "cpu"):
            return self.device
        return value

    def tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """A leaf with the data of `tensor`, its layout, its strides and its wish for a gradient."""
        with torch.no_grad():
            moved = self._moved(tensor.detach())
        if tensor.is_leaf and type(tensor) is torch.nn.Parameter:
            return torch.nn.Parameter(moved, requires_grad=tensor.requires_grad)
        return moved.requires_grad_(tensor.requires_grad)

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_cpu:
            return tensor  # "meta", of samples that must fail
        if tensor.layout == torch.sparse_coo:
            return torch.sparse_coo_tensor(
                self._moved(tensor._indices()),
                self._moved(tensor._values()),
                tensor.shape,
                is_coalesced=tensor.is_coalesced(),
                check_invariants=False,
            )
        if tensor.layout in COMPRESSED:
            return torch.sparse_compressed_tensor(
                *(self._moved(part) for part in compressed_parts(tensor)),
                tensor.shape,
                layout=tensor.layout,
                check_invariants=False,
            )
        if tensor.is_nested or tensor.is_quantized or tensor.layout != torch.strided:
            return tensor.to(self.device)
        if tensor._is_zerotensor():
            return torch._efficientzerotensor(tensor.shape, dtype=tensor.dtype, device=self.device)
        if tensor.is_conj():
            return self._moved(tensor.conj()).conj()
        if tensor.is_neg():
            return torch._neg_view(self._moved(torch._neg_view(tensor)))
        return torch.empty(0, dtype=tensor.dtype, device=self.device).set_(
            self._storage(tensor.untyped_storage()), tensor.storage_offset(), tensor.shape, tensor.stride()
        )

    def _storage(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        key = storage._cdata
        if key not in self._storages:
            data = torch.empty(0, dtype=torch.uint8).set_(storage)
            copy = torch.empty(storage.nbytes(), dtype=torch.uint8, device=self.device).copy_(data)
            self._storages[key] = copy.untyped_storage()
        return self._storages[key]


def compressed_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The compressed indices, the plain indices and the values of a tensor of a compressed sparse layout."""
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    return tensor.ccol_indices(), tensor.row_indices(), tensor.values()


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The tensors in a nest of containers, in order."""
    return [leaf for leaf in tree_flatten(value)[0] if isinstance(leaf, torch.Tensor)]


def _parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The dense tensors that a tensor consists of."""
    if tensor.layout == torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in COMPRESSED:
        return compressed_parts(tensor)
    if tensor.is_nested:
        return tuple(tensor.unbind())
    if tensor.is_quantized:
        return (tensor.int_repr(),)
    return (tensor,)


def _metadata(tensor: torch.Tensor, device: torch.device, strides: bool) -> Iterator[tuple[str, Any]]:
    yield "device", "right" if tensor.device == device else str(tensor.device)
    yield "layout", tensor.layout
    yield "dtype", tensor.dtype
    if tensor.is_nested:
        return
    yield "shape", tuple(tensor.shape)
    yield "requires_grad", tensor.requires_grad
    if tensor.layout == torch.strided:
        if strides:
            yield "strides", _strides(tensor)
        yield "conj", tensor.is_conj()
        yield "neg", tensor.is_neg()
    if tensor.layout == torch.sparse_coo:
        yield "coalesced", tensor.is_coalesced()


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    # Those of dimensions of one element, and of tensors without elements, say nothing.
    return tuple(s if n > 1 and tensor.numel() > 0 else 0 for n, s in zip(tensor.shape, tensor.stride(), strict=True))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    dense = torch.empty(tensor.numel(), dtype=tensor.dtype)
    return dense.copy_(tensor.detach().cpu().reshape(-1)).view(torch.uint8)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two dense tensors of the same shape and dtype hold the same bits, any NaN being as good as another."""
    if torch.equal(_bytes(a), _bytes(b)):
        return True
    near_a, near_b = (t.detach().resolve_conj().resolve_neg().cpu() for t in (a, b))
    if not (a.dtype.is_floating_point or a.dtype.is_complex):
        return False
    if a.dtype.itemsize == 1:
        near_a, near_b = near_a.float(), near_b.float()
    if a.dtype.is_complex:
        near_a, near_b = (torch.view_as_real(t.contiguous()) for t in (near_a, near_b))
    same = (near_a == near_b) | (near_a.isnan() & near_b.isnan())
    return bool(same.all())


Comparison = Callable[[torch.Tensor, torch.Tensor], "str | None"]
"""What differs between a tensor of the CPU and its twin, or None."""


def exactly(expected: torch.Tensor, actual: torch.Tensor) -> str | None:
    """Bit for bit."""
    return None if same_bits(expected, actual) else within(0, 0)(expected, actual) or "different bits"


def within(rtol: float, atol: float) -> Comparison:
    """A comparison with a tolerance."""
    limits = {"rtol": rtol, "atol": atol, "equal_nan": True, "check_stride": False}

    def compare(expected: torch.Tensor, actual: torch.Tensor) -> str | None:
        try:
            near = actual.detach().resolve_conj().resolve_neg().cpu()
            torch.testing.assert_close(near, expected.detach(), **limits)
        except AssertionError as error:
            return " ".join(str(error).split())[:200]
        return None

    return compare


def ignored(_expected: torch.Tensor, _actual: torch.Tensor) -> str | None:
    """For contents that are undefined: only sizes, strides and dtype count."""
    return None


def difference(
    expected: Any, actual: Any, device: torch.device, compare: Comparison, strides: bool = True
) -> str | None:
    """What differs between the results of the CPU and those of `device`: metadata, values, kinds of result; or None."""
    left, right = tree_flatten(expected)[0], tree_flatten(actual)[0]
    if len(left) != len(right):
        return f"{len(right)} results instead of {len(left)}"
    for number, (a, b) in enumerate(zip(left, right, strict=True)):
        found = _leaf_difference(a, b, device, compare, strides)
        if found is not None:
            return found if len(left) == 1 else f"result {number}: {found}"
    return None


def _leaf_difference(a: Any, b: Any, device: torch.device, compare: Comparison, strides: bool) -> str | None:
    if type(a) is not type(b):
        return f"a {type(b).__name__} instead of a {type(a).__name__}"
    if not isinstance(a, torch.Tensor):
        if isinstance(a, torch.device) or a == b or compare is ignored or (a != a and b != b):
            return None
        return f"{b!r} instead of {a!r}"
    for (name, wanted), (_, got) in itertools.zip_longest(
        _metadata(a, torch.device("cpu"), strides), _metadata(b, device, strides), fillvalue=("", None)
    ):
        if wanted != got:
            return f"{name} is {got}, not {wanted}"
    if a.is_sparse_csr or a.layout != torch.strided or a.is_nested or a.is_quantized:
        for part_a, part_b in zip(_parts(a), _parts(b), strict=True):
            found = _leaf_difference(part_a, part_b, device, compare, strides=False)
            if found is not None:
                return f"part: {found}"
        return None
    return compare(a, b)
