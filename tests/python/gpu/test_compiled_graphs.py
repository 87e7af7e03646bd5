# SPDX-License-Identifier: BSD-3-Clause
"""torch.compile on a device that is a GPU: graphs run in one operator, on tensors of the GPU.

Over the stand-in there is no Triton: the graph's operators run as they are, on tensors of the type cuda.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable

Program = Callable[..., "subprocess.CompletedProcess[str]"]


# backend="openreg": forward and backward run on the GPU, results and gradients are the CPU's, memory is openreg's
def test_graphs_run_on_the_gpu(gpu: Program) -> None:
    gpu(
        """
        import copy
        from torch import nn
        torch.manual_seed(0)
        host = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))
        ours = copy.deepcopy(host).to(D)
        compiled = torch.compile(ours, backend="openreg", fullgraph=True)
        for size in (4, 7, 9):  # the second and third with a size that is known when it runs
            x = torch.randn(size, 6)
            torch.openreg.reset_operator_stats()
            got = compiled(x.to(D))
            assert figures() == {} and figures("aliased") == {}, torch.openreg.operator_stats()
            assert got.device == D
            torch.testing.assert_close(got.detach().cpu(), host(x).detach(), rtol=1e-4, atol=1e-5)
            got.square().sum().backward()
            host(x).square().sum().backward()
        assert figures() == {}
        for a, b in zip(host.parameters(), ours.parameters(), strict=True):
            assert b.grad.device == D
            torch.testing.assert_close(b.grad.cpu(), a.grad, rtol=1e-4, atol=1e-5)

        # arguments that are written, new tensors, tensors of the host
        def function(x, host):
            x.add_(1)
            return x * host, torch.ones(2, device=x.device), x.sum()

        compiled = torch.compile(function, backend="openreg")
        x = torch.zeros(3, device=D)
        doubled, ones, total = compiled(x, torch.tensor(2.0))
        assert x.tolist() == [1] * 3 and doubled.tolist() == [2] * 3 and ones.tolist() == [1, 1] and total.item() == 3
        assert ones.device == D

        before = torch.openreg.memory_allocated()
        kept = compiled(torch.zeros(1 << 20, device=D), torch.tensor(2.0))
        assert torch.openreg.memory_allocated() >= before + (4 << 20)
        assert figures() == {}
        """
    )


# the default backend knows a GPU by its name alone: the graph runs on the host, which is said once
def test_the_default_backend_says_that_it_runs_on_the_host(gpu: Program) -> None:
    gpu(
        """
        compiled = torch.compile(lambda x: x.sin() + 1)
        x = torch.randn(8)
        with pytest.warns(UserWarning, match='openreg:0 runs on the host.*backend="openreg"'):
            torch.testing.assert_close(compiled(x.to(D)).cpu(), x.sin() + 1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            compiled(x.to(D))
        assert figures()["openreg::compiled_graph"] == 2
        """
    )
