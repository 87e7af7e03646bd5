# SPDX-License-Identifier: BSD-3-Clause
"""DeepSpeed as a program for CUDA through torch_openreg.contrib.deepspeed: no compiler, and the losses of PyTorch's own."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from torch_openreg.contrib import _deepspeed_ops, _deepspeed_quantizer

needs_deepspeed = pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed")

# What would compile an extension fails. Losses equal those of a loop that has the weights in float32.
TRAINING = """
import json, sys
import torch, torch.utils.cpp_extension

def no_compiler(*arguments, **keywords):
    raise AssertionError("DeepSpeed compiles")

torch.utils.cpp_extension.load = no_compiler
import deepspeed
from torch import nn

TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
LR, DECAY = 1e-2, 0.1
generator = torch.Generator().manual_seed(1)
inputs, targets = torch.randn(8, 8, generator=generator), torch.randn(8, 3, generator=generator)

def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))

def lion(weight, state):
    mean = state.setdefault("mean", torch.zeros_like(weight))
    up = mean * 0.9 + weight.grad * 0.1 > 0
    weight.mul_(1 - LR * DECAY).add_(torch.where(up, -LR, LR))
    mean.lerp_(weight.grad, 0.001)

def lamb(weight, state):
    mean, square = (state.setdefault(name, torch.zeros_like(weight)) for name in ("mean", "square"))
    step = state["step"] = state.get("step", 0) + 1
    mean.lerp_(weight.grad, 0.1)
    square.lerp_(weight.grad**2, 0.001)
    update = mean / (square.sqrt() + 1e-8) + DECAY * weight
    ratio = (weight.norm() / update.norm()).clamp(0.01, 10) if weight.norm() and update.norm() else 1.0
    weight.sub_(update * ratio * LR * (1 - 0.999**step) ** 0.5 / (1 - 0.9**step))

def expected(kind, precision):
    net, scale = model().to(TYPES[precision]), 256 if precision == "fp16" else 1
    weights, states, losses = [nn.Parameter(one.detach().float().clone()) for one in net.parameters()], {}, []
    adam = torch.optim.Adam if kind == "L2" else torch.optim.AdamW
    step = adam(weights, lr=LR, weight_decay=DECAY).step
    if kind in ("Lion", "Lamb"):
        one_step = torch.no_grad()({"Lion": lion, "Lamb": lamb}[kind])
        step = lambda: [one_step(weight, states.setdefault(weight, {})) for weight in weights]
    for _ in range(5):
        net.zero_grad()
        loss = nn.functional.mse_loss(net(inputs.to(TYPES[precision])), targets.to(TYPES[precision]))
        (loss.float() * scale).backward()
        for weight, one in zip(weights, net.parameters()):
            weight.grad = one.grad.float() / scale
        step()
        for weight, one in zip(weights, net.parameters()):
            one.data.copy_(weight.data)
        losses.append(loss.item())
    return losses

def trained(kind, precision, stage, offload):
    settings = {"lr": LR, "weight_decay": DECAY} | ({"adam_w_mode": False} if kind == "L2" else {})
    config = {
        "train_micro_batch_size_per_gpu": 8,
        "optimizer": {"type": "Adam" if kind == "L2" else kind, "params": settings},
        "zero_optimization": {"stage": stage},
        "gradient_clipping": 0.0,
    }
    if offload:
        config["zero_optimization"]["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if precision != "fp32":
        config[precision] = {"enabled": True}
    if precision == "fp16":
        config["fp16"]["initial_scale_power"] = 8
    net, losses = model(), []
    engine, *_ = deepspeed.initialize(config=config, model=net, model_parameters=net.parameters())
    for _ in range(5):
        moved = [one.to(engine.device, TYPES[precision]) for one in (inputs, targets)]
        loss = nn.functional.mse_loss(engine(moved[0]), moved[1])
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    assert engine.device == torch.device("cuda", torch.distributed.get_rank()), engine.device
    assert deepspeed.accelerator.get_accelerator().on_accelerator(moved[0])
    return losses

found = [[case, expected(*case[:2]), trained(*case)] for case in json.loads(sys.argv[2])]
if torch.distributed.get_rank() == 0:
    with open(sys.argv[1], "w") as file:
        json.dump(found, file)
torch.distributed.destroy_process_group()
"""

FP32 = [(kind, "fp32", stage, False) for kind in ("Adam", "L2", "AdamW", "Lion") for stage in (0, 1, 2, 3)]
HALVES = [(kind, half, stage, False) for kind in ("Adam", "Lion") for half in ("fp16", "bf16") for stage in (1, 2, 3)]
OFFLOAD = [("Adam", "fp32", 2, True), ("L2", "fp16", 1, True), ("AdamW", "bf16", 3, True), ("Lion", "fp16", 3, True)]
LAMB = [("Lamb", "fp32", 0, False), ("Lamb", "fp16", 0, False)]
TOLERANCE = {"fp32": 1e-5, "fp16": 4e-3, "bf16": 3e-2}
ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}


def losses(script: Any, folder: Path, cases: list[Any], **settings: Any) -> None:
    report = folder / "report"
    script(TRAINING, str(report), json.dumps(cases), OPENREG_AS_CUDA="1", **settings)
    found = json.loads(report.read_text())
    assert len(found) == len(cases)
    for case, expected, got in found:
        torch.testing.assert_close(
            got, expected, rtol=TOLERANCE[case[1]], atol=1e-6, msg=lambda text, c=case: f"{c} {text}"
        )
        assert got[-1] < got[0]


# one process
@needs_deepspeed
@pytest.mark.parametrize("cases", [FP32, HALVES + LAMB, OFFLOAD], ids=["fp32", "halves", "offload"])
def test_training(script: Any, tmp_path: Path, cases: list[Any]) -> None:
    losses(script, tmp_path, cases, **ALONE)


# two processes of torchrun, each on its device: partitions of the states, of the gradients and of the weights
@needs_deepspeed
def test_processes_of_torchrun(script: Any, tmp_path: Path) -> None:
    cases = [*FP32[1:4], *HALVES[:6], *OFFLOAD[2:]]
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    losses(script, tmp_path, cases, launcher=launcher, OPENREG_SIM_DEVICES="2")


CONNECTED = """
import sys
{first}
import deepspeed
from deepspeed.accelerator import get_accelerator
from deepspeed.ops.op_builder import CPUAdamBuilder, FusedAdamBuilder, RandomLTDBuilder
from torch_openreg.contrib import deepspeed as contrib

accelerator = get_accelerator()
print(accelerator.device_name(), accelerator.is_fp16_supported(), accelerator.is_triton_supported())
print(FusedAdamBuilder().is_compatible(), RandomLTDBuilder().is_compatible())
print(FusedAdamBuilder().load() is contrib._deepspeed_ops.OPS["fused_adam"])
try:
    RandomLTDBuilder().load()
except RuntimeError as error:
    print(error)
try:
    CPUAdamBuilder().load().zenflow_adam_create
except AttributeError as error:
    print(error)
contrib.disable()
print(contrib.is_enabled(), accelerator.is_fp16_supported(), RandomLTDBuilder.load.__module__)
"""


# connected in the middle of its import, whichever is imported first; what can't run says why; disable() takes it back
@needs_deepspeed
@pytest.mark.parametrize("first", ["import torch", "import torch_openreg.contrib.deepspeed", ""])
def test_connection(script: Any, first: str) -> None:
    lines = script(CONNECTED.format(first=first), OPENREG_AS_CUDA="1").stdout.splitlines()
    assert lines[:3] == ["cuda True False", "True False", "True"]
    assert "'random_ltd' is a kernel for CUDA" in lines[3] and "'zenflow_adam_create' is compiled code" in lines[4]
    assert lines[5] == "False False deepspeed.ops.op_builder.builder"


# without OPENREG_AS_CUDA DeepSpeed stays on the CPU, with its own builders
@needs_deepspeed
def test_nothing_changes_on_the_cpu(script: Any) -> None:
    code = """
import deepspeed
from deepspeed.accelerator import get_accelerator
from torch_openreg.contrib import deepspeed as contrib
print(get_accelerator().device_name(), contrib.is_enabled(), contrib._is_wanted())
"""
    assert script(code, OPENREG_CONTRIB="deepspeed").stdout.splitlines()[-1] == "cpu True False"


# ------------------------------------------------------------------------------- the operators, without DeepSpeed


def tensors(dtype: torch.dtype, device: str, count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(40, generator=generator) for _ in range(count)]
    return [one.to(device, dtype) for one in made]


# Adam of both modes and with both corrections, in the host's memory and on the device; halves are rounded once a step
@pytest.mark.parametrize("device", ["cpu", "openreg:1"])
@pytest.mark.parametrize("decoupled", [False, True])
def test_adam(device: str, decoupled: bool) -> None:
    adam, host = _deepspeed_ops.OPS["fused_adam"], _deepspeed_ops.OPS["cpu_adam"]
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    start, *slopes = tensors(torch.float32, device, 4)
    weight = start.clone().requires_grad_()
    optimizer = kind([weight], lr=1e-2, weight_decay=0.1)
    lists = [[torch.zeros_like(start)], [start.clone()], [torch.zeros_like(start)], [torch.zeros_like(start)]]
    half = [[part[0].half()] for part in lists]
    single = [part[0].clone() for part in (lists[1], lists[0], lists[2], lists[3])]
    host.create_adam(7, 1e-2, 0.9, 0.999, 1e-8, 0.1, decoupled, False)
    for step, slope in enumerate(slopes, 1):
        weight.grad = slope.clone()
        optimizer.step()
        for group in (lists, half):
            group[0][0].copy_(slope)
            adam.multi_tensor_adam(65536, None, group, 1e-2, 0.9, 0.999, 1e-8, step, int(decoupled), 1, 0.1)
        single[1].copy_(slope)
        host.adam_update(7, step, 1e-2, 0.9, 0.999, 1e-8, 0.1, True, *single)
        if step == 1:
            before = [part.clone() for part in single]
    torch.testing.assert_close(lists[1][0], weight.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(single[0], weight.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(half[1][0].float(), weight.detach(), rtol=4e-3, atol=4e-3)
    if decoupled:
        for step in (3, 2):
            single[1].copy_(slopes[step - 1])
            host.adam_rollback(7, step, 1e-2, 0.9, 0.999, 1e-8, 0.1, True, *single)
        for got, expected in zip(single[::2], before[::2], strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    host.destroy_adam(7)


# without weight decay Adagrad is PyTorch's, and its update is left in the gradient's place
def test_adagrad() -> None:
    start, slope = tensors(torch.float32, "cpu", 2)
    weight = start.clone().requires_grad_()
    weight.grad = slope.clone()
    torch.optim.Adagrad([weight], lr=1e-2, eps=1e-8).step()
    got, total = start.clone(), torch.zeros_like(start)
    _deepspeed_ops.OPS["cpu_adagrad"].adagrad_update(0, 1, 1e-2, 1e-8, 0.0, got, slope, total)
    torch.testing.assert_close(got, weight.detach())
    torch.testing.assert_close(start + slope, got)


# a zero counts as up on the device and as down in the host's memory, as in DeepSpeed's kernels
def test_lion() -> None:
    for name, sign in (("fused_lion", 1.0), ("cpu_lion", -1.0)):
        slope, weight, mean = torch.tensor([1.0, -1.0, 0.0]), torch.ones(3), torch.zeros(3)
        module = _deepspeed_ops.OPS[name]
        if name == "fused_lion":
            module.multi_tensor_lion(65536, None, [[slope], [weight], [mean]], 0.5, 0.9, 0.75, 1, 0.25)
        else:
            module.lion_update(0, 1, 0.5, 0.9, 0.75, 0.25, weight, slope, mean)
        assert weight.tolist() == [0.375, 1.375, 0.875 + 0.5 * sign] and mean.tolist() == [0.25, -0.25, 0.0]


# LAMB's coefficient has bounds, and is 1 for a weight of zeros; the copy is a float16 one; what the kernel refuses
def test_lamb() -> None:
    lamb = _deepspeed_ops.OPS["fused_lamb"].lamb

    def step(weight: torch.Tensor, slope: torch.Tensor, decay: float = 0.0) -> tuple[float, torch.Tensor]:
        copy, states = torch.zeros_like(slope), [torch.zeros_like(weight) for _ in range(2)]
        found = lamb(weight, copy, *states, slope, 0.1, 0.9, 0.999, 10.0, 0.01, 1e-8, 2.0, 1, 1, 1, decay)
        return found.item(), copy

    assert step(torch.zeros(4), torch.ones(4))[0] == 1.0
    assert step(torch.full((4,), 1e-6), torch.ones(4))[0] == pytest.approx(0.01)
    assert step(torch.full((4,), 1e6), torch.ones(4))[0] == 10.0
    weight = torch.ones(4)
    coefficient, copy = step(weight, torch.ones(4, dtype=torch.float16), 0.5)
    update = 0.05 / (0.5 * 0.001**0.5) + 0.5  # of the mean and the root before their corrections
    assert coefficient == pytest.approx(1 / update, rel=1e-4)
    torch.testing.assert_close(copy, weight.half())
    with pytest.raises(RuntimeError, match="BFloat16"):
        step(torch.ones(4), torch.ones(4, dtype=torch.bfloat16))
    with pytest.raises(RuntimeError, match="float type"):
        step(torch.ones(4).half(), torch.ones(4).half())


# values come back to half a step of their group; two halves of a byte; a group of zeros
@pytest.mark.parametrize("device", ["cpu", "openreg:1"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("kind", list(_deepspeed_quantizer.QuantizationType))
def test_quantizer(device: str, bits: int, kind: Any) -> None:
    module = _deepspeed_ops.OPS["quantizer"]
    values = torch.randn(4, 32, generator=torch.Generator().manual_seed(0)).add_(1).half().to(device)
    values[1, 16:] = 0
    data, parameters = module.quantize(values, 8, bits, kind)
    assert data.dtype == torch.int8 and data.shape == (4, 32 * bits // 8)
    assert parameters.shape == (8, 1 if kind == module.Symmetric else 2)
    groups = values.float().reshape(8, 16)
    size = 2 * groups.abs().amax(1) if kind == module.Symmetric else groups.amax(1) - groups.amin(1)
    error = (module.dequantize(data, parameters, 8, bits, kind).float().reshape(8, 16) - groups).abs().amax(1)
    assert (error <= 1.01 * size / 2**bits + 2e-3).all()  # the largest value is a step from the end
    with pytest.raises(RuntimeError, match="float16"):
        module.quantize(values.float(), 8, bits, kind)


# ZeRO++'s exchange of gradients, of two nodes with two devices: the parts' order, and their sum
def test_quantized_exchange() -> None:
    module = _deepspeed_ops.OPS["quantizer"]
    nodes, devices, groups = 2, 2, 8
    values = torch.arange(8.0).repeat_interleave(16).half()
    data, scales = module.swizzle_quant(values, groups, 8, module.Symmetric, 1, nodes, devices)
    sent = module.dequantize(data, scales, groups, 8, module.Symmetric)
    assert sent.reshape(8, 16)[:, 0].round().tolist() == [0, 1, 4, 5, 2, 3, 6, 7]
    data, scales = module.swizzle_quant(values, groups, 8, module.Symmetric, 2, nodes, devices)
    sent = module.dequantize(data, scales, groups, 8, module.Symmetric)
    assert sent.reshape(8, 16)[:, 0].round().tolist() == [0, 4, 2, 6, 1, 5, 3, 7]
    both, factors = module.quantized_reduction(data, scales, groups, 4, 8, module.Symmetric, devices)
    total = module.dequantize(both, factors, 4, 8, module.Symmetric).reshape(4, 16)[:, 0]
    torch.testing.assert_close(total.float(), torch.tensor([1.0, 9, 5, 13]), rtol=0.02, atol=0.02)
