# SPDX-License-Identifier: BSD-3-Clause
"""Finds drivers: plugins, description files, the stored preference; and tells the runtime of them."""
