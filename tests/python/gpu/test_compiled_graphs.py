# SPDX-License-Identifier: BSD-3-Clause
"""torch.compile on a device that is a GPU: graphs run in one operator, on tensors of the GPU.

Without Triton the graph's operators run as they are, on tensors of the type cuda. With Triton, Inductor's and Triton's own
code for GPUs runs over the stand-ins, from the graph to the launch of a kernel that was compiled for one (fake_triton_gpu.py).
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

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


# once a device has been used, torch.compile() without a backend is for the GPU; "inductor" knows a GPU by its name alone, so
# the graph runs on the host, which is said once
def test_the_default_backend_is_for_the_gpu(gpu: Program) -> None:
    gpu(
        """
        def function(x):
            return x.sin() + 1

        import torch._dynamo
        assert torch.compiler.get_default_backend() == "inductor"
        x = torch.randn(8)
        near = x.to(D)
        assert torch.compiler.get_default_backend() == "openreg"
        torch.openreg.reset_operator_stats()
        for options in ({}, {"mode": "max-autotune"}, {"options": {"epilogue-fusion": False}}):
            torch._dynamo.reset()
            compiled = torch.compile(function, **options)
            torch.testing.assert_close(compiled(near).cpu(), function(x))
        assert figures() == {}
        torch.testing.assert_close(compiled(x), function(x))  # of the host, by "inductor" with the same options
        with pytest.raises(Exception, match="no_such_option"):
            torch.compile(lambda x: x + 2, options={"no_such_option": 1})(near)

        compiled = torch.compile(function, backend="inductor")
        with pytest.warns(UserWarning, match='openreg:0 runs on the host.*backend="openreg"'):
            torch.testing.assert_close(compiled(near).cpu(), function(x))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            compiled(near)
        assert figures()["openreg::compiled_graph"] == 2
        """
    )


# with Triton: kernels for the GPU's architecture are launched on the stream that is current in openreg, after what is queued
# there, with the addresses of openreg's tensors, and nothing else waits; results are in openreg's memory
@pytest.mark.client
def test_triton_kernels_are_launched_on_openregs_stream(triton_gpu: Program) -> None:
    triton_gpu(
        """
        from torch._inductor.utils import run_and_get_code

        def function(x, y):
            return x.sin() + y * 2, (x * y).sum()

        compiled = torch.compile(function, mode="reduce-overhead", fullgraph=True)  # with the backend that is default here
        x, y = torch.randn(1000), torch.randn(1000)
        side = torch.openreg.Stream()
        ours = x.to(D), torch.zeros(1000, device=D)
        torch.openreg.synchronize()
        torch.openreg.reset_operator_stats()
        before = torch.openreg.memory_allocated()
        fake.fake_torch_cuda_set_delay(20_000)
        with torch.openreg.stream(side):
            ours[1].copy_(y.pin_memory(), non_blocking=True)  # which takes its time
            (first, total), (code,) = run_and_get_code(compiled, *ours)
        torch.openreg.current_stream().wait_stream(side)
        assert first.device == total.device == D
        torch.testing.assert_close(first.cpu(), x.sin() + y * 2)
        torch.testing.assert_close(total.cpu(), (x * y).sum(), rtol=1e-4, atol=1e-4)

        assert "@triton.jit" in code and "_cuda_getCurrentRawStream" in code and "torch.cuda._DeviceGuard(0)" in code
        assert gpu.launches and {launch.target for launch in gpu.launches} == {".target sm_90a"}
        assert {launch.stream for launch in gpu.launches} == {side.native_handle}
        used = {pointer for launch in gpu.launches for pointer in launch.pointers}
        assert {ours[0].data_ptr(), ours[1].data_ptr(), first.data_ptr(), total.data_ptr()} <= used
        assert figures() == {} and figures("aliased") == {}, torch.openreg.operator_stats()
        assert torch.openreg.memory_allocated() == before + 4096 + 512
        assert fake.fake_torch_cuda_violations() == 0

        # on the other device
        there = torch.device("openreg:1")
        moved = compiled(x.to(there), y.to(there))
        assert moved[0].device == there
        torch.testing.assert_close(moved[0].cpu(), x.sin() + y * 2)

        # a GPU that is too old for Triton: operators run as they are
        import fake_triton_gpu
        from torch.utils._triton import has_triton
        fake_triton_gpu.PROPERTIES.major = 6
        has_triton.cache_clear()
        torch._dynamo.reset()
        count = len(gpu.launches)
        torch.testing.assert_close(compiled(*ours)[0].cpu(), x.sin() + y * 2)
        assert len(gpu.launches) == count
        """
    )


# a model's training, sizes that are known when it runs, dropout, arguments that are written; the second compilation is a hit
# in PyTorch's cache of graphs
@pytest.mark.client
@pytest.mark.long
def test_triton_kernels_train_a_model(triton_gpu: Program) -> None:
    triton_gpu(
        """
        import copy
        from torch import nn
        from torch._dynamo.utils import counters

        torch.manual_seed(0)
        host = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))
        ours = copy.deepcopy(host).to(D)
        compiled = torch.compile(ours, backend="openreg", fullgraph=True)
        for size in (4, 7, 9):
            x = torch.randn(size, 6)
            torch.openreg.reset_operator_stats()
            got = compiled(x.to(D))
            assert got.device == D
            torch.testing.assert_close(got.detach().cpu(), host(x).detach(), rtol=1e-4, atol=1e-5)
            got.square().sum().backward()
            host(x).square().sum().backward()
        for a, b in zip(host.parameters(), ours.parameters(), strict=True):
            assert b.grad.device == D
            torch.testing.assert_close(b.grad.cpu(), a.grad, rtol=1e-4, atol=1e-5)
        assert figures() == {} and gpu.launches

        def function(x, host):
            x.add_(1)
            return x * host, torch.ones(2, device=x.device), x.sum()

        for hits in (0, 1):
            counters.clear()
            torch._dynamo.reset()
            x = torch.zeros(3, device=D)
            doubled, ones, total = torch.compile(function, backend="openreg")(x, torch.tensor(2.0))
            assert x.tolist() == [1] * 3 and doubled.tolist() == [2] * 3 and ones.tolist() == [1, 1]
            assert total.item() == 3 and ones.device == D and counters["inductor"]["fxgraph_cache_hit"] == hits

        drop = torch.compile(lambda x: nn.functional.dropout(x, 0.5), backend="openreg")
        x = torch.ones(1000, device=D)
        results = []
        for seed in (3, 3, None):
            if seed is not None:
                torch.manual_seed(seed)
            results.append(drop(x).cpu())
        assert set(results[0].tolist()) == {0, 2} and 300 < int((results[0] == 0).sum()) < 700
        assert torch.equal(results[0], results[1]) and not torch.equal(results[1], results[2])
        """
    )
