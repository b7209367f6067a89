"""Several devices in one process: copies between them, current device and current stream, modules on each."""

import threading

import pytest
import torch
from comparison import assert_same
from torch import nn

pytestmark = pytest.mark.neuron_only

COUNT = 4  # logical cores of the default instance type


def test_all_cores_are_devices():
    assert torch.neuron.device_count() == torch.accelerator.device_count() == COUNT


@pytest.mark.parametrize("source", range(COUNT))
@pytest.mark.parametrize("target", range(COUNT))
def test_copy_between_devices(source, target):
    data = torch.randn(1000)
    x = data.to(f"neuron:{source}")
    y = (x * 2).to(f"neuron:{target}")  # ordered behind the multiplication on the other device
    assert y.device.index == target
    x.zero_()  # must not overtake the copy
    assert_same(y, data * 2)
    z = torch.empty(1000, device=f"neuron:{target}")
    z.copy_(y, non_blocking=True)
    assert_same(z, data * 2)


@pytest.mark.parametrize("strided", [False, True])
def test_converting_copy_between_devices(strided):
    data = torch.randn(8, 8)
    view = data.t()[::2] if strided else data
    x = data.to("neuron:1")
    x = x.t()[::2] if strided else x
    assert_same(x.to("neuron:3", torch.float64), view.to(torch.float64))
    assert_same(x.to("neuron:3", torch.bfloat16), view.to(torch.bfloat16))


def test_long_chain_across_devices_is_ordered():
    x = torch.ones(300, 300)
    y = x.to("neuron:0")
    for i in range(12):
        y = (y @ x.to(y.device) / 300 + i).to(f"neuron:{(i + 1) % COUNT}")
    z = x
    for i in range(12):
        z = z @ x / 300 + i
    assert_same(y, z)


def test_device_context():
    assert torch.neuron.current_device() == 0
    with torch.neuron.device(2):
        assert torch.neuron.current_device() == torch.accelerator.current_device_index() == 2
        assert torch.ones(1, device="neuron").device.index == 2
        with torch.neuron.device("neuron:1"):
            assert torch.empty(1, device="neuron").device.index == 1
        with torch.accelerator.device_index(3):
            assert torch.ones(1).neuron().device.index == 3
        with torch.neuron.device_of(torch.ones(1, device="neuron:1")):
            assert torch.neuron.current_device() == 1
        assert torch.neuron.current_device() == 2
    assert torch.neuron.current_device() == 0


def test_device_context_ends_after_an_error():
    with pytest.raises(KeyError), torch.neuron.device(2):
        raise KeyError
    assert torch.neuron.current_device() == 0


def test_op_runs_on_the_device_of_its_arguments():
    x = torch.ones(3, device="neuron:2")
    assert torch.neuron.current_device() == 0
    y = (x + 1).sum()
    assert y.device.index == 2
    assert y.item() == 6.0
    assert torch.rand_like(x).device.index == 2
    assert torch.zeros_like(x).device.index == 2
    assert torch.neuron.current_device() == 0


def test_current_device_is_per_thread():
    seen = []

    def work():
        seen.append(torch.neuron.current_device())
        torch.neuron.set_device(3)
        seen.append(torch.ones(1, device="neuron").device.index)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [0, 3]
    assert torch.neuron.current_device() == 0


def test_current_stream_is_per_device():
    side = torch.neuron.Stream(device="neuron:1")
    with torch.neuron.stream(side):
        assert torch.neuron.current_stream(1) == side
        assert torch.neuron.current_stream(0) == torch.neuron.default_stream(0)
        assert torch.neuron.current_device() == 1
        x = torch.ones(4, device="neuron:0") + 1
        y = torch.ones(4, device="neuron:1") + 1
    assert torch.neuron.current_stream(1) == torch.neuron.default_stream(1)
    assert torch.neuron.current_device() == 0
    side.synchronize()
    assert x.tolist() == y.tolist() == [2.0] * 4


def test_event_orders_streams_of_different_devices():
    a = torch.randn(400, 400)
    x = a.to("neuron:0")
    expected = a
    for _ in range(6):
        x, expected = (x @ x).tanh(), (expected @ expected).tanh()
    event = torch.neuron.Event()
    event.record(torch.neuron.current_stream(0))
    torch.neuron.current_stream(1).wait_event(event)
    y = torch.empty(400, 400, device="neuron:1")
    y.copy_(x, non_blocking=True)
    assert_same(y, expected)


def test_synchronize_of_one_device_leaves_the_others():
    x = torch.randn(700, 700, device="neuron:0")
    for _ in range(20):
        x = (x @ x).tanh()
    event = torch.neuron.Event()
    event.record()
    torch.neuron.synchronize(1)
    assert not event.query(), "synchronising neuron:1 waited for neuron:0"
    torch.neuron.synchronize(0)
    assert event.query()


def test_model_split_over_devices():
    torch.manual_seed(0)
    first, second = nn.Linear(8, 16), nn.Linear(16, 4)
    x = torch.randn(5, 8)
    loss = second(first(x).relu()).pow(2).sum()
    loss.backward()
    expected = [first.weight.grad.clone(), second.weight.grad.clone()]
    first.zero_grad()
    second.zero_grad()
    first.to("neuron:1")
    second.to("neuron:3")
    h = first(x.to("neuron:1")).relu()
    on_device = second(h.to("neuron:3")).pow(2).sum()
    on_device.backward()
    assert_same(on_device.detach(), loss.detach())
    assert first.weight.grad.device.index == 1
    assert second.weight.grad.device.index == 3
    assert_same([first.weight.grad, second.weight.grad], expected)


def test_memory_is_counted_per_device():
    torch.neuron.synchronize(2)
    before = [torch.neuron.memory_allocated(i) for i in range(COUNT)]
    x = torch.empty(1 << 20, dtype=torch.uint8, device="neuron:2")
    after = [torch.neuron.memory_allocated(i) for i in range(COUNT)]
    assert [a - b for a, b in zip(after, before, strict=True)] == [0, 0, 1 << 20, 0]
    del x
    assert torch.neuron.memory_allocated(2) == before[2]


def test_random_numbers_of_each_device_start_from_the_same_seed():
    torch.manual_seed(5)
    expected = torch.randn(4)
    torch.manual_seed(5)
    for i in (2, 0, 3):
        assert_same(torch.randn(4, device=f"neuron:{i}"), expected)


def test_threads_drive_devices_of_their_own():
    data = torch.randn(64, 64)
    expected = data
    for _ in range(30):
        expected = (expected @ data).tanh()
    results = [None] * COUNT

    def work(i: int) -> None:
        with torch.neuron.device(i):
            x = y = data.to("neuron")
            for _ in range(30):
                y = (y @ x).tanh()
            results[i] = y

    threads = [threading.Thread(target=work, args=(i,)) for i in range(COUNT)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for i in range(COUNT):
        assert results[i].device.index == i
        assert_same(results[i], expected)


def test_data_parallel_replicas_sum_their_gradients():
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    x = torch.randn(8, 6)
    model(x).pow(2).sum().backward()
    replicas = []
    for i in range(COUNT):
        replica = nn.Linear(6, 3)
        replica.load_state_dict(model.state_dict())
        replica.to(f"neuron:{i}")
        replica(x[2 * i : 2 * i + 2].to(f"neuron:{i}")).pow(2).sum().backward()
        replicas.append(replica.bias.grad.to("neuron:0"))
    total = torch.stack(replicas).sum(0)
    torch.testing.assert_close(total.cpu(), model.bias.grad)  # another order of summation than one batch
