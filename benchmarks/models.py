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


def digits() -> nn.Module:
    """The network of examples/train_digits.py."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


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


class Decoder(nn.Module):
    """One token at a time with a static cache of keys and values: 4 layers, 128 wide, 4 heads, 256 tokens, 256 places."""

    def __init__(self, width: int = 128, layers: int = 4, heads: int = 4, tokens: int = 256, length: int = 256) -> None:
        super().__init__()
        self.heads = heads
        self.tokens = nn.Embedding(tokens, width)
        self.projections = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.outputs = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.head = nn.Linear(width, tokens)
        self.register_buffer("cache", torch.zeros(layers, 2, 1, heads, length, width // heads))
        self.register_buffer("mask", torch.full((1, 1, 1, length), float("-inf")))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))
        self.register_buffer("token", torch.zeros(1, 1, dtype=torch.long))

    @torch.no_grad()
    def forward(self) -> None:
        """Reads the token, enters its keys and values at the place, and puts the likeliest token in its stead."""
        self.mask.index_fill_(3, self.place, 0.0)
        x = self.tokens(self.token)
        for layer, (projection, output) in enumerate(zip(self.projections, self.outputs, strict=True)):
            q, k, v = projection(x).view(1, 1, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            keys, values = self.cache[layer]
            keys.index_copy_(2, self.place, k)
            values.index_copy_(2, self.place, v)
            found = nn.functional.scaled_dot_product_attention(q, keys, values, attn_mask=self.mask)
            x = x + output(found.transpose(1, 2).reshape(1, 1, -1))
        self.token.copy_(self.head(x).argmax(-1))
        self.place.add_(1).remainder_(self.mask.shape[-1])


class Lstm(nn.Module):
    """Two layers of 128, and a classifier of the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(64, 128, num_layers=2, batch_first=True)
        self.head = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Takes (batch, length, 64)."""
        return self.head(self.lstm(x)[0][:, -1])
