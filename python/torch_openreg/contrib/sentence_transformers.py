# SPDX-License-Identifier: BSD-3-Clause
"""Makes openreg known to Sentence Transformers, and to Transformers and Accelerate below it.

Importing this module lets a ``SentenceTransformer`` without a device take openreg where it would take the CPU.
``disable()`` takes it back.
"""

from __future__ import annotations

import sentence_transformers.base.model  # which imports the function
import sentence_transformers.util

from torch_openreg.contrib._replacements import connection_of_choice
from torch_openreg.contrib.transformers import connection as _transformers

__all__ = ["disable", "enable", "is_enabled"]

connection = connection_of_choice(
    "sentence_transformers", sentence_transformers.util.get_device_name, _transformers, has_index=True
)
enable, disable, is_enabled = connection.enable, connection.disable, connection.is_enabled


if __name__ == "__main__":
    from torch_openreg.contrib import _script

    _script.main(__spec__)
else:
    enable()
