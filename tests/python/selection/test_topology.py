# SPDX-License-Identifier: BSD-3-Clause
"""driver_topology(): devices of a driver that is not open."""

from __future__ import annotations

from typing import Any


# acceptance 5.71: a concrete name opens nothing; the peers come with it; one that can't describe itself says so
def test_topology_opens_nothing(python: Any, toy: str) -> None:
    python(
        f"""
        from toys import raises
        found = openreg.driver_topology("sim")
        assert isinstance(found, list) and [device.index for device in found] == [0, 1, 2]
        assert [device.driver for device in found] == ["sim"] * 3 and all(device.torch_device is None for device in found)
        assert found.peers == [[True] * 3] * 3, found.peers
        assert len(openreg.driver_topology("sim", devices=5)) == 5
        assert not openreg.drivers_are_initialized()
        openreg.register_driver_plugin("toy", library_path={toy!r})
        with raises(NotImplementedError, "topology not implemented for toy"):
            openreg.driver_topology("toy")
        with raises(RuntimeError, "nobody"):
            openreg.driver_topology("nobody")
        with raises(RuntimeError):
            openreg.driver_topology("sim", "another machine")
        with raises(TypeError, "'key'"):
            openreg.driver_topology("sim", key=None)
        assert not openreg.drivers_are_initialized()
        """,
        OPENREG_SIM_DEVICES="3",
    )


# acceptance 5.71: a group opens drivers, to find the member that works
def test_topology_of_a_group(python: Any) -> None:
    python(
        """
        assert [device.driver for device in openreg.driver_topology("gpu")] == ["hip", "hip"]
        assert openreg.drivers_are_initialized()
        """,
        OPENREG_USE_MOCK_GPU="hip",
        OPENREG_MOCK_NUM_GPUS="2",
    )


# acceptance 5.26: a function that was registered with the driver, called without a lock
def test_topology_by_a_function(python: Any) -> None:
    python(
        """
        from toys import raises
        def topology(name, **options):
            openreg.driver_info("described")  # the registry is free
            return [openreg.DeviceInfo(i, f"{name}{i}", "described") for i in range(options["count"])]
        openreg.register_driver_factory("described", lambda: None, make_topology=topology)
        found = openreg.driver_topology("described", "pod", count=2)
        assert [device.name for device in found] == ["pod0", "pod1"] and found.peers == []
        openreg.register_driver_factory("described", lambda: None)
        with raises(NotImplementedError, "topology not implemented for described"):
            openreg.driver_topology("described")
        """
    )


# acceptance 5.72: a GPU driver that is not there; one that is there is loaded once and not opened
def test_topology_of_gpus(python: Any, full_toy: str) -> None:
    python(
        """
        from toys import raises
        for name, text in (("cuda", "CUDA"), ("hip", "HIP")):
            with raises(RuntimeError, f"{text} support not installed; cannot generate {text} topology"):
                openreg.driver_topology(name)
        """
    )
    python(
        f"""
        from toys import FullToy
        for _ in range(2):
            assert len(openreg.driver_topology("cuda")) == 2
        assert openreg.driver_info("cuda")["state"] == "loaded"
        toy = FullToy({full_toy!r})
        assert (toy.calls("open"), toy.calls("describe")) == (0, 2)
        """,
        OPENREG_CUDA_LIBRARY_PATH=full_toy,
    )
