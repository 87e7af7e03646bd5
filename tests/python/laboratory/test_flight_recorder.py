# SPDX-License-Identifier: BSD-3-Clause
"""The flight recorder from Python: operators beside calls, on request and at an error."""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch


# operators and calls on their streams, as JSON that a viewer of traces reads
def test_on_request(tmp_path: Path) -> None:
    torch.openreg.init()  # opening a driver is recorded, too, and is of no device
    torch.openreg.record_flight(64)
    try:
        pinned = torch.ones(256).pin_memory()
        x = pinned.to("openreg", non_blocking=True)
        (x * 2).cpu()
        torch.openreg.dump_flight_recorder(tmp_path / "trace")
    finally:
        torch.openreg.record_flight(0)
    events = json.loads((tmp_path / "trace").read_text())["traceEvents"]
    calls = {event["name"]: event for event in events if event["ph"] == "X"}
    assert calls["copy"]["args"]["bytes"] == 1024
    assert calls["copy"]["args"]["call"] == "openreg_memcpy_async"
    assert calls["aten::mul"]["ts"] >= calls["copy"]["ts"]
    assert {event["pid"] for event in calls.values()} == {0}
    with pytest.raises(RuntimeError, match="the flight recorder is off"):
        torch.openreg.dump_flight_recorder()


# beside each call the line of the program that made it, through libraries; autograd's threads run no Python
@pytest.mark.skipif(sys.version_info >= (3, 14), reason="frames are read without the GIL on Python 3.10 to 3.13")
def test_lines_of_the_program(tmp_path: Path) -> None:
    layer = torch.nn.Linear(4, 4, device="openreg")
    torch.openreg.record_flight(256)
    try:
        x = torch.ones(2, 4, device="openreg")
        for _ in range(3):
            y = layer(x)
        y.sum().backward()
        torch.openreg.dump_flight_recorder(tmp_path / "trace")
    finally:
        torch.openreg.record_flight(0)
    events = json.loads((tmp_path / "trace").read_text())["traceEvents"]
    lines, first = inspect.getsourcelines(test_lines_of_the_program)
    call = first + next(i for i, line in enumerate(lines) if "layer(x)" in line)
    places = [event["args"].get("place") for event in events if event["name"] == "aten::addmm"]
    assert places == [f"test_flight_recorder.py:{call} in test_lines_of_the_program"] * 3
    assert {event["args"].get("place") for event in events if event["name"] == "aten::mm"} == {None}


# more entries than there may be
def test_too_many_entries() -> None:
    with pytest.raises(RuntimeError, match="at most 1048576"):
        torch.openreg.record_flight(1 << 40)


# an asynchronous error writes the file, with the operator that failed before the call that told of it
def test_at_an_error(python: Any, tmp_path: Path) -> None:
    code = """
    import torch
    x = torch.ones(4, device="openreg")
    y = x.exp()
    torch.openreg.synchronize()
    """
    prefix = str(tmp_path / "flight")
    settings = {"OPENREG_FLIGHT_RECORDER": "256", "OPENREG_FLIGHT_RECORDER_FILE": prefix}
    done = python(code, status=1, OPENREG_SIM_FAULTS="error at aten::exp 1", **settings)
    assert '"error at aten::exp 1"' in done.stderr
    (file,) = tmp_path.iterdir()
    calls = [event for event in json.loads(file.read_text())["traceEvents"] if event["ph"] == "X"]
    assert "aten::exp" in [event["name"] for event in calls]
    assert calls[-1]["name"] == "synchronize device"
    assert calls[-1]["args"]["status"] == "OPENREG_E_INTERNAL"


# a collective whose peer does not come: the file is there when its timeout is told, with the collective in it
def test_timeout_of_a_collective(python: Any, tmp_path: Path) -> None:
    code = """
    import datetime, threading, torch, torch.distributed as dist
    from torch_openreg import _C_distributed

    store, groups = dist.HashStore(), {}
    def join(rank):
        timeout = datetime.timedelta(seconds=30)
        groups[rank] = dist.ProcessGroupGloo(store, rank, 2, timeout)
    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()

    alone = _C_distributed._staged_backend(groups[0])
    options = dist.AllreduceOptions()
    options.timeout = datetime.timedelta(milliseconds=300)
    work = alone.allreduce([torch.ones(4, device="openreg:1")], options)
    try:
        work.wait()
        torch.openreg.synchronize(1)
    except RuntimeError as error:
        print("imed out" in str(error), "all_reduce in rank 0 of 2" in str(error), flush=True)
    import os
    os._exit(0)  # gloo's threads don't end well while a peer is missing
    """
    file = tmp_path / "record"
    done = python(code, OPENREG_FLIGHT_RECORDER="64", OPENREG_FLIGHT_RECORDER_FILE=str(file))
    assert done.stdout == "True True\n"
    (written,) = tmp_path.glob("record.*.json")
    events = json.loads(written.read_text())["traceEvents"]
    (collective,) = [event for event in events if event["name"] == "collective"]
    assert collective["pid"] == 1
