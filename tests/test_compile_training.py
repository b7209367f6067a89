"""torch.compile: training steps give the losses and the weights that they give on the CPU."""

import copy
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
import torch._functorch.config as functorch_config
import torch.nn.functional as F
from compiling import BACKEND, assert_gradients_same, assert_near, compiled, counter, fresh_compiler
from torch import Tensor, nn


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    with fresh_compiler():
        yield


class Net(nn.Module):
    """Convolution, batch norm with its buffers, dropout, a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1, bias=False)  # a bias before the norm has no gradient but noise
        self.norm = nn.BatchNorm2d(4)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.conv(x))).mean((2, 3))
        return self.second(F.dropout(self.first(x), 0.2, self.training))


def _train(model: nn.Module, call, optimizer_step, optimizer, device, steps: int = 4) -> list[float]:
    generator = torch.Generator().manual_seed(9)
    data = [
        (torch.randn(6, 2, 5, 5, generator=generator), torch.randint(0, 4, (6,), generator=generator))
        for _ in range(steps)
    ]
    torch.manual_seed(4)
    losses = []
    for x, target in data:
        optimizer.zero_grad()
        loss = F.cross_entropy(call(x.to(device)), target.to(device))
        loss.backward()
        optimizer_step()
        losses.append(loss.detach())
    return [loss.item() for loss in losses]


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05),
    "SGD momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "SGD loop": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, foreach=False),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "Adam loop": lambda p: torch.optim.Adam(p, lr=0.01, foreach=False),
    "Adam foreach amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True, amsgrad=True),
    "Adam tensor lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01)),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "AdamW capturable": lambda p: torch.optim.AdamW(p, lr=0.01, capturable=p[0].device.type != "cpu"),
    "AdamW loop capturable": lambda p: torch.optim.AdamW(
        p, lr=0.01, foreach=False, capturable=p[0].device.type != "cpu"
    ),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
}
_FAST = ("AdamW", "cross_entropy", "cross_entropy weight", "bce logits")


def _tiers(names: Iterable[str]) -> list[Any]:
    """All but a few belong to the full tier."""
    return [n if n in _FAST else pytest.param(n, marks=pytest.mark.slow) for n in names]


@pytest.mark.parametrize("name", _tiers(OPTIMIZERS))
def test_compiled_optimizer(device, name):
    torch.manual_seed(1)
    model = Net()
    here = copy.deepcopy(model).to(device)
    optimizer, mine = OPTIMIZERS[name](list(model.parameters())), OPTIMIZERS[name](list(here.parameters()))
    expected = _train(model, model, optimizer.step, optimizer, "cpu")
    backend = counter()
    losses = _train(here, compiled(here), torch.compile(mine.step, backend=backend), mine, device)
    assert backend.frame_count >= 1
    torch.testing.assert_close(losses, expected, rtol=2e-4, atol=2e-5)
    for (key, a), e in zip(here.state_dict().items(), model.state_dict().values(), strict=True):
        torch.testing.assert_close(a.cpu(), e, rtol=2e-3, atol=2e-4, msg=lambda m, k=key: f"{k}: {m}")


def test_step_with_scheduler_does_not_recompile_for_each_rate(device):
    model = nn.Linear(3, 2).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.1))
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    backend = counter()

    @torch.compile(backend=backend)
    def step() -> None:
        optimizer.step()

    for _ in range(6):
        model(torch.ones(1, 3, device=device)).sum().backward()
        step()
        scheduler.step()
    assert backend.frame_count <= 3
    assert optimizer.param_groups[0]["lr"].item() == pytest.approx(0.1 * 0.5**6)


def test_whole_step_in_one_function(device):
    """Forward, loss, backward and update, compiled with a graph break where backward is called."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    here = copy.deepcopy(model).to(device)
    x, y = torch.randn(10, 4), torch.randn(10, 1)

    def make(model: nn.Module):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        return step

    plain, call = make(model), torch.compile(make(here), backend=BACKEND)
    for _ in range(4):
        assert_near(call(x.to(device), y.to(device)).detach(), plain(x, y).detach())


def test_buffers_of_batch_norm(device):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU())
    here = copy.deepcopy(model).to(device)
    call = compiled(here)
    for training in (True, True, False, True):
        model.train(training)
        here.train(training)
        x = torch.randn(4, 2, 6, 6)
        assert_near(call(x.to(device)), model(x))
        assert_near(dict(here.named_buffers()), dict(model.named_buffers()))


def test_gradients_accumulate(device):
    model = nn.Linear(3, 2)
    here = copy.deepcopy(model).to(device)
    call = compiled(here)
    for rows in (2, 2, 2):
        x = torch.randn(rows, 3)
        model(x).sum().backward()
        call(x.to(device)).sum().backward()
    assert_near([p.grad for p in here.parameters()], [p.grad for p in model.parameters()])


def test_backward_twice_through_a_kept_graph(device):
    x = torch.randn(3, 3)
    f = compiled(lambda x: (x.sin() @ x).exp())
    here = x.to(device).requires_grad_()
    x.requires_grad_()
    (x.sin() @ x).exp().sum().backward()
    with functorch_config.patch(donated_buffer=False):  # PyTorch asks for it where a graph is kept
        y = f(here).sum()
        y.backward(retain_graph=True)
        first = here.grad.clone()
        here.grad = None
        y.backward()
    assert_near([first, here.grad], [x.grad, x.grad])


def test_argument_changed_in_place_has_a_gradient():
    def f(x: Tensor, y: Tensor) -> Tensor:
        z = x * 2
        z.add_(y).mul_(y)
        z[:, 1] = y[:, 0]
        return z.relu()

    assert_gradients_same(f, torch.randn(3, 4), torch.randn(3, 4))


def test_only_some_arguments_need_gradients(device):
    f = compiled(lambda x, y, z: (x @ y + z).softmax(-1))
    x, y, z = torch.randn(2, 3), torch.randn(3, 4), torch.randn(4)
    a = y.clone().requires_grad_()
    (x @ a + z).softmax(-1)[0, 0].backward()
    b = y.to(device).requires_grad_()
    f(x.to(device), b, z.to(device))[0, 0].backward()
    assert_near(b.grad, a.grad)


def test_result_that_needs_no_gradient(device):
    f = compiled(lambda x: (x * 2, (x > 0).sum(), x.detach() + 1, x.argmax()))
    x = torch.randn(5)
    here = x.to(device).requires_grad_()
    results = f(here)
    assert [r.requires_grad for r in results] == [True, False, False, False]
    assert_near([r.detach() for r in results], [x * 2, (x > 0).sum(), x + 1, x.argmax()])


LOSSES = {
    "cross_entropy": lambda x, t: F.cross_entropy(x, t),
    "cross_entropy sum": lambda x, t: F.cross_entropy(x, t, reduction="sum", ignore_index=1),
    "cross_entropy none": lambda x, t: F.cross_entropy(x, t, reduction="none", label_smoothing=0.2),
    "cross_entropy weight": lambda x, t: F.cross_entropy(x, t, weight=x.detach().abs().mean(0)),
    "nll": lambda x, t: F.nll_loss(x.log_softmax(-1), t),
    "mse": lambda x, t: F.mse_loss(x, t.unsqueeze(1).expand_as(x).float()),
    "bce": lambda x, t: F.binary_cross_entropy(x.sigmoid(), (t.unsqueeze(1) == 1).expand_as(x).float()),
    "bce logits": lambda x, t: F.binary_cross_entropy_with_logits(x, (t.unsqueeze(1) == 1).expand_as(x).float()),
    "huber": lambda x, t: F.huber_loss(x, t.unsqueeze(1).expand_as(x).float()),
    "smooth l1": lambda x, t: F.smooth_l1_loss(x, t.unsqueeze(1).expand_as(x).float(), beta=0.5),
    "kl": lambda x, t: F.kl_div(x.log_softmax(-1), torch.ones_like(x).softmax(-1), reduction="batchmean"),
    "cosine": lambda x, t: F.cosine_similarity(x, x.flip(0)).sum(),
    "triplet": lambda x, t: F.triplet_margin_loss(x, x.flip(0), x.roll(1, 0)),
}


@pytest.mark.parametrize("name", _tiers(LOSSES))
def test_losses(name):
    assert_gradients_same(LOSSES[name], torch.randn(6, 5), torch.randint(0, 5, (6,)))


def test_cross_entropy_of_images_and_of_one_row():
    assert_gradients_same(F.cross_entropy, torch.randn(2, 5, 3, 4), torch.randint(0, 5, (2, 3, 4)))
    assert_gradients_same(F.cross_entropy, torch.randn(5), torch.tensor(3))
