# SPDX-License-Identifier: BSD-3-Clause
"""A part of PyTorch's operator databases against the CPU, both ways; ``make opinfo`` runs them whole."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from finished import finished


# every sixth operator (`make opinfo` has all), its gradients, in-place and out= variants and errors: the CPU's results bit for
# bit, with its strides
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_operators_give_what_they_give_on_the_cpu(root: Path) -> None:
    done = finished(
        [
            *(sys.executable, str(root / "tests/opinfo/run.py"), "--ways", "aliased", "staged"),
            *("--dtypes", "float32", "--samples", "1", "--every", "6", "--jobs", "1"),
        ],
        timeout=850,
    )
    assert all(f"{way}: passed / run" in done.stdout for way in ("aliased", "staged"))


# tensors without memory, conjugated, negated, expanded and empty ones give what they give on the CPU, and none a crash
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["zero", "conjugated", "negated", "expanded", "empty"])
def test_other_kinds_of_tensors(root: Path, kind: str) -> None:
    finished(
        [
            *(sys.executable, str(root / "tests/opinfo/run.py")),
            *("--ways", "aliased", "--databases", "op", "--dtypes", "complex64" if kind == "conjugated" else "float32"),
            *("--samples", "1", "--every", "9", "--kind", kind),
        ],
        timeout=550,
    )


# what Inductor makes of operators, higher-order operators and layers: the CPU's results, in as many kernels
@pytest.mark.long
@pytest.mark.timeout(300)
def test_compiled_operators(root: Path, tmp_path: Path) -> None:
    entries = (
        "op/cat",
        "op/argmax",
        "op/nn.functional.layer_norm",
        "hop/cond.simple",
        "hop/map.nested",
        "module/nn.Embedding",
    )
    done = finished(
        [
            *(sys.executable, str(root / "tests/opinfo/run.py"), "--kind", "compiled", "--ways", "aliased"),
            *("--samples", "1", "--jobs", "1"),
            *(f"--entries={entry}/float32" for entry in entries),
        ],
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TORCHINDUCTOR_COMPILE_THREADS": "1"},
        timeout=280,
    )
    assert re.search(rf"all +{len(entries)} / {len(entries)}", done.stdout)


# a difference, a crash and a hang are found, and cost one entry each
@pytest.mark.long
def test_the_harness_notices_what_is_wrong(root: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        f"""
import os, sys, time
sys.path.insert(0, {str(root / "tests/opinfo")!r})
import checks, worker
from torch_openreg_lab.check import paired_tensors

class Broken(checks.Checks):
    def run(self):
        if self.entry.operator == "abs":
            os.abort()
        if self.entry.operator == "acos":
            time.sleep(600)
        return super().run()

tensor = paired_tensors.Mover.tensor

def device_adds_one(mover, original):
    moved = tensor(mover, original)
    return moved if moved.is_cpu else (moved.detach() + 1).requires_grad_(original.requires_grad)

paired_tensors.Mover.tensor = device_adds_one
checks.Checks = Broken
worker.main()
"""
    )
    done = finished(
        [
            *(sys.executable, "-c"),
            f"""
import sys
sys.path.insert(0, {str(root / "tests/opinfo")!r})
import run
started = run.Worker.__init__
def start(self, *args):
    started(self, *args)
    self._command[1] = {str(tmp_path / "broken.py")!r}
run.Worker.__init__ = start
sys.argv = "run.py --jobs 1 --timeout 5 --ways aliased --dtypes float32".split()
for name in ("abs", "acos", "exp", "ones"):
    sys.argv += ["--entries", f"op/{{name}}/*"]
sys.exit(run.main())
""",
        ],
        status=1,
        timeout=250,
    )
    assert "op/abs/float32 [process]: crashed, status -6" in done.stdout
    assert "op/acos/float32 [process]: hung" in done.stdout
    assert re.search(r"op/exp/float32 \[forward\]: sample 0: .*not equal", done.stdout)
    assert "op/ones/" not in done.stdout
    assert re.search(r"all +1 / 4", done.stdout)
