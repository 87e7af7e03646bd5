# SPDX-License-Identifier: BSD-3-Clause
"""The name "openreg" among torch.compile's backends. Imported after torch._dynamo.backends.registry."""

from __future__ import annotations

from typing import Any

from torch._dynamo.backends import registry

_NAME = "openreg"


def openreg(model: Any, example_inputs: Any, **options: Any) -> Any:
    """Compiles as backend="inductor" does, which serves openreg devices too, but on the GPU for a device that is one.

    Args:
        model: The graph.
        example_inputs: Inputs of it.
        **options: As for "inductor".
    """
    from torch_openreg._compile.gpu import compile_on_gpu, gpu_in  # which imports Inductor

    found = gpu_in(example_inputs)
    if found is not None:
        return compile_on_gpu(model, example_inputs, *found)
    return registry.lookup_backend("inductor")(model, example_inputs, **options)


def register() -> None:
    """Registers the name. Repeating it changes nothing."""
    if not hasattr(openreg, "_tags"):  # which register_backend() sets
        registry.register_backend(openreg, name=_NAME)
