# SPDX-License-Identifier: BSD-3-Clause
"""Random numbers: seeds, states, generators."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch


# acceptance 3.3
@pytest.mark.parametrize(
    "draw",
    [
        lambda d: torch.rand(5, device=d),
        lambda d: torch.randn(5, device=d),
        lambda d: torch.randint(0, 1000, (5,), device=d),
        lambda d: torch.randperm(20, device=d),
        lambda d: torch.empty(5, device=d).normal_(),
        lambda d: torch.empty(5, device=d).uniform_(),
        lambda d: torch.bernoulli(torch.full((50,), 0.5, device=d)),
        lambda d: torch.multinomial(torch.ones(50, device=d), 10),
        lambda d: torch.nn.functional.dropout(torch.ones(50, device=d)),
    ],
)
def test_the_same_seed_gives_the_same_numbers(draw: Any) -> None:
    torch.openreg.manual_seed_all(5)
    first, other = draw("openreg:1"), draw("openreg:1")
    torch.openreg.manual_seed_all(5)
    again = draw("openreg:1")
    assert first.device == torch.device("openreg:1")
    assert torch.equal(first.cpu(), again.cpu())
    assert not torch.equal(first.cpu(), other.cpu())


def test_seeds_belong_to_devices() -> None:
    torch.openreg.manual_seed_all(1)
    with torch.openreg.device(1):
        torch.openreg.manual_seed(2)
        assert torch.openreg.initial_seed() == 2
    assert torch.openreg.initial_seed() == 1
    cpu_state = torch.get_rng_state()
    torch.rand(3, device="openreg:0")
    assert torch.equal(cpu_state, torch.get_rng_state())


def test_torch_manual_seed_reaches_every_device() -> None:
    torch.manual_seed(7)
    first = [torch.rand(4, device=f"openreg:{i}").cpu() for i in (0, 1)]
    torch.manual_seed(7)
    assert all(torch.equal(first[i], torch.rand(4, device=f"openreg:{i}").cpu()) for i in (0, 1))


@pytest.mark.parametrize(
    "device", [0, "openreg:0", "openreg", "privateuseone", None, torch.device("openreg:0")], ids=repr
)
def test_state(device: Any) -> None:
    state = torch.openreg.get_rng_state(device)
    assert state.device.type == "cpu"
    assert state.dtype == torch.uint8
    first = torch.rand(4, device="openreg:0")
    assert not torch.equal(state, torch.openreg.get_rng_state(device))
    torch.openreg.set_rng_state(state, device)
    assert torch.equal(first.cpu(), torch.rand(4, device="openreg:0").cpu())


def test_all_states() -> None:
    states = torch.openreg.get_rng_state_all()
    assert len(states) == 2
    first = [torch.rand(4, device=f"openreg:{i}").cpu() for i in (0, 1)]
    torch.openreg.set_rng_state_all(states)
    assert all(torch.equal(first[i], torch.rand(4, device=f"openreg:{i}").cpu()) for i in (0, 1))


def test_a_wrong_state_is_refused() -> None:
    before = torch.openreg.get_rng_state(0)
    for state in (
        torch.zeros(3, dtype=torch.uint8),
        torch.zeros(16),
        torch.zeros(16, dtype=torch.uint8, device="openreg"),
    ):
        with pytest.raises((RuntimeError, TypeError)):
            torch.openreg.set_rng_state(state, 0)
    assert torch.equal(before, torch.openreg.get_rng_state(0))
    with pytest.raises(RuntimeError, match="out of range"):
        torch.openreg.get_rng_state(2)
    with pytest.raises(ValueError, match="Expected an openreg device"):
        torch.openreg.set_rng_state(before, "cpu")


def test_seed_by_chance() -> None:
    assert torch.openreg.seed() == torch.openreg.initial_seed()
    chosen = torch.openreg.seed_all()
    assert [generator.initial_seed() for generator in torch.openreg.default_generators] == [chosen, chosen]
    assert len(torch.openreg.default_generators) == 2
    assert torch.openreg.default_generators[-1].device == torch.device("openreg:1")
    with pytest.raises(IndexError):
        torch.openreg.default_generators[2]


def test_own_generator() -> None:
    generator = torch.Generator("openreg:1").manual_seed(11)
    first = torch.rand(4, device="openreg:1", generator=generator)
    assert torch.equal(first.cpu(), torch.rand(4, device="openreg:1", generator=generator.manual_seed(11)).cpu())
    clone = generator.clone_state()
    assert torch.equal(
        torch.rand(4, device="openreg:1", generator=generator).cpu(),
        torch.rand(4, device="openreg:1", generator=clone).cpu(),
    )


# a seed before the first use opens no driver, and counts when the devices open
def test_seeding_before_the_first_use(python: Any) -> None:
    out = python(
        """
        import torch, torch_openreg
        torch.openreg.manual_seed_all(1)
        torch.openreg.manual_seed_all(9)
        torch.openreg.manual_seed(4)
        assert not torch.openreg.is_initialized() and not torch_openreg._C._is_initialized()
        print(torch.rand(1, device="openreg:0").item(), torch.rand(1, device="openreg:1").item())
        print([g.initial_seed() for g in torch.openreg.default_generators])
        torch.openreg.default_generators[0].manual_seed(4)
        torch.openreg.default_generators[1].manual_seed(9)
        print(torch.rand(1, device="openreg:0").item(), torch.rand(1, device="openreg:1").item())
        """
    )
    lines = out.stdout.splitlines()
    assert lines[1] == "[4, 9]"
    assert lines[0] == lines[2]


def test_fork_rng() -> None:
    state = torch.openreg.get_rng_state_all()
    with torch.random.fork_rng(devices=[0, 1], device_type="openreg"):
        torch.rand(10, device="openreg:0")
        torch.rand(10, device="openreg:1")
    assert all(torch.equal(a, b) for a, b in zip(state, torch.openreg.get_rng_state_all(), strict=True))


# activation checkpointing restores the generators of the devices in use
def test_checkpoint_repeats_dropout() -> None:
    x = torch.ones(100, device="openreg:0", requires_grad=True)
    y = torch.utils.checkpoint.checkpoint(lambda t: torch.nn.functional.dropout(t, 0.5), x, use_reentrant=False)
    y.sum().backward()
    assert torch.equal(x.grad.cpu(), y.detach().cpu())


# the CPU's numbers for one seed: the CPU's kernels draw from a generator like the CPU's
@pytest.mark.parametrize(
    "draw", [torch.rand, torch.randn, lambda n, **k: torch.randint(1000, (n,), **k), torch.randperm]
)
def test_the_numbers_of_the_cpu(draw: Any) -> None:
    mine, cpu = torch.Generator("openreg:1").manual_seed(3), torch.Generator().manual_seed(3)
    assert torch.equal(draw(33, generator=mine, device="openreg:1").cpu(), draw(33, generator=cpu))


def _ways_to_copy() -> dict[str, Any]:
    def saved(generator: torch.Generator) -> Any:
        file = io.BytesIO()
        torch.save(generator, file)
        file.seek(0)
        return torch.load(file, weights_only=False)

    return {"deepcopy": copy.deepcopy, "pickle": lambda g: pickle.loads(pickle.dumps(g)), "save": saved}


# seed, offset and position survive every way to copy a generator, and the copy is of the same device
@pytest.mark.parametrize("way", ["deepcopy", "pickle", "save"])
@pytest.mark.parametrize("offset", [0, 12])
def test_copies_of_a_generator(way: str, offset: int) -> None:
    generator = torch.Generator("openreg:1").manual_seed(5)
    generator.set_offset(offset)
    torch.rand(7, generator=generator, device="openreg:1")
    twin = _ways_to_copy()[way](generator)
    assert twin.device == torch.device("openreg:1")
    assert (twin.initial_seed(), twin.get_offset()) == (5, offset)
    numbers = torch.rand(9, generator=generator, device="openreg:1").cpu()
    assert torch.equal(numbers, torch.rand(9, generator=twin, device="openreg:1").cpu())


# an offset names a sequence of the seed; set_offset() starts it, and a state saved to a file keeps it
def test_offsets() -> None:
    generator = torch.Generator("openreg").manual_seed(5)

    def draw() -> list[float]:
        return torch.rand(4, generator=generator, device="openreg").tolist()

    first = draw()
    generator.set_offset(8)
    eighth = draw()
    assert generator.get_offset() == 8
    assert first != eighth
    file = io.BytesIO()
    torch.save(generator.get_state(), file)
    after = draw()
    generator.manual_seed(6)
    assert generator.get_offset() == 0
    file.seek(0)
    generator.set_state(torch.load(file))
    assert (generator.initial_seed(), generator.get_offset()) == (5, 8)
    assert draw() == after
    generator.set_offset(8)
    assert draw() == eighth
    generator.set_offset(0)
    assert draw() == first


# a graph-safe state is shared, not copied
def test_graphsafe_state() -> None:
    one, other = (torch.Generator("openreg").manual_seed(seed) for seed in (1, 2))
    other.graphsafe_set_state(one.graphsafe_get_state())
    first = torch.rand(4, generator=one, device="openreg").tolist()
    assert torch.rand(4, generator=other, device="openreg").tolist() != first
    one.manual_seed(1)
    assert torch.rand(4, generator=other, device="openreg").tolist() == first
    with pytest.raises(RuntimeError):
        one.graphsafe_set_state(torch.Generator())


# fork_rng() without a list of devices keeps the state of every device, and of the CPU
@pytest.mark.filterwarnings("ignore:OPENREG reports")
def test_fork_rng_of_all_devices() -> None:
    states = [torch.get_rng_state(), *torch.openreg.get_rng_state_all()]
    with torch.random.fork_rng(device_type="openreg"):
        torch.manual_seed(99)
    assert all(
        torch.equal(a, b)
        for a, b in zip(states, [torch.get_rng_state(), *torch.openreg.get_rng_state_all()], strict=True)
    )


# with preserve_rng_state=False a repeated dropout draws anew, so the test above tests something
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("preserve", [False, True])
def test_checkpoint_preserves_the_state(reentrant: bool, preserve: bool) -> None:
    masks: list[Any] = []

    def layer(t: torch.Tensor) -> torch.Tensor:
        dropped = torch.nn.functional.dropout(t, 0.5)
        masks.append(dropped.detach().cpu() != 0)
        return dropped * dropped  # saves a tensor after the mask was noted

    x = torch.ones(200, device="openreg:1", requires_grad=True)
    y = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=reentrant, preserve_rng_state=preserve)
    y.sum().backward()
    assert len(masks) == 2
    assert torch.equal(masks[0], masks[1]) == preserve


# acceptance 3.21
# a generator of another type of device is an error, of another index none
def test_generators_of_other_devices() -> None:
    with pytest.raises(RuntimeError, match="Expected a 'openreg' device type for generator but found 'cpu'"):
        torch.rand(2, device="openreg", generator=torch.Generator())
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'openreg'"):
        torch.rand(2, generator=torch.Generator("openreg"))
    with pytest.raises(RuntimeError, match="Expected a 'openreg' device type"):
        torch.ones(3, device="openreg").multinomial(1, generator=torch.Generator())
    with pytest.raises(RuntimeError, match="device type for generator"):
        torch.ones(3).multinomial(1, generator=torch.Generator("openreg"))
    assert torch.rand(2, device="openreg:0", generator=torch.Generator("openreg:1")).device.index == 0
