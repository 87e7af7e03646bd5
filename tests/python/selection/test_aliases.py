# SPDX-License-Identifier: BSD-3-Clause
"""Names of drivers: case, synonyms and the group of GPUs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

openreg = torch.openreg


# acceptance 2.5: the spellings of other tools
def test_canonical_name() -> None:
    for name, canonical in {"AMDGPU": "hip", "rocm": "hip", "CUDA": "cuda", " sim ": "sim", "foo": "foo"}.items():
        assert openreg.canonical_name(name) == canonical
    for name in ("", "a b", "x" * 32, "cuda:0"):
        with pytest.raises(ValueError):
            openreg.canonical_name(name)


# acceptance 5.52
def test_expanding_an_alias() -> None:
    assert openreg.expand_driver_alias("gpu") == ["cuda", "hip"]
    assert openreg.expand_driver_alias("GPU") == ["cuda", "hip"]
    assert openreg.expand_driver_alias("x") == ["x"]
    assert openreg.expand_driver_alias("not a name") == ["not a name"]
    assert [openreg.is_gpu_driver(name) for name in ("cuda", "rocm", "gpu", "sim", "x")] == [True] * 3 + [False] * 2


# acceptance 5.53, 5.28: known is what is no typo, whether it works or not
def test_known_drivers(python: Any) -> None:
    python(
        """
        assert all(openreg.is_known_driver(name) for name in ("cuda", "hip", "rocm", "gpu", "SIM"))
        assert not any(openreg.is_known_driver(name) for name in ("cudda", "", "not a name"))
        assert not openreg.is_loaded("cuda")
        assert not openreg.drivers_are_initialized()
        """
    )


# acceptance 5.54: of a group the first that works; an error says what does
def test_canonicalize_driver(python: Any) -> None:
    python(
        """
        assert openreg.canonicalize_driver("gpu") == "hip"
        assert openreg.canonicalize_driver("rocm") == "hip"
        assert openreg.canonicalize_driver("zzz") == "zzz"
        assert openreg.get_driver("gpu").name == "hip"
        """,
        OPENREG_USE_MOCK_GPU="hip",
    )
    python(
        """
        with raises(RuntimeError, "Unknown driver: 'gpu' requested, but no drivers that are instances of gpu are present."):
            openreg.canonicalize_driver("gpu")
        try:
            openreg.get_driver("gpu")
        except RuntimeError as error:
            assert str(error).endswith("Drivers present are: sim"), error
        """
    )
