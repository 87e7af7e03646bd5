# SPDX-License-Identifier: BSD-3-Clause
"""A script that ends right after backward() must end with its own status."""

from __future__ import annotations

import os
import sys
import textwrap
import threading

import pytest
from finished import finished

from torch_openreg import _C_distributed

# Python frames in the backward pass make the engine's threads want the GIL to the very end.
SCRIPT = textwrap.dedent(
    """
    import torch

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, g):
            return 2 * g

    model = torch.nn.Linear(4, 4).to("openreg:{index}")
    x = torch.randn(2, 4, device="openreg:{index}", requires_grad=True)
    x.register_hook(lambda g: g + 0)
    Twice.apply(model(x)).sum().backward()
    print("done")
    """
)


# 6 short scripts, with both cores busy
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ending_right_after_backward() -> None:
    codes: list[int] = []
    lock = threading.Lock()

    def runs(worker: int) -> None:
        for turn in range(2):
            done = finished(
                [sys.executable, "-c", SCRIPT.format(index=(worker + turn) % 2)],
                status=None,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
            with lock:
                codes.append(done.returncode if done.stdout == "done\n" else -1000)

    workers = [threading.Thread(target=runs, args=(worker,)) for worker in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert codes == [0] * 6


# the step at exit starts no threads and opens no driver in a process that never ran a backward pass
def test_nothing_happens_at_exit_without_backward(python) -> None:
    python(
        """
        import os, threading, torch
        from torch_openreg import _C
        from torch_openreg._integration import exit as _exit
        before = len(os.listdir("/proc/self/task"))
        _exit.settle_autograd()
        assert len(os.listdir("/proc/self/task")) == before
        assert not _C._is_initialized()
        """
    )


# the step leaves no trace, and can be repeated
def test_settling_changes_nothing(python) -> None:
    python(
        """
        import torch
        from torch_openreg._integration import exit as _exit
        torch.ones(2, device="openreg:1", requires_grad=True).sum().backward()
        assert _exit.engine_threads() == 2
        before = [torch.openreg.memory_stats(i)["allocation.all.allocated"] for i in (0, 1)]
        torch.set_grad_enabled(False)
        for _ in range(3):
            _exit.settle_autograd()
        assert before == [torch.openreg.memory_stats(i)["allocation.all.allocated"] for i in (0, 1)]
        assert torch.openreg.current_device() == 0
        """
    )


# a daemon thread that never comes back from a hook in its backward pass doesn't keep the process, as on the CPU
@pytest.mark.timeout(60)
@pytest.mark.parametrize("wait", ["threading.Event().wait()", "time.sleep(3600)"])
def test_the_process_ends_although_a_thread_is_in_backward(python, wait: str) -> None:
    python(
        f"""
        import threading, time
        import torch
        from torch_openreg._integration import exit as _exit
        is_inside = threading.Event()
        def hook(gradient):
            is_inside.set()
            {wait}
        def work():
            x = torch.ones(2, device="openreg", requires_grad=True)
            y = 2 * x
            y.register_hook(hook)
            y.sum().backward()
        threading.Thread(target=work, daemon=True).start()
        assert is_inside.wait(20)
        assert _exit.settle_autograd(0.2) is False
        _exit._LIMIT_SECONDS = 0.5
        """,
        timeout=40,
    )


# waiting for collectives: what is no number of seconds is a TypeError
@pytest.mark.parametrize("arguments", [(), (None,), ("1",), (1, 2)])
def test_settling_collectives_takes_a_number(arguments: tuple[object, ...]) -> None:
    with pytest.raises(TypeError):
        _C_distributed._settle_collectives(*arguments)
    assert _C_distributed._settle_collectives(0.5) is True
