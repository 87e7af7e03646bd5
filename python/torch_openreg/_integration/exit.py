# SPDX-License-Identifier: BSD-3-Clause
"""Lets the threads that may want the GIL come to rest before the interpreter ends: autograd's and those of collectives.

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
A thread that is in a hook of the user's may never come back: it is given a few seconds, as PyTorch's own engine gives.

A collective ends in a thread of gloo's, which lets go of the program's tensors then. A process that ends right behind a
collective, without destroy_process_group(), waits for that, as long at most: a peer may never come.
"""

from __future__ import annotations

import atexit
import glob
import os
import warnings

from _torch_openreg_device_name import device_name

from torch_openreg import _C

_LIMIT_SECONDS = 5.0
_installed = False


def engine_threads() -> int:
    """The number of devices that the engine has a thread for; it starts them together, at the first device backward."""
    count = 0
    for path in glob.glob("/proc/self/task/*/comm"):
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                count += file.read().startswith("pt_autograd_")
        except OSError:  # that thread has ended
            continue
    return count


def settle_autograd(seconds: float | None = None) -> bool:
    """Returns when every device thread of the autograd engine has finished what it was given, or the time is over.

    Args:
        seconds: The longest time to wait; five seconds if None.

    Returns:
        Whether they have finished.
    """
    threads = 0 if _C._isInBadFork() else engine_threads()
    return threads == 0 or _C._settle_autograd(threads, _LIMIT_SECONDS if seconds is None else seconds)


def settle_collectives(seconds: float | None = None) -> bool:
    """Returns when every collective that was begun has been completed in its threads, or the time is over.

    Args:
        seconds: The longest time to wait; five seconds if None.

    Returns:
        Whether they have been completed.
    """
    if _C._isInBadFork() or not _C._part_is_loaded("distributed"):
        return True
    from torch_openreg import _C_distributed

    return _C_distributed._settle_collectives(_LIMIT_SECONDS if seconds is None else seconds)


def warn_of_devices_without_thread() -> None:
    """Warns if there are more devices now than when the engine made its threads: it makes no more."""
    threads, count = engine_threads(), _C._get_device_count()
    if 0 < threads < count:
        warnings.warn(
            f"PyTorch has made its autograd threads for {threads} device(s), and there are {count} now: backward() "
            f"fails on {device_name()}:{threads} and above. Choose drivers before the first backward().",
            UserWarning,
            stacklevel=3,
        )


def let_threads_sleep() -> None:
    """Tells the autograd engine not to wake its threads when the process ends."""
    os.environ.setdefault("TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT", "0")


def _at_exit() -> None:
    let_threads_sleep()
    settle_collectives()
    settle_autograd()


def install() -> None:
    """Registers the step with ``atexit``. Repeating it changes nothing."""
    global _installed
    if not _installed:
        _installed = True
        atexit.register(_at_exit)
