# SPDX-License-Identifier: BSD-3-Clause
"""What there is to check: PyTorch's own databases of operators, one entry for each operator, variant and dtype."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import torch
from torch.testing._internal import common_methods_invocations as databases
from torch.testing._internal.common_dtype import floating_types_and
from torch.testing._internal.common_modules import module_db
from torch.testing._internal.common_optimizers import OptimizerInfo, optim_db
from torch.testing._internal.custom_op_db import custom_op_db
from torch.testing._internal.hop_db import hop_db
from torch.testing._internal.opinfo.definitions.nested import njt_op_db

SPARSE_LAYOUTS = {
    "sparse_coo": torch.sparse_coo,
    "sparse_csr": torch.sparse_csr,
    "sparse_csc": torch.sparse_csc,
    "sparse_bsr": torch.sparse_bsr,
    "sparse_bsc": torch.sparse_bsc,
}


@dataclasses.dataclass(frozen=True)
class Entry:
    """One operator in one dtype."""

    database: str
    operator: str
    """The name in the database, with the variant after a dot."""
    dtype: torch.dtype
    info: Any = dataclasses.field(compare=False, hash=False)
    """The OpInfo or OptimizerInfo."""

    @property
    def id(self) -> str:
        """ "database/operator/dtype", unique."""
        return f"{self.database}/{self.operator}/{str(self.dtype).removeprefix('torch.')}"

    @property
    def layout(self) -> torch.layout | None:
        """The layout of the samples where the database is one of sparse samples."""
        return SPARSE_LAYOUTS.get(self.database)


def _operators(infos: Iterable[Any], database: str, dtypes: Iterable[torch.dtype] | None = None) -> Iterator[Entry]:
    for info in infos:
        name = f"{info.name}.{info.variant_test_name}" if info.variant_test_name else info.name
        for dtype in sorted(info.supported_dtypes("cpu"), key=str):
            if dtypes is None or dtype in dtypes:
                yield Entry(database, name, dtype, info)


def _foreach() -> list[Any]:
    groups = (name for name in dir(databases) if name.startswith("foreach_") and name.endswith("_op_db"))
    return [info for group in groups for info in getattr(databases, group)]


def _supports(layout: torch.layout) -> Callable[[Any], bool]:
    name = str(layout).removeprefix("torch.").replace("sparse_coo", "sparse")
    return lambda info: bool(getattr(info, f"supports_{name}"))


def _optimizers() -> Iterator[Entry]:
    for info in optim_db:
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.complex64):
            if isinstance(info, OptimizerInfo) and (info.supports_complex or not dtype.is_complex):
                yield Entry("optim", info.name, dtype, info)


WITHOUT_CPU = ("hop", "custom", "module")
"""Databases that are run compiled and captured alone: of higher-order operators, custom operators and layers."""


@cache
def all_entries() -> dict[str, Entry]:
    """Every entry by its id.

    The databases of unary, binary, reduction, shape and spectral operators are parts of ``op_db``.
    """
    found: list[Entry] = [
        *_operators(databases.op_db, "op"),
        *_operators(databases.python_ref_db, "ref"),
        *_operators(_foreach(), "foreach"),
        # Its samples are random numbers that want gradients, so only of these dtypes.
        *_operators(
            (info for info in njt_op_db if info.supports_njt),
            "jagged",
            floating_types_and(torch.float16, torch.bfloat16),
        ),
        *_optimizers(),
        *_operators(hop_db, "hop"),
        *_operators(custom_op_db, "custom"),
        *(Entry("module", info.name, dtype, info) for info in module_db for dtype in info.dtypes),
    ]
    for database, layout in SPARSE_LAYOUTS.items():
        found += _operators(filter(_supports(layout), databases.op_db), database)
    return {entry.id: entry for entry in found}
