"""torch.compile: random numbers are those of eager mode, and backward sees the ones that forward saw."""

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from compiling import assert_near, compiled, fresh_compiler
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    with fresh_compiler():
        yield


DRAWS = {
    "rand": lambda x: torch.rand(x.shape, device=x.device),
    "randn": lambda x: torch.randn(x.shape, device=x.device) + 1,
    "rand_like": lambda x: torch.rand_like(x) * x,
    "randn_like": lambda x: torch.randn_like(x),
    "randint": lambda x: torch.randint(0, 100, x.shape, device=x.device),
    "randint_like": lambda x: torch.randint_like(x, 3, 50),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "bernoulli p": lambda x: torch.bernoulli(x, 0.3),
    "normal": lambda x: torch.normal(x, x.abs() + 0.1),
    "uniform_": lambda x: torch.empty_like(x).uniform_(-1, 2),
    "normal_": lambda x: torch.empty_like(x).normal_(1, 3),
    "exponential_": lambda x: torch.empty_like(x).exponential_(2),
    "multinomial": lambda x: torch.multinomial(x.softmax(-1), 2),
    "randperm": lambda x: torch.randperm(x.shape[0], device=x.device),
    "dropout": lambda x: F.dropout(x, 0.4),
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.4, training=True),
    "dropout2d": lambda x: F.dropout2d(x.view(2, 3, 4, -1), 0.4),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "gumbel": lambda x: F.gumbel_softmax(x, hard=True),
    "several": lambda x: (
        F.dropout(x, 0.1),
        torch.rand_like(x),
        F.dropout(x.t(), 0.9),
        torch.randn(3, device=x.device),
    ),
}
# Arithmetic on what is drawn is a kernel's in a compiled graph.
NOT_TO_THE_BIT = {"alpha dropout", "rrelu", "gumbel", "normal"}


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("name", DRAWS)
def test_draws_are_those_of_eager_mode(device, name, dtype):
    f = DRAWS[name]
    x = torch.randn(12, 10).to(dtype)
    call = compiled(f)
    for seed in (1, 2):
        torch.manual_seed(seed)
        expected = f(x)
        after = torch.rand(3)
        torch.manual_seed(seed)
        eager = f(x.to(device))
        torch.manual_seed(seed)
        actual = call(x.to(device))
        assert_near(actual, expected)
        assert_near(torch.rand(3, device=device), after)  # as many were drawn
        if name not in NOT_TO_THE_BIT:
            for a, e in zip(*(v if isinstance(v, tuple) else (v,) for v in (actual, eager)), strict=True):
                assert torch.equal(a, e)


@pytest.mark.parametrize("shape", [(33, 7), pytest.param((4, 5, 6), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
def test_dropout_and_its_gradient_are_bit_equal_to_eager(device, shape, p):
    def f(x: Tensor) -> Tensor:
        return F.dropout(x, p)

    x = torch.randn(shape, device=device, requires_grad=True)
    weight = torch.randn(shape, device=device)
    results = []
    for call in (f, compiled(f)):
        torch.manual_seed(5)
        y = call(x)
        results.append((y, *torch.autograd.grad(y, x, weight)))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_order_of_draws_is_that_of_the_program_text(device):
    """Also where a kernel that waits for one draw could run before another draw."""

    def f(x: Tensor) -> Tensor:
        a = torch.rand_like(x)
        b = F.dropout(x @ x, 0.5)
        c = torch.randn_like(x)
        return a * 2 + c - b.t()

    x = torch.randn(8, 8)
    torch.manual_seed(3)
    expected = f(x)
    torch.manual_seed(3)
    assert_near(compiled(f)(x.to(device)), expected)


def test_order_of_draws_where_one_waits_for_a_later_kernel(device):
    """The probabilities of the first draw are ready only when a kernel has run that also serves later ops."""

    def f(x: Tensor) -> tuple[Tensor, ...]:
        p = x.sigmoid()
        a = torch.bernoulli(p)
        b = torch.rand_like(x)
        c = p * 2 + x
        return a, b, c, torch.bernoulli(c.softmax(-1)), torch.randn_like(x)

    x = torch.randn(8, 8)
    torch.manual_seed(3)
    expected = f(x)
    torch.manual_seed(3)
    assert_near(compiled(f)(x.to(device)), expected)


def _step(call, model: nn.Module, x: Tensor, seed: int = 5) -> list[Tensor]:
    torch.manual_seed(seed)
    model.zero_grad()
    y = call(x)
    y.square().sum().backward()
    return [y.detach(), *(p.grad.clone() for p in model.parameters())]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 12), nn.Linear(12, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.dropout(F.gelu(self.up(x)), 0.5))


@pytest.mark.parametrize("preserve", [True, False])
def test_checkpoint_replays_the_mask(device, preserve):
    """Activation checkpointing: the backward graph computes dropout again, with the same random numbers."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Block(), Block()

        def forward(self, x: Tensor) -> Tensor:
            x = checkpoint(self.first, x, use_reentrant=False, preserve_rng_state=preserve)
            return checkpoint(self.second, x, use_reentrant=False, preserve_rng_state=preserve) + torch.rand_like(x)

    torch.manual_seed(1)
    model = Net()
    x = torch.randn(4, 6)
    plain = lambda t: model.second(model.first(t)) + torch.rand_like(t)  # noqa: E731
    expected = _step(plain, model, x)
    model.to(device)
    call = compiled(model)
    for _ in range(2):
        assert_near(_step(call, model, x.to(device)), expected)
    assert_near(_step(call, model, x.to(device), seed=6)[0].shape, expected[0].shape)


def test_checkpoint_leaves_the_generator_where_eager_does(device):
    block = Block()
    x = torch.randn(4, 6)

    def f(t: Tensor) -> Tensor:
        return checkpoint(block, t, use_reentrant=False).sum() + F.dropout(t, 0.5).sum()

    torch.manual_seed(5)
    f(x).backward()
    expected = torch.rand(3)
    block.to(device)
    call = compiled(f)
    for _ in range(2):
        torch.manual_seed(5)
        call(x.to(device)).backward()
        assert_near(torch.rand(3, device=device), expected)


def test_selective_checkpoint(device):
    from functools import partial

    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    def policy(context, op, *args, **kwargs):
        return CheckpointPolicy.MUST_SAVE if op == torch.ops.aten.mm.default else CheckpointPolicy.PREFER_RECOMPUTE

    block = Block()
    x = torch.randn(4, 6)

    def f(t: Tensor) -> Tensor:
        return checkpoint(
            block, t, use_reentrant=False, context_fn=partial(create_selective_checkpoint_contexts, policy)
        )

    expected = _step(block, block, x)
    block.to(device)
    assert_near(_step(compiled(f), block, x.to(device)), expected)
