"""What a capture refuses, in which words, and that the device is as good as new afterwards."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from processes import run_python
from test_graphs import captured

pytestmark = pytest.mark.neuron_only


@pytest.fixture(autouse=True)
def _usable_afterwards():
    yield
    x = torch.ones(3, device="neuron")
    graph, y = captured(lambda: x + 1)
    graph.replay()
    assert y.tolist() == [2.0] * 3
    assert (x * 3).tolist() == [3.0] * 3


def x() -> torch.Tensor:
    return torch.ones(4, 4, device="neuron")


def recorded_event() -> torch.Event:
    return torch.neuron.current_stream().record_event()


class Case:
    """Something that cannot be captured, done to a static tensor."""

    def __init__(self, name: str, match: str, work: Callable[[torch.Tensor], object]) -> None:
        self.name, self.match, self.work = name, match, work


DATA = r"cannot be captured: it has to see values.*The capture is invalid now"
WAIT = r"is not possible while a graph is captured.*The capture is invalid now"
COPY = r"A copy from .* cannot be captured.*The capture is invalid now"
CASES = [
    Case("item", "aten::item.*" + DATA, lambda t: t.sum().item()),
    Case("bool", DATA, lambda t: bool((t > 0).all())),
    Case("nonzero", "aten::nonzero.*" + DATA, lambda t: t.nonzero()),
    Case("masked_select", DATA, lambda t: t.masked_select(t > 0)),
    Case("mask index", DATA, lambda t: t[t > 0]),
    Case("unique", DATA, lambda t: t.unique()),
    Case("equal", DATA, lambda t: torch.equal(t, t + 1)),
    Case("cpu", COPY, lambda t: t.cpu()),
    Case("print", COPY + "|" + DATA, repr),
    Case("tolist", COPY, lambda t: t.tolist()),
    Case("numpy", COPY, lambda t: t.cpu().numpy()),
    Case("pageable", COPY, lambda t: torch.zeros(4).to("neuron")),
    Case("pageable non_blocking", COPY, lambda t: torch.zeros(4).to("neuron", non_blocking=True)),
    Case("pinned blocking", COPY, lambda t: torch.zeros(4).pin_memory().to("neuron")),
    Case("tensor literal", COPY, lambda t: torch.tensor([1.0, 2.0], device="neuron")),
    Case("other core", "belongs to one core", lambda t: t.to("neuron:1")),
    Case("synchronize", "Synchronizing the device " + WAIT, lambda t: torch.neuron.synchronize()),
    Case("accelerator", "Synchronizing the device " + WAIT, lambda t: torch.accelerator.synchronize()),
    Case("stream", "Synchronizing a stream " + WAIT, lambda t: torch.neuron.current_stream().synchronize()),
    Case("stream query", WAIT, lambda t: torch.neuron.current_stream().query()),
    Case("event query", "Asking whether an event is done " + WAIT, lambda t: recorded_event().query()),
    Case("event wait", "Synchronizing an event " + WAIT, lambda t: recorded_event().synchronize()),
    Case("empty_cache", "Cached memory cannot be given back", lambda t: torch.neuron.empty_cache()),
    Case("seed", "generator cannot be read, set or seeded", lambda t: torch.neuron.manual_seed(0)),
    Case("rng state", "generator cannot be read, set or seeded", lambda t: torch.neuron.get_rng_state()),
    Case("resizing out=", "resizes an argument", lambda t: torch.cumsum(t, 0, out=torch.empty(0, device="neuron"))),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_cannot_be_captured_says_so(case):
    if case.name == "other core" and torch.neuron.device_count() < 2:
        pytest.skip("one device is visible")
    t = x()
    graph = torch.neuron.NeuronGraph()
    with pytest.raises(RuntimeError, match=f"(?s){case.match}"), torch.neuron.graph(graph):
        t.mul_(2)
        case.work(t * 1)
    assert t.tolist() == [[1.0] * 4] * 4
    with pytest.raises(RuntimeError, match="needs a captured graph"):
        graph.replay()


def test_an_invalid_capture_ends_with_its_first_reason():
    t = x()
    graph = torch.neuron.NeuronGraph()
    with pytest.raises(RuntimeError, match=r"(?s)is invalid.*aten::nonzero"), torch.neuron.graph(graph):
        for wrong in (t.nonzero, t.cpu):
            with pytest.raises(RuntimeError):
                wrong()
    with pytest.raises(RuntimeError, match=r"(?s)is invalid.*aten::nonzero.*reset\(\)"):
        graph.replay()
    graph.reset()
    with torch.neuron.graph(graph):
        t.add_(1)
    graph.replay()
    assert t[0, 0].item() == 2.0


def test_kernels_that_run_on_the_host():
    @torch.library.custom_op("graphs_test::host", mutates_args=(), device_types="cpu")
    def host(t: torch.Tensor) -> torch.Tensor:
        return t + 1

    t = x()
    with pytest.raises(RuntimeError, match=r"graphs_test::host.*runs on the host"):
        captured(lambda: host(t))


def test_first_calls_that_cannot_be_tried():
    values = torch.rand(3, 5, device="neuron")
    lengths = torch.tensor([5], device="neuron")

    def work():
        return torch.segment_reduce(values.view(-1)[:5], "sum", lengths=lengths, axis=0)

    with pytest.raises(RuntimeError, match=r"(?s)segment_reduce.*stand-ins failed.*warm-up"):
        captured(work)
    expected = work()
    graph, result = captured(work)
    graph.replay()
    assert torch.equal(result.cpu(), expected.cpu())


# -- Streams and threads -----------------------------------------------------------------------------------------------


def test_waiting_for_work_outside():
    event = torch.neuron.current_stream().record_event()
    with pytest.raises(RuntimeError, match="recorded outside its capture"):
        captured(lambda: torch.neuron.current_stream().wait_event(event))


def test_side_streams_must_be_joined():
    t, side = x(), torch.neuron.Stream()

    def work():
        side.wait_stream(torch.neuron.current_stream())
        with torch.neuron.stream(side):
            return t + 1

    with pytest.raises(RuntimeError, match=r"has not waited for.*wait_stream"):
        captured(work)
    with torch.neuron.stream(side):
        assert (t + 1)[0, 0].item() == 2.0


def test_captured_memory_on_another_stream():
    t = x()
    for use in (lambda y: y + 1, lambda y: y[0, 0].item(), torch.Tensor.cpu, torch.Tensor.nonzero, torch.Tensor.zero_):

        def work(use=use):
            y = t * 2
            with torch.neuron.stream(torch.neuron.default_stream()):
                use(y)

        with pytest.raises(RuntimeError, match="on a stream that is not captured uses memory"):
            captured(work)


def test_static_tensors_on_another_stream_are_eager_work():
    t = x()

    def work():
        with torch.neuron.stream(torch.neuron.default_stream()):
            return (t + 1)[0, 0].item()

    with pytest.raises(RuntimeError, match="item"):  # nested: this one is on the capturing stream
        captured(lambda: t.sum().item())
    _, value = captured(work)
    assert value == 2.0


def test_waiting_for_a_capturing_stream_from_another_thread():
    t, texts = x(), []
    graph = torch.neuron.NeuronGraph()
    with pytest.raises(RuntimeError, match="is invalid"), torch.neuron.graph(graph):
        stream = torch.neuron.current_stream()

        def wait():
            torch.neuron.synchronize()  # of the device: that of the others' work
            try:
                stream.synchronize()
            except RuntimeError as error:
                texts.append(str(error))

        thread = threading.Thread(target=wait)
        thread.start()
        thread.join()
        t.add_(1)
    assert "Synchronizing a stream" in texts[0]


def test_events_of_a_capture_that_is_over():
    event = torch.neuron.Event()
    captured(lambda: event.record())
    for use in (event.query, event.synchronize, event.wait):
        with pytest.raises(RuntimeError, match="graph capture that is over"):
            use()
    event.record()
    event.synchronize()


# -- Calls in the wrong order ------------------------------------------------------------------------------------------


def test_calls_in_the_wrong_order():
    graph = torch.neuron.NeuronGraph()
    for call in (graph.replay, graph.capture_end, graph.pool, graph.instantiate):
        with pytest.raises(RuntimeError, match=r"capture_begin\(\)|under way"):
            call()
    graph.reset()
    with pytest.raises(RuntimeError, match="another stream than the default one"):
        graph.capture_begin()
    other = torch.neuron.NeuronGraph()
    with torch.neuron.stream(torch.neuron.Stream()):
        graph.capture_begin()
        with pytest.raises(RuntimeError, match="has a capture already"):
            graph.capture_begin()
        with pytest.raises(RuntimeError, match="under way on the current stream"):
            other.capture_begin()
        with torch.neuron.stream(torch.neuron.Stream()), pytest.raises(RuntimeError, match="from this pool right now"):
            other.capture_begin(pool=graph.pool())
        with pytest.raises(RuntimeError, match="needs a captured graph"):
            graph.replay()
        graph.capture_end()
    with pytest.raises(RuntimeError, match="has a capture already"):
        graph.capture_begin()


def test_ending_on_another_stream():
    graph = torch.neuron.NeuronGraph()
    with torch.neuron.stream(torch.neuron.Stream()):
        graph.capture_begin()
    with pytest.raises(RuntimeError, match="with the stream current"):
        graph.capture_end()
    with pytest.raises(RuntimeError, match="is invalid"):
        graph.replay()


def test_dropping_a_graph_that_is_capturing():
    stream = torch.neuron.Stream()
    with torch.neuron.stream(stream):
        graph = torch.neuron.NeuronGraph()
        graph.capture_begin()
        torch.ones(3, device="neuron").add_(1)
        del graph
        assert not torch.neuron.is_current_stream_capturing()
        assert torch.ones(2, device="neuron").tolist() == [1.0, 1.0]


def test_exceptions_inside_come_through():
    graph = torch.neuron.NeuronGraph()
    with pytest.raises(ZeroDivisionError), torch.neuron.graph(graph):
        x().add_(1)
        raise ZeroDivisionError
    with pytest.raises(RuntimeError, match="needs a captured graph"):
        graph.replay()


# -- Replays -----------------------------------------------------------------------------------------------------------


def test_errors_of_a_replay_surface_at_the_next_synchronization():
    table, index = torch.randn(5, 3, device="neuron"), torch.zeros(2, dtype=torch.long, device="neuron")
    graph, y = captured(lambda: torch.nn.functional.embedding(index, table) + 1)
    graph.replay()
    torch.neuron.synchronize()
    index.fill_(9)
    graph.replay()
    with pytest.raises((RuntimeError, IndexError), match=r"(?s)asynchronous launch of aten::embedding\(Float\[5, 3\]"):
        torch.neuron.synchronize()
    index.fill_(4)
    graph.replay()
    assert torch.equal(y.cpu(), table.cpu()[[4, 4]] + 1)


def test_an_error_of_the_first_replay():
    table, index = torch.randn(5, 3, device="neuron"), torch.full((2,), 7, device="neuron")
    graph, y = captured(lambda: (table * 2, torch.nn.functional.embedding(index, table)))
    graph.replay()
    with pytest.raises((RuntimeError, IndexError), match="embedding"):
        torch.neuron.synchronize()
    index.zero_()
    graph.replay()
    assert torch.equal(y[1].cpu(), table.cpu()[[0, 0]])


def test_static_tensors_that_are_gone():
    def replaying(change: Callable[[list[torch.Tensor]], object]) -> Callable[[], object]:
        static = [x()]
        graph, _ = captured(lambda: static[0] * 2 + 1)
        graph.replay()
        change(static)
        return graph.replay

    for change in (list.clear, lambda static: static[0].resize_(1000)):
        with pytest.raises(RuntimeError, match=r"'aten::mul\.Tensor' reads or writes in it is gone"):
            replaying(change)()
    static = [x()]
    graph, _ = captured(lambda: static[0] + 1)
    outer, _ = captured(graph.replay)
    static.clear()
    with pytest.raises(RuntimeError, match="is gone"):
        outer.replay()


def test_blocking_launches_raise_at_the_replay(tmp_path: Path):
    program = """
        import torch
        table, index = torch.randn(5, 3, device="neuron"), torch.full((2,), 7, device="neuron")
        graph = torch.neuron.NeuronGraph()
        with torch.neuron.graph(graph):
            torch.nn.functional.embedding(index, table)
        try:
            graph.replay()
        except (RuntimeError, IndexError) as error:
            print("raised", "embedding" in str(error))
    """
    result = run_python(program, directory=tmp_path, env={"NEURON_LAUNCH_BLOCKING": "1"})
    assert result.stdout.strip() == "raised True", result.stderr


def test_a_graph_that_lives_to_the_end_of_the_process(tmp_path: Path):
    program = """
        import torch
        x = torch.ones(4, device="neuron")
        graph = torch.neuron.NeuronGraph()
        with torch.neuron.graph(graph):
            x.add_(1)
        graph.replay()
        other = torch.neuron.NeuronGraph()
        stream = torch.neuron.Stream()
        torch.neuron.set_stream(stream)
        other.capture_begin()
        x.add_(1)
        print("end")
    """
    result = run_python(program, directory=tmp_path)
    assert (result.returncode, result.stdout.strip(), result.stderr) == (0, "end", "")
