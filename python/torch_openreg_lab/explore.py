# SPDX-License-Identifier: BSD-3-Clause
"""The command ``python -m torch_openreg explore``: a program under many orders of the devices' work.

Each run is a process with another ``OPENREG_SIM_SEED``. For the first seed that fails, the command finds the fewest
switches (deviations from the plain order, ``OPENREG_SIM_SWITCHES``) that still fail: the last of them is where to look.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

_SEED, _SWITCHES, _SCHEDULE = "OPENREG_SIM_SEED", "OPENREG_SIM_SWITCHES", "OPENREG_SIM_SCHEDULE"
_MOST_SWITCHES = 1 << 24
_SHOWN_LINES = 25

# How the command ends.
NONE_FAILED, SOME_FAILED, CANNOT_EXPLORE = 0, 1, 2


@dataclass(frozen=True)
class Run:
    """One run of the command."""

    settings: tuple[tuple[str, str], ...]
    status: int  # below 0: the signal that ended it
    seconds: float
    output: str
    is_late: bool

    @property
    def failed(self) -> bool:
        """Whether the command ended with another status than 0."""
        return self.status != 0

    def ending(self) -> str:
        """How it ended, for people."""
        if self.is_late:
            return f"did not end in {self.seconds:.0f} s"
        if self.status < 0:
            return f"was ended by {signal.Signals(-self.status).name}"
        return f"ended with status {self.status}"


class Explorer:
    """Runs one command under many seeds."""

    def __init__(self, command: list[str], schedule: str | None, timeout: float) -> None:
        self._command = command
        self._schedule = schedule
        self._timeout = timeout

    def settings(self, seed: int, switches: int | None = None) -> tuple[tuple[str, str], ...]:
        """The variables of a run."""
        found = {_SEED: seed, _SCHEDULE: self._schedule, _SWITCHES: switches}
        return tuple((name, str(value)) for name, value in found.items() if value is not None)

    def repeats(self, run: Run) -> str:
        """The line for a shell that repeats a run."""
        return " ".join(f"{name}={value}" for name, value in run.settings) + " " + shlex.join(self._command)

    def run(self, seed: int, switches: int | None = None) -> Run:
        """Runs the command once, in a process group of its own, which ends with it."""
        settings = self.settings(seed, switches)
        environment = {name: value for name, value in os.environ.items() if name not in (_SWITCHES, _SCHEDULE)}
        begin = time.monotonic()
        is_late = False
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                self._command,
                env=environment | dict(settings),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status = process.wait(self._timeout)
            except BaseException as error:
                os.killpg(process.pid, signal.SIGKILL)
                status = process.wait()
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                is_late = True
            output.seek(0)
            text = output.read().decode(errors="replace")
        return Run(settings, status, time.monotonic() - begin, text, is_late)

    def fewest_switches(self, seed: int) -> Run | None:
        """The failing run with the fewest switches that a search finds; None if none fails: it is not the order then.

        Failing need not grow with the number, so this is a number that fails, beside one that doesn't, below any that
        was tried.
        """
        passes, fails = 0, 1
        found = self.run(seed, fails)
        while not found.failed:
            passes, fails = fails, fails * 2
            if fails > _MOST_SWITCHES:
                return None
            found = self.run(seed, fails)
        while fails - passes > 1:
            middle = (passes + fails) // 2
            run = self.run(seed, middle)
            if run.failed:
                found, fails = run, middle
            else:
                passes = middle
        return found


def _run_all(explorer: Explorer, arguments: argparse.Namespace) -> list[tuple[int, Run]]:
    """Runs the seeds, ``--jobs`` of them at once, and reports each that fails. Returns all runs, by seed."""
    end = None if arguments.time is None else time.monotonic() + arguments.time
    seeds = iter(range(arguments.first_seed, arguments.first_seed + arguments.seeds))
    done: list[tuple[int, Run]] = []
    stop = threading.Event()
    with ThreadPoolExecutor(arguments.jobs) as pool:
        running: dict[Future[Run], int] = {}

        def start_one() -> None:
            is_over = stop.is_set() or (end is not None and time.monotonic() >= end)
            seed = None if is_over else next(seeds, None)
            if seed is not None:
                running[pool.submit(explorer.run, seed)] = seed

        for _ in range(arguments.jobs):
            start_one()
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                seed, run = running.pop(future), future.result()
                done.append((seed, run))
                if run.failed:
                    print(f"seed {seed}: {run.ending()}", flush=True)
                    if arguments.stop_at_first:
                        stop.set()
                start_one()
    return sorted(done, key=lambda item: item[0])


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.rstrip().splitlines()[-_SHOWN_LINES:])


def explore(arguments: argparse.Namespace) -> int:
    """Runs the command of the arguments under many seeds and says what fails.

    Returns:
        0 if no seed fails; 1 if one does; 2 if the command fails in plain order, or can't be run.
    """
    command = list(arguments.words)
    if command and shutil.which(command[0]) is None:
        print(f"python -m torch_openreg explore: there is no program {command[0]!r}", file=sys.stderr)
        return CANNOT_EXPLORE
    explorer = Explorer(command, arguments.schedule, arguments.timeout)
    plain = explorer.run(arguments.first_seed, 0)
    if plain.failed:
        print(f"The command fails in plain order too: it {plain.ending()}.\n  {explorer.repeats(plain)}")
        print(_indented(plain.output))
        return CANNOT_EXPLORE
    print(f"plain order: passed in {plain.seconds:.1f} s", flush=True)

    begin = time.monotonic()
    runs = _run_all(explorer, arguments)
    failed = [(seed, run) for seed, run in runs if run.failed]
    print(f"{len(failed)} of {len(runs)} seeds failed in {time.monotonic() - begin:.0f} s")
    if not failed:
        return NONE_FAILED
    print("failing seeds: " + ", ".join(str(seed) for seed, _ in failed))
    seed, run = failed[0]
    if arguments.shrink:
        shortest = explorer.fewest_switches(seed)
        if shortest is None:
            print(f"seed {seed} fails without a limit of switches alone: perhaps by chance, not by its order")
        else:
            run = shortest
            count = dict(run.settings)[_SWITCHES]
            print(f"seed {seed} fails with {count} switch(es) from the plain order, and not with one fewer")
    print(f"again:\n  {explorer.repeats(run)}\n{_indented(run.output)}")
    return SOME_FAILED


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a number above 0, but is {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, but is {text!r}")
    return value


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command ``explore`` to those of ``python -m torch_openreg``."""
    parser = commands.add_parser(
        "explore",
        help="runs a command under many orders of the simulated devices' work",
        description=f"Runs a command with {_SEED}=1, 2, ... and shrinks a failure to the fewest switches.",
        usage="%(prog)s [options] -- command ...",
    )
    parser.add_argument("--seeds", metavar="N", type=_positive, default=100, help="how many seeds (100)")
    parser.add_argument("--first-seed", metavar="N", type=_positive, default=1, help="the first of them (1)")
    parser.add_argument("--time", metavar="S", type=_seconds, help="start no run after S seconds")
    parser.add_argument(
        "--timeout", metavar="S", type=_seconds, default=600.0, help="of one run; later is a failure (600)"
    )
    parser.add_argument("--jobs", metavar="N", type=_positive, default=os.cpu_count() or 1, help="runs at once (cores)")
    parser.add_argument("--schedule", metavar="NAME", help=f"how orders are chosen: {_SCHEDULE}")
    parser.add_argument("--stop-at-first", action="store_true", help="start no run after one that fails")
    parser.add_argument("--no-shrink", dest="shrink", action="store_false", help="do not seek the fewest switches")
    parser.add_argument("words", nargs="+", metavar="command", help="what to run, behind --")
    parser.set_defaults(function=explore)
