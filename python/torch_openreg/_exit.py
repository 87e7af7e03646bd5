"""Lets autograd's device threads come to rest before the interpreter ends.

The autograd engine runs the backward pass of a device in a thread per device (``pt_autograd_0``, ...). Such a thread
takes the GIL when it starts, and may take it after ``backward()`` has returned to its caller. A thread that asks for
the GIL while the interpreter ends is unwound by Python through C++ frames, which aborts the process: a script that
ends soon after its last ``backward()`` dies with SIGABRT (pytorch/pytorch#190489).

The remedy is a round trip through each of those threads. A thread takes its next task only after it has finished
and cleaned up the one before, so once a task of ours has been run, the thread has started wholly and holds nothing
of the user's. The task is a backward pass over empty tensors that this module keeps alive: it owns no Python object
that the thread could be the last to drop, allocates no memory, and calls no driver.
"""

from __future__ import annotations

import atexit
import glob
from typing import Any

_kept: list[Any] = []
_installed = False


def _engine_is_running() -> bool:
    """Whether the engine has started its device threads; they start together, at the first device backward."""
    for path in glob.glob("/proc/self/task/*/comm"):
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                if file.read().startswith("pt_autograd_"):
                    return True
        except OSError:  # that thread has ended
            continue
    return False


def settle_autograd() -> None:
    """Returns when every device thread of the autograd engine has finished what it was given. Never raises."""
    from torch_openreg import openreg

    if openreg._is_in_bad_fork() or not _engine_is_running():
        return
    import torch

    for index in range(openreg.device_count()):
        try:
            device = torch.device("openreg", index)
            leaf = torch.empty(0, device=device, requires_grad=True)
            gradient = torch.empty(0, device=device)
            _kept.extend((leaf, gradient))
            torch.autograd.backward([leaf], [gradient])
            _kept.append(leaf.grad)
        except Exception:  # a lost device; the process ends either way
            continue


def install() -> None:
    """Registers the step with ``atexit``. Repeating it changes nothing."""
    global _installed
    if not _installed:
        _installed = True
        atexit.register(settle_autograd)
