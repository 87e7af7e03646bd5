# SPDX-License-Identifier: BSD-3-Clause
"""Which device and dtype a function uses when its caller names none."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from torch_openreg.openreg import _device_handling, creation, defaults

openreg = torch.openreg
CREATORS = (openreg.as_tensor, openreg.full, openreg.from_numpy, openreg.from_buffer, openreg.Generator)


@pytest.fixture(autouse=True)
def _no_default() -> Iterator[None]:
    yield
    openreg.set_default_device(None)
    torch.set_default_dtype(torch.float32)


# acceptance 3.1
def test_device_and_dtype_are_keyword_only() -> None:
    """No creator of ours takes them by position, as no factory of PyTorch does."""
    for creator in CREATORS:
        parameters = inspect.signature(creator).parameters
        for name in {"device", "dtype"} & set(parameters):
            assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY, creator
        assert "device" in parameters
    with pytest.raises(TypeError):
        torch.zeros((2,), torch.float32, "openreg")  # type: ignore[call-overload]


# acceptance 3.6
def test_the_decorator_gives_a_device_except_to_the_functions_that_are_excluded() -> None:
    """A wrapped function never sees None; an excluded one sees what its caller gave."""

    def creator(x: Any = None, *, device: Any = None) -> Any:
        return device

    assert _device_handling.handle_device(creator)() == torch.device("cpu")
    assert _device_handling.handle_device(creator)(torch.empty(1, device="openreg:1")) == torch.device("openreg:1")
    for name in _device_handling.NON_DEV_WRAPPED_FUNCTIONS | _device_handling.NON_WRAPPED_FUNCTIONS:
        assert hasattr(creation, name)  # the sets name functions that exist
        creator.__name__ = name
        assert _device_handling.handle_device(creator)() is None
        assert _device_handling.handle_device(creator)(device="openreg:1") == "openreg:1"


# acceptance 3.8
def test_the_argument_wins() -> None:
    """Over a tensor and over the default."""
    openreg.set_default_device("openreg:0")
    item = torch.empty(1, device="openreg:1")
    assert openreg.default_device("cpu", item=item) == torch.device("cpu")
    assert openreg.default_device(1, item=item) == torch.device("openreg:1")
    assert openreg.as_tensor(item, device="cpu").device.type == "cpu"


# acceptance 3.9
def test_the_first_tensor_among_the_arguments_decides() -> None:
    """Positional arguments come first, and containers are looked into."""
    on_0, on_1 = torch.empty(1, device="openreg:0"), torch.empty(1, device="openreg:1")

    @_device_handling.handle_device
    def f(x: Any, *, y: Any = None, device: Any = None) -> Any:
        return device

    @dataclass
    class Batch:
        label: str
        x: torch.Tensor

    assert f([on_1], y=on_0) == torch.device("openreg:1")
    assert f({"a": ("text", [on_1])}) == torch.device("openreg:1")
    assert f(Batch("a", on_1)) == torch.device("openreg:1")
    assert f(3, y=on_0) == torch.device("openreg:0")
    assert f(3) == torch.device("cpu")
    assert openreg.default_device(item=[torch.empty(1), on_1]) == torch.device("cpu")
    assert openreg.dev(on_1) == torch.device("openreg:1")
    with pytest.raises(TypeError, match="Expected a tensor, but got list"):
        openreg.dev([on_1])


# acceptance 3.10
def test_the_default_may_be_named_gpu(python: Any) -> None:
    """ "gpu:1" is device 1 of the GPU driver that is chosen; without a GPU it is an error that says so."""
    python(
        """
        import torch
        torch.openreg.set_default_device("gpu:1")
        assert torch.openreg.default_device() == torch.device("openreg:1"), torch.openreg.default_device()
        assert torch.openreg.get_device_properties(1).driver == "cuda"
        torch.openreg.set_default_device("gpu")
        assert torch.openreg.default_device() == torch.device("openreg:0")
        for bad in ("gpu:x", "gpu:", "gpu:01", "gpu:-1"):
            try:
                torch.openreg.set_default_device(bad)
            except ValueError as error:
                assert bad in str(error)
            else:
                raise AssertionError(bad)
        assert torch.openreg.default_device() == torch.device("openreg:0")
        """,
        OPENREG_USE_MOCK_GPU="cuda",
        OPENREG_MOCK_NUM_GPUS="2",
    )
    python(
        """
        import torch
        try:
            torch.openreg.set_default_device("gpu")
        except torch.openreg.DeviceSelectionError as error:
            assert "No functional GPU device found" in str(error)
        else:
            raise AssertionError
        assert torch.openreg.default_device() == torch.device("cpu")
        """
    )


# acceptance 3.10: one parser reads devices: what the default may be named, every function takes
def test_every_function_reads_gpu(python: Any) -> None:
    python(
        """
        import torch
        openreg = torch.openreg
        with openreg.device("gpu:1"):
            assert openreg.current_device() == 1
        openreg.set_device("gpu:1")
        assert openreg.current_device() == 1
        x = torch.ones(1 << 20, device="openreg:1")
        assert openreg.memory_allocated("gpu:1") == openreg.memory_allocated("gpu") == 1 << 22
        assert openreg.memory_stats("gpu:0")["allocated_bytes.all.current"] == 0
        assert openreg.Stream("gpu:0").device == openreg.current_stream("gpu:0").device == torch.device("openreg:0")
        assert openreg.get_device_name("gpu:1") == "OpenReg mock CUDA device 1"
        assert openreg.get_device_driver("gpu:1").name == "cuda"
        openreg.synchronize("gpu:1")
        openreg.manual_seed(3)
        openreg.set_rng_state(openreg.get_rng_state("gpu:1"), "gpu:0")
        assert openreg.to_device(x, "gpu:0").device == openreg.mover("gpu:0")([x])[0].device == torch.device("openreg:0")
        assert openreg.Stream(device="gpu:0").device.index == 0
        for bad, error in (("gpu:x", ValueError), ("gpu:01", ValueError), ("gpu:2", RuntimeError)):
            for function in (openreg.set_device, openreg.synchronize, openreg.memory_allocated, openreg.get_device_name):
                try:
                    function(bad)
                except error:
                    pass
                else:
                    raise AssertionError((function, bad))
        """,
        OPENREG_USE_MOCK_GPU="cuda",
        OPENREG_MOCK_NUM_GPUS="2",
    )


# acceptance 3.10
@pytest.mark.parametrize(
    ("device", "error"),
    [("openreg:2", RuntimeError), (5, RuntimeError), (-1, RuntimeError), ("cuda:0", ValueError), ("", ValueError)],
)
def test_a_bad_default_is_refused_and_changes_nothing(device: Any, error: type[Exception]) -> None:
    """The default before stays, ours and PyTorch's."""
    openreg.set_default_device("openreg:1")
    with pytest.raises(error):
        openreg.set_default_device(device)
    assert openreg.default_device() == torch.device("openreg:1")
    assert torch.empty(1).device == torch.device("openreg:1")


# acceptance 3.11
def test_the_default_is_the_process_s() -> None:
    """PyTorch's own default is a thread's; ours is seen by every thread, and None takes both back."""
    openreg.set_default_device("openreg:1")
    assert torch.empty(2).device == torch.device("openreg:1")
    seen: list[torch.device] = []
    thread = threading.Thread(target=lambda: seen.append(openreg.default_device()))
    thread.start()
    thread.join()
    assert seen == [torch.device("openreg:1")]
    openreg.set_default_device(None)
    assert openreg.default_device() == torch.device("cpu")
    assert torch.empty(2).device == torch.device("cpu")


# acceptance 3.11
def test_a_device_context_of_the_thread_wins_over_the_default() -> None:
    """`with torch.device(...)` is nearer than the default, for our functions as for PyTorch's."""
    openreg.set_default_device("openreg:1")
    with torch.device("cpu"):
        assert openreg.default_device() == torch.device("cpu")
    with torch.device("openreg:0"):
        assert openreg.default_device() == torch.device("openreg:0")
    assert openreg.default_device() == torch.device("openreg:1")


# acceptance 3.12
def test_a_default_without_an_index_follows_the_current_device() -> None:
    """Of the calling thread."""
    openreg.set_default_device("openreg")
    openreg.set_device(1)
    assert torch.empty(2).device == torch.device("openreg:1")
    assert openreg.default_device() == torch.device("openreg:1")
    openreg.set_device(0)
    assert torch.empty(2).device == torch.device("openreg:0")
    assert openreg.default_device() == torch.device("openreg:0")


# acceptance 3.15
@pytest.mark.parametrize("size", [3, (3,), [3]])
@pytest.mark.parametrize("device", ["openreg", 0, torch.device("openreg", 0)])
def test_shapes_and_devices_in_every_form(size: Any, device: Any) -> None:
    """A factory takes a number, a tuple or a list, and a string, an index or a torch.device."""
    for made in (torch.zeros(size, device=device), openreg.full(size, 0.0, device=device)):
        assert made.device == torch.device("openreg:0")
        assert torch.equal(made.cpu(), torch.zeros(3))


# acceptance 3.18
def test_creators_from_host_data_follow_the_default() -> None:
    """What is excluded from the decorator asks for the default itself."""
    numpy = pytest.importorskip("numpy")
    openreg.set_default_device("openreg:1")
    array = numpy.arange(4, dtype="int32")
    made = openreg.from_numpy(array)
    assert made.device == torch.device("openreg:1")
    assert made.tolist() == [0, 1, 2, 3]
    assert openreg.from_numpy(array, dtype=torch.float64).dtype is torch.float64
    raw = openreg.from_buffer(bytearray(b"\x01\x02\x03\x04"), dtype=torch.uint8, offset=1, count=2)
    assert raw.device == torch.device("openreg:1")
    assert raw.tolist() == [2, 3]
    assert openreg.Generator().device == torch.device("openreg:1")
    assert openreg.Generator(device="cpu").device == torch.device("cpu")
    shared = openreg.from_numpy(array, device="cpu")
    array[0] = 7
    assert shared[0] == 7


# acceptance 3.19
def test_the_dtype_by_the_same_rules() -> None:
    """The argument, a tensor's, the default."""
    torch.set_default_dtype(torch.float64)
    assert torch.ones(2, device="openreg").dtype is torch.float64
    assert openreg.full(2, 0.5, device="openreg").dtype is torch.float64
    half = torch.tensor(0.5, dtype=torch.float16, device="openreg:1")
    assert openreg.full((2, 2), half).dtype is torch.float16
    assert openreg.full((2, 2), half).device == torch.device("openreg:1")
    assert openreg.full(2, half, dtype=torch.int32).dtype is torch.int32
    assert defaults.default_dtype(torch.int8, item=half) is torch.int8
    assert defaults.default_dtype(item=[half]) is torch.float16
    assert defaults.default_dtype() is torch.float64


def test_as_tensor_keeps_a_tensor_where_it_is() -> None:
    """PyTorch's own as_tensor() moves it to the default device."""
    openreg.set_default_device("openreg:0")
    x = torch.empty(2, device="openreg:1")
    assert openreg.as_tensor(x) is x
    assert openreg.as_tensor([1, 2]).device == torch.device("openreg:0")
