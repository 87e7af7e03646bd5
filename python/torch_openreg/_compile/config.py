# SPDX-License-Identifier: BSD-3-Clause
"""What of this package decides how a graph is compiled: a part of the key of PyTorch's cache of compiled graphs.

Cached graphs hold wrapper code, which calls names of this package (``torch_openreg._compile.kernels``).
"""

import hashlib
import pathlib
import sys

from torch.utils._config_module import install_config_module

from torch_openreg._build_info import OPENREG_VERSION


def _digest() -> str:
    """Returns a digest of this room's sources: the code that is generated, and what it calls."""
    digest = hashlib.sha256()
    for source in sorted(pathlib.Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


version: str = f"{OPENREG_VERSION}/{_digest()}"

install_config_module(sys.modules[__name__])
