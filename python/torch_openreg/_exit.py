"""Lets autograd's device threads come to rest before the interpreter ends.

The autograd engine runs the backward pass of a device in a thread per device (``pt_autograd_0``, ...). Such a thread
takes the GIL when it starts, and may take it after ``backward()`` has returned to its caller, for the tensors that it
lets go of. A thread that asks for the GIL while the interpreter ends is unwound by Python through C++ frames, which
aborts the process: a script that ends soon after its last ``backward()`` dies with SIGABRT (pytorch/pytorch#190489).

It happens again when the engine's destructor, which runs after the interpreter has gone, wakes the threads so that
they end: before Python 3.12 a thread that ends takes the GIL. TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT=0, PyTorch's own
variable, makes the destructor leave them asleep; it is set as the interpreter ends, unless the user has set it.

The remedy for the rest is a round trip through each of those threads. A thread takes its next task only after it has
finished and cleaned up the one before, so once a task of ours has been run, the thread has started wholly and holds
nothing of the user's. The task itself owns nothing that Python knows of, allocates no memory, and calls no driver.
"""

from __future__ import annotations

import atexit
import glob
import os

from torch_openreg import _C

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
    """Returns when every device thread of the autograd engine has finished what it was given."""
    if not _C._isInBadFork() and _engine_is_running():
        _C._settle_autograd()


def let_threads_sleep() -> None:
    """Tells the autograd engine not to wake its threads when the process ends."""
    os.environ.setdefault("TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT", "0")


def _at_exit() -> None:
    let_threads_sleep()
    settle_autograd()


def install() -> None:
    """Registers the step with ``atexit``. Repeating it changes nothing."""
    global _installed
    if not _installed:
        _installed = True
        atexit.register(_at_exit)
