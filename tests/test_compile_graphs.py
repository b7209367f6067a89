"""torch.compile: graphs that hold more than arithmetic on tensors of known sizes."""

import io
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


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    with fresh_compiler():
        yield


# -- Sizes and branches that depend on data ----------------------------------------------------------------------------


def test_sizes_that_depend_on_data():
    def f(x: Tensor) -> tuple[Tensor, ...]:
        where = x.nonzero()
        chosen = x[x > 0]
        return where * 2, chosen + 1, torch.masked_select(x, x < 0).sum(), x.relu() - 1

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        assert_compiled_same(f, torch.randn(5, 6))


def test_unique_inside_a_graph():
    def f(x: Tensor) -> tuple[Tensor, ...]:
        values, inverse = torch.unique(x, return_inverse=True)
        return values + 1, values[inverse], inverse.sum()

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        assert_compiled_same(f, torch.randint(0, 5, (20,)))


def test_numbers_read_inside_a_graph():
    def f(x: Tensor, n: Tensor) -> tuple[Tensor, ...]:
        size = n.item()
        torch._check(size >= 2)
        return torch.full((size,), 3.0, device=x.device) + size, x * size, x.sum() * x.max().item()

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        assert_compiled_same(f, torch.randn(4), torch.tensor(5))


def test_graph_breaks_between_programs(device):
    backend = counter()

    def f(x: Tensor) -> Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        if y.sum() > 0:
            return y.exp()
        return y - 1

    call = torch.compile(f, backend=backend)
    for x in (torch.ones(3), -torch.ones(3)):
        assert_near(call(x.to(device)), f(x))
    assert backend.frame_count >= 3


def test_cond(device):
    def f(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin() * 2, lambda x: x.cos() - 1, (x,)) + 1

    call = compiled(f)
    for x in (torch.ones(3), -torch.ones(3)):
        assert_near(call(x.to(device)), f(x))


def test_while_loop(device):
    from torch._higher_order_ops.while_loop import while_loop

    def f(x: Tensor) -> Tensor:
        return (
            while_loop(
                lambda i, x: i < 4,
                lambda i, x: (i + 1, x * 2 + i),
                (torch.zeros((), dtype=torch.int64, device=x.device), x),
            )[1]
            - 1
        )

    x = torch.randn(3)
    expected = x
    for i in range(4):
        expected = expected * 2 + i
    assert_near(compiled(f)(x.to(device)), expected - 1)


def test_loop_over_tensors_of_the_host(device):
    """Tensors made on the CPU in the middle of a graph, and moved."""

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        positions = torch.arange(x.shape[0]).to(x.device)
        return x * positions.unsqueeze(1), (x.sum(1) + 1).cpu()

    x = torch.randn(4, 3)
    assert_near(compiled(f)(x.to(device)), f(x))


def test_assertions_inside_a_graph(device):
    def f(x: Tensor) -> Tensor:
        torch._assert_async(x.sum() > 0, "the sum is not positive")
        return x * 2

    x = torch.ones(3)
    call = compiled(f)
    assert_near(call(x.to(device)), x * 2)
    with pytest.raises(RuntimeError, match="sum is not positive"):
        call(-x.to(device)).cpu()


@pytest.mark.neuron_only
def test_graph_over_two_devices(device):
    if torch.accelerator.device_count() < 2:
        pytest.skip("there is one device")
    other = torch.device(device.type, 1)

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z = x * 2
        return z.to(other) + y, y.to(device) - z

    x, y = torch.randn(4), torch.randn(4)
    a, b = compiled(f)(x.to(device), y.to(other))
    assert (a.device.index, b.device.index) == (1, 0)
    assert_near([a, b], [x * 2 + y, y - x * 2])


# -- Ops of users ------------------------------------------------------------------------------------------------------


@torch.library.custom_op("compile_tests::scaled", mutates_args=())
def scaled(x: Tensor, factor: float) -> Tensor:
    return x * factor


@scaled.register_fake
def _(x: Tensor, factor: float) -> Tensor:
    return torch.empty_like(x)


scaled.register_autograd(
    lambda context, grad: (grad * context.factor, None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]),
)


@torch.library.custom_op("compile_tests::add_into", mutates_args=("out",))
def add_into(x: Tensor, out: Tensor) -> None:
    out.add_(x)


@torch.library.custom_op("compile_tests::split_sum", mutates_args=())
def split_sum(xs: list[Tensor], n: int) -> tuple[Tensor, list[Tensor]]:
    return sum(xs) * n, [x + n for x in xs]


@split_sum.register_fake
def _(xs: list[Tensor], n: int) -> tuple[Tensor, list[Tensor]]:
    return torch.empty_like(xs[0]), [torch.empty_like(x) for x in xs]


def test_custom_op():
    assert_compiled_same(lambda x: scaled(x.sin(), 2.5).cos(), torch.randn(4, 3))
    assert_gradients_same(lambda x: scaled(x.sin(), 2.5).cos(), torch.randn(4, 3))


def test_custom_op_that_writes():
    def f(x: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
        mine = torch.ones_like(x)
        add_into(x * 2, mine)
        add_into(mine, out)
        return mine + 1, out * 2

    assert_compiled_same(f, torch.randn(3), torch.randn(3))


def test_custom_op_that_writes_into_a_view():
    def f(x: Tensor) -> Tensor:
        y = x * 2
        add_into(x[0], y[1])
        add_into(x.t()[0, :2], y.t()[1, :2])
        return y.relu()

    assert_compiled_same(f, torch.randn(3, 4))


def test_custom_op_with_lists():
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, list[Tensor]]:
        total, parts = split_sum([x + 1, y * 2], 3)
        return total - 1, [p.exp() for p in parts]

    assert_compiled_same(f, torch.randn(3), torch.randn(3))


def test_autograd_function():
    class Clip(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            context.save_for_backward(x)
            return x.clamp(-1, 1)

        @staticmethod
        def backward(context, grad):
            (x,) = context.saved_tensors
            return grad * (x.abs() < 2)

    assert_gradients_same(lambda x: Clip.apply(x * 2).exp(), torch.randn(5, 4))


# -- Modes of PyTorch --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(device, mode):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.BatchNorm1d(4))
    x = torch.randn(5, 4)
    with mode():
        expected = model(x)
        model.load_state_dict(model.state_dict())
        model.eval()
        expected = model(x)
        model.to(device)
        call = compiled(model)
        result = call(x.to(device))
        assert not result.requires_grad
        assert_near(result, expected)


def test_inference_after_training(device):
    """The same compiled function with and without gradients."""

    def f(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).tanh()

    call = compiled(f)
    x, w = torch.randn(3, 4), torch.randn(4, 2)
    here = w.to(device).requires_grad_()
    assert_near(call(x.to(device), here), f(x, w))
    with torch.no_grad():
        assert_near(call(x.to(device), here), f(x, w))
    with torch.inference_mode():
        assert_near(call(x.to(device), w.to(device)), f(x, w))


def test_autocast(device):
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    x = torch.randn(6, 8)

    def f(model: nn.Module, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            return F.cross_entropy(model(x), torch.arange(6, device=x.device) % 4)

    expected = f(model, x)
    expected.backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.to(device).zero_grad()
    result = compiled(f)(model, x.to(device))
    result.backward()
    assert result.dtype == expected.dtype
    torch.testing.assert_close(result.cpu(), expected, rtol=1e-2, atol=1e-2)
    for p, g in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(p.grad.cpu(), g, rtol=2e-2, atol=2e-2)


def test_autocast_around_the_call(device):
    f = compiled(lambda x, y: x @ y)
    x, y = torch.randn(3, 4), torch.randn(4, 5)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        result = f(x.to(device), y.to(device))
    assert result.dtype == torch.bfloat16
    torch.testing.assert_close(result.float().cpu(), x @ y, rtol=2e-2, atol=3e-2)
    assert f(x.to(device), y.to(device)).dtype == torch.float32


def test_complex_numbers():
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        z = torch.complex(x, y)
        return (
            z * 2 + 1j,
            z.abs(),
            z.real + z.imag,
            torch.view_as_real(z.conj().resolve_conj()) + 0,
            z @ z.t(),
            torch.fft.fft(x),
            z.conj() * z,
        )

    assert_compiled_same(f, torch.randn(4, 4), torch.randn(4, 4))
    assert_compiled_same(
        lambda z: (z.exp(), z.sum(), torch.view_as_real(z * z), z.angle()), torch.randn(3, 4, dtype=torch.complex64)
    )


def test_gradients_of_complex_numbers():
    def f(x: Tensor) -> Tensor:
        return torch.fft.ifft(torch.fft.fft(x) * (1 + 2j)).abs() + torch.view_as_complex(x.view(-1, 2)).angle().sum()

    assert_gradients_same(f, torch.randn(8))


def test_rotary_embedding_with_complex_numbers():
    def f(x: Tensor, angles: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)

    assert_compiled_same(f, torch.randn(2, 5, 8), torch.randn(5, 4))


# -- Programs that are saved -------------------------------------------------------------------------------------------


def test_exported_program_runs_and_compiles(device):
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)
            self.register_buffer("scale", torch.tensor(2.0))

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x).softmax(-1) * self.scale

    torch.manual_seed(2)
    net = Net()
    x = torch.randn(5, 4)
    expected = net(x)
    net.to(device)
    rows = torch.export.Dim("rows", min=2)
    program = torch.export.export(net, (x.to(device),), dynamic_shapes=({0: rows},))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    assert_near(loaded(x.to(device)), expected)
    call = compiled(loaded)
    assert_near(call(x.to(device)), expected)
    assert_near(call(x[:3].to(device)), expected[:3])


def test_hooks_and_global_state(device):
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    calls = []
    model[0].register_forward_hook(lambda m, i, o: calls.append(1) or o * 2)
    x = torch.randn(2, 3)
    expected = model(x)
    model.to(device)
    call = torch.compile(model, backend=BACKEND)
    assert_near(call(x.to(device)), expected)
    assert_near(call(x.to(device)), expected)
    assert len(calls) == 3


@pytest.mark.neuron_only
def test_two_devices(device):
    """Graphs on another device than the current one."""
    if torch.accelerator.device_count() < 2:
        pytest.skip("there is one device")
    x = torch.randn(3)
    f = compiled(lambda t: t.exp() + torch.ones(3, device=t.device))
    other = torch.device(device.type, 1)
    assert_near(compiled(lambda: torch.arange(3, device=other) * 2)().to(device), torch.arange(3) * 2)
    result = f(x.to(other))
    assert result.device == other
    assert_near(result, x.exp() + 1)
    assert_near(f(x.to(device)), x.exp() + 1)
