# SPDX-License-Identifier: BSD-3-Clause
"""What is checked of an operator: each check runs it on CPU tensors and on their twins and compares everything."""

from __future__ import annotations

import dataclasses
import functools
import gc
import itertools
import time
import unittest
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from entries import Entry
from kinds import KINDS, UNDEFINED, changed
from known import comparison, is_skipped, stays_on_cpu
from torch._subclasses.fake_tensor import FakeTensorMode

from torch_openreg_lab.check.paired_tensors import COMPRESSED, Mover, _metadata, difference, tensors_of

DEVICE = "openreg:1"
"""Not the current device, which no operator may change."""

SEED = 7


@dataclasses.dataclass
class Call:
    """Arguments of one call."""

    input: Any
    args: Any
    kwargs: Any
    process: Callable[[Any], Any] = lambda result: result
    """What PyTorch's gradient tests take of the result."""
    keep: bool = False
    """Whether the arguments stay on the CPU."""

    def on(self, device: str) -> Call:
        """The same call with every tensor copied to the device."""
        mover = Mover(device)
        input_ = mover(self.input)
        args, kwargs = (self.args, self.kwargs) if self.keep else mover((tuple(self.args), dict(self.kwargs)))
        return Call(input_, args, kwargs, self.process, self.keep)

    def __call__(self, function: Callable[..., Any]) -> Any:
        """Calls the function."""
        return function(self.input, *self.args, **self.kwargs)

    @property
    def all(self) -> tuple[Any, ...]:
        """Input and arguments in one nest."""
        return self.input, self.args, self.kwargs

    @property
    def differentiable(self) -> list[torch.Tensor]:
        """The tensors that want a gradient."""
        return [tensor for tensor in tensors_of(self.all) if tensor.requires_grad]


Body = Callable[[Call], Any]


def _outcome(body: Body, call: Call, device: str) -> tuple[Any, Exception | None]:
    there = call.on(device)
    torch.manual_seed(SEED)
    try:
        return body(there), None
    except Exception as error:
        return None, error


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"[:300]


def compare_calls(entry: Entry, check: str, body: Body, call: Call, lenient: bool = False) -> str | None:
    """Runs `body` on both devices; what differs, or None.

    An error is right where the CPU gives the same one; `lenient`: anything is where the CPU gives one.
    """
    expected, wanted = _outcome(body, call, "cpu")
    actual, got = _outcome(body, call, DEVICE)
    if torch.openreg.current_device() != 0:
        torch.openreg.set_device(0)
        return "the current device has changed"
    if wanted is not None and lenient:
        return None
    if wanted is not None or got is not None:
        if wanted is None:
            assert got is not None
            return _first_line(got)
        if got is None:
            # The device computes in a wider type where the CPU has no kernel for one that CUDA has.
            is_wider = isinstance(wanted, NotImplementedError) and '_cpu" not implemented for' in str(wanted)
            return None if is_wider else f"no error, but on the CPU {_first_line(wanted)}"
        return None if type(got) is type(wanted) else f"{_first_line(got)}; on the CPU {_first_line(wanted)}"
    loose = comparison(entry.id, check)
    return difference(expected, actual, torch.device(DEVICE), loose.compare, loose.strides)


# ---------------------------------------------------------------------------------------------------------- the calls


def samples_of(entry: Entry, gradients: bool) -> list[Any]:
    """Samples of the database, the first 200."""
    torch.manual_seed(SEED)
    dense = entry.info.sample_inputs("cpu", entry.dtype, requires_grad=gradients)
    if entry.layout is None:
        return list(itertools.islice(dense, 200))
    try:
        sparse = entry.info.sample_inputs_sparse(entry.layout, "cpu", entry.dtype, requires_grad=gradients)
        return list(itertools.islice(sparse, 200))
    except NotImplementedError:
        pass  # the database has no sparse samples of its own, as of unary operators
    # Batches of a compressed layout must have equally many elements, which no dense sample promises.
    return [_sparse(sample, entry.layout) for sample in itertools.islice(dense, 200) if sample.input.dim() == 2]


def _sparse(sample: Any, layout: torch.layout) -> Any:
    """The sample with a sparse input."""
    blocks = {"blocksize": (1, 1)} if layout in (torch.sparse_bsr, torch.sparse_bsc) else {}
    dense = sample.input.detach()
    sample.input = dense.to_sparse(layout=layout, **blocks).requires_grad_(sample.input.requires_grad)
    return sample


def call_of(sample: Any) -> Call:
    """A sample as a call."""
    return Call(sample.input, sample.args, sample.kwargs, sample.output_process_fn_grad or (lambda result: result))


# --------------------------------------------------------------------------------------------------------- the checks


def _storages(value: Any) -> list[int]:
    return [
        t.untyped_storage()._cdata if t.layout == torch.strided and not t.is_nested else 0 for t in tensors_of(value)
    ]


def shared_memory(result: Any, arguments: Any) -> list[int]:
    """For each tensor of the result the place of the first argument whose memory it shares, or -1."""
    known = _storages(arguments)
    return [known.index(storage) if storage != 0 and storage in known else -1 for storage in _storages(result)]


def forward(operator: Callable[..., Any]) -> Body:
    """Results, what they share memory with, and the arguments afterwards."""

    def body(call: Call) -> Any:
        result = call(operator)
        return result, shared_memory(result, call.all), call.input if call.keep else call.all

    return body


def in_place(operator: Callable[..., Any]) -> Body:
    """The same of an in-place variant, and whether the tensor that it returns is the one it was given."""

    def body(call: Call) -> Any:
        with torch.no_grad():
            result = call(operator)
        return result, result is call.input, call.all

    return body


def _cotangents(results: list[torch.Tensor]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(SEED)
    return [
        torch.ones_like(r) if r.is_nested else torch.randn(r.shape, dtype=r.dtype, generator=generator).to(r.device)
        for r in results
    ]


def gradients_of(
    results: list[torch.Tensor], inputs: list[torch.Tensor], twice: bool = False
) -> tuple[list[torch.Tensor | None], list[torch.Tensor]]:
    cotangents = [c.requires_grad_(twice) for c in _cotangents(results)]
    return list(
        torch.autograd.grad(results, inputs, cotangents, allow_unused=True, create_graph=twice, retain_graph=twice)
    ), cotangents


def _differentiable_results(call: Call, operator: Callable[..., Any]) -> list[torch.Tensor]:
    results = tensors_of(call.process(call(operator)))
    sparse = (torch.sparse_coo, *COMPRESSED)
    dense = [r.to_dense() if r.layout in sparse else r for r in results if r.requires_grad]
    return [r for r in dense if r.dtype.is_floating_point or r.dtype.is_complex]


def backward(operator: Callable[..., Any]) -> Body:
    """Gradients of everything that wants one."""

    def body(call: Call) -> Any:
        results = _differentiable_results(call, operator)
        return gradients_of(results, call.differentiable)[0] if results else []

    return body


_gradient_thread = ThreadPoolExecutor(1)


def double_backward(operator: Callable[..., Any]) -> Body:
    """Gradients of the gradients.

    A graph's nodes are numbered by the thread that records them, and the numbers decide in which order gradients are
    summed. The device's gradients are computed by a thread of autograd's; so the CPU's are by a thread as well here.
    """

    def body(call: Call) -> Any:
        results = _differentiable_results(call, operator)
        if not results:
            return []
        differentiate = functools.partial(gradients_of, results, call.differentiable, twice=True)
        on_cpu = all(result.is_cpu for result in results)
        first, cotangents = _gradient_thread.submit(differentiate).result() if on_cpu else differentiate()
        again = [g for g in first if g is not None and g.requires_grad and g.layout == torch.strided]
        return gradients_of(again, [*call.differentiable, *cotangents])[0] if again else []

    return body


def forward_mode(operator: Callable[..., Any]) -> Body:
    """Tangents of the results."""

    def body(call: Call) -> Any:
        with forward_ad.dual_level():
            generator = torch.Generator().manual_seed(SEED)

            def dual(leaf: Any) -> Any:
                if not (isinstance(leaf, torch.Tensor) and leaf.requires_grad):
                    return leaf
                tangent = torch.randn(leaf.shape, dtype=leaf.dtype, generator=generator).to(leaf.device)
                return forward_ad.make_dual(leaf.detach(), tangent)

            input_, args, kwargs = torch.utils._pytree.tree_map(dual, call.all)
            results = tensors_of(operator(input_, *args, **kwargs))
            return [forward_ad.unpack_dual(r).tangent for r in results]

    return body


def _like(tensor: torch.Tensor, kind: str) -> torch.Tensor:
    if kind == "resized":
        return torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    if kind == "other dtype":
        return torch.empty_like(tensor, dtype=torch.uint8 if tensor.dtype != torch.uint8 else torch.bool)
    if kind == "other device":
        return torch.empty_like(tensor, device="cpu" if tensor.device.type != "cpu" else "meta")
    if kind == "strided":
        # Every second element of a larger tensor, the dimensions in reverse order.
        wide = torch.zeros([*reversed(tensor.shape), 2], dtype=tensor.dtype, device=tensor.device)[..., 0]
        return wide.permute(*reversed(range(wide.dim())))
    return torch.zeros_like(tensor)


def _outputs_like(result: Any, kind: str) -> Any:
    return torch.utils._pytree.tree_map(lambda r: _like(r, kind), result)


def out(operator: Callable[..., Any], kind: str) -> Body:
    """Results in tensors that the caller gives; whether their memory is still the same one."""

    def body(call: Call) -> Any:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = call(operator)
            if not tensors_of(result):
                return []
            outputs = _outputs_like(result, kind)
            before = [t.data_ptr() for t in tensors_of(outputs)]
            torch.manual_seed(SEED)
            returned = operator(call.input, *call.args, **call.kwargs, out=outputs)
            after = [t.data_ptr() for t in tensors_of(outputs)]
        kept = kind != "resized" and [a == b for a, b in zip(before, after, strict=True)]
        return outputs, returned, kept

    return body


OUT_KINDS = ("same", "strided", "resized", "other dtype")


def _memory_kept(before: int) -> int:
    """Bytes of the device that are allocated beyond `before`."""
    for _ in range(50):
        gc.collect()
        kept = torch.openreg.memory_allocated(DEVICE) - before
        if kept <= 0:
            break
        time.sleep(0.02)  # autograd's thread of the device lets go of its last tensors after backward() returns
    return kept


class Checks:
    """The checks of one entry.

    `samples`: how many samples the forward check takes; the others take fewer. `kind`: what their tensors are: "plain",
    one of kinds.py, "fake" for a comparison of fake tensors with real ones, "compiled" or "captured".
    """

    def __init__(self, entry: Entry, samples: int, kind: str = "plain") -> None:
        self.entry = entry
        self.kind = kind
        self.info = entry.info
        self.samples = samples
        self._cache: dict[bool, list[Any]] = {}

    def run(self) -> dict[str, str | None]:
        """The outcome of each check that the operator has: None, or what went wrong first."""
        outcomes: dict[str, str | None] = {}
        gc.collect()
        before = torch.openreg.memory_allocated(DEVICE)
        for name, function in self._checks():
            if is_skipped(self.entry.id, name):
                continue
            try:
                outcomes[name] = function()
            except unittest.SkipTest:
                pass  # the database has no samples
            except Exception as error:
                outcomes[name] = f"the check itself failed: {_first_line(error)}"
        self._cache.clear()
        kept = _memory_kept(before)
        outcomes["memory"] = f"{kept} bytes are still allocated" if kept > 0 else None
        return outcomes

    def _checks(self) -> Iterator[tuple[str, Callable[[], str | None]]]:
        info = self.info
        if self.entry.database == "optim":
            yield "steps", self._steps
            return
        gradients = self._has_gradients()
        if self.kind == "fake":
            yield "fake", self._fake
            return
        if self.kind == "compiled":
            yield "compiled", self._compiled
            return
        if self.kind == "captured":
            from captured import checks_of

            yield from checks_of(self.entry, gradients, self.samples)
            return
        if (self.kind, f"{self.entry.database}/{self.entry.operator}") in UNDEFINED:
            return
        yield "forward", lambda: self._each("forward", forward(info.op), gradients, self.samples)
        if self.kind != "plain":
            if gradients:
                yield "backward", lambda: self._each("backward", backward(info.op), True, self.samples)
            return
        if self.entry.database in ("op", "ref"):
            yield "noncontiguous", lambda: self._each("noncontiguous", forward(info.op), gradients, 3, strided=True)
        inplace = info.get_inplace()
        if inplace is not None and self.entry.database not in ("ref", "jagged"):
            yield "inplace", lambda: self._each("inplace", in_place(inplace), False, 4, inplace=True)
        if info.supports_out and self.entry.database == "op":
            for kind in OUT_KINDS:
                yield f"out {kind}", lambda kind=kind: self._each(f"out {kind}", out(info.op, kind), False, 2)
            yield "out other device", self._out_on_another_device
        if gradients and self.entry.database != "ref":
            yield "backward", lambda: self._each("backward", backward(info.op), True, 4)
            if info.supports_gradgrad and self.entry.dtype.itemsize >= 8 and self.entry.database != "jagged":
                yield "gradgrad", lambda: self._each("gradgrad", double_backward(info.op), True, 2)
        if gradients and info.supports_forward_ad and self.entry.database == "op":
            yield "forward AD", lambda: self._each("forward AD", forward_mode(info.op), True, 2)
        if info.error_inputs_func is not None and self.entry.dtype == torch.float32 and self.entry.database == "op":
            yield "errors", self._errors

    def _has_gradients(self) -> bool:
        if self.entry.database == "module" or not self.info.supports_autograd:
            return False
        return self.entry.dtype in self.info.supported_backward_dtypes("cpu")

    def _samples(self, gradients: bool, count: int) -> list[Any]:
        if gradients not in self._cache:
            self._cache[gradients] = samples_of(self.entry, gradients)
        found = self._cache[gradients]
        # Evenly spread, so that late kinds of sample are seen too.
        return found if len(found) <= count else [found[i * len(found) // count] for i in range(count)]

    def _each(
        self, check: str, body: Body, gradients: bool, count: int, strided: bool = False, inplace: bool = False
    ) -> str | None:
        for number, sample in enumerate(self._samples(gradients, count)):
            if inplace and sample.broadcasts_input:
                continue
            if strided and any(t.layout != torch.strided for t in tensors_of(call_of(sample).all)):
                continue
            call = call_of(sample.noncontiguous() if strided else sample)
            call.keep = stays_on_cpu(self.entry.id)
            if self.kind in KINDS:
                call.input, call.args, call.kwargs = changed(self.kind, call.all)
            found = compare_calls(self.entry, check, body, call, lenient=self.kind in KINDS)
            if found is not None:
                return f"sample {number}: {found}"
        return None

    def _fake(self) -> str | None:
        for number, sample in enumerate(self._samples(False, self.samples)):
            call = call_of(sample)
            call.keep = stays_on_cpu(self.entry.id)
            call = call.on(DEVICE)
            mode = FakeTensorMode(allow_non_fake_inputs=True)
            try:
                fakes = torch.utils._pytree.tree_map_only(torch.Tensor, mode.from_tensor, call.all)
                with mode:
                    fake = tensors_of(self.info.op(fakes[0], *fakes[1], **fakes[2]))
            except Exception:
                continue  # results that depend on data, and operators that have no rule for fake tensors
            try:
                real = tensors_of(call(self.info.op))
            except Exception as error:
                return f"sample {number}: fake tensors work, real ones don't: {_first_line(error)}"
            for a, b in zip(fake, real, strict=True):
                expected, got = ([*_metadata(t, torch.device(DEVICE), True)] for t in (b, a))
                if expected != got and b.layout == torch.strided:
                    return f"sample {number}: fake {got}, real {expected}"
        return None

    def _compiled(self) -> str | None:
        from compiled import compiled  # which imports Inductor
        from layer_calls import calls

        found = calls(self.entry, self._has_gradients())
        count = self.samples
        for number, call in enumerate(found if len(found) <= count else found[:: len(found) // count][:count]):
            call.keep = stays_on_cpu(self.entry.id)
            different = compare_calls(self.entry, "compiled", compiled(self.entry), call)
            if different is not None:
                return f"sample {number}: {different}"
        return None

    def _out_on_another_device(self) -> str | None:
        for sample in self._samples(False, 1):
            call = call_of(sample).on(DEVICE)
            try:
                result = call(self.info.op)
                outputs = _outputs_like(result, "other device")
            except Exception:
                return None  # not a sample for out=
            if not tensors_of(call.all) or not tensors_of(outputs):
                return None
            try:
                self.info.op(call.input, *call.args, **call.kwargs, out=outputs)
            except (RuntimeError, TypeError, ValueError):
                return None
            return "no error"
        return None

    def _errors(self) -> str | None:
        for number, case in enumerate(self.info.error_inputs("cpu")):
            operator = self.info.op
            body = forward(operator)
            call = call_of(case.sample_input)
            expected, got = (_outcome(body, call, device)[1] for device in ("cpu", DEVICE))
            if expected is None:
                continue
            if got is None:
                return f"case {number}: no error, but on the CPU {_first_line(expected)}"
            wanted = str(expected).replace("cpu", DEVICE)
            if type(got) is not type(expected) or str(got).splitlines()[:1] not in (
                wanted.splitlines()[:1],
                str(expected).splitlines()[:1],
            ):
                return f"case {number}: {_first_line(got)}; on the CPU {_first_line(expected)}"
        return None

    def _steps(self) -> str | None:
        for options in self.info.optim_inputs_func(device="cpu"):
            for way in ("for loop", *self.info.supported_impls):
                if way == "differentiable" or (way == "fused" and "cpu" not in self.info.supports_fused_on):
                    continue
                settings = {k: v for k, v in options.kwargs.items() if k not in ("foreach", "fused")}
                if way != "for loop":
                    settings[way] = True
                elif "foreach" in self.info.supported_impls:
                    settings["foreach"] = False  # the default for accelerators
                body = _optimizer_steps(self.info, settings)
                found = compare_calls(self.entry, "steps", body, self._parameters())
                if found is not None:
                    return f"{options.desc} {way}: {found}"
        return None

    def _parameters(self) -> Call:
        generator = torch.Generator().manual_seed(SEED)
        shapes = ((3, 4), (4,), (2, 3))
        made = [torch.randn(shape, generator=generator, dtype=torch.float64).to(self.entry.dtype) for shape in shapes]
        return Call([torch.nn.Parameter(m) for m in made], (), {})


def _optimizer_steps(info: Any, settings: dict[str, Any]) -> Body:
    def body(call: Call) -> Any:
        moved = {k: v.to(call.input[0].device) if isinstance(v, torch.Tensor) else v for k, v in settings.items()}
        optimizer = info.optim_cls(call.input, **moved)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = torch.stack([(p * p.conj()).real.sum() for p in call.input]).sum()
            loss.backward()
            if info.only_supports_sparse_grads:
                for p in call.input:
                    p.grad = p.grad.to_sparse()
            return loss

        for _ in range(3):
            optimizer.step(closure)
        state = [value for p in call.input for value in optimizer.state[p].values()]
        return call.input, [s.to(call.input[0].device) if isinstance(s, torch.Tensor) else s for s in state]

    return body
