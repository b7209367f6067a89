"""Captured graphs: what a replay computes, with which memory, random numbers and streams; as on the CPU."""

import gc
import threading
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from busy import occupy
from comparison import assert_same, copied_to
from torch import Tensor

from torch_neuronx import _C

pytestmark = pytest.mark.neuron_only


def captured(function: Callable[[], object], **options: object) -> tuple[torch.neuron.NeuronGraph, object]:
    """A graph of what the function does, and what it returned."""
    graph = torch.neuron.NeuronGraph()
    with torch.neuron.graph(graph, **options):
        results = function()
    return graph, results


def assert_replays_as_cpu(function: Callable[..., object], *examples: tuple[Tensor, ...], warm: bool) -> None:
    """A graph of the function, fed with each example in turn through the same static inputs, gives CPU's bits."""
    static = [t.to("neuron") for t in examples[0]]
    if warm:
        function(*copied_to(static, "neuron"))
    graph, results = captured(lambda: function(*static))
    for example in (*examples, examples[0]):
        for to, source in zip(static, example, strict=True):
            to.copy_(source)
        graph.replay()
        assert_same(results, function(*copied_to(example, "cpu")))


def pointwise(x: Tensor, y: Tensor) -> Tensor:
    for _ in range(3):
        x = (x * y + 1).tanh() - x
    return x.sigmoid()


def mixed(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    h = F.gelu(x @ y.T)
    best, index = h.topk(3, -1)
    return h.softmax(-1), h.sum(0), h.view(-1)[::2].clone(), best, index, torch.cat((h, h.T), 1)


def in_place(x: Tensor, y: Tensor) -> Tensor:
    x = x.clone()
    x.mul_(2).add_(y, alpha=0.5)
    x[:, 0] = 7
    x[1:3].copy_(y[1:3])
    x.index_put_((torch.zeros(1, dtype=torch.long, device=x.device),), y[0])
    return x


def indexing(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    rows = torch.arange(0, 8, 2, device=x.device)
    return x[rows], x[rows, rows], x.index_select(1, rows), F.embedding(rows, y), torch.where(x > 0, x, y)


@pytest.mark.parametrize("warm", [True, False], ids=["warm", "first calls"])
@pytest.mark.parametrize("function", [pointwise, mixed, in_place, indexing])
def test_replays_give_what_eager_gives(function, warm):
    examples = [(torch.randn(8, 8), torch.randn(8, 8)) for _ in range(3)]
    assert_replays_as_cpu(function, *examples, warm=warm)


@pytest.mark.parametrize("adaptive", [True, False])
def test_replays_are_bit_equal_to_the_cpu_with_windows_and_without(adaptive):
    examples = [(torch.randn(64, 64), torch.randn(64, 64)) for _ in range(2)]
    with torch.neuron.adaptive_eager(adaptive):
        assert_replays_as_cpu(pointwise, *examples, warm=True)


def test_nothing_runs_while_capturing():
    x = torch.ones(4, device="neuron")
    graph, _ = captured(lambda: x.add_(1))
    assert x.tolist() == [1.0] * 4
    for _ in range(3):
        graph.replay()
    assert x.tolist() == [4.0] * 4


def test_values_of_static_inputs_are_not_touched_by_first_calls():
    # Shapes that no other test has: each op is met for the first time while capturing.
    x = torch.full((3, 17), 2.0, device="neuron")
    index = torch.tensor([1], device="neuron")
    graph, results = captured(lambda: (x.cumsum_(1), x.index_fill_(1, index, 5.0), torch.linalg.matrix_norm(x)))
    assert_same(x, torch.full((3, 17), 2.0))
    graph.replay()
    expected = torch.full((3, 17), 2.0).cumsum_(1).index_fill_(1, torch.tensor([1]), 5.0)
    assert_same(x, expected)
    assert_same(results[2], torch.linalg.matrix_norm(expected))


def test_a_replay_is_one_launch_and_the_host_runs_ahead():
    x = torch.zeros(8, device="neuron")
    graph, _ = captured(lambda: [x.add_(1) for _ in range(50)])
    busy = occupy("neuron")
    before = _C.launch_statistics()
    for _ in range(10):
        graph.replay()
    assert _C.launch_statistics() == before  # no op was launched by itself
    assert not busy.query()
    assert x.tolist() == [500.0] * 8


def test_a_captured_window_is_fused_once_and_runs_as_one():
    x, y = (torch.randn(64, 64, device="neuron") for _ in range(2))
    with torch.neuron.adaptive_eager(True):
        graph, _ = captured(lambda: pointwise(x, y))
        graph.replay()
        torch.neuron.synchronize()
        torch.neuron.reset_adaptive_report()
        for _ in range(5):
            graph.replay()
        torch.neuron.synchronize()
    report = torch.neuron.adaptive_report(show=False)
    assert (report.windows, report.misses) == (5, 0)
    assert report.launches == 5 * 13
    # Only the result is written: intermediates, which share two blocks, were let go of during the capture.
    (region,) = report.regions
    assert region.bytes_not_written == 5 * 2 * x.nbytes


def test_results_that_are_held_are_written():
    x = torch.randn(32, device="neuron")
    with torch.neuron.adaptive_eager(True):
        graph, (a, b) = captured(lambda: (a := x * 2, a + 1))
        graph.replay()
    assert_same((a, b), (x.cpu() * 2, x.cpu() * 2 + 1))


# -- Memory ------------------------------------------------------------------------------------------------------------


def test_memory_of_a_graph_is_its_own_and_is_given_back():
    x = torch.randn(1 << 20, device="neuron")
    torch.neuron.synchronize()
    torch.neuron.empty_cache()
    reserved, allocated = torch.neuron.memory_reserved(), torch.neuron.memory_allocated()
    graph, y = captured(lambda: (x + 1).sin() * 2)
    assert torch.neuron.memory_allocated() - allocated == y.nbytes
    assert torch.neuron.memory_reserved() > reserved
    del y
    torch.neuron.empty_cache()
    assert torch.neuron.memory_reserved() > reserved  # replays write there
    graph.replay()
    assert graph.pool() in {tuple(s["segment_pool_id"]) for s in torch.neuron.memory_snapshot()}
    pool = graph.pool()
    occupy("neuron", launches=3)
    graph.replay()
    del graph
    gc.collect()
    assert pool not in {tuple(s["segment_pool_id"]) for s in torch.neuron.memory_snapshot()}
    torch.neuron.empty_cache()
    assert torch.neuron.memory_reserved() <= reserved


def test_tensors_outlive_their_graph():
    x = torch.randn(1 << 19, device="neuron")
    graph, y = captured(lambda: x * 3)
    graph.replay()
    graph.reset()
    assert_same(y, x.cpu() * 3)
    torch.neuron.synchronize()
    reserved = torch.neuron.memory_reserved()
    del y
    torch.neuron.empty_cache()
    assert torch.neuron.memory_reserved() < reserved


def test_memory_freed_while_capturing_is_used_again():
    x = torch.randn(1 << 18, device="neuron")

    def chain() -> Tensor:
        h = x
        for _ in range(20):
            h = h.sin()
        return h

    torch.neuron.synchronize()
    torch.neuron.empty_cache()
    before = torch.neuron.memory_reserved()
    graph, y = captured(chain)
    assert torch.neuron.memory_reserved() - before <= 20 << 20
    graph.replay()
    expected = x.cpu()
    for _ in range(20):
        expected = expected.sin()
    assert_same(y, expected)


def test_memory_does_not_grow_with_replays():
    x = torch.randn(64, 64, device="neuron")
    graph, result = captured(lambda: F.dropout(x @ x, 0.5).softmax(-1))
    graph.replay()
    torch.neuron.synchronize()
    before = torch.neuron.memory_stats()
    for _ in range(1000):
        graph.replay()
    torch.neuron.synchronize()
    assert torch.neuron.memory_stats() == before
    del result


def test_eager_work_does_not_take_the_memory_of_a_graph():
    x = torch.randn(1 << 16, device="neuron")
    graph, y = captured(lambda: x.cos() + 1)
    others = [torch.zeros(1 << 16, device="neuron") for _ in range(20)]
    graph.replay()
    assert_same(y, x.cpu().cos() + 1)
    assert all(bool((o == 0).all()) for o in others)


def test_two_graphs_share_a_pool():
    pool = torch.neuron.graph_pool_handle()
    x = torch.randn(1 << 18, device="neuron")
    torch.neuron.empty_cache()
    first, a = captured(lambda: (x + 1) * 2, pool=pool)
    reserved = torch.neuron.memory_reserved()
    second, b = captured(lambda: (a.sin() + x).exp(), pool=first.pool())
    assert torch.neuron.memory_reserved() == reserved
    assert first.pool() == second.pool() == pool
    for _ in range(3):
        x.normal_()
        first.replay()
        second.replay()
        expected = (x.cpu() + 1) * 2
        assert_same((a, b), (expected, (expected.sin() + x.cpu()).exp()))
    del first
    second.replay()
    torch.neuron.synchronize()


def test_a_graph_can_be_captured_again_after_reset():
    graph = torch.neuron.NeuronGraph()
    x = torch.ones(4, device="neuron")
    for factor in (2.0, 3.0):
        with torch.neuron.graph(graph):
            y = x * factor
        graph.replay()
        assert y.tolist() == [factor] * 4
        graph.reset()


def test_many_signatures_do_not_take_the_plans_of_a_graph_away():
    x = torch.randn(7, device="neuron")
    graph, y = captured(lambda: x.cumsum(0))
    graph.replay()
    for n in range(1, 4200):
        torch.zeros(n, device="neuron").cumsum(0)
    graph.replay()
    assert_same(y, x.cpu().cumsum(0))


# -- Random numbers ----------------------------------------------------------------------------------------------------


def draws(x: Tensor) -> tuple[Tensor, ...]:
    permutation = torch.randperm(9, device=x.device)
    return F.dropout(x, 0.3), torch.rand(5, device=x.device), x.bernoulli(0.4), torch.randn_like(x), permutation


def test_replays_draw_what_eager_would():
    x = torch.ones(40, 40)
    dx = x.to("neuron")
    graph, results = captured(lambda: draws(dx))
    torch.manual_seed(3)
    expected = [draws(x) for _ in range(3)]
    after = torch.rand(3)
    torch.manual_seed(3)
    for each in expected:
        graph.replay()
        assert_same(results, each)
    assert_same(torch.rand(3, device="neuron"), after)


def test_eager_draws_and_replays_follow_each_other():
    dx = torch.ones(30, device="neuron")
    graph, y = captured(lambda: F.dropout(dx, 0.5))
    torch.manual_seed(5)
    expected = [F.dropout(torch.ones(30), 0.5), torch.rand(7), F.dropout(torch.ones(30), 0.5)]
    torch.manual_seed(5)
    with torch.neuron.stream(torch.neuron.Stream()):
        graph.replay()
    torch.neuron.synchronize()
    actual = [y.clone(), torch.rand(7, device="neuron")]
    graph.replay()
    assert_same([*actual, y], expected)


def test_capturing_draws_nothing():
    torch.manual_seed(1)
    captured(lambda: torch.rand(3, device="neuron"))
    torch.manual_seed(1)
    before = torch.rand(4)
    torch.manual_seed(1)
    captured(lambda: torch.rand(5, device="neuron").multinomial(2))
    assert_same(torch.rand(4, device="neuron"), before)


def test_generators_of_the_user():
    generator = torch.Generator("neuron").manual_seed(11)
    graph = torch.neuron.NeuronGraph()
    graph.register_generator_state(generator)
    with torch.neuron.graph(graph):
        y = torch.rand(6, device="neuron", generator=generator)
    reference = torch.Generator().manual_seed(11)
    for _ in range(2):
        graph.replay()
        assert_same(y, torch.rand(6, generator=reference))


# -- Streams, threads, devices -----------------------------------------------------------------------------------------


def test_capture_belongs_to_the_stream():
    assert not torch.neuron.is_current_stream_capturing()
    graph = torch.neuron.NeuronGraph()
    with torch.neuron.graph(graph):
        assert torch.neuron.is_current_stream_capturing()
        assert torch.accelerator.current_stream().is_capturing()
        with torch.neuron.stream(torch.neuron.default_stream()):
            assert not torch.neuron.is_current_stream_capturing()
            assert torch.full((2,), 3.0, device="neuron").tolist() == [3.0, 3.0]  # eager
    assert not torch.neuron.is_current_stream_capturing()


def test_side_streams_join_through_events():
    x = torch.randn(256, device="neuron")
    side = torch.neuron.Stream()
    graph = torch.neuron.NeuronGraph()
    with torch.neuron.graph(graph):
        main = torch.neuron.current_stream()
        a = x + 1
        side.wait_stream(main)
        with torch.neuron.stream(side):
            assert torch.neuron.is_current_stream_capturing()
            b = a.sin()
        c = a.cos()
        main.wait_stream(side)
        d = b + c
    with torch.neuron.stream(side):
        assert not torch.neuron.is_current_stream_capturing()
    for _ in range(2):
        x.normal_()
        graph.replay()
        a = x.cpu() + 1
        assert_same(d, a.sin() + a.cos())


def test_a_stream_of_the_user():
    stream = torch.neuron.Stream()
    x = torch.ones(3, device="neuron")
    graph = torch.neuron.NeuronGraph()
    with torch.neuron.graph(graph, stream=stream):
        assert torch.neuron.current_stream() == stream
        y = x * 2
    with torch.neuron.stream(stream):
        graph.replay()
        assert y.tolist() == [2.0] * 3


def test_replays_on_several_streams_do_not_overlap():
    x = torch.zeros(1 << 16, device="neuron")
    graph, _ = captured(lambda: [x.add_(1).mul_(1) for _ in range(20)])
    streams = [torch.neuron.Stream() for _ in range(3)]
    for _ in range(10):
        for stream in streams:
            with torch.neuron.stream(stream):
                graph.replay()
    torch.neuron.synchronize()
    assert_same(x, torch.full((1 << 16,), 600.0))


def test_other_threads_go_on_in_eager_mode():
    stop, failures, rounds = threading.Event(), [], []

    def eager() -> None:
        with torch.neuron.stream(torch.neuron.Stream()):
            while not stop.is_set():
                n = len(rounds) % 50 + 1
                x = torch.arange(float(n)).to("neuron")
                y = (x * 2 + 1).cumsum(0)
                if not torch.equal(y.cpu(), (torch.arange(float(n)) * 2 + 1).cumsum(0)):
                    failures.append(n)
                torch.neuron.synchronize()
                rounds.append(n)

    thread = threading.Thread(target=eager)
    thread.start()
    try:
        x = torch.randn(100, device="neuron")
        for _ in range(20):
            graph, y = captured(lambda: (x.sin() + 1).cumsum(0))
            graph.replay()
            assert_same(y, (x.cpu().sin() + 1).cumsum(0))
    finally:
        stop.set()
        thread.join()
    assert not failures
    assert len(rounds) > 0


def test_another_device():
    if torch.neuron.device_count() < 2:
        pytest.skip("one device is visible")
    with torch.neuron.device(1):
        x = torch.ones(4, device="neuron:1")
        graph, y = captured(lambda: x * 5)
        assert y.device.index == 1
    graph.replay()
    assert y.tolist() == [5.0] * 4


def test_graphs_in_graphs():
    x = torch.ones(4, device="neuron")
    inner, _ = captured(lambda: x.mul_(2))
    outer, _ = captured(lambda: (inner.replay(), x.add_(1), inner.replay()))
    inner.reset()
    outer.replay()
    assert x.tolist() == [6.0] * 4


def test_pinned_memory_is_read_and_written_by_each_replay():
    source, target = torch.zeros(3, 4).pin_memory(), torch.zeros(3, 4).pin_memory()
    halves = torch.zeros(3, 4, dtype=torch.float16).pin_memory()

    def work() -> Tensor:
        x = source.to("neuron", non_blocking=True)
        y = torch.empty(3, 4, device="neuron").copy_(halves, non_blocking=True)
        target.copy_(x * 2 + y, non_blocking=True)
        return x

    graph, _ = captured(work)
    for value in (1.0, 2.0):
        source.fill_(value)
        halves.fill_(value / 2)
        graph.replay()
        torch.neuron.synchronize()
        assert_same(target, torch.full((3, 4), value * 2.5))


def test_the_generic_class_of_torch():
    x = torch.ones(3, device="neuron")
    stream = torch.Stream("neuron")
    graph = torch.accelerator.Graph()
    with stream, graph:
        x += 1
    assert x.tolist() == [1.0] * 3
    graph.replay()
    assert x.tolist() == [2.0] * 3


def test_launches_can_be_listed(tmp_path):
    x = torch.ones(3, device="neuron")
    graph, _ = captured(lambda: (x + 1).cumsum(0))
    graph.enable_debug_mode()
    graph.debug_dump(str(tmp_path / "graph.dot"))
    text = (tmp_path / "graph.dot").read_text()
    assert text.startswith("digraph")
    assert text.index("aten::add.Tensor") < text.index("aten::cumsum")
