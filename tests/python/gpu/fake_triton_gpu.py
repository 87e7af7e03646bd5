# SPDX-License-Identifier: BSD-3-Clause
"""What Inductor and Triton ask of torch.cuda and of CUDA, over the stand-ins: for programs of conftest.py.

A build of PyTorch for the CPU has no torch.cuda. Inductor's and Triton's own code for GPUs runs here unchanged: kernels are
generated, compiled to cubins and launched by Triton's launcher. A launch ends in the stand-in for libcuda.so.1, which calls
back: the kernel's source is run by Triton's interpreter on the host's view of the memory, after what is queued on the
stream that the launch was given.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

PROPERTIES = SimpleNamespace(
    name="stand-in",
    major=9,
    minor=0,
    multi_processor_count=132,
    warp_size=32,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    regs_per_multiprocessor=65536,
    total_memory=1 << 30,
    L2_cache_size=50 << 20,
    shared_memory_per_block=49152,
    shared_memory_per_block_optin=232448,
)
"""Of each GPU: those of an H100, as far as they are asked for."""

WIDTHS = {"i1": ctypes.c_int8, "i8": ctypes.c_int8, "i16": ctypes.c_int16, "i32": ctypes.c_int32, "i64": ctypes.c_int64}
WIDTHS |= {"u8": ctypes.c_uint8, "u32": ctypes.c_uint32, "u64": ctypes.c_uint64, "fp32": ctypes.c_float}
WIDTHS |= {"fp64": ctypes.c_double}


class Launch(NamedTuple):
    """What a launch was given."""

    name: str
    stream: int
    pointers: tuple[int, ...]
    target: str  # the line of its PTX


class _Kernel(NamedTuple):
    name: str
    source: Any
    target: str


class Pointer:
    """An address of the host, to the interpreter."""

    def __init__(self, address: int, type_name: str) -> None:
        self._address = address
        self.dtype = type_name

    def data_ptr(self) -> int:
        """Returns the address."""
        return self._address


class Gpu:
    """Puts itself in the place of torch.cuda's C functions. Before Dynamo is imported."""

    def __init__(self, fake: ctypes.CDLL, libcuda: str) -> None:
        fake.fake_torch_cuda_wait.argtypes = [ctypes.c_int64]
        fake.fake_torch_cuda_alias.argtypes = [ctypes.c_void_p]
        fake.fake_torch_cuda_alias.restype = ctypes.c_void_p
        self.launches: list[Launch] = []
        self._fake = fake
        self._kernels: dict[int, _Kernel] = {}
        torch.empty(1, device="openreg")  # the driver is opened first
        self._put_in_place()
        self._do_not_measure()
        self._follow_triton(libcuda)

    def _put_in_place(self) -> None:
        fake, cuda = self._fake, torch.cuda
        c: Any = torch._C
        c._cuda_getDeviceCount = lambda: torch.openreg.device_count()
        c._cuda_getCurrentRawStream = lambda index: fake.fake_torch_cuda_current_stream()
        c._cuda_getDevice = lambda: fake.fake_torch_cuda_current_device()
        cuda.get_device_properties = lambda device=None: PROPERTIES
        cuda.get_device_capability = lambda device=None: (PROPERTIES.major, PROPERTIES.minor)
        cuda.get_device_name = lambda device=None: PROPERTIES.name
        for name in ("set_device", "_exchange_device", "_maybe_exchange_device"):  # Dynamo wants three functions
            setattr(cuda, name, functools.partial(self._exchange_device))
        cuda._initialized = True
        cuda.default_generators = tuple(torch.Generator(f"cuda:{i}") for i in range(torch.openreg.device_count()))
        torch.version.cuda = "13.0"

        def empty_strided(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
            return torch.empty_strided(size, stride, dtype=dtype, device="cuda")

        c._dynamo.guards._empty_strided_cuda = empty_strided

    def _exchange_device(self, index: int) -> int:
        before = self._fake.fake_torch_cuda_current_device()
        if index not in (before, -1):
            self._fake.fake_torch_cuda_set_device(index)
        return before

    def _do_not_measure(self) -> None:
        from torch._inductor.runtime.benchmarking import register_benchmarker

        def run_once(self: Any, function: Any, **_: Any) -> float:
            function()
            return 1.0

        register_benchmarker("cuda", run_once, override=True)

    def _follow_triton(self, libcuda: str) -> None:
        import triton

        sources: dict[str, _Kernel] = {}

        def compiled(*, src: Any, metadata: Any, metadata_group: dict[str, str], **_: Any) -> None:
            ptx = next(Path(path) for name, path in metadata_group.items() if name.endswith(".ptx")).read_text()
            target = next(line for line in ptx.splitlines() if line.startswith(".target"))
            sources[metadata["hash"]] = _Kernel(metadata["name"], src, target)

        def loaded(module: int, function: int, name: str, metadata_group: dict[str, str], hash: str) -> None:
            self._kernels[function] = sources[hash]

        triton.knobs.compilation.listener = compiled
        triton.knobs.runtime.kernel_load_end_hook.add(loaded)
        library = ctypes.CDLL(libcuda)
        address, numbers = ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint)
        kind = ctypes.CFUNCTYPE(ctypes.c_int, address, numbers, address, ctypes.POINTER(address))
        self._callback = kind(self._launch)
        library.fake_cuda_on_launch(self._callback)

    def _launch(self, function: int, grid: Any, stream: int | None, arguments: Any) -> int:
        # What is raised here is printed, and the launch has failed.
        kernel = self._kernels[function]
        source = kernel.source
        constants = {source.fn.arg_names[path[0]]: value for path, value in source.constants.items()}
        values: dict[str, Any] = {}
        pointers = []
        addresses = (arguments[i] for i in itertools.count())
        for argument, type_name in source.signature.items():
            if type_name == "constexpr":
                values[argument] = constants[argument]
            elif type_name.startswith("*"):
                pointers.append(ctypes.c_uint64.from_address(next(addresses)).value)
                values[argument] = Pointer(self._fake.fake_torch_cuda_alias(pointers[-1]) or 0, type_name[1:])
            else:
                values[argument] = WIDTHS[type_name].from_address(next(addresses)).value
        self.launches.append(Launch(kernel.name, stream or 0, tuple(pointers), kernel.target))
        self._fake.fake_torch_cuda_wait(stream or 0)
        interpret(source.fn, tuple(grid[:3]), values)
        return 1


def interpret(function: Any, grid: tuple[int, ...], values: dict[str, Any]) -> None:
    """Runs a kernel's source for each place of a grid."""
    import triton.language as tl
    from triton.runtime import interpreter, jit

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:  # of a function within the kernel
        inner_patches = interpreter._patch_lang(self.fn)
        try:
            return interpreter.InterpretedFunction(self.fn).rewrite()(*args, **kwargs)
        finally:
            inner_patches.restore()

    mangle, own_call = jit.mangle_type, jit.JITFunction.__call__
    jit.mangle_type = lambda value, *rest: f"*{value.dtype}" if isinstance(value, Pointer) else mangle(value, *rest)
    jit.JITFunction.__call__ = call
    builder = interpreter.interpreter_builder
    run = interpreter.InterpretedFunction(function.fn).rewrite()
    names = function.fn.__globals__
    libdevice = names.get("libdevice")
    names["libdevice"] = tl.math  # what the kernels here take of it has the same name there
    patches = interpreter._patch_lang(function.fn)
    try:
        annotations = function.fn.__annotations__
        arguments = {
            name: value if "constexpr" in str(annotations.get(name, "")) else interpreter._implicit_cvt(value)
            for name, value in values.items()
        }
        builder.set_grid_dim(*grid)
        for x in range(grid[0]):
            for y in range(grid[1]):
                for z in range(grid[2]):
                    builder.set_grid_idx(x, y, z)
                    run(**arguments)
    finally:
        patches.restore()
        names["libdevice"] = libdevice
        jit.mangle_type, jit.JITFunction.__call__ = mangle, own_call
