# SPDX-License-Identifier: BSD-3-Clause
"""The device in PyTorch's tables: one module for each part of PyTorch that must know of it, with ``install()``."""
