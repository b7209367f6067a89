"""Memory of compiled programs: what is given back during a run, what is written over, and that nobody else notices."""

import pytest
import torch
from program_writer import Writer, t
from torch import Tensor, nn

from torch_neuronx.jit.kernel import Instruction, Kernel, Operand
from torch_neuronx.jit.stage import Dtype, Lane
from torch_neuronx.targets.emulator.memory import plan_arena
from torch_neuronx.targets.emulator.split import split

MIB = 1 << 20


def peak_above(work) -> float:  # type: ignore[no-untyped-def]
    """MiB that were allocated at most, above what was there before, while `work` ran."""
    torch.neuron.synchronize()
    torch.neuron.reset_peak_memory_stats()
    before = torch.neuron.memory_allocated()
    work()
    torch.neuron.synchronize()
    return (torch.neuron.max_memory_allocated() - before) / MIB


def doubling(steps: int, donated: bool):  # type: ignore[no-untyped-def]
    """A program of `steps` additions of a tensor of 1 MiB to itself, one after the other."""
    w = Writer([torch.float32])
    shape = [MIB // 4]
    last = w.tensor(0, shape)
    for k in range(steps):
        if k == steps - 1:
            buffer = w.builder.output(w.ref(MIB), first=k)
        else:
            buffer = w.builder.block(w.ref(MIB), first=k, last=k + 1)
        result = w.tensor(buffer, shape)
        w.call("add.Tensor", [t(last), t(last)], [result])
        last = result
    if donated:
        w.builder.donate(0, last=0)
    return w.bind([last])


def test_blocks_are_there_for_later_steps() -> None:
    x = torch.randn(MIB // 4)
    binding = doubling(8, donated=False)
    args = [x.to("neuron")]
    results: list[Tensor] = []
    assert peak_above(lambda: results.extend(binding.run(args))) <= 3.01
    assert torch.equal(results[0].cpu(), x * 256)


def test_a_donated_argument_is_there_for_later_steps() -> None:
    x = torch.randn(MIB // 4)
    binding = doubling(2, donated=True)
    args = [x.to("neuron")]
    results: list[Tensor] = []
    # Without the donation it is two: the block and the output.
    assert peak_above(lambda: results.extend(binding.run(args, clear=True))) <= 1.01
    assert args == []
    assert torch.equal(results[0].cpu(), x * 4)


@pytest.mark.parametrize("holder", ["tensor", "view"])
def test_an_argument_that_somebody_else_has_stays(holder: str) -> None:
    x = torch.randn(MIB // 4)
    binding = doubling(2, donated=True)
    mine = x.to("neuron")
    kept = mine if holder == "tensor" else mine[1:]
    args = [mine]
    del mine
    (result,) = binding.run(args, clear=True)
    other = [torch.full((MIB // 4,), 7.0, device="neuron") for _ in range(4)]  # would take the memory
    assert torch.equal(kept.cpu(), x if holder == "tensor" else x[1:])
    assert torch.equal(result.cpu(), x * 4)
    del other


def test_an_argument_is_computed_although_it_is_let_go_of_before_the_launch() -> None:
    # The window of adaptive eager must not take it for a result that nobody reads.
    x = torch.randn(MIB // 4)
    binding = doubling(2, donated=True)
    for _ in range(20):
        args = [x.to("neuron") + 1]
        (result,) = binding.run(args, clear=True)
        assert torch.equal(result.cpu(), (x + 1) * 4)


def test_backward_gives_saved_activations_back() -> None:
    torch.compiler.reset()
    layers = [nn.Sequential(nn.Linear(512, 512, bias=False), nn.GELU()) for _ in range(8)]
    model = nn.Sequential(*layers)
    x = torch.randn(512, 512)
    model(x).square().mean().backward()
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]

    on_device = nn.Sequential(*layers).to("neuron")
    compiled = torch.compile(on_device)

    def step() -> None:
        on_device.zero_grad()
        compiled(x.to("neuron")).square().mean().backward()

    for _ in range(2):
        step()
    # Two activations of 1 MiB are saved per layer; the gradients, as large each, use the memory of those done with.
    assert peak_above(step) < 16 + 5
    for p, e in zip(on_device.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad.cpu(), e, rtol=1e-3, atol=1e-5)


def test_results_that_share_memory_do_not_share_what_is_written() -> None:
    # c and d are both new; the kernel of each may write over an operand that is read for the last time.
    torch.compiler.reset()

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        a = x @ y
        b = a.relu() @ y
        return (b * 2 + a).sum(1, keepdim=True) + a, b.t() * 3

    x, y = torch.randn(256, 256), torch.randn(256, 256)
    actual = torch.compile(f, fullgraph=True)(x.to("neuron"), y.to("neuron"))
    for a, e in zip(actual, f(x, y), strict=True):
        torch.testing.assert_close(a.cpu(), e, rtol=1e-4, atol=1e-3)


# --- the plan of the arena


def test_plan_keeps_apart_what_lives_at_the_same_time() -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(50):
        lives = []
        for _ in range(20):
            size, first, length = (int(torch.randint(1, n, (), generator=generator)) for n in (5000, 30, 8))
            lives.append((size, first, first + length))
        offsets, total = plan_arena(lives)
        for i, (size, first, last) in enumerate(lives):
            assert offsets[i] % 64 == 0
            assert offsets[i] + size <= total
            for j in range(i):
                other, begin, end = lives[j]
                if first <= end and begin <= last:
                    assert offsets[i] + size <= offsets[j] or offsets[j] + other <= offsets[i]


def test_plan_uses_memory_again() -> None:
    assert plan_arena([(64, 0, 1), (64, 2, 3), (64, 4, 5)])[1] == 64


# --- reductions in two steps


def total(reduce: str) -> Kernel:
    code = (
        Instruction("load", Lane.F32, operand=0),
        Instruction(f"reduce_{reduce}", Lane.F32, (0,)),
        Instruction("store", Lane.F32, (1,), operand=1),
    )
    operands = Operand(Dtype.F32, (1,)), Operand(Dtype.F32, (0,))
    return Kernel((1 << 17,), operands, code, (0,))


def test_long_reductions_are_split() -> None:
    halves = split(total("sum"))
    assert halves is not None
    assert halves.parts * halves.first.sizes[halves.first.reduced[0]] == 1 << 17
    assert halves.second.sizes == (halves.parts,)


@pytest.mark.parametrize("reduce", ["argmax", "argmin"])
def test_places_of_extremes_are_not_split(reduce: str) -> None:
    assert split(total(reduce)) is None


@pytest.mark.parametrize(
    ("shape", "dims"),
    [((1 << 17,), (0,)), ((8, 40000), (1,)), ((40000, 8), (0,)), ((96, 4, 900), (0, 2)), ((65521, 2), (0,))],
)
def test_split_reductions_give_the_same(shape: tuple[int, ...], dims: tuple[int, ...]) -> None:
    torch.compiler.reset()
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))

    def f(x: Tensor) -> tuple[Tensor, ...]:
        y = x * 2
        return y.sum(dims) + 1, y.amax(dims), (y > 3).any(dims[0]), y - y.sum(dims, keepdim=True)

    for a, e in zip(torch.compile(f, fullgraph=True)(x.to("neuron")), f(x), strict=True):
        torch.testing.assert_close(a.cpu(), e, rtol=1e-4, atol=1e-3)
