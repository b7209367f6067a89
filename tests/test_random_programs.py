"""Random programs of views, in-place ops, lifetimes and threads give the bits that the CPU gives."""

import threading
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from comparison import assert_same
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SHAPES = ((4, 6), (6,), (4, 1), (1, 6), (6, 4), (4, 6, 2), (), (0, 6))


class Step(NamedTuple):
    op: str
    a: int
    b: int
    n: int


def add_into_first_row(a: torch.Tensor, b: torch.Tensor) -> None:
    # Of the right shape, since an out= tensor that must grow holds memory that nobody has written.
    torch.add(a[0].expand_as(b[0]), 1, out=b[0])


# Each takes two tensors and a small number; returns what it makes, or `a` itself or None when it changes them.
OPS: dict[str, Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor | None]] = {
    # pointwise
    "add": lambda a, b, n: torch.add(a, b, alpha=n),
    "mul": lambda a, b, n: a * b,
    "div": lambda a, b, n: a / (b.abs() + 1),
    "relu": lambda a, b, n: a.relu(),
    "tanh": lambda a, b, n: a.tanh(),
    "sigmoid": lambda a, b, n: a.sigmoid(),
    "scale": lambda a, b, n: a * (n / 8),
    "where": lambda a, b, n: torch.where(a > b, a, b),
    "compare": lambda a, b, n: (a < n / 4).to(a.dtype),
    "softmax": lambda a, b, n: a.softmax(-1),
    "to double and back": lambda a, b, n: a.to(torch.float64).mul(1.5).to(torch.float32),
    "to bfloat16 and back": lambda a, b, n: a.to(torch.bfloat16).to(torch.float32),
    # views
    "t": lambda a, b, n: a.transpose(0, -1),
    "slice": lambda a, b, n: a[n % 3 :: 1 + n % 2],
    "select": lambda a, b, n: a[n],
    "last": lambda a, b, n: a[..., -1:],
    "unsqueeze": lambda a, b, n: a.unsqueeze(n % 2),
    "expand": lambda a, b, n: a.expand_as(b),
    "flatten": lambda a, b, n: a.flatten(),
    "view": lambda a, b, n: a.view(2, -1),
    "as_strided": lambda a, b, n: a.as_strided((2, 3), (1, 2), a.storage_offset()),
    "chunk": lambda a, b, n: a.chunk(2, -1)[n % 2],
    "diagonal": lambda a, b, n: a.diagonal(),
    "squeeze": lambda a, b, n: a.squeeze(),
    # in place
    "add_": lambda a, b, n: a.add_(b, alpha=n),
    "mul_": lambda a, b, n: a.mul_(0.5 + n / 16).add_(0),
    "copy_": lambda a, b, n: a.copy_(b),
    "fill_": lambda a, b, n: a.fill_(n),
    "clamp_": lambda a, b, n: a.clamp_(-n, n),
    "sigmoid_": lambda a, b, n: a.sigmoid_(),
    "masked_fill_": lambda a, b, n: a.masked_fill_(a > n, 1.0),
    "assign": lambda a, b, n: a.__setitem__(n % 2, b),
    "foreach": lambda a, b, n: torch._foreach_add_([a, b], n),
    "out": lambda a, b, n: torch.mul(a, 2, out=torch.empty(0, device=a.device)),
    "out of a view": lambda a, b, n: add_into_first_row(a, b),
    # reductions and rearrangements
    "sum": lambda a, b, n: a.sum(n % 2, keepdim=True),
    "amax": lambda a, b, n: a.amax(-1),
    "mean": lambda a, b, n: a.mean(),
    "cumsum": lambda a, b, n: a.cumsum(0),
    "sort": lambda a, b, n: a.sort(-1)[0],
    "matmul": lambda a, b, n: a @ b,
    "outer": lambda a, b, n: torch.outer(a.flatten()[:5], b.flatten()[:5]),
    "cat": lambda a, b, n: torch.cat([a, b], n % 2),
    "stack": lambda a, b, n: torch.stack([a, b]),
    "index": lambda a, b, n: a[torch.tensor([0, n % 3, 0], device=a.device)],
    "mask": lambda a, b, n: a[a > 0][: n + 1],
    "clone": lambda a, b, n: a.clone(),
    "contiguous": lambda a, b, n: a.contiguous(),
    "pad": lambda a, b, n: torch.nn.functional.pad(a, (1, n % 3)),
    "repeat": lambda a, b, n: a.repeat(2, 1),
    # answers that steer the host
    "item": lambda a, b, n: b * round(a.flatten()[n % 3].item(), 3),
    "rand": lambda a, b, n: torch.rand(SHAPES[n], device=a.device),
    "dropout": lambda a, b, n: torch.nn.functional.dropout(a, 0.25),
}

steps = st.builds(
    Step, st.sampled_from(sorted(OPS)), st.integers(0, 999), st.integers(0, 999), st.integers(0, len(SHAPES) - 1)
)
programs = st.lists(steps, min_size=5, max_size=40)

LIMIT = 12  # live tensors; the oldest dies when there are more


def initial(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def run(program: list[Step], device: torch.device | str, seed: int) -> list[torch.Tensor | str]:
    """Every tensor alive at the end, and the kind of each error on the way."""
    alive = [x.to(device, copy=True) for x in initial(seed)]
    trace: list[torch.Tensor | str] = []
    for step in program:
        a, b = alive[step.a % len(alive)], alive[step.b % len(alive)]
        try:
            made = OPS[step.op](a, b, step.n)
        except (RuntimeError, IndexError, ValueError) as error:
            trace.append(f"{step.op}: {type(error).__name__}")
            continue
        if isinstance(made, torch.Tensor) and made is not a and made.numel() <= 4096:
            alive.append(made)
            if len(alive) > LIMIT:
                alive.pop(0)
        del a, b, made
    return [*trace, *(x.clone() for x in alive)]


def without_draws(program: list[Step]) -> list[Step]:
    """Threads share the device's generator, so their draws have no order."""
    return [s for s in program if s.op not in ("rand", "dropout")]


COMMON = {
    "deadline": None,
    "derandomize": True,  # the same programs in every run
    "database": None,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}


@settings(max_examples=100, **COMMON)
@given(program=programs, seed=st.integers(0, 2**16))
def test_random_program_equals_cpu(device, program, seed):
    torch.manual_seed(seed)
    expected = run(program, "cpu", seed)
    torch.manual_seed(seed)
    assert_same(run(program, device, seed), expected)


@pytest.mark.parametrize("own_streams", [False, True])
@settings(max_examples=25, **COMMON)
@given(pair=st.tuples(programs, programs), seed=st.integers(0, 2**16))
def test_random_programs_in_two_threads_equal_cpu(device, own_streams, pair, seed):
    pair = tuple(without_draws(p) for p in pair)
    expected = [run(p, "cpu", seed + i) for i, p in enumerate(pair)]
    results: list[object] = [None, None]

    def work(i: int) -> None:
        try:
            if own_streams and device.type != "cpu":
                stream = torch.Stream(device=device)
                with stream:
                    results[i] = run(pair[i], device, seed + i)
                stream.synchronize()
            else:
                results[i] = run(pair[i], device, seed + i)
        except BaseException as error:  # noqa: BLE001 - handed to the main thread
            results[i] = error

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for got, want in zip(results, expected, strict=True):
        if isinstance(got, BaseException):
            raise got
        assert_same(got, want)
