# SPDX-License-Identifier: BSD-3-Clause
"""Of all tests of graphs."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def capture_stream() -> None:
    "Streams come from a pool, in turn: of those that one test takes none is the stream that it captures."
    if not hasattr(torch._C, "_acceleratorGraph"):
        pytest.skip("PyTorch has graphs of accelerators since 2.13")
    torch.openreg.graph.default_capture_stream = None
