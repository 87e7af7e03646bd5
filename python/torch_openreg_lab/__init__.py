# SPDX-License-Identifier: BSD-3-Clause
"""The lab: race detection, injected faults, exploration of schedules, the pytest plugin, level 3 of the check.

Nothing of it is imported by ``import torch_openreg``; ``torch.openreg.detect_races`` and its like load what they need.
PYTEST_DONT_REWRITE
"""
