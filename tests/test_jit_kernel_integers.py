"""Machine code of kernels: integers, booleans, casts, indices and gathers."""

import itertools
import re

import pytest
import torch
from jit_kernels import Builder, assert_same, random, run, verify
from jit_stages import DTYPES, LANES, to_int64

from torch_neuronx.jit import available, llvm
from torch_neuronx.jit.kernel import Variable
from torch_neuronx.jit.kernel_code import ELEMENTWISE, kernel_code
from torch_neuronx.jit.stage import Dtype, Lane

pytestmark = [pytest.mark.neuron_only, pytest.mark.skipif(not available(), reason="needs llvmlite")]

F32, F64, I64, B8 = Lane.F32, Lane.F64, Lane.I64, Lane.B8


def integers(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    edge = [0, 1, -1, 2, -2, 3, 7, -7, 63, 64, 65, 2**31 - 1, -(2**31), 2**31, 2**63 - 1, -(2**63), -(2**63) + 1]
    pairs = torch.tensor(list(itertools.product(edge, edge)))
    return pairs[:, 0].contiguous(), pairs[:, 1].contiguous()


DIVISIONS = ["floordiv", "mod", "truncdiv", "rem"]
BINARY = [*DIVISIONS, "add", "sub", "mul", "min", "max", "and", "or", "xor", "shl", "shr"]


@pytest.mark.parametrize("op", [*BINARY, "eq", "lt", "ge", "gt"])
def test_integer_op(op: str):
    comparison = ELEMENTWISE[op].result == B8
    x, y = integers()
    if op in DIVISIONS:
        defined = (y != 0) & ~((y == -1) & (x == -(2**63)))
        x, y = x[defined], y[defined]
    b = Builder(len(x))
    tensors: list[torch.Tensor] = []
    for dtype in (torch.int64, torch.int32, torch.int8):
        narrow = [t.to(dtype) for t in (x, y)]
        if op in DIVISIONS:
            narrow[1] = torch.where(narrow[1] == 0, 3, narrow[1])
        out = torch.zeros(len(x), dtype=torch.bool if comparison else torch.int64)
        args = [b.load(b.like(t)) for t in narrow]
        b.store(b.like(out), b.compare(op, *args) if comparison else b.add(op, *args))
        tensors += [*narrow, out]
    verify(b, tensors)


@pytest.mark.parametrize("op", DIVISIONS)
def test_division_of_indices(op: str):
    b = Builder(50)
    tensors: list[torch.Tensor] = []
    shifted = b.add("sub", b.index(0), b.constant(20, I64))
    for divisor in (1, 2, 3, 7, 10, -1, -3):
        by = b.constant(divisor, I64)
        for dividend in (shifted, b.index(0)):
            tensors.append(torch.zeros(50, dtype=torch.int64))
            b.store(b.like(tensors[-1]), b.add(op, dividend, by))
    verify(b, tensors)


@pytest.mark.parametrize("op", DIVISIONS)
def test_division_by_zero_does_not_trap(op: str):
    x = torch.tensor([5, -5, 0, -(2**63)])
    y = torch.tensor([0, 0, 0, -1])
    out = torch.ones(4, dtype=torch.int64)
    b = Builder(4)
    a, c, o = map(b.like, (x, y, out))
    b.store(o, b.add(op, b.load(a), b.load(c)))
    run(b, [x, y, out])
    assert out.tolist()[:3] == [0, 0, 0]


@pytest.mark.parametrize("op", ["neg", "abs", "sign", "not"])
def test_integer_unary_op(op: str):
    x, _ = integers()
    out = torch.zeros_like(x)
    b = Builder(len(x))
    a, o = b.like(x), b.like(out)
    b.store(o, b.add(op, b.load(a)))
    verify(b, [x, out])


def test_integer_power():
    x, y = (t.flatten() for t in torch.meshgrid(torch.arange(-5, 6), torch.arange(-3, 40), indexing="ij"))
    x, y = x.contiguous(), y.contiguous()
    out = torch.zeros_like(x)
    b = Builder(len(x))
    a, c, o = map(b.like, (x, y, out))
    b.store(o, b.add("pow", b.load(a), b.load(c)))
    run(b, [x, y, out])
    expected = [
        (1 if base == 1 else (-1) ** (power % 2) if base == -1 else 0)
        if power < 0
        else (base**power + 2**63) % 2**64 - 2**63
        for base, power in zip(x.tolist(), y.tolist(), strict=True)
    ]
    assert out.tolist() == expected


@pytest.mark.parametrize("op", ["and", "or", "xor", "eq", "ne", "lt", "le", "gt", "ge", "select"])
def test_op_on_booleans(op: str):
    x, y, z = (random(64, dtype=torch.bool, seed=seed) for seed in range(3))
    out = torch.zeros(64, dtype=torch.bool)
    b = Builder(64)
    a, c, d, o = map(b.like, (x, y, z, out))
    values = [b.load(a), b.load(c), b.load(d)]
    b.store(o, b.add(op, *values[: 3 if op == "select" else 2], lane=B8))
    verify(b, [x, y, z, out])


@pytest.mark.parametrize("target", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
@pytest.mark.parametrize("source", [torch.float32, torch.float64])
def test_cast_to_integers(source: torch.dtype, target: torch.dtype):
    info = torch.iinfo(target)
    x = torch.tensor([0.0, 0.5, 1.5, 99.9, 127, info.max / 2, info.min / 2, -0.9], dtype=source)
    out = torch.zeros(len(x), dtype=target)
    b = Builder(len(x))
    a, o = b.like(x), b.like(out)
    b.store(o, b.cast(b.load(a), I64))
    run(b, [x, out])
    assert torch.equal(out, x.to(target))


@pytest.mark.parametrize("source", DTYPES)
def test_cast(source: str):
    x = random(40, dtype=DTYPES[source])
    outs = [torch.zeros(40, dtype=dtype) for dtype in LANES.values()]
    b = Builder(40)
    value = b.load(b.like(x))
    for out, target in zip(outs, LANES, strict=True):
        b.store(b.like(out), b.cast(value, Lane(target)))
    verify(b, [x, *outs])


def test_float_out_of_range_of_integers():
    x = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e30, -1e30])
    out = torch.zeros(5, dtype=torch.int64)
    b = Builder(5)
    a, o = b.like(x), b.like(out)
    b.store(o, b.cast(b.load(a), I64))
    run(b, [x, out])
    assert torch.equal(out, torch.from_numpy(to_int64(x.numpy())))


@pytest.mark.parametrize("dtype", ["bf16", "f16", "i32", "i16", "i8", "u8", "i64", "f32"])
def test_round(dtype: str):
    integer = not DTYPES[dtype].is_floating_point
    x = integers()[0] if integer else torch.cat([random(1000), random(100) * 1e6])
    out = torch.zeros_like(x)
    b = Builder(len(x))
    a, o = b.like(x), b.like(out)
    b.store(o, b.add("round", b.load(a), dtype=Dtype(dtype)))
    verify(b, [x, out])


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("variable", [False, True])
def test_causal_softmax(window: int | None, variable: bool):
    heads, length = 3, 50
    x, out = random(heads, length, length), torch.zeros(heads, length, length)
    sizes = [heads, Variable(0), Variable(0)] if variable else [heads, length, length]
    b = Builder(*sizes, reduced=(2,))
    a, o = b.like(x), b.like(out)
    query, key = b.index(1), b.index(2)
    seen = b.compare("ge", query, key)
    if window is not None:
        near = b.compare("lt", b.add("sub", query, key), b.constant(window, I64))
        seen = b.add("and", seen, near)
    value = b.add("select", seen, b.load(a), b.constant(float("-inf")))
    exp = b.add("exp", b.add("sub", value, b.add("reduce_max", value)))
    b.store(o, b.add("div", exp, b.add("reduce_sum", exp)))
    verify(b, [x, out], (length,))


def test_masks_of_indices_have_32_bits():
    b = Builder(64, 64)
    x, out = b.operand(torch.float32, (64, 1)), b.operand(torch.float32, (64, 1))
    mask = b.compare("ge", b.index(0), b.index(1))
    b.store(out, b.add("select", mask, b.load(x), b.constant(0.0)))
    ir = llvm.toolchain().optimize(kernel_code(b.kernel()).ir)
    assert re.search(r"icmp s\w+ <8 x i32>", ir)
    assert "x i64>" not in ir


def test_gather():
    table, rows, out = random(30, 20), torch.randint(0, 30, (17,)), torch.zeros(17, 20)
    b = Builder(17, 20)
    t, r, o = b.operand(torch.float32, (0, 0), offset=Variable(0)), b.operand(torch.int64, (1, 0)), b.like(out)
    offset = b.add("add", b.add("mul", b.load(r), b.constant(20, I64)), b.index(1))
    b.store(o, b.gather(t, offset))
    run(b, [table, rows, out], (0,))
    assert torch.equal(out, table[rows])


def test_gather_at_negative_offset():
    x, out = random(40), torch.zeros(10)
    b = Builder(10)
    a, o = b.operand(torch.float32, (0,), offset=30), b.like(out)
    b.store(o, b.gather(a, b.add("neg", b.index(0))))
    run(b, [x, out])
    assert torch.equal(out, x[21:31].flip(0))


def test_gather_of_the_target_in_cross_entropy():
    x, target, out = random(12, 50), torch.randint(0, 50, (12,)), torch.zeros(12)
    b = Builder(12, 50, reduced=(1,))
    a, t = b.like(x), b.operand(torch.int64, (1, 0))
    at, o = b.operand(torch.float32, (0, 0)), b.operand(torch.float32, (1, 0))
    value = b.load(a)
    greatest = b.add("reduce_max", value)
    total = b.add("reduce_sum", b.add("exp", b.add("sub", value, greatest)))
    place = b.add("add", b.add("mul", b.index(0), b.constant(50, I64)), b.load(t))
    b.store(o, b.add("sub", b.add("add", b.add("log", total), greatest), b.gather(at, place)))
    run(b, [x, target, x, out])
    assert_same(out, torch.nn.functional.cross_entropy(x, target, reduction="none"))
