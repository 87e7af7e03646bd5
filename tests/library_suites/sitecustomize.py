# SPDX-License-Identifier: BSD-3-Clause
"""Python imports this at the start of each process of a suite, also of those that tests start."""

import torchvision_operators  # noqa: F401
