"""Machine code of kernels: loops, passes, memory and integers; mathematics is in test_jit_kernel_math.py."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from jit_kernels import Builder, assert_same, random, reduction, row_kernel, run, split, verify
from jit_stages import DTYPES

from torch_neuronx.jit import available, llvm
from torch_neuronx.jit.kernel import Variable
from torch_neuronx.jit.kernel_code import ELEMENTWISE, kernel_code
from torch_neuronx.jit.stage import Lane

pytestmark = [pytest.mark.neuron_only, pytest.mark.skipif(not available(), reason="needs llvmlite")]

F32, F64, I64, B8 = Lane.F32, Lane.F64, Lane.I64, Lane.B8

# -- Pointwise --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 33, 1000])
@pytest.mark.parametrize("variable", [False, True])
def test_one_dimension(length: int, variable: bool):
    b = Builder(Variable(0) if variable else length)
    x, y, out = random(length), random(length, seed=1), torch.full((length + 2,), 7.0)
    a, c, o = b.operand(x.dtype, (1,)), b.operand(x.dtype, (1,)), b.operand(x.dtype, (1,), offset=1)
    b.store(o, b.add("mul", b.add("add", b.load(a), b.load(c)), b.constant(0.5)))
    verify(b, [x, y, out], (length,))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_load_and_store_every_type(dtype: torch.dtype):
    x = random(3, 37, dtype=dtype)
    out = torch.zeros_like(x)
    b = Builder(3, 37)
    a, o = b.like(x), b.like(out)
    value = b.load(a)
    b.store(o, b.add("xor", value, b.constant(True, B8)) if dtype == torch.bool else b.add("add", value, value))
    verify(b, [x, out])


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_stores_round_to_nearest_even(dtype: str):
    bits = torch.arange(2**16, dtype=torch.int32).to(torch.int16)
    exact = bits.view(DTYPES[dtype]).float()
    step = torch.nextafter(exact, torch.tensor(torch.inf))
    half = torch.where(exact.isfinite(), exact + (bits.roll(-1).view(DTYPES[dtype]).float() - exact) / 2, exact)
    x = torch.cat([exact, step, half, torch.nextafter(half, torch.tensor(-torch.inf))])
    out = torch.zeros_like(x, dtype=DTYPES[dtype])
    b = Builder(len(x))
    a, o = b.like(x), b.like(out)
    b.store(o, b.load(a))
    run(b, [x, out])
    assert torch.equal(torch.isnan(out), torch.isnan(x))
    assert torch.equal(out.nan_to_num(0), x.to(DTYPES[dtype]).nan_to_num(0))


VIEWS: dict[str, Callable[[], tuple[torch.Tensor, ...]]] = {
    "transposed": lambda: (random(5, 4, 33).permute(1, 0, 2), random(33, 5, 4).permute(2, 1, 0)),
    "row": lambda: (random(4, 5, 33), random(33).expand(4, 5, 33)),
    "column": lambda: (random(4, 5, 33), random(4, 5, 1).expand(4, 5, 33)),
    "scalar": lambda: (random(4, 5, 33), random(1, 1, 1).expand(4, 5, 33)),
    "middle": lambda: (random(4, 1, 33).expand(4, 5, 33), random(1, 5, 1).expand(4, 5, 33)),
    "every other": lambda: (random(4, 5, 66)[:, :, ::2], random(8, 5, 33)[::2]),
    "size one": lambda: (random(1, 5, 1), random(1, 5, 1)),
}


@pytest.mark.parametrize("variable", [False, True])
@pytest.mark.parametrize("view", VIEWS)
def test_strides(view: str, variable: bool):
    x, y = VIEWS[view]()
    out = torch.zeros(x.shape)
    ints: list[int] = []

    def number(value: int) -> int | Variable:
        # What does not decide how the loops look may differ from call to call.
        if not variable or value in (0, 1):
            return value
        ints.append(value)
        return Variable(len(ints) - 1)

    b = Builder(*map(number, x.shape))
    a, c, o = (b.operand(t.dtype, tuple(map(number, t.stride()))) for t in (x, y, out))
    b.store(o, b.add("sub", b.load(a), b.add("mul", b.load(c), b.load(c))))
    verify(b, [x, y, out], tuple(ints))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("shape", [(2, 64, 96), (3, 40, 50), (2, 20, 32)])
@pytest.mark.parametrize("variable", [False, True])
def test_transposed_operands(shape: tuple[int, int, int], dtype: torch.dtype, variable: bool):
    batch, rows, columns = shape
    x = random(batch, columns, rows, dtype=dtype).mT  # read in tiles
    y = random(columns, rows, dtype=dtype, seed=1).T.expand(shape)  # so is this
    z, w = random(rows, batch, columns, seed=2).permute(1, 0, 2), random(1, rows, 1, seed=3).expand(shape)
    out = torch.zeros(shape)
    b = Builder(*(map(Variable, range(3)) if variable else shape))
    operands = [b.load(b.like(tensor)) for tensor in (x, y, z, w)]
    first, second = (v if dtype.is_floating_point else b.cast(v, F32) for v in operands[:2])
    product = b.add("mul", b.add("mul", first, second), b.add("sub", operands[2], operands[3]))
    row = b.cast(b.index(1), F32)
    b.store(b.like(out), b.add("add", product, row))
    verify(b, [x, y, z, w, out], shape, ranges=split(kernel_code(b.kernel()).units(shape)))


def test_operand_offset():
    x, out = random(100), torch.zeros(3, 5)
    b = Builder(3, 5)
    a, o = b.operand(x.dtype, (-7, Variable(1)), offset=Variable(0)), b.like(out)
    b.store(o, b.load(a))
    run(b, [x, out], (40, 2))
    expected = torch.stack([x[40 - 7 * r : 40 - 7 * r + 10 : 2] for r in range(3)])
    assert torch.equal(out, expected)


@pytest.mark.parametrize("shape", [(3, 5, 7), (2, 20000)])
@pytest.mark.parametrize("variable", [False, True])
def test_ranges_of_units(shape: tuple[int, ...], variable: bool):
    x, out = random(*shape), torch.zeros(shape)
    sizes = [Variable(k) for k in range(len(shape))] if variable else shape
    b = Builder(*sizes)
    a, o = b.like(x), b.like(out)
    b.store(o, b.add("neg", b.load(a)))
    units = kernel_code(b.kernel()).units(shape)
    assert units >= 3
    verify(b, [x, out], shape, ranges=split(units))


def test_range_writes_only_its_units():
    out = torch.zeros(6, 10)
    b = Builder(6, 10)
    b.store(b.like(out), b.constant(1.0))
    run(b, [out], ranges=[(2, 4)])
    assert torch.equal(out.sum(1), torch.tensor([0.0, 0, 10, 10, 0, 0]))


def test_in_place():
    x = random(4, 33)
    b = Builder(4, 33)
    a, o = b.like(x, alias=3), b.like(x, alias=3)
    b.store(o, b.add("mul", b.load(a), b.load(a)))
    expected = x * x
    run(b, [x, x])
    assert torch.equal(x, expected)
    assert "<8 x float>" in llvm.toolchain().optimize(kernel_code(b.kernel()).ir)


def test_several_stores():
    x, y, z = random(50), torch.zeros(50), torch.zeros(50, dtype=torch.int32)
    b = Builder(50)
    a, o, p = b.like(x), b.like(y), b.like(z)
    b.store(o, b.add("exp", b.load(a)))
    b.store(p, b.cast(b.add("mul", b.load(a), b.constant(100.0)), I64))
    verify(b, [x, y, z])


# -- Reductions -------------------------------------------------------------------------------------------------------

# Kept dimensions are those of the result; sizes leave remainders of vectors.
FORMS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "row": ((5, 67), (1,)),
    "whole": ((67,), (0,)),
    "last two": ((3, 5, 19), (1, 2)),
    "kept two": ((3, 5, 19), (2,)),
    "column": ((67, 21), (0,)),
    "wide column": ((9, 300), (0,)),
    "columns of two": ((3, 7, 150), (0, 1)),
    "middle": ((3, 11, 150), (1,)),
    "one column": ((67, 1), (0,)),
}
REDUCTIONS: dict[str, torch.dtype] = {
    "sum": torch.float32,
    "prod": torch.float32,
    "max": torch.float32,
    "min": torch.float32,
    "any": torch.bool,
    "all": torch.bool,
    "argmax": torch.float32,
    "argmin": torch.float32,
}


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize("form", FORMS)
def test_reduction(form: str, op: str):
    shape, reduced = FORMS[form]
    x = random(*shape, dtype=REDUCTIONS[op])
    if op == "prod":
        x = x.abs().clamp(0.5, 1.5)
    if op == "all":
        x |= random(*shape, seed=1) > -2
    b, out = reduction(op, x, reduced)
    verify(b, [x, out], ranges=split(kernel_code(b.kernel()).units(())))


@pytest.mark.parametrize("form", ["row", "last two", "column", "middle"])
@pytest.mark.parametrize("op", ["sum", "argmax"])
def test_reduction_of_variable_size(form: str, op: str):
    shape, reduced = FORMS[form]
    x = random(*shape)
    b, out = reduction(op, x, reduced, variable=True)
    verify(b, [x, out], shape)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.uint8, torch.bfloat16])
@pytest.mark.parametrize("op", ["sum", "max", "argmin"])
@pytest.mark.parametrize("form", ["row", "middle"])
def test_reduction_of_type(form: str, op: str, dtype: torch.dtype):
    shape, reduced = FORMS[form]
    x = random(*shape, dtype=dtype)
    b, out = reduction(op, x, reduced)
    verify(b, [x, out])


@pytest.mark.parametrize("form", ["row", "column"])
@pytest.mark.parametrize("op", ["max", "min", "argmax", "argmin"])
def test_nan_wins(form: str, op: str):
    shape, reduced = FORMS[form]
    x = random(*shape)
    x[2, 3] = x[2, 11] = x[4, 3] = x[60 % shape[0], 3] = torch.nan
    x[0, :] = torch.inf if "min" in op else -torch.inf
    b, out = reduction(op, x, reduced)
    verify(b, [x, out])


@pytest.mark.parametrize("form", ["row", "column", "last two"])
@pytest.mark.parametrize("op", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_first_of_equals(form: str, op: str, dtype: torch.dtype):
    shape, reduced = FORMS[form]
    x = (random(*shape) > 0).to(dtype)
    b, out = reduction(op, x, reduced)
    verify(b, [x, out])


@pytest.mark.parametrize("form", ["row", "column"])
@pytest.mark.parametrize("op", ["sum", "prod", "any", "all"])
def test_nothing_to_reduce(form: str, op: str):
    shape = (5, 0) if form == "row" else (0, 5)
    x = torch.zeros(shape, dtype=REDUCTIONS[op])
    b, out = reduction(op, x, FORMS[form][1])
    out.fill_(3)
    run(b, [x, out])
    assert out.flatten().tolist() == [{"sum": 0, "prod": 1, "any": False, "all": True}[op]] * 5


def test_nothing_kept():
    x = torch.zeros(0, 5)
    b, out = reduction("sum", x, (1,))
    assert kernel_code(b.kernel()).units(()) == 0
    run(b, [x, out])


@pytest.mark.parametrize("name", ["softmax", "log softmax", "layer norm", "norm of gelu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("length", [1, 64, 77])
def test_row_kernel(name: str, dtype: torch.dtype, length: int):
    x, out = random(9, length, dtype=dtype), torch.zeros(9, length, dtype=dtype)
    more = [random(length, dtype=dtype), random(9, dtype=dtype)] if name == "norm of gelu" else []
    b = row_kernel(name, (9, length), dtype)
    verify(b, [x, out, *more], ranges=split(9))


@pytest.mark.parametrize("name", ["softmax", "layer norm", "norm of gelu"])
def test_row_kernel_of_variable_size(name: str):
    b = row_kernel(name, (Variable(1), Variable(0)))
    for rows, length in [(3, 50), (5, 17)]:
        x, out = random(rows, length), torch.zeros(rows, length)
        more = [random(length), random(rows)] if name == "norm of gelu" else []
        verify(b, [x, out, *more], (length, rows))


def test_row_kernel_in_place():
    x = random(9, 77)
    expected = torch.softmax(x, 1)
    b = row_kernel("softmax", (9, 77))
    b.operands = [replace(operand, alias=0) for operand in b.operands]
    run(b, [x, x])
    assert_same(x, expected)


def test_in_place_store_comes_after_the_last_load():
    x, out = random(4, 30), torch.zeros(4, 30)
    b = Builder(4, 30, reduced=(1,))
    a, c, o = b.like(x, alias=0), b.like(x, alias=0), b.like(out)
    doubled = b.add("add", b.load(a), b.load(a))
    b.store(c, doubled)
    b.store(o, b.add("mul", doubled, b.add("reduce_sum", doubled)))
    verify(b, [x, x, out])


def test_log_sum_exp_and_its_argument():
    x, out, place = random(6, 100), torch.zeros(6), torch.zeros(6, dtype=torch.int64)
    b = Builder(6, 100, reduced=(1,))
    a, o, p = b.like(x), b.operand(torch.float32, (1, 0)), b.operand(torch.int64, (1, 0))
    value = b.load(a)
    greatest = b.add("reduce_max", value)
    total = b.add("reduce_sum", b.add("exp", b.add("sub", value, greatest)))
    b.store(o, b.add("add", b.add("log", total), greatest))
    b.store(p, b.argument("argmax", value))
    verify(b, [x, out, place])


def test_result_is_stored_along_the_row():
    x, out, total = random(4, 30), torch.zeros(4, 30), torch.zeros(4)
    b = Builder(4, 30, reduced=(1,))
    a, o, p = b.like(x), b.like(out), b.operand(torch.float32, (1, 0))
    value = b.add("reduce_sum", b.load(a))
    b.store(o, value)
    b.store(p, b.add("mul", value, b.constant(2.0)))
    verify(b, [x, out, total])


def test_early_store_of_a_sum_of_inputs():
    # As a residual connection in front of a norm.
    x, y, total, out = random(4, 30), random(4, 30, seed=1), torch.zeros(4, 30), torch.zeros(4, 30)
    b = Builder(4, 30, reduced=(1,))
    a, c, t, o = map(b.like, (x, y, total, out))
    value = b.add("add", b.load(a), b.load(c))
    b.store(t, value)
    b.store(o, b.add("mul", value, b.add("reduce_sum", b.add("mul", value, value))))
    verify(b, [x, y, total, out])


def test_columns_with_a_store_of_the_whole_space():
    # As the gradient of an activation, beside that of the bias.
    x, y, grad, bias = random(37, 150), random(37, 150, seed=1), torch.zeros(37, 150), torch.zeros(150)
    b = Builder(37, 150, reduced=(0,))
    a, c, g = map(b.like, (x, y, grad))
    o = b.operand(torch.float32, (0, 1))
    value = b.add("mul", b.load(a), b.add("select", b.compare("gt", b.load(c), b.constant(0.0)), *[b.load(c)] * 2))
    b.store(g, value)
    b.store(o, b.add("mul", b.add("reduce_sum", value), b.constant(3.0)))
    verify(b, [x, y, grad, bias])


def test_several_columns_kernel():
    x, rows, scale = random(5, 18, 40), random(5, 18), random(40)
    total, greatest, count = torch.zeros(5, 40), torch.zeros(5, 40), torch.zeros(5, 40, dtype=torch.int64)
    b = Builder(5, 18, 40, reduced=(1,))
    a, r, s = b.like(x), b.operand(torch.float32, (18, 1, 0)), b.operand(torch.float32, (0, 0, 1))
    o, p, q = (b.operand(t.dtype, (40, 0, 1)) for t in (total, greatest, count))
    value = b.add("mul", b.load(a), b.add("exp", b.load(r)))
    b.store(o, b.add("mul", b.add("reduce_sum", value), b.load(s)))
    b.store(p, b.add("reduce_max", value))
    b.store(q, b.add("reduce_sum", b.cast(b.compare("gt", value, b.constant(0.0)), I64)))
    verify(b, [x, rows, scale, total, greatest, count])


@pytest.mark.parametrize(("shape", "reduced"), [((1, 4000000), (1,)), ((200000, 1), (0,)), ((50000, 3), (0,))])
def test_long_sums_are_accurate(shape: tuple[int, ...], reduced: tuple[int, ...]):
    # Added up one after the other, the last digits of so many numbers would be lost.
    x = torch.full(shape, 0.1)  # each sum is rounded the same way
    b, out = reduction("sum", x, reduced)
    run(b, [x, out])
    expected = x.double().sum(reduced, keepdim=True)
    assert ((out - expected) / expected).abs().max() < 2e-6


# -- Quality of the code ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["sum", "max", "any", "argmax"])
def test_reduction_of_a_row_vectorises(op: str):
    b, _ = reduction(op, random(4, 1024, dtype=REDUCTIONS[op]), (1,))
    assert "vector.body" in llvm.toolchain().optimize(kernel_code(b.kernel()).ir)


@pytest.mark.parametrize("op", ["exp", "log", "sin", "tanh", "erf", "pow"])
def test_function_vectorises(op: str):
    b = Builder(1000)
    x, out = b.operand(torch.float32, (1,)), b.operand(torch.float32, (1,))
    value = b.load(x)
    b.store(out, b.add(op, *[value] * ELEMENTWISE[op].arity))
    ir = llvm.toolchain().optimize(kernel_code(b.kernel()).ir)
    assert re.search(r"fma.v(8f32|4f64)", ir)
    assert "vector.body" in ir


def test_functions_of_the_library_compile_in_silence(capfd: pytest.CaptureFixture[str]):
    b = Builder(100)
    x, out = b.operand(torch.float32, (1,)), b.operand(torch.float32, (1,))
    b.store(out, b.add("lgamma", b.add("fmod", b.load(x), b.load(x))))
    llvm.toolchain().object_code(kernel_code(b.kernel()).ir)
    assert capfd.readouterr() == ("", "")
