"""The fusion window changes when and where results are computed, and nothing that a program can see.

Each test is a situation in which a window that fuses launches, or leaves out an intermediate, could go wrong. All
compare bits with CPU eager; random programs do so in test_adaptive_programs, other readers are in
test_adaptive_readers.
"""

import pytest
import torch
import torch.nn.functional as F
from comparison import assert_same
from fused import assert_fused_as_cpu, bytes_not_written, hold_up, ops

pytestmark = pytest.mark.neuron_only

# Fits no vector register, tile or thread boundary; split between two threads.
ODD = 70_001


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


@pytest.fixture(autouse=True)
def _window_on():
    with torch.neuron.adaptive_eager(True):
        yield


# --- chains, and who still sees an intermediate


def test_chain_with_dead_intermediates(device):
    def chain(x):
        y = x * 2
        for _ in range(9):
            y = y * 1.01 + 0.1
        return y

    for shape in ((ODD,), (3, 5), (1,), (17, 33)):
        report = assert_fused_as_cpu(chain, numbers(*shape), device=device)
        assert any("mul" in op for op in ops(report)), report
        assert any("add" in op for op in ops(report)), report
    large = assert_fused_as_cpu(chain, numbers(ODD), device=device)
    assert bytes_not_written(large) >= 4 * ODD


def test_empty_tensors_among_others(device):
    def program(x, empty):
        a = x * 2
        b = empty * 3 + 1
        c = a + 1
        return b, c, empty.sum(-1), b.sum(0)

    assert_fused_as_cpu(program, numbers(4, 7), numbers(3, 0), device=device)


def test_live_intermediates_are_written(device):
    def program(x):
        a = x * 2
        b = a + 1
        c = b.tanh()
        return a, b, c

    report = assert_fused_as_cpu(program, numbers(ODD), device=device)
    assert bytes_not_written(report) == 0, report


KEEPERS = {
    "slice": lambda a: a[3:50],
    "step": lambda a: a[::3],
    "transposed": lambda a: a.view(10, -1).t(),
    "expanded": lambda a: a[:1].expand(5),
    "element": lambda a: a[-1],
    "as_strided": lambda a: a.as_strided((3, 3), (1, 2), 5),
    "detached": lambda a: a.detach(),
    "list": lambda a: [{"key": a}],
    "cell": lambda a: lambda: a,
}


@pytest.mark.parametrize("name", KEEPERS)
def test_intermediate_that_something_keeps(device, name):
    def program(x):
        a = x * 2
        kept = KEEPERS[name](a)
        b = a + 1
        del a
        result = kept() if callable(kept) else kept
        return result, b * 3

    assert_fused_as_cpu(program, numbers(1000), device=device)


def test_reference_that_dies_after_the_window_has_run(device):
    def program(x):
        a = x * 2
        b = a + 1
        torch.accelerator.synchronize() if a.device.type != "cpu" else None
        c = a * 3
        del a
        return b, c + 1

    assert_fused_as_cpu(program, numbers(ODD), device=device)


# --- in place


def test_in_place_through_aliases(device):
    def program(x):
        a = x * 2
        view = a[::2]
        view.add_(1)
        b = a * 3
        a.view(10, -1).t()[1].mul_(b[0])
        a[5:10] = view[:5]
        c = a + b
        a.zero_()
        return c, b, view

    assert_fused_as_cpu(program, numbers(1000), device=device)


def test_in_place_after_a_read(device):
    def program(x):
        x = x.clone()
        a = x + 1
        x.mul_(2)
        b = x + a
        x.add_(b).sub_(a)
        return a, b, x

    assert_fused_as_cpu(program, numbers(ODD), device=device)


def test_overlapping_windows_of_one_base(device):
    def program(x):
        x = x.clone()
        a = x[:, 1:] + x[:, :-1]
        x[:, 1:].mul_(2)
        x[:, :-1].add_(1)
        b = x[:, 2:] - a[:, 1:]
        x[1:].copy_(x[:-1] * 0.5)
        x.view(-1)[3:-2].add_(x.view(-1)[3:-2])
        return a, b, x

    assert_fused_as_cpu(program, numbers(40, 90), device=device)


def test_op_whose_source_and_target_overlap(device):
    # PyTorch computes this in the order of its loop, which a fused region must not change.
    def program(x):
        x = x.clone() * 2
        x[:, 1:].add_(x[:, :-1])
        y = x + 1
        x.t()[1:].mul_(x.t()[:-1])
        return x, y * 2

    for _ in range(3):
        assert_fused_as_cpu(program, numbers(20, 30), device=device)


def test_sliding_window_that_reads_itself(device):
    def program(x):
        x = x * 2
        windows = x.as_strided((300, 5), (1, 1))
        a = windows * 0.5
        x.add_(1)
        return a.sum(-1), windows + a

    assert_fused_as_cpu(program, numbers(304), device=device)


def test_optimizer_by_hand(device):
    def adam(weight, grad, mean, square):
        for step in range(1, 5):
            mean.mul_(0.9).add_(grad, alpha=0.1)
            square.mul_(0.999).addcmul_(grad, grad, value=0.001)
            denominator = (square.sqrt() / (1 - 0.999**step) ** 0.5).add_(1e-8)
            weight.addcdiv_(mean, denominator, value=-1e-3 / (1 - 0.9**step))
        return weight, mean, square

    arguments = numbers(ODD), numbers(ODD), numbers(ODD), numbers(ODD).abs()
    assert_fused_as_cpu(adam, *arguments, device=device)


# --- blocks that are freed and used again within a window


def test_freed_intermediate_whose_block_is_used_again(device):
    reused = []

    def program(x):
        a = x * 2
        address = a.data_ptr()
        b = a + 1
        del a
        c = x * 5
        reused.append(c.data_ptr() == address)
        d = b + c
        del b
        e = d * x
        return c, d, e

    for size in (100, ODD):
        assert_fused_as_cpu(program, numbers(size), device=device)
        assert reused[-1], "the block was not used again: this test tests nothing"


# Reads of x by an op before its block gets a new owner: of one element, of rows, of one row or column by all.
READERS = {
    "elements": lambda x, w: x * 2,
    "rows": lambda x, w: x - x.mean(-1, keepdim=True),
    "softmax": lambda x, w: x.softmax(-1),
    "a row": lambda x, w: w * x[0],
    "the last row": lambda x, w: w * x[-1],
    "a column": lambda x, w: w + x[:, -1:],
    "an element": lambda x, w: w * x[-1, -1],
    "transposed": lambda x, w: w + x.t().reshape(w.shape),
    "backwards": lambda x, w: w + x.flip(0),
    "sum": lambda x, w: x.sum(-1),
}


@pytest.mark.parametrize("name", READERS)
def test_freed_operand_whose_block_becomes_a_result(device, name):
    reused = []

    def program(data, w):
        x = data.clone()
        address = x.data_ptr()
        y = READERS[name](x, w)
        del x
        z = w * 3  # into the memory that the launch before still reads
        reused.append(z.data_ptr() == address)
        return y, z, z + 1

    for shape in ((30, 40), (257, 300)):
        assert_fused_as_cpu(program, numbers(*shape), numbers(*shape), device=device)
        assert reused[-1], "the block was not used again: this test tests nothing"


def test_two_tensors_that_swap_blocks_many_times(device):
    def program(a, b):
        for _ in range(40):
            a, b = b * 0.5 + 1, a + b
            b = b.tanh()
        return a, b

    assert_fused_as_cpu(program, numbers(ODD), numbers(ODD), device=device)


def test_more_releases_than_a_window_can_remember(device):
    def program(x):
        total = x.clone()
        for i in range(3000):
            total += (x * i - x) * 0.001
        return total

    assert_fused_as_cpu(program, numbers(50), device=device)


# --- operands


def test_broadcasting_both_ways(device):
    def program(x, row, column):
        a = (row + column) * 2
        b = row * 3
        c = column - 1
        d = x + b * c
        return a + d, d.amax(-1, keepdim=True) + row, (c * 2).expand(-1, 3) + 1

    for rows, columns in ((30, 41), (257, 300), (1, 90), (90, 1)):
        arguments = numbers(rows, columns), numbers(columns), numbers(rows, 1)
        assert_fused_as_cpu(program, *arguments, device=device)


def test_tensors_without_dimensions(device):
    def program(x, scale):
        a = x * scale
        scale.add_(1)
        b = x * scale
        norm = (x * x).sum()
        c = x / norm.sqrt()
        return a, b, c, scale, scale * 2 + norm, x + torch.tensor(0.3)

    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
        scale = torch.tensor(3).to(dtype)
        assert_fused_as_cpu(program, numbers(ODD), scale, device=device)
        assert_fused_as_cpu(program, numbers(33).to(torch.bfloat16), scale, device=device)


SCALARS = (2, 2.0, 1.5, -0.0, 0.0, 0, float("inf"), float("-inf"), float("nan"), 1e-45, 1e39, 1 / 3, -7, True)


def test_numbers_change_from_window_to_window(device):
    def program(x, number):
        return (x * number + 1) * number + number

    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        x = numbers(1000).to(dtype)
        for number in SCALARS:
            # One signature for all floating point numbers: none may be built into a region.
            assert_fused_as_cpu(lambda x, number=number: program(x, number), x, device=device)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.int64])
def test_each_op_rounds_as_in_eager(device, dtype):
    def program(x, y):
        a = x * 3 + y
        b = a * a - y * x
        c = torch.where(b > a, b, a) - 1
        return c, c.float() * 0.1, (c.float() * 0.3).to(torch.bfloat16) + a

    x, y = (numbers(ODD) * 5).to(dtype), (numbers(ODD) * 5).to(dtype)
    assert_fused_as_cpu(program, x, y, device=device)


def test_strided_operands(device):
    def program(x):
        a = x.t() * 2 + x[: x.shape[1], : x.shape[0]].contiguous()
        b = x[::2, 1::3] + 1
        c = (b * 2).t()
        images = x.reshape(2, 5, 4, -1).contiguous(memory_format=torch.channels_last)
        return a, c.contiguous() - 1, (images * 2 + 1).relu(), images.sum(-1) * 2

    assert_fused_as_cpu(program, numbers(40, 40), device=device)


def test_row_wise_ops(device):
    def program(x, w):
        normal = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w
        scores = (normal * 0.125).masked_fill(x > 1, float("-inf")).softmax(-1)
        return F.layer_norm(scores + x, w.shape, w, w) * 2, normal.log_softmax(-1) + 1, (scores * x).sum(-1) / 2

    for rows, columns in ((1, 1), (3, 7), (64, 129), (300, 1000)):
        assert_fused_as_cpu(program, numbers(rows, columns), numbers(columns), device=device)


def test_op_that_cannot_be_fused_in_between(device):
    def program(x, w):
        a = (x * 2 + 1) @ w
        b = (a * 0.5).relu() + x
        c = b.sort(-1)[0] * 2 + b
        return (c @ w + 1).tanh() * 0.5

    assert_fused_as_cpu(program, numbers(60, 60), numbers(60, 60), device=device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_large_dropout_is_drawn_alone_and_applied_in_a_region(device, dtype):
    x = numbers(40_001).to(dtype)

    def gradient(x):
        x = x.detach().requires_grad_()
        torch.manual_seed(3)
        y = F.dropout(x * 2 + 1, 0.25) * 3
        y.backward(torch.full_like(y, 0.5))
        return y.detach(), x.grad

    expected = gradient(x)
    on_device = x.to(device)
    for _ in range(3):  # the first calls of a signature make plans
        torch.neuron.reset_adaptive_report()
        hold_up(device)
        assert_same(gradient(on_device), expected)
    fused = [region.ops for region in torch.neuron.adaptive_report(show=False).regions if region.launches > 1]
    assert any("neuron::apply_dropout_" in ops for ops in fused), fused
    assert any("neuron::native_dropout_backward" in ops for ops in fused), fused


FUNCTIONS = (torch.exp, torch.log, torch.sin, torch.tanh, torch.erf, torch.sqrt, torch.sigmoid, F.silu, F.gelu, F.relu)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_functions_of_tensors_in_another_order_of_memory(device, function):
    # ATen takes other ways for tensors that are not contiguous, some of them with other bits.
    def program(x):
        y = (x * 0.5).abs() + 0.125
        views = [y, y.t(), y[:, ::2], y.view(37, 1, 53).permute(2, 1, 0), y[1:, 1:]]
        return [function(view) * 2 for view in views]

    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        x = numbers(37 * 53).view(37, 53).to(dtype)
        assert_fused_as_cpu(program, x, device=device)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gradient_of_gelu_in_another_order_of_memory(device, approximate):
    def program(x):
        x = x.detach().requires_grad_()
        y = F.gelu((x * 2).t(), approximate=approximate)
        y.backward(torch.full_like(y, 0.5))
        return y.detach(), x.grad

    assert_fused_as_cpu(program, numbers(37 * 53).view(37, 53), device=device)


@pytest.mark.parametrize("compare", [lambda x: x <= 0.5, lambda x: 1 - x, lambda x: x**2, lambda x: x + 1])
def test_strides_of_dimensions_of_size_one_are_those_of_the_cpu(device, compare):
    x = numbers(49).view(7, 7, 1).transpose(2, 1)
    assert_same(compare(x.to(device)), compare(x))
