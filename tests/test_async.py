"""Launches are asynchronous: the host runs ahead, and nothing that it does meanwhile changes a result.

Most tests are traps that an asynchronous device can fall into.
"""

import gc
import threading

import pytest
import torch
import torch.nn.functional as F
from busy import occupy
from comparison import assert_same, bits

pytestmark = pytest.mark.neuron_only


def test_host_runs_ahead(device):
    event = occupy(device)
    assert not event.query()
    event.synchronize()
    assert event.query()


def test_launches_do_not_wait(device):
    x = torch.ones(16, device=device)
    w = torch.ones(16, 16, device=device, requires_grad=True)

    def step():
        y = (x + 1).view(4, 4).t().contiguous().sum(0)
        y = torch.cat([y, y]).mul_(2)[None].expand(16, -1).softmax(-1)
        y = F.dropout(F.layer_norm(y @ w[:8, :], (16,)), 0.5)
        y.pow(2).mean().backward()
        torch._foreach_mul_([x], 1.0)
        torch.randn(4, device=device)
        x.to(torch.bfloat16).fill_(1)
        w.grad.zero_()

    for _ in range(3):
        step()  # fills the metadata caches
    event = occupy(device)
    step()
    assert not event.query(), "an op that needs no answer from the device waited for it"
    event.synchronize()


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.cpu(),
        lambda x: x.sum().item(),
        lambda x: x.tolist(),
        lambda x: repr(x),
        lambda x: bool(x[0] > 0),
        lambda x: x.nonzero(),
        lambda x: torch.neuron.synchronize(),
        lambda x: torch.accelerator.synchronize(),
        lambda x: torch.neuron.current_stream().synchronize(),
    ],
    ids=["cpu", "item", "tolist", "repr", "bool", "nonzero", "synchronize", "accelerator", "stream"],
)
def test_reading_waits(device, read):
    x = torch.ones(3, device=device)
    event = occupy(device)
    read(x)
    assert event.query()


def test_results_read_late_are_right(device):
    xs = [torch.randn(20, 20) for _ in range(50)]
    late = [(x.to(device) @ x.to(device)).relu() for x in xs]
    for got, x in zip(late, xs, strict=True):
        assert_same(got, (x @ x).relu())


def test_gil_is_free_while_the_host_waits(device):
    progress = []

    def count() -> None:
        while not event.query():
            progress.append(1)

    event = occupy(device, launches=30)
    counter = threading.Thread(target=count)
    counter.start()
    torch.neuron.synchronize()
    counter.join()
    assert len(progress) > 100


def test_more_launches_than_the_queue_holds(device):
    x = torch.zeros(4, device=device)
    event = occupy(device, launches=4)
    for _ in range(50_000):
        x += 1
    assert x.tolist() == [50_000.0] * 4
    assert event.query()


# --- memory freed by the host while launches that use it are queued


def test_freed_block_is_not_reused_before_its_readers(device):
    a = torch.randn(1000)
    expected = a * 2
    for _ in range(5):
        occupy(device, launches=3)
        x = a.to(device)
        y = x * 2
        del x
        z = torch.full((1000,), 7.0, device=device)  # may get the block of x
        assert_same(y, expected)
        assert_same(z, torch.full((1000,), 7.0))


def test_temporaries_of_kernels_do_not_take_blocks_that_the_host_has_freed(device):
    # log_softmax of a strided input and its like allocate inside the kernel, on the worker.
    x = torch.randn(64, 50)
    expected = [(x + i).t().log_softmax(0).logsumexp(1) + x.median(1)[0].sum() for i in range(20)]
    for _ in range(3):
        occupy(device, launches=2)
        base = x.to(device)
        late = []
        for i in range(20):
            y = base + i
            late.append(y.t().log_softmax(0).logsumexp(1) + base.median(1)[0].sum())
            del y
        for got, want in zip(late, expected, strict=True):
            assert_same(got, want)


def test_block_that_another_stream_still_reads_is_kept_by_record_stream(device):
    side = torch.Stream(device=device)
    data = torch.randn(5000)
    for _ in range(5):
        x = data.to(device)
        side.wait_stream(torch.accelerator.current_stream())
        with side:
            occupy(device, launches=2)
            y = x * 3
        x.record_stream(side)
        del x
        overwrite = [torch.zeros(5000, device=device) for _ in range(4)]
        side.synchronize()
        assert_same(y, data * 3)
        del overwrite


def test_storage_dies_while_views_are_queued(device):
    x = torch.randn(40, 40)
    late = []
    occupy(device, launches=3)
    for i in range(40):
        late.append(x.to(device)[i].clone() + x.to(device).t()[i])
        if i % 10 == 0:
            gc.collect()
    for i, got in enumerate(late):
        assert_same(got, x[i] + x.t()[i])


# --- synchronous ops and other threads


def test_synchronous_op_is_safe_from_the_frees_of_other_threads(device):
    stop = threading.Event()
    errors: list[BaseException] = []

    def churn() -> None:
        try:
            while not stop.is_set():
                junk = [torch.full((200,), 9.0, device=device) for _ in range(10)]
                del junk
        except BaseException as error:  # noqa: BLE001 - handed to the main thread
            errors.append(error)

    threads = [threading.Thread(target=churn) for _ in range(2)]
    for t in threads:
        t.start()
    try:
        x = torch.arange(200.0)
        for _ in range(100):
            y = x.to(device) * 2
            assert y.nonzero().shape == (199, 1)
            assert_same(y.unique(), x * 2)
            assert_same(y[y > 100], (x * 2)[x > 50])
    finally:
        stop.set()
        for t in threads:
            t.join()
    assert not errors


def test_many_threads_launch_on_one_stream(device):
    results: list[list[float]] = [[] for _ in range(6)]

    def work(i: int) -> None:
        x = torch.full((16,), float(i), device=device)
        total = torch.zeros(16, device=device)
        for k in range(200):
            total += (x * k).relu()
            if k % 50 == 49:
                results[i].append(total.sum().item())

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for i in range(6):
        assert results[i] == [16.0 * i * sum(range(k)) for k in (50, 100, 150, 200)]


def test_threads_on_streams_of_their_own(device):
    data = torch.randn(50, 50)
    expected = data
    for _ in range(40):
        expected = (expected @ data).tanh()
    results: list[torch.Tensor | None] = [None] * 4

    def work(i: int) -> None:
        stream = torch.Stream(device=device)
        with stream:
            x = y = data.to(device)
            for _ in range(40):
                y = (y @ x).tanh()
            results[i] = y
        stream.synchronize()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert_same(results, [expected] * 4)


# --- numbers that come from the device's generator


def test_random_launches_draw_in_the_order_of_their_launch(device):
    def program(x):
        return [torch.rand(5, device=x.device), F.dropout(x, 0.5), torch.randn(5, device=x.device), x.normal_()]

    torch.manual_seed(7)
    expected = program(torch.ones(9))
    occupy(device)
    torch.manual_seed(7)
    assert_same(program(torch.ones(9, device=device)), expected)


def test_seeding_does_not_overtake_queued_draws(device):
    torch.manual_seed(1)
    first = torch.rand(4)
    torch.manual_seed(2)
    second = torch.rand(4)
    for _ in range(3):
        occupy(device, launches=3)
        torch.manual_seed(1)
        a = torch.rand(4, device=device)
        torch.manual_seed(2)
        b = torch.rand(4, device=device)
        assert_same([a, b], [first, second])


def test_bits_helper_tells_signed_zeros_apart():
    assert not torch.equal(bits(torch.tensor([0.0])), bits(torch.tensor([-0.0])))
