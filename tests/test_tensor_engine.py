"""Low-precision matrix products, convolution and attention: exact products, sums in fp32, one rounding on the way out.

The reference is the same computation in fp64. A result may be off by half a step of its format, for the rounding, and
by what sums in fp32 lose, which is measured against the same computation on absolute values.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from comparison import bits
from processes import run_python

pytestmark = pytest.mark.neuron_only

LOW = (torch.bfloat16, torch.float16)
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
E4M3, E5M2 = FLOAT8

# Rounding errors of fp32 sums add up like a random walk; a small multiple of its length is never seen to be passed.
WALK = 4 * 2**-24


def half_step(reference: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Half the distance between the numbers of `dtype` around `reference` (fp64)."""
    info = torch.finfo(dtype)
    exponent = torch.frexp(reference.abs().clamp_min(info.smallest_normal))[1]
    return torch.exp2(exponent.double() - 1) * info.eps / 2


def assert_rounded_once(
    actual: torch.Tensor, reference: torch.Tensor, magnitude: torch.Tensor, depth: int, what: str = "result"
) -> None:
    """`actual` is `reference` but for one rounding and fp32 sums of `depth` terms, which add up to `magnitude`."""
    assert actual.shape == reference.shape, f"{what}: shape {tuple(actual.shape)}, expected {tuple(reference.shape)}"
    got = actual.detach().cpu().double()
    accumulation = WALK * math.sqrt(depth + 1) * magnitude.abs()
    allowed = half_step(reference.abs() + accumulation, actual.dtype) + accumulation
    error = (got - reference).abs()
    worst = (error / allowed).max().item() if error.numel() else 0.0
    assert torch.all(error <= allowed), f"{what}: {worst:.3f} of the allowed error"


def run(
    function: Callable[..., torch.Tensor], inputs: tuple[torch.Tensor, ...], grad: torch.Tensor | None
) -> list[torch.Tensor]:
    leaves = [x.detach().requires_grad_(grad is not None) for x in inputs]
    output = function(*leaves)
    if grad is None:
        return [output]
    return [output.detach(), *torch.autograd.grad(output, leaves, grad)]


def check(
    function: Callable[..., torch.Tensor],
    *inputs: torch.Tensor,
    device: torch.device,
    depth: int,
    backward: bool = False,
    gradient_depth: int | None = None,
) -> None:
    """`function` of low-precision CPU tensors, and its gradients if so asked, on the device against fp64 on the CPU.

    It must be multilinear with positive coefficients, so that absolute values in give the magnitude of the sums.
    """
    wide = tuple(x.double() for x in inputs)
    grad = None
    if backward:
        grad = torch.randn(function(*wide).shape).to(inputs[0].dtype)
    reference = run(function, wide, None if grad is None else grad.double())
    magnitude = run(function, tuple(x.abs() for x in wide), None if grad is None else grad.double().abs())
    runs = [
        run(function, tuple(x.to(device) for x in inputs), None if grad is None else grad.to(device)) for _ in range(2)
    ]
    for i, (first, second, expected, size) in enumerate(zip(*runs, reference, magnitude, strict=True)):
        what = "output" if i == 0 else f"gradient {i}"
        assert first.dtype == inputs[0].dtype
        assert first.device.type == device.type
        assert_rounded_once(first, expected, size, depth if i == 0 else gradient_depth or depth, what)
        # The first run of a launch takes another path than those that follow.
        assert torch.equal(bits(first), bits(second)), f"{what}: another result when run again"


def random(*shape: int, dtype: torch.dtype, transposed: bool = False) -> torch.Tensor:
    if not transposed:
        return torch.randn(shape).to(dtype)
    return torch.randn(*shape[:-2], shape[-1], shape[-2]).to(dtype).mT


SHAPES = [
    (1, 1, 1),
    (3, 5, 7),
    (1, 700, 513),
    (4, 1000, 33),
    (5, 64, 70),
    (8, 129, 257),
    (9, 130, 258),
    (17, 300, 2),
    (300, 17, 8),
    (64, 64, 64),
    (300, 1100, 270),
    (128, 5000, 96),
    (2, 600, 9000),
    (0, 3, 4),
    (3, 0, 4),
    (3, 4, 0),
]


@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_matrix_product(device, dtype, shape, layout):
    m, k, n = shape
    a = random(m, k, dtype=dtype, transposed=layout[0] == "T")
    b = random(k, n, dtype=dtype, transposed=layout[1] == "T")
    check(torch.mm, a, b, device=device, depth=k)


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_gradients_of_a_linear_layer(device, dtype):
    x, w, b = random(6, 37, 65, dtype=dtype), random(129, 65, dtype=dtype), random(129, dtype=dtype)
    check(F.linear, x, w, b, device=device, depth=65, backward=True, gradient_depth=6 * 37)


@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize(
    "shape", [(7, 33, 65, 17), (2, 300, 64, 300), (65, 4, 8, 4), (3, 1, 70, 90), (0, 2, 3, 4)], ids=str
)
def test_batched_product_and_its_gradients(device, dtype, shape):
    batch, m, k, n = shape
    a, b = random(batch, m, k, dtype=dtype), random(batch, k, n, dtype=dtype, transposed=True)
    check(torch.bmm, a, b, device=device, depth=k, backward=True, gradient_depth=max(m, n))


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_operands_with_any_strides(device, dtype):
    a, b = random(40, 90, dtype=dtype), random(90, 50, dtype=dtype)
    check(lambda a, b: torch.mm(a[::2, 1::3], b[::3, 2::2]), a, b, device=device, depth=30)
    check(lambda a, b: torch.mm(a[:, 5:25], b[3:23, 7:]), a, b, device=device, depth=20)
    check(lambda a, b: torch.mm(a[:1].expand(6, 90), b[:, :1].expand(90, 9)), a, b, device=device, depth=90)
    check(lambda a, b: torch.matmul(a[None].expand(3, 40, 90), b), a, b, device=device, depth=90)
    check(lambda a, b: torch.bmm(a[None].expand(3, 40, 90), b[None].expand(3, 90, 50)), a, b, device=device, depth=90)
    c = random(5, 8, 6, 7, dtype=dtype)
    check(lambda c: torch.matmul(c.transpose(1, 2), c.permute(0, 2, 3, 1)), c, device=device, depth=7)


@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (0.5, 2), (3, 0.25), (0, 1), (2, 0)])
@pytest.mark.parametrize("addend", [(33, 65), (65,), (33, 1), (1, 65), (1,), ()], ids=str)
def test_addmm(device, dtype, beta, alpha, addend):
    c, a, b = random(*addend, dtype=dtype), random(33, 100, dtype=dtype), random(100, 65, dtype=dtype)
    check(lambda c, a, b: torch.addmm(c, a, b, beta=beta, alpha=alpha), c, a, b, device=device, depth=101)


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_other_products_with_an_addend(device, dtype):
    a, b = random(5, 9, 40, dtype=dtype), random(5, 40, 17, dtype=dtype)
    for c in (random(5, 9, 17, dtype=dtype), random(9, 17, dtype=dtype), random(17, dtype=dtype)):
        check(lambda c, a, b: torch.baddbmm(c, a, b, beta=0.5, alpha=2), c, a, b, device=device, depth=41)
    for c in (random(9, 17, dtype=dtype), random(17, dtype=dtype)):
        check(lambda c, a, b: torch.addbmm(c, a, b, beta=2, alpha=0.5), c, a, b, device=device, depth=201)
    c, v = random(9, dtype=dtype), random(40, dtype=dtype)
    check(lambda c, a, v: torch.addmv(c, a[0], v, beta=2, alpha=3), c, a, v, device=device, depth=41)


@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize("step", [1, 3])
def test_vectors(device, dtype, step):
    a, x, y = random(70, 300, dtype=dtype), random(300 * step, dtype=dtype), random(300 * step, dtype=dtype)
    check(lambda a, x: torch.mv(a, x[::step]), a, x, device=device, depth=300)
    check(lambda a, x: torch.mv(a[:5].t(), x[: 5 * step : step]), a, x, device=device, depth=5)
    check(lambda x, y: torch.dot(x[::step], y[::step]), x, y, device=device, depth=300)
    check(lambda x, y: torch.vdot(x[::step], y[::step]), x, y, device=device, depth=300)
    check(lambda x, y: torch.dot(x[:0], y[:0]), x, y, device=device, depth=0)


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_in_place_and_out(device, dtype):
    c, a, b = random(20, 30, dtype=dtype), random(20, 40, dtype=dtype), random(40, 30, dtype=dtype)
    batches = [random(*s, dtype=dtype) for s in ((4, 5, 7), (4, 5, 6), (4, 6, 7))]

    def into(out: torch.Tensor, function: Callable[..., Any], *arguments: Any) -> torch.Tensor:
        result = function(*arguments, out=out)
        assert result is out
        return out

    check(lambda c, a, b: c.clone().addmm_(a, b, beta=2), c, a, b, device=device, depth=41)
    check(lambda c, a, b: c.t().contiguous().t().addmm_(a, b), c, a, b, device=device, depth=41)
    check(lambda c, a, b: into(torch.empty_like(c), torch.mm, a, b), c, a, b, device=device, depth=40)
    check(lambda c, a, b: into(torch.empty_like(c.t()).t(), torch.mm, a, b), c, a, b, device=device, depth=40)
    check(lambda c, a, b: into(c.new_empty(20, 90)[:, ::3], torch.mm, a, b), c, a, b, device=device, depth=40)
    check(lambda c, a, b: into(c.new_empty(0), torch.addmm, c, a, b), c, a, b, device=device, depth=41)
    check(lambda c, a, b: c.clone().baddbmm_(a, b), *batches, device=device, depth=7)
    check(lambda c, a, b: into(torch.empty_like(c), torch.bmm, a, b), *batches, device=device, depth=6)
    check(lambda c, a, b: c[0].clone().addbmm_(a, b), *batches, device=device, depth=25)
    check(lambda c, a, b: c[0, :, 0].clone().addmv_(a[0], b[0, :, 0]), *batches, device=device, depth=7)


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_output_may_be_an_operand(device, dtype):
    a, b = random(50, 50, dtype=dtype).to(device), random(50, 50, dtype=dtype).to(device)
    expected = torch.mm(a, b)
    left = a.clone()
    assert torch.equal(torch.mm(left, b, out=left), expected)
    storage = torch.cat([a, b])
    assert torch.equal(torch.mm(a, b, out=storage[7:57]), expected)
    accumulated = a.clone()
    assert torch.equal(accumulated.addmm_(accumulated, b), torch.addmm(a, a, b))
    shifted = torch.cat([a, a.new_zeros(1, 50)])
    expected = torch.addmm(shifted[:50], a, b)
    assert torch.equal(torch.addmm(shifted[:50], a, b, out=shifted[1:]), expected)


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_sums_are_kept_in_fp32_along_the_whole_depth(device, dtype):
    # Large terms cancel far apart from each other; what is left would have been lost in a low-precision sum.
    for depth in (8, 2000, 6000):
        for m, n in ((1, 1), (2, 100), (40, 50), (100, 2)):
            a, b = torch.zeros(m, depth), torch.ones(depth, n)
            a[:, 0], a[:, depth // 2], a[:, -1] = 1024, 0.25, -1024
            out = torch.mm(a.to(dtype).to(device), b.to(dtype).to(device))
            assert torch.equal(out.cpu().float(), torch.full((m, n), 0.25))


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_addend_is_added_before_the_rounding(device, dtype):
    step = torch.finfo(dtype).eps
    # 1 + step/2 alone is a tie and rounds down to 1; with another quarter it rounds up.
    a = torch.tensor([[1, step / 2]], dtype=dtype, device=device)
    one = torch.ones(2, 1, dtype=dtype, device=device)
    quarter = torch.tensor([[step / 4]], dtype=dtype, device=device)
    assert torch.mm(a, one).item() == 1
    assert torch.addmm(quarter, a, one).item() == 1 + step
    assert torch.addmm(quarter, a, one, alpha=0.5, beta=0).item() == 0.5
    assert torch.baddbmm(quarter[None], a[None], one[None]).item() == 1 + step
    assert F.linear(a, one.t(), quarter[0]).item() == 1 + step


@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 4), (40, 30, 50)], ids=str)
def test_beta_zero_ignores_the_addend(device, dtype, shape):
    m, k, n = shape
    a, b = random(m, k, dtype=dtype).to(device), random(k, n, dtype=dtype).to(device)
    nan = torch.full((m, n), float("nan"), dtype=dtype, device=device)
    expected = torch.mm(a, b)
    assert torch.equal(torch.addmm(nan, a, b, beta=0), expected)
    assert torch.equal(nan.clone().addmm_(a, b, beta=0), expected)
    assert torch.equal(torch.baddbmm(nan[None], a[None], b[None], beta=0)[0], expected)
    assert torch.equal(torch.addmv(nan[:, 0], a, b[:, 0], beta=0), torch.mv(a, b[:, 0]))
    assert torch.addmm(nan, a, b).isnan().all()


@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize(("m", "n"), [(3, 5), (30, 40)])
def test_nan_and_infinity_go_through(device, dtype, m, n):
    a, b = random(m, 20, dtype=dtype), random(20, n, dtype=dtype)
    a[0, 3], a[1, 4], b[5, 0], b[6, 1] = float("nan"), float("inf"), float("-inf"), float("nan")
    a[2, 5] = 0  # meets an infinity
    out, expected = torch.mm(a.to(device), b.to(device)).cpu(), torch.mm(a.double(), b.double())
    assert torch.equal(out.isnan(), expected.isnan())
    assert torch.equal(out.isinf(), expected.isinf())
    assert torch.equal(out[out.isinf()].sign().double(), expected[out.isinf()].sign())


@pytest.mark.parametrize("rows", [1, 40])
def test_largest_and_smallest_numbers(device, rows):
    def product(a: list[float], b: list[float], dtype: torch.dtype) -> float:
        left = torch.tensor([a] * rows, dtype=dtype, device=device)
        out = torch.mm(left, torch.tensor([b] * rows, dtype=dtype, device=device).t())
        assert torch.equal(out, out[:1, :1].expand_as(out))
        return out[0, 0].item()

    half, brain = torch.float16, torch.bfloat16
    assert product([2.0**-24], [1.0], half) == 2.0**-24
    assert product([2.0**-12], [2.0**-12], half) == 2.0**-24
    assert product([2.0**-12], [2.0**-13], half) == 0  # a tie
    assert product([3 * 2.0**-12], [2.0**-13], half) == 2.0**-23  # the other one
    assert product([2.0**-133], [2.0**100], brain) == 2.0**-33
    assert product([65504.0, 15.0], [1.0, 1.0], half) == 65504
    assert product([65504.0, 16.0], [1.0, 1.0], half) == float("inf")
    assert product([-300.0], [300.0], half) == float("-inf")
    largest = torch.finfo(brain).max
    assert product([largest], [1.0], brain) == largest
    assert product([largest, largest], [1.0, 2.0**-9], brain) == largest
    assert product([largest, largest], [1.0, 2.0**-8], brain) == float("inf")


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_every_number_survives_a_product_with_one(device, dtype):
    numbers = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    one = torch.ones(1, 1, dtype=dtype, device=device)
    for left in (numbers[:, None], numbers[:, None].expand(-1, 2)[:, :1]):
        out = torch.mm(left.to(device), one).cpu()[:, 0]
        torch.testing.assert_close(out, numbers, rtol=0, atol=0, equal_nan=True)
    wide = torch.mm(one.expand(16, 1), numbers[None].to(device)).cpu()
    torch.testing.assert_close(wide, numbers.expand(16, -1), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_refuses_what_pytorch_refuses(device, dtype):
    a, b = torch.ones(3, 4, dtype=dtype), torch.ones(5, 6, dtype=dtype)
    for function in (
        lambda a, b: torch.mm(a, b),
        lambda a, b: torch.mm(a, b[0]),
        lambda a, b: torch.bmm(a[None], b[None]),
        lambda a, b: torch.mv(a, b[0]),
        lambda a, b: torch.dot(a[0], b[0]),
        lambda a, b: torch.addmm(b, a, a.t()),
        lambda a, b: a[:, :3].addmm_(a[:1], a.t()),
        lambda a, b: torch.mm(a, b.float()[:4]),
        lambda a, b: torch.mm(a, a.t(), out=a[:, :1].expand(3, 3)),
    ):
        with pytest.raises(RuntimeError) as on_cpu:
            function(a, b)
        with pytest.raises(RuntimeError) as on_device:
            function(a.to(device), b.to(device))
            torch.neuron.synchronize()
        first_line = str(on_cpu.value).splitlines()[0]
        assert str(on_device.value).startswith(first_line)  # the call and its device stand behind it


@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize("gelu", [False, True])
def test_activation_is_computed_before_the_rounding(device, dtype, gelu):
    c, a, b = random(65, dtype=dtype), random(33, 40, dtype=dtype) / 4, random(40, 65, dtype=dtype)
    out = torch._addmm_activation(c.to(device), a.to(device), b.to(device), use_gelu=gelu)
    wide = torch.addmm(c.double(), a.double(), b.double())
    expected = F.gelu(wide, approximate="tanh") if gelu else F.relu(wide)
    assert_rounded_once(out, expected, wide.abs() + 4, 41)


def as_float8(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x.clamp(-400, 400).to(dtype)


@pytest.mark.parametrize(("left", "right"), [(E4M3, E4M3), (E5M2, E4M3), (E4M3, E5M2)], ids=str)
@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16, torch.float16, E4M3, E5M2], ids=str)
@pytest.mark.parametrize("scaling", ["tensor", "rows"])
@pytest.mark.parametrize("shape", [(48, 160, 80), (3, 32, 16), (300, 64, 1040)], ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_scaled_product_of_float8(device, left, right, out_dtype, scaling, shape, bias):
    m, k, n = shape
    a, b = as_float8(torch.randn(m, k), left), as_float8(torch.randn(n, k), right).t()
    scale_a = torch.rand(m, 1) + 0.5 if scaling == "rows" else torch.tensor(0.5)
    scale_b = torch.rand(1, n) + 0.5 if scaling == "rows" else torch.tensor(1.5)
    added = torch.randn(n).to(torch.bfloat16) if bias else None
    out = torch._scaled_mm(
        a.to(device),
        b.to(device),
        scale_a.to(device),
        scale_b.to(device),
        bias=None if added is None else added.to(device),
        out_dtype=out_dtype,
    )
    assert out.dtype == out_dtype
    scales = scale_a.double() * scale_b.double()
    expected, magnitude = a.double() @ b.double() * scales, a.double().abs() @ b.double().abs() * scales
    if added is not None:
        expected, magnitude = expected + added.double(), magnitude + added.double().abs()
    assert_rounded_once(out, expected, magnitude, k + 1)


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_every_float8_number_is_read_right(device, dtype):
    numbers = torch.arange(256, dtype=torch.uint8).view(dtype)
    one, scale = torch.ones(1, 1).to(dtype).to(device), torch.ones((), device=device)
    for rows in (1, 40):
        right = numbers[None].to(device)
        out = torch._scaled_mm(one.expand(rows, 1), right, scale, scale, out_dtype=torch.float32)
        torch.testing.assert_close(out.cpu(), numbers.float().expand(rows, -1), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, E4M3, E5M2], ids=str)
def test_rounding_is_that_of_pytorch(device, dtype):
    patterns = torch.randint(-(2**31), 2**31, (1 << 16,), dtype=torch.int64).to(torch.int32).view(torch.float32)
    near = torch.randn(1 << 16) * torch.exp2(torch.randint(-30, 20, (1 << 16,)).float())
    # Halfway between neighbours of the format: an even and an odd one on either side.
    codes = torch.arange(0, 256, dtype=torch.uint8)
    if dtype in LOW:
        grid = torch.randint(0, 2**15, (1 << 14,), dtype=torch.int16)
        low, high = grid.view(dtype).double(), (grid + 1).view(dtype).double()
    else:
        low, high = codes[:-1].view(dtype).double(), codes[1:].view(dtype).double()
    ties = ((low + high) / 2).float()
    edges = torch.tensor([0.0, math.inf, -math.inf, math.nan, 448, 464, 464.01, 480, 57344, 61440, 65519.9])
    numbers = torch.cat([patterns, near, ties, -ties, edges])
    # A product of ones, scaled by the number to be rounded.
    ones, one = torch.ones(len(numbers), 1).to(E4M3), torch.ones(1, 1)
    out = torch._scaled_mm(
        ones.to(device), one.to(E4M3).to(device), numbers[:, None].to(device), one.to(device), out_dtype=dtype
    )
    actual, expected = out.cpu()[:, 0].float(), numbers.to(dtype).float()
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


CONVOLUTIONS = {
    "1d": ((3, 6, 40), (8, 6, 5), {"stride": 2, "padding": 2}),
    "2d": ((2, 8, 17, 15), (12, 8, 3, 3), {"padding": 1}),
    "2d 1x1": ((2, 64, 8, 8), (32, 64, 1, 1), {}),
    "2d stride dilation": ((2, 4, 20, 19), (6, 4, 3, 3), {"stride": (2, 1), "dilation": (1, 2), "padding": (0, 2)}),
    "2d groups": ((2, 8, 12, 12), (16, 2, 3, 3), {"groups": 4}),
    "2d depthwise": ((2, 16, 12, 12), (16, 1, 3, 3), {"groups": 16, "padding": 1}),
    "3d": ((1, 3, 6, 7, 8), (5, 3, 3, 3, 3), {"padding": 1, "stride": 2}),
}
TRANSPOSED = {
    "1d": ((3, 6, 20), (6, 8, 5), {"stride": 2, "padding": 1, "output_padding": 1}),
    "2d": ((2, 8, 9, 7), (8, 5, 3, 3), {"stride": 2}),
    "2d groups": ((2, 8, 9, 7), (8, 3, 3, 3), {"groups": 2, "dilation": 2}),
    "3d": ((1, 3, 4, 5, 4), (3, 5, 3, 3, 3), {}),
}


@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolution_and_its_gradients(device, dtype, case):
    x, w, options = CONVOLUTIONS[case]
    function = (F.conv1d, F.conv2d, F.conv3d)[len(x) - 3]
    inputs = [random(*s, dtype=dtype) for s in (x, w, w[:1])]
    depth, positions = math.prod(w[1:]), x[0] * math.prod(x[2:])
    check(
        lambda x, w, b: function(x, w, b, **options),
        *inputs,
        device=device,
        depth=depth + 1,
        backward=True,
        gradient_depth=max(positions, w[0] * math.prod(w[2:])),
    )


@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize("case", TRANSPOSED)
def test_transposed_convolution_and_its_gradients(device, dtype, case):
    x, w, options = TRANSPOSED[case]
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[len(x) - 3]
    outputs = w[1] * options.get("groups", 1)
    inputs = [random(*s, dtype=dtype) for s in (x, w, (outputs,))]
    depth = w[0] * math.prod(w[2:])
    check(
        lambda x, w, b: function(x, w, b, **options),
        *inputs,
        device=device,
        depth=depth + 1,
        backward=True,
        gradient_depth=max(depth, 4 * x[0] * math.prod(x[2:])),
    )


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_convolution_keeps_the_memory_format(device, dtype):
    x, w = random(2, 8, 10, 12, dtype=dtype), random(6, 8, 3, 3, dtype=dtype)
    x = x.to(memory_format=torch.channels_last)
    check(F.conv2d, x, w, device=device, depth=72, backward=True, gradient_depth=240)
    out = F.conv2d(x.to(device), w.to(device))
    assert out.is_contiguous(memory_format=torch.channels_last)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, causal: bool) -> Any:
    """Scaled dot product attention, written out."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(-1) @ v


def attention_mask(kind: str | None, dtype: torch.dtype, queries: int, keys: int) -> torch.Tensor | None:
    if kind == "boolean":
        mask = torch.rand(queries, keys) > 0.3
        mask[:, 0] = True  # at least one key for each query
        return mask
    return random(2, 1, queries, keys, dtype=dtype) if kind == "additive" else None


@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize(
    ("causal", "mask"), [(False, None), (True, None), (False, "boolean"), (False, "additive")], ids=str
)
@pytest.mark.parametrize("key_heads", [4, 2])
@pytest.mark.parametrize(("queries", "keys", "size"), [(33, 33, 16), (1, 70, 64), (130, 257, 32)])
def test_attention_and_its_gradients(device, dtype, causal, mask, key_heads, queries, keys, size):
    if causal and queries != keys:
        keys = queries
    q = random(2, 4, queries, size, dtype=dtype)
    k, v = random(2, key_heads, keys, size, dtype=dtype), random(2, key_heads, keys, size, dtype=dtype)
    added = attention_mask(mask, dtype, queries, keys)
    grad = random(2, 4, queries, size, dtype=dtype)

    wide = [x.double().requires_grad_() for x in (q, k, v)]
    wide_mask = added.double() if mask == "additive" else added
    expected = attention(*wide, wide_mask, causal)
    expected_grads = torch.autograd.grad(expected, wide, grad.double())

    low = [x.to(device).requires_grad_() for x in (q, k, v)]
    low_mask = None if added is None else added.to(device)
    out = F.scaled_dot_product_attention(
        *low, attn_mask=low_mask, is_causal=causal, dropout_p=0.0, enable_gqa=key_heads != 4
    )
    assert out.dtype == dtype
    # Weights add up to 1, and each carries the error of an exponential of a sum of `size` terms.
    magnitude = v.double().abs().amax().expand_as(expected) * 16
    assert_rounded_once(out, expected.detach(), magnitude, size)
    for name, actual, reference in zip(
        "qkv", torch.autograd.grad(out, low, grad.to(device)), expected_grads, strict=True
    ):
        # The rounded output is an operand of the backward pass, so its error is in all gradients.
        error, scale = (actual.cpu().double() - reference).abs().max(), reference.abs().max()
        allowed = 2 * torch.finfo(dtype).eps * scale + WALK * size
        assert error <= allowed, f"gradient of {name}: off by {error:.2e}, allowed {allowed:.2e}"


def test_chip_numerics_round_once_on_every_cpu(tmp_path):
    result = run_python(
        """
        import torch

        torch.manual_seed(0)
        a, b = torch.randn(64, 4096).bfloat16(), torch.randn(4096, 48).bfloat16()
        exact = a.double() @ b.double()
        step = torch.exp2(torch.frexp(exact)[1].double() - 1) * torch.finfo(torch.bfloat16).eps
        for function in (torch.mm, lambda a, b: torch.addmm(torch.zeros(48, dtype=a.dtype, device=a.device), a, b)):
            error = (function(a.to("neuron"), b.to("neuron")).cpu().double() - exact).abs()
            print(bool((error <= 0.501 * step + 1e-4).all()))
        """,
        directory=tmp_path,
        env={"NEURON_EMU_NUMERICS": "chip"},
    )
    assert result.stdout.split() == ["True", "True"], result.stderr


def test_unknown_numerics_are_an_error(tmp_path):
    result = run_python(
        """
        import torch

        try:
            torch.ones(1, device="neuron")
        except RuntimeError as error:
            print(error)
        """,
        directory=tmp_path,
        env={"NEURON_EMU_NUMERICS": "exact"},
    )
    assert "NEURON_EMU_NUMERICS" in result.stdout
    assert "cpu or chip" in result.stdout
