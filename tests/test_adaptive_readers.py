"""Others that read what the fusion window computes, or that act while it does: streams, devices, the host, errors,
autograd, threads. All compare bits with CPU eager.
"""

import threading

import pytest
import torch
import torch.nn.functional as F
from comparison import assert_same, copied_to
from fused import assert_fused_as_cpu, hold_up, report, runs, warmed

pytestmark = pytest.mark.neuron_only

# Fits no vector register, tile or thread boundary; split between two threads.
ODD = 70_001


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


@pytest.fixture(autouse=True)
def _window_on():
    with torch.neuron.adaptive_eager(True):
        yield


# --- streams, devices, the host


def on_side(device):
    return torch.neuron.Stream(device)


@pytest.mark.parametrize("how", ["record_stream", "wait"])
def test_value_between_two_ops_is_there_for_another_stream(device, how):
    side, data = on_side(device), numbers(ODD)

    def program():
        x = data.to(device)
        hold_up(device)
        a = x * 2
        ready = torch.neuron.current_stream().record_event()
        b = a + 1
        side.wait_event(ready)
        with torch.neuron.stream(side):
            c = a * 3 + 1
        if how == "record_stream":
            a.record_stream(side)
        else:
            torch.neuron.current_stream().wait_stream(side)
        del a  # nobody on this stream reads it any more; the other one does
        d = b * 2
        overwrite = [torch.zeros(ODD, device=device) for _ in range(3)]
        torch.accelerator.synchronize()
        del overwrite
        return c, d

    for _ in range(4):
        assert_same(program(), (data * 2 * 3 + 1, (data * 2 + 1) * 2))


def test_values_of_another_stream_in_the_middle_of_a_chain(device):
    side, data = on_side(device), numbers(ODD)
    for _ in range(4):
        x = data.to(device)
        side.wait_stream(torch.neuron.current_stream())
        with torch.neuron.stream(side):
            hold_up(device)
            s = x * 5 + 1
        a = x * 2
        torch.neuron.current_stream().wait_stream(side)
        b = a + s
        s.record_stream(torch.neuron.current_stream())
        x.record_stream(side)
        del s
        c = b * 2
        assert_same(c, (data * 2 + (data * 5 + 1)) * 2)


def test_tensor_that_two_streams_write_in_turns(device):
    side, main, data = on_side(device), torch.neuron.current_stream(), numbers(1000)
    expected = data.clone()
    for i in range(30):
        expected = expected.mul(1.01).add(i)
    for _ in range(3):
        x = data.to(device)
        hold_up(device)
        for i in range(30):
            here, there = (side, main) if i % 2 else (main, side)
            here.wait_stream(there)
            with torch.neuron.stream(here):
                x.mul_(1.01).add_(i)
        main.wait_stream(side)
        assert_same(x, expected)


def test_host_reads_in_the_middle(device):
    def program(x):
        a = x * 2
        b = a + 1
        scale = b.flatten()[3].item()
        c = b * scale
        total = c.sum().item()
        del a, b
        return c + total, scale, total, bool((c > 0).any())

    assert_fused_as_cpu(program, numbers(50, 60), device=device)


def test_copy_to_the_host_of_a_tensor_that_dies(device):
    data = numbers(ODD)
    for _ in range(4):
        x = data.to(device)
        hold_up(device)
        a = x * 2
        late = a.to("cpu", non_blocking=True)
        b = a + 1
        del a
        c = b * 3
        torch.accelerator.synchronize()
        assert torch.equal(late, data * 2)
        assert_same(c, (data * 2 + 1) * 3)


def test_copy_from_the_host_into_an_operand(device):
    first, second = numbers(ODD), numbers(ODD).pin_memory()
    for _ in range(4):
        x = first.to(device)
        hold_up(device)
        a = x * 2 + 1
        x.copy_(second, non_blocking=True)
        b = x * 2 + a
        assert_same([a, b], [first * 2 + 1, second * 2 + (first * 2 + 1)])


def test_copy_to_another_device_of_a_tensor_that_dies(device):
    data = numbers(ODD)
    for _ in range(3):
        x = data.to(device)
        hold_up(device)
        a = x * 2
        there = a.to("neuron:1")
        b = a + 1
        del a
        assert_same([there + 1, b * 2], [data * 2 + 1, (data * 2 + 1) * 2])


def test_more_launches_than_the_queue_holds(device):
    x = torch.zeros(40, device=device)
    hold_up(device)
    for _ in range(5000):
        x = x + 1
        x *= 1
    assert x.tolist() == [5000.0] * 40


# --- errors


def gather(x: torch.Tensor, index: int) -> torch.Tensor:
    return x.view(-1, 1).gather(0, torch.full((2, 1), index, device=x.device))


def test_error_in_the_middle_of_a_window(device):
    data = numbers(1000)

    def program(x, index):
        a = x * 2
        b = a + 1
        del a
        c = gather(x, index)
        return b, c * 2 + 1, b * 3

    warmed(lambda x: program(x, 1), data, device=device)
    for _ in range(3):
        x = data.to(device)
        torch.accelerator.synchronize()
        hold_up(device)
        b, *_ = program(x, 1_000_000)
        with pytest.raises((RuntimeError, IndexError), match="gather"):
            torch.accelerator.synchronize()
        torch.accelerator.synchronize()  # told once
        assert_same(b, data * 2 + 1)  # launched before the error, so it stands
        good = program(x, 5)
        assert_same(list(good), [data * 2 + 1, gather(data, 5) * 2 + 1, (data * 2 + 1) * 3])


def test_windows_that_fail_leave_no_memory_behind(device):
    def program(x, index):
        a = x * 2 + 1
        return gather(a, index) * 2 + a[:2, None]

    warmed(lambda x: program(x, 1), numbers(100), device=device)
    x = numbers(100).to(device)
    torch.accelerator.synchronize()
    before = torch.neuron.memory_allocated()
    for _ in range(10):
        hold_up(device, launches=1)
        with pytest.raises((RuntimeError, IndexError), match="gather"):
            program(x, 1_000_000)
            torch.accelerator.synchronize()
    assert torch.neuron.memory_allocated() == before


# --- training and threads


def test_intermediate_that_autograd_keeps(device):
    def program(x):
        y = (x * 2).exp().tanh() * (x + 1).sigmoid()
        loss = (y * y).mean()
        del y
        loss.backward()
        return loss, x.grad

    assert_fused_as_cpu(program, numbers(60, 70).requires_grad_(), device=device)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(32)
        self.first, self.second = torch.nn.Linear(32, 64), torch.nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.dropout(F.gelu(self.first(self.norm(x)), approximate="tanh"), 0.25)
        return x + F.dropout(self.second(y), 0.5)


def train(device: torch.device | str, foreach: bool) -> list[torch.Tensor]:
    torch.manual_seed(3)
    model = torch.nn.Sequential(Net(), Net()).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=foreach)
    x, target = numbers(16, 32).to(device), numbers(16, 32).to(device)
    torch.manual_seed(4)
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        loss = (model(x) - target).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *(p.detach() for p in model.parameters())]


@pytest.mark.parametrize("foreach", [False, True])
def test_training_with_dropout_draws_the_masks_of_the_cpu(device, foreach):
    expected = train("cpu", foreach)
    for _ in range(2):
        hold_up(device)
        torch.neuron.reset_adaptive_report()
        assert_same(train(device, foreach), expected)
        assert runs(report()) > 0


def test_a_region_that_runs_often(device):
    def program(x, i):
        y = torch.tanh(x * 0.5 + i) * x
        return (y - y.mean(-1, keepdim=True)) * (i + 1)

    inputs = [numbers(50, 60) for _ in range(60)]
    moved = copied_to(inputs, device)
    warmed(lambda x: program(x, 1), inputs[0], device=device)
    hold_up(device)
    results = [program(x, i) for i, x in enumerate(moved)]
    assert_same(results, [program(x, i) for i, x in enumerate(inputs)])


@pytest.mark.parametrize("own_streams", [False, True])
def test_several_threads_launch(device, own_streams):
    def program(x, i):
        y = x
        for k in range(30):
            y = (y * 1.01 + i) - x * k
            if k % 10 == 9:
                y = y / y.abs().amax(-1, keepdim=True)
        return y, y.sum(-1).tolist()

    inputs = [numbers(20, 30) for _ in range(4)]
    expected = [program(x, i) for i, x in enumerate(inputs)]
    results: list[object] = [None] * 4

    def work(i: int) -> None:
        try:
            stream = on_side(device) if own_streams else torch.neuron.default_stream()
            with torch.neuron.adaptive_eager(True), torch.neuron.stream(stream):
                for _ in range(5):
                    results[i] = program(inputs[i].to(device), i)
                stream.synchronize()
        except BaseException as error:  # noqa: BLE001 - handed to the main thread
            results[i] = error

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for got, want in zip(results, expected, strict=True):
        if isinstance(got, BaseException):
            raise got
        assert_same(got, want)


def test_a_tensor_made_by_one_thread_dies_in_another(device):
    def program(x):
        a = x * 2
        b = a + 1
        holder = [a]
        del a
        thread = threading.Thread(target=holder.clear)
        thread.start()
        thread.join()
        return b * 3, x - 1

    assert_fused_as_cpu(program, numbers(ODD), device=device)
