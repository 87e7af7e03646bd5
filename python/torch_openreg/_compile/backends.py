# SPDX-License-Identifier: BSD-3-Clause
"""The name "openreg" among torch.compile's backends. Imported after torch._dynamo.backends.registry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from _torch_openreg_device_name import device_name
from torch._dynamo.backends import registry

from torch_openreg import openreg as module
from torch_openreg.openreg._lazy import _lazy_call

_NAME = device_name()


def openreg(
    model: Any, example_inputs: Any, *, mode: str | None = None, options: Mapping[str, Any] | None = None
) -> Any:
    """Compiles as backend="inductor" does, which serves openreg too; for a device that is a GPU on that GPU."""
    from torch._inductor import list_mode_options

    from torch_openreg._compile.gpu import compile_on_gpu, gpu_in

    settings = dict(list_mode_options(mode or "default"))
    settings.update((name.replace("-", "_"), value) for name, value in (options or {}).items())
    found = gpu_in(example_inputs)
    if found is not None:
        return compile_on_gpu(model, example_inputs, *found, settings)
    return registry.lookup_backend("inductor")(model, example_inputs, config_patches=settings)


def _serves_gpus() -> bool:
    # Whether PyTorch has kernels for GPUs, and a device's memory is that of a GPU. Doesn't query the GPU itself.
    if not torch._C._dispatch_has_kernel_for_dispatch_key("aten::add.out", "CUDA"):
        return False
    indices = range(module.device_count())
    return any(module.get_device_properties(index).torch_device_type == "cuda" for index in indices)


def _make_default() -> None:
    if registry.get_default_backend() == "inductor" and _serves_gpus():
        registry.set_default_backend(_NAME)


def register() -> None:
    """Registers the name. Repeating it changes nothing.

    Once devices are open of which one is a GPU, it is the default, where the program has not chosen another.
    """
    if not hasattr(openreg, "_tags"):  # which register_backend() sets
        registry.register_backend(openreg, name=_NAME)
        _lazy_call(_make_default)
