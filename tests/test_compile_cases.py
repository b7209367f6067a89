"""torch.compile: programs that have gone wrong in compilers before. Each is compared with eager mode on the CPU."""

import copy
import logging
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from compiling import (
    BACKEND,
    assert_compiled_same,
    assert_gradients_same,
    assert_near,
    compiled,
    counter,
    fresh_compiler,
)
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    with fresh_compiler():
        yield


def test_dropout_under_checkpointing_in_one_graph(device):
    """Every value that is let through has a gradient of 2, every other one of 0: the mask is the same."""

    def f(x: Tensor) -> Tensor:
        return checkpoint(lambda t: F.dropout(t, 0.5), x, use_reentrant=False)

    x = torch.ones(64, device=device, requires_grad=True)
    y = compiled(f)(x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
    assert 0 < (y == 0).sum() < 64


@pytest.mark.neuron_only
def test_stream_inside_compiled_code(device):
    side = torch.neuron.Stream()

    def f(x: Tensor) -> Tensor:
        y = x * 2
        side.wait_stream(torch.neuron.current_stream())
        with torch.neuron.stream(side):
            z = y + 1
        torch.neuron.current_stream().wait_stream(side)
        return z.exp() + y

    x = torch.randn(5)
    call = torch.compile(f, backend=BACKEND)
    for _ in range(3):
        assert_near(call(x.to(device)), (x * 2 + 1).exp() + x * 2)


@pytest.mark.neuron_only
def test_event_inside_compiled_code(device):
    def f(x: Tensor) -> Tensor:
        y = x * 2
        event = torch.neuron.Event()
        event.record()
        event.synchronize()
        return y + 1

    x = torch.randn(5)
    call = torch.compile(f, backend=BACKEND)
    for _ in range(2):
        assert_near(call(x.to(device)), x * 2 + 1)


@pytest.mark.neuron_only
def test_no_backend_named_means_ours(device, monkeypatch):
    from torch._inductor import compile_fx

    def refuse(*args, **kwargs):
        raise AssertionError("Inductor was asked")

    monkeypatch.setattr(compile_fx, "compile_fx", refuse)
    x = torch.randn(3)
    assert_near(torch.compile(lambda t: t * 2 + 1, fullgraph=True)(x.to(device)), x * 2 + 1)


@pytest.mark.parametrize("shape", [(3, 16, 16), (1024, 2048)], ids=str)
def test_copy_between_overlapping_slices(shape):
    def f(x: Tensor) -> Tensor:
        x[1:] = x[:-1].clone()
        return x * 1

    assert_compiled_same(f, torch.randn(shape))


@torch.library.custom_op("compile_cases::halve", mutates_args=("x",))
def halve(y: Tensor, x: Tensor) -> Tensor:
    x.mul_(0.5)
    return y - x


@halve.register_fake
def _(y: Tensor, x: Tensor) -> Tensor:
    return torch.empty_like(y)


def test_clone_keeps_what_an_op_then_changes():
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.clone()
        z = halve(y, x)
        return y, z

    def inner(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        t = x + 1
        y = t.clone()
        z = halve(y, t)
        return y, z, t * 2

    assert_compiled_same(f, torch.randn(4, 5))
    assert_compiled_same(inner, torch.randn(4, 5))


def test_redefined_op_is_not_taken_from_a_cache(device, tmp_path):
    """The same name with other `mutates_args` is another graph, also for the caches on disk."""

    def run(writes: bool) -> list[Tensor]:
        library = torch.library.Library("compile_cases_redefined", "FRAGMENT")
        try:
            library.define(f"op(Tensor{'(a!)' if writes else ''} x) -> Tensor")

            def op(x: Tensor) -> Tensor:
                return x.add_(1).clone() if writes else x + 1

            library.impl("op", op, "CompositeExplicitAutograd")
            library._register_fake("op", lambda x: torch.empty_like(x))
            torch._dynamo.reset()
            x = torch.zeros(3, device=device)
            y = compiled(lambda t: torch.ops.compile_cases_redefined.op(t * 1 if not writes else t) * 2)(x)
            return [x.cpu(), y.cpu()]
        finally:
            library._destroy()

    with torch.compiler.config.patch(force_disable_caches=False), torch._inductor.utils.fresh_cache(dir=str(tmp_path)):
        assert_near(run(False), [torch.zeros(3), torch.full((3,), 2.0)])
        assert_near(run(True), [torch.ones(3), torch.full((3,), 2.0)])
        assert_near(run(False), [torch.zeros(3), torch.full((3,), 2.0)])


def test_scatter_add_to_the_same_places(device):
    def f(x: Tensor, index: Tensor, values: Tensor) -> Tensor:
        return x.scatter_add(0, index, values) + 1

    backend = counter()
    call = torch.compile(f, backend=backend, dynamic=True)
    for rows, size in [(4, 10), (7, 33)]:
        x = torch.randint(0, 9, (rows, 3))
        index, values = torch.randint(0, rows, (size, 3)), torch.randint(-9, 9, (size, 3))
        assert_near(call(x.to(device), index.to(device), values.to(device)), f(x, index, values))
    assert backend.frame_count == 1


def test_graphs_that_differ_in_a_flag_or_a_size_are_kept_apart(device, tmp_path):
    def make(flag: bool):
        def f(x: Tensor) -> Tensor:
            return x.sum(0, keepdim=flag) * x.shape[0]

        return f

    with torch.compiler.config.patch(force_disable_caches=False), torch._inductor.utils.fresh_cache(dir=str(tmp_path)):
        for dynamic in (True, False):
            for flag in (True, False):
                torch._dynamo.reset()
                call = compiled(make(flag), dynamic=dynamic)
                for rows in (3, 5):
                    x = torch.randn(rows, 4)
                    assert_near(call(x.to(device)), make(flag)(x), where=f"{dynamic} {flag} {rows}")


@pytest.mark.neuron_only
def test_failed_build_is_not_remembered_as_a_success(device, monkeypatch, tmp_path):
    from torch_neuronx.targets.emulator import target

    build = target.build_program

    def fail(*args, **kwargs):
        raise RuntimeError("out of registers")

    x = torch.randn(4)
    with torch.compiler.config.patch(force_disable_caches=False), torch._inductor.utils.fresh_cache(dir=str(tmp_path)):
        for _ in range(2):
            monkeypatch.setattr(target, "build_program", fail)
            torch._dynamo.reset()
            with pytest.raises(Exception, match="out of registers"):
                compiled(lambda t: t * 3)(x.to(device))
        monkeypatch.setattr(target, "build_program", build)
        torch._dynamo.reset()
        assert_near(compiled(lambda t: t * 3)(x.to(device)), x * 3)


@pytest.mark.parametrize("dilation", [1, 4])
def test_masked_assignment_between_dilated_convolutions(device, dilation):
    torch.manual_seed(1)
    first = nn.Conv1d(3, 6, 3, padding=dilation, dilation=dilation)
    second = nn.Conv1d(6, 2, 3, padding=dilation, dilation=dilation)

    def f(x: Tensor, mask: Tensor, *weights: Tensor) -> Tensor:
        a, b, c, d = weights
        x = F.conv1d(x, a, b, padding=dilation, dilation=dilation)
        x[mask] = 0
        return F.conv1d(x.relu(), c, d, padding=dilation, dilation=dilation)

    weights = [w.detach() for w in (first.weight, first.bias, second.weight, second.bias)]
    assert_gradients_same(f, torch.randn(2, 3, 20), torch.rand(2, 6, 20) > 0.5, *weights)


def test_batches_of_one_two_three_and_one_again(device):
    backend = counter()
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8).eval(), nn.ReLU(), nn.Linear(8, 2))
    here = copy.deepcopy(model).to(device)
    call = torch.compile(here, backend=backend)
    for rows in (1, 2, 3, 1, 5, 2):
        x = torch.randn(rows, 4)
        assert_near(call(x.to(device)), model(x), where=f"{rows} rows")
    assert backend.frame_count <= 3  # one row, two rows, any number


def test_log_says_why_it_recompiled(device, caplog):
    """An odd last batch, another shape in evaluation."""
    torch._logging.set_logs(recompiles=True)
    logger = logging.getLogger("torch._dynamo")
    logger.propagate, before = True, logger.propagate
    try:
        call = torch.compile(lambda x: x * 2, backend=BACKEND)
        with caplog.at_level(logging.DEBUG):
            for rows in (8, 8, 5):
                call(torch.ones(rows, 3, device=device))
        text = caplog.text
    finally:
        logger.propagate = before
        torch._logging.set_logs()
    assert "Recompiling function" in text
    assert "size mismatch at index 0. expected 8, actual 5" in text


def test_gradient_of_a_gather_with_duplicates():
    def f(x: Tensor, index: Tensor) -> Tensor:
        return x[:, index, :] * 2

    assert_gradients_same(f, torch.randn(3, 5, 4), torch.tensor([0, 2, 2, 4, 2, 0]))
