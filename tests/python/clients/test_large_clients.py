# SPDX-License-Identifier: BSD-3-Clause
"""bitsandbytes, torchrl and fastai, which are large: requirements-clients-more.txt, installed by `make library-suites`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

DEV = torch.device("openreg:1")

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"),
]


# its default kernels: 4 and 8 bits, their gradients, files, and the optimizers with a state of 8 bits
def test_bitsandbytes(tmp_path: Path) -> None:
    library = pytest.importorskip("bitsandbytes")
    torch.manual_seed(0)
    x, weights = torch.randn(4, 64), {"weight": torch.randn(32, 64), "bias": torch.zeros(32)}

    def loaded(layer: nn.Module, device: Any) -> nn.Module:
        layer.load_state_dict(weights)
        return layer.to(device)

    def four_bits(device: Any, kind: str) -> tuple[torch.Tensor, ...]:
        layer = loaded(library.nn.Linear4bit(64, 32, quant_type=kind, compute_dtype=torch.float32), device)
        assert layer.weight.dtype == torch.uint8 and layer.weight.device == torch.device(device)
        moved = x.clone().to(device).requires_grad_()
        out = layer(moved)
        out.square().sum().backward()
        stored = layer.state_dict()
        parts = {name.removeprefix("weight."): part for name, part in stored.items() if name.startswith("weight.")}
        again = library.nn.Params4bit.from_prequantized(stored["weight"], parts, device=device)
        return out, moved.grad, library.functional.dequantize_4bit(again.data, again.quant_state)

    for kind in ("nf4", "fp4"):
        for there, here in zip(four_bits(DEV, kind), four_bits("cpu", kind), strict=True):
            assert there.device == DEV
            torch.testing.assert_close(there.cpu(), here)
    # The CPU keeps what comes in as it is; openreg rounds it to 8 bits, as GPUs do.
    whole = loaded(nn.Linear(64, 32), "cpu")(x)
    eight = loaded(library.nn.Linear8bitLt(64, 32, has_fp16_weights=False), DEV)(x.half().to(DEV))
    assert (eight.cpu().float() - whole).abs().max() < 0.05 * whole.abs().max()
    for optimizer in ("Adam8bit", "AdamW8bit", "Lion8bit", "PagedAdamW8bit"):
        results = []
        for device in ("cpu", DEV):
            torch.manual_seed(0)
            layer = nn.Linear(64, 128).to(device)
            stepper = getattr(library.optim, optimizer)(layer.parameters(), lr=1e-2)
            for _ in range(3):
                stepper.zero_grad()
                layer(x.to(device)).square().sum().backward()
                stepper.step()
            results.append(layer.weight.detach().cpu())
        torch.testing.assert_close(*results)


# containers of tensors, an environment and a replay buffer on the device
def test_torchrl() -> None:
    pytest.importorskip("torchrl")
    pytest.importorskip("gymnasium")
    from tensordict import TensorDict
    from torchrl.collectors import Collector
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
    from torchrl.envs import GymEnv
    from torchrl.modules import MLP, QValueActor
    from torchrl.objectives import DQNLoss

    held = TensorDict({"a": torch.ones(3, 4), "b": {"c": torch.arange(3)}}, [3]).to(DEV)
    assert held.device == held["b", "c"].device == DEV and torch.stack([held, held]).cpu()["a"].shape == (2, 3, 4)
    results = []
    for device in (torch.device("cpu"), DEV):
        torch.manual_seed(0)
        environment = GymEnv("CartPole-v1", device=device)
        environment.set_seed(0)
        layers = MLP(in_features=4, out_features=2, num_cells=[16]).to(device)
        actor = QValueActor(layers, in_keys=["observation"], spec=environment.action_spec)
        loss = DQNLoss(actor, action_space=environment.action_spec, delay_value=True)
        optimizer = torch.optim.Adam(loss.parameters(), 1e-3)
        kept = TensorDictReplayBuffer(storage=LazyTensorStorage(64, device=device), batch_size=8)
        losses = []
        # No device here: with one it raises "Non supported device" for all but a few types.
        collector = Collector(environment, actor, frames_per_batch=32, total_frames=64)
        for frames in collector:
            value = loss(frames)["loss"]
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
            kept.extend(frames)
            losses.append(value.item())
        collector.shutdown()
        assert kept.sample().device == device
        results.append(losses)
    assert results[1] == pytest.approx(results[0], rel=1e-5)


# a Learner whose loaders name the device, in training, from a file, in prediction
def test_fastai(tmp_path: Path) -> None:
    pytest.importorskip("fastai")
    from fastai.data.core import DataLoaders
    from fastai.data.load import DataLoader
    from fastai.learner import Learner

    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    pairs = list(zip(x, (x.sum(1) > 0).long(), strict=True))
    results = []

    def predicted(learner: Any) -> torch.Tensor:
        return learner.get_preds()[0]

    for device in (torch.device("cpu"), DEV):
        torch.manual_seed(0)
        loaders = DataLoaders(DataLoader(pairs, bs=16), DataLoader(pairs, bs=16), device=device)
        learner = Learner(loaders, nn.Linear(4, 2), loss_func=nn.CrossEntropyLoss(), path=tmp_path)
        with learner.no_logging():
            learner.fit(2, 0.1)
            results.append(list(learner.recorder.values[-1]))
            assert learner.model.weight.device == device
            learner.save("model")
            expected = predicted(learner)
            nn.init.zeros_(learner.model.weight)
            learner.load("model")
            torch.testing.assert_close(predicted(learner), expected)
    assert results[1] == pytest.approx(results[0], rel=1e-5)
