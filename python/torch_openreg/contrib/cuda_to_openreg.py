# SPDX-License-Identifier: BSD-3-Clause
"""Lets a program that was written for CUDA run on openreg, unchanged.

Importing this module redirects "cuda" to openreg in the whole process: device strings and ``torch.device("cuda:1")``,
``.cuda()``, ``torch.cuda.*``, autocast, GradScaler, ``map_location``, the backend "nccl" and the activity CUDA of the
profiler. ``disable()`` takes it back, ``disabled()`` for a block. A script needs no import in it::

    python -m torch_openreg.contrib.cuda_to_openreg train.py --epochs 3
    torchrun --nproc-per-node 2 -m torch_openreg.contrib.cuda_to_openreg -m package.training

With ``OPENREG_AS_CUDA=1`` in the environment ``import torch`` does so, in the processes that a program starts, too;
with ``OPENREG_AS_CUDA=a100`` the devices also say that they are such a GPU (_cuda_persona.py).

``x.device.type`` is "cuda" for code outside of PyTorch and of this package, and ``str(x.device)`` "cuda:0". Names that
a module has taken before (``from torch import zeros``) stay as they were. docs/migrating-from-cuda.md has the limits.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Union

import torch
import torch.distributed
import torch.profiler
import torch.utils._device
import torch.utils._triton
from _torch_openreg_device_name import device_name

import torch_openreg  # noqa: F401
from torch_openreg import _C_cuda
from torch_openreg._compile import _hooks
from torch_openreg.contrib import _cuda_operators, _cuda_persona, _cuda_runtime
from torch_openreg.contrib._replacements import Replacements

__all__ = ["Facade", "Factory", "disable", "disabled", "enable", "enabled", "is_enabled", "is_outside", "redirected"]

_real_device = torch.device
_name = device_name()  # torch.compile traces what follows, and a function with a cache only with a warning
_MISSING: Any = object()
_start_autocast = torch.amp.autocast_mode.autocast.__init__
_get_device_module: Any = torch.get_device_module
_lock = threading.RLock()
_replaced = Replacements()
_builtins: list[Any] = []  # what TorchScript takes for operators of PyTorch's
_operators: list[torch.library.Library] = []
_memory = _cuda_persona.Memory()
_persona: _cuda_persona.Persona | None = None

# Which PyTorch doesn't list.
_OTHER_FACTORIES = (
    *("asarray", "from_file", "frombuffer", "normal"),
    *("_efficientzerotensor", "_empty_affine_quantized", "_empty_per_channel_affine_quantized"),
)
_TENSOR_METHODS = ("to", "type", "new_tensor", "new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros")
_AUTOCAST = ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_dtype", "_is_autocast_available")
_FACADES = ("Stream", "ExternalStream", "Event", "StreamContext", "device", "device_of")  # classes of torch.cuda
# Submodules of torch.cuda whose functions torch.openreg has in itself, and those that are redirected one by one.
_SUBMODULES = ("memory", "random", "streams")
# Of torch.cuda.memory: private names that PyTorch's documentation of memory snapshots tells users to call.
_HISTORY = (
    *("_record_memory_history", "_snapshot", "_dump_snapshot", "_save_segment_usage", "_save_memory_usage"),
    *("_set_memory_metadata", "_get_memory_metadata"),
)


def _translate(value: Any) -> Any:
    """The counterpart of a name or device of CUDA; anything else as it is."""
    if isinstance(value, str):
        if value == "cuda" or value.startswith("cuda:"):
            return _name + value[4:]
        if value.startswith("torch.cuda."):
            return f"torch.{_name}.{value[11:]}"
    elif type(value) is _real_device and value.type == "cuda":
        return _real_device(_name, value.index) if value.index is not None else _real_device(_name)
    return value


def _all_translated(values: Sequence[Any]) -> list[Any]:
    return [_translate(value) for value in values]


def _each_translated(values: dict[str, Any]) -> dict[str, Any]:
    return {name: _translate(value) for name, value in values.items()}


def _translating(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, for arguments that may be of CUDA."""

    @functools.wraps(function)
    def redirected(*arguments: Any, **keywords: Any) -> Any:
        return function(*_all_translated(arguments), **_each_translated(keywords))

    return redirected


class Factory:
    """Stands for a builtin with a keyword ``device`` that may be of CUDA. As a class's attribute it binds no object."""

    def __init__(self, module: str, real: Callable[..., Any]) -> None:
        """Stands for ``real``, a function of the module."""
        functools.update_wrapper(self, real)
        self.__module__ = module
        self.__name__ = str(real.__name__).removeprefix("fft_")  # the builtin behind torch.fft.fftfreq: fft_fftfreq
        self._real = real

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Calls the function for the device of openreg."""
        if "device" in keywords:
            keywords["device"] = _translate(keywords["device"])
        return self._real(*arguments, **keywords)

    def __eq__(self, other: object) -> bool:
        # PyTorch has sets and tables of functions.
        return bool(self._real == (other._real if isinstance(other, Factory) else other))

    def __hash__(self) -> int:
        return hash(self._real)

    def __repr__(self) -> str:
        return repr(self._real)

    def __reduce__(self) -> str:
        return self.__name__  # pickled by name, as the function is


def is_outside(module: str) -> bool:
    """Whether code of this module sees the devices as CUDA's: it belongs neither to PyTorch nor to this package."""
    package = module.partition(".")[0]
    return package != "torch" and not package.startswith("torch_openreg")


def _is_outside() -> bool:
    """The same of the caller's caller."""
    return is_outside(str(sys._getframe(2).f_globals.get("__name__", "")))


@functools.wraps(_get_device_module.__wrapped__)  # by which Dynamo knows it
def get_device_module(device: Any = None) -> types.ModuleType:
    """Stands for ``torch.get_device_module``: outside of PyTorch openreg's is torch.cuda."""
    found: types.ModuleType = _get_device_module(_translate(device))
    return torch.cuda if found is torch.openreg and _is_outside() else found


class Facade:
    """Stands for a class: makes objects from arguments that may be of CUDA, and is that class for everything else."""

    def __init__(self, real: type, name: str, module: str) -> None:
        """Stands for ``real`` in the module."""
        self.__wrapped__ = real
        self.__name__ = self.__qualname__ = name
        self.__module__ = module
        self.__doc__ = real.__doc__

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Makes an object of the class, for the device of openreg."""
        return self.__wrapped__(*_all_translated(arguments), **_each_translated(keywords))

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, self.__wrapped__)

    def __subclasscheck__(self, subclass: type) -> bool:
        return issubclass(subclass, self.__wrapped__)

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return (self.__wrapped__,)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self.__wrapped__

    def __hash__(self) -> int:
        return hash(self.__wrapped__)

    def __or__(self, other: Any) -> Any:
        return Union[self.__wrapped__, other]  # noqa: UP007

    def __ror__(self, other: Any) -> Any:
        return Union[other, self.__wrapped__]  # noqa: UP007

    def __repr__(self) -> str:
        return repr(self.__wrapped__)

    def __reduce__(self) -> str:
        return self.__name__  # pickled by name, as the class is


# ------------------------------------------------------------------------------------------------- what is replaced


def _replace(owner: Any, name: str, value: Any) -> None:
    # TorchScript knows PyTorch's functions by identity: it would compile the Python of what stands for one.
    operator = torch.jit._builtins._find_builtin(getattr(owner, name, None))
    if operator is not None:
        torch.jit._builtins._register_builtin(value, operator)
        _builtins.append(value)
    _replaced.set(owner, name, value)


def _replace_by(wrap: Callable[[Any], Any], owner: Any, *names: str) -> None:
    for name in names:
        if hasattr(owner, name):
            _replace(owner, name, wrap(getattr(owner, name)))


def _redirect_classes() -> None:
    _replace(torch, "device", Facade(_real_device, "device", "torch"))
    _replace(torch, "Generator", Facade(torch.Generator, "Generator", "torch"))
    _replace(torch, "Stream", Facade(torch.Stream, "Stream", "torch"))
    _replace(torch, "Event", Facade(torch.Event, "Event", "torch"))


def _redirect_tensors() -> None:
    makers = {id(function) for function in torch.utils._device._device_constructors()}
    for owner in (torch, torch.fft):
        for name in dir(owner):
            if id(getattr(owner, name)) in makers or name.endswith("_like"):
                _replace_by(functools.partial(Factory, owner.__name__), owner, name)
    _replace_by(functools.partial(Factory, "torch"), torch, *_OTHER_FACTORIES)
    _replace_by(_translating, torch.nested, "nested_tensor", "as_nested_tensor")
    _replace_by(_translating, torch, "set_default_device")
    _replace_by(_translating, torch.Tensor, *_TENSOR_METHODS, "pin_memory", "is_pinned")

    def cuda(self: torch.Tensor, device: Any = None, non_blocking: bool = False, **keywords: Any) -> torch.Tensor:
        """Tensor.cuda(), on openreg."""
        target = torch.openreg.current_device() if device is None else _translate(device)
        if isinstance(target, int):
            target = _real_device(device_name(), target)
        return self.to(target, non_blocking=non_blocking, **keywords)

    _replace(torch.Tensor, "cuda", cuda)
    _replace(torch.Tensor, "is_cuda", property(lambda self: self.device.type == device_name()))
    for storage in (torch.storage._StorageBase, torch.UntypedStorage, torch.storage.TypedStorage):
        _replace(storage, "cuda", _translating(getattr(storage, device_name())))
        _replace(storage, "is_cuda", property(lambda self: self.device.type == device_name()))

    convert = torch.Tensor.type

    @functools.wraps(convert)
    def tensor_type(self: torch.Tensor, *arguments: Any, **keywords: Any) -> Any:
        found = convert(self, *arguments, **keywords)
        own = f"torch.{device_name()}."
        if isinstance(found, str) and found.startswith(own) and _is_outside():
            return f"torch.cuda.{found[len(own) :]}"
        return found

    _replace(torch.Tensor, "type", tensor_type)

    set_type = torch.set_default_tensor_type

    @functools.wraps(set_type)
    def set_default_tensor_type(t: Any) -> None:
        name = f"{t.__module__}.{t.__name__}" if isinstance(t, type) else t
        if isinstance(name, str) and _translate(name).startswith(f"torch.{device_name()}."):
            torch.set_default_device(device_name())
            torch.set_default_dtype(getattr(torch, name.rpartition(".")[2]).dtype)
        else:
            set_type(t)

    _replace(torch, "set_default_tensor_type", set_default_tensor_type)


@functools.cache  # the same object in torch.cuda and in torch.cuda.memory: Dynamo knows it by one of the names
def _counterpart(name: str) -> Any:
    """What of torch.openreg stands for torch.cuda.<name>; _MISSING if nothing does."""
    value = getattr(torch.openreg, name, _MISSING)
    if isinstance(value, types.ModuleType):
        return _MISSING
    if isinstance(value, type) and name in _FACADES:
        return Facade(value, name, "torch.cuda")
    return _translating_value(value) if not isinstance(value, type) else value


def _raw_stream(device: int) -> int:
    """The vendor's handle of a device's current stream."""
    return torch.openreg.current_stream(device).native_handle


def _redirect_cuda() -> None:
    cuda = torch.cuda
    private = (
        "_is_in_bad_fork",
        "_lazy_init",
        "_lazy_call",
        "_maybe_exchange_device",
    )
    kept = (
        ("get_gencode_flags", "is_bf16_supported", "is_tf32_supported") if _persona is not None else ()
    )  # by the capability
    for name in (*cuda.__all__, *private):
        value = _counterpart(name) if name not in kept else _MISSING
        if value is not _MISSING and hasattr(cuda, name):
            _replace(cuda, name, value)
    for module in _SUBMODULES:
        owner = getattr(cuda, module)
        for name in owner.__all__ if hasattr(owner, "__all__") else ():
            value = _counterpart(name)
            if value is not _MISSING:
                _replace(owner, name, value)
    for name in _HISTORY:
        _replace(cuda.memory, name, _translating(getattr(torch.openreg.memory, name)))
    _replace(torch._C, "_cuda_attach_out_of_memory_observer", torch.openreg.memory._attach_out_of_memory_observer)
    # A build without CUDA has no such functions: forked children ask one, and libraries take the other when imported.
    _replace(torch._C, "_cuda_isInBadFork", torch.openreg._is_in_bad_fork)
    _replace(torch._C, "_cuda_getCurrentRawStream", _raw_stream)
    _replace(torch._C, "_cuda_cudaCachingAllocator_is_enabled", lambda: True)
    # The same of PyTorch's own test classes for CUDA.
    _replace(torch._C, "_cuda_setDevice", torch.openreg.set_device)
    _replace(torch._C, "_cuda_setStream", lambda **ids: torch.openreg.set_stream(torch.openreg.Stream(**ids)))
    _replace(torch._C, "_cuda_getCompiledVersion", lambda: _cuda_persona.CUDA_NUMBER)
    _replace(cuda, "_exchange_device", lambda index: torch.openreg._exchange_device(index) if index >= 0 else -1)
    _replace(cuda, "_cudart", _cuda_runtime)
    _replace(torch.openreg.Stream, "cuda_stream", torch.Stream.native_handle)
    _replace(torch, "get_device_module", get_device_module)
    _replace(cuda, "get_stream_from_external", _counterpart("ExternalStream"))
    _redirect_properties()
    _redirect_indices()
    _redirect_events()
    _redirect_nvtx()
    _redirect_graphs()


def _translating_value(value: Any) -> Any:
    return _translating(value) if callable(value) else value


def _redirect_properties() -> None:
    def get_device_properties(device: Any = None) -> _cuda_persona.CudaDeviceProperties:
        return _cuda_persona.properties(_persona, _translate(device))

    def get_device_capability(device: Any = None) -> tuple[int, int]:
        found = get_device_properties(device)
        return found.major, found.minor

    _replace(torch.cuda, "get_device_properties", get_device_properties)
    _replace(torch.cuda, "get_device_capability", get_device_capability)
    _replace(torch.cuda, "get_device_name", lambda device=None: get_device_properties(device).name)
    _replace(torch.cuda, "_sleep", lambda cycles: _cuda_persona.sleep(cycles, _persona))
    if _persona is not None:
        _cuda_persona.take_on(_persona, lambda owner, name, value: _replace(owner, name, _translating_value(value)))


def _redirect_indices() -> None:
    """Functions whose devices are text in a list, and those that return an index."""
    fork = torch.random.fork_rng

    @functools.wraps(fork)
    def fork_rng(devices: Any = None, *arguments: Any, **keywords: Any) -> Any:
        return fork(
            None if devices is None else _all_translated(list(devices)), *arguments, **_each_translated(keywords)
        )

    _replace(torch.random, "fork_rng", fork_rng)
    for owner in (torch.cuda, torch.cuda._utils):
        _replace(owner, "_get_device_index", _translating(torch._utils._get_device_index))


def _redirect_events() -> None:
    class Event(torch.openreg.Event):
        __doc__ = torch.openreg.Event.__doc__

        def __new__(cls, *arguments: Any, external: bool = False, **keywords: Any) -> Any:
            # `external` changes CUDA's events only while a graph is captured.
            names = ("enable_timing", "blocking", "interprocess")
            return super().__new__(cls, **dict(zip(names, arguments, strict=False)), **keywords)

    for owner in (torch.cuda, torch.cuda.streams):
        _replace(owner, "Event", Event)


def _redirect_graphs() -> None:
    class graph(torch.openreg.graph):
        __doc__ = torch.openreg.graph.__doc__

        def __init__(self, cuda_graph: Any, *arguments: Any, **keywords: Any) -> None:
            super().__init__(cuda_graph, *arguments, **keywords)

    for owner in (torch.cuda, torch.cuda.graphs):
        _replace(owner, "CUDAGraph", torch.openreg.OpenRegGraph)
        _replace(owner, "graph", graph)
    for name in ("graph_pool_handle", "is_current_stream_capturing", "make_graphed_callables"):
        _replace(torch.cuda.graphs, name, _counterpart(name))


def _redirect_nvtx() -> None:
    """Ranges for NVIDIA's tools become ranges of PyTorch's profiler."""
    opened = threading.local()
    started: dict[int, torch.profiler.record_function] = {}

    def range_start(msg: str) -> int:
        entry = torch.profiler.record_function(msg)
        started[id(entry)] = entry
        entry.__enter__()
        return id(entry)

    def range_end(range_id: int) -> None:
        started.pop(range_id).__exit__(None, None, None)

    def range_push(msg: str) -> int:
        stack = opened.__dict__.setdefault("stack", [])
        entry = torch.profiler.record_function(msg)
        entry.__enter__()
        stack.append(entry)
        return len(stack) - 1

    def range_pop() -> int:
        stack = opened.__dict__.get("stack", [])
        if not stack:
            return -1
        stack.pop().__exit__(None, None, None)
        return len(stack)

    def mark(msg: str) -> None:
        with torch.profiler.record_function(msg):
            pass

    @contextlib.contextmanager
    def in_range(msg: str, *arguments: Any, **keywords: Any) -> Iterator[None]:
        with torch.profiler.record_function(msg.format(*arguments, **keywords)):
            yield

    for function in (range_start, range_end, range_push, range_pop, mark):
        _replace(torch.cuda.nvtx, function.__name__, function)
    _replace(torch.cuda.nvtx, "range", in_range)


@functools.wraps(_start_autocast)
def autocast_init(self: Any, device_type: str, dtype: Any = None, *arguments: Any, **keywords: Any) -> None:
    """Stands for ``torch.autocast.__init__``; float16 is CUDA's default."""
    if device_type == "cuda" and dtype is None:
        dtype = torch.float16
    _start_autocast(self, _translate(device_type), dtype, *arguments, **keywords)


def _redirect_amp() -> None:
    _replace(torch.amp.autocast_mode.autocast, "__init__", autocast_init)
    supported = [*torch.openreg.get_amp_supported_dtype(), torch.float32, torch.float64]  # CUDA's refuses none
    _replace(torch.openreg, "get_amp_supported_dtype", lambda: supported)
    scaler = torch.amp.grad_scaler.GradScaler
    scaler_start = scaler.__init__

    @functools.wraps(scaler_start)
    def scaler_init(self: Any, device: str = "cuda", *arguments: Any, **keywords: Any) -> None:
        scaler_start(self, _translate(device), *arguments, **keywords)

    _replace(scaler, "__init__", scaler_init)
    _replace_by(_translating, torch, *_AUTOCAST)
    set_enabled = torch.set_autocast_enabled

    @functools.wraps(set_enabled)
    def set_autocast_enabled(*arguments: Any, **keywords: Any) -> None:
        if len(arguments) + len(keywords) == 1:  # without a device it is CUDA's
            arguments = (device_name(), *arguments)
        _translating(set_enabled)(*arguments, **keywords)

    _replace(torch, "set_autocast_enabled", set_autocast_enabled)
    for name in ("get_autocast_gpu_dtype", "set_autocast_gpu_dtype"):
        of_any = getattr(torch, name.replace("_gpu", ""))
        _replace(torch, name, functools.partial(of_any, device_name()))
    _replace_by(_translating, torch.amp, "custom_fwd", "custom_bwd", "is_autocast_available")
    for owner in (torch.library, torch.library.CustomOpDef):
        _replace_by(_translating, owner, "register_autocast")
    _replace(torch.cuda.amp, "custom_fwd", functools.partial(torch.amp.custom_fwd, device_type=device_name()))
    _replace(torch.cuda.amp, "custom_bwd", functools.partial(torch.amp.custom_bwd, device_type=device_name()))


def _map_location(location: Any) -> Any:
    """The same for files that name this backend's devices, CUDA's, or both."""
    if isinstance(location, dict):
        targets = {source: _translate(target) for source, target in location.items()}
        return targets | {_translate(source): target for source, target in targets.items()}
    if not callable(location) or isinstance(location, torch.device):
        return _translate(location)

    def by_function(storage: Any, tag: str) -> Any:
        kind, colon, index = tag.partition(":")
        return location(storage, f"cuda{colon}{index}" if kind == device_name() else tag)

    return by_function


def _redirect_files() -> None:
    real = torch.serialization.load

    @functools.wraps(real)
    def load(f: Any, map_location: Any = None, *arguments: Any, **keywords: Any) -> Any:
        return real(f, _map_location(map_location), *arguments, **keywords)

    _replace(torch.serialization, "load", load)
    _replace(torch, "load", load)
    # Files name CUDA's devices, those that are written here and those from a machine with CUDA.
    registry = torch.serialization._package_registry
    entry = (18, _location, _restore)
    _replace(torch.serialization, "_package_registry", sorted([*registry, entry], key=lambda one: one[0]))


def _redirect_exports() -> None:
    from torch.export import passes

    move = passes.move_to_device_pass

    @functools.wraps(move)
    def move_to_device_pass(ep: Any, location: Any) -> Any:
        return move(ep, _map_location(location))

    _replace(passes, "move_to_device_pass", move_to_device_pass)


def _location(storage: Any) -> str | None:
    device = storage.device
    if device.type != device_name():
        return None
    return f"cuda:{device.index}"


def _restore(storage: Any, location: str) -> Any:
    if location != "cuda" and not location.startswith("cuda:"):
        return None
    return torch.serialization.default_restore_location(storage, _translate(location))


def _redirect_distributed() -> None:
    if not torch.distributed.is_available():
        return
    from torch.distributed import distributed_c10d as c10d

    real_backend = "openreg_gloo"

    def translated(backend: Any) -> Any:
        pairs = [pair.split(":") for pair in str(backend).lower().split(",")]
        if not any(pair[-1] == "nccl" for pair in pairs):
            return backend
        return c10d.Backend(
            ",".join(
                ":".join([*map(_translate, pair[:-1]), real_backend if pair[-1] == "nccl" else pair[-1]])
                for pair in pairs
            )
        )

    make = c10d._new_process_group_helper

    @functools.wraps(make)
    def new_process_group(
        group_size: Any, group_rank: Any, ranks: Any, backend: Any, *arguments: Any, **keywords: Any
    ) -> Any:
        return make(group_size, group_rank, ranks, translated(backend), *arguments, **keywords)

    timeout = c10d._get_default_timeout
    get_backend = c10d.get_backend
    is_nccl_available = c10d.is_nccl_available

    @functools.wraps(get_backend)
    def named_backend(group: Any = None) -> Any:
        backend = get_backend(group)
        return c10d.Backend("nccl") if backend == real_backend and _is_outside() else backend

    @functools.wraps(is_nccl_available)
    def nccl_available() -> bool:
        caller = str(sys._getframe(1).f_globals.get("__name__", ""))
        is_for_hooks = caller == torch.nn.parallel.distributed.__name__  # DDP's in bfloat16, which gloo carries too
        return is_for_hooks or is_outside(caller) or bool(is_nccl_available())

    _replace(torch.cuda.nccl, "version", lambda: _cuda_persona.NCCL)
    # Below what modules may hold already: init_process_group(), new_group(), DeviceMesh.
    _replace(c10d, "_new_process_group_helper", new_process_group)
    _replace(c10d, "_get_default_timeout", lambda backend: timeout(translated(backend)))
    for owner in (torch.distributed, c10d):
        _replace(owner, "get_backend", named_backend)
        _replace(owner, "is_nccl_available", nccl_available)
    _redirect_meshes()


def _redirect_meshes() -> None:
    from torch.distributed import device_mesh

    mesh = device_mesh.DeviceMesh
    start = mesh.__init__

    @functools.wraps(start)
    def init(self: Any, device_type: str, *arguments: Any, **keywords: Any) -> None:
        start(self, _translate(device_type), *arguments, **keywords)

    def device_type(self: Any) -> str:
        return "cuda" if self._device_type == device_name() and _is_outside() else self._device_type

    _replace(mesh, "__init__", init)
    _replace(mesh, "device_type", property(device_type))


def _redirect_scripts() -> None:
    """Devices that a scripted function has as text are replaced in its source: it calls no Python."""
    builder: Any = torch.jit.frontend.ExprBuilder
    build = builder.build_Call

    def build_call(context: Any, call: ast.Call) -> Any:
        name = getattr(call.func, "attr", getattr(call.func, "id", None))
        devices = [keyword.value for keyword in call.keywords if keyword.arg == "device"]
        for value in (*devices, *(call.args if name in ("device", *_TENSOR_METHODS) else ())):
            if isinstance(value, ast.Constant):
                value.value = _translate(value.value)
        if isinstance(call.func, ast.Attribute) and name == "cuda" and not call.args:
            call.func.attr = "to"
            call.args.append(ast.copy_location(ast.Constant(device_name()), call))
        return build(context, call)

    def build_attribute(context: Any, attribute: ast.Attribute) -> Any:
        if attribute.attr != "is_cuda":
            return get_attribute(context, attribute)
        device = ast.copy_location(ast.Attribute(attribute.value, "device", ast.Load()), attribute)
        kind = ast.copy_location(ast.Attribute(device, "type", ast.Load()), attribute)
        name = ast.copy_location(ast.Constant(device_name()), attribute)
        return compare(context, ast.copy_location(ast.Compare(kind, [ast.Eq()], [name]), attribute))

    def build_compare(context: Any, comparison: ast.Compare) -> Any:
        operands = [comparison.left, *comparison.comparators]
        if any(isinstance(one, ast.Attribute) and one.attr == "type" for one in operands):
            for one in (constant for operand in operands for constant in ast.walk(operand)):
                if isinstance(one, ast.Constant):
                    one.value = _translate(one.value)
        return compare(context, comparison)

    get_attribute, compare = builder.build_Attribute, builder.build_Compare
    for name, function in (("Call", build_call), ("Attribute", build_attribute), ("Compare", build_compare)):
        _replace(builder, f"build_{name}", staticmethod(function))


def _redirect_compiler() -> None:
    """Dynamo, which evaluates the queries of the traced code. Only in a process that imports it."""
    _replace(torch.utils._triton, "has_triton", lambda **_: False)  # the real one would query the capability
    _hooks.register_after("torch._dynamo.polyfills.loader", "torch_openreg.contrib._cuda_dynamo")


def _redirect_available_type() -> None:
    """The type that PyTorch's own code finds where it asks torch.cuda first: checkpoints of several processes."""
    name = "_get_available_device_type"
    real: Any = getattr(torch._utils, name)

    @functools.wraps(real)
    def available() -> str | None:
        found: str | None = real()
        return device_name() if found == "cuda" and is_enabled() else found

    for path, module in list(sys.modules.items()):
        if path.startswith("torch.") and vars(module).get(name) is real:
            _replace(module, name, available)


def _redirect_profiler() -> None:
    activity = torch.profiler.ProfilerActivity
    base = torch.profiler.profiler._KinetoProfile
    start = base.__init__

    def translated(activities: Any) -> Iterator[Any]:
        for one in activities:
            if isinstance(one, dict):  # names of what is collected, which PyTorch has for its own devices alone
                yield {kind: names for kind, names in one.items() if kind != activity.CUDA}
            if one == activity.CUDA or (isinstance(one, dict) and activity.CUDA in one):
                yield activity.PrivateUse1
            elif not isinstance(one, dict):
                yield one

    @functools.wraps(start)
    def init(self: Any, *, activities: Any = None, **keywords: Any) -> None:
        start(self, activities=None if activities is None else list(translated(activities)), **keywords)

    _replace(base, "__init__", init)


# ------------------------------------------------------------------------------------------------------- on and off


def is_enabled() -> bool:
    """Returns whether "cuda" means openreg now."""
    return bool(_replaced.done)


def enable(persona: str | None = None) -> None:
    """Makes "cuda" mean openreg in this process. Importing the module has done so; repeating it changes nothing.

    Args:
        persona: The GPU that the devices say they are: "a100", "h100", "l4", "t4" or "v100"; "1": none. None: what
            ``OPENREG_AS_CUDA`` says.

    Raises:
        RuntimeError: This PyTorch has a CUDA device that works: the program can use it.
        ValueError: There is no such persona.
    """
    global _persona
    with _lock:
        if is_enabled():
            return
        _persona = _cuda_persona.chosen(os.environ.get("OPENREG_AS_CUDA") if persona is None else persona)
        if torch.cuda.is_available():
            raise RuntimeError("This PyTorch drives CUDA itself; cuda_to_openreg would take it away from the program.")
        _memory.set(_persona)
        _C_cuda._name_devices_cuda(True)
        try:
            _operators.append(_cuda_operators.register())
            for redirect in (
                _redirect_tensors,
                _redirect_cuda,
                _redirect_amp,
                _redirect_files,
                _redirect_exports,
                _redirect_distributed,
                _redirect_profiler,
                _redirect_scripts,
                _redirect_compiler,
                _redirect_available_type,
                _redirect_classes,
            ):
                redirect()
        except BaseException:
            disable()
            raise


def disable() -> None:
    """Takes everything back that ``enable()`` has replaced. Tensors stay where they are."""
    with _lock:
        while _builtins:
            torch.jit._builtins._get_builtin_table().pop(id(_builtins.pop()), None)
        _replaced.take_back()
        _C_cuda._name_devices_cuda(False)
        while _operators:
            _operators.pop()._destroy()
        _memory.take_back()


@contextlib.contextmanager
def enabled(persona: str | None = None) -> Iterator[None]:
    """Context manager: "cuda" means openreg inside ``with``, and what it meant before after it.

    Args:
        persona: As of enable().
    """
    was = is_enabled()
    enable(persona)
    try:
        yield
    finally:
        if not was:
            disable()


@contextlib.contextmanager
def disabled() -> Iterator[None]:
    """Context manager: "cuda" means CUDA inside ``with``, and what it meant before after it."""
    was = is_enabled()
    disable()
    try:
        yield
    finally:
        if was:
            enable()


def redirected() -> list[str]:
    """Returns the names that are replaced now, as "torch.cuda.synchronize"."""

    def path(owner: Any) -> str:
        return (
            str(owner.__name__) if isinstance(owner, types.ModuleType) else f"{owner.__module__}.{owner.__qualname__}"
        )

    return sorted(f"{path(owner)}.{name}" for owner, name, _ in _replaced.done)


if __name__ == "__main__":
    from torch_openreg.contrib import _script

    _script.main(__spec__)
else:
    enable()
