# SPDX-License-Identifier: BSD-3-Clause
"""Threads, the GIL, forks and slow drivers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(120)


# acceptance 5.20, 5.25: many threads that open, register and ask: each driver is opened once, all see the same objects
def test_many_threads(python: Any, full_toy: str) -> None:
    python(
        f"""
        import threading
        toy = FullToy({full_toy!r})
        made = []
        openreg.register_driver_factory("toy", lambda: made.append(1) or {full_toy!r}, priority=7)
        barrier = threading.Barrier(16)
        seen, errors = [], []
        def work(number):
            barrier.wait()
            try:
                if number % 4 == 0:
                    openreg.register_driver_factory(f"other{{number}}", lambda: None)
                seen.append(openreg.drivers())
            except BaseException as error:
                errors.append(error)
        threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert not errors, errors
        assert len({{id(mapping["toy"]) for mapping in seen}}) == 1 and len({{id(mapping) for mapping in seen}}) == 1
        assert toy.calls("open") == 1 and len(made) == 1
        """
    )


# the GIL is free while a driver opens, whoever has called: Python code goes on in other threads
@pytest.mark.parametrize(
    "call",
    ["openreg.init()", "torch.accelerator.device_count()", "torch.ones(1, device='openreg')", "openreg.drivers()"],
)
def test_python_runs_while_a_driver_opens(python: Any, library: Any, call: str) -> None:
    python(
        f"""
        import threading, time
        entered, turned, turns = threading.Event(), threading.Event(), []
        def factory():
            entered.set()
            assert turned.wait(30)
            return {library("toy_driver")!r}
        openreg.register_driver_factory("toy", factory, priority=900)
        def count():
            entered.wait()
            for turn in range(5):
                turns.append(turn)
                if len(turns) == 15:
                    turned.set()
                time.sleep(0.01)
            torch.accelerator.device_count()  # reaches the runtime with the GIL, and has to wait
        threads = [threading.Thread(target=count) for _ in range(3)]
        for thread in threads: thread.start()
        {call}
        assert len(turns) == 15, turns
        for thread in threads: thread.join()
        assert openreg.get_device_properties(0).driver == "toy"
        """
    )


# acceptance 5.14: a slow open() is warned of while it lasts, to a handler in Python, though the main thread waits in C
def test_a_slow_driver_is_warned_of_while_it_opens(python: Any, full_toy: str, tmp_path: Path) -> None:
    warned = str(tmp_path / "warned")
    python(
        f"""
        class Warned(logging.Handler):
            def emit(self, record):
                if record.levelno == logging.WARNING and "cuda" in record.getMessage():
                    slow.append(record.getMessage())
                    open({warned!r}, "w").close()
        slow = []
        logging.getLogger("torch_openreg").addHandler(Warned())
        openreg.register_driver_plugin("cuda", library_path={full_toy!r}, options={{"until": {warned!r}}})
        openreg.init()  # fails if the warning comes when all is over
        assert len(slow) == 1 and "0.1" in slow[0], slow
        """,
        OPENREG_INIT_WARN_SECS="0.1",
    )


# lines of several threads, warnings among them, come in the order in which each thread wrote them, and none is lost
def test_the_order_of_log_lines(python: Any, library: Any) -> None:
    python(
        f"""
        import threading
        path = {library("broken_driver", "BROKEN_OPEN_FAILS")!r}
        names = [f"toy{{i}}" for i in range(40)]
        for name in names:
            openreg.register_driver_factory(name, lambda: path, experimental=True)
        thread = threading.Thread(target=lambda: [openreg.is_functional(name) for name in names])
        thread.start()
        thread.join()
        import time
        deadline = time.monotonic() + 20
        debug = []
        while len(debug) < 80 and time.monotonic() < deadline:
            time.sleep(0.01)
            debug = [line for line in lines if "Initializing driver 'toy" in line or "is experimental" in line]
        assert len(debug) == 80, debug
        ours = [line.split("'")[1] for line in lines if "is experimental" in line]
        assert ours == names, ours
        """,
        OPENREG_LOG_LEVEL="debug",
    )


# a process that ends while lines are queued hands them over, and ends
def test_lines_at_the_end_of_a_process(python: Any) -> None:
    done = python(
        """
        import threading
        logging.basicConfig(stream=sys.stdout, format="%(message)s")
        threading.Thread(target=lambda: openreg.is_functional("cuda")).start()
        openreg.is_functional("hip")
        """,
        OPENREG_USE_MOCK_GPU="cuda,hip",
    )
    assert done.stdout.count("'cuda'") >= 1
    assert done.stdout.count("'hip'") >= 1
    assert done.stderr == ""


# acceptance 5.10: a fork of a process with open drivers is warned of; others, and a DataLoader's, are not
def test_forks(python: Any) -> None:
    python(
        """
        def fork():
            with warned() as texts:
                child = os.fork()
                if child == 0:
                    os._exit(0)
                os.waitpid(child, 0)
            return texts
        assert fork() == []
        openreg.supported_drivers(), openreg.cpu_device(), openreg.get_preferred_driver(), openreg.device_count()
        assert fork() == [] and not openreg.drivers_are_initialized()
        openreg.init()
        texts = fork()
        assert len(texts) == 1 and "os.fork() was called" in texts[0] and "sim" in texts[0], texts
        with warned() as texts:
            data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(8)), 4, num_workers=1)
            assert len(list(data)) == 2
        assert not any("fork" in text for text in texts), texts
        openreg._clear_drivers()
        assert fork() == []
        """
    )


# locks that another thread holds at the moment of a fork do not block the child
def test_a_fork_while_a_driver_opens(python: Any, toy: str) -> None:
    python(
        f"""
        import threading
        entered, forked = threading.Event(), threading.Event()
        def factory():
            entered.set()
            assert forked.wait(30)
            return {toy!r}
        openreg.register_driver_factory("toy", factory, priority=900)
        threads = [threading.Thread(target=call) for call in (openreg.drivers, openreg.gpu_device)]
        for thread in threads: thread.start()
        entered.wait()
        warnings.simplefilter("ignore")
        child = os.fork()
        if child == 0:
            forked.set()
            openreg.reset_gpu_device()
            openreg.cpu_device()
            try:
                openreg.init()
            except RuntimeError:
                pass
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        forked.set()
        for thread in threads: thread.join()
        """
    )
