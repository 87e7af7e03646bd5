# SPDX-License-Identifier: BSD-3-Clause
"""Registers the backend ``openreg_gloo`` with torch.distributed: gloo for tensors on openreg and on the CPU.

It is the backend of ``init_process_group()`` without a name, too, for then PyTorch takes the accelerator's.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_openreg import _C

_BACKEND = "openreg_gloo"


def _create(options: Any, backend_options: Any) -> Any:
    """Makes the part of a process group that serves openreg and CPU tensors.

    Args:
        options: Store, rank, world size, timeout and name, as PyTorch passes them to a backend with extended_api.
        backend_options: Ignored; gloo has none that could be given.

    Returns:
        A torch.distributed backend.

    Raises:
        RuntimeError: Collectives of openreg tensors are off, or this torch has no gloo.
    """
    _C._require_gloo_collectives()
    if not torch.distributed.is_gloo_available():
        raise RuntimeError(f"The backend '{_BACKEND}' needs gloo, which this build of torch does not have.")
    from torch.distributed import ProcessGroupGloo

    gloo = ProcessGroupGloo(options.store, options.group_rank, options.group_size, timeout=options.timeout)
    gloo.options.global_ranks_in_group = options.global_ranks_in_group
    gloo.options.group_name = options.group_id
    gloo._set_sequence_number_for_group()
    return _C._staged_backend(gloo)


def install() -> None:
    """Registers the backend; a torch without torch.distributed is left alone. Repeating it changes nothing."""
    if torch.distributed.is_available() and _BACKEND not in torch.distributed.Backend.backend_list:
        torch.distributed.Backend.register_backend(_BACKEND, _create, extended_api=True, devices=["openreg", "cpu"])
