# SPDX-License-Identifier: BSD-3-Clause
"""Tensors in several processes: torch.multiprocessing over fork and spawn."""

from __future__ import annotations

import copy
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp

from torch_openreg import _C

# Run in an interpreter of its own, which must not have opened the devices before it forks. The child and the parent
# take turns; what either finds is checked in the parent.
_HEAD = """
import gc, sys
import torch
import torch.multiprocessing as mp

def answer(ours, theirs):
    for command in iter(ours.get, "stop"):
        theirs.put(work(command))

def held(index=1):
    torch.openreg.ipc_collect()
    return torch.openreg.memory_allocated(index)

class Child:
    def __init__(self, method):
        context = mp.get_context(method)
        self.there, self.back = context.Queue(), context.Queue()
        self.process = context.Process(target=answer, args=(self.there, self.back))
        self.process.start()

    def ask(self, command):
        self.there.put(command)
        return self.back.get(timeout=60)

    def stop(self):
        self.there.put("stop")
        self.process.join(60)
        assert self.process.exitcode == 0
"""

METHODS = pytest.mark.parametrize("method", ["fork", "spawn"])


def _run(python: Any, tmp_path: Any, work: str, main: str, method: str, **environment: str) -> Any:
    path = tmp_path / "program.py"
    indented = "\n".join("    " + line for line in main.splitlines())
    path.write_text(
        f'{_HEAD}\n{work}\nif __name__ == "__main__":\n    child = Child({method!r})\n{indented}\n    child.stop()\n'
    )
    return python(
        f"import runpy, sys; sys.argv = [{str(path)!r}]; runpy.run_path({str(path)!r}, run_name='__main__')",
        cwd=tmp_path,
        arguments=("-W", "error"),
        OPENREG_SIM_MEMORY="256M",
        **environment,
    )


# a write of the child is seen by the parent and the other way round; views and repeats of one storage are one storage
@METHODS
def test_sharing(python: Any, tmp_path: Any, method: str) -> None:
    work = """
kept = []
def work(command):
    if command == "add":
        kept[0].add_(10)
        torch.openreg.synchronize(1)
        return [x.tolist() for x in kept]
    if command == "one storage":
        return len({x.untyped_storage()._cdata for x in kept})
    kept.append(command)
    return (str(command.device), str(command.dtype), tuple(command.stride()), command.requires_grad)
"""
    main = """
x = torch.arange(6.0, device="openreg:1")
assert child.ask(x) == ("openreg:1", "torch.float32", (1,), False)
assert child.ask(x[2:4]) == ("openreg:1", "torch.float32", (1,), False)
assert child.ask(x.reshape(2, 3).t())[2] == (1, 3)
assert child.ask("one storage") == 1
assert child.ask("add") == [[10, 11, 12, 13, 14, 15], [12, 13], [[10, 13], [11, 14], [12, 15]]]
assert x.tolist() == [10, 11, 12, 13, 14, 15]
x.zero_()
assert child.ask("add")[1] == [10, 10]
assert child.ask(torch.nn.Parameter(torch.ones(2, device="openreg:0")))[3] is True
assert child.ask(torch.empty(0, device="openreg:1"))[0] == "openreg:1"
assert child.ask(torch.ones(2)) == ("cpu", "torch.float32", (1,), False)  # the CPU's way is as it was
"""
    _run(python, tmp_path, work, main, method)


# the parent's block lives as long as the child holds it, and is freed when it lets go
@METHODS
def test_the_producer_s_block_outlives_its_tensor(python: Any, tmp_path: Any, method: str) -> None:
    work = """
kept = {}
def work(command):
    if command == "drop":
        kept.clear()
        gc.collect()
    elif command == "read":
        return [x.sum().item() for x in kept.values()]
    else:
        kept[len(kept)] = command
"""
    main = """
assert held() == 0
x = torch.full((1000,), 3.0, device="openreg:1")
child.ask(x)
child.ask(x[:10])
one = held()
del x
assert held() == one
filler = [torch.full((1000,), 7.0, device="openreg:1") for _ in range(20)]  # none of them gets the block
assert child.ask("read") == [3000.0, 30.0]
del filler
assert held() == one
child.ask("drop")
assert held() == 0
# freed by the child first, the block is freed with the tensor, without further ado
y = torch.ones(1000, device="openreg:1")
child.ask(y)
child.ask("drop")
del y
assert torch.openreg.memory_allocated(1) == 0
"""
    _run(python, tmp_path, work, main, method)


# memory that other processes have released since is found when memory is short
def test_released_memory_is_found(python: Any, tmp_path: Any) -> None:
    work = """
kept = []
def work(command):
    kept.clear() if command == "drop" else kept.append(command)
"""
    main = """
x = torch.empty(200 << 20, dtype=torch.uint8, device="openreg:1")
child.ask(x)
del x
try:
    torch.empty(200 << 20, dtype=torch.uint8, device="openreg:1")
    raise SystemExit("the child holds the memory")
except torch.OutOfMemoryError:
    pass
child.ask("drop")
torch.empty(200 << 20, dtype=torch.uint8, device="openreg:1")
"""
    _run(python, tmp_path, work, main, "spawn")


# a consumer that does not import before the producer has ended is told; one that has imported keeps the memory
def test_the_producer_ends_first(python: Any, tmp_path: Any) -> None:
    work = """
from multiprocessing.reduction import ForkingPickler
def work(command):
    global x
    x = torch.arange(4.0, device="openreg:1")
    return [bytes(ForkingPickler.dumps(x)) for _ in range(2)]
"""
    main = """
import pickle
early, late = child.ask("two handles")
x = pickle.loads(early)
child.there.put("stop")
child.process.join()
assert x.tolist() == [0, 1, 2, 3]
x.add_(1)
assert x.tolist() == [1, 2, 3, 4]
del x
gc.collect()
try:
    pickle.loads(late)
    raise SystemExit("there is no such process")
except RuntimeError as error:
    assert "has ended" in str(error), error
"""
    _run(python, tmp_path, work, main, "spawn")


# in the process that exported it a tensor comes back as itself
def test_in_one_process() -> None:
    x = torch.arange(4.0, device="openreg:1")
    before = torch.openreg.memory_allocated(1)
    y = ForkingPickler.loads(ForkingPickler.dumps(x))
    assert y.untyped_storage()._cdata == x.untyped_storage()._cdata
    y.zero_()
    assert x.tolist() == [0] * 4
    del x, y
    torch.openreg.ipc_collect()
    assert torch.openreg.memory_allocated(1) < before


# the original may have gone meanwhile: the handle holds the block, once for every time that it was made
def test_a_handle_holds_the_block() -> None:
    torch.openreg.ipc_collect()
    before = torch.openreg.memory_allocated(1)
    x = torch.arange(4.0, device="openreg:1")
    handle = ForkingPickler.dumps(x)
    del x
    torch.openreg.ipc_collect()
    assert torch.openreg.memory_allocated(1) > before
    y = ForkingPickler.loads(handle)
    z = ForkingPickler.loads(handle)
    assert z.untyped_storage()._cdata == y.untyped_storage()._cdata
    assert y.tolist() == [0, 1, 2, 3]
    assert (y + 1).tolist() == [1, 2, 3, 4]
    with pytest.raises(RuntimeError, match="not resizable"):
        y.untyped_storage().resize_(1000)
    y.record_stream(torch.openreg.Stream(1))
    twin = copy.deepcopy(y)
    del y, z
    torch.openreg.ipc_collect()
    with pytest.raises(RuntimeError, match="imported and released already"):
        ForkingPickler.loads(handle)
    del twin
    assert torch.openreg.memory_allocated(1) == before


def test_refusals() -> None:
    x = torch.ones(2, device="openreg", requires_grad=True)
    with pytest.raises(RuntimeError, match="Cowardly refusing to serialize non-leaf tensor"):
        ForkingPickler.dumps(x * 2)
    handle, _ = _C._export_storage(x.untyped_storage())
    with pytest.raises(RuntimeError, match="bytes, but 1000000 were requested"):
        _C._import_storage(handle, 1_000_000)
    with pytest.raises(RuntimeError, match="invalid memory handle"):
        _C._import_storage(bytes(len(handle)), 0)
    with pytest.raises(ValueError, match="A handle of shared memory has"):
        _C._import_storage(b"short", 0)
    with pytest.raises(TypeError, match="Expected an UntypedStorage"):
        _C._export_storage(x)


# as torch.cuda's: what is on the device is shared already
def test_share_memory() -> None:
    x = torch.ones(2, device="openreg")
    assert x.is_shared()
    assert x.share_memory_() is x
    assert x.untyped_storage().is_shared()
    assert torch.nn.Linear(2, 2).to("openreg").share_memory().weight.is_shared()


# spawn() of torch.multiprocessing, which starts processes with the arguments pickled
def _fill(index: int, x: torch.Tensor) -> None:
    x[index] = index + 1
    torch.openreg.synchronize(x.device)


@pytest.mark.filterwarnings("ignore:os.fork")
def test_spawn() -> None:
    x = torch.zeros(2, device="openreg:1")
    mp.spawn(_fill, (x,), nprocs=2)
    assert x.tolist() == [1, 2]
