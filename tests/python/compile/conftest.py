# SPDX-License-Identifier: BSD-3-Clause
"""Each test compiles anew; what the tests before it have built is in PyTorch's cache."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
