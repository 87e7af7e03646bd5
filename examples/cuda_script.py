# SPDX-License-Identifier: BSD-3-Clause
"""A training script as people write them for CUDA: mixed precision, pinned batches, timing, a checkpoint.

It knows nothing of openreg. On a machine without CUDA::

    python -m torch_openreg.contrib.cuda_to_openreg examples/cuda_script.py
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def data(seed: int) -> TensorDataset:
    """Points of ten classes, each around a centre of its own."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(10, 32, generator=torch.Generator().manual_seed(0)) * 2
    labels = torch.randint(0, 10, (640,), generator=generator)
    return TensorDataset(centres[labels] + torch.randn(640, 32, generator=generator), labels)


def main() -> None:
    """Trains, saves, loads and tests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()

    assert torch.cuda.is_available(), "this script needs a GPU"
    torch.manual_seed(0)
    torch.cuda.manual_seed_all(0)
    torch.backends.cudnn.benchmark = True
    torch.cuda.set_device(0)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    print("device:", torch.cuda.get_device_name(device), "of", torch.cuda.device_count())

    model = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.cuda.amp.GradScaler()
    loader = DataLoader(data(1), batch_size=64, shuffle=True, pin_memory=True)

    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    copies = torch.cuda.Stream()
    start.record()
    for _ in range(options.epochs):
        for images, labels in loader:
            with torch.cuda.stream(copies):
                images = images.cuda(non_blocking=True)
                labels = labels.to("cuda", non_blocking=True)
            torch.cuda.current_stream().wait_stream(copies)
            images.record_stream(torch.cuda.current_stream())
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device_type="cuda", dtype=torch.float16):
                loss = F.cross_entropy(model(images), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    end.record()
    torch.cuda.synchronize()
    assert start.elapsed_time(end) > 0
    assert torch.cuda.max_memory_allocated() > 0

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pt"
        torch.save({"model": model.state_dict(), "rng": torch.cuda.get_rng_state()}, path)
        model.load_state_dict(torch.load(path, map_location="cuda:0", weights_only=True)["model"])

    model.eval()
    points, labels = (part.cuda() for part in data(2).tensors)
    with torch.no_grad():
        right = (model(points).argmax(1) == labels).float().mean().item()
    assert points.is_cuda
    assert next(model.parameters()).is_cuda
    torch.cuda.empty_cache()
    print(f"accuracy: {right:.3f}")
    assert right > 0.9


if __name__ == "__main__":
    main()
