# SPDX-License-Identifier: BSD-3-Clause
"""The operators that models need as kernels: the table of docs/native-kernels.md is what a device without kernels counts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

MODELS = """
import json, torch, torch.nn.functional as F
from torch import nn

class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(32, 16), nn.Embedding(8, 16)
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(3))
        self.qkv, self.out, self.head = nn.Linear(16, 48), nn.Linear(16, 16), nn.Linear(16, 32, bias=False)
        self.mlp = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))

    def forward(self, indices):
        x = self.tokens(indices) + self.places(torch.arange(indices.shape[1], device=indices.device))
        q, k, v = self.qkv(self.norms[0](x)).view(2, 8, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(2, 8, 16))
        x = x + self.mlp(self.norms[1](x))
        return self.head(self.norms[2](x)).flatten(0, 1)

def counted(function):
    torch.openreg.reset_operator_stats()
    function()
    stats = torch.openreg.operator_stats()
    assert not stats["aliased_calls"]
    return sorted({*stats["staged"], *stats["native"]})

layers = (nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 4))
models = {
    "MLP": (nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), torch.randn(4, 8)),
    "CNN": (nn.Sequential(*layers), torch.randn(4, 1, 8, 8)),
    "transformer": (Transformer(), torch.randint(32, (2, 8))),
}
result = {}
for name, (model, inputs) in models.items():
    model, inputs = model.to("openreg"), inputs.to("openreg")
    outputs = []
    forward = counted(lambda: outputs.append(model(inputs)))
    target = torch.zeros(outputs[0].shape[0], dtype=torch.long).to("openreg")
    losses = []
    loss = counted(lambda: losses.append(F.cross_entropy(outputs[0], target)))
    result[name] = {"forward": forward, "loss": loss, "backward": counted(losses[0].backward)}
    for key, make in (("SGD", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)), ("AdamW", torch.optim.AdamW)):
        optimizer = make(model.parameters())
        optimizer.step()  # makes its state
        result[name][key] = counted(optimizer.step)
print(json.dumps(result))
"""
# Counted, and no kernel's work: the choice of an attention kernel; a fill that the driver's fill() does.
NO_KERNELS = {"_fused_sdp_choice", "zero"}


def plain(name: str) -> str:
    """The name of an operator without its namespace, its overload and the mark of an in-place one."""
    base = name.removeprefix("aten::").partition(".")[0]
    return base.removesuffix("_")


# each name in the table is an operator, and each row has those that were counted, neither more nor less
def test_the_table_is_what_is_counted(root: Path, python: Callable[..., Any]) -> None:
    page = (root / "docs/native-kernels.md").read_text()
    lines = page[page.index("## What a model needs") : page.index("## What it costs")].splitlines()
    cells = [line.split("|")[1:-1] for line in lines if line.startswith("| ")][1:]
    table = {re.findall(r"\w+", row[0])[0]: [re.findall(r"`([^`]+)`", cell) for cell in row[1:]] for row in cells}
    for name in (name for row in table.values() for cell in row for name in cell):
        base, _, overload = name.partition(".")
        packet = getattr(torch.ops.aten, base if hasattr(torch.ops.aten, base) else f"{base}_")
        assert overload in packet.overloads() or overload == "", name

    written = {key: [{plain(name) for name in cell} for cell in row] for key, row in table.items()}
    done = python(MODELS, OPENREG_OPERATORS="staged", OPENREG_DRIVERS="sim")
    counts = json.loads(done.stdout.splitlines()[-1])
    for model, counted in counts.items():
        got = {part: {plain(name) for name in names} - NO_KERNELS for part, names in counted.items()}
        forward, training = written[model]
        assert got["forward"] == forward, model
        assert got["loss"] == written["the"][0], model
        # Training is what is added: an operator of both is in the first column.
        assert got["backward"] - forward - written["the"][1] == training - forward, model
        assert written["the"][1] <= got["backward"], model
        for optimizer in ("SGD", "AdamW"):
            assert got[optimizer] == written[optimizer][0], model
