# SPDX-License-Identifier: BSD-3-Clause
"""Groups that connect when one of their ranks first uses them.

A group of gloo connects each rank to every other one when it is made, and has three threads. Frameworks make hundreds
of groups and use few: such a group has a ``_LateGloo``, which makes its gloo at the first call. All ranks must connect
at the same time, and those that use the group later, or never, can't know when. So the first rank that uses a group
sends the others a message through the store of the default group: each process with late groups has one thread that
waits there for messages, and connects the groups that they name.
"""

from __future__ import annotations

import _thread
import atexit
import collections
import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.multiprocessing import _set_thread_name

_LONG = timedelta(days=3650)  # a process may use a group for the first time after days
_STOP = ""  # instead of a group's name
_END = 5.0  # seconds that the end of a process waits for what others have asked it for


class _Thread:
    """A thread that isn't in threading's list, where tests of libraries look for threads that a program has left."""

    def __init__(self, run: Callable[[], None], name: str) -> None:
        self._run, self._name = run, name
        self._has_ended = threading.Event()

    def start(self) -> None:
        _thread.start_new_thread(self._main, ())

    def _main(self) -> None:
        try:
            _set_thread_name(self._name)
            self._run()
        finally:
            del self._run  # which may keep this object, and a group
            self._has_ended.set()

    def join(self, timeout: float) -> None:
        self._has_ended.wait(timeout)

    def is_alive(self) -> bool:
        return not self._has_ended.is_set()


class _Watch:
    """The late groups of one default group, in this process."""

    def __init__(self, store: Any, rank: int) -> None:
        from torch.distributed import PrefixStore

        self._rank = rank
        # A client of its own for the thread: a wait keeps everybody else from using it.
        self._ask_store, self._wait_store = (PrefixStore("late groups of openreg", store.clone()) for _ in range(2))
        self._lock = threading.Lock()  # of what follows
        self._times: collections.Counter[str] = collections.Counter()
        # Kept until they are connected: a rank that has dropped a group it never used still lets the others connect it.
        self._gloos: dict[str, Any] = {}
        self._early: set[str] = set()  # asked for before this rank had made them
        self._connecting: set[_Thread] = set()
        self._thread = _Thread(self._run, "openreg:groups")
        self._thread.start()

    def name(self, name: str) -> str:
        """Another one for each group of that name: PyTorch gives the name of a group that is gone to a new one."""
        with self._lock:
            self._times[name] += 1
            return f"{name} {self._times[name]}"

    def add(self, name: str, gloo: Any) -> None:
        with self._lock:
            self._gloos[name] = gloo
            is_asked = name in self._early
            self._early.discard(name)
        if is_asked:
            self._start(name)

    def ask(self, name: str, ranks: Sequence[int]) -> None:
        """Has the other ranks of a group connect it; the first one that uses it does so.

        Raises:
            RuntimeError: One of them has left the default group.
        """
        with self._lock:
            self._gloos.pop(name, None)
        if self._ask_store.add(f"asked {name}", 1) != 1:
            return
        gone = []
        for rank in ranks:
            if rank != self._rank:
                number = self._send(rank, name)
                left = f"{rank} left"
                if self._ask_store.check([left]) and int(self._ask_store.get(left)) < number:
                    gone.append(rank)
        if gone:
            raise RuntimeError(
                f"This group can't connect: of its ranks, {gone} have left torch.distributed. Groups connect at their "
                "first use, for which all of their ranks are needed: call dist.barrier(group) before any rank leaves."
            )

    def stop(self) -> None:
        """Ends the thread, after it has handled all messages that have arrived so far."""
        end = time.monotonic() + _END
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the store may be gone, and the thread with it
                self._send(self._rank, _STOP)
            self._thread.join(timeout=_END)
        with self._lock:
            connecting, gloos = list(self._connecting), self._gloos
            self._gloos = {}
        del gloos  # which keep this object
        for thread in connecting:
            thread.join(timeout=max(0.0, end - time.monotonic()))

    def _send(self, rank: int, name: str) -> int:
        number: int = self._ask_store.add(f"messages to {rank}", 1)
        if name == _STOP:
            self._ask_store.set(f"{rank} left", str(number))
        self._ask_store.set(f"{rank} {number}", name)
        return number

    def _run(self) -> None:
        number = 0
        while True:
            number += 1
            try:
                self._wait_store.wait([f"{self._rank} {number}"], _LONG)
                name = self._wait_store.get(f"{self._rank} {number}").decode()
            except RuntimeError:  # the store is gone
                return
            if name == _STOP:
                return
            with self._lock:
                is_here = name in self._gloos
                if not is_here and self._times[name.rpartition(" ")[0]] < int(name.rpartition(" ")[2]):
                    self._early.add(name)
            if is_here:
                self._start(name)

    def _start(self, name: str) -> None:
        with self._lock:
            gloo = self._gloos.pop(name, None)
        if gloo is None:  # this rank has begun to use it
            return

        def run() -> None:
            with contextlib.suppress(RuntimeError):  # a thread that uses the group here raises the error
                gloo.connect()
            with self._lock:
                self._connecting.discard(thread)

        thread = _Thread(run, "openreg:connect")
        with self._lock:
            self._connecting.add(thread)
        thread.start()


_watches: weakref.WeakKeyDictionary[Any, _Watch] = weakref.WeakKeyDictionary()  # by default group
_lock = threading.Lock()


def _watch() -> _Watch:
    from torch.distributed import distributed_c10d

    group = distributed_c10d._get_default_group()
    with _lock:
        found = _watches.get(group)
        if found is None:
            found = _watches[group] = _Watch(distributed_c10d._get_default_store(), group.rank())
            weakref.finalize(group, found.stop).atexit = False
        return found


@atexit.register
def _stop() -> None:
    for watch in list(_watches.values()):
        watch.stop()


def make(name: str, ranks: Sequence[int], rank: int, timeout: timedelta, connect: Callable[[timedelta], Any]) -> Any:
    """Makes a gloo of a group that connects at its first use; the default group's at once.

    Args:
        name: Name of the group, the same on all ranks.
        ranks: Its ranks of the default group, in the group's order; none: it is the default group.
        rank: Rank of this process in the group.
        timeout: The gloo's timeout, until another one is set.
        connect: Makes the gloo; returns when all ranks have called it.

    Returns:
        What ``_staged_backend()`` takes.
    """
    if not ranks or not torch.distributed.is_initialized():
        return connect(timeout)
    try:
        watch = _watch()
    except RuntimeError:  # a store of the program's own that has no clone()
        return connect(timeout)
    from torch_openreg import _C_distributed

    name = watch.name(name)

    def ask_and_connect(timeout: timedelta) -> Any:
        watch.ask(name, ranks)
        return connect(timeout)

    gloo = _C_distributed._LateGloo(rank, len(ranks), timeout, ask_and_connect)
    watch.add(name, gloo)
    return gloo
