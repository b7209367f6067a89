"""torch.compile: models of 14 families, forward and one training step, in one graph, against CPU eager."""

import copy
from collections.abc import Iterator

import pytest
import torch
from compile_models import MODELS
from compiling import assert_near, compiled, fresh_compiler
from tolerances import Tolerance
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

FORWARD = Tolerance(rtol=1e-4, atol=1e-5)
GRADIENTS = Tolerance(rtol=1e-3, atol=1e-5)
# The others belong to the full tier.
_FAST = ("GPT-2", "ResNet")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    with fresh_compiler():
        yield


@pytest.fixture(params=[n if n in _FAST else pytest.param(n, marks=pytest.mark.slow) for n in MODELS])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def made(name: str, device: torch.device) -> tuple[nn.Module, tuple[Tensor, ...], nn.Module, tuple[Tensor, ...]]:
    """A model with its arguments, on the CPU and on the device."""
    torch.manual_seed(1)
    model, arguments = MODELS[name]()
    return model, arguments, copy.deepcopy(model).to(device), tuple(a.to(device) for a in arguments)


@pytest.mark.slow
def test_inference(device, name):
    model, arguments, here, here_arguments = made(name, device)
    model.eval()
    call = compiled(here.eval())
    with torch.no_grad():
        torch.manual_seed(2)
        expected = model(*arguments)
        for repetition in ("first call", "second call"):
            torch.manual_seed(2)
            assert_near(call(*here_arguments), expected, FORWARD, repetition)


def test_training_step(device, name):
    model, arguments, here, here_arguments = made(name, device)
    initial = copy.deepcopy(model.state_dict())
    expected = _step(model, model, arguments)
    call = compiled(here)
    for repetition in ("first step", "second step"):
        here.load_state_dict(initial)
        results, gradients, buffers = _step(here, call, here_arguments)
        assert_near(results, expected[0], FORWARD, f"result of the {repetition}")
        assert_near(gradients, expected[1], GRADIENTS, f"gradients of the {repetition}")
        assert_near(buffers, expected[2], FORWARD, f"buffers after the {repetition}")


def _step(
    model: nn.Module, call, arguments: tuple[Tensor, ...]
) -> tuple[list[Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Results, gradients of a loss that looks at every element of them, and buffers."""
    model.zero_grad()
    torch.manual_seed(3)
    results = tree_leaves(call(*arguments))
    source = torch.Generator().manual_seed(4)
    loss = sum((r * torch.rand(r.shape, generator=source).to(r.device)).mean() + r.square().mean() for r in results)
    loss.backward()
    gradients = {key: p.grad for key, p in model.named_parameters() if p.grad is not None}
    return [r.detach() for r in results], gradients, dict(model.named_buffers())


@pytest.mark.slow
def test_sequences_of_every_length(device):
    """One graph for all lengths, or one for each that Dynamo thinks special."""
    model, _, here, _ = made("Llama", device)
    call = compiled(here, dynamic=True)
    for length in (5, 9, 16):
        ids = torch.randint(0, 50, (2, length))
        with torch.no_grad():
            assert_near(call(ids.to(device)), model(ids), FORWARD, f"{length} tokens")
