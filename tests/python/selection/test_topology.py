# SPDX-License-Identifier: BSD-3-Clause
"""driver_topology(): devices of a driver that is not open."""

from __future__ import annotations

from typing import Any


# acceptance 5.71: a concrete name opens nothing; the peers come with it; one that can't describe itself says so
def test_topology_opens_nothing(python: Any, toy: str) -> None:
    python(
        f"""
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


# acceptance 5.26, 5.75: a function that was registered with the driver, called without a lock; it may give None
def test_topology_by_a_function(python: Any) -> None:
    python(
        """
        def topology(name, **options):
            openreg.driver_info("described")  # the registry is free
            return [openreg.DeviceInfo(i, f"{name}{i}", "described") for i in range(options["count"])]
        openreg.register_driver_factory("described", lambda: None, make_topology=topology)
        found = openreg.driver_topology("described", "pod", count=2)
        assert [device.name for device in found] == ["pod0", "pod1"] and found.peers == []
        for make_topology in (None, lambda name, **options: None):
            openreg.register_driver_factory("described", lambda: None, make_topology=make_topology)
            with raises(NotImplementedError, "topology not implemented for described"):
                openreg.driver_topology("described")
        assert not openreg.drivers_are_initialized()
        """
    )
