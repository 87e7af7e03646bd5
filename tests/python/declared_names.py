# SPDX-License-Identifier: BSD-3-Clause
"""Packages of vendors, as pip leaves them."""

from __future__ import annotations

from pathlib import Path


def declare(folder: Path, distribution: str, *names: str, drivers: dict[str, str] | None = None) -> Path:
    """Puts the metadata of an installed package into a folder, which declares names of modules that are not there."""
    information = folder / f"{distribution}-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    entries = "".join(f"{name} = no_such_module_{name}\n" for name in names)
    modules = "".join(f"{name} = {module}\n" for name, module in (drivers or {}).items())
    (information / "entry_points.txt").write_text(
        f"[console_scripts]\nother = a:b\n\n[torch_openreg.device_name]\n{entries}\n[torch_openreg.others]\nx = y\n"
        f"\n[torch_openreg.drivers]\n{modules}"
    )
    return folder
