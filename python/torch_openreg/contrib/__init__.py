# SPDX-License-Identifier: BSD-3-Clause
"""Helpers and connections to other libraries, each imported by name: torch_openreg itself imports none of them."""
