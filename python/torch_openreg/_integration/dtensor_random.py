# SPDX-License-Identifier: BSD-3-Clause
"""Random numbers of DTensors: the numbers of the whole tensor, of which each rank keeps its part.

PyTorch's tracker gives each shard an offset in the sequence of a counter-based generator, as GPUs have. The generator
of an openreg device counts nothing: it is the CPU's, for the CPU's numbers. So a rank draws for the whole tensor and
keeps its shard. A DTensor has the same content on every placement and every mesh, that of the plain tensor with the
same seed, and the generators of all ranks stay equal. The cost is one tensor of the whole size in each rank for the
time of a call.

Imported when PyTorch has executed ``torch.distributed.tensor._random`` (``_compile/_hooks.py``).
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from _torch_openreg_device_name import device_name
from torch.distributed.tensor import _random
from torch.distributed.tensor.placement_types import Shard
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

_DEVICE = device_name()
# Bytes of the state of a GPU's generator, a seed and an offset: where a GPU's kernels draw, PyTorch's own way works.
_COUNTER_STATE = 16


class _WholeTensor(TorchDispatchMode):
    """Runs operators that draw on the tensor that the local ones are shards of."""

    def __init__(self, spec: Any) -> None:
        super().__init__()
        self._shape = tuple(spec.shape)
        self._mesh = spec.mesh
        self._placements = spec.placements
        self._local_shape = tuple(self._split(torch.empty(self._shape, device="meta")).shape)
        # For each element of a shard that is no view of the whole tensor, its place in that; on the CPU.
        self._index: torch.Tensor | None = None
        if any(hasattr(placement, "_split_tensor") and type(placement) is not Shard for placement in self._placements):
            self._index = self._split(torch.arange(torch.Size(self._shape).numel()).reshape(self._shape)).reshape(-1)

    def _split(self, whole: torch.Tensor) -> torch.Tensor:
        """This rank's shard of a tensor, a view of it where all placements are plain shards."""
        for dimension, placement in enumerate(self._placements):
            if hasattr(placement, "_split_tensor"):
                chunks = self._mesh.size(dimension)
                parts, _ = placement._split_tensor(whole, chunks, with_padding=False, contiguous=False)
                whole = parts[self._mesh.get_local_rank(dimension)]
        return whole

    def _whole(self, local: torch.Tensor) -> torch.Tensor:
        """A tensor of the whole shape with the shard in its place and zeros around it."""
        if tuple(local.shape) != self._local_shape:
            raise RuntimeError(
                f"Random numbers for a DTensor of shape {self._shape}: this rank's part should have the shape "
                f"{self._local_shape}, but has {tuple(local.shape)}."
            )
        whole = torch.zeros(self._shape, dtype=local.dtype, device=local.device)
        if self._index is None:
            self._split(whole).copy_(local)
        else:
            whole.view(-1)[self._index.to(local.device)] = local.reshape(-1)
        return whole

    def _part(self, whole: torch.Tensor) -> torch.Tensor:
        if tuple(whole.shape) != self._shape:
            return whole
        if self._index is None:
            return self._split(whole).clone(memory_format=torch.contiguous_format)
        return whole.reshape(-1)[self._index.to(whole.device)].reshape(self._local_shape)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if torch.Tag.nondeterministic_seeded not in func.tags or not args:
            return func(*args, **kwargs)
        first, *others = args
        if not isinstance(first, torch.Tensor):  # torch.rand and its like: sizes
            return self._part(func(list(self._shape), *others, **kwargs))
        whole = self._whole(first)
        result = func(whole, *others, **kwargs)
        if result is whole:  # in place
            return first.copy_(self._part(whole))
        return tree_map_only(torch.Tensor, self._part, result)


_LAYOUTS: dict[Any, int] = {}


class OpenRegRNGTracker(_random.OffsetBasedRNGTracker):
    """PyTorch's tracker, which openreg devices without a counter-based generator draw beside."""

    def _draws_beside(self) -> bool:
        """Whether the device has no counter that PyTorch's own way could move."""
        return bool(self._device.type == _DEVICE and self._device_handle.get_rng_state().numel() != _COUNTER_STATE)

    def _compute_rng_offsets(self, spec: Any) -> tuple[int, int]:
        """Since 2.15: what PyTorch gives its higher-order operator, and burns into graphs, in place of the layout.

        Returns:
            How far the generator is moved before and behind the call; for a generator that counts nothing, the number
            of the layout among those that this tracker has met, and 0.
        """
        if self._draws_beside():
            return _LAYOUTS.setdefault(spec, len(_LAYOUTS)), 0
        before, behind = super()._compute_rng_offsets(spec)
        return before, behind

    @contextlib.contextmanager
    def _distribute_region(self, spec: Any, generator: torch.Generator | None = None) -> Iterator[None]:
        """Context manager: operators inside draw for a DTensor of this layout.

        Args:
            spec: Mesh, placements and shape.
            generator: Draws in place of the device's.
        """
        if not self._draws_beside():
            with super()._distribute_region(spec, generator):
                yield
            return
        with contextlib.ExitStack() as stack:
            if generator is not None:
                stack.enter_context(self._drawing_from(generator))
            if self.distribute_region_enabled and any(
                hasattr(placement, "_split_tensor") for placement in spec.placements
            ):
                stack.enter_context(_WholeTensor(spec))
            yield

    @contextlib.contextmanager
    def _drawing_from(self, generator: torch.Generator) -> Iterator[None]:
        """The device's generator is in the state of another one, which it has afterwards."""
        mine = self._device_handle.get_rng_state()
        self._device_handle.set_rng_state(generator.get_state())
        try:
            yield
        finally:
            generator.set_state(self._device_handle.get_rng_state())
            self._device_handle.set_rng_state(mine)


def _draw(before: int, op: Any, *args: Any, **kwargs: Any) -> Any:
    """Runs an operator that draws for a layout, by its number."""
    if not 0 <= before < len(_LAYOUTS):
        raise RuntimeError(f"{op} on DTensors of {_DEVICE}: this graph was compiled in another process.")
    with _random._rng_tracker._distribute_region(list(_LAYOUTS)[before]):
        return op(*args, **kwargs)


def _serve_operator(operator: Any) -> None:
    """Has ``run_dtensor_rng_op`` draw on openreg, which PyTorch since 2.15 calls for DTensors of its accelerators.

    Its kernel for all devices moves a counter. PyTorch looks for that kernel before one for PrivateUse1, so ours takes
    its place and calls it for what is not ours.
    """
    key = torch._C.DispatchKey.BackendSelect
    general = operator.py_kernels.pop(key)

    def run(before: int, behind: int, op: Any, *args: Any, **kwargs: Any) -> Any:
        tracker = _random._rng_tracker
        if isinstance(tracker, OpenRegRNGTracker) and tracker._draws_beside():
            return _draw(before, op, *args, **kwargs)
        return general(before, behind, op, *args, **kwargs)

    operator.py_impl(key)(run)


def register() -> None:
    """Has DTensor make this tracker; other devices' meshes are served by PyTorch's code in it."""
    since_2_15 = hasattr(_random.OffsetBasedRNGTracker, "_compute_rng_offsets")
    _random.OffsetBasedRNGTracker = OpenRegRNGTracker
    if since_2_15:
        rng_prims: Any = importlib.import_module("torch._prims.rng_prims")
        _serve_operator(rng_prims.run_dtensor_rng_op)
