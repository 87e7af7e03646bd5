# SPDX-License-Identifier: BSD-3-Clause
"""Graphs on a driver with kernels of its own: what only queues work is launched, and the rest is called."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from finished import Program

START = """
import ctypes, os
import torch
from capturing import captured

D = torch.device("openreg:1")
torch.openreg.set_device(D)
library = ctypes.CDLL(os.environ["PROGRAM_LIBRARY"])


def by_dispatcher():
    "Calls of the driver's kernels that PyTorch's dispatcher has made, and calls of operators on the host."
    stats = torch.openreg.operator_stats()
    return tuple(sum(count["calls"] for count in stats[way].values()) for way in ("native", "staged"))


def by_driver():
    return sum(library.kernels_driver_calls(i) for i in range(3))


def replayed(graph, times=1):
    "What came of it, counted by the dispatcher and by the driver."
    before, ran = by_dispatcher(), by_driver()
    for _ in range(times):
        graph.replay()
    torch.openreg.synchronize()
    now = by_dispatcher()
    return now[0] - before[0], now[1] - before[1], by_driver() - ran

"""


@pytest.fixture
def program(kernels_library: Path, python: Program) -> Program:
    """Runs code on the driver of three kernels."""
    variables = {"OPENREG_DRIVER_LIBRARIES": f"kernels:{kernels_library}", "PROGRAM_LIBRARY": str(kernels_library)}
    variables |= {"PYTHONPATH": str(Path(__file__).parent)}
    no_races = {"OPENREG_SIM_RACES": None}  # which see each node by itself
    return lambda code: python(START + textwrap.dedent(code), **variables, **no_races)


def test_a_run_of_kernels_is_launched(program: Program) -> None:
    "By the driver alone, on the memory as it is then, also where another graph takes the memory in between."
    program(
        """
        a, b = torch.randn(8, 8, device=D), torch.randn(8, 8, device=D)
        graph, out = captured(lambda: torch.relu(torch.mm(a, b) + b) + a)
        other, _ = captured(lambda: torch.relu(a + b) + 1, pool=graph.pool())
        for seed in range(3):
            a.copy_(torch.randn(8, 8)), b.copy_(torch.randn(8, 8))
            assert replayed(graph) == (0, 0, 4), "nothing was called by the dispatcher"
            expected = torch.relu(torch.mm(a, b) + b) + a
            assert torch.equal(out.cpu(), expected.cpu())
            assert replayed(other, 2) == (0, 0, 6)
        side = torch.openreg.Stream()
        with torch.openreg.stream(side):
            graph.replay()
        side.synchronize()
        assert torch.equal(out.cpu(), expected.cpu())
        graph.reset()
        """
    )


def test_what_the_host_computes_is_called_between(program: Program) -> None:
    "Operators of the host, random numbers, and kernels that refuse what they are given."
    program(
        """
        a, n = torch.randn(6, 6, device=D), torch.arange(6, device=D)

        def work():
            x = torch.relu(a + 1) + a
            x = torch.sigmoid(x)                      # of the host
            x = torch.relu(x + a) + torch.rand_like(a)  # random numbers
            m = (n + n) + n                           # integers: the kernel refuses them
            return torch.relu(x + 1), m

        graph, (x, m) = captured(work)
        for seed in range(3):
            a.copy_(torch.randn(6, 6)), n.copy_(torch.arange(6) * seed)
            torch.openreg.manual_seed(seed)
            graph.replay()
            torch.openreg.manual_seed(seed)
            expected = work()
            assert torch.equal(x.cpu(), expected[0].cpu()) and torch.equal(m.cpu(), expected[1].cpu())
        native, staged, ran = replayed(graph)
        assert native < ran and staged >= 4, (native, staged, ran)
        """
    )


def test_who_watches_operators_sees_each(program: Program) -> None:
    "Rules of the policy, and details, are of calls: then all nodes are called. So is a replay inside another capture."
    program(
        """
        a = torch.randn(4, device=D)
        graph, out = captured(lambda: torch.relu(a + 1) + 2)
        torch.openreg.set_operator_details(True)
        assert replayed(graph) == (3, 0, 3)
        torch.openreg.set_operator_details(False)
        assert replayed(graph) == (0, 0, 3)
        outer, last = captured(lambda: (graph.replay(), out + 1)[1])
        a.fill_(-5)
        assert replayed(outer) == (0, 0, 4), "its nodes are a run of the outer graph's"
        assert last.tolist() == [3] * 4
        """
    )


def test_memory_that_has_moved_is_found_before_a_launch(program: Program) -> None:
    program(
        """
        import pytest
        a = torch.randn(4, device=D)
        graph, out = captured(lambda: torch.relu(a + 1))
        a.untyped_storage().resize_(0)
        with pytest.raises(RuntimeError, match="aten::add.Tensor uses has been freed or moved"):
            graph.replay()
        """
    )


# what is done on a captured stream without PyTorch is an error, and never runs at once
@pytest.mark.parametrize("call", ["fill", "copy", "function", "wait"])
def test_calls_of_the_c_api_on_a_captured_stream_are_refused(program: Program, call: str) -> None:
    program(
        f"""
        from torch_openreg import config
        c = ctypes.CDLL(os.path.join(config.lib_dir(), "libopenreg.so.1"))
        FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        ran = []
        function = FUNCTION(lambda argument: ran.append(1))
        x, y = torch.ones(4, device=D), torch.zeros(4, device=D)

        def address(tensor):
            return ctypes.c_void_p(tensor.data_ptr())

        calls = {{
            "fill": lambda s: c.openreg_memset_async(1, s, address(x), 7, ctypes.c_size_t(16)),
            "copy": lambda s: c.openreg_memcpy_async(1, s, address(x), 1, address(y), 1, ctypes.c_size_t(16)),
            "function": lambda s: c.openreg_stream_launch_host_func(1, s, function, None),
            "wait": lambda s: c.openreg_stream_synchronize(1, s),
        }}
        stream = torch.openreg.Stream()
        handle = ctypes.c_uint64(stream.stream_id)
        try:
            with torch.openreg.graph(torch.openreg.OpenRegGraph(), stream=stream):
                x.add_(1)
                assert calls["{call}"](handle) != 0
        except RuntimeError as error:
            assert "openreg_" in str(error) and "can't be captured at" in str(error), error
        else:
            raise AssertionError("the capture has ended without an error")
        torch.openreg.synchronize()
        assert x.tolist() == [1] * 4 and not ran
        assert calls["{call}"](handle) == 0, "afterwards the stream is anybody's"
        torch.openreg.synchronize()
        """
    )
