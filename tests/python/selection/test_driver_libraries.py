# SPDX-License-Identifier: BSD-3-Clause
"""OPENREG_DRIVER_LIBRARIES: libraries by path, and JSON files that describe them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def manifest(path: Path, **content: Any) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))
    return path


# acceptance 5.36, 5.37, 5.38: a JSON file, its library beside it, and options of each type under either key
def test_a_json_file(python: Any, tmp_path: Path, full_toy: str) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "driver.so").symlink_to(full_toy)
    options = {"s": "text", "i": 3, "l": [3, 1], "f": 0.25, "t": True, "n": False}
    for key in ("create_options", "create_option"):
        path = manifest(tmp_path / "there" / "toy.json", library_path="driver.so", **{key: options})
        python(
            f"""
            assert openreg.default_driver() == "toy", lines
            assert openreg.get_driver("toy").source == "OPENREG_DRIVER_LIBRARIES"
            toy = FullToy({full_toy!r})
            assert [toy.option(key) for key in "siflt" + "n"] == ["text", "3", "0.25", "3,1", "1", "0"]
            """,
            OPENREG_DRIVER_LIBRARIES=f"toy:{path}",
        )
    both = manifest(
        tmp_path / "both.json", library_path=full_toy, create_options={"s": "right"}, create_option={"s": "wrong"}
    )
    python(
        f"""
        openreg.init()
        assert FullToy({full_toy!r}).option("s") == "right"
        assert [line for line in lines if line.startswith("WARNING") and "both" in line], lines
        """,
        OPENREG_DRIVER_LIBRARIES=f"toy:{both}",
    )


# acceptance 5.51: what the variable names goes before a plugin of the same name
def test_the_variable_goes_before_plugins(python: Any, tmp_path: Path, toy: str, full_toy: str) -> None:
    package = tmp_path / "site" / "torch_openreg_plugins"
    package.mkdir(parents=True)
    (package / "one.py").write_text(
        f"import torch\ndef initialize():\n    torch.openreg.register_driver_plugin('toy', library_path={full_toy!r})\n"
    )
    json_file = manifest(tmp_path / "toy.json", library_path=toy)
    python(
        f"""
        assert openreg.get_driver("toy").path == {toy!r}
        shadowed = [r["path"] for r in openreg.driver_records() if r["state"] == "shadowed"]
        assert shadowed == [{full_toy!r}], shadowed
        """,
        OPENREG_DRIVER_LIBRARIES=f"toy:{json_file}",
        PYTHONPATH=str(tmp_path / "site"),
    )
