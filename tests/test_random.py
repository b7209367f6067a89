"""Random numbers: the CPU's numbers for the same seed, states, and seeding before the device exists."""

from pathlib import Path

import pytest
import torch
from processes import run_python
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.neuron_only


def draw(device: str | torch.device = "neuron") -> torch.Tensor:
    return torch.rand(5, device=device).cpu()


@pytest.mark.parametrize("seed", [0, 1, 2**40, -1, 2**64 - 1])
def test_same_seed_gives_the_numbers_of_the_cpu(seed: int) -> None:
    torch.manual_seed(seed)
    expected = [torch.rand(5), torch.randn(33), torch.randint(100, (7,)), torch.randperm(20), torch.rand(3)]
    for index in (0, 2):
        torch.manual_seed(seed)
        device = torch.device("neuron", index)
        actual = [
            torch.rand(5, device=device),
            torch.randn(33, device=device),
            torch.randint(100, (7,), device=device),
            torch.randperm(20, device=device),
            torch.rand(3, device=device),
        ]
        for a, e in zip(actual, expected, strict=True):
            assert torch.equal(a.cpu(), e)


def test_manual_seed_seeds_the_current_device_only() -> None:
    torch.neuron.manual_seed_all(1)
    first = draw("neuron:1")
    with torch.neuron.device(1):
        torch.neuron.manual_seed(1)
        assert torch.neuron.initial_seed() == 1
    torch.neuron.manual_seed(2)
    assert torch.neuron.initial_seed() == 2
    assert torch.equal(draw("neuron:1"), first)
    assert not torch.equal(draw("neuron:0"), first)


def test_devices_draw_independently() -> None:
    torch.neuron.manual_seed_all(9)
    first, second = draw("neuron:0"), draw("neuron:0")
    assert torch.equal(draw("neuron:1"), first)
    assert torch.equal(draw("neuron:1"), second)


def test_seed_takes_a_number_nobody_chose() -> None:
    torch.neuron.manual_seed(3)
    torch.neuron.seed()
    assert torch.neuron.initial_seed() != 3
    torch.neuron.seed_all()
    seeds = {generator.initial_seed() for generator in torch.neuron.default_generators}
    assert len(seeds) == 1
    assert torch.seed() in {generator.initial_seed() for generator in torch.neuron.default_generators}


@pytest.mark.parametrize("which", [1, "neuron:1", torch.device("neuron:1")])
def test_state_of_one_device(which: int | str | torch.device) -> None:
    state = torch.neuron.get_rng_state(which)
    assert (state.device.type, state.dtype) == ("cpu", torch.uint8)
    expected = draw("neuron:1")
    other = draw("neuron:0")
    torch.neuron.set_rng_state(state, which)
    assert torch.equal(draw("neuron:1"), expected)
    assert not torch.equal(draw("neuron:0"), other)


def test_state_of_the_current_device() -> None:
    with torch.neuron.device(2):
        state = torch.neuron.get_rng_state()
        expected = draw()
        torch.neuron.set_rng_state(state)
        assert torch.equal(draw("neuron:2"), expected)


def test_state_of_all_devices() -> None:
    states = torch.neuron.get_rng_state_all()
    assert len(states) == torch.neuron.device_count()
    expected = [draw(f"neuron:{i}") for i in range(4)]
    torch.neuron.set_rng_state_all(states)
    for i in range(4):
        assert torch.equal(draw(f"neuron:{i}"), expected[i])


def test_state_waits_for_launches_that_draw() -> None:
    torch.neuron.manual_seed(4)
    generator = torch.Generator().manual_seed(4)
    x = torch.empty(1 << 20, device="neuron").uniform_()
    state = torch.neuron.get_rng_state()
    expected = torch.empty(1 << 20).uniform_(generator=generator)
    assert torch.equal(x.cpu(), expected)
    assert torch.equal(state, generator.get_state())


def test_default_generators() -> None:
    generators = torch.neuron.default_generators
    assert len(generators) == 4
    assert [g.device for g in generators] == [torch.device("neuron", i) for i in range(4)]
    generators[0].manual_seed(11)
    assert torch.neuron.initial_seed() == 11


def test_own_generator() -> None:
    generator = torch.Generator("neuron").manual_seed(21)
    expected = torch.rand(4, generator=torch.Generator().manual_seed(21))
    before = torch.neuron.get_rng_state()
    assert torch.equal(torch.rand(4, device="neuron", generator=generator).cpu(), expected)
    assert torch.equal(torch.neuron.get_rng_state(), before)
    assert generator.device == torch.device("neuron:0")
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(4, device="neuron", generator=torch.Generator())


def test_fork_rng() -> None:
    torch.manual_seed(8)
    expected = draw()
    torch.manual_seed(8)
    with torch.random.fork_rng(devices=[0], device_type="neuron"):
        draw()
        torch.manual_seed(99)
    assert torch.equal(draw(), expected)


def test_seeding_before_the_device_exists_takes_effect_and_starts_nothing(tmp_path: Path) -> None:
    program = """
        import torch

        torch.manual_seed(13)
        expected = torch.rand(4)
        torch.manual_seed(13)
        state = torch.neuron.get_rng_state(2)
        with torch.random.fork_rng(devices=range(4), device_type="neuron"):
            torch.neuron.seed_all()
        assert not torch.neuron.is_initialized()
        assert torch.equal(torch.rand(4, device="neuron:1").cpu(), expected)
        torch.neuron.set_rng_state(state, 3)
        assert torch.equal(torch.rand(4, device="neuron:3").cpu(), expected)
    """
    result = run_python(program, directory=tmp_path)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint_repeats_the_dropout_of_the_forward(use_reentrant: bool) -> None:
    # torch.utils.checkpoint keeps the device's state only when the module says that it is initialised.
    x = torch.ones(64, 64, device="neuron", requires_grad=True)

    def block(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5) * 3

    y = checkpoint(block, x, use_reentrant=use_reentrant)
    torch.neuron.manual_seed(1)  # whatever happens between forward and backward
    (gradient,) = torch.autograd.grad(y.sum(), x) if not use_reentrant else _backward(y, x)
    assert torch.equal(gradient.cpu(), y.detach().cpu())  # input 1: the output is the factor


def _backward(y: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor]:
    y.sum().backward()
    assert x.grad is not None
    return (x.grad,)
