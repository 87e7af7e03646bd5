# SPDX-License-Identifier: BSD-3-Clause
"""The models whose training steps are timed, built from random weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    """A residual block of two convolutions."""

    def __init__(self, inputs: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, channels, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != channels:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Adds the body's result to its input."""
        return F.relu(self.body(x) + self.shortcut(x))


def mlp() -> nn.Module:
    """784-256-10."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))


def wide_mlp(width: int) -> nn.Module:
    """Two linear layers of one width, and a classifier."""
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


def small_resnet() -> nn.Module:
    """Three blocks of 32 channels."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        *(Block(32, 32) for _ in range(3)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def resnet18() -> nn.Module:
    """ResNet-18 for images of 32 by 32."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    inputs = 64
    for channels in (64, 128, 256, 512):
        layers += [Block(inputs, channels, 1 if inputs == channels else 2), Block(channels, channels)]
        inputs = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


class Gpt(nn.Module):
    """A decoder: 4 layers, 128 wide, 4 heads, 256 tokens. Takes token ids (batch, length) and gives (batch, 256)."""

    def __init__(self, width: int = 128, layers: int = 4, tokens: int = 256, length: int = 64) -> None:
        super().__init__()
        self.tokens = nn.Embedding(tokens, width)
        self.places = nn.Parameter(torch.randn(length, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, tokens)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Scores of the token that follows, at the last place."""
        x = self.layers(self.tokens(ids) + self.places, mask=self.mask, is_causal=True)
        return self.head(x)[:, -1]


class Lstm(nn.Module):
    """Two layers of 128, and a classifier of the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(64, 128, num_layers=2, batch_first=True)
        self.head = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Takes (batch, length, 64)."""
        return self.head(self.lstm(x)[0][:, -1])
