# SPDX-License-Identifier: BSD-3-Clause
"""``python -m torch_openreg new NAME``: a repository for a driver, which works as it is.

The files are templates of this package. In their names and texts ``@NAME@`` is the driver's name and
``@DEVICE@`` the PyTorch device's; the headers of the
driver interface are copied beside them, so that the driver is built without torch-openreg.
"""

from __future__ import annotations

import datetime
import re
import shutil
from pathlib import Path

from _torch_openreg_device_name import check_form, device_name

from torch_openreg import _registration, config
from torch_openreg._build_info import OPENREG_VERSION

_TEMPLATES = Path(__file__).resolve().parent / "templates" / "driver"
_EXTENSIONS = ("comm.h", "graph.h", "ipc.h", "kernels.h", "probe.h", "schedule.h", "vmm.h")
_UNLIKE_CUDA = ("handle_addresses.h", "software_streams.h", "word_copies.h")
_HEADERS = ("driver.h", "export.h", "status.h", "dtype.h", *_EXTENSIONS, *_UNLIKE_CUDA)
_TAKEN = ("cpu", "cuda", "gpu", "hip", "openreg", "rocm", "sim")


def check_name(name: str) -> None:
    """Refuses what can't be the name of a driver and of its functions.

    Raises:
        ValueError: With the rule that it breaks.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,30}", name):
        raise ValueError(
            f"a driver's name is a-z, 0-9 and _, begins with a letter and has 1 to 31 characters, got {name!r}"
        )
    if name in _TAKEN:
        raise ValueError(f"the name {name!r} is taken by torch-openreg itself")


def device_name_for(name: str) -> str:
    """The name of the PyTorch device: the driver's without digits, which PyTorch's device strings don't take.

    Raises:
        ValueError: PyTorch has a meaning for it.
    """
    device = re.sub(r"_*[0-9]+", "", name)
    check_form(device, f"of the driver {name!r}")
    if device != device_name() and _registration.is_of_torch(device):
        raise ValueError(f"no device can be named {device!r}: PyTorch has a meaning for that name already")
    return device


def _abi() -> str:
    text = (Path(config.include_dir()) / "openreg" / "driver.h").read_text(encoding="utf-8")
    numbers = (re.search(rf"define OPENREG_ABI_{part} (\d+)", text) for part in ("MAJOR", "MINOR"))
    return ".".join(number.group(1) for number in numbers if number is not None)


def make_driver(name: str, directory: Path | None = None) -> Path:
    """Writes the repository.

    Args:
        name: Name of the driver.
        directory: Folder to make; ``torch-<name>`` in the current one if None. It must not exist.

    Returns:
        The folder.

    Raises:
        ValueError: The name is unfit.
        FileExistsError: The folder exists.
        OSError: It can't be written.
    """
    check_name(name)
    device = device_name_for(name)
    dashed = name.replace("_", "-")
    words = {
        "@NAME@": name,
        "@DEVICE@": device,
        "@UPPER@": name.upper(),
        "@DASHED@": dashed,
        "@YEAR@": str(datetime.date.today().year),
        "@ABI@": _abi(),
        "@VERSION@": OPENREG_VERSION,
    }
    folder = directory if directory is not None else Path(f"torch-{dashed}")
    if folder.exists() or folder.is_symlink():
        raise FileExistsError(f"{folder} is there already; nothing was written")
    folder.mkdir(parents=True)
    for template in sorted(_TEMPLATES.rglob("*.in")):
        parts = [part.replace("NAME", name) for part in template.relative_to(_TEMPLATES).parts]
        parts = [f".{part[4:]}" if part.startswith("dot_") else part for part in parts]
        path = folder.joinpath(*parts).with_suffix("")
        path.parent.mkdir(parents=True, exist_ok=True)
        text = template.read_text(encoding="utf-8")
        for word, meaning in words.items():
            text = text.replace(word, meaning)
        path.write_text(text, encoding="utf-8")
    headers = folder / "include" / "openreg"
    headers.mkdir(parents=True)
    for header in _HEADERS:
        shutil.copyfile(Path(config.include_dir()) / "openreg" / header, headers / header)
    return folder
