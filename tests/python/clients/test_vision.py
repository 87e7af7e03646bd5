# SPDX-License-Identifier: BSD-3-Clause
"""torchvision and timm: networks trained, images transformed, on the device."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

pytest.importorskip("torchvision")

import torchvision
from torchvision import tv_tensors
from torchvision.models.feature_extraction import create_feature_extractor
from torchvision.transforms import v2

DEV = "openreg:1"

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


def steps(model: nn.Module, device: str, size: int, count: int = 2) -> list[torch.Tensor]:
    """Training steps; the losses, then the weights and batch statistics."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(2, 3, size, size, generator=generator).to(device)
    y = torch.tensor([1, 3], device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    found = []
    for _ in range(count):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    return [*found, *model.state_dict().values()]


def assert_trains_as_on_the_cpu(model: nn.Module, size: int) -> None:
    there = copy.deepcopy(model).to(DEV)
    expected, got = steps(model.train(), "cpu", size), steps(there.train(), DEV, size)
    for a, b in zip(got, expected, strict=True):
        assert a.device == torch.device(DEV)
        assert torch.equal(a.cpu(), b)


# training steps of a ResNet-18, batch norm included, bit for bit; channels last too
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_resnet_18(memory_format: torch.memory_format) -> None:
    torch.manual_seed(0)
    model = torchvision.models.resnet18(weights=None, num_classes=5).to(memory_format=memory_format)
    assert_trains_as_on_the_cpu(model, 32)


# other kinds of network: depthwise convolutions, attention
@pytest.mark.parametrize(
    "build",
    [
        lambda: torchvision.models.mobilenet_v3_small(weights=None, num_classes=5, dropout=0.0),
        lambda: torchvision.models.VisionTransformer(32, 8, 2, 2, 16, 32, num_classes=5),
    ],
    ids=["mobilenet", "vit"],
)
def test_other_networks(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    assert_trains_as_on_the_cpu(build(), 32)


# evaluation in inference mode and the intermediate results that torchvision's tools take out
def test_inference_and_features() -> None:
    torch.manual_seed(0)
    model = torchvision.models.resnet18(weights=None, num_classes=5).eval()
    x = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        expected = model(x)
        assert torch.equal(copy.deepcopy(model).to(DEV)(x.to(DEV)).cpu(), expected)
    extractor = create_feature_extractor(model.to(DEV), ["layer2", "fc"])
    with torch.no_grad():
        features = extractor(x.to(DEV))
    assert features["layer2"].device == torch.device(DEV)
    assert torch.equal(features["fc"].cpu(), expected)


TRANSFORMS: dict[str, Callable[[], Any]] = {
    "normalize": lambda: v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.2] * 3)]),
    "resize": lambda: v2.Resize((9, 11), antialias=True),
    "resize uint8 nearest": lambda: v2.Resize((9, 11), interpolation=v2.InterpolationMode.NEAREST),
    "crop and flip": lambda: v2.Compose([v2.RandomResizedCrop(8, antialias=True), v2.RandomHorizontalFlip(1.0)]),
    "affine": lambda: v2.RandomAffine(30, (0.1, 0.2), (0.8, 1.2), 10),
    "perspective": lambda: v2.RandomPerspective(p=1.0),
    "jitter": lambda: v2.ColorJitter(0.4, 0.4, 0.4, 0.1),
    "blur": lambda: v2.GaussianBlur(3),
    "posterize": lambda: v2.Compose([v2.RandomPosterize(3, p=1.0), v2.RandomEqualize(p=1.0), v2.RandomInvert(p=1.0)]),
    "elastic": lambda: v2.ElasticTransform(5.0, 1.0),
    "augment": lambda: v2.RandAugment(2),
    "erase": lambda: v2.RandomErasing(p=1.0),
    "grayscale and pad": lambda: v2.Compose([v2.Grayscale(3), v2.Pad(2, padding_mode="reflect")]),
}
# Torchvision resizes bytes as bytes on the CPU, and as float32, rounded at the end, on all other devices.
ROUNDED = ("resize", "crop and flip")


# transforms of images on the device; what they draw, they draw on the host
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_equal_the_cpu(name: str) -> None:
    generator = torch.Generator().manual_seed(3)
    image = torch.randint(0, 256, (3, 16, 16), dtype=torch.uint8, generator=generator)
    results = []
    for device in ("cpu", DEV):
        torch.manual_seed(4)
        results.append(TRANSFORMS[name]()(tv_tensors.Image(image.to(device))))
    expected, got = results
    assert isinstance(got, tv_tensors.Image)
    assert got.device == torch.device(DEV) and got.dtype == expected.dtype
    atol = 1 if name in ROUNDED else 0
    assert_close(got.as_subclass(torch.Tensor).cpu(), expected.as_subclass(torch.Tensor), rtol=0, atol=atol)


# images, boxes and masks together, and batches mixed on the device
def test_transforms_of_samples() -> None:
    results = []
    for device in ("cpu", DEV):
        sample = {
            "image": tv_tensors.Image(torch.arange(3 * 8 * 8, dtype=torch.float32).reshape(3, 8, 8).to(device) / 192),
            "boxes": tv_tensors.BoundingBoxes([[1, 1, 4, 5]], format="XYXY", canvas_size=(8, 8), device=device),
            "mask": tv_tensors.Mask(torch.eye(8, dtype=torch.uint8).to(device)),
            "label": 3,
        }
        torch.manual_seed(1)
        flipped = v2.Compose([v2.RandomHorizontalFlip(1.0), v2.Resize(4), v2.SanitizeBoundingBoxes(labels_getter=None)])
        done = flipped(sample)
        assert isinstance(done["boxes"], tv_tensors.BoundingBoxes) and done["label"] == 3
        torch.manual_seed(2)
        batch = torch.stack([done["image"], done["image"] * 2])
        mixed, labels = v2.MixUp(num_classes=3)(batch, torch.tensor([0, 2], device=device))
        parts = [done["image"], done["boxes"], done["mask"], mixed, labels]
        assert {p.device for p in parts} == {torch.device(device)}
        results.append([torch.as_tensor(p).cpu() for p in parts])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


# networks of timm
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("resnet10t", {}),
        ("vit_tiny_patch16_224", {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}),
        ("convnext_atto", {"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32)}),
    ],
)
def test_timm(name: str, settings: dict[str, Any]) -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    assert_trains_as_on_the_cpu(timm.create_model(name, pretrained=False, num_classes=5, **settings), 32)
