# SPDX-License-Identifier: BSD-3-Clause
"""use_driver(): another driver for the same devices, while the process runs."""

from __future__ import annotations

from typing import Any


# the device table follows, with everything that is kept per device
def test_devices_follow_the_choice(python: Any, full_toy: str) -> None:
    python(
        f"""
        openreg.register_driver_plugin("toy", library_path={full_toy!r})
        openreg.use_driver("sim")
        assert openreg.device_count() == 3
        torch.manual_seed(7)
        openreg.set_device(2)
        pinned = torch.ones(4).pin_memory()
        first = torch.rand(4, device="openreg:2").cpu()
        del pinned
        openreg.use_driver("toy")
        assert (openreg.default_driver(), openreg.device_count()) == ("toy", 2)
        assert openreg.current_device() == 0
        assert openreg.get_device_properties(0).driver == "toy"
        assert len(openreg.default_generators) == 2
        y = torch.arange(4.0, device="openreg:1") + 1
        assert y.tolist() == [1, 2, 3, 4]
        del y
        openreg.empty_cache()
        openreg.use_driver("sim", "toy")
        assert [openreg.get_device_properties(i).driver for i in range(5)] == ["sim"] * 3 + ["toy"] * 2
        assert torch.ones(2, device="openreg:4").to("openreg:0").sum().item() == 2
        assert torch.rand(2, device="openreg:4").numel() == 2
        """,
        OPENREG_SIM_DEVICES="3",
    )


# no name at all takes the choice back
def test_a_choice_can_be_taken_back(python: Any) -> None:
    python(
        """
        openreg.use_driver("sim")
        assert _C._selection()["chosen_by"] == "call"
        openreg.use_driver()
        assert openreg.default_driver() == "cuda"
        assert _C._selection()["chosen_by"] == "automatic"
        """,
        OPENREG_USE_MOCK_GPU="cuda",
    )


# a Driver and a group may be named too; members of a group that fail are remembered; what names nothing is refused
def test_what_may_be_named(python: Any) -> None:
    python(
        """
        openreg.use_driver("GPU")
        assert openreg.default_driver() == "hip"
        assert "cuda" in openreg.driver_errors()
        openreg.use_driver("sim")
        sim = openreg.get_driver("sim")
        openreg.use_driver("rocm")
        openreg.use_driver(sim)
        for names in (["nobody"], ["sim", "cuda"], ["?"], [""]):
            with raises(RuntimeError):
                openreg.use_driver(*names)
            assert openreg.default_driver() == "sim"
        """,
        OPENREG_USE_MOCK_GPU="hip",
    )


# autograd makes its threads once: more devices later are warned of, and the process still ends well
def test_more_devices_after_a_backward(python: Any) -> None:
    done = python(
        """
        def backward(index):
            x = torch.ones(2, device=f"openreg:{index}", requires_grad=True)
            x.sum().backward()
            return x.grad.sum().item()
        openreg.use_driver("sim")
        assert backward(1) == 2
        with warned() as texts:
            openreg.use_driver("hip", "sim")
        assert len(texts) == 1 and "backward() fails on openreg:2 and above" in texts[0], texts
        assert backward(0) == backward(1) == 2
        with warned() as texts:
            openreg.use_driver("sim")
        assert texts == []
        """,
        OPENREG_USE_MOCK_GPU="hip",
    )
    assert "Error" not in done.stderr
