"""torch.compile: what goes in, what comes out, and that it is what eager mode gives on the CPU."""

import warnings
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from compiling import (
    BACKEND,
    assert_compiled_same,
    assert_gradients_same,
    assert_near,
    compiled,
    counter,
    fresh_compiler,
)
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed

from torch_neuronx import errors


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    with fresh_compiler():
        yield


def mixture(x: Tensor, y: Tensor) -> Tensor:
    return F.gelu(x @ y).softmax(-1) * 2 - x.sum()


# -- How it is asked for -----------------------------------------------------------------------------------------------


@pytest.mark.neuron_only
def test_no_backend_named_is_ours(device):
    from torch._dynamo.utils import counters

    counters.clear()
    x = torch.randn(3, 4)
    result = torch.compile(lambda t: t.sin() + 1, fullgraph=True)(x.to(device))
    assert_near(result, x.sin() + 1)
    assert counters["inductor"]["fxgraph_cache_miss"] == counters["inductor"]["fxgraph_cache_bypass"] == 0


@pytest.mark.neuron_only
def test_no_backend_named_is_inductor_for_the_cpu(monkeypatch):
    asked = []
    import torch_neuronx.compile.backend as backend

    monkeypatch.setattr(backend, "neuron", lambda *a, **k: asked.append(a))
    from torch._inductor import compile_fx

    monkeypatch.setattr(compile_fx, "compile_fx", lambda module, *a, **k: module.forward)
    torch.compile(lambda t: t.sin() + 1, fullgraph=True)(torch.randn(3))
    assert not asked


def test_module_compiles_in_place(device):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    x = torch.randn(3, 4)
    expected = model(x)
    model.to(device).compile(backend=BACKEND)
    assert_near(model(x.to(device)), expected)


@pytest.mark.neuron_only
def test_default_backend_can_be_set(device):
    before = torch.compiler.get_default_backend()
    torch.compiler.set_default_backend("neuron")
    try:
        model = nn.Linear(4, 2)
        x = torch.randn(3, 4)
        expected = model(x)
        model.to(device).compile()
        assert_near(model(x.to(device)), expected)
    finally:
        torch.compiler.set_default_backend(before)


@pytest.mark.neuron_only
def test_backend_is_listed():
    assert "neuron" in torch.compiler.list_backends()


@pytest.mark.neuron_only
def test_other_mode_warns_once(device):
    from torch_neuronx.compile import options

    options._told.clear()
    x = torch.ones(2, device=device)
    f = torch.compile(lambda t: t + 1, backend=BACKEND, mode="max-autotune")
    with pytest.warns(UserWarning, match="max-autotune"):
        f(x)
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*max-autotune")
        torch.compile(lambda t: t + 2, backend=BACKEND, mode="max-autotune")(x)


@pytest.mark.neuron_only
def test_default_mode_does_not_warn(device):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*mode")
        torch.compile(lambda t: t + 1, backend=BACKEND, mode="default")(torch.ones(2, device=device))


@pytest.mark.neuron_only
@pytest.mark.parametrize(
    ("options", "error"),
    [({"no_such_option": 1}, "UnknownCompileOptionError"), ({"model_name": 3}, "BadCompileOptionError")],
)
def test_wrong_option_is_an_error(device, options, error):
    f = torch.compile(lambda t: t + 1, backend=BACKEND, options=options)
    with pytest.raises(BackendCompilerFailed, match=next(iter(options))) as caught:
        f(torch.ones(2, device=device))
    assert type(caught.value.inner_exception) is getattr(errors, error)


def test_wrong_option_is_an_error_where_no_backend_is_named():
    with pytest.raises(RuntimeError, match="no_such_option"):
        torch.compile(lambda t: t + 1, options={"no_such_option": 1})


@pytest.mark.neuron_only
def test_known_options_are_taken(device):
    f = torch.compile(lambda t: t + 1, backend=BACKEND, options={"model_name": "m", "fallback_execution": True})
    assert_near(f(torch.ones(2, device=device)), torch.full((2,), 2.0))


# -- Dynamic shapes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [None, pytest.param(False, marks=pytest.mark.slow), True])
def test_every_size_is_right(device, dynamic):
    backend = counter()
    f = torch.compile(mixture, backend=backend, dynamic=dynamic)
    sizes = [5, 1, 2, 3, 17, 64, 5]
    y = torch.randn(4, 6)
    for rows in sizes:
        x = torch.randn(rows, 4)
        f_x = f(x.to(device), y.to(device))
        assert_near(f_x, mixture(x, y), where=f"{rows} rows")
    bound = {None: 3, False: len(set(sizes)), True: 2}[dynamic]
    assert backend.frame_count <= bound


def test_all_dimensions_dynamic(device):
    backend = counter()

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        z = x.transpose(1, 2).reshape(x.shape[0], -1)
        w = (z.unsqueeze(1) * y).sum(-1)
        return z.softmax(-1), w, torch.cat([x, x + 1], 1), x.flatten().mean() * x.shape[1], x[:, 1:]

    call = torch.compile(f, backend=backend, dynamic=True)
    for b, n, m, k in [(2, 3, 4, 5), (7, 5, 3, 2), (4, 4, 4, 4), (3, 8, 16, 33)]:
        x, y = torch.randn(b, n, m), torch.randn(k, n * m)
        assert_near(call(x.to(device), y.to(device)), f(x, y), where=str((b, n, m, k)))
    assert backend.frame_count <= 2


def test_sizes_become_results(device):
    def f(x: Tensor) -> tuple[Tensor, int, int]:
        return x + x.shape[0], x.shape[0] * 2, x.numel()

    call = compiled(f, dynamic=True)
    for rows in (3, 5, 9):
        x = torch.randn(rows, 2)
        assert_near(call(x.to(device)), f(x))


def test_integers_and_floats_of_the_call(device):
    def f(x: Tensor, n: int, s: float) -> Tensor:
        return x * n + s

    call = torch.compile(f, backend=BACKEND, dynamic=True)
    x = torch.randn(5)
    for n, s in [(2, 0.5), (3, 1.5), (4, 2.5), (-7, 1e-3)]:
        assert_near(call(x.to(device), n, s), f(x, n, s))


def test_dynamic_training(device):
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))
    here = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))
    here.load_state_dict(model.state_dict())
    here.to(device)
    call = compiled(here, dynamic=True)
    for rows in (4, 7, 16):
        x, target = torch.randn(rows, 6), torch.randint(0, 3, (rows,))
        for m, c, d in ((model, model, "cpu"), (here, call, device)):
            m.zero_grad()
            F.cross_entropy(c(x.to(d)), target.to(d)).backward()
        assert_near([p.grad for p in here.parameters()], [p.grad for p in model.parameters()], where=f"{rows} rows")


# -- Arguments and results in the same memory --------------------------------------------------------------------------


def test_argument_is_changed_in_place():
    def f(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2).add_(y)
        y[1:] = x[:-1]
        return x.sum(0)

    assert_compiled_same(f, torch.randn(5, 3), torch.randn(5, 3))


def test_only_effect_is_a_changed_argument():
    def f(x: Tensor) -> None:
        x.copy_(x.flip(0))

    assert_compiled_same(f, torch.randn(5, 3))


def test_slice_of_an_argument_is_changed():
    def f(x: Tensor) -> Tensor:
        x[:, 1].fill_(3)
        x[2] += 1
        x.t()[0].zero_()
        return x + 1

    assert_compiled_same(f, torch.randn(4, 5))


@pytest.mark.parametrize("update", [lambda a, b: a + b, lambda a, b: a - b.flip(0), lambda a, b: a.t() + b])
def test_arguments_swap(update):
    def f(a: Tensor, b: Tensor) -> Tensor:
        old = a.clone()
        a.copy_(update(a, b))
        b.copy_(old)
        return old

    assert_compiled_same(f, torch.randn(4, 4), torch.randn(4, 4))


def test_argument_shifts_within_itself():
    def f(x: Tensor) -> Tensor:
        x[1:] = x[:-1].clone() + x[1:]
        return x

    assert_compiled_same(f, torch.randn(6, 3))


def test_results_share_memory_as_in_eager(device):
    def f(x: Tensor) -> tuple[Tensor, ...]:
        y = x + 1
        return x, x[1:], x.t(), y, y.view(-1), y[:, 1]

    x = torch.randn(3, 4)
    here = x.to(device)
    results = compiled(f)(here)
    assert_near(results, f(x))
    assert results[0] is here
    assert {r.untyped_storage().data_ptr() for r in results[:3]} == {here.untyped_storage().data_ptr()}
    assert len({r.untyped_storage().data_ptr() for r in results[3:]}) == 1
    results[4][0] = 100  # seen through the others
    assert results[3][0, 0].item() == 100


def test_fresh_results_do_not_share_memory(device):
    def f(x: Tensor) -> tuple[Tensor, ...]:
        return x + 1, x + 1, (x + 1).clone(), x.clone()

    x = torch.randn(3, 4, device=device)
    results = [*compiled(f)(x), x]
    assert len({r.untyped_storage().data_ptr() for r in results}) == 5


def test_results_of_two_calls_do_not_share_memory(device):
    f = compiled(lambda x: (x * 2).relu())
    a, b = torch.randn(4), torch.randn(4)
    first = f(a.to(device))
    second = f(b.to(device))
    assert_near([first, second], [(a * 2).relu(), (b * 2).relu()])


def test_overlapping_arguments(device):
    def f(a: Tensor, b: Tensor) -> Tensor:
        a.add_(1)
        return a + b

    memory = torch.arange(6.0)
    here = memory.clone().to(device)
    expected = f(memory[:4], memory[2:])
    assert_near(compiled(f)(here[:4], here[2:]), expected)
    assert_near(here, memory)


def test_the_same_argument_twice(device):
    def f(a: Tensor, b: Tensor) -> Tensor:
        a.mul_(3)
        return a - b

    x = torch.randn(4)
    here = x.clone().to(device)
    assert_near(compiled(f)(here, here), f(x, x))
    assert_near(here, x)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t(),
        lambda x: x[::2, 1:],
        lambda x: x.expand(2, *x.shape),
        lambda x: x.unsqueeze(1).permute(2, 1, 0),
        lambda x: x.view(2, -1),
        lambda x: x.diagonal(),
        lambda x: x.unfold(1, 2, 1),
        lambda x: x.chunk(2, 1)[1],
        lambda x: x.view(torch.int32),
        lambda x: x.unbind(0)[2],
        lambda x: x.as_strided((2, 2), (1, 6)),
    ],
)
def test_views_of_results(view):
    assert_compiled_same(lambda x: view(x * 2), torch.randn(4, 6))
    assert_compiled_same(
        lambda x: (view(x).clone(), view(x.relu()) + 1 if view(x).is_floating_point() else 0), torch.randn(4, 6)
    )


# -- Layouts, sizes and types ------------------------------------------------------------------------------------------

LAYOUTS = {
    "transposed": lambda: torch.randn(6, 4).t(),
    "every second": lambda: torch.randn(8, 12)[::2, ::2],
    "expanded": lambda: torch.randn(1, 6).expand(4, 6),
    "with an offset": lambda: torch.randn(30)[3:27].view(4, 6),
    "gaps": lambda: torch.randn(4, 9)[:, 1:7],
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_strided_arguments(device, name):
    x = LAYOUTS[name]()

    def f(t: Tensor) -> tuple[Tensor, ...]:
        return t + 1, t.softmax(1), t.sum(0), t @ t.t(), t.contiguous() * 2, t.flatten().cumsum(0)

    here = (
        torch.empty_strided(x.shape, x.stride(), device=device) if name != "expanded" else x.to(device)[:1].expand(4, 6)
    )
    if name != "expanded":
        here.copy_(x)
        x = torch.empty_strided(x.shape, x.stride()).copy_(x)
    assert_near(compiled(f)(here), f(x))


def test_channels_last():
    conv = nn.Conv2d(3, 8, 3, padding=1)
    weight = conv.weight.detach()

    def f(x: Tensor, w: Tensor) -> Tensor:
        return F.relu(F.conv2d(x, w, padding=1)) + 1

    x = torch.randn(2, 3, 5, 7).to(memory_format=torch.channels_last)
    assert_compiled_same(f, x, weight.to(memory_format=torch.channels_last))
    assert_gradients_same(
        lambda x: F.max_pool2d(F.group_norm(x, 1) * 2, 2), torch.randn(2, 4, 6, 6).to(memory_format=torch.channels_last)
    )


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 4)])
def test_empty_tensors(shape):
    def f(x: Tensor) -> tuple[Tensor, ...]:
        return x + 1, x.sum(), x.sum(-1), x.softmax(-1), torch.cat([x, x]), x.relu().t() if x.ndim == 2 else x, x.prod()

    assert_compiled_same(f, torch.randn(shape))


def test_tensors_without_dimensions():
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return (
            x + y,
            x.sum(),
            x.softmax(0),
            y * x.exp(),
            x.expand(3),
            x.view(1, 1),
            torch.stack([x, x]),
            x.mean(),
            x > 0,
        )

    assert_compiled_same(f, torch.tensor(1.5), torch.randn(3))


def test_numbers_on_the_host(device):
    """A tensor without dimensions on the CPU goes along with device tensors."""

    def f(x: Tensor, s: Tensor) -> Tensor:
        return x * s + 1

    x = torch.randn(5)
    call = compiled(f)
    for s in (torch.tensor(2.0), torch.tensor(-0.5)):
        assert_near(call(x.to(device), s), f(x, s))


DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]


_FAST = (torch.float32, torch.bfloat16, torch.int64, torch.int8, torch.bool)
TIERS = [d if d in _FAST else pytest.param(d, marks=pytest.mark.slow) for d in DTYPES]


def _values(dtype: torch.dtype, *shape: int) -> Tensor:
    if dtype == torch.bool:
        return torch.rand(shape) > 0.5
    if dtype.is_floating_point:
        return torch.randn(shape).to(dtype)
    return torch.randint(0 if dtype == torch.uint8 else -5, 10, shape, dtype=dtype)


@pytest.mark.parametrize("dtype", TIERS, ids=str)
def test_arithmetic_in_every_dtype(dtype):
    def f(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        floats = (a.exp(), torch.sigmoid(b)) if dtype.is_floating_point else (a / 3, b * 0.5, a.sum(), b.prod(1))
        signed = () if dtype == torch.bool else (a - b, a.abs(), -a if dtype != torch.uint8 else a, a.clamp(1, 3))
        return a + b, a * b, a == b, a < b, torch.where(a > b, a, b), a.amax(1), a.sum(0), *floats, *signed

    assert_compiled_same(f, _values(dtype, 5, 7), _values(dtype, 5, 7))


@pytest.mark.parametrize("dtype", TIERS, ids=str)
def test_conversion_from_every_dtype(dtype):
    x = _values(dtype, 4, 5)
    x = x.abs() if dtype.is_signed else x  # negative numbers to unsigned ones are undefined
    assert_compiled_same(lambda t: [t.to(d) for d in DTYPES] + [t.to(d).to(torch.float32) for d in DTYPES], x)


def test_types_are_promoted_as_in_eager():
    values = [_values(d, 3, 4) for d in DTYPES] + [torch.tensor(2.5), torch.tensor(3), 2, 1.5, True]

    def f(values: list) -> list:
        return [a + b for k, a in enumerate(values) for b in values[k:]]

    assert_compiled_same(f, values)


def test_integers_wrap():
    def f(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return a + b, a * b, a - b, (a * 7).to(torch.int32), a // 3, a % 5, a << 2, a >> 1

    for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32):
        limits = torch.iinfo(dtype)
        a = torch.tensor([limits.max, limits.min, limits.max - 1, 3], dtype=dtype)
        assert_compiled_same(f, a, torch.tensor([1, 2, limits.max, 77], dtype=dtype), where=str(dtype))


def test_special_values():
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([0.0, -0.0, 1.0, -1.0, inf, -inf, nan, 1e38, 1e-42, 0.5, 2.5, -3.5])

    def f(x: Tensor) -> tuple[Tensor, ...]:
        y = x.unsqueeze(1)
        functions = (x.exp(), x.log(), x.sqrt(), x.rsqrt(), x.tanh(), x.erf(), x.sigmoid(), F.softplus(x), x.pow(0.5))
        rounded = (
            x.round(),
            x.floor(),
            x.trunc(),
            x.sign(),
            x.abs(),
            x.clamp(-1, 1),
            x.relu(),
            x.nan_to_num(),
            x.pow(2),
        )
        divided = (y.remainder(x), torch.fmod(y, x), y // x, torch.copysign(y, x), torch.atan2(y, x))
        asked = (x.isnan(), x.isinf(), x.signbit(), y == x, y < x, torch.maximum(x, y), torch.minimum(x, y))
        rows = (x.amax(), x.amin(), x.softmax(0), x.cummax(0).values, torch.logaddexp(x, y), x.argmax(), x.nansum())
        return *functions, *rounded, *divided, *asked, *rows

    assert_compiled_same(f, x)


def test_numbers_are_compared_as_the_tensor_can_hold_them():
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        x = torch.tensor([0.1, 0.3, 0.7, 16777217.0]).to(dtype)
        assert_compiled_same(lambda x: (x == 0.1, x < 0.3, x >= 0.7, x == 16777217, x != 0.1 * 3), x, where=str(dtype))


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_places_count_in_the_order_of_elements(name):
    """Not in that of memory."""

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        find = getattr(torch, name)
        z = x + y.t()
        return find(x.t()), find(z), find(z, 1), find(x.permute(1, 0) * 2), find(x.t(), 0, keepdim=True), find(z.t())

    assert_compiled_same(f, torch.randn(5, 8), torch.randn(8, 5))
    assert_compiled_same(
        lambda x: (x.argmax(), x.flatten(1).argmax(1), x.transpose(1, 2).flatten(1).argmax(1)), torch.randn(3, 4, 5)
    )
    ones = torch.ones(4, 6)
    assert_compiled_same(
        lambda x: (getattr(torch, name)(x.t()), getattr(torch, name)(x, 0)), ones
    )  # the first of equals


@pytest.mark.parametrize("columns", [50_000, 50_001])
def test_wide_rows(columns):
    assert_gradients_same(
        lambda x: (x.softmax(-1), x.log_softmax(-1).mean(), F.layer_norm(x, (columns,))), torch.randn(3, columns)
    )


def test_many_small_rows_and_one_long_column():
    assert_compiled_same(
        lambda x: (x.softmax(1), x.sum(0), x.softmax(0), x.var(0), torch.var_mean(x, 1)), torch.randn(20_000, 3)
    )
