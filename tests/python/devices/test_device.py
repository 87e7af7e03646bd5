# SPDX-License-Identifier: BSD-3-Clause
"""Devices: count, current device, guards, and what a `device` argument may be."""

from __future__ import annotations

import inspect
import pydoc
import re
import threading
from typing import Any

import numpy as np
import pytest
import torch

from torch_openreg import _C

OUT_OF_RANGE = r"The device index is out of range\. It must be in \[0, 2\), but got {}\."


# acceptance 4.3
def test_device_count_is_the_same_everywhere(python: Any) -> None:
    out = python(
        """
        import torch, torch_openreg
        print(torch.openreg.device_count(), torch_openreg._C._get_device_count(), torch.accelerator.device_count())
        """,
        OPENREG_SIM_DEVICES="3",
    )
    assert out.stdout.split() == ["3", "3", "3"]


# acceptance 4.3: a driver that fails gives 0 and False, one warning, and no exception
@pytest.mark.parametrize("value", ["0", "-3", "abc", "1000"])
def test_device_count_without_a_working_driver(python: Any, value: str) -> None:
    out = python(
        """
        import torch, torch_openreg
        for _ in range(3):
            print(torch.openreg.device_count(), torch.openreg.is_available())
        try:
            torch.empty(1, device="openreg")
        except RuntimeError as error:
            print("error:", error)
        """,
        OPENREG_SIM_DEVICES=value,
    )
    lines = out.stdout.splitlines()
    assert lines[:3] == ["0 False"] * 3
    assert "error:" in lines[3]
    assert ("provides no devices" if value == "0" else "OPENREG_SIM_DEVICES") in out.stdout
    assert out.stderr.count("Device initialization: ") == 1


# acceptance 4.4, 4.6b: counting makes no context and opens nothing
def test_device_count_before_init(python: Any) -> None:
    out = python(
        """
        import torch, torch_openreg
        assert torch.openreg.device_count() == 2
        assert not torch.openreg.is_initialized()
        assert not torch_openreg._C._is_initialized()
        assert not torch_openreg._C._has_primary_context(0)
        """
    )
    assert out.stderr == ""


# acceptance 4.5
def test_current_device_belongs_to_the_thread() -> None:
    torch.openreg.set_device(1)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.openreg.current_device()))
    thread.start()
    thread.join()
    assert seen == [0]
    assert torch.openreg.current_device() == 1


# acceptance 4.6
@pytest.mark.parametrize(
    "device",
    [1, "openreg:1", "privateuseone:1", torch.device("openreg", 1), torch.device("privateuseone:1"), np.int64(1)],
    ids=repr,
)
def test_set_device_accepts(device: Any) -> None:
    torch.openreg.set_device(device)
    assert torch.openreg.current_device() == 1
    assert torch.empty(1, device="openreg").device == torch.device("openreg:1")


# acceptance 4.6b
def test_a_context_appears_with_the_first_use(python: Any) -> None:
    python(
        """
        import torch, torch_openreg
        has = torch_openreg._C._has_primary_context
        torch.openreg.set_device(1)
        torch_openreg._C._exchange_device(0)
        torch_openreg._C._maybe_exchange_device(1)
        assert (has(0), has(1)) == (False, False)
        x = torch.empty(1, device="openreg")
        assert (has(0), has(1)) == (False, True)
        """
    )


# acceptance 4.7
@pytest.mark.parametrize("index", [2, -2, 127, 200, 255, 256, -129, 10**30])
def test_set_device_refuses_an_index_out_of_range(index: int) -> None:
    torch.openreg.set_device(1)
    with pytest.raises(RuntimeError, match=OUT_OF_RANGE.format(index)):
        torch.openreg.set_device(index)
    assert torch.openreg.current_device() == 1


# acceptance 4.7, 4.12: in a string the whole number is seen
@pytest.mark.parametrize("index", [2, 200, 255, 256, 65537])
@pytest.mark.parametrize("name", ["openreg", "privateuseone"])
def test_set_device_refuses_a_string_out_of_range(name: str, index: int) -> None:
    with pytest.raises(RuntimeError, match=OUT_OF_RANGE.format(index)):
        torch.openreg.set_device(f"{name}:{index}")
    with pytest.raises(RuntimeError, match=OUT_OF_RANGE.format(index)), torch.openreg.device(f"{name}:{index}"):
        pass
    assert torch.openreg.current_device() == 0


# acceptance 4.7
@pytest.mark.parametrize(
    ("device", "error", "text"),
    [
        ("cpu", ValueError, "Expected an openreg device, but got 'cpu'"),
        ("cuda:0", ValueError, "Expected an openreg device, but got 'cuda:0'"),
        (torch.device("cpu"), ValueError, "Expected an openreg device, but got cpu"),
        (torch.device("meta"), ValueError, "Expected an openreg device, but got meta"),
        ("openreg", ValueError, "Expected a device with an index"),
        (torch.device("openreg"), ValueError, "Expected a device with an index"),
        (None, ValueError, "Expected a device with an index"),
        ("openreg:", ValueError, "Invalid device string"),
        ("openreg:-1", ValueError, "Invalid device string"),
        ("openreg:01", ValueError, "Invalid device string"),
        ("openreg:1 ", ValueError, "Invalid device string"),
        ("openreg:one", ValueError, "Invalid device string"),
        ("openregs:1", ValueError, "Expected an openreg device"),
        ("", ValueError, "Expected an openreg device"),
        (1.0, TypeError, "A device must be an int.* float: 1.0"),
        (True, TypeError, "A device must be an int.* bool: True"),
        ([1], TypeError, "A device must be an int.* list"),
    ],
    ids=repr,
)
def test_set_device_refuses(device: Any, error: type[Exception], text: str) -> None:
    torch.openreg.set_device(1)
    with pytest.raises(error, match=text):
        torch.openreg.set_device(device)
    assert torch.openreg.current_device() == 1


# acceptance 4.7: -1 is a no-op in Python and an error in _C
def test_set_device_minus_one() -> None:
    torch.openreg.set_device(1)
    torch.openreg.set_device(-1)
    assert torch.openreg.current_device() == 1
    with pytest.raises(RuntimeError, match=OUT_OF_RANGE.format(-1)):
        _C._set_device(-1)
    assert torch.openreg.current_device() == 1


# acceptance 4.8, 4.10: of what is out of range -1 alone is taken, by one of the two
def test_exchange_device() -> None:
    assert _C._exchange_device(1) == 0
    with pytest.raises(RuntimeError, match=OUT_OF_RANGE.format(-1)):
        _C._exchange_device(-1)
    assert _C._maybe_exchange_device(-1) == -1
    assert _C._get_device() == 1
    assert _C._maybe_exchange_device(0) == 1
    assert _C._get_device() == 0


# acceptance 4.11
@pytest.mark.parametrize(
    "device", [None, -1, "openreg", "privateuseone", torch.device("openreg"), torch.device("privateuseone")], ids=repr
)
def test_a_guard_without_a_device_calls_nothing(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise AssertionError("the runtime was called")

    torch.openreg.set_device(1)
    with monkeypatch.context() as patch:
        for name in ("_get_device", "_exchange_device", "_maybe_exchange_device"):
            patch.setattr(f"torch_openreg.openreg._device.{name}", fail)
            patch.setattr(f"torch_openreg._C.{name}", fail)
        with torch.openreg.device(device):
            pass
    assert torch.openreg.current_device() == 1


# acceptance 4.12: torch wraps an index above 127 around before it is seen by us
@pytest.mark.parametrize("index", [7, 127, 128, 200, 254])
def test_an_index_out_of_range_is_never_another_device(index: int) -> None:
    with pytest.raises(RuntimeError, match="out of range"):
        torch.empty(1, device=f"openreg:{index}")


# acceptance 4.19, 4.31
def test_accelerator_and_module_agree() -> None:
    assert torch.accelerator.current_accelerator() == torch.device("openreg")
    torch.accelerator.set_device_index(1)
    assert torch.openreg.current_device() == torch.accelerator.current_device_index() == _C._get_device() == 1
    torch.openreg.set_device(0)
    with torch.accelerator.device_index(1):
        assert torch.openreg.current_device() == 1
    with torch.accelerator.device_index(None):
        assert torch.openreg.current_device() == 0
    assert torch.openreg.current_device() == 0
    with torch.openreg.device(1), torch.device("openreg"):
        assert torch.empty(1).device == torch.device("openreg:1")


# acceptance 4.20
def test_exchange_is_not_public() -> None:
    assert not {"exchange_device", "maybe_exchange_device"} & set(torch.openreg.__all__)
    assert all(hasattr(torch.openreg, name) for name in torch.openreg.__all__)


# acceptance 4.21
def test_set_device_initialises(python: Any) -> None:
    python(
        """
        import torch, torch_openreg
        assert not torch.openreg.is_initialized() and not torch.openreg._initialized
        torch.openreg.set_device(0)
        assert torch.openreg.is_initialized() and torch.openreg._initialized
        """
    )
    python(
        """
        import torch, torch_openreg
        torch.openreg.init()
        torch.openreg.init()
        assert torch.openreg.is_initialized()
        """
    )


# acceptance 4.22
def test_help_documents_arguments_and_errors() -> None:
    text = pydoc.plain(pydoc.render_doc(torch.openreg.set_device))
    assert "Args:" in text
    assert "Raises:" in text
    assert "device:" in text
    assert "RuntimeError:" in text


# acceptance 1.2: everything public has a docstring, and it or its module's names each of its parameters
def test_everything_public_is_documented() -> None:
    for name in torch.openreg.__all__:
        thing = getattr(torch.openreg, name)
        if name == "default_generators":
            continue
        assert inspect.getdoc(thing), name
        if inspect.isfunction(thing):
            of_module = re.findall(
                r"^A parameter ``(\w+)`` ", inspect.getdoc(inspect.getmodule(thing)) or "", re.MULTILINE
            )
            for parameter in set(inspect.signature(thing).parameters) - set(of_module):
                assert re.search(rf"^    {parameter}:", inspect.getdoc(thing) or "", re.MULTILINE), (name, parameter)


# acceptance 4.26
def test_guards_restore_on_exceptions() -> None:
    class Stop(Exception):
        pass

    with pytest.raises(Stop), torch.openreg.device(1):
        with torch.openreg.device("openreg:0"):
            assert torch.openreg.current_device() == 0
            with torch.openreg.device(torch.device("openreg:1")):
                assert torch.openreg.current_device() == 1
                raise Stop
    assert torch.openreg.current_device() == 0

    with pytest.raises(RuntimeError, match="out of range"), torch.openreg.device(1), torch.openreg.device(5):
        pass
    assert torch.openreg.current_device() == 0


# acceptance 4.26: the device before is restored even if the body has switched
def test_a_guard_restores_what_the_body_changed() -> None:
    with torch.openreg.device(1):
        torch.openreg.set_device(0)
    assert torch.openreg.current_device() == 0
    guard = torch.openreg.device(1)
    for _ in range(2):  # one object, used again
        with guard:
            assert torch.openreg.current_device() == 1
        assert torch.openreg.current_device() == 0


def test_device_of() -> None:
    there = torch.empty(1, device="openreg:1")
    for thing in (there, there.untyped_storage()):
        with torch.openreg.device_of(thing):
            assert torch.openreg.current_device() == 1
        assert torch.openreg.current_device() == 0
    torch.openreg.set_device(1)
    with torch.openreg.device_of(torch.empty(1)):
        assert torch.openreg.current_device() == 1


# acceptance 4.2
def test_making_things_elsewhere_leaves_the_current_device() -> None:
    made = [
        torch.empty(1, device="openreg:1"),
        torch.Stream("openreg:1"),
        torch.openreg.Stream(1),
        torch.openreg.Event(1),  # (torch.Event keeps no index before its first record)
        torch.Generator("openreg:1"),
    ]
    assert torch.openreg.current_device() == 0
    assert [torch.device(thing.device) for thing in made] == [torch.device("openreg:1")] * len(made)


def test_properties() -> None:
    for index in (0, 1):
        properties = torch.openreg.get_device_properties(f"openreg:{index}")
        assert properties.driver == "sim"
        assert properties.is_simulated
        assert properties.ordinal == index
        assert properties.total_memory == torch.openreg.mem_get_info(index)[1] > 0
        assert re.fullmatch("[0-9a-f]{32}", properties.uuid)
        assert torch.openreg.get_device_name(index) == properties.name != ""
        assert torch.openreg.get_device_capability(index) == (properties.major, properties.minor)
    torch.openreg.set_device(1)
    assert torch.openreg.get_device_properties().ordinal == 1
    with pytest.raises(RuntimeError, match=OUT_OF_RANGE.format(2)):
        torch.openreg.get_device_properties(2)
    with pytest.raises(RuntimeError, match=OUT_OF_RANGE.format(-1)):
        torch.openreg.get_device_name(-1)


def test_synchronize() -> None:
    torch.openreg.synchronize()
    torch.openreg.synchronize("openreg:1")
    torch.accelerator.synchronize()
    with pytest.raises(RuntimeError, match=OUT_OF_RANGE.format(2)):
        torch.openreg.synchronize(2)
    with pytest.raises(ValueError, match="Expected an openreg device"):
        torch.openreg.synchronize("cpu")


def test_driver_records() -> None:
    torch.openreg.init()
    records = {record["name"]: record for record in torch.openreg.driver_records()}
    assert records["sim"]["state"] == "open"
    assert records["sim"]["device_count"] == 2
    assert records["sim"]["first_device"] == 0


# What torch looks up under private names (shared with torch.cuda).
def test_private_names_that_torch_uses() -> None:
    index = torch.openreg._get_device_index
    assert index("openreg:1", True) == 1
    assert index("openreg", True) == 0
    assert index(None, optional=True) == 0
    assert index("cpu", allow_cpu=True) == index(torch.device("cpu"), allow_cpu=True) == -1
    assert torch.openreg._is_compiled()
    assert torch.openreg._is_in_bad_fork() is False
    assert torch.openreg._get_generator(torch.device("openreg:1")).device == torch.device("openreg:1")
    assert torch.get_device_module("openreg") is torch.openreg
    assert torch.get_device_module() is torch.openreg
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        torch.openreg.nothing  # noqa: B018
