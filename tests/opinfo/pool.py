# SPDX-License-Identifier: BSD-3-Clause
"""Worker processes that take one item a line and answer each by a line; one that crashes or hangs costs its item."""

from __future__ import annotations

import math
import os
import select
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue

STARTUP_SECONDS = 300.0


class LostError(Exception):
    """The process was lost; its words say how."""


class Worker:
    """A process, started when first needed and again after it has ended.

    Args:
        command: Starts it; its first line says that it is ready.
        environment: Its variables.
        log: What it writes to standard error goes here.
    """

    def __init__(self, command: list[str], environment: dict[str, str], log: Path | None = None) -> None:
        self._command = command
        self._environment = environment
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    def ask(self, item: str, seconds: float, deadline: float = math.inf) -> str:
        """The process's answer.

        Raises:
            LostError: It has crashed or takes longer than `seconds`, or than until the deadline.
        """
        try:
            process = self._started(deadline)
            assert process.stdin is not None
            print(item, file=process.stdin, flush=True)
            return self._answer(process, seconds, deadline)
        except TimeoutError:
            self.stop()
            raise LostError("hung") from None
        except (BrokenPipeError, EOFError):
            raise LostError(f"crashed, status {self.stop()}{self._last_words()}") from None

    def stop(self) -> int | None:
        """Ends the process; its status."""
        process, self._process = self._process, None
        if process is None:
            return None
        try:
            process.communicate(timeout=5)  # closes its standard input
        except subprocess.TimeoutExpired:
            process.kill()
        return process.wait()

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines() if self._log is not None else []
        return f": {lines[-1][:200]}" if lines else ""

    def _started(self, deadline: float) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            with open(self._log or os.devnull, "w") as errors:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    env=self._environment,
                )
            self._answer(self._process, STARTUP_SECONDS, deadline)
        return self._process

    @staticmethod
    def _answer(process: subprocess.Popen[str], seconds: float, deadline: float) -> str:
        assert process.stdout is not None
        left = min(seconds, max(deadline - time.monotonic(), 1.0))
        if not select.select([process.stdout], [], [], left)[0]:
            raise TimeoutError
        line = process.stdout.readline()
        if not line:
            raise EOFError
        return line


def ask_all(
    items: Iterable[str],
    workers: list[Worker],
    seconds: float,
    deadline: float = math.inf,
) -> Iterator[tuple[str, str | LostError]]:
    """Asks each item of one of the workers until the deadline, by time.monotonic(); answers as they come."""
    queue: SimpleQueue[str] = SimpleQueue()
    for item in items:
        queue.put(item)
    answers: SimpleQueue[tuple[str, str | LostError] | None] = SimpleQueue()

    def work(worker: Worker) -> None:
        try:
            while time.monotonic() < deadline:
                item = queue.get_nowait()
                try:
                    answers.put((item, worker.ask(item, seconds, deadline)))
                except LostError as lost:
                    if time.monotonic() < deadline:
                        answers.put((item, lost))
        except Empty:
            pass
        finally:
            worker.stop()
            answers.put(None)

    for worker in workers:
        threading.Thread(target=work, args=[worker], daemon=True).start()
    for _ in workers:
        while (answer := answers.get()) is not None:
            yield answer
