"""Functions of kernels against PyTorch's in double precision: errors in units in the last place, and special values."""

import math

import numpy as np
import pytest
import torch
from jit_kernels import OPS, Builder, run

from torch_neuronx.jit import available
from torch_neuronx.jit.kernel_code import ELEMENTWISE
from torch_neuronx.jit.stage import Lane

pytestmark = [pytest.mark.neuron_only, pytest.mark.skipif(not available(), reason="needs llvmlite")]

# Errors in f32, in units in the last place. The C library's functions are among them.
BOUNDS = {
    "exp": 1.1,
    "exp2": 1.1,
    "expm1": 1.5,
    "log": 1.0,
    "log2": 1.7,
    "log10": 1.7,
    "log1p": 1.5,
    "sin": 1.7,
    "cos": 1.7,
    "tan": 0.6,
    "asin": 1.0,
    "acos": 1.5,
    "atan": 1.0,
    "sinh": 2.0,
    "cosh": 2.0,
    "tanh": 2.5,
    "asinh": 2.0,
    "acosh": 2.0,
    "atanh": 2.0,
    "erf": 1.5,
    "erfc": 1.5,
    "erfinv": 3.5,
    "sigmoid": 2.5,
    "sqrt": 0.5,
    "rsqrt": 1.5,
    "reciprocal": 0.5,
    "digamma": 0.6,
}
# Where there is an absolute bound only: near the zeros of lgamma.
ABSOLUTE = {"lgamma": 1e-6}
BINARY_BOUNDS = {"pow": 0.6, "atan2": 1.5, "hypot": 1.0, "div": 0.5}

SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 4.0, 2.5, -2.5]
SPECIAL += [1e-45, -1e-45, 1.1754942e-38, 1.1754944e-38, -1.1754944e-38, 3.4028235e38, -3.4028235e38, 1e30, -1e30]
SPECIAL += [88.722, 88.723, 88.73, -87.33, -87.34, -103.97, -103.98, 128.0, 127.99999, -126.0, -149.0, -150.0, -151.0]
SPECIAL += [0.99999994, 1.0000001, -0.99999994, 16777216.0, 16777217.0, 8388609.0, 4194304.5]


def samples() -> torch.Tensor:
    """Floats of all magnitudes, and more of those where functions have their shape."""
    bits = torch.arange(-(2**31), 2**31, 39989, dtype=torch.int64).to(torch.int32)
    generator = torch.Generator().manual_seed(0)
    near = [torch.randn(50_000, generator=generator) * scale for scale in (0.1, 1, 10, 100)]
    unit = torch.rand(50_000, generator=generator) * 2 - 1
    return torch.cat([torch.tensor(SPECIAL), bits.view(torch.float32), *near, unit, torch.linspace(-110, 110, 30_001)])


def call(op: str, *args: torch.Tensor) -> torch.Tensor:
    lane = {torch.float32: Lane.F32, torch.float64: Lane.F64, torch.int64: Lane.I64}[args[0].dtype]
    result = ELEMENTWISE[op].result
    out = torch.zeros(args[0].shape, dtype=torch.bool if result == Lane.B8 else args[0].dtype)
    b = Builder(out.numel())
    operands = [b.like(arg) for arg in args]
    o = b.like(out)
    values = [b.load(operand) for operand in operands]
    fields = {"source": lane} if result else {}
    b.store(o, b.add(op, *values, lane=result or lane, **fields))
    run(b, [*args, out])
    return out


def errors(found: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """In units in the last place of f32; infinite where only one of the two is a number."""
    rounded = exact.float()
    unit = torch.from_numpy(np.spacing(np.nan_to_num(np.abs(rounded.numpy())).clip(max=3e38)))
    error = (found.double() - exact).abs() / unit.double()
    same = (found == rounded) | (found.isnan() & exact.isnan())
    # A number beyond the largest one may be that, or infinite.
    largest = (found.abs() >= 3.4028234e38) & (exact.abs() >= 3.4028234e38) & (found.sign() == exact.sign())
    error = torch.where(found.isfinite() & exact.isfinite(), error, torch.inf)
    return torch.where(same | largest, 0, error)


def assert_close(found: torch.Tensor, exact: torch.Tensor, bound: float, *args: torch.Tensor) -> None:
    error = errors(found, exact)
    worst = int(error.argmax())
    at = ", ".join(repr(arg[worst].item()) for arg in args)
    assert error[worst] <= bound, f"{error[worst]} units at {at}: {found[worst]} for {exact[worst]}"


@pytest.mark.parametrize("op", BOUNDS)
def test_unary(op: str):
    x = samples()
    if op in ("sin", "cos", "tan"):
        # Beyond, f32 has not one number in each period.
        x = x[(x.abs() < 2.0**30) | ~x.isfinite()]
    assert_close(call(op, x), OPS[op](x.double()), BOUNDS[op], x)


@pytest.mark.parametrize("op", ["sin", "cos", "tan"])
def test_angles_beyond_all_reason(op: str):
    x = torch.tensor([1e20, -1e20, 3e38, 1e16])
    found = call(op, x)
    assert found.isfinite().all()
    assert op == "tan" or (found.abs() <= 1).all()


@pytest.mark.parametrize("op", ABSOLUTE)
def test_unary_absolute(op: str):
    x = samples()
    x = x[(x.abs() < 100) | ~x.isfinite()]
    found, exact = call(op, x), OPS[op](x.double())
    torch.testing.assert_close(found.double(), exact, rtol=ABSOLUTE[op], atol=ABSOLUTE[op], equal_nan=True)


@pytest.mark.parametrize("op", [op for op, rule in ELEMENTWISE.items() if rule.arity == 1 and Lane.F32 in rule.lanes])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sign_of_zero_is_that_of_pytorch(op: str, dtype: torch.dtype):
    x = torch.tensor([0.0, -0.0], dtype=dtype)
    found, expected = call(op, x), OPS[op](x)
    assert torch.equal(found, expected) or (found.isnan() & expected.isnan()).all()
    if dtype.is_floating_point and found.dtype == dtype and not found.isnan().any():
        assert torch.equal(found.signbit(), expected.signbit())


@pytest.mark.parametrize("op", [op for op, rule in ELEMENTWISE.items() if rule.arity == 1 and Lane.F64 in rule.lanes])
def test_unary_of_double_precision(op: str):
    x = torch.cat([torch.tensor(SPECIAL, dtype=torch.float64), torch.linspace(-20, 20, 4001, dtype=torch.float64)])
    x = torch.cat([x, torch.linspace(-1, 1, 1001, dtype=torch.float64)])
    if op in ("sin", "cos", "tan"):
        x = x[x.abs() < 1e6]
    tolerance = {"digamma": 1e-12, "lgamma": 1e-13}.get(op, 1e-14)
    torch.testing.assert_close(call(op, x), OPS[op](x), rtol=tolerance, atol=1e-15, equal_nan=True)


# Those that PyTorch computes as we do: equal to the last bit.
EXACT = ["neg", "abs", "sign", "floor", "ceil", "trunc", "nearest", "isnan", "isinf", "signbit", "reciprocal"]
EXACT_BINARY = ["add", "sub", "mul", "div", "min", "max", "floordiv", "mod", "fmod", "truncdiv", "copysign"]
EXACT_BINARY += ["eq", "ne", "lt", "le", "gt", "ge"]


@pytest.mark.parametrize("op", EXACT)
def test_exact(op: str):
    x = samples()
    torch.testing.assert_close(call(op, x), OPS[op](x), rtol=0, atol=0, equal_nan=True)


def pairs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    special = torch.tensor(SPECIAL)
    x = [special.repeat_interleave(len(special)), torch.randn(30_000, generator=generator) * 10]
    y = [special.repeat(len(special)), torch.randn(30_000, generator=generator) * 5]
    x.append(torch.rand(30_000, generator=generator) * 4 - 2)
    y.append(torch.randint(-20, 21, (30_000,), generator=generator) / 2)
    return torch.cat(x), torch.cat(y)


def remainder(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    rest = fmod(x, y)
    return torch.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


def fmod(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    # PyTorch's own gives NaN where the quotient overflows.
    with np.errstate(invalid="ignore"):
        return torch.from_numpy(np.fmod(x.numpy(), y.numpy()))


@pytest.mark.parametrize("op", EXACT_BINARY)
def test_exact_binary(op: str):
    x, y = pairs()
    expected = {"fmod": fmod, "mod": remainder}.get(op, OPS[op])(x, y)
    if op == "floordiv":
        # Where the quotient overflows, PyTorch's vectors and its loops over single elements differ.
        finite = x.isfinite() & y.isfinite() & (x / y).isfinite()
        x, y, expected = x[finite], y[finite], expected[finite]
    torch.testing.assert_close(call(op, x, y), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("op", BINARY_BOUNDS)
def test_binary(op: str):
    x, y = pairs()
    exact = OPS[op](x.double(), y.double())
    found = call(op, x, y)
    assert_close(found, exact, BINARY_BOUNDS[op], x, y)
    number = ~exact.isnan()
    assert torch.equal(found.signbit()[number], exact.signbit()[number])


def test_pow_of_double_precision():
    x, y = (t.double() for t in pairs())
    torch.testing.assert_close(call("pow", x, y), x**y, rtol=1e-15, atol=0, equal_nan=True)


def test_fma_rounds_once():
    x = torch.tensor([1 + 2.0**-23])
    assert call("fma", x, x, -(x * x)).item() == 2.0**-46


def test_every_function_is_tested():
    tested = {*BOUNDS, *ABSOLUTE, *BINARY_BOUNDS, *EXACT, *EXACT_BINARY, "fma"}
    floats = {op for op, rule in ELEMENTWISE.items() if Lane.F32 in rule.lanes}
    assert floats <= tested
