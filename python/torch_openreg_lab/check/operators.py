# SPDX-License-Identifier: BSD-3-Clause
"""Operators of PyTorch's own database on the device against the CPU: values, strides, in place, out=, gradients."""

from __future__ import annotations

import functools
import itertools
import random
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from _torch_openreg_device_name import device_name
from torch.utils._pytree import tree_map

from torch_openreg_lab.check.comparison import comparison_since, native_calls
from torch_openreg_lab.check.paired_tensors import Mover, difference, exactly, tensors_of
from torch_openreg_lab.check.registry import Failure, Limits, Skip, check

DEVICE = f"{device_name()}:0"
DTYPES = (torch.float32, torch.int64, torch.bool, torch.float16)
SAMPLES = 4
"""Of an operator and a type in a round; the next round takes others, until the time is over."""

GROUPS = {
    "elements": "add sub mul div true_divide maximum minimum neg abs exp log sqrt rsqrt reciprocal sin tanh sigmoid "
    "pow clamp where eq ne lt le gt ge logical_not bitwise_not bitwise_and masked_fill addcmul addcdiv lerp isnan sign",
    "reductions": "sum mean amax amin argmax max min prod cumsum std var any all logsumexp linalg.vector_norm norm",
    "shapes": "cat stack transpose permute expand reshape flip roll narrow split chunk repeat tril triu clone "
    "contiguous diagonal unfold squeeze unsqueeze to",
    "indexing": "gather scatter scatter_add index_select index_add index_put take masked_select nonzero sort topk "
    "nn.functional.embedding nn.functional.one_hot",
    "matrices": "mm addmm bmm baddbmm matmul mv dot einsum linalg.solve linalg.cholesky linalg.inv",
    "layers": "nn.functional.linear nn.functional.conv2d nn.functional.conv_transpose2d nn.functional.batch_norm "
    "nn.functional.layer_norm nn.functional.max_pool2d nn.functional.avg_pool2d nn.functional.adaptive_avg_pool2d",
    "activations": "nn.functional.relu nn.functional.gelu nn.functional.silu nn.functional.leaky_relu softmax "
    "log_softmax nn.functional.cross_entropy nn.functional.nll_loss nn.functional.mse_loss "
    "nn.functional.scaled_dot_product_attention",
}


def _database() -> list[Any]:
    try:
        from torch.testing._internal.common_methods_invocations import op_db
    except ImportError as error:
        raise Skip(f"PyTorch's database of operators needs {error.name}: pip install torch-openreg[check]") from error
    return list(op_db)


def _strided(value: Any) -> Any:
    """Every tensor with gaps between its elements, an offset, and its dimensions in the reverse order in memory."""

    def leaf(tensor: Any) -> Any:
        if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided or tensor.numel() == 0:
            return tensor
        wide = torch.ones([*reversed(tensor.shape), 3], dtype=tensor.dtype)[..., 1]
        made = wide.permute(tuple(reversed(range(wide.dim()))))
        with torch.no_grad():
            made.copy_(tensor)
        return made.detach().requires_grad_(tensor.requires_grad)

    return tree_map(leaf, value, is_leaf=lambda x: isinstance(x, torch.Tensor))


Call = tuple[Any, tuple[Any, ...], dict[str, Any]]


def _forward(operator: Callable[..., Any], call: Call) -> Any:
    result = operator(call[0], *call[1], **call[2])
    return result, call


def _in_place(operator: Callable[..., Any], call: Call) -> Any:
    with torch.no_grad():
        result = operator(call[0], *call[1], **call[2])
    return result is call[0], call


def _out(operator: Callable[..., Any], call: Call) -> Any:
    """Into every second element: what lies between must stay."""
    with torch.no_grad():
        result = operator(call[0], *call[1], **call[2])
        if not isinstance(result, torch.Tensor):
            return None
        wide = torch.full([*result.shape, 2], 7, device=result.device).to(result.dtype)
        operator(call[0], *call[1], **call[2], out=wide[..., 0])
        if result.is_cpu and not torch.allclose(wide[..., 0], result, equal_nan=True):
            raise RuntimeError("PyTorch's own kernel is wrong here, as torch 2.13's gelu is: nothing to compare with")
    return wide[..., 0], wide[..., 1] == torch.tensor(7).to(wide.dtype).to(wide.device)


def _gradients(operator: Callable[..., Any], call: Call) -> Any:
    inputs = [tensor for tensor in tensors_of(call) if tensor.requires_grad]
    results = [tensor for tensor in tensors_of(operator(call[0], *call[1], **call[2])) if tensor.requires_grad]
    generator = torch.Generator().manual_seed(7)
    weights = [torch.randn(r.shape, generator=generator, dtype=r.dtype).to(r.device) for r in results]
    return torch.autograd.grad(results, inputs, weights, allow_unused=True) if results and inputs else None


def _outcome(body: Callable[..., Any], operator: Callable[..., Any], call: Call, device: str) -> Any:
    moved = Mover(device)(call)
    try:
        return body(operator, moved), None
    except Exception as error:
        return None, error


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"[:200]


def _compare(body: Callable[..., Any], operator: Callable[..., Any], call: Call, strides: bool) -> str | None:
    expected, wanted = _outcome(body, operator, call, "cpu")
    if wanted is not None:
        return None  # not a sample for this
    before = native_calls()
    actual, got = _outcome(body, operator, call, DEVICE)
    if got is not None:
        return _first_line(got)
    compare = comparison_since(before)
    # Results of a driver's own kernels have the strides of PyTorch's shape functions, which the CPU's kernels need not.
    return difference(expected, actual, torch.device(DEVICE), compare, strides and compare is exactly)


def _bodies(info: Any, sample: Any, gradients: bool) -> Iterator[tuple[str, Callable[..., Any], Callable[..., Any]]]:
    if gradients:
        yield "gradients", _gradients, info.op
        return
    yield "results", _forward, info.op
    if info.inplace_variant is not None and not sample.broadcasts_input:
        yield "in place", _in_place, info.inplace_variant
    if info.supports_out:
        yield "out=", _out, info.op


class _Task:
    """An operator in one type, or its gradients: its samples in an order that the seed chooses, a few a round."""

    def __init__(self, info: Any, dtype: torch.dtype, gradients: bool, seed: int) -> None:
        self.info, self.dtype, self.gradients = info, dtype, gradients
        self.name = f"{info.name}{'.' + info.variant_test_name if info.variant_test_name else ''}"
        self._seed = seed
        self._order: list[int] | None = None  # of the samples that are left

    @property
    def left(self) -> int | None:
        """How many samples are left, or None of a task that is not begun."""
        return None if self._order is None else len(self._order)

    def failures(self) -> Iterator[str]:
        """Tries the next few samples."""
        torch.manual_seed(self._seed)
        samples = list(self.info.sample_inputs("cpu", self.dtype, requires_grad=self.gradients))
        if self._order is None:
            self._order = list(range(len(samples)))
            random.Random(f"{self._seed} {self.name} {self.dtype} {self.gradients}").shuffle(self._order)
        chosen, self._order = self._order[:SAMPLES], self._order[SAMPLES:]
        for number in chosen:
            if number < len(samples):
                yield from self._failures_of(number, samples[number])

    def _failures_of(self, number: int, sample: Any) -> Iterator[str]:
        call: Call = (sample.input, tuple(sample.args), dict(sample.kwargs))
        for layout, shown in (("", call), (", strided", _strided(call))):
            for what, body, operator in _bodies(self.info, sample, self.gradients):
                found = _compare(body, operator, shown, strides=what != "gradients")
                if found is not None:
                    yield f"{self.name}, {str(self.dtype)[6:]}, sample {number}{layout}, {what}: {found}"


def _untried(tasks: list[_Task]) -> str:
    names = [f"{task.name} ({'gradients' if task.gradients else str(task.dtype)[6:]})" for task in tasks]
    absent = [name for name, task in zip(names, tasks, strict=True) if task.left is None]
    left = sum(task.left or 0 for task in tasks)
    parts = [f"{left} samples of {len(tasks) - len(absent)} operators and types"] if left else []
    return ", ".join(parts + absent)


def _run(names: list[str], limits: Limits) -> str:
    warnings.simplefilter("ignore")
    wanted = [info for info in _database() if info.name in names]
    random.Random(limits.seed).shuffle(wanted)
    first, *others = (
        [_Task(info, dtype, False, limits.seed) for info in wanted if dtype in info.supported_dtypes("cpu")]
        for dtype in DTYPES
    )
    gradients = [_Task(info, DTYPES[0], True, limits.seed) for info in wanted if info.supports_autograd]
    tasks = [*first, *gradients, *itertools.chain(*others)]
    end = time.monotonic() + max(limits.seconds, 1.0) * 2
    waiting = tasks
    while waiting:
        for done, task in enumerate(waiting):
            # All operators of the group, then their gradients, then other types, and then other samples of each.
            if time.monotonic() > end and not (waiting is tasks and done < len(first)):
                return _untried(tasks)
            for text in task.failures():
                raise Failure(text)
        waiting = [task for task in tasks if task.left]
    return ""


RULE = (
    "An operator gives the CPU's results: to the bit where PyTorch's kernels for the CPU run, within a tolerance of "
    "the type where the driver's or a GPU's do; with any strides, in place, and with out=, beside which nothing is "
    "written."
)
HINT = (
    "The operator, the type and the sample are named. OPENREG_OPERATORS_REPORT=1 says whose kernel ran. A kernel that "
    "reads elements one after the other is right for contiguous tensors alone."
)


for _group, _names in GROUPS.items():
    check(f"operators.{_group}", RULE, HINT)(functools.partial(_run, _names.split()))
