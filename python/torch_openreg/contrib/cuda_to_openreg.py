# SPDX-License-Identifier: BSD-3-Clause
"""Lets a program that was written for CUDA run on openreg, unchanged.

Importing this module redirects "cuda" to openreg in the whole process: device strings and ``torch.device("cuda:1")``,
``.cuda()``, ``torch.cuda.*``, autocast, GradScaler, ``map_location``, the backend "nccl" and the activity CUDA of the
profiler. ``disable()`` takes it back, ``disabled()`` for a block. A script needs no import in it::

    python -m torch_openreg.contrib.cuda_to_openreg train.py --epochs 3
    torchrun --nproc-per-node 2 -m torch_openreg.contrib.cuda_to_openreg -m package.training

With ``OPENREG_AS_CUDA=1`` in the environment ``import torch`` does so, in the processes that a program starts, too.

Names that a module has taken before (``from torch import zeros``) stay as they were; so does what PyTorch's C++ says:
``x.device.type`` is "openreg". docs/migrating-from-cuda.md has the limits.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any, Union

import torch
import torch.distributed
import torch.profiler
import torch.utils._device
from _torch_openreg_device_name import device_name

import torch_openreg  # noqa: F401
from torch_openreg.contrib._replacements import Replacements

__all__ = ["disable", "disabled", "enable", "enabled", "is_enabled", "redirected"]

_real_device = torch.device
_MISSING: Any = object()
_lock = threading.RLock()
_replaced = Replacements()
_builtins: list[Any] = []  # what TorchScript takes for operators of PyTorch's

_TENSOR_METHODS = ("to", "type", "new_tensor", "new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros")
_AUTOCAST = ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_dtype", "_is_autocast_available")
# Submodules of torch.cuda whose functions torch.openreg has in itself, and those that are redirected one by one.
_SUBMODULES = ("memory", "random", "streams")


def _translate(value: Any) -> Any:
    """The counterpart of a name or device of CUDA; anything else as it is."""
    if isinstance(value, str):
        if value == "cuda" or value.startswith("cuda:"):
            return device_name() + value[4:]
        if value.startswith("torch.cuda."):
            return f"torch.{device_name()}.{value[11:]}"
    elif type(value) is _real_device and value.type == "cuda":
        return _real_device(device_name(), value.index) if value.index is not None else _real_device(device_name())
    return value


def _translating(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, for arguments that may be of CUDA."""

    @functools.wraps(function)
    def redirected(*arguments: Any, **keywords: Any) -> Any:
        return function(
            *[_translate(argument) for argument in arguments],
            **{name: _translate(argument) for name, argument in keywords.items()},
        )

    return redirected


def _translating_device(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, for a keyword ``device`` that may be of CUDA."""

    @functools.wraps(function)
    def redirected(*arguments: Any, **keywords: Any) -> Any:
        if "device" in keywords:
            keywords["device"] = _translate(keywords["device"])
        return function(*arguments, **keywords)

    return redirected


class _Facade:
    """Stands for a class: makes objects from arguments that may be of CUDA, and is that class for everything else."""

    def __init__(self, real: type, name: str, module: str) -> None:
        self.__wrapped__ = real
        self.__name__ = self.__qualname__ = name
        self.__module__ = module
        self.__doc__ = real.__doc__

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return _translating(self.__wrapped__)(*arguments, **keywords)

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
    _replace(torch, "device", _Facade(_real_device, "device", "torch"))
    _replace(torch, "Generator", _Facade(torch.Generator, "Generator", "torch"))
    _replace(torch, "Stream", _Facade(torch.Stream, "Stream", "torch"))
    _replace(torch, "Event", _Facade(torch.Event, "Event", "torch"))


def _redirect_tensors() -> None:
    makers = {id(function) for function in torch.utils._device._device_constructors()}
    for owner in (torch, torch.fft):
        for name in dir(owner):
            if id(getattr(owner, name)) in makers or name.endswith("_like"):
                _replace_by(_translating_device, owner, name)
    _replace_by(_translating_device, torch, "asarray", "from_file", "frombuffer")
    _replace_by(_translating, torch, "set_default_device", "get_device_module")
    _replace_by(_translating, torch.Tensor, *_TENSOR_METHODS)

    def cuda(self: torch.Tensor, device: Any = None, non_blocking: bool = False, **keywords: Any) -> torch.Tensor:
        """Tensor.cuda(), on openreg."""
        target = torch.openreg.current_device() if device is None else _translate(device)
        if isinstance(target, int):
            target = _real_device(device_name(), target)
        return self.to(target, non_blocking=non_blocking, **keywords)

    _replace(torch.Tensor, "cuda", cuda)
    _replace(torch.Tensor, "is_cuda", property(lambda self: self.device.type == device_name()))
    for storage in (torch.storage._StorageBase, torch.storage.TypedStorage):
        _replace(storage, "cuda", _translating(getattr(storage, device_name())))
        _replace(storage, "is_cuda", property(lambda self: self.device.type == device_name()))

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


def _counterpart(name: str) -> Any:
    """What of torch.openreg stands for torch.cuda.<name>; _MISSING if nothing does."""
    value = getattr(torch.openreg, name, _MISSING)
    if isinstance(value, types.ModuleType):
        return _MISSING
    if isinstance(value, type) and name in ("Stream", "Event", "StreamContext", "device", "device_of"):
        return _Facade(value, name, "torch.cuda")
    return _translating(value) if callable(value) and not isinstance(value, type) else value


def _raw_stream(device: int) -> int:
    """The vendor's handle of a device's current stream."""
    return torch.openreg.current_stream(device).native_handle


def _redirect_cuda() -> None:
    cuda = torch.cuda
    private = (
        "_is_in_bad_fork",
        "_lazy_init",
        "_lazy_call",
        "_exchange_device",
        "_maybe_exchange_device",
    )
    for name in (*cuda.__all__, *private):
        value = _counterpart(name)
        if value is not _MISSING and hasattr(cuda, name):
            _replace(cuda, name, value)
    for module in _SUBMODULES:
        owner = getattr(cuda, module)
        for name in owner.__all__ if hasattr(owner, "__all__") else ():
            value = _counterpart(name)
            if value is not _MISSING:
                _replace(owner, name, value)
    # A build without CUDA has no such functions: forked children ask one, and libraries take the other when imported.
    _replace(torch._C, "_cuda_isInBadFork", torch.openreg._is_in_bad_fork)
    _replace(torch._C, "_cuda_getCurrentRawStream", _raw_stream)
    _redirect_nvtx()
    _redirect_graphs()


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

    for name, value in (("range_push", range_push), ("range_pop", range_pop), ("mark", mark), ("range", in_range)):
        _replace(torch.cuda.nvtx, name, value)


def _redirect_amp() -> None:
    autocast = torch.amp.autocast_mode.autocast
    start = autocast.__init__

    @functools.wraps(start)
    def autocast_init(self: Any, device_type: str, dtype: Any = None, *arguments: Any, **keywords: Any) -> None:
        if device_type == "cuda" and dtype is None:
            dtype = torch.float16  # CUDA's default
        start(self, _translate(device_type), dtype, *arguments, **keywords)

    _replace(autocast, "__init__", autocast_init)
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
    _replace(torch.cuda.amp, "custom_fwd", functools.partial(torch.amp.custom_fwd, device_type=device_name()))
    _replace(torch.cuda.amp, "custom_bwd", functools.partial(torch.amp.custom_bwd, device_type=device_name()))


def _map_location(location: Any) -> Any:
    if isinstance(location, dict):
        return {_translate(source): _translate(target) for source, target in location.items()}
    return _translate(location)


def _redirect_files() -> None:
    real = torch.serialization.load

    @functools.wraps(real)
    def load(f: Any, map_location: Any = None, *arguments: Any, **keywords: Any) -> Any:
        return real(f, _map_location(map_location), *arguments, **keywords)

    _replace(torch.serialization, "load", load)
    _replace(torch, "load", load)
    # Files that were written on a machine with CUDA name its devices.
    registry = torch.serialization._package_registry
    entry = (18, lambda storage: None, _restore)
    _replace(torch.serialization, "_package_registry", sorted([*registry, entry], key=lambda one: one[0]))


def _restore(storage: Any, location: str) -> Any:
    if location != "cuda" and not location.startswith("cuda:"):
        return None
    return torch.serialization.default_restore_location(storage, _translate(location))


def _redirect_distributed() -> None:
    if not torch.distributed.is_available():
        return

    def gloo(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def redirected(*arguments: Any, **keywords: Any) -> Any:
            replaced = ["openreg_gloo" if argument == "nccl" else argument for argument in arguments]
            if keywords.get("backend") == "nccl":
                keywords["backend"] = "openreg_gloo"
            return function(*replaced, **{name: _translate(value) for name, value in keywords.items()})

        return redirected

    _replace_by(gloo, torch.distributed, "init_process_group", "new_group")


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

    _replace(builder, "build_Call", staticmethod(build_call))


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

    @functools.wraps(start)
    def init(self: Any, *, activities: Any = None, **keywords: Any) -> None:
        if activities is not None:
            activities = {activity.PrivateUse1 if one == activity.CUDA else one for one in activities}
        start(self, activities=activities, **keywords)

    _replace(base, "__init__", init)


# ------------------------------------------------------------------------------------------------------- on and off


def is_enabled() -> bool:
    """Returns whether "cuda" means openreg now."""
    return bool(_replaced.done)


def enable() -> None:
    """Makes "cuda" mean openreg in this process. Importing the module has done so; repeating it changes nothing.

    Raises:
        RuntimeError: This PyTorch has a CUDA device that works: the program can use it.
    """
    with _lock:
        if is_enabled():
            return
        if torch.cuda.is_available():
            raise RuntimeError("This PyTorch drives CUDA itself; cuda_to_openreg would take it away from the program.")
        try:
            for redirect in (
                _redirect_tensors,
                _redirect_cuda,
                _redirect_amp,
                _redirect_files,
                _redirect_distributed,
                _redirect_profiler,
                _redirect_scripts,
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


@contextlib.contextmanager
def enabled() -> Iterator[None]:
    """Context manager: "cuda" means openreg inside ``with``, and what it meant before after it."""
    was = is_enabled()
    enable()
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
