# SPDX-License-Identifier: BSD-3-Clause
"""Names of ``torch.cuda`` that the device's module doesn't have, and why.

They raise an AttributeError with the reason, so that ``hasattr()``, by which libraries ask, is False.
"""

from __future__ import annotations

from _torch_openreg_device_name import device_name

_NAME = device_name()

_GRAPHS = "it is CUDA's own; debug_dump() of a graph writes its nodes and edges"
_LIBRARY = "it is a part of the CUDA toolkit; the runtime calls no library of a vendor but its driver"
_LOAD = "the driver interface does not ask for load, clocks or sensors; ask the vendor's tool (nvidia-smi, rocm-smi)"
_LEGACY_STORAGE = "typed storages are deprecated in PyTorch; use torch.UntypedStorage"
_INTERNAL = "it is an import or a detail of torch.cuda's own code"

REASONS: dict[str, str] = {
    "CUDAGraph": f"it is torch.{_NAME}.OpenRegGraph",
    **dict.fromkeys(("export_dot", "export_graph_data", "graph_annotations"), _GRAPHS),
    **dict.fromkeys(
        (
            *("CudaError", "cudaStatus", "cudart", "check_error", "current_blas_handle", "current_solver_handle"),
            *("gds", "green_contexts", "GreenContext", "jiterator", "nccl", "nvtx", "tunable"),
        ),
        _LIBRARY,
    ),
    **dict.fromkeys(("clock_rate", "memory_usage", "power_draw", "temperature", "utilization"), _LOAD),
    **dict.fromkeys(
        (
            *("BFloat16Storage", "BoolStorage", "ByteStorage", "CharStorage", "ComplexDoubleStorage", "DoubleStorage"),
            *("ComplexFloatStorage", "FloatStorage", "HalfStorage", "IntStorage", "LongStorage", "ShortStorage"),
        ),
        _LEGACY_STORAGE,
    ),
    **dict.fromkeys(
        (
            *("Callable", "DEVICE_REQUIREMENT", "NewType", "Optional", "PYTORCH_RELEASES_CODE_CC", "TYPE_CHECKING"),
            *("cast", "classproperty", "importlib", "lru_cache", "os", "platform", "threading", "torch", "traceback"),
            *("warnings", "Device", "DeferredCudaCallError", "DEVICE_REQUIREMENT_POST_JETSON_SBSA_UNIFICATION"),
            *("Enum", "Union", "auto", "cache", "glob"),
        ),
        _INTERNAL,
    ),
    **dict.fromkeys(
        ("CppWrapperCodegen", "PythonWrapperCodegen", "Scheduling", "WrapperFxCodegen", "_inductor_backend_init"),
        "code generators are registered when inductor is imported, not found on the module; torch.compile works",
    ),
    **dict.fromkeys(
        ("set_rng_ctx", "unset_rng_ctx"), "PyTorch asks for them on its hpu devices, whose generators are unlike others"
    ),
    "CUDAPluggableAllocator": "memory comes from the driver; another allocator belongs in a driver of its own",
    "get_stream_from_external": f"wrap the other library's stream with torch.{_NAME}.ExternalStream",
    "sparse": f"it holds legacy types of sparse tensors; use torch.sparse_coo_tensor(..., device='{_NAME}')",
    "_gpu_trace": f"no callbacks of the sanitizer are called; torch.{_NAME}.profiler.trace() shows what devices do",
    "_sleep": "a driver has no function that keeps a stream busy for a time",
}


def reason(name: str) -> str | None:
    """Why there is no such name; None if nothing is known of it."""
    return REASONS.get(name)
