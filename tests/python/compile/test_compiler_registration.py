# SPDX-License-Identifier: BSD-3-Clause
"""How torch.compile learns of the device, and what it keeps between processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from finished import Program

COMPILED = """
    import torch
    from torch._dynamo.utils import counters
    {change}
    def function(x, y):
        return (x.sin() * y + 1).sum(-1)
    x = torch.arange(12.0).view(3, 4)
    got = torch.compile(function)(x.to("openreg:1"), x.to("openreg:1"))
    torch.testing.assert_close(got.cpu(), function(x, x))
    print(counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"])
"""


# `import torch` with this package imports nothing of the compilers, and registers them when they are imported, in
# whichever order
def test_compilers_are_registered_without_being_imported(python: Program) -> None:
    python(
        """
        import sys, torch, torch_openreg
        assert not [name for name in sys.modules if name.startswith(("torch._dynamo", "torch._inductor"))]
        import torch._inductor.codegen.common as common
        from torch._dynamo.device_interface import get_interface_for_device
        assert common.get_scheduling_for_device("openreg") is not None
        assert not torch.openreg.is_initialized()
        torch.ones(1, device="openreg")
        for name in ("openreg", "openreg:1", torch.device("openreg", 1)):
            assert get_interface_for_device(name).device_count() == 2
        assert "openreg" in torch._dynamo.list_backends()
        """
    )
    python(
        """
        import os
        import torch._dynamo, torch._inductor.compile_fx
        import torch_openreg, torch
        assert torch.compile(lambda x: x.sin() + 1)(torch.zeros(3, device="openreg")).tolist() == [1, 1, 1]
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )


# registering costs next to nothing: what it adds to the import is below 10 ms
def test_registration_is_cheap(python: Program) -> None:
    done = python(
        """
        import sys, time, torch, torch_openreg
        from torch_openreg._compile import _hooks
        for name in [n for n in sys.modules if n.startswith("torch_openreg._compile")]:
            del sys.modules[name]
        sys.meta_path[:] = [f for f in sys.meta_path if not isinstance(f, _hooks._Finder)]
        start = time.process_time()
        import torch_openreg._compile
        torch_openreg._compile.install()
        print(time.process_time() - start)
        """
    )
    assert float(done.stdout) < 0.010


# a second process finds the graph compiled; one with another version of this package doesn't
@pytest.mark.long
def test_graphs_are_cached_by_version(python: Program, tmp_path: Path) -> None:
    folder = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}
    assert python(COMPILED.format(change=""), **folder).stdout.split() == ["0", "1"]
    assert python(COMPILED.format(change=""), **folder).stdout.split() == ["1", "0"]
    other = "import torch_openreg._compile.config as config; config.version = 'another'"
    assert python(COMPILED.format(change=other), **folder).stdout.split() == ["0", "1"]


# no attribute of PyTorch is another one after the registrations
def test_nothing_of_pytorch_is_replaced(python: Program) -> None:
    python(
        """
        import sys
        import torch, torch._inductor.compile_fx
        names = [n for n in sys.modules if n.startswith(("torch._dynamo", "torch._inductor"))]
        x = torch.ones(3, device="openreg", requires_grad=True)
        torch.compile(lambda x: x.sin().sum())(x).backward()
        for name in names:
            module = sys.modules[name]
            for key, value in list(vars(module).items()):
                owner = getattr(value, "__module__", None) or ""
                assert not str(owner).startswith("torch_openreg"), (name, key)
                if isinstance(value, type):
                    for attribute, member in list(vars(value).items()):
                        function = getattr(member, "__func__", member)
                        assert not str(getattr(function, "__module__", "")).startswith("torch_openreg"), (name, key, attribute)
        """
    )
