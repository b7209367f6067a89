"""Training in captured graphs: whole steps, optimizers, autocast, compiled code, and graphed modules in eager loops."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from comparison import assert_same
from test_graphs import captured
from torch import Tensor, nn

from torch_neuronx import errors

pytestmark = pytest.mark.neuron_only


def mlp(width: int = 16, layers: int = 3) -> nn.Sequential:
    parts: list[nn.Module] = []
    for _ in range(layers):
        parts += [nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*parts, nn.Linear(width, 4))


class Step:
    """A training step on static tensors: forward, backward, optimizer."""

    def __init__(self, model: nn.Module, make: Callable[..., torch.optim.Optimizer], x: Tensor, target: Tensor) -> None:
        self.model, self.optimizer = model, make(model.parameters())
        self.x, self.target = x, target

    def __call__(self) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(self.model(self.x), self.target)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def feed(self, x: Tensor, target: Tensor) -> None:
        self.x.copy_(x)
        self.target.copy_(target)


def assert_trains_as_cpu(model: nn.Module, make: Callable[..., torch.optim.Optimizer], batches: list[Any]) -> None:
    """Captured steps leave the weights that CPU eager leaves, step for step, after a warm-up on a side stream."""
    x, target = batches[0]
    on_cpu = Step(copy.deepcopy(model), make, x.clone(), target.clone())
    on_device = Step(copy.deepcopy(model).to("neuron"), make, x.to("neuron"), target.to("neuron"))
    side = torch.neuron.Stream()
    side.wait_stream(torch.neuron.current_stream())
    with torch.neuron.stream(side):
        for _ in range(2):
            on_device()
    torch.neuron.current_stream().wait_stream(side)
    on_cpu(), on_cpu()
    graph, loss = captured(on_device)
    for batch in batches:
        on_device.feed(*batch)
        on_cpu.feed(*batch)
        graph.replay()
        assert_same(loss, on_cpu())
        assert_same(dict(on_device.model.state_dict()), dict(on_cpu.model.state_dict()))


def batches(count: int = 4, width: int = 16) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(8, width), torch.randint(0, 4, (8,))) for _ in range(count)]


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "sgd, one by one": lambda p: torch.optim.SGD(p, lr=0.1, foreach=False),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2, capturable=True, foreach=True),
    "adamw, one by one": lambda p: torch.optim.AdamW(p, lr=1e-2, capturable=True, foreach=False),
}


def make_optimizer(name: str) -> Callable[..., torch.optim.Optimizer]:
    """`capturable` is refused for parameters on the CPU; there the plain optimizer is the reference."""

    def make(parameters: Any) -> torch.optim.Optimizer:
        parameters = list(parameters)
        optimizer = OPTIMIZERS[name](parameters)
        for group in optimizer.param_groups:
            if "capturable" in group:
                group["capturable"] = parameters[0].device.type != "cpu"
        return optimizer

    return make


@pytest.mark.parametrize("name", ["sgd", "sgd, one by one"])
def test_whole_steps_equal_those_of_the_cpu(name):
    assert_trains_as_cpu(mlp(), make_optimizer(name), batches())


@pytest.mark.parametrize("name", ["adam", "adamw, one by one"])
def test_steps_of_adam_equal_eager_ones_on_the_device(name):
    # `capturable` computes bias corrections on the device, in another order than the CPU's numbers of Python.
    model, data = mlp().to("neuron"), batches()
    steps = []
    for _ in range(2):
        x, target = (t.to("neuron") for t in data[0])
        steps.append(Step(copy.deepcopy(model), OPTIMIZERS[name], x, target))
        steps[-1]()
    eager, replayed = steps
    graph, loss = captured(replayed)
    for batch in data:
        eager.feed(*batch)
        replayed.feed(*batch)
        graph.replay()
        assert_same(loss, eager())
        assert_same(dict(replayed.model.state_dict()), dict(eager.model.state_dict()))


def test_convolutions_and_batch_norm():
    features = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    model = nn.Sequential(*features, nn.Linear(72, 4))
    data = [(torch.randn(4, 3, 8, 8), torch.randint(0, 4, (4,))) for _ in range(3)]
    assert_trains_as_cpu(model, make_optimizer("sgd"), data)


def test_attention_and_embeddings():
    class Attend(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.mix, self.out = nn.Embedding(11, 16), nn.Linear(16, 48), nn.Linear(16, 4)

        def forward(self, tokens: Tensor) -> Tensor:
            q, k, v = self.mix(self.embed(tokens)).view(*tokens.shape, 3, 2, 8).permute(2, 0, 3, 1, 4)
            return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2).mean(1))

    data = [(torch.randint(0, 11, (4, 6)), torch.randint(0, 4, (4,))) for _ in range(3)]
    assert_trains_as_cpu(Attend(), make_optimizer("sgd"), data)


def test_first_calls_while_capturing_a_whole_step():
    # No warm-up: every op of the step meets its shapes for the first time. Gradients exist, as zero_grad leaves them.
    model = mlp(width=19, layers=1)
    x, target = torch.randn(5, 19), torch.randint(0, 4, (5,))
    device = copy.deepcopy(model).to("neuron")
    dx, dt = x.to("neuron"), target.to("neuron")

    def step() -> Tensor:
        loss = F.cross_entropy(device(dx), dt)
        loss.backward()
        return loss.detach()

    graph, loss = captured(step)
    graph.replay()
    expected = F.cross_entropy(model(x), target)
    expected.backward()
    assert_same(loss, expected.detach())
    assert_same([p.grad for p in device.parameters()], [p.grad for p in model.parameters()])


def test_autocast():
    model = mlp().to("neuron")
    x = torch.randn(8, 16, device="neuron")

    def step() -> Tensor:
        with torch.autocast("neuron", dtype=torch.bfloat16):
            loss = model(x).float().square().mean()
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        return torch.cat([loss.detach().view(1), *(g.flatten() for g in gradients)])

    expected = step()
    graph, result = captured(step)
    graph.replay()
    assert_same(result, expected)


def test_a_captured_learning_rate_can_be_a_tensor():
    p = torch.ones(4, device="neuron", requires_grad=True)
    rate = torch.tensor(0.5, device="neuron")
    optimizer = torch.optim.Adam([p], lr=rate, capturable=True)
    p.grad = torch.ones_like(p)
    optimizer.step()
    graph, _ = captured(optimizer.step)
    moved = []
    for value in (0.5, 0.0):
        rate.fill_(value)
        before = p.detach().clone()
        graph.replay()
        moved.append(bool((p.detach() != before).any()))
    assert moved == [True, False]


def test_optimizers_that_count_on_the_host_are_refused():
    p = torch.ones(4, device="neuron", requires_grad=True)
    optimizer = torch.optim.Adam([p])
    p.grad = torch.ones_like(p)
    with pytest.raises(errors.NotCapturableOptimizerError, match="capturable=True"):
        captured(optimizer.step)
    optimizer.step()
    torch.neuron.synchronize()


def test_compiled_functions_are_captured():
    compiled = torch.compile(lambda x, w: F.gelu(x @ w).softmax(-1) + x.sum())
    x, w = torch.randn(16, 16, device="neuron"), torch.randn(16, 16, device="neuron")
    compiled(x, w)
    graph, y = captured(lambda: compiled(x, w) * 2)
    for _ in range(3):
        x.normal_()
        graph.replay()
        expected = compiled(x, w) * 2
        # The memory of temporaries is the graph's: nobody else may have it between replays.
        others = [torch.full((4096,), float("nan"), device="neuron") for _ in range(10)]
        assert_same(y, expected)
        del others


# -- make_graphed_callables --------------------------------------------------------------------------------------------


def train_graphed(model: nn.Module, reference: nn.Module, data: list[Tensor], accumulate: int = 1) -> None:
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, reference)]
    for start in range(0, len(data), accumulate):
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        for x in data[start : start + accumulate]:
            inputs = [x.to("neuron").requires_grad_(), x.clone().requires_grad_()]
            losses = [m(i).square().mean() for m, i in zip((model, reference), inputs, strict=True)]
            for loss in losses:
                loss.backward()
            assert_same(losses[0].detach(), losses[1].detach())
            assert_same(inputs[0].grad, inputs[1].grad)
        for optimizer in optimizers:
            optimizer.step()
        assert_same(dict(model.state_dict()), dict(reference.state_dict()))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_graphed_modules_train_as_on_the_cpu(accumulate):
    reference = mlp()
    model = copy.deepcopy(reference).to("neuron")
    sample = torch.randn(8, 16, device="neuron", requires_grad=True)
    assert torch.neuron.make_graphed_callables(model, (sample,)) is model
    train_graphed(model, reference, [torch.randn(8, 16) for _ in range(4)], accumulate)


def test_graphed_modules_run_eagerly_in_the_other_mode():
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).to("neuron")
    torch.neuron.make_graphed_callables(model, (torch.randn(4, 8, device="neuron"),))
    x = torch.randn(4, 8, device="neuron")
    torch.manual_seed(2)
    graphed = model(x).clone()
    torch.manual_seed(2)
    assert_same(graphed, F.dropout(model[0](x), 0.5))
    model.eval()
    assert_same(model(x), model[0](x))


def test_graphed_tuples_of_callables():
    reference = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16))
    first, last = copy.deepcopy(reference[0]).to("neuron"), copy.deepcopy(reference[2]).to("neuron")
    samples = tuple((torch.randn(8, 16, device="neuron", requires_grad=True),) for _ in range(3))
    parts = torch.neuron.make_graphed_callables((first, torch.tanh, last), samples)
    x = torch.randn(8, 16)
    dx = x.to("neuron").requires_grad_()
    x.requires_grad_()
    h: Any = dx
    for part in parts:
        h = part(h)
    h.sum().backward()
    reference(x).sum().backward()
    assert_same(dx.grad, x.grad)
    assert_same([first.weight.grad, last.bias.grad], [reference[0].weight.grad, reference[2].bias.grad])


def test_graphed_functions_with_several_results():
    def function(x: Tensor, pair: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        a, b = pair
        return {"sum": x + a, "product": x * b}

    sample = tuple(torch.randn(4, device="neuron", requires_grad=True) for _ in range(3))
    graphed = torch.neuron.make_graphed_callables(function, (sample[0], (sample[1], sample[2])))
    values = [torch.randn(4, requires_grad=True) for _ in range(3)]
    device = [v.detach().to("neuron").requires_grad_() for v in values]
    for (x, a, b), call in ((device, graphed), (values, function)):
        result = call(x, (a, b))
        (result["sum"] * 2 + result["product"]).sum().backward()
    assert_same([t.grad for t in device], [t.grad for t in values])


def test_graphed_callables_with_unused_inputs():
    sample = tuple(torch.randn(4, device="neuron", requires_grad=True) for _ in range(2))
    with pytest.raises(RuntimeError, match="not have been used"):
        torch.neuron.make_graphed_callables(lambda x, y: x * 2, sample)
    graphed = torch.neuron.make_graphed_callables(lambda x, y: x * 2, sample, allow_unused_input=True)
    x, y = (torch.ones(4, device="neuron", requires_grad=True) for _ in range(2))
    graphed(x, y).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0] * 4
    assert y.grad is None


def test_what_cannot_be_graphed():
    sample = (torch.randn(4, device="neuron"),)
    with pytest.raises(errors.UngraphableArgumentError, match="int"):
        torch.neuron.make_graphed_callables(lambda x, n: x * n, (*sample, 3))
    hooked = nn.Linear(4, 4).to("neuron")
    hooked.register_forward_hook(lambda *_: None)
    with pytest.raises(errors.UngraphableModuleError, match="hooks"):
        torch.neuron.make_graphed_callables(hooked, sample)
    buffered = nn.Linear(4, 4).to("neuron")
    buffered.register_buffer("scale", torch.ones(4, device="neuron", requires_grad=True))
    with pytest.raises(errors.UngraphableModuleError, match="buffer"):
        torch.neuron.make_graphed_callables(buffered, sample)
    with torch.autocast("neuron"), pytest.raises(errors.AutocastCacheInGraphError, match="cache_enabled=False"):
        torch.neuron.make_graphed_callables(nn.Linear(4, 4).to("neuron"), sample)
