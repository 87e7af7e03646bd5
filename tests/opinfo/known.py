# SPDX-License-Identifier: BSD-3-Clause
"""What is known to differ from the CPU, and why. Reviewed by hand: each line needs a reason that holds.

Patterns are those of ``fnmatch`` on ``database/operator/dtype``, on the check, on the way (aliased, staged), and on what the
check says.
"""

from __future__ import annotations

import dataclasses
from fnmatch import fnmatchcase

from torch_openreg_lab.check.paired_tensors import Comparison, exactly, ignored, within


@dataclasses.dataclass(frozen=True)
class Known:
    """Failures that are expected; a run fails where one of them passes throughout."""

    entries: str
    check: str
    reason: str
    way: str = "*"
    failure: str = "*"
    """What the check says."""

    def covers(self, entry_id: str, check: str, way: str) -> bool:
        """Whether it is a check that is expected to fail."""
        return fnmatchcase(entry_id, self.entries) and fnmatchcase(check, self.check) and fnmatchcase(way, self.way)

    def explains(self, entry_id: str, check: str, way: str, failure: str) -> bool:
        """Whether the failure is this one."""
        return self.covers(entry_id, check, way) and fnmatchcase(failure, self.failure)


@dataclasses.dataclass(frozen=True)
class Loose:
    """Results that are not compared bit for bit."""

    entries: str
    check: str
    compare: Comparison
    reason: str
    strides: bool = True
    """Whether strides must be the same even so."""


ARGUMENTS_ON_CPU = ("op/tensor_split/*", "ref/_refs.tensor_split/*")
"""Operators whose tensor arguments, but for the first, must be on the CPU with any accelerator."""

SKIPPED = (
    # With strided out= they write beyond their memory, also in a process that knows only the CPU.
    ("op/linalg.lu/*", "out strided"),
    ("op/lu_unpack/*", "out strided"),
)
"""Checks (entry and check) that can't be run at all."""

UNDEFINED = "the contents of new memory are undefined"

LOOSE: tuple[Loose, ...] = (
    Loose("op/empty*/*", "*", ignored, UNDEFINED),
    Loose("op/new_empty*/*", "*", ignored, UNDEFINED),
    Loose("ref/_refs.empty*/*", "*", ignored, UNDEFINED),
    Loose("ref/_refs.new_empty*/*", "*", ignored, UNDEFINED),
    Loose(
        "op/linalg.lstsq*/*",
        "forward",
        within(1e-4, 1e-4),
        "LAPACK's gelsy gives other last bits from call to call, also on the CPU",
    ),
    Loose(
        "*",
        "compiled",
        within(1e-5, 1e-5),
        "Inductor multiplies by the reciprocal of the number of elements in a mean, on any device but the CPU",
    ),
)

BY_DEVICE = "written in Python, it asks for the type of the device, and does on any but the CPU what it does on CUDA"

FUSED_BY_NAME = "as many operators, but another number of kernels: "
BIAS = (
    FUSED_BY_NAME
    + "Inductor leaves a convolution's bias to the operator for the CPU, and adds it in a kernel for others"
)
ROW = FUSED_BY_NAME + "a row times few columns is a sum in a kernel, for the CPU alone"
OUTER = FUSED_BY_NAME + "an outer product is computed in a kernel, for the CPU only one of at most 32 numbers"
LAYOUT = "for the CPU, by its name, Inductor makes convolutions channels last; on openreg strides are eager mode's"

KNOWN: tuple[Known, ...] = (
    Known("op/linalg.multi_dot/float32", "compiled", ROW, failure="*: 0 instead of 1"),
    Known("module/nn.RNNCell/float32", "compiled", ROW, failure="*: 6 instead of 8"),
    Known("module/nn.GRUCell/float32", "compiled", OUTER, failure="*: 6 instead of 4"),
    Known("module/nn.LSTMCell/float32", "compiled", OUTER, failure="*: 5 instead of 3"),
    *(
        Known(f"{name}{size}d/float32", "compiled", BIAS, failure="*: 1 instead of 0")
        for name in ("op/nn.functional.conv", "op/nn.functional.conv_transpose")
        for size in (1, 3)
    ),
    *(
        Known(f"module/nn.{lazy}{name}{size}d/float32", "compiled", BIAS, failure="*: 1 instead of 0")
        for lazy in ("", "Lazy")
        for name in ("Conv", "ConvTranspose")
        for size in (1, 3)
    ),
    *(
        Known(f"op/nn.functional.{name}/float32", "compiled", LAYOUT, failure="*strides is *")
        for name in ("conv2d", "conv_transpose2d")
    ),
    *(
        Known(f"module/nn.{name}/float32", "compiled", LAYOUT, failure="*strides is *")
        for name in ("Conv2d", "ConvTranspose2d", "LazyConv2d", "LazyConvTranspose2d")
    ),
    Known("op/nn.functional.linear_cross_entropy.chunked_none/float32", "compiled", BY_DEVICE),
    Known(
        "op/as_strided_scatter/*",
        "noncontiguous",
        "the CPU fails on an assertion about a tensor that wants a gradient; openreg gives the result",
    ),
    Known("op/lu/*", "out other device", "written in Python, it copies its result to out= wherever that is"),
    Known("op/nn.functional.linear_cross_entropy.chunked*/float16", "*", BY_DEVICE),
    Known("op/nn.functional.linear_cross_entropy.chunked*/bfloat16", "*", BY_DEVICE),
    Known("ref/_refs.native_group_norm/float32", "*", BY_DEVICE),
    Known("ref/_refs.native_group_norm/float64", "*", BY_DEVICE),
    Known("ref/_refs.native_layer_norm/float16", "*", BY_DEVICE),
    Known("ref/_refs.native_layer_norm/bfloat16", "*", BY_DEVICE),
)

KNOWN += (
    # As on CUDA, or where PyTorch asks whether a tensor is of CUDA.
    Known("*", "captured*", "what it gives depends on data", failure="*refused: *depends on*data*"),
    Known("*", "captured*", "sparse tensors are not captured", failure="*refused: *tensors other than dense ones*"),
    Known("hop/register_hook*/int64", "captured*", "its sample wants gradients of integers"),
)

EXACT = Loose("*", "*", exactly, "")


def comparison(entry: str, check: str) -> Loose:
    """How results of a check are compared: bit for bit unless a line above says otherwise."""
    for loose in LOOSE:
        if fnmatchcase(entry, loose.entries) and fnmatchcase(check, loose.check):
            return loose
    return EXACT


def stays_on_cpu(entry: str) -> bool:
    """Whether the arguments of the operator stay on the CPU."""
    return any(fnmatchcase(entry, pattern) for pattern in ARGUMENTS_ON_CPU)


def is_skipped(entry: str, check: str) -> bool:
    """Whether the check can't be run."""
    return any(fnmatchcase(entry, skipped) and check == which for skipped, which in SKIPPED)
