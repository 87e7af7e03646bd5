# SPDX-License-Identifier: BSD-3-Clause
"""The installed driver: it is found, keeps the rules of openreg/driver.h, and trains. Run by pytest."""

import subprocess
import sys

import pytest
import torch


@pytest.fixture(scope="module", autouse=True)
def opencl() -> None:
    """Chooses the driver."""
    try:
        torch.ocl.use_driver("opencl")
    except RuntimeError as error:
        pytest.skip(f"no OpenCL platform: {error}")


def test_keeps_the_rules() -> None:
    """Every function of the table, by openreg-check."""
    command = [sys.executable, "-m", "torch_openreg", "check", "opencl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_trains_as_the_cpu_does() -> None:
    """The same steps on both devices give the same weights, by kernels of the driver alone."""
    weights = []
    for device in ("cpu", "ocl"):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        inputs = torch.randn(64, 8)
        model, inputs = model.to(device), inputs.to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        with torch.ocl.operator_policy("forbid"):
            for _ in range(20):
                optimizer.zero_grad()
                loss = (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
                loss.backward()
                optimizer.step()
        weights.append([parameter.detach().cpu() for parameter in model.parameters()])
    for on_cpu, on_device in zip(*weights, strict=True):
        torch.testing.assert_close(on_device, on_cpu, rtol=1e-4, atol=1e-5)
