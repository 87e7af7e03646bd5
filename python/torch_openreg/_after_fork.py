# SPDX-License-Identifier: BSD-3-Clause
"""What must be made again in the child of a fork()."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any


def renew(variables: dict[str, Any], **makers: Callable[[], object]) -> None:
    """Gives variables of a module new values in the child of every fork(), before anything else of Python runs there.

    It replaces locks: a thread of the parent that held one does not exist in the child, so it would never be released.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: variables.update((name, make()) for name, make in makers.items()))
