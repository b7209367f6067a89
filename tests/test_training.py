"""Training gives, step by step, the very losses that the CPU gives."""

import copy

import pytest
import torch
import torch.nn.functional as F
from comparison import assert_same, assert_same_as_cpu
from tolerances import RECURRENT, Tolerance
from torch import nn


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4)
    )


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)),
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1, groups=2),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.1)
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x.unsqueeze(1).expand(-1, 3, -1)).mean(1))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.rnn = kind(4, 8, num_layers=2, batch_first=True, bidirectional=True, dropout=0.1)
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(x.unflatten(1, (4, 4)))[0][:, -1])


MODELS = {
    "mlp": mlp,
    "cnn": cnn,
    "transformer": Transformer,
    "lstm": lambda: Recurrent(nn.LSTM),
    "gru": lambda: Recurrent(nn.GRU),
    "rnn": lambda: Recurrent(nn.RNN),
}


RECURRENT_MODELS = ("lstm", "gru", "rnn")


def recurrent_tolerance(name: str) -> Tolerance | None:
    return RECURRENT[torch.float32] if name in RECURRENT_MODELS else None


def train(
    device: torch.device | str, model: nn.Module, make_optimizer, steps: int = 6, read_every: int = 1
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and the final state. `read_every`: after how many steps the host reads the losses."""
    torch.manual_seed(5)
    model = copy.deepcopy(model).to(device)
    optimizer = make_optimizer(model.parameters())
    x, y = torch.randn(8, 16).to(device), torch.randint(0, 4, (8,)).to(device)
    torch.manual_seed(7)  # each device draws from a generator of its own, and the data above came from the CPU's
    losses, unread = [], []
    for step in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        unread.append(loss.detach())
        if (step + 1) % read_every == 0:
            losses += [u.item() for u in unread]
            unread = []
    return losses + [u.item() for u in unread], model.state_dict()


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "SGD foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "SGD fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "Adam loop": lambda p: torch.optim.Adam(p, lr=0.01, foreach=False),
    "Adam foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True, amsgrad=True),
    "Adam fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "AdamW loop": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "AdamW tensor lr": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01), foreach=False),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "RMSprop foreach": lambda p: torch.optim.RMSprop(p, lr=0.01, foreach=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05, foreach=False),
    "Adagrad foreach": lambda p: torch.optim.Adagrad(p, lr=0.05, foreach=True),
    "Adagrad fused": lambda p: torch.optim.Adagrad(p, lr=0.05, fused=True),
    "Adadelta": lambda p: torch.optim.Adadelta(p, foreach=True),
    "NAdam": lambda p: torch.optim.NAdam(p, foreach=True),
    "RAdam": lambda p: torch.optim.RAdam(p, foreach=True),
    "Rprop": lambda p: torch.optim.Rprop(p, foreach=True),
    "Adamax": lambda p: torch.optim.Adamax(p, foreach=True),
    "ASGD": lambda p: torch.optim.ASGD(p, foreach=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_gives_the_same_losses_and_weights(device, name):
    model = mlp()
    expected = train("cpu", model, OPTIMIZERS[name])
    assert expected[0][-1] != expected[0][0], "the reference does not move"
    assert_same(train(device, model, OPTIMIZERS[name]), expected)


@pytest.mark.parametrize("name", MODELS)
def test_model_gives_the_same_losses_and_weights(device, name):
    model = MODELS[name]()
    # Plain SGD: Adam's first steps are the signs of the gradients, which makes much of a last bit.
    optimizer = OPTIMIZERS["SGD" if name in RECURRENT_MODELS else "AdamW"]
    expected = train("cpu", model, optimizer)
    assert_same(train(device, model, optimizer), expected, recurrent_tolerance(name))


@pytest.mark.parametrize("name", MODELS)
def test_model_gives_the_same_in_evaluation(device, name):
    model = MODELS[name]().eval()
    x = torch.randn(8, 16)
    with torch.no_grad():
        assert_same(copy.deepcopy(model).to(device)(x.to(device)), model(x), recurrent_tolerance(name))


@pytest.mark.neuron_only
def test_reading_the_loss_seldom_changes_nothing(device):  # W7
    model = mlp()
    every_step = train(device, model, OPTIMIZERS["AdamW"], steps=20, read_every=1)
    every_tenth = train(device, model, OPTIMIZERS["AdamW"], steps=20, read_every=10)
    assert_same(every_tenth, every_step)


def test_lbfgs_runs_its_closure(device):
    def program(x, y):
        w = torch.zeros(4, device=x.device, requires_grad=True)
        optimizer = torch.optim.LBFGS([w], max_iter=5)

        def closure():
            optimizer.zero_grad()
            loss = ((x @ w - y) ** 2).mean()
            loss.backward()
            return loss

        optimizer.step(closure)
        return w

    assert_same_as_cpu(program, torch.randn(10, 4), torch.randn(10), device=device)


def test_learning_rate_schedule_takes_effect(device):
    def losses(on):
        torch.manual_seed(1)
        model = mlp().to(on)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.5, total_steps=8)
        x = torch.randn(4, 16).to(on)
        torch.manual_seed(2)
        result = []
        for _ in range(8):
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            schedule.step()
            result.append(loss.item())
        return result

    assert losses(device) == losses("cpu")


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_dropout_draws_what_the_cpu_draws(device, p):
    x = torch.randn(50, 7)
    assert_same_as_cpu(lambda x: F.dropout(x, p), x, device=device)
    assert_same_as_cpu(lambda x: (F.dropout(x, p), F.dropout(x, p)), x, device=device)
    assert_same_as_cpu(lambda x: F.dropout1d(x[None], p), x, device=device)
    assert_same_as_cpu(lambda x: F.alpha_dropout(x, p), x, device=device)
    if 0 < p < 1:
        assert_same_as_cpu(lambda x: torch.native_dropout(x, p, True), x, device=device)


def test_dropout_draws_anew_each_time(device):
    x = torch.ones(1000, device=device)
    assert not torch.equal(F.dropout(x, 0.5), F.dropout(x, 0.5))


def test_dropout_with_the_probability_changing_between_calls(device):
    def program(x):
        return [F.dropout(x, p) for p in (0.1, 0.9, 0.5, 0.1, 0.0)]

    assert_same_as_cpu(program, torch.ones(200), device=device)


CONVOLUTIONS = {
    "conv1d": (F.conv1d, (2, 4, 9), (6, 4, 3), {"padding": 1}),
    "conv1d strided": (F.conv1d, (2, 4, 9), (6, 2, 3), {"stride": 2, "groups": 2}),
    "conv2d": (F.conv2d, (2, 3, 8, 8), (5, 3, 3, 3), {"padding": "same"}),
    "conv2d dilated": (F.conv2d, (2, 4, 8, 8), (4, 1, 3, 3), {"dilation": 2, "groups": 4}),
    "conv2d one image": (F.conv2d, (3, 8, 8), (5, 3, 1, 1), {}),
    "conv3d": (F.conv3d, (1, 2, 5, 6, 4), (3, 2, 2, 3, 2), {"padding": (0, 1, 0)}),
    "conv_transpose1d": (F.conv_transpose1d, (2, 4, 5), (4, 3, 3), {"stride": 2}),
    "conv_transpose2d": (F.conv_transpose2d, (2, 4, 5, 5), (4, 3, 3, 3), {"stride": 2, "output_padding": 1}),
    "conv_transpose3d": (F.conv_transpose3d, (1, 2, 3, 3, 3), (2, 2, 2, 2, 2), {}),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution_forward_and_backward(device, name, bias, dtype):  # O3
    function, input_shape, weight_shape, options = CONVOLUTIONS[name]
    transposed = "transpose" in name
    outputs = weight_shape[1] if transposed else weight_shape[0]

    def program(x, w, b):
        y = function(x, w, b, **options)
        y.pow(2).sum().backward()
        return y, x.grad, w.grad, None if b is None else b.grad

    x = torch.randn(input_shape, dtype=dtype, requires_grad=True)
    w = torch.randn(weight_shape, dtype=dtype, requires_grad=True)
    b = torch.randn(outputs, dtype=dtype, requires_grad=True) if bias else None
    assert_same_as_cpu(program, x, w, b, device=device)


def test_convolution_in_channels_last(device):  # O3
    def program(x, w):
        y = F.conv2d(x, w)
        y.sum().backward()
        return y, x.grad

    x = torch.randn(2, 8, 6, 6).to(memory_format=torch.channels_last).requires_grad_()
    assert_same_as_cpu(program, x, torch.randn(4, 8, 3, 3), device=device)


@pytest.mark.parametrize(
    "options", [{}, {"is_causal": True}, {"mask": True}, {"dropout_p": 0.5}, {"heads": 2}], ids=str
)
def test_attention_forward_and_backward(device, options):
    heads = options.get("heads", 4)
    mask = torch.rand(7, 7) > 0.3 if options.get("mask") else None
    if mask is not None:
        mask.fill_diagonal_(True)
    kwargs = {k: v for k, v in options.items() if k in ("is_causal", "dropout_p")}

    def program(q, k, v, mask):
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=heads != 4, **kwargs)
        y.pow(2).sum().backward()
        return y, q.grad, k.grad, v.grad

    q = torch.randn(2, 4, 7, 8, requires_grad=True)
    k, v = (torch.randn(2, heads, 7, 8, requires_grad=True) for _ in range(2))
    assert_same_as_cpu(program, q, k, v, mask, device=device)


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_recurrent_cell_forward_and_backward(device, kind):
    cell = kind(4, 8)

    def program(weights, x, h):
        local = kind(4, 8).to(x.device)
        local.load_state_dict(weights)
        out = local(x, (h, h * 2) if kind is nn.LSTMCell else h)
        (sum(o.pow(2).sum() for o in out) if isinstance(out, tuple) else out.pow(2).sum()).backward()
        return out, x.grad, h.grad, [p.grad for p in local.parameters()]

    assert_same_as_cpu(
        program,
        dict(cell.state_dict()),
        torch.randn(3, 4, requires_grad=True),
        torch.randn(3, 8, requires_grad=True),
        device=device,
        tolerance=RECURRENT[torch.float32],
    )


def test_packed_sequences(device):
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    lstm = nn.LSTM(3, 5, batch_first=True)

    def program(weights, x):
        local = nn.LSTM(3, 5, batch_first=True).to(x.device)
        local.load_state_dict(weights)
        packed = pack_padded_sequence(x, torch.tensor([4, 2, 1]), batch_first=True)
        out, lengths = pad_packed_sequence(local(packed)[0], batch_first=True)
        out.sum().backward()
        return out, lengths.tolist(), x.grad

    assert_same_as_cpu(
        program,
        dict(lstm.state_dict()),
        torch.randn(3, 4, 3, requires_grad=True),
        device=device,
        tolerance=RECURRENT[torch.float32],
    )


LOSSES = {
    "cross_entropy": lambda x: F.cross_entropy(x, torch.tensor([1, 0, 3, 2, 1], device=x.device)),
    "nll": lambda x: F.nll_loss(x.log_softmax(1), torch.tensor([1, 0, 3, -100, 1], device=x.device)),
    "nll of one class": lambda x: F.nll_loss(x[:, :1].log_softmax(1), torch.zeros(5, dtype=torch.int64).to(x.device)),
    "mse": lambda x: F.mse_loss(x, x.detach() * 0.5),
    "bce": lambda x: F.binary_cross_entropy_with_logits(x, (x > 0).float()),
    "kl": lambda x: F.kl_div(x.log_softmax(1), x.detach().flip(0).softmax(1), reduction="batchmean"),
    "smooth_l1": lambda x: F.smooth_l1_loss(x, torch.zeros_like(x)),
    "ctc": lambda x: F.ctc_loss(
        x.log_softmax(1)[:, None], torch.tensor([[1, 2]], device=x.device), torch.tensor([5]), torch.tensor([2])
    ),
    "cosine": lambda x: F.cosine_embedding_loss(x, x.flip(0), torch.ones(5, device=x.device)),
    "triplet": lambda x: F.triplet_margin_loss(x, x.flip(0), x.roll(1, 0)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_loss_forward_and_backward(device, name):
    def program(x):
        loss = LOSSES[name](x)
        loss.backward()
        return loss, x.grad

    assert_same_as_cpu(program, torch.randn(5, 4, requires_grad=True), device=device)


def test_embedding_bag_and_sparse_free_embedding(device):
    def program(w, i):
        y = F.embedding(i, w, padding_idx=0) + F.embedding_bag(i, w, mode="mean")[:, None]
        y.pow(2).sum().backward()
        return y, w.grad

    index = torch.tensor([[1, 2, 0], [3, 3, 1]])
    assert_same_as_cpu(program, torch.randn(5, 4, requires_grad=True), index, device=device)


def test_batch_norm_updates_its_running_statistics(device):
    norm = nn.BatchNorm1d(4)
    on_device = copy.deepcopy(norm).to(device)
    for _ in range(3):
        x = torch.randn(6, 4)
        norm(x)
        on_device(x.to(device))
    assert_same(on_device.state_dict(), norm.state_dict())
    assert on_device.num_batches_tracked.item() == 3


def test_exponential_moving_average_of_a_model(device):
    def program(weights, x):
        model = nn.Linear(4, 4).to(x.device)
        model.load_state_dict(weights)
        average = torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        )
        for _ in range(3):
            with torch.no_grad():
                model.weight.add_(x)
            average.update_parameters(model)
        return dict(average.module.state_dict())

    assert_same_as_cpu(program, dict(nn.Linear(4, 4).state_dict()), torch.randn(4, 4), device=device)


@pytest.mark.neuron_only
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
def test_transformer_encoder_with_padding_in_evaluation(device):
    def encoder(nested: bool) -> nn.Module:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        return nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested).eval()

    x = torch.randn(2, 3, 8)
    padding = torch.tensor([[False, False, True], [False, False, False]])
    with torch.no_grad():
        expected = encoder(nested=False)(x, src_key_padding_mask=padding)
        result = encoder(nested=True).to(device)(x.to(device), src_key_padding_mask=padding.to(device))
    # With nested tensors, which the CPU has, the padded positions are zero: only the others are comparable.
    assert_same(result[~padding.to(device)], expected[~padding])
