# SPDX-License-Identifier: BSD-3-Clause
"""Whatever drives the devices, PyTorch sees the same thing."""

from __future__ import annotations

from typing import Any

import pytest

CHECKS = """
    name = openreg.default_driver()
    assert name == {name!r}, name
    driver = openreg.get_driver()
    assert openreg.device_count() == driver.device_count == len(driver.devices()) == 2
    assert [str(device.torch_device) for device in driver.devices()] == ["openreg:0", "openreg:1"]

    x = torch.arange(1000, dtype=torch.float64)
    a = x.to("openreg:0")
    b = a.to("openreg:1")
    assert torch.equal(b.cpu(), x) and torch.equal((b * 2)[::3].cpu(), (x * 2)[::3])
    try:
        a + b
    except RuntimeError as error:
        assert "same device" in str(error)
    else:
        raise AssertionError

    stream, event = openreg.Stream("openreg:1"), openreg.Event(enable_timing=True)
    with openreg.stream(stream):
        c = b + 1
        event.record()
    event.synchronize()
    assert event.query() and torch.equal(c.cpu(), x + 1)

    torch.manual_seed(0)
    layers = [torch.nn.Linear(8, 4), torch.nn.Linear(8, 4)]
    layers[1].load_state_dict(layers[0].state_dict())
    layers[1].to("openreg:1")
    data = torch.randn(16, 8)
    for layer, batch in zip(layers, (data, data.to("openreg:1"))):
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        layer(batch).square().mean().backward()
        optimizer.step()
    assert torch.equal(layers[0].weight, layers[1].weight.cpu())
    del a, b, c
    assert openreg.memory_allocated(0) == 0
"""


# acceptance 5.1
@pytest.mark.parametrize("name", ["sim", "cuda", "hip", "toy", "full_toy"])
def test_every_driver_passes_the_same_checks(python: Any, toy: str, full_toy: str, name: str) -> None:
    """Copies, errors, streams, events, training and memory: simulated devices, mock GPUs, seven functions or all."""
    python(
        CHECKS.format(name=name),
        OPENREG_DRIVERS=name,
        OPENREG_USE_MOCK_GPU="cuda,hip",
        OPENREG_MOCK_NUM_GPUS="2",
        OPENREG_DRIVER_LIBRARIES=f"toy:{toy},full_toy:{full_toy}",
    )


# acceptance 5.32
def test_a_mock_gpu_needs_nothing_of_the_vendor(python: Any) -> None:
    """No library is opened, so there is no version that could be checked; the same variable names one that is unfit."""
    python(
        """
        info = openreg.driver_info("cuda")
        assert openreg.is_functional("cuda")
        info = openreg.driver_info("cuda")
        assert info["source"] == "mock" and info["path"] == "", info
        assert "cuda" not in openreg.driver_errors()
        assert "libcuda.so" not in open("/proc/self/maps").read()
        """,
        OPENREG_USE_MOCK_GPU="cuda",
    )
