"""Number formats: arithmetic, promotion, special values, empties."""

import pytest
import torch
from comparison import assert_same, assert_same_as_cpu

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)

SPECIAL = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, -1.0, -2.5, 1.0, 0.5, 3.0, 1e-7, -1e-7, 6e4, -6e4]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    "function",
    [
        "sigmoid",
        "cos",
        "sin",
        "tan",
        "log",
        "log1p",
        "exp",
        "sqrt",
        "rsqrt",
        "tanh",
        "reciprocal",
        "erf",
        "relu",
        "abs",
        "neg",
        "floor",
        "round",
        "sign",
        "isnan",
        "isinf",
        "isfinite",
        "signbit",
        "lgamma",
        "acos",
        "atan",
    ],
)
def test_special_values_follow_ieee(device, dtype, function):  # S12
    # 14 elements leave a remainder after any vector width; 30 copies also fill whole vectors.
    assert_same_as_cpu(getattr(torch, function), torch.tensor(SPECIAL, dtype=dtype), device=device)
    assert_same_as_cpu(getattr(torch, function), torch.tensor(SPECIAL * 30, dtype=dtype), device=device)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_multiplying_by_nan_gives_nan(device, dtype):  # S12
    x = torch.tensor([1.0, 0.0, -3.0], dtype=dtype, device=device)
    assert torch.isnan(x.mul_(float("nan"))).all()
    assert_same_as_cpu(lambda x: x * float("inf"), torch.tensor(SPECIAL, dtype=dtype), device=device)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("function", ["maximum", "minimum", "fmax", "fmin", "pow", "fmod", "remainder", "atan2"])
def test_special_values_in_binary_ops(device, dtype, function):  # S12
    x = torch.tensor(SPECIAL, dtype=dtype)
    assert_same_as_cpu(getattr(torch, function), x[:, None], x[None, :], device=device)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_comparisons_with_nan(device, dtype):  # S12
    x = torch.tensor(SPECIAL, dtype=dtype)
    for compare in (torch.lt, torch.le, torch.eq, torch.ne, torch.gt, torch.ge):
        assert_same_as_cpu(compare, x[:, None], x[None, :], device=device)
    assert_same_as_cpu(lambda x: (x.max(), x.min(), x.argmax(), x.sort()), x, device=device)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_arithmetic_wraps_around(device, dtype):
    info = torch.iinfo(dtype)
    x = torch.tensor([info.min, info.max, 0, 1, 7, info.max // 2], dtype=dtype)
    for function in (
        lambda x: x + x,
        lambda x: x * 3,
        lambda x: x - 1,
        lambda x: x // 2,
        lambda x: x % 5,
        lambda x: x & 6,
        lambda x: ~x,
        lambda x: x << 1,
        lambda x: x >> 1,
        lambda x: x / 2,
        lambda x: x.sum(),
        lambda x: x.cumsum(0),
        lambda x: x.to(torch.bool),
    ):
        assert_same_as_cpu(function, x, device=device)


@pytest.mark.parametrize("left", [torch.bool, *INTEGERS, *FLOATS, torch.complex64], ids=str)
def test_type_promotion(device, left):
    a = torch.ones(3).to(left)
    for right in (torch.bool, *INTEGERS, *FLOATS, torch.complex64):
        b = torch.tensor([1, 0, 1]).to(right)
        assert_same_as_cpu(lambda a, b: (a * b, a[0] * b, a * b[0]), a, b, device=device)
    for scalar in (True, 3, 0.5):
        assert_same_as_cpu(lambda a, s=scalar: (a * s, s * a), a, device=device)


def test_scalar_tensor_on_the_cpu_may_be_mixed_in(device):  # S2
    x = torch.randn(5)
    half = torch.tensor(0.125)
    assert_same(x.to(device) * half, x * half)
    assert_same(half * x.to(device), half * x)
    assert_same(x.to(device) + torch.tensor(2), x + torch.tensor(2))
    assert_same(torch.add(x.to(device), half, alpha=3), torch.add(x, half, alpha=3))
    assert_same(x.to(device, copy=True).mul_(half), x * half)
    assert_same(torch.where(x.to(device) > 0, x.to(device), half), torch.where(x > 0, x, half))
    assert (x.to(device) * half).device.type == device.type


def test_equality_of_integers_is_exact(device):  # S8
    x = torch.tensor([[0, 1, 2], [3, 1, 4]], device=device).unsqueeze(-1) == 1
    assert x.dtype == torch.bool
    assert x.tolist() == [[[False], [True], [False]], [[False], [True], [False]]]


def test_float64_is_honoured(device):  # S11
    x = torch.zeros(2, dtype=torch.float64, device=device)
    assert x.dtype == torch.float64
    x += 1e-12
    x += 1
    assert x.tolist() == [1e-12 + 1] * 2
    assert_same_as_cpu(lambda x: x @ x, torch.randn(9, 9, dtype=torch.float64), device=device)


def test_int64_is_honoured(device):
    x = torch.tensor([2**53 + 1, -(2**62)], device=device)
    assert (x + 1).tolist() == [2**53 + 2, -(2**62) + 1]
    assert x.sum().item() == 2**53 + 1 - 2**62


EMPTIES = {
    "zeros": lambda d: torch.zeros(0, 3, device=d),
    "tensor": lambda d: torch.tensor([], device=d),
    "arange": lambda d: torch.arange(0, device=d),
    "rand": lambda d: torch.rand(0, device=d),
    "randn": lambda d: torch.randn(2, 0, 3, device=d),
    "randperm": lambda d: torch.randperm(0, device=d),
    "sum": lambda d: torch.zeros(0, 3, device=d).sum(),
    "sum over the empty dimension": lambda d: torch.zeros(0, 3, device=d).sum(0),
    "mean": lambda d: torch.zeros(0, device=d).mean(),
    "prod": lambda d: torch.zeros(0, device=d).prod(),
    "all": lambda d: torch.zeros(0, device=d).all(),
    "any": lambda d: torch.zeros(0, device=d).any(),
    "cumsum": lambda d: torch.zeros(0, 3, device=d).cumsum(1),
    "sort": lambda d: torch.zeros(0, device=d).sort(),
    "topk": lambda d: torch.zeros(2, 0, device=d).topk(0),
    "max over a full dimension": lambda d: torch.zeros(0, 3, device=d).max(1),
    "mm": lambda d: torch.zeros(0, 3, device=d) @ torch.zeros(3, 4, device=d),
    "mm over an empty dimension": lambda d: torch.ones(2, 0, device=d) @ torch.ones(0, 4, device=d),
    "bmm": lambda d: torch.zeros(0, 2, 3, device=d) @ torch.zeros(0, 3, 2, device=d),
    "add": lambda d: torch.zeros(0, 3, device=d) + 1,
    "cat with": lambda d: torch.cat([torch.ones(2, 3, device=d), torch.zeros(0, 3, device=d)]),
    "nonzero": lambda d: torch.zeros(3, device=d).nonzero(),
    "mask": lambda d: torch.ones(3, device=d)[torch.zeros(3, dtype=torch.bool, device=d)],
    "softmax": lambda d: torch.zeros(0, 3, device=d).softmax(1),
    "linear": lambda d: torch.nn.functional.linear(torch.zeros(0, 3, device=d), torch.ones(2, 3, device=d)),
    "embedding": lambda d: torch.nn.functional.embedding(
        torch.zeros(0, dtype=torch.int64, device=d), torch.ones(4, 2, device=d)
    ),
    "foreach": lambda d: torch._foreach_add([torch.zeros(0, device=d), torch.ones(1, device=d)], 1),
}


@pytest.mark.parametrize("name", EMPTIES)
def test_empty_tensors(device, name):  # S17
    torch.manual_seed(3)
    expected = EMPTIES[name]("cpu")
    for _ in range(2):
        torch.manual_seed(3)
        assert_same(EMPTIES[name](device), expected)


@pytest.mark.parametrize("function", ["max", "min", "argmax", "aminmax"])
def test_reductions_without_identity_refuse_empties(device, function):  # S17
    with pytest.raises((RuntimeError, IndexError)) as on_cpu:
        getattr(torch.zeros(0), function)()
    for _ in range(2):
        with pytest.raises(on_cpu.type):
            getattr(torch.zeros(0, device=device), function)()


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_complex_arithmetic(device, dtype):
    z, w = torch.randn(5, 5, dtype=dtype), torch.randn(5, 5, dtype=dtype)
    for function in (
        lambda z, w: z * w + w.conj(),
        lambda z, w: z @ w.mH,
        lambda z, w: (z.abs(), z.angle(), z.real, z.imag),
        lambda z, w: torch.view_as_real(z.conj().resolve_conj()),
        lambda z, w: torch.polar(z.abs(), z.angle()),
        lambda z, w: z.exp() / w,
        lambda z, w: z.conj().sum(),
        lambda z, w: z.conj().imag + 1,
        lambda z, w: torch.vdot(z[0], w[0]),
    ):
        assert_same_as_cpu(function, z, w, device=device)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_float8_is_stored_and_converted(device, dtype):
    x = torch.randn(64) * 4
    assert_same_as_cpu(lambda x: x.to(dtype).to(torch.float32), x, device=device)
    assert_same_as_cpu(lambda x: x.to(dtype)[::2].clone().view(torch.uint8), x, device=device)


def test_default_dtype_is_followed(device):
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.zeros(2, device=device).dtype == torch.float64
        assert_same_as_cpu(lambda x: x / 3, torch.arange(4), device=device)
    finally:
        torch.set_default_dtype(torch.float32)
    assert_same_as_cpu(lambda x: x / 3, torch.arange(4), device=device)


def test_default_dtype_does_not_leak_into_cached_launches(device):
    x = torch.arange(4, device=device)
    assert (x / 3).dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert (x / 3).dtype == torch.float64
        assert_same((x / 3), torch.arange(4) / 3)
    finally:
        torch.set_default_dtype(torch.float32)
    assert (x / 3).dtype == torch.float32


def test_out_argument_takes_over_the_conjugate_bit_that_a_kernel_sets(device):
    a, b = torch.randn(3, 3, dtype=torch.cfloat), torch.randn(2, 3, dtype=torch.cfloat)

    def program(a, b):
        lu, pivots = torch.linalg.lu_factor(a)
        out = torch.empty(0, dtype=b.dtype, device=b.device)
        torch.linalg.lu_solve(lu, pivots, b, left=False, out=out)
        return out.resolve_conj(), out.is_conj()

    (expected, conjugate), (values, same) = program(a, b), program(a.to(device), b.to(device))
    assert same == conjugate
    torch.testing.assert_close(values.cpu(), expected)
