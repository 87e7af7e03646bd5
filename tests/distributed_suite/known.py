# SPDX-License-Identifier: BSD-3-Clause
"""Which of PyTorch's tests of torch.distributed fail on openreg and not on the CPU, and why. Reviewed by hand."""

from __future__ import annotations

import dataclasses
from fnmatch import fnmatchcase


@dataclasses.dataclass(frozen=True)
class Known:
    """A failure that is expected; a run fails where it passes."""

    tests: str
    """A pattern of fnmatch on "way/ranks/test"."""
    reason: str
    sometimes: bool = False
    """It passes now and then: a matter of time, which the reason names."""

    def covers(self, way: str, ranks: int, name: str) -> bool:
        """Whether it is about this test."""
        return fnmatchcase(f"{way}/{ranks}/{name}", self.tests)


WANTS_NCCL = "it wants NCCL itself: its name, the names of its events, its options, or its watchdog's texts"
TO_ITSELF = "gloo has no connection of a rank to itself, and messages go through gloo: refused at the call"
OTHERS_DEVICE = (
    "it compares an object of rank 2 on that rank's default device, openreg:2, with its own on another device"
)

WAITS_ON_THE_STREAM = (
    "wait() of a message makes the stream wait and not the host, as with NCCL, for which it is skipped: it asks at once "
    "whether the message has arrived"
)
THIRDS = (
    "one model's gradients are divided by three before the sum and the other's behind it, and both diverge: with the same "
    "numbers gloo's tensors of the CPU differ in the same elements"
)

KNOWN: tuple[Known, ...] = (
    Known("nccl/*/test_get_backend", WANTS_NCCL),
    Known("nccl/*/test_ddp_profiling_torch_profiler", WANTS_NCCL),
    Known("nccl/*/test_monitored_barrier_allreduce_hang*", WANTS_NCCL),
    Known("cuda/*/test_monitored_barrier_allreduce_hang*", WANTS_NCCL),
    Known("nccl/*/test_nccl_high_priority_stream", WANTS_NCCL),
    Known("nccl/*/test_batch_isend_irecv_nccl", TO_ITSELF),
    Known("nccl/*/test_batch_isend_irecv_self_nccl", TO_ITSELF),
    Known("cuda/3/test_ddp_apply_optim_in_backward", THIRDS),
    Known("cuda/3/test_ddp_apply_optim_in_backward_grad_as_bucket_view_false", THIRDS),
    Known("nccl/3/test_ddp_apply_optim_in_backward", THIRDS),
    Known("nccl/3/test_ddp_apply_optim_in_backward_grad_as_bucket_view_false", THIRDS),
    Known("device/*/test_isend*", WAITS_ON_THE_STREAM, sometimes=True),
    Known("device/*/test_irecv", WAITS_ON_THE_STREAM, sometimes=True),
    Known("device/3/test_all_gather_object_*", OTHERS_DEVICE),
    Known("device/3/test_scatter_object_list", OTHERS_DEVICE),
)
