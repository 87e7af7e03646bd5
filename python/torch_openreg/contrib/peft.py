# SPDX-License-Identifier: BSD-3-Clause
"""Makes openreg known to PEFT, and to Transformers and Accelerate below it.

Importing this module lets ``infer_device()``, by which PEFT chooses the device of adapters that it loads, say openreg
where it would say the CPU. ``disable()`` takes it back.
"""

from __future__ import annotations

import peft.utils.other

from torch_openreg.contrib._replacements import connection_of_choice
from torch_openreg.contrib.transformers import connection as _transformers

__all__ = ["disable", "enable", "is_enabled"]

connection = connection_of_choice("peft", peft.utils.other.infer_device, _transformers)
enable, disable, is_enabled = connection.enable, connection.disable, connection.is_enabled


if __name__ == "__main__":
    from torch_openreg.contrib import _script

    _script.main(__spec__)
else:
    enable()
