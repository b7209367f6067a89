"""Automatic differentiation: it runs above the device, in threads of its own."""

import threading

import pytest
import torch
import torch.nn.functional as F
from comparison import assert_same, assert_same_as_cpu
from torch import nn
from torch.utils.checkpoint import checkpoint


def test_gradients_of_a_chain(device):
    def program(x, w):
        (F.gelu(x @ w).softmax(-1) * x).sum().backward()
        return x.grad, w.grad

    assert_same_as_cpu(
        program, torch.randn(6, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True), device=device
    )


@pytest.mark.parametrize("function", [F.mish, F.silu])
def test_gradients_come_from_the_cpu_kernel_where_a_composition_rounds_differently(device, function):
    def program(x):
        function(x).square().sum().backward()
        return x.grad

    assert_same_as_cpu(program, torch.randn(1000, requires_grad=True), device=device)


def test_gradients_through_views_and_in_place_ops(device):
    def program(x):
        y = x * 1
        y[:, 1:3].mul_(2)
        y.t()[0].add_(y[:, 3])
        y[0].sigmoid_()
        y.transpose(0, 1).reshape(-1)[::2].sum().backward()
        return x.grad

    assert_same_as_cpu(program, torch.randn(4, 6, requires_grad=True), device=device)


def test_gradients_accumulate(device):
    def program(x):
        for i in range(3):
            (x * i).sum().backward()
        first = x.grad.clone()
        x.grad = None
        x.sum().backward()
        return first, x.grad

    assert_same_as_cpu(program, torch.randn(5, requires_grad=True), device=device)


def test_retain_graph(device):
    x = torch.randn(4, device=device, requires_grad=True)
    y = x.exp().sum()
    y.backward(retain_graph=True)
    first = x.grad.clone()
    y.backward()
    assert_same(x.grad, (first * 2).cpu())
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.backward()


def test_double_backward(device):
    def program(x):
        (g,) = torch.autograd.grad((x**3).sin().sum(), x, create_graph=True)
        (h,) = torch.autograd.grad(g.pow(2).sum(), x)
        return g, h

    assert_same_as_cpu(program, torch.randn(5, dtype=torch.float64, requires_grad=True), device=device)


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: (a @ b).tanh(),
        lambda a, b: F.layer_norm(a, (3,)) * b,
        lambda a, b: torch.linalg.inv(a @ a.mT + 3 * torch.eye(3, dtype=a.dtype, device=a.device)) @ b,
        lambda a, b: F.conv1d(a[None], b[:, :, None]),
        lambda a, b: a.cumsum(0)[1:] / (b[:2].exp()),
    ],
    ids=["matmul", "layer_norm", "inverse", "conv1d", "cumsum"],
)
def test_gradcheck(device, function):
    a = torch.randn(3, 3, dtype=torch.float64, device=device, requires_grad=True)
    b = torch.randn(3, 3, dtype=torch.float64, device=device, requires_grad=True)
    assert torch.autograd.gradcheck(function, (a, b))
    assert torch.autograd.gradgradcheck(function, (a, b))


def test_hooks_see_device_tensors(device):
    seen = []
    x = torch.ones(3, device=device, requires_grad=True)
    y = x * 2
    y.register_hook(lambda g: seen.append(g.device.type) or g * 10)
    x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.tolist()))
    y.sum().backward()
    assert seen == [device.type, [20.0] * 3]


def test_module_hooks(device):
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU()).to(device)
    seen = []
    model[0].register_forward_hook(lambda m, i, o: seen.append(("forward", o.shape)) or o + 1)
    model[0].register_full_backward_hook(lambda m, gi, go: seen.append(("backward", go[0].device.type)))
    model(torch.ones(1, 2, device=device)).sum().backward()
    assert seen == [("forward", (1, 2)), ("backward", device.type)]


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_recomputes_with_the_same_dropout(device, reentrant):
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.GELU(), nn.Linear(8, 8))

    def program(model_weights, x):
        module = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.GELU(), nn.Linear(8, 8)).to(x.device)
        module.load_state_dict(model_weights)
        torch.manual_seed(11)
        plain = torch.autograd.grad(module(x).sum(), x)[0]
        torch.manual_seed(11)
        checkpoint(module, x, use_reentrant=reentrant).sum().backward()
        return plain, x.grad

    weights, x = dict(model.state_dict()), torch.randn(4, 8, requires_grad=True)
    assert_same_as_cpu(program, weights, x, device=device)
    x = x.detach().to(device).requires_grad_()
    plain, recomputed = program(weights, x)
    assert_same(recomputed, plain.cpu())


def test_saved_tensor_changed_in_place_is_an_error(device):
    x = torch.ones(3, device=device, requires_grad=True)
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_in_place_op_on_a_leaf_is_an_error(device):
    x = torch.ones(3, device=device, requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        x.add_(1)
    with torch.no_grad():
        x.add_(1)
    assert x.tolist() == [2.0] * 3


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.mark_non_differentiable()
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grad


def test_custom_function(device):
    def program(x):
        Cube.apply(x).sum().backward()
        return x.grad

    assert_same_as_cpu(program, torch.randn(4, requires_grad=True), device=device)


class AddInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.mark_dirty(x)
        return x.add_(y)

    @staticmethod
    def backward(ctx, grad):
        return grad, grad * 2


def test_custom_function_in_place(device):
    def program(x, y):
        AddInPlace.apply(x * 2, y).sum().backward()
        return x.grad, y.grad

    assert_same_as_cpu(program, torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True), device=device)


def test_inference_mode(device):
    with torch.inference_mode():
        x = torch.ones(3, device=device)
        y = x + x
        z = y.view(3, 1)
        y.mul_(2)
        y[0] = 5
        w = torch.cat([y, y])
        copied = w.cpu()
    assert all(t.is_inference() for t in (x, y, z, w, copied))
    assert copied.tolist() == [5.0, 4.0, 4.0] * 2
    p = torch.ones(3, device=device, requires_grad=True)
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        (p * y).sum()
    assert not y.clone().is_inference()


def test_no_grad_and_detach(device):
    x = torch.ones(3, device=device, requires_grad=True)
    with torch.no_grad():
        assert not (x * 2).requires_grad
    assert not (x * 2).detach().requires_grad
    assert (x * 2).requires_grad


@pytest.mark.filterwarnings("ignore:Error detected in")
def test_anomaly_mode_names_the_function(device):
    x = torch.zeros(2, device=device, requires_grad=True)
    with torch.autograd.set_detect_anomaly(True):
        y = (x / 0 * 0).sum() + x.sqrt().sum() * 0
        with pytest.raises(RuntimeError, match="returned nan values"):
            y.backward()


def test_vmap(device):
    x = torch.randn(3, 4)
    assert_same_as_cpu(lambda x: torch.func.vmap(lambda a: a.sin().sum())(x), x, device=device)
    assert_same_as_cpu(lambda x: torch.func.vmap(torch.dot)(x, x + 1), x, device=device)
    assert_same_as_cpu(lambda x: torch.func.vmap(lambda a: a[a.argmax()], in_dims=1)(x), x, device=device)


def test_jacobians_and_hessians(device):
    x = torch.randn(3, dtype=torch.float64)
    assert_same_as_cpu(lambda x: torch.func.jacrev(lambda a: a.sin() * a.sum())(x), x, device=device)
    assert_same_as_cpu(lambda x: torch.func.jacfwd(lambda a: a.sin() * a.sum())(x), x, device=device)
    assert_same_as_cpu(lambda x: torch.func.hessian(lambda a: (a**3).sum())(x), x, device=device)
    assert_same_as_cpu(lambda x: torch.func.grad(lambda a: a.pow(2).sum())(x), x, device=device)
    assert_same_as_cpu(lambda x: torch.func.jvp(torch.tanh, (x,), (x + 1,)), x, device=device)


def test_per_sample_gradients(device):
    def program(w, x):
        def loss(w, x):
            return F.linear(x, w).relu().sum()

        return torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(w, x)

    assert_same_as_cpu(program, torch.randn(3, 4), torch.randn(5, 4), device=device)


def test_functional_call(device):
    layer = nn.Linear(3, 2)
    weights = {"weight": torch.randn(2, 3), "bias": torch.randn(2)}
    x = torch.randn(4, 3)
    on_device = {k: v.to(device) for k, v in weights.items()}
    assert_same(
        torch.func.functional_call(layer.to(device), on_device, x.to(device)),
        F.linear(x, weights["weight"], weights["bias"]),
    )


@pytest.mark.neuron_only
def test_backward_of_a_side_stream_is_ordered_before_the_reader(device):  # P10
    side = torch.Stream(device=device)
    x = torch.randn(256, 256)
    w = torch.randn(256, 256, requires_grad=True)
    y = w
    for _ in range(8):
        y = (y @ x / 16).tanh()
    y.sum().backward()

    for _ in range(5):
        x_device, w_device = x.to(device), w.detach().to(device).requires_grad_()
        side.wait_stream(torch.accelerator.current_stream())
        with side:
            y = w_device
            for _ in range(8):
                y = (y @ x_device / 16).tanh()
            loss = y.sum()
        loss.backward()
        assert_same(w_device.grad, w.grad)  # read at once, from the default stream


@pytest.mark.neuron_only
def test_backward_uses_the_stream_of_forward(device):  # P10
    side = torch.Stream(device=device)
    streams = []

    class Spy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            streams.append(torch.accelerator.current_stream().stream_id)
            return grad

    x = torch.ones(2, device=device, requires_grad=True)
    torch.accelerator.synchronize()
    with side:
        y = Spy.apply(x).sum()
    y.backward()
    torch.accelerator.synchronize()
    assert streams == [side.stream_id]


def test_backward_from_several_threads(device):
    def work(results: list, i: int) -> None:
        x = torch.full((4,), float(i), device=device, requires_grad=True)
        for _ in range(20):
            x.grad = None
            (x * x).sum().backward()
        results[i] = x.grad.tolist()

    results = [None] * 4
    threads = [threading.Thread(target=work, args=(results, i)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == [[2.0 * i] * 4 for i in range(4)]


def test_error_in_backward_reaches_the_caller(device):
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            raise ValueError("broken backward")

    x = torch.ones(2, device=device, requires_grad=True)
    with pytest.raises(ValueError, match="broken backward"):
        Broken.apply(x).sum().backward()
    x.sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]
