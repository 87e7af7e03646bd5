# SPDX-License-Identifier: BSD-3-Clause
"""Operators of a GPU's devices run PyTorch's kernels for GPUs: on openreg's memory, streams and generators."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from finished import finished

from torch_openreg import config

Program = Callable[..., "subprocess.CompletedProcess[str]"]


# the kernel of the GPU runs, once an operator, and its results are the CPU's
def test_operators_run_the_kernels_of_the_gpu(gpu: Program) -> None:
    gpu(
        """
        a, b = torch.randn(8, 5), torch.randn(5, 8)
        x, y = a.to(D), b.to(D)
        torch.openreg.reset_operator_stats()
        before = fake.fake_torch_cuda_calls()
        result = x @ y
        assert fake.fake_torch_cuda_calls() == before + 1
        assert all_on_gpu()
        assert result.device == D
        torch.testing.assert_close(result.cpu(), a @ b)
        assert (x + 1).sum().item() == pytest.approx((a + 1).sum().item())
        torch.testing.assert_close(torch.where(x > 0, x, 2.0).cpu(), torch.where(a > 0, a, 2.0))
        assert torch.equal(torch.zeros(3, device=D).cpu(), torch.zeros(3))
        assert all_on_gpu(), figures()
        """
    )


# identity, storages and views are those of the CPU: in-place, out=, resized outputs, views, lists
def test_results_keep_identity_and_storage(gpu: Program) -> None:
    gpu(
        """
        x = torch.arange(12.0, device=D).view(3, 4)
        assert x.add_(1) is x
        assert x.t().mul_(2).data_ptr() == x.data_ptr()
        assert x[1].sum().item() == 2 * (5 + 6 + 7 + 8)
        diagonal = x.diagonal()
        diagonal.zero_()
        assert x[2, 2].item() == 0
        out = torch.empty(0, device=D)
        assert torch.mul(x, 3, out=out) is out
        assert out.shape == (3, 4) and torch.equal(out.cpu(), x.cpu() * 3)
        narrow = torch.empty(2, device=D)
        narrow.resize_(5).fill_(4)
        assert narrow.tolist() == [4.0] * 5
        values, indices = torch.topk(x.flatten(), 3)
        assert (values.device, indices.device) == (D, D)
        assert torch.equal(indices.cpu(), torch.topk(x.cpu().flatten(), 3).indices)
        parts = [torch.ones(2, device=D), torch.ones(3, device=D)]
        torch._foreach_add_(parts, 2.0)
        assert [part.tolist() for part in parts] == [[3.0] * 2, [3.0] * 3]
        first, second = torch.split(x, [1, 3], dim=1)
        first.fill_(9)
        assert x[0, 0].item() == 9
        complex_ = torch.tensor([1 + 2j, 3 - 1j], device=D)
        assert complex_.conj().resolve_conj().tolist() == [1 - 2j, 3 + 1j]
        """
    )


# the current openreg stream is PyTorch's current stream for the length of a call, and the previous one is back after it
def test_the_current_stream_is_handed_over_and_taken_back(gpu: Program) -> None:
    gpu(
        """
        fake.fake_torch_cuda_set_delay(100_000)
        side = torch.openreg.Stream(D)
        pinned = torch.full((1000,), 3.0).pin_memory()
        target = torch.zeros(1000, device=D)
        torch.openreg.synchronize()
        with torch.openreg.stream(side):
            target.copy_(pinned, non_blocking=True)
            result = target + 1  # behind the copy: on another stream it would be gone through before
        assert fake.fake_torch_cuda_last_stream() == side.native_handle != 0
        assert fake.fake_torch_cuda_current_stream() == 0
        torch.openreg.current_stream(D).wait_stream(side)
        total = result.sum()
        assert fake.fake_torch_cuda_last_stream() == 0
        assert total.item() == 4000
        """
    )


# acceptance: nothing is waited for but what a result is asked for; a kernel's result arrives late, and copies wait
def test_what_a_kernel_has_queued_is_waited_for(gpu: Program) -> None:
    gpu(
        """
        x = torch.ones(100, device=D)
        x.sum().item()
        fake.fake_torch_cuda_set_delay(50_000)
        y = x * 5
        assert not torch.openreg.current_stream().query()
        assert y.cpu().eq(5).all()
        z = y + 1
        assert z.tolist() == [6.0] * 100
        host = torch.empty(100).pin_memory()
        host.copy_(z * 2, non_blocking=True)
        torch.openreg.synchronize()
        assert host.eq(12).all()
        """
    )


# a kernel is given the same memory at each replay, while the capture's results still have it
def test_graphs_of_kernels_are_replayed(gpu: Program) -> None:
    gpu(
        """
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).to(D)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        inputs = [torch.randn(6, 8) for _ in range(4)]
        start = [p.detach().clone() for p in model.parameters()]
        x = inputs[0].to(D)

        def step():
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss, model(x)

        def losses(work):
            with torch.no_grad():
                for p, before in zip(model.parameters(), start, strict=True):
                    p.copy_(before)
            found = []
            for batch in inputs:
                x.copy_(batch)
                loss, output = work()
                found += [loss.item(), output.sum().item()]
            return found

        eager = losses(step)
        graph = torch.openreg.OpenRegGraph()
        with torch.openreg.graph(graph):
            kept = step()

        def replay():
            graph.replay()
            return kept

        assert losses(replay) == pytest.approx(eager, rel=1e-4)
        del kept
        graph.reset()
        assert losses(step) == pytest.approx(eager, rel=1e-4)
        assert all_on_gpu(), figures()
        """
    )


# the GPU is the one that the driver's number says, whatever is current and whatever devices are visible
def test_the_right_gpu_is_current(gpu: Program) -> None:
    gpu(
        """
        second = torch.ones(4, device="openreg:1")
        assert (second + second).tolist() == [2.0] * 4  # the stand-in refuses tensors of a device that is not current
        assert fake.fake_torch_cuda_current_device() == 0
        torch.openreg.set_device(1)
        first = torch.ones(4, device="openreg:0")
        assert (first * 3).tolist() == [3.0] * 4
        assert torch.arange(3, device="openreg:0").device.index == 0
        moved = first.to("openreg:1")
        assert (moved + second).tolist() == [2.0] * 4
        assert first[::2].double().to("openreg:1").tolist() == [1.0, 1.0]
        with pytest.raises(RuntimeError, match="same device"):
            first + second
        """
    )


def test_visible_devices_move_the_numbers(gpu: Program) -> None:
    gpu(
        """
        assert torch.openreg.device_count() == 1
        x = torch.ones(4, device="openreg:0") + 1
        assert torch.openreg.devices()[0].ordinal == 1
        assert x.tolist() == [2.0] * 4
        """,
        OPENREG_CUDA_VISIBLE_DEVICES="1",
    )


# results and temporaries are blocks of openreg's cache: statistics, limits and errors are true
def test_memory_comes_out_of_openregs_cache(gpu: Program) -> None:
    gpu(
        """
        x = torch.ones(1 << 20, device=D)
        before = torch.openreg.memory_allocated()
        y = x + x
        assert torch.openreg.memory_allocated() == before + y.nbytes
        assert fake.fake_torch_cuda_own_allocations() == 0
        y.record_stream(torch.openreg.Stream(D))
        del y
        torch.openreg.synchronize()
        assert torch.openreg.memory_allocated() == before
        with pytest.raises(torch.OutOfMemoryError):
            torch.nn.functional.pad(x, (0, 400 << 20))
        assert (x + 1)[0].item() == 2
        del x
        torch.openreg.synchronize()
        torch.openreg.empty_cache()
        assert torch.openreg.memory_reserved() == 0
        assert fake.fake_torch_cuda_violations() == 0
        """
    )


# something has used "cuda" before: PyTorch keeps its allocator, which is said, and results are copied
def test_an_allocator_in_use_stays_and_results_are_copied(gpu: Program) -> None:
    gpu(
        """
        with pytest.warns(UserWarning, match="keeps its own allocator for CUDA.*already initialized"):
            x = torch.ones(1000, device=D)
        fake.fake_torch_cuda_set_delay(20_000)
        own = fake.fake_torch_cuda_own_allocations()
        y = (x + 2).mul_(2)
        assert fake.fake_torch_cuda_own_allocations() > own
        assert y.tolist() == [6.0] * 1000
        out = torch.empty(0, device=D)
        torch.add(x, 1, out=out)
        assert out.tolist() == [2.0] * 1000
        model = torch.nn.Linear(1000, 3).to(D)
        model(x).sum().backward()
        assert model.weight.grad.eq(1).all()
        assert torch.openreg.memory_allocated() > 0
        """,
        OPENREG_DRIVERS="",  # with "cuda" the import would warn
        FAKE_TORCH_CUDA_IN_USE="1",
    )


# the allocator is replaced when the GPU's driver is opened: what asks torch.cuda for a property after that comes too late
# to keep PyTorch's, and before that keeps it
def test_the_allocator_is_replaced_before_the_first_operator(gpu: Program) -> None:
    gpu(
        """
        def allocator():
            return torch.openreg.operator_stats()["gpu_allocator"]

        assert allocator() is None
        assert torch.openreg.get_device_name(0)  # opens the driver
        assert allocator() == "openreg", (allocator(), torch.openreg.devices())
        fake.fake_torch_cuda_init()
        x = torch.ones(1 << 10, device=D) + 1
        assert fake.fake_torch_cuda_own_allocations() == 0
        """,
        OPENREG_DRIVERS="",
    )


# OPENREG_DRIVERS=cuda says so before a driver is opened: the import replaces it
def test_an_import_replaces_the_allocator_where_the_driver_is_asked_for(gpu: Program) -> None:
    gpu(
        """
        assert not torch.openreg.is_initialized()
        assert torch.openreg.operator_stats()["gpu_allocator"] == "openreg"
        fake.fake_torch_cuda_init()
        x = torch.ones(1 << 10, device=D) + 1
        assert fake.fake_torch_cuda_own_allocations() == 0
        """
    )


# PyTorch's own "cuda" allocates from openreg's cache before an operator has run on openreg
def test_cuda_itself_allocates_before_openreg_has_been_used(gpu: Program) -> None:
    gpu(
        """
        before = torch.openreg.memory_allocated()
        fake.fake_torch_cuda_hold_to_the_end()
        assert torch.openreg.memory_allocated() > before
        """
    )


# a block that is freed after PyTorch's static objects have ended still finds its allocator
def test_a_block_may_be_freed_at_the_very_end(gpu: Program) -> None:
    gpu("x = torch.ones(4, device=D) + 1\nfake.fake_torch_cuda_hold_to_the_end()")


# cuDNN's benchmarks need PyTorch's own allocator: the switch is turned off, with one warning, and convolutions run
def test_cudnn_benchmarks_are_switched_off(gpu: Program) -> None:
    gpu(
        """
        net, x = torch.nn.Conv2d(3, 4, 3).to(D), torch.randn(2, 3, 8, 8).to(D)
        torch.backends.cudnn.benchmark = True
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            first, second = net(x), net(x)
            first.sum().backward()
        assert [str(one.message) for one in caught if "benchmark is switched off" in str(one.message)], caught
        assert not torch.backends.cudnn.benchmark
        assert torch.equal(first.cpu(), second.cpu())
        """
    )


# with PyTorch's own allocator benchmarks work, and stay on
def test_cudnn_benchmarks_stay_on_with_torchs_allocator(gpu: Program) -> None:
    gpu(
        """
        warnings.simplefilter("ignore")
        net, x = torch.nn.Conv2d(3, 4, 3).to(D), torch.randn(2, 3, 8, 8).to(D)
        torch.backends.cudnn.benchmark = True
        net(x)
        assert torch.backends.cudnn.benchmark
        assert torch.openreg.operator_stats()["gpu_allocator"] == "torch"
        """,
        FAKE_TORCH_CUDA_IN_USE="1",
    )


# what PyTorch pins by itself is openreg's pinned memory: copies from it don't wait, and it isn't reused under them
def test_pinned_factories_make_openregs_pinned_memory(gpu: Program) -> None:
    gpu(
        """
        x = torch.zeros(1 << 16, device=D)
        torch.openreg.synchronize()
        block = torch.empty(1 << 16, pin_memory=True)
        assert fake.fake_torch_cuda_own_pinned() == 0
        assert block.is_pinned()
        block.fill_(3)
        fake.fake_torch_cuda_set_delay(50_000)
        x.copy_(block, non_blocking=True)
        assert not torch.openreg.current_stream().query()
        address = block.data_ptr()
        del block
        again = torch.empty(1 << 16, pin_memory=True)
        assert again.data_ptr() != address
        again.fill_(9)
        assert x.cpu().eq(3).all()
        # a kernel of PyTorch's that copies to a pinned block says so with its own stream
        assert fake.fake_torch_cuda_record_pinned(again.data_ptr()) == 1
        assert fake.fake_torch_cuda_record_pinned(x.data_ptr()) == 0
        """
    )


# a device-side assert is an error of every later call, and not the end of the process
def test_a_device_side_assert_is_an_error(gpu: Program) -> None:
    done = gpu(
        """
        x = torch.ones(4, device=D)
        x + 1
        fake.fake_torch_cuda_lose()
        for _ in range(3):
            with pytest.raises(RuntimeError, match="device-side assert"):
                x + 1
        print("the end is reached")
        """
    )
    assert "the end is reached" in done.stdout


# each fused kernel that a GPU may choose, with gradients, with and without a mask
@pytest.mark.parametrize(
    "kernel", ["flash", *(pytest.param(other, marks=pytest.mark.long) for other in ("efficient", "cudnn", "math"))]
)
def test_each_attention_kernel_gives_gradients(gpu: Program, kernel: str) -> None:
    gpu(
        """
        import torch.nn.functional as F
        for masked in (False, True):
            parts = [torch.randn(2, 3, 8, 16, requires_grad=True) for _ in range(3)]
            mask = torch.randn(8, 8) if masked else None
            near = [part.detach().to(D).requires_grad_() for part in parts]
            ours = F.scaled_dot_product_attention(*near, attn_mask=None if mask is None else mask.to(D))
            theirs = F.scaled_dot_product_attention(*parts, attn_mask=mask)
            torch.testing.assert_close(ours.cpu(), theirs)
            ours.sum().backward()
            theirs.sum().backward()
            for one, other in zip(near, parts):
                torch.testing.assert_close(one.grad.cpu(), other.grad)
        assert torch.openreg.operator_stats()["staged_calls"] == 0, figures()
        """,
        FAKE_TORCH_CUDA_ATTENTION=kernel,
    )


# openreg's seed is that of every kernel, with and without a generator argument; states and offsets are the GPU's
def test_generators_are_the_gpus(gpu: Program) -> None:
    gpu(
        """
        def draws():
            return torch.cat([torch.rand(5, device=D), torch.nn.functional.dropout(torch.ones(50, device=D), 0.5)]).cpu()

        torch.manual_seed(3)
        first = draws()
        torch.manual_seed(3)
        assert torch.equal(draws(), first)
        assert not torch.equal(draws(), first)
        state = torch.openreg.get_rng_state(D)
        again = draws()
        torch.openreg.set_rng_state(state, D)
        assert torch.equal(draws(), again)
        assert all_on_gpu(), figures()

        generator = torch.Generator(D).manual_seed(7)
        one = torch.randn(4, device=D, generator=generator)
        offset = generator.get_offset()
        assert offset > 0
        generator.manual_seed(7)
        assert generator.get_offset() == 0
        assert torch.equal(torch.randn(4, device=D, generator=generator).cpu(), one.cpu())
        twin = generator.clone_state()
        assert torch.equal(
            torch.randn(4, device=D, generator=generator).cpu(), torch.randn(4, device=D, generator=twin).cpu()
        )
        assert generator.initial_seed() == 7
        """
    )


# never silent: what PyTorch has no kernel for is staged, counted by name, and right
def test_an_operator_without_a_kernel_is_staged_and_counted(gpu: Program) -> None:
    gpu(
        """
        x = torch.arange(6.0, device=D)
        torch.openreg.reset_operator_stats()
        sums = torch.cumsum(x, 0)
        assert figures() == {"aten::cumsum": 1}
        assert sums.tolist() == torch.arange(6.0).cumsum(0).tolist()
        torch.openreg.set_operator_policy("forbid", mode="staged")
        with pytest.raises(RuntimeError, match="aten::cumsum would run staged on openreg:0"):
            torch.cumsum(x, 0)
        x + 1
        """,
        FAKE_TORCH_CUDA_MISSING="aten::cumsum",
    )


# a PyTorch without kernels for GPUs: the same driver, every operator staged and counted
def test_without_kernels_operators_are_staged(without_kernels: Program) -> None:
    without_kernels(
        """
        x = torch.ones(8, 8, device=D)
        torch.openreg.reset_operator_stats()
        y = x @ x
        assert figures() == {"aten::mm": 1}
        assert torch.openreg.operator_stats()["aliased_calls"] == 0
        assert y.cpu().eq(8).all()
        """
    )


def test_the_variable_stages_operators_of_a_gpu_too(gpu: Program) -> None:
    gpu(
        """
        before = fake.fake_torch_cuda_calls()
        assert (torch.ones(3, device=D) + 1).tolist() == [2.0] * 3
        assert fake.fake_torch_cuda_calls() == before
        assert figures()["aten::add"] == 1
        """,
        OPENREG_OPERATORS="staged",
    )


# attention takes the GPU's fused kernel, forward and backward, and what that needs of one reaches the other
def test_attention_takes_the_fused_kernel_of_the_gpu(gpu: Program) -> None:
    gpu(
        """
        def run(width, device):
            torch.manual_seed(0)
            tensors = [torch.randn(2, 3, 10, width).to(device).requires_grad_() for _ in range(3)]
            result = torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=True)
            result.square().sum().backward()
            return [result.detach().cpu(), *(tensor.grad.cpu() for tensor in tensors)]

        for width in (16, 12):  # 12: rows that the fused kernel doesn't take
            torch.openreg.reset_operator_stats()
            torch.testing.assert_close(run(width, D), run(width, "cpu"))
            assert all_on_gpu(), figures()
        """
    )


# mixed precision and the optimizers' fused and foreach steps, against the CPU
def test_training_with_autocast(gpu: Program) -> None:
    gpu(
        """
        def train(device, dtype):
            torch.manual_seed(0)
            model = torch.nn.Sequential(
                torch.nn.Conv2d(1, 4, 3, bias=False),  # the gradient of a bias would be rounding, which Adam blows up
                torch.nn.BatchNorm2d(4),
                torch.nn.ReLU(),
                torch.nn.Flatten(),
                torch.nn.Linear(144, 5),
            ).to(device)
            x, labels = torch.randn(6, 1, 8, 8).to(device), torch.arange(6).remainder(5).to(device)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
            scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
            for _ in range(3):
                optimizer.zero_grad()
                with torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32):
                    loss = torch.nn.functional.cross_entropy(model(x), labels)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            return loss.item(), [p.detach().cpu() for p in model.parameters()]

        expected = train(torch.device("cpu"), torch.float32)
        torch.openreg.reset_operator_stats()
        result = train(D, torch.float32)
        torch.testing.assert_close(result, expected, atol=1e-4, rtol=1e-3)
        assert all_on_gpu(), figures()
        assert train(D, torch.bfloat16)[0] == pytest.approx(expected[0], abs=0.05)
        """
    )


# copies in all directions: layouts, dtypes, broadcasting, lazy bits, pinned and not
def test_copies_in_all_directions(gpu: Program) -> None:
    gpu(
        """
        fake.fake_torch_cuda_set_delay(2_000)
        source = torch.randn(4, 6)
        for host in (source, source.t(), source[:, ::2], source.double(), source[:1].expand(4, 6), source.pin_memory()):
            for dtype in (torch.float32, torch.float16):
                moved = torch.empty(host.shape, dtype=dtype, device=D).copy_(host, non_blocking=True)
                assert torch.equal(moved.cpu(), host.to(dtype))
                assert torch.equal(moved.t().cpu(), host.to(dtype).t())
                strided = torch.zeros(host.shape[0], 2 * host.shape[1], dtype=dtype, device=D)[:, ::2]
                strided.copy_(host)
                assert torch.equal(strided.cpu(), host.to(dtype))
                back = torch.empty(host.shape, dtype=torch.float64)
                back.copy_(strided)
                assert torch.equal(back, host.to(dtype).double())
        z = torch.randn(5, dtype=torch.complex64)
        assert torch.equal(z.conj().to(D).cpu(), z.conj())
        assert torch.equal(z.to(D).conj().cpu(), z.conj())
        assert torch.equal(torch.empty(5, dtype=torch.complex64, device=D).copy_(z.to(D).conj()).cpu(), z.conj())
        assert torch.equal(source.to(D).clone().cpu(), source)
        scalar = torch.tensor(2.5, device=D)
        assert scalar.item() == 2.5 and (source.to(D) * torch.tensor(2.0)).cpu().equal(source * 2)
        """
    )


# backward in the engine's threads and in threads of the user's, each with streams of its own
def test_streams_of_several_threads(gpu: Program) -> None:
    gpu(
        """
        import threading
        fake.fake_torch_cuda_set_delay(500)
        failures = []

        def work(number):
            try:
                device = torch.device("openreg", number % 2)
                with torch.openreg.stream(torch.openreg.Stream(device)):
                    x = torch.full((100,), float(number), device=device, requires_grad=True)
                    for _ in range(5):
                        (x * x).sum().backward()
                    torch.openreg.current_stream(device).synchronize()
                    assert x.grad.cpu().eq(10.0 * number).all(), x.grad
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert not failures, failures
        assert fake.fake_torch_cuda_violations() == 0
        """
    )


# recurrent layers run on the GPU step by step, with the CPU's results but for rounding
def test_recurrent_layers(gpu: Program) -> None:
    gpu(
        """
        import copy

        for kind in (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN):
            torch.manual_seed(0)
            layer = kind(5, 4, num_layers=2, bidirectional=True)
            x = torch.randn(6, 3, 5)
            results = {}
            for device in ("cpu", "openreg:1"):
                here = copy.deepcopy(layer).to(device)
                out, _ = here(x.to(device))
                out.square().sum().backward()
                results[device] = [out.detach().cpu(), *(weight.grad.cpu() for weight in here.parameters())]
            torch.testing.assert_close(results["openreg:1"], results["cpu"])
        assert all_on_gpu(), figures()
        assert fake.fake_torch_cuda_violations() == 0
        """
    )


# the operator and training suites, whole, by the kernels of the GPU
@pytest.mark.slow
@pytest.mark.parametrize(
    "suite", [pytest.param("operators/test_operators.py", marks=pytest.mark.long), "training/test_training.py"]
)
def test_the_suites_pass(gpu: Program, root: Path, suite: str) -> None:
    done = gpu(
        f"""
        # The CPU's bits of its fused attention and recurrent layers: a GPU takes other kernels, with a mask and there.
        other = (
            "not (scaled_dot_product_attention_equals_the_cpu and mask) and not recurrent_layers and not recurrent_cells"
        )
        suite = {str(root / "tests/python" / suite)!r}
        status = pytest.main(["-q", "--tb=short", "-p", "no:cacheprovider", "-k", other, suite])
        assert fake.fake_torch_cuda_calls() > 100
        assert fake.fake_torch_cuda_violations() == 0
        sys.exit(int(status))
        """,
        timeout=900,
    )
    assert " passed" in done.stdout


# no library of the vendor is linked: what there is of PyTorch's own is found in the process
def test_the_shim_links_no_library_of_the_vendor() -> None:
    library = Path(config.torch_lib_dir()) / "libtorch_openreg.so"
    dynamic = finished(["readelf", "-d", str(library)]).stdout
    needed = [line.split("[")[1].rstrip("]") for line in dynamic.splitlines() if "(NEEDED)" in line]
    assert needed
    vendors = ("cud", "hip", "nv", "amd", "roc", "torch_cuda", "c10_cuda")
    assert not [name for name in needed if any(vendor in name for vendor in vendors)], needed
    undefined = finished(["nm", "-D", "-u", str(library)]).stdout
    assert not [line for line in undefined.splitlines() if " cuda" in line or " cu" in line or " hip" in line]
