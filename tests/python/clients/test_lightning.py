# SPDX-License-Identifier: BSD-3-Clause
"""Lightning's Trainer through torch_openreg.contrib.lightning: one device, mixed precision, checkpoints, and DDP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

lightning = pytest.importorskip("lightning")

from lightning.pytorch.callbacks import Callback, DeviceStatsMonitor, ModelCheckpoint  # noqa: E402
from lightning.pytorch.loggers import CSVLogger  # noqa: E402
from lightning.pytorch.utilities.exceptions import MisconfigurationException  # noqa: E402

from torch_openreg.contrib.lightning import OpenRegAccelerator, OpenRegStrategy  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


class Net(lightning.LightningModule):
    """A classifier with batch statistics that notes each loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
        self.losses: list[float] = []
        self.seen: set[tuple[torch.device, torch.dtype]] = set()

    def _loss(self, batch: Any) -> torch.Tensor:
        x, y = batch
        scores = self.body(x)
        self.seen.add((x.device, scores.dtype))
        return nn.functional.cross_entropy(scores, y)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        loss = self._loss(batch)
        self.log("loss", loss)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        self.log("validation", self._loss(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def data() -> DataLoader:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(24, 8, generator=generator)
    return DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=8)


def trainer(folder: Path, **settings: Any) -> Any:
    quiet: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    return lightning.Trainer(**{"default_root_dir": folder, "enable_checkpointing": False, **quiet, **settings})


def trained(folder: Path, **settings: Any) -> Net:
    model = Net()
    trainer(folder, max_epochs=2, gradient_clip_val=1.0, **settings).fit(model, data(), data())
    return model


# training and validation on the device that the Trainer names: the CPU's losses and weights, bit for bit
def test_training_equals_the_cpu(tmp_path: Path) -> None:
    expected = trained(tmp_path, accelerator="cpu")
    got = trained(tmp_path, accelerator="openreg", strategy="openreg", devices=[1])
    assert got.seen == {(torch.device("openreg:1"), torch.float32)}
    assert got.losses == expected.losses
    for a, b in zip(got.state_dict().values(), expected.state_dict().values(), strict=True):
        assert torch.equal(a.cpu(), b)


# precision= means openreg's autocast, not CUDA's, and loss scaling where it is due
@pytest.mark.parametrize(("precision", "dtype"), [("bf16-mixed", torch.bfloat16), ("16-mixed", torch.float16)])
def test_mixed_precision(tmp_path: Path, precision: Any, dtype: torch.dtype) -> None:
    model = Net()
    run = trainer(tmp_path, accelerator="openreg", strategy="openreg", devices=1, precision=precision, max_epochs=4)
    assert run.precision_plugin.device == "openreg"
    assert (run.precision_plugin.scaler is not None) == (dtype == torch.float16)
    run.fit(model, data())
    assert model.seen == {(torch.device("openreg:0"), dtype)}
    assert model.losses[-1] < model.losses[0]
    assert {p.dtype for p in model.parameters()} == {torch.float32}


# a checkpoint written on a device continues on it, and evaluates on the CPU
def test_checkpoints_resume(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"accelerator": "openreg", "strategy": "openreg", "devices": 1}
    whole = Net()
    trainer(tmp_path, max_epochs=4, **settings).fit(whole, data())

    saver = ModelCheckpoint(dirpath=tmp_path, filename="half", save_last=False)
    first = Net()
    trainer(tmp_path, max_epochs=2, callbacks=[saver], enable_checkpointing=True, **settings).fit(first, data())
    second = Net()
    trainer(tmp_path, max_epochs=4, **settings).fit(second, data(), ckpt_path=tmp_path / "half.ckpt")
    assert first.losses + second.losses == whole.losses

    loaded = Net.load_from_checkpoint(tmp_path / "half.ckpt", map_location="cpu")
    result = trainer(tmp_path, accelerator="cpu").validate(loaded, data(), verbose=False)
    there = trainer(tmp_path, **settings).validate(first, data(), verbose=False)
    assert result == there


# the statistics of the device are logged by Lightning's own monitor, and batches are moved with all they hold
def test_statistics_and_prediction(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"accelerator": "openreg", "strategy": "openreg", "devices": "1,", "max_epochs": 1}

    class Where(Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, number: int) -> None:
            assert {part.device for part in batch} == {torch.device("openreg:1")}

    logger = CSVLogger(tmp_path, flush_logs_every_n_steps=1)
    run = trainer(
        tmp_path, **settings | {"logger": logger, "callbacks": [DeviceStatsMonitor(), Where()], "log_every_n_steps": 1}
    )
    run.fit(Net(), data())
    header = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()[0]
    assert "allocated_bytes.all.current" in header
    assert OpenRegAccelerator().get_device_stats("openreg:1")["allocated_bytes.all.peak"] > 0


# Fabric: a loop of one's own on the device, the CPU's losses, and openreg's autocast
def test_fabric_equals_the_cpu() -> None:
    def losses(device: str, **settings: Any) -> tuple[list[float], set[Any]]:
        fabric = lightning.Fabric(**settings)
        fabric.launch()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
        seen = set()
        model[2].register_forward_hook(lambda module, inputs, result: seen.add((result.device, result.dtype)))
        wrapped, optimizer = fabric.setup(model, torch.optim.Adam(model.parameters(), lr=1e-2))
        found = []
        for x, y in fabric.setup_dataloaders(data()):
            assert x.device == torch.device(device)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(wrapped(x), y)
            fabric.backward(loss)
            fabric.clip_gradients(wrapped, optimizer, max_norm=1.0)
            optimizer.step()
            found.append(fabric.all_reduce(loss).item())
        return found, seen

    ours: dict[str, Any] = {"accelerator": "openreg", "strategy": "openreg", "devices": [1]}
    expected, _ = losses("cpu", accelerator="cpu", devices=1)
    assert losses("openreg:1", **ours) == (expected, {(torch.device("openreg:1"), torch.float32)})
    got, seen = losses("openreg:1", precision="bf16-mixed", **ours)
    assert seen == {(torch.device("openreg:1"), torch.bfloat16)}
    assert got == pytest.approx(expected, abs=2e-2) and got != expected


# what can't be meant is told, the silent fall to the CPU above all
def test_misconfigurations(tmp_path: Path) -> None:
    with pytest.raises(MisconfigurationException, match="strategy='openreg'"):
        trainer(tmp_path, accelerator="openreg", devices=1, max_epochs=1).fit(Net(), data())
    with pytest.raises(MisconfigurationException, match="openreg_ddp"):
        trainer(tmp_path, accelerator="openreg", strategy="openreg", devices=2)
    for devices in ([0, 9], [1, 1], "a", 9):
        with pytest.raises(MisconfigurationException, match=r"a'|\[0, 9\]|\[1, 1\]|0, 1, 2, 3"):
            trainer(tmp_path, accelerator="openreg", strategy="openreg", devices=devices)
    assert OpenRegAccelerator.parse_devices(-1) == OpenRegAccelerator.parse_devices("-1") == [0, 1]
    assert OpenRegAccelerator.parse_devices("1,") == [1]
    assert OpenRegStrategy("openreg:1").parallel_devices == [torch.device("openreg:1")]


DDP = """
import sys, json
import torchvision_operators
import lightning, torch
import torch_openreg.contrib.lightning
from torch.utils.data import DataLoader, TensorDataset

class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(8, 3)
        self.devices = set()

    def training_step(self, batch, _):
        self.devices.add(str(batch[0].device))
        loss = torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])
        self.log("loss", loss, sync_dist=True)
        return loss

    def on_train_end(self):
        self.gathered = self.all_gather(torch.tensor([10.0 + self.global_rank], device=self.device)).flatten().tolist()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

generator = torch.Generator().manual_seed(1)
x = torch.randn(16, 8, generator=generator)
data = DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=4)
model = Net()
trainer = lightning.Trainer(
    **json.loads(sys.argv[1]), max_epochs=2, logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, data)
with open(f"{sys.argv[2]}.{trainer.global_rank}", "w") as file:
    json.dump({
        "devices": sorted(model.devices),
        "weights": [p.tolist() for p in model.parameters()],
        "loss": trainer.callback_metrics["loss"].item(),
        "gathered": model.gathered,
    }, file)
"""


# two processes that Lightning starts, a device each: what averaged gradients make of the weights on the CPU
@pytest.mark.long
def test_ddp_averages_gradients(script: Any, tmp_path: Path) -> None:
    settings = json.dumps({"accelerator": "openreg", "strategy": "openreg_ddp", "devices": 2})
    script(DDP, settings, str(tmp_path / "report"))
    reports = [json.loads((tmp_path / f"report.{rank}").read_text()) for rank in (0, 1)]

    torch.manual_seed(0)
    layer = nn.Linear(8, 3)
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
    y = (x.sum(1) > 0).long()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    # Lightning deals the samples out to the ranks, shuffled.
    samplers = [DistributedSampler(TensorDataset(x), 2, rank, seed=0) for rank in (0, 1)]
    for epoch in range(2):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        shares = [list(sampler) for sampler in samplers]
        for first in (0, 4):
            optimizer.zero_grad()
            parts = [share[first : first + 4] for share in shares]
            loss = torch.stack([nn.functional.cross_entropy(layer(x[part]), y[part]) for part in parts]).mean()
            loss.backward()
            optimizer.step()
    for rank, report in enumerate(reports):
        assert report["devices"] == [f"openreg:{rank}"]
        assert report["gathered"] == [10.0, 11.0]
        assert report["loss"] == pytest.approx(loss.item(), rel=1e-6)
        assert report["weights"] == reports[0]["weights"]
        for got, expected in zip(report["weights"], layer.parameters(), strict=True):
            torch.testing.assert_close(torch.tensor(got), expected.detach())
