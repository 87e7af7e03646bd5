# SPDX-License-Identifier: BSD-3-Clause
"""Finds drivers: plugins, description files, the stored preference; and registers them with the runtime."""
