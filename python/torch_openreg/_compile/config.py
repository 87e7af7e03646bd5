# SPDX-License-Identifier: BSD-3-Clause
"""What of this package decides how a graph is compiled: a part of the key of PyTorch's cache of compiled graphs.

Cached graphs hold wrapper code, which calls names of this package (``torch_openreg._compile.kernels``).
"""

import sys

from torch.utils._config_module import install_config_module

from torch_openreg._build_info import OPENREG_VERSION

# Of the code that is generated and of what it calls; raised whenever that changes.
_WRAPPER_CODE = 3

version: str = f"{OPENREG_VERSION}/{_WRAPPER_CODE}"

install_config_module(sys.modules[__name__])
