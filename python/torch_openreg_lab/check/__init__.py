# SPDX-License-Identifier: BSD-3-Clause
"""Level 3 of the check of a driver: PyTorch on it. ``python -m torch_openreg check DRIVER --level 3``."""
