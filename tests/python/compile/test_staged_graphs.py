# SPDX-License-Identifier: BSD-3-Clause
"""Compiled graphs on memory that the host can't reach, or is told not to: each is staged once."""

from __future__ import annotations

from pathlib import Path

from finished import Program

PROGRAM = """
    import copy, torch
    from torch import nn
    from torch.nn import functional as F
    assert torch.openreg.operator_stats()["staged_calls"] == 0
    device = torch.device("openreg", torch.openreg.device_count() - 1)

    def staged_graphs():
        return torch.openreg.operator_stats()["staged"].get("openreg::compiled_graph", {}).get("calls", 0)

    torch.manual_seed(0)
    host = nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten(), nn.Linear(24, 5))
    ours = copy.deepcopy(host).to(device)
    x = torch.randn(2, 3, 8)
    for module, where in ((host, x), (ours, x.to(device))):
        torch.compile(module)(where).square().sum().backward()
    assert staged_graphs() == 2  # forward and backward, however many operators they have
    for a, b in zip([*host.parameters(), *host.buffers()], [*ours.parameters(), *ours.buffers()], strict=True):
        assert b.device == device
        torch.testing.assert_close(b.detach().cpu(), a.detach(), rtol=1e-4, atol=1e-5)
        if a.grad is not None:
            assert b.grad.device == device
            torch.testing.assert_close(b.grad.cpu(), a.grad, rtol=1e-4, atol=1e-5)

    # written arguments, views of arguments and of results, tensors of the host, operators that make tensors
    def function(x, y, host):
        x[1:].add_(y[0])
        total = x.sum(0)
        order = torch.randperm(4, device=x.device)
        return x[:2], total, total[1:], host * 2, host.to(x.device) + x, order.sort()[0], x.cpu()

    arguments = [torch.randn(3, 4), torch.randn(6, 4), torch.randn(3, 4)]
    given = [arguments[0].to(device), arguments[1].to(device), arguments[2]]
    before = staged_graphs()
    got = torch.compile(function, fullgraph=True)(*given)
    assert staged_graphs() == before + 1
    expected = function(*arguments)
    for a, b, where in zip(expected, got, ("openreg",) * 3 + ("cpu", "openreg", "openreg", "cpu"), strict=True):
        assert b.device.type == where
        torch.testing.assert_close(b.cpu(), a)
    torch.testing.assert_close(given[0].cpu(), arguments[0])
    assert got[0].untyped_storage().data_ptr() == given[0].untyped_storage().data_ptr()
    assert got[2].untyped_storage().data_ptr() == got[1].untyped_storage().data_ptr()

    # gradients in memory of what only the backward pass reads; the cells' operators, which the CPU lacks; an operator
    # with a kernel for the device alone
    @torch.library.custom_op("tests::doubled", mutates_args=(), device_types="openreg")
    def doubled(t: torch.Tensor) -> torch.Tensor:
        return t * 2

    doubled.register_fake(torch.empty_like)
    doubled.register_autograd(lambda ctx, grad: doubled(grad))
    for function in (lambda t: t.softmax(-1).cumsum(0), nn.GRUCell(4, 4), nn.LSTMCell(4, 4), lambda t: doubled(t).exp()):
        x = torch.randn(4, 4)
        on_device = function.to(device) if isinstance(function, nn.Module) else function
        gradients = []
        for work in (on_device, torch.compile(on_device, fullgraph=True)):
            y = x.to(device, copy=True).requires_grad_()
            sum(t.sum() for t in work(y)).backward()
            gradients.append(y.grad)
        torch.testing.assert_close(*gradients)

    # random numbers are the device's, and follow its seed
    drop = torch.compile(lambda t: F.dropout(t, 0.5))
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(drop(torch.ones(256, device=device)).cpu())
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])

    # what a checkpoint computes again draws the same
    for draw in (lambda t: F.dropout(t, 0.5), lambda t: t * torch.poisson(t.detach())):
        x = torch.ones(8, 16, device=device, requires_grad=True)
        got = torch.compile(lambda t: torch.utils.checkpoint.checkpoint(draw, t, use_reentrant=False))(x)
        got.sum().backward()
        assert torch.equal(got, x.grad)

    # weights that are constants of the graph: copied once
    host = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    ours = copy.deepcopy(host).to(device)
    x = torch.randn(3, 4)
    with torch.no_grad(), torch._inductor.config.patch(freezing=True):
        frozen = torch.compile(lambda t: ours(t) + torch.tensor([1.0, 2.0], device=device))
        for _ in range(2):
            before = torch.openreg.operator_stats()["staged"]["openreg::compiled_graph"]
            got = frozen(x.to(device))
            after = torch.openreg.operator_stats()["staged"]["openreg::compiled_graph"]
            assert got.device == device
            torch.testing.assert_close(got.cpu(), host(x) + torch.tensor([1.0, 2.0]))
        assert after["calls"] == before["calls"] + 1
        assert after["bytes"] == before["bytes"] + x.nbytes + got.nbytes
    print("done")
"""


# a driver whose memory the host can't reach: results as the CPU's, one staged call for each graph
def test_graphs_on_a_driver_without_host_memory(python: Program, toy_library: Path) -> None:
    done = python(
        PROGRAM,
        timeout=280,
        OPENREG_DRIVER_LIBRARIES=f"toy:{toy_library}",
    )
    assert done.stdout.split()[-1] == "done"


# the same where staging was asked for
def test_graphs_on_sim_told_to_stage(python: Program) -> None:
    assert python(PROGRAM, timeout=280, OPENREG_OPERATORS="staged").stdout.split()[-1] == "done"
