# SPDX-License-Identifier: BSD-3-Clause
"""Import, autoload, registration with torch, and use after fork()."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_openreg
from torch_openreg import config


# acceptance 2.11
def test_torch_openreg_is_the_package_s_module() -> None:
    assert torch.openreg is torch_openreg.openreg
    assert sys.modules["torch.openreg"] is torch_openreg.openreg
    import torch.openreg.random as through_torch

    assert through_torch is torch_openreg.openreg.random


# acceptance 1.1: importing opens nothing and loads no vendor library
def test_import_opens_nothing(python: Any) -> None:
    out = python(
        """
        import threading, torch, torch_openreg
        assert not torch.openreg.is_initialized()
        assert not torch_openreg._C._is_initialized()
        assert threading.active_count() == 1
        maps = open("/proc/self/maps").read()
        assert "libcuda.so" not in maps and "libamdhip64" not in maps
        assert "torch._dynamo" not in __import__("sys").modules
        torch.manual_seed(3)
        torch.ones(2).sum().item()
        assert not torch_openreg._C._is_initialized()
        """
    )
    assert out.stderr == ""


# acceptance 3.7
def test_importing_again_changes_nothing(python: Any) -> None:
    python(
        """
        import importlib, sys, torch, torch_openreg
        module, method = torch.openreg, vars(torch.Tensor)["openreg"]
        importlib.reload(torch_openreg)
        assert torch.openreg is module is torch_openreg.openreg
        assert vars(torch.Tensor)["openreg"] is method
        assert torch.utils.rename_privateuse1_backend("openreg") is None
        assert torch.ones(2).openreg().is_openreg
        """
    )


# acceptance 4.33, with the entry point of the installed package
def test_import_torch_is_enough(python: Any) -> None:
    out = python(
        "import torch; print(torch.empty(1, device='openreg').device, torch.zeros(1).to('privateuseone').device)"
    )
    assert out.stdout.split() == ["openreg:0", "openreg:0"]
    assert out.stderr == ""


# acceptance 4.33: its siblings: kernels and the operators without one, the types of autocast, the hooks
def test_operators_amp_and_hooks_are_there() -> None:
    for name, key in (("aten::empty.memory_format", "PrivateUse1"), ("aten::_copy_from", "PrivateUse1")):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(name, key), name
    assert torch.digamma(torch.ones(2, device="openreg")).device.type == "openreg"
    assert torch.bfloat16 in torch.openreg.get_amp_supported_dtype()
    with torch.autocast("openreg", dtype=torch.bfloat16):
        assert (torch.ones(2, 2, device="openreg") @ torch.ones(2, 2, device="openreg")).dtype == torch.bfloat16
    assert torch.accelerator.current_accelerator() == torch.device("openreg")
    assert torch.accelerator.is_available()


# acceptance 4.33
def test_autoload_off(python: Any) -> None:
    out = python(
        "import sys, torch; print(hasattr(torch, 'openreg'), 'torch_openreg' in sys.modules)",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert out.stdout.split() == ["False", "False"]
    python("import torch, torch_openreg; torch.empty(1, device='openreg')", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    out = python("import torch; print(hasattr(torch, 'openreg'))", OPENREG_AUTOLOAD="0")
    assert out.stdout.split() == ["False"]


# both orders of import, with autoload on
@pytest.mark.parametrize("code", ["import torch_openreg, torch", "import torch, torch_openreg"])
def test_either_order_of_import(python: Any, code: str) -> None:
    out = python(code + "; print(torch.ones(1, device='openreg').item(), torch_openreg.__version__)")
    assert out.stdout.startswith("1.0 ")
    assert out.stderr == ""


BROKEN_BINARY = """
    class Broken:
        def find_spec(self, name, path=None, target=None):
            if name == "torch_openreg._C":
                raise OSError("undefined symbol: _ZN3c10")
    sys.meta_path.insert(0, Broken())
"""


def copy_of_the_package(folder: Path, minors: tuple[str, ...]) -> dict[str, str]:
    """Puts the package without its binary part there, with folders for versions of torch, and has it imported."""
    ignored = shutil.ignore_patterns("lib", "bin", "include", "share", "__pycache__")
    shutil.copytree(Path(torch_openreg.__file__).parent, folder / "torch_openreg", ignore=ignored)
    for minor in minors:
        (folder / "torch_openreg" / "lib" / f"torch{minor}").mkdir(parents=True)
    return {"PYTHONPATH": str(folder)}


# a failure never breaks `import torch`, warns once, and is explained by an import
@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("other torch", f"is built for torch 2.8 and 2.10 here, but torch {torch.__version__} is installed"),
        ("no binary part", "has no binary part here"),
        ("broken binary", "undefined symbol: _ZN3c10"),
    ],
)
@pytest.mark.parametrize("flags", [(), ("-W", "error")], ids=["warnings", "warnings are errors"])
def test_a_failure_never_breaks_import_torch(
    python: Any, tmp_path: Path, reason: str, text: str, flags: tuple[str, ...]
) -> None:
    import inspect

    found = {"other torch": ("2.10", "2.8"), "no binary part": ()}.get(reason)
    environment = {} if found is None else copy_of_the_package(tmp_path, found)
    out = python(
        "import sys\n"
        + inspect.cleandoc(BROKEN_BINARY if reason == "broken binary" else "")
        + "\n"
        + inspect.cleandoc(
            """

            import warnings
            with warnings.catch_warnings():
                if sys.flags.dev_mode or sys.warnoptions:
                    warnings.simplefilter("ignore")
                    warnings.filterwarnings("error", category=RuntimeWarning)
                import torch
            print(torch.ones(2).sum().item(), hasattr(torch, "openreg"))
            try:
                import torch_openreg
            except Exception as error:
                print(type(error).__name__, error)
            """
        ),
        arguments=flags,
        **environment,
    )
    lines = out.stdout.splitlines()
    assert lines[0] == "2.0 False"
    assert text in lines[1]
    if not flags:
        assert out.stderr.count("torch_openreg was not loaded") == 1
        assert text in out.stderr


USABLE_CUDA = """
    import os, sys, types
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    import torch
    seen = []
    def available():
        seen.append(os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK"))
        return {usable}
    torch.cuda.is_available = available
    torch._C._accelerator_getAccelerator = lambda: torch.device("cuda")
    import _torch_openreg_autoload as entry
"""


# nothing is registered on a torch whose own accelerator works
def test_autoload_leaves_a_working_accelerator_alone(python: Any) -> None:
    code = (
        USABLE_CUDA
        + """
    entry._autoload()
    print("torch_openreg" in sys.modules, torch._C._get_privateuse1_backend_name(), seen)
    print("PYTORCH_NVML_BASED_CUDA_CHECK" in os.environ)
    """
    )
    out = python(code.format(usable=True), PYTORCH_NVML_BASED_CUDA_CHECK=None)  # a library may have set it here
    # the question did not initialise CUDA, and the environment is as before
    assert out.stdout.splitlines() == ["False privateuseone ['1']", "False"]
    out = python(code.format(usable=False))
    assert out.stdout.split()[:2] == ["True", "openreg"]


# one accelerator a process
def test_autoload_can_be_forced_and_import_says_so(python: Any) -> None:
    out = python(
        (USABLE_CUDA + "\n    entry._autoload(); print(hasattr(torch, 'openreg'))").format(usable=True),
        OPENREG_AUTOLOAD="1",
    )
    assert out.stdout.split() == ["True"]
    out = python((USABLE_CUDA + "\n    import torch_openreg; import torch_openreg").format(usable=True))
    assert out.stderr.count("backward() on 'cuda' fails from here on") == 1


# PyTorch has one place for such a device
def test_another_backend_has_the_place(python: Any) -> None:
    out = python(
        """
        import torch
        torch.utils.rename_privateuse1_backend("npu")
        try:
            import torch_openreg
        except ImportError as error:
            print(error)
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert "'npu' has taken it" in out.stdout


# a library that is loaded behind another backend changes nothing of PyTorch: what its constructors do is registration, which
# goes back at once
@pytest.mark.parametrize("is_behind", [True, False])
def test_the_library_behind_another_backend(python: Any, is_behind: bool) -> None:
    out = python(
        f"""
        import ctypes, glob, torch
        if {is_behind}:
            torch._C._acc.register_python_privateuseone_device_guard(torch._C._acc.DeviceGuard())
        cpu_allocator = ctypes.CDLL(glob.glob(torch.__path__[0] + "/lib/libc10.so")[0])["_ZN3c1015GetCPUAllocatorEv"]
        cpu_allocator.restype = ctypes.c_void_p
        def state():
            kernels = torch._C._dispatch_get_registrations_for_dispatch_key("PrivateUse1")
            return cpu_allocator(), kernels, torch._C._get_privateuse1_backend_name()
        before = state()
        library = ctypes.CDLL({config.torch_lib_dir()!r} + "/libtorch_openreg.so", ctypes.RTLD_GLOBAL)
        refusal = library["_ZN3c107openreg18registration_errorEv"]
        refusal.restype = ctypes.c_char_p
        print([old == new for old, new in zip(before, state())], refusal())
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    ).stdout
    refused = "b'another PrivateUse1 backend is registered in this process already'"
    assert out == (f"[True, True, True] {refused}\n" if is_behind else "[False, False, False] None\n")


# acceptance 5.11 a clear error in the child, never a hang; the parent goes on
def test_a_forked_child_gets_an_error(python: Any) -> None:
    out = python(
        """
        import os, torch
        x = torch.ones(4, device="openreg:1")
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            said = []
            for call in (
                lambda: torch.openreg.set_device(1),
                lambda: torch.openreg.init(),
                lambda: torch.openreg.drivers(),
                lambda: torch.empty(1, device="openreg"),
                lambda: x + 1,
                lambda: torch.openreg.synchronize(),
            ):
                try:
                    call()
                    said.append("no error")
                except RuntimeError as error:
                    said.append(str(error).splitlines()[0])
            said.append(str(torch.openreg._is_in_bad_fork()))
            said.append(str(torch.openreg.is_initialized()))
            torch.manual_seed(1)
            del x  # the parent's memory is dropped in silence
            os.write(write, "\\n".join(said).encode())
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        print(os.read(read, 10000).decode())
        print((x + 1).sum().item(), torch.openreg._is_in_bad_fork())
        """
    )
    lines = out.stdout.splitlines()
    assert all("fork" in line for line in lines[:6]), lines
    assert "Cannot re-initialize OpenReg in forked subprocess" in lines[0]
    assert "you must use the 'spawn' start method" in lines[0]
    assert lines[6:] == ["True", "False", "8.0 False"]


# a parent that has only imported and counted may fork, and the child may use the devices
def test_fork_before_the_first_use(python: Any) -> None:
    out = python(
        """
        import os, torch
        torch.openreg.device_count(), torch.manual_seed(1)
        child = os.fork()
        if child == 0:
            os._exit(int(torch.ones(4, device="openreg:1").sum().item()))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        print(torch.ones(3, device="openreg").sum().item())
        """
    )
    assert out.stdout.split() == ["4", "3.0"]


# worker processes of a DataLoader fork from an initialised parent and must be left alone
def test_dataloader_workers(python: Any) -> None:
    out = python(
        """
        import torch
        from torch.utils.data import DataLoader, TensorDataset
        x = torch.ones(1, device="openreg")
        data = TensorDataset(torch.arange(64.0))
        total = torch.zeros((), device="openreg")
        for (batch,) in DataLoader(data, 8, num_workers=2, pin_memory=True):
            assert batch.is_pinned()
            total += batch.to("openreg", non_blocking=True).sum()
        print(total.item())
        """
    )
    assert out.stdout.split() == ["2016.0"]


# the laboratory and the optional parts are loaded when something of theirs is used, not by the import
def test_the_laboratory_is_loaded_on_demand(python: Any) -> None:
    python(
        """
        import sys
        import torch
        torch.ones(1, device="openreg")
        loaded = {name for name in sys.modules if name.startswith(("torch_openreg_lab", "torch_openreg.contrib"))}
        assert not loaded, loaded
        assert "faults" in dir(torch.openreg) and torch.openreg.races() == []
        assert "torch_openreg_lab.races" in sys.modules and "torch_openreg_lab.check" not in sys.modules
        """,
        OPENREG_SIM_RACES=None,  # which is of the laboratory
    )
