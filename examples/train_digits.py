# SPDX-License-Identifier: BSD-3-Clause
"""Trains a small convolutional network on handwritten digits: on the CPU, on one openreg device, and on all of them.

The images are the 1,797 that ship inside scikit-learn. The three runs start from the same weights and see the same
batches, so the CPU and one openreg device must agree; with several devices each has a replica of the model in a thread
of its own, works on its share of every batch, and the gradients are averaged.

    python examples/train_digits.py [--epochs 15] [--output demo-output]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

TOLERANCES = (1e-4, 1e-4)  # of accuracy and loss, between the CPU and one openreg device that runs the CPU's kernels
# A GPU sums in another order, and its convolutions round their factors to 10 bits (TF32): a relative error of 1e-3 in
# every layer moves the loss by 0.016 after 15 epochs.
GPU_TOLERANCES = (0.01, 0.05)
# A driver's own kernels sum in another order too, with all bits of their factors: 15 epochs move the loss by 0.002.
DRIVER_TOLERANCES = (0.01, 0.02)
WANTED_ACCURACY = 0.97


def tolerances() -> tuple[float, float]:
    """How far accuracy and loss of the CPU and of openreg:0 may be apart, once operators have run."""
    stats = torch.openreg.operator_stats()
    if stats["gpu_allocator"] is not None:
        return GPU_TOLERANCES
    return DRIVER_TOLERANCES if "aten::convolution" in stats["native"] else TOLERANCES


class DigitsNet(nn.Module):
    """Two convolutions and two linear layers for images of 8 by 8."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Returns a score per class for images of shape (batch, 1, 8, 8)."""
        return self.classifier(self.features(images))


@dataclass
class Run:
    """What one training run gave."""

    name: str
    losses: list[float] = field(default_factory=list)  # mean training loss of each epoch
    accuracies: list[float] = field(default_factory=list)  # test accuracy after each epoch
    test_loss: float = float("nan")
    seconds: float = 0.0

    @property
    def accuracy(self) -> float:
        """Test accuracy after the last epoch."""
        return self.accuracies[-1]


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Returns the training and the held-out test images with their labels."""
    data = load_digits()
    split = train_test_split(data.images, data.target, test_size=0.2, stratify=data.target, random_state=0)
    train_images, test_images, train_labels, test_labels = split

    def dataset(images: Any, labels: Any) -> TensorDataset:
        scaled = torch.tensor(images, dtype=torch.float32).unsqueeze(1) / 16.0
        return TensorDataset(scaled, torch.tensor(labels, dtype=torch.int64))

    return dataset(train_images, train_labels), dataset(test_images, test_labels)


class Replica:
    """A copy of the model on one device, with its optimizer and a thread that works on that device."""

    def __init__(self, device: torch.device, state: dict[str, torch.Tensor], epochs: int, steps: int) -> None:
        self.device = device
        self.thread = ThreadPoolExecutor(max_workers=1, initializer=self._enter)
        self.model: nn.Module = DigitsNet()
        self.model.load_state_dict(state)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=epochs * steps)
        # The optimizer holds these very parameters: moving the model moves them in place.
        self.run(lambda: self.model.to(self.where)).result()

    @property
    def where(self) -> torch.device | str:
        """Where this replica's tensors go: in its thread the current device is its own."""
        return "privateuseone" if self.device.type != "cpu" else self.device

    def _enter(self) -> None:
        if self.device.type != "cpu":
            torch.openreg.set_device(self.device)  # of this thread, for as long as it lives

    def run(self, work: Callable[[], Any]) -> Any:
        """Queues work for this replica's thread and returns its future."""
        return self.thread.submit(work)

    def backward(self, images: torch.Tensor, labels: torch.Tensor, batch: int) -> float:
        """Computes this replica's part of the gradient of a batch's mean loss, and returns its part of the loss."""
        self.model.train()
        images = images.to(self.where, non_blocking=True)
        labels = labels.to(self.where, non_blocking=True)
        loss = F.cross_entropy(self.model(images), labels, reduction="sum") / batch
        self.optimizer.zero_grad()
        loss.backward()
        return loss.item()

    def step(self) -> None:
        """Applies the gradients."""
        self.optimizer.step()
        self.schedule.step()

    @torch.no_grad()
    def evaluate(self, loader: DataLoader) -> tuple[float, float]:
        """Returns the mean loss and the accuracy over a data set."""
        self.model.eval()
        loss, right, count = 0.0, 0, 0
        for images, labels in loader:
            images, labels = images.to(self.where, non_blocking=True), labels.to(self.where, non_blocking=True)
            scores = self.model(images)
            loss += F.cross_entropy(scores, labels, reduction="sum").item()
            right += int((scores.argmax(1) == labels).sum())
            count += len(labels)
        return loss / count, right / count


def average_gradients(replicas: Sequence[Replica]) -> None:
    """Makes every replica's gradients the sum of all parts: each part is divided by the whole batch already."""
    if len(replicas) == 1:
        return
    for parameters in zip(*(replica.model.parameters() for replica in replicas), strict=True):
        first = parameters[0]
        # The guard makes the sums, which are made without naming a device, land beside the first replica.
        with torch.openreg.device_of(first):
            for other in parameters[1:]:
                first.grad += other.grad.to(first.device)
        for other in parameters[1:]:
            other.grad.copy_(first.grad)


def train(
    devices: Sequence[torch.device],
    name: str,
    epochs: int = 15,
    batch_size: int = 64,
    seed: int = 0,
    progress: bool = True,
) -> Run:
    """Trains one model, with a replica on each of the devices.

    Args:
        devices: The devices, all openreg, or the CPU alone.
        name: Title of the run.
        epochs: Passes over the training images.
        batch_size: Images of one step, over all devices.
        seed: Seed of the weights and of the order of the images.
        progress: Shows a progress bar.

    Returns:
        Losses and accuracies.
    """
    torch.manual_seed(seed)
    state = DigitsNet().state_dict()
    train_set, test_set = digits()
    pinned = devices[0].type != "cpu"
    order = torch.Generator().manual_seed(seed)
    train_loader = DataLoader(train_set, batch_size, shuffle=True, generator=order, pin_memory=pinned)
    test_loader = DataLoader(test_set, batch_size=360, pin_memory=pinned)

    replicas = [Replica(device, state, epochs, len(train_loader)) for device in devices]
    run = Run(name)
    start = time.perf_counter()
    with tqdm(total=epochs * len(train_loader), desc=f"{name:<24}", unit="step", disable=not progress) as bar:
        for _ in range(epochs):
            losses = []
            for images, labels in train_loader:
                shares = zip(
                    replicas, images.chunk(len(replicas)), labels.chunk(len(replicas)), strict=False
                )  # a short last batch may have fewer shares than there are replicas
                parts = [
                    replica.run(lambda r=replica, x=x, y=y: r.backward(x, y, len(images)))  # noqa: B023
                    for replica, x, y in shares
                ]
                losses.append(sum(part.result() for part in parts))
                average_gradients(replicas[: len(parts)])
                for replica in replicas[len(parts) :]:
                    for mine, first in zip(replica.model.parameters(), replicas[0].model.parameters(), strict=True):
                        mine.grad = first.grad.to(replica.device)
                for step in [replica.run(replica.step) for replica in replicas]:
                    step.result()
                bar.update()
            run.losses.append(sum(losses) / len(losses))
            run.test_loss, accuracy = replicas[0].run(lambda: replicas[0].evaluate(test_loader)).result()
            run.accuracies.append(accuracy)
            bar.set_postfix(loss=f"{run.losses[-1]:.4f}", accuracy=f"{100 * accuracy:.2f} %")
    run.seconds = time.perf_counter() - start
    for replica in replicas:
        replica.thread.shutdown()
    return run


def plot(runs: Sequence[Run], path: Path) -> None:
    """Saves the learning curves of the runs as a picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    styles = [{"lw": 4, "alpha": 0.35}, {"lw": 1.5, "ls": "--"}, {"lw": 1.5}]
    for index, run in enumerate(runs):
        style = styles[index % len(styles)]
        epochs = range(1, len(run.losses) + 1)
        left.plot(epochs, run.losses, label=run.name, **style)
        right.plot(epochs, [100 * accuracy for accuracy in run.accuracies], label=run.name, **style)
    left.set(xlabel="epoch", ylabel="training loss", yscale="log", title="Loss")
    right.set(xlabel="epoch", ylabel="test accuracy, %", title="Accuracy on 360 held-out images")
    right.axhline(100 * WANTED_ACCURACY, color="gray", lw=0.8, ls=":")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the comparison and prints it.

    Args:
        arguments: Command line; sys.argv[1:] if None.

    Returns:
        The exit status: 0 if the accuracy is reached and the CPU and one openreg device agree.
    """
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("demo-output"))
    options = parser.parse_args(arguments)

    import torch_openreg  # noqa: F401  (an installed package is found by `import torch` itself)

    name = torch.device("privateuseone").type  # openreg, or that of the installed driver
    count = torch.openreg.device_count()
    if count == 0:
        print(f"There is no {name} device; `openreg-info` explains why.", file=sys.stderr)
        return 1
    print(f"torch {torch.__version__}, {count} {name} device(s), {torch.get_num_threads()} CPU threads")
    for index in range(count):
        properties = torch.openreg.get_device_properties(index)
        print(f"  {name}:{index}  {properties.name}, driver {properties.driver}, {properties.total_memory >> 20} MiB")

    devices = [torch.device(name, index) for index in range(count)]
    settings = {"epochs": options.epochs, "seed": options.seed}
    cpu = train([torch.device("cpu")], "cpu", **settings)
    one = train(devices[:1], f"{name}:0", **settings)
    runs = [cpu, one]
    if count > 1:
        runs.append(train(devices, f"{name}:0-{count - 1}, {count} threads", **settings))

    print(f"\n{'run':<26}{'test accuracy':>14}{'test loss':>12}{'seconds':>10}")
    for run in runs:
        print(f"{run.name:<26}{100 * run.accuracy:>12.2f} %{run.test_loss:>12.6f}{run.seconds:>10.1f}")
    accuracy_gap, loss_gap = abs(cpu.accuracy - one.accuracy), abs(cpu.test_loss - one.test_loss)
    print(f"cpu and {name}:0 differ by {accuracy_gap:.1e} in accuracy and {loss_gap:.1e} in loss")

    print(f"\n{'memory, KiB':<14}{'allocated':>11}{'peak':>9}{'reserved':>10}{'blocks ever':>13}")
    for index in range(count):
        stats = torch.openreg.memory_stats(index)
        print(
            f"{f'{name}:{index}':<14}"
            f"{torch.openreg.memory_allocated(index) >> 10:>11}"
            f"{torch.openreg.max_memory_allocated(index) >> 10:>9}"
            f"{torch.openreg.memory_reserved(index) >> 10:>10}"
            f"{stats['allocation.all.allocated']:>13}"
        )

    picture = options.output / "digits.png"
    plot(runs, picture)
    print(f"\nLearning curves: {picture}")

    failures = [
        f"{run.name}: accuracy {run.accuracy:.4f} is below {WANTED_ACCURACY}"
        for run in runs
        if run.accuracy < WANTED_ACCURACY
    ]
    accuracy_limit, loss_limit = tolerances()
    if accuracy_gap > accuracy_limit or loss_gap > loss_limit:
        failures.append(f"cpu and {name}:0 differ by more than {accuracy_limit} in accuracy or {loss_limit} in loss")
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
