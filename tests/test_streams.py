"""Streams and events: torch.cuda's contract, through torch.neuron and through torch's generic classes."""

import pytest
import torch

from torch_neuronx import errors

pytestmark = pytest.mark.neuron_only


def busy(device: str = "neuron") -> torch.Tensor:
    """Work of some tens of milliseconds, launched and not waited for."""
    x = torch.full((384, 384), 0.001, device=device)
    for _ in range(40):
        x = x @ x + 0.001
    return x


def test_classes() -> None:
    stream = torch.neuron.Stream()
    assert isinstance(stream, torch.Stream)
    assert isinstance(torch.neuron.current_stream(), torch.neuron.Stream)
    assert isinstance(torch.neuron.Event(), torch.Event)
    assert stream.device == torch.device("neuron:0")
    assert "neuron:0" in repr(stream)
    assert "Event" in repr(torch.neuron.Event())


def test_new_streams_are_other_streams() -> None:
    streams = [torch.neuron.Stream() for _ in range(4)]
    assert len({stream.stream_id for stream in streams}) == 4
    assert all(stream != torch.neuron.default_stream() for stream in streams)
    assert len({*streams, torch.neuron.default_stream()}) == 5


def test_the_default_stream_is_current_at_first() -> None:
    for index in range(2):
        assert torch.neuron.current_stream(index) == torch.neuron.default_stream(index)
        assert torch.neuron.current_stream(index).device_index == index
    assert torch.neuron.default_stream(0) != torch.neuron.default_stream(1)


@pytest.mark.parametrize(("asked", "given"), [(0, 0), (-1, -1), (-9, -1), (5, 0)])
def test_priorities(asked: int, given: int) -> None:
    assert torch.neuron.Stream(priority=asked).priority == given
    assert torch.neuron.Stream.priority_range() == (0, -1)


def test_stream_of_another_device() -> None:
    for which in (1, "neuron:1", torch.device("neuron:1")):
        stream = torch.neuron.Stream(device=which, priority=-1)
        assert stream.device == torch.device("neuron:1")
        assert stream.priority == -1
    assert torch.neuron.current_device() == 0
    with torch.neuron.device(2):
        assert torch.neuron.Stream().device_index == 2


def test_stream_context() -> None:
    stream, inner = torch.neuron.Stream(), torch.neuron.Stream()
    default = torch.neuron.current_stream()
    with torch.neuron.stream(stream):
        assert torch.neuron.current_stream() == stream
        with torch.neuron.stream(inner):
            assert torch.neuron.current_stream() == inner
        with torch.neuron.stream(None):
            assert torch.neuron.current_stream() == stream
        with pytest.raises(KeyError), torch.neuron.stream(inner):
            raise KeyError
        assert torch.neuron.current_stream() == stream
    assert torch.neuron.current_stream() == default


def test_stream_context_of_another_device() -> None:
    # As torch.cuda: the stream's device is current inside; both devices' streams are set back.
    here, there = torch.neuron.Stream(0), torch.neuron.Stream(1)
    there_before = torch.neuron.current_stream(1)
    with torch.neuron.stream(here):
        with torch.neuron.stream(there):
            assert torch.neuron.current_device() == 1
            assert torch.neuron.current_stream() == there
            assert torch.neuron.current_stream(0) == here
        assert torch.neuron.current_device() == 0
        assert torch.neuron.current_stream() == here
        assert torch.neuron.current_stream(1) == there_before
    assert torch.neuron.current_stream() == torch.neuron.default_stream()


def test_a_stream_context_can_be_used_again() -> None:
    context = torch.neuron.stream(torch.neuron.Stream())
    for _ in range(2):
        with context:
            assert torch.neuron.current_stream() == context.stream
        assert torch.neuron.current_stream() == torch.neuron.default_stream()


def test_a_stream_is_a_context_manager() -> None:
    for stream in (torch.neuron.Stream(), torch.Stream("neuron")):
        with stream:
            assert torch.neuron.current_stream() == stream
        assert torch.neuron.current_stream() == torch.neuron.default_stream()


def test_set_stream() -> None:
    stream = torch.neuron.Stream(1)
    torch.neuron.set_stream(None)
    assert torch.neuron.current_stream() == torch.neuron.default_stream()
    try:
        torch.neuron.set_stream(stream)
        assert (torch.neuron.current_device(), torch.neuron.current_stream()) == (1, stream)
    finally:
        torch.neuron.set_stream(torch.neuron.default_stream(1))
        torch.neuron.set_device(0)


@pytest.mark.parametrize("wrong", [3, torch.Stream("cpu")])
def test_not_a_stream(wrong: object) -> None:
    with pytest.raises(errors.NotANeuronStreamError):
        torch.neuron.set_stream(wrong)  # type: ignore[arg-type]
    with pytest.raises(errors.NotANeuronStreamError):
        torch.neuron.stream(wrong)  # type: ignore[arg-type]


def test_query_and_synchronize() -> None:
    stream = torch.neuron.Stream()
    assert stream.query()
    with torch.neuron.stream(stream):
        busy()
    assert not stream.query()
    stream.synchronize()
    assert stream.query()


def test_wait_stream_orders_work() -> None:
    stream = torch.neuron.Stream()
    torch.neuron.synchronize()
    expected = busy().cpu()
    with torch.neuron.stream(stream):
        x = busy()
    torch.neuron.current_stream().wait_stream(stream)
    y = x + 1
    x.record_stream(torch.neuron.current_stream())
    assert torch.equal(y.cpu(), expected + 1)


def test_wait_event_orders_work() -> None:
    stream = torch.neuron.Stream()
    expected = busy().cpu()
    with torch.neuron.stream(stream):
        x = busy()
        event = stream.record_event()
    assert isinstance(event, torch.neuron.Event)
    for wait in (torch.neuron.current_stream().wait_event, lambda event: event.wait()):
        wait(event)
    assert torch.equal((x * 2).cpu(), expected * 2)
    x.record_stream(torch.neuron.current_stream())


def test_event_life() -> None:
    event = torch.neuron.Event()
    assert event.query()  # never recorded: nothing to wait for
    event.synchronize()
    busy()
    event.record()
    assert not event.query()
    event.synchronize()
    assert event.query()
    again = torch.neuron.Event()
    assert torch.neuron.current_stream().record_event(again) is again


def test_event_on_a_given_stream() -> None:
    stream = torch.neuron.Stream()
    idle, event = torch.neuron.Event(), torch.neuron.Event()
    with torch.neuron.stream(stream):
        busy()
    idle.record()
    event.record(stream)
    assert not event.query()
    idle.synchronize()
    event.synchronize()
    assert stream.query()


def test_event_belongs_to_the_device_that_recorded_it() -> None:
    event = torch.neuron.Event()
    event.record(torch.neuron.current_stream(1))
    event.synchronize()
    with pytest.raises(RuntimeError, match="does not match"):
        event.record(torch.neuron.current_stream(0))


def test_event_timing() -> None:
    start, end = torch.neuron.Event(enable_timing=True), torch.neuron.Event(enable_timing=True)
    start.record()
    busy()
    end.record()
    end.synchronize()
    assert 0.1 < start.elapsed_time(end) < 60_000
    assert end.elapsed_time(start) == pytest.approx(-start.elapsed_time(end))


def test_event_timing_must_be_asked_for() -> None:
    start, end = torch.neuron.Event(), torch.neuron.Event()
    start.record()
    end.record()
    end.synchronize()
    with pytest.raises((RuntimeError, ValueError), match=r"enable_timing|timing"):
        start.elapsed_time(end)


def test_events_are_not_shared_between_processes() -> None:
    with pytest.raises(errors.InterprocessEventError):
        torch.neuron.Event(interprocess=True)


def test_event_between_devices() -> None:
    with torch.neuron.device(1):
        x = busy("neuron:1")
        event = torch.neuron.Event()
        event.record()
    event.wait(torch.neuron.current_stream(0))
    y = x.to("neuron:0")
    assert torch.equal(y.cpu(), x.cpu())


def test_gradients_of_a_side_stream_are_ready_for_the_next_reader() -> None:
    # P10: autograd runs the backward of each op on the stream of its forward, and joins them at the end.
    weight = torch.full((256, 256), 0.01, requires_grad=True)
    expected = torch.autograd.grad((weight @ weight @ weight).sum(), weight)[0]
    leaf = weight.detach().to("neuron").requires_grad_()
    stream = torch.neuron.Stream()
    stream.wait_stream(torch.neuron.current_stream())
    with torch.neuron.stream(stream):
        loss = (leaf @ leaf @ leaf).sum()
    loss.backward()
    assert torch.equal(leaf.grad.cpu(), expected)
