# SPDX-License-Identifier: BSD-3-Clause
"""torch.nn on the device: every layer against the CPU, moves of modules, recurrent layers, torch.nn.utils, state."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import comparing
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune, rnn
from torch.testing import assert_close
from torch.testing._internal.common_modules import ModuleInfo, module_db

from torch_openreg_lab.check.paired_tensors import Mover, tensors_of

DEV = "openreg:1"
MOST_CASES = 16  # of one layer: from more, an even choice is run

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # what layers tell of arguments that PyTorch tests

# The CPU runs these in fused kernels of its own or adds the bias in another order; the last bits differ.
ROUNDED = ("nn.RNN", "nn.GRU", "nn.LSTM", "nn.GRUCell")


def run(module: nn.Module, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Forward and backward: results, gradients of inputs and parameters, buffers."""
    torch.manual_seed(2)
    results = tensors_of(module(*args, **kwargs))
    differentiable = [result for result in results if result.requires_grad]
    if differentiable:
        weights = [torch.linspace(0.5, 1.5, max(r.numel(), 1))[: r.numel()].reshape(r.shape) for r in differentiable]
        parts = [(r.abs() * w.to(r.device)).sum() for r, w in zip(differentiable, weights, strict=True)]
        sum(parts[1:], parts[0]).backward()
    leaves = [*module.parameters(), *tensors_of((args, kwargs))]
    gradients = [leaf.grad for leaf in leaves if leaf.grad is not None]
    return [*results, *gradients, *module.buffers()]


def assert_same(got: list[torch.Tensor], expected: list[torch.Tensor], rounded: bool = False) -> None:
    """Bit for bit, any NaN being as good as another, or else within assert_close's tolerances for the dtype."""
    assert [tensor.requires_grad for tensor in got] == [tensor.requires_grad for tensor in expected]
    comparing.assert_same(got, expected, **({} if rounded else {**comparing.EXACT, "equal_nan": True}))


# forward and backward of every layer, with arguments that PyTorch tests it with: the CPU's bits
@pytest.mark.parametrize("info", module_db, ids=[info.name for info in module_db])
def test_layers_equal_the_cpu(info: ModuleInfo) -> None:
    compared = 0
    for training in (True, False) if info.train_and_eval_differ else (True,):
        cases = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=True, training=training)
        cases = [case for case in cases if case.forward_input is not None]
        for case in cases[:: -(-len(cases) // MOST_CASES) or 1]:
            cpu = info.module_cls(*case.constructor_input.args, **case.constructor_input.kwargs)
            cpu.to(torch.float32).train(training)
            there = copy.deepcopy(cpu).to(DEV)
            arguments = case.forward_input.args, case.forward_input.kwargs
            expected = run(cpu, *Mover("cpu")(arguments))
            assert_same(run(there, *Mover(DEV)(arguments)), expected, rounded=info.name in ROUNDED)
            compared += 1
    assert compared > 0


# the methods that PyTorch generates for the name of the device
def test_methods_named_after_the_device() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    assert not x.is_openreg
    there = x.openreg(1)
    assert there.is_openreg and there.device == torch.device(DEV)
    assert x.openreg().device == torch.device("openreg:0")
    torch.openreg.set_device(1)
    assert x.openreg().device == torch.device(DEV)
    assert there.openreg(torch.device(DEV)) is there
    assert torch.equal(there.cpu(), x)
    assert x.openreg("openreg:1").device == torch.device(DEV)
    assert next(torch.nn.Linear(2, 2).openreg().parameters()).is_openreg
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3, 1), torch.ones(2, 1)])
    assert packed.openreg().is_openreg
    assert there.untyped_storage().is_openreg
    assert x.untyped_storage().openreg(1).device == torch.device(DEV)
    with pytest.raises(RuntimeError, match="Invalid device"):
        x.openreg(torch.device("cpu"))
    with pytest.raises(RuntimeError, match="7"):
        x.openreg(7)


# Module.openreg() keeps parameters, moves buffers and gradients, and takes an index
def test_modules_move_by_the_name_of_the_device() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    weight = model[0].weight
    model(torch.randn(4, 3)).sum().backward()
    expected = weight.grad.clone()
    assert model.openreg(1) is model
    assert model[0].weight is weight
    assert {t.device for t in (*model.parameters(), *model.buffers(), weight.grad)} == {torch.device(DEV)}
    assert torch.equal(weight.grad.cpu(), expected)
    assert model.cpu()[0].weight is weight and weight.grad.device.type == "cpu"
    weight.data = torch.ones(2, 3, device=DEV)
    assert weight.device == torch.device(DEV)
    assert model.to(DEV, torch.float64)[0].weight.dtype == torch.float64
    assert nn.Linear(2, 2).to_empty(device=DEV).weight.device == torch.device(DEV)
    assert nn.Linear(2, 2, device=DEV, dtype=torch.bfloat16).weight.dtype == torch.bfloat16


# sequences of different lengths, packed on the host or on the device, through a bidirectional layer and back
@pytest.mark.parametrize("sort", [True, False], ids=["sorted", "unsorted"])
@pytest.mark.parametrize(
    ("layer", "settings"),
    [
        (nn.RNN, {}),
        (nn.GRU, {"num_layers": 2, "bidirectional": True}),
        (nn.LSTM, {"num_layers": 2, "bidirectional": True, "proj_size": 3}),
        (nn.LSTM, {"batch_first": True}),
    ],
    ids=["rnn", "gru", "lstm", "lstm batch first"],
)
def test_packed_sequences_equal_the_cpu(layer: type[nn.RNNBase], settings: dict[str, Any], sort: bool) -> None:
    lengths = [5, 4, 2] if sort else [2, 5, 4]
    sequences = [torch.randn(length, 4) for length in lengths]
    cpu = layer(4, 5, **settings)
    there = copy.deepcopy(cpu).to(DEV)
    results = []
    for model, device in ((cpu, "cpu"), (there, DEV)):
        packed = rnn.pack_sequence([s.to(device) for s in sequences], enforce_sorted=sort)
        assert packed.data.device == torch.device(device) and packed.batch_sizes.device.type == "cpu"
        output, hidden = model(packed)
        padded, counts = rnn.pad_packed_sequence(output, batch_first=True)
        assert counts.tolist() == lengths
        padded.square().sum().backward()
        results.append([padded, *tensors_of(hidden), *(p.grad for p in model.parameters())])
    comparing.assert_same(results[1], results[0])


# a packed sequence is moved, told by its device, and taken apart as on the CPU
def test_packed_sequences_move() -> None:
    sequences = [torch.arange(3.0), torch.arange(2.0)]
    packed = rnn.pack_sequence(sequences)
    there = packed.to(DEV)
    assert there.data.device == torch.device(DEV) and not there.is_cuda
    assert [s.tolist() for s in rnn.unpack_sequence(there)] == [s.tolist() for s in sequences]
    assert torch.equal(there.cpu().data, packed.data)
    padded = rnn.pad_sequence([s.to(DEV) for s in sequences], padding_value=-1.0)
    assert padded.device == torch.device(DEV) and padded.cpu().tolist() == [[0.0, 0.0], [1.0, 1.0], [2.0, -1.0]]


# the same numbers are drawn between layers for the same seed, and none in evaluation
@pytest.mark.parametrize("layer", [nn.RNN, nn.GRU, nn.LSTM])
def test_dropout_between_recurrent_layers(layer: type[nn.RNNBase]) -> None:
    model = layer(4, 5, num_layers=3, dropout=0.5).to(DEV)
    x = torch.randn(6, 2, 4, device=DEV)
    comparing.drawn_by_seed(lambda: model(x)[0])
    model.eval()
    assert torch.equal(model(x)[0], model(x)[0])
    cpu = copy.deepcopy(model).cpu()
    assert_close(model(x)[0].cpu(), cpu(x.cpu())[0])


# cells one step at a time
@pytest.mark.parametrize("cell", [nn.RNNCell, nn.GRUCell, nn.LSTMCell])
def test_recurrent_cells_in_a_loop(cell: type[nn.Module]) -> None:
    cpu = cell(4, 5)
    there = copy.deepcopy(cpu).to(DEV)
    steps = torch.randn(3, 2, 4)
    results = []
    for model, x in ((cpu, steps), (there, steps.to(DEV))):
        state = None
        for step in x:
            state = model(step, state)
        (tensors_of(state)[0].sum() ** 2).backward()
        results.append([*tensors_of(state), *(p.grad for p in model.parameters())])
    comparing.assert_same(results[1], results[0])


# torch.nn.utils: norms, clipping and flat views of parameters
def test_clipping_and_vectors_of_parameters() -> None:
    cpu = nn.Linear(3, 4)
    there = copy.deepcopy(cpu).to(DEV)
    x = torch.randn(5, 3)
    results: dict[str, list[list[torch.Tensor]]] = {"cpu": [], DEV: []}
    for model, device in ((cpu, "cpu"), (there, DEV)):
        for foreach in (False, True):
            for norm in (2.0, 1.0, float("inf")):
                model.zero_grad()
                model(x.to(device)).square().sum().backward()
                total = nn.utils.clip_grad_norm_(model.parameters(), 0.7, norm_type=norm, foreach=foreach)
                assert total.device == torch.device(device)
                results[device].append([total, *(p.grad.clone() for p in model.parameters())])
        for foreach in (False, True):
            model.zero_grad()
            model(x.to(device)).square().sum().backward()
            nn.utils.clip_grad_value_(model.parameters(), 0.1, foreach=foreach)
            results[device].append([p.grad.clone() for p in model.parameters()])
        vector = nn.utils.parameters_to_vector(model.parameters())
        nn.utils.vector_to_parameters(vector * 2, model.parameters())
        results[device].append([vector, *model.parameters()])
    for got, expected in zip(results[DEV], results["cpu"], strict=True):
        assert_same(got, expected)
    with pytest.raises(RuntimeError, match="non-finite"):
        nn.utils.clip_grad_norm_(there.parameters(), float("nan"), error_if_nonfinite=True, norm_type=float("nan"))


# parametrizations, the older reparametrizations and pruning, through training, a move and removal
@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm", "orthogonal", "old weight_norm", "pruned"])
def test_parametrized_layers_equal_the_cpu(kind: str) -> None:
    def build() -> nn.Module:
        torch.manual_seed(3)
        layer = nn.Linear(4, 4)
        if kind == "weight_norm":
            return parametrizations.weight_norm(layer)
        if kind == "spectral_norm":
            return parametrizations.spectral_norm(layer)
        if kind == "orthogonal":
            return parametrizations.orthogonal(layer)
        if kind == "pruned":
            return prune.l1_unstructured(layer, "weight", amount=0.5)
        with pytest.warns(FutureWarning, match="deprecated"):
            return nn.utils.weight_norm(layer)

    x = torch.randn(3, 4)
    results = []
    for device in ("cpu", DEV):
        model = build().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(x.to(device)).square().sum()
            loss.backward()
            optimizer.step()
        results.append([loss, model.weight, *model.parameters(), *model.buffers()])
        if kind == "pruned":
            prune.remove(model, "weight")
            assert int((model.weight == 0).sum()) == 8
    assert_same(results[1], results[0], rounded=kind in ("spectral_norm", "orthogonal"))


# Kaiming and the like draw what they draw for this seed, and fixed initialisations equal the CPU's
def test_initialisation() -> None:
    w = torch.empty(4, 4, device=DEV)
    for initialise in (nn.init.kaiming_uniform_, nn.init.xavier_normal_, nn.init.trunc_normal_, nn.init.orthogonal_):
        torch.manual_seed(5)
        first = initialise(w).clone()
        torch.manual_seed(5)
        assert torch.equal(initialise(w), first) and first.std() > 0
    assert torch.equal(nn.init.dirac_(torch.empty(2, 2, 3, device=DEV)).cpu(), nn.init.dirac_(torch.empty(2, 2, 3)))
    assert torch.equal(nn.init.eye_(w).cpu(), torch.eye(4))


# a state dictionary goes between devices both ways, copying or assigning, and takes part in saving
def test_state_dictionaries(tmp_path: Path) -> None:
    cpu = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    cpu(torch.randn(2, 3, 5, 5))
    there = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to(DEV)
    weight = there[0].weight
    there.load_state_dict(cpu.state_dict())
    assert there[0].weight is weight and weight.device == torch.device(DEV)
    state = there.state_dict()
    assert all(torch.equal(state[name].cpu(), value) for name, value in cpu.state_dict().items())

    torch.save(state, tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt", weights_only=True)
    assert {t.device for t in loaded.values()} == {torch.device(DEV)}
    mapped = torch.load(tmp_path / "state.pt", weights_only=True, map_location="cpu", mmap=True)
    assert {t.device.type for t in mapped.values()} == {"cpu"}
    with torch.device("meta"):
        shell = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    shell.load_state_dict(loaded, assign=True)
    assert shell[0].weight.device == torch.device(DEV)
    x = torch.randn(2, 3, 5, 5)
    assert torch.equal(shell.eval()(x.to(DEV)).cpu(), cpu.eval()(x))
    with pytest.raises(RuntimeError, match="size mismatch"):
        there.load_state_dict({**state, "0.bias": torch.zeros(7, device=DEV)})


# the optimizer's state follows the parameters when it is loaded
def test_optimizer_state_moves_to_the_parameters() -> None:
    cpu = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(cpu.parameters(), lr=0.1)
    cpu(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    there = copy.deepcopy(cpu).to(DEV)
    other = torch.optim.Adam(there.parameters(), lr=0.1)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    state = other.state[there.weight]
    assert state["exp_avg"].device == torch.device(DEV) and state["step"].device.type == "cpu"
    for model, step in ((cpu, optimizer), (there, other)):
        step.zero_grad()
        model(torch.full((1, 3), 2.0).to(model.weight.device)).sum().backward()
        step.step()
    assert torch.equal(there.weight.cpu(), cpu.weight)


# tensors exchange what they are, and a move that swaps keeps the module's tensors too
def test_swapping_tensors() -> None:
    a, b = torch.ones(2, device=DEV), torch.zeros(3)
    torch.utils.swap_tensors(a, b)
    assert a.device.type == "cpu" and b.device == torch.device(DEV) and b.cpu().tolist() == [1.0, 1.0]
    model = nn.Linear(2, 2)
    weight, values = model.weight, model.weight.detach().clone()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model.to(DEV)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert model.weight is weight and weight.device == torch.device(DEV)
    assert torch.equal(weight.cpu(), values)


# lazy layers and modules that torch.device or set_default_device put on the device
def test_modules_made_on_the_device() -> None:
    lazy = nn.LazyLinear(3).to(DEV)
    assert lazy(torch.ones(2, 5, device=DEV)).shape == (2, 3)
    assert lazy.weight.device == torch.device(DEV)
    with torch.device(DEV):
        model = nn.Conv1d(2, 3, 3)
    assert model.weight.device == torch.device(DEV)
    assert nn.utils.skip_init(nn.Linear, 2, 2, device=DEV).weight.device == torch.device(DEV)
