# SPDX-License-Identifier: BSD-3-Clause
"""What the pytest plugin (``_torch_openreg_pytest``) does around single tests; imported when an option asks for it."""
