"""Machine code of stages: every op, lane and type gives what CPU PyTorch or NumPy give, bit for bit."""

import ctypes
import ctypes.util
import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from jit_stages import (
    DTYPES,
    LANES,
    MEMORY,
    assert_bits,
    lane_of,
    operation,
    pairs,
    run,
    run_guarded,
    to_int64,
    values,
)

from torch_neuronx.jit import StageError, available, compile_stage, llvm
from torch_neuronx.jit.codegen import llvm_ir
from torch_neuronx.jit.stage import parse

pytestmark = [
    pytest.mark.neuron_only,
    pytest.mark.skipif(not available(), reason="needs llvmlite"),
    pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning"),  # NumPy, on the values we are after
]

Reference = Callable[..., np.ndarray]

FLOATS, NUMBERS = ("f32", "f64"), ("f32", "f64", "i64")

# Around the width of a vector in elements of any type, once to several times.
LENGTHS = [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 257, 1000]


def nan_wins(result: np.ndarray, *args: np.ndarray) -> np.ndarray:
    unordered = np.logical_or.reduce([arg != arg for arg in args])
    return np.where(unordered, np.asarray(np.nan).astype(result.dtype), result) if result.dtype.kind == "f" else result


BINARY: dict[str, tuple[tuple[str, ...], Reference]] = {
    "add": (NUMBERS, np.add),
    "sub": (NUMBERS, np.subtract),
    "mul": (NUMBERS, np.multiply),
    "div": (FLOATS, np.divide),
    "min": (NUMBERS, lambda a, b: nan_wins(np.where(a < b, a, b), a, b)),
    "max": (NUMBERS, lambda a, b: nan_wins(np.where(a > b, a, b), a, b)),
    "and": (("i64", "b8"), np.bitwise_and),
    "or": (("i64", "b8"), np.bitwise_or),
    "xor": (("i64", "b8"), np.bitwise_xor),
}
COMPARISONS: dict[str, Reference] = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal}
UNARY: dict[str, tuple[tuple[str, ...], Reference]] = {
    "neg": (NUMBERS, np.negative),
    "abs": (NUMBERS, np.abs),
    "sqrt": (FLOATS, np.sqrt),
    "floor": (FLOATS, np.floor),
    "ceil": (FLOATS, np.ceil),
    "trunc": (FLOATS, np.trunc),
    "nearest": (FLOATS, np.rint),
    "not": (("i64", "b8"), np.invert),
}


def cases(table: dict[str, tuple[tuple[str, ...], Reference]]) -> list[tuple[str, str]]:
    return [(op, lane) for op, (lanes, _) in table.items() for lane in lanes]


@pytest.mark.parametrize(("op", "lane"), cases(BINARY))
def test_binary(op: str, lane: str):
    a, b = pairs(lane, seed=1)
    expected = torch.from_numpy(BINARY[op][1](a.numpy(), b.numpy()))
    assert_bits(run_guarded(operation(op, lane, 2), [a, b], LANES[lane]), expected)


@pytest.mark.parametrize("lane", [*NUMBERS, "b8"])
@pytest.mark.parametrize("op", COMPARISONS)
def test_comparison(op: str, lane: str):
    a, b = pairs(lane, seed=2)
    expected = torch.from_numpy(COMPARISONS[op](a.numpy(), b.numpy()))
    assert_bits(run_guarded(operation(op, lane, 2, result="b8"), [a, b], torch.bool), expected)


@pytest.mark.parametrize(("op", "lane"), cases(UNARY))
def test_unary(op: str, lane: str):
    x = values(lane, 1000, seed=3)
    expected = torch.from_numpy(UNARY[op][1](x.numpy()))
    assert_bits(run_guarded(operation(op, lane, 1), [x], LANES[lane]), expected)


@pytest.mark.parametrize("lane", FLOATS)
@pytest.mark.parametrize("op", ["min", "max"])
def test_signed_zeros_of_min_and_max_are_those_of_atens_vector_kernel(op: str, lane: str):
    zeros = torch.tensor([0.0, -0.0, 0.0, -0.0] * 64, dtype=LANES[lane])
    others = torch.tensor([-0.0, 0.0, 0.0, -0.0] * 64, dtype=LANES[lane])
    if "AVX" not in torch.backends.cpu.get_cpu_capability():
        pytest.skip("other instructions choose another zero")
    expected = (torch.minimum if op == "min" else torch.maximum)(zeros, others)
    assert_bits(run_guarded(operation(op, lane, 2), [zeros, others], LANES[lane]), expected)


@pytest.mark.parametrize("lane", FLOATS)
def test_fma_rounds_once(lane: str):
    a, b = pairs(lane, seed=4)
    c = values(lane, a.numel(), seed=5).flip(0)
    # Where the product is nearly -c, two roundings would leave nothing right.
    near = torch.rand(a.numel(), generator=torch.Generator().manual_seed(6)) < 0.5
    c = torch.where(near, -(a * b), c)
    libm = ctypes.CDLL(ctypes.util.find_library("m"))
    fma = libm.fmaf if lane == "f32" else libm.fma
    number = ctypes.c_float if lane == "f32" else ctypes.c_double
    fma.argtypes, fma.restype = [number] * 3, number
    triples = zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    expected = torch.tensor([fma(*triple) for triple in triples], dtype=LANES[lane])
    assert not torch.equal(expected.nan_to_num(), (a * b + c).nan_to_num()), "the values do not tell fma from a * b + c"
    assert_bits(run_guarded(operation("fma", lane, 3), [a, b, c], LANES[lane]), expected)


def test_products_and_sums_are_not_contracted():
    a, b = pairs("f32", seed=7)
    c = -(a * b)
    text = "\n".join(
        [
            *[f"operand {k} f32 dense {'in' if k < 3 else 'out'}" for k in range(4)],
            *[f"%{k} = load f32 @{k}" for k in range(3)],
            "%3 = mul f32 %0 %1",
            "%4 = add f32 %3 %2",
            "store @3 %4",
        ]
    )
    assert_bits(run_guarded(text, [a, b, c], torch.float32), a * b + c)


@pytest.mark.parametrize("lane", [*NUMBERS, "b8"])
def test_select(lane: str):
    a, b = pairs(lane, seed=8)
    condition = values("b8", a.numel(), seed=9)
    text = operation("select", lane, 3, bool_first=True)
    assert_bits(run_guarded(text, [condition, a, b], LANES[lane]), torch.where(condition, a, b))


@pytest.mark.parametrize("target", LANES)
@pytest.mark.parametrize("source", LANES)
def test_cast(source: str, target: str):
    x = values(source, 1000, seed=10)
    text = "\n".join(
        [
            f"operand 0 {MEMORY[source]} dense in",
            f"operand 1 {MEMORY[target]} dense out",
            f"%0 = load {source} @0",
            f"%1 = cast {source} {target} %0",
            "store @1 %1",
        ]
    )
    to_int = target == "i64" and source in FLOATS
    expected = torch.from_numpy(to_int64(x.numpy())) if to_int else x.to(LANES[target])
    assert_bits(run_guarded(text, [x], LANES[target]), expected)


@pytest.mark.parametrize("source", FLOATS)
def test_cast_through_i32(source: str):
    x = torch.cat([values(source, 1000, seed=20), torch.tensor([2**31 - 1.5, -(2.0**31) - 0.5]).to(LANES[source])])
    text = "\n".join(
        [
            f"operand 0 {MEMORY[source]} dense in",
            "operand 1 i64 dense out",
            f"%0 = load {source} @0",
            f"%1 = cast {source} i32 %0",
            "store @1 %1",
        ]
    )
    assert_bits(run_guarded(text, [x], torch.int64), torch.from_numpy(to_int64(x.numpy(), bits=32)))


def test_fma_of_integers():
    a, b = pairs("i64", seed=21)
    c = values("i64", a.numel(), seed=22)
    assert_bits(run_guarded(operation("fma", "i64", 3), [a, b, c], torch.int64), a * b + c)


# What bf16 keeps of a NaN, where the rest of it would carry: 0x7fffffff plus half a unit is -0.0.
@pytest.mark.parametrize("bits", [0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0xFFC00000, 0x7FC0FFFF])
@pytest.mark.parametrize("op", ["neg", "abs", "sqrt", "floor", "round f32", "round f16", "add", "mul", "min", "select"])
def test_nan_stays_nan_in_bf16(op: str, bits: int):
    x = torch.full((70,), bits, dtype=torch.int64).to(torch.int32).view(torch.float32)
    argument = {"add": "%0 %0", "mul": "%0 $3", "min": "%0 $3", "select": "$5 %0 %0"}.get(op, "%0")
    text = "\n".join(
        [
            "operand 0 f32 dense in",
            "operand 1 bf16 dense out",
            *(["scalar 3 f32"] if "$3" in argument else ["scalar 5 b8"] if "$5" in argument else []),
            "%0 = load f32 @0",
            f"%1 = {op if ' ' in op else op + ' f32'} {argument}",
            "%2 = round bf16 %1",
            "store @1 %2",
        ]
    )
    scalars = [1.0] if "$" in argument else []
    assert run_guarded(text, [x], torch.bfloat16, scalars).isnan().all()


def test_nan_as_scalar_stays_nan_in_bf16():
    text = "operand 0 bf16 dense out\nscalar 0 f32\n%0 = round bf16 $0\nstore @0 %0"
    out = torch.zeros(70, dtype=torch.bfloat16)
    run(text, [out], [torch.tensor(0x7FFFFFFF, dtype=torch.int32).view(torch.float32).item()])
    assert out.isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_round(dtype: str):
    lane = lane_of(dtype)
    x = values(lane, 4000, seed=11)
    text = "\n".join(
        [
            f"operand 0 {MEMORY[lane]} dense in",
            f"operand 1 {MEMORY[lane]} dense out",
            f"%0 = load {lane} @0",
            f"%1 = round {dtype} %0",
            "store @1 %1",
        ]
    )
    assert_bits(run_guarded(text, [x], LANES[lane]), x.to(DTYPES[dtype]).to(LANES[lane]))


@pytest.mark.parametrize("rounded_before", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_store_narrows(dtype: str, rounded_before: bool):
    lane = lane_of(dtype)
    x = values(lane, 4000, seed=12)
    text = "\n".join(
        [
            f"operand 0 {MEMORY[lane]} dense in",
            f"operand 1 {dtype} dense out",
            f"%0 = load {lane} @0",
            f"%1 = round {dtype} %0",
            f"store @1 {'%1' if rounded_before else '%0'}",
        ]
    )
    assert_bits(run_guarded(text, [x], DTYPES[dtype]), x.to(DTYPES[dtype]))


@pytest.mark.parametrize("dtype", ["bf16", "f16", "i16", "i8", "u8", "bool"])
def test_load_widens_every_value(dtype: str):
    if dtype == "bool":
        x = torch.tensor([False, True] * 50)
    else:
        bits = torch.arange(256 if dtype in ("i8", "u8") else 65536)
        x = bits.to(torch.uint8).view(DTYPES[dtype]) if dtype in ("i8", "u8") else bits.short().view(DTYPES[dtype])
    lane = lane_of(dtype)
    text = "\n".join(
        [
            f"operand 0 {dtype} dense in",
            f"operand 1 {MEMORY[lane]} dense out",
            f"%0 = load {lane} @0",
            "store @1 %0",
        ]
    )
    assert_bits(run_guarded(text, [x], LANES[lane]), x.to(LANES[lane]))


def test_load_of_i32_keeps_the_sign():
    x = values("i64", 100, seed=13).int()
    text = "operand 0 i32 dense in\noperand 1 i64 dense out\n%0 = load i64 @0\nstore @1 %0"
    assert_bits(run_guarded(text, [x], torch.int64), x.long())


def chain(dtype: str, steps: int, use: str) -> str:
    """x * $0 + $1 again and again, rounded to `dtype` after each op; in place when `use` is inout."""
    lane = lane_of(dtype)
    out = 0 if use == "inout" else 1
    lines = [f"operand 0 {dtype} dense {'inout' if use == 'inout' else 'in'}"]
    lines += [] if use == "inout" else [f"operand 1 {dtype} dense out"]
    lines += [f"scalar {k} {lane}" for k in range(2)] + [f"%0 = load {lane} @0"]
    value = 0
    for op, scalar in [("mul", 0), ("add", 1)] * steps:
        lines += [f"%{value + 1} = {op} {lane} %{value} ${scalar}", f"%{value + 2} = round {dtype} %{value + 1}"]
        value += 2
    return "\n".join([*lines, f"store @{out} %{value}"])


def chain_reference(x: torch.Tensor, scalars: list[float], steps: int) -> torch.Tensor:
    lane = LANES[lane_of(next(name for name, dtype in DTYPES.items() if dtype == x.dtype))]
    for _ in range(steps):
        x = (x.to(lane) * scalars[0]).to(x.dtype)
        x = (x.to(lane) + scalars[1]).to(x.dtype)
    return x


# Both sides of the length from which loops are interleaved.
@pytest.mark.parametrize("steps", [1, 9])
@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "bool"])
def test_all_lengths_in_place_and_not(dtype: str, steps: int):
    lane = lane_of(dtype)
    scalars = [3, -7] if lane == "i64" else [float(np.float32(1.01)), float(np.float32(0.1))]
    for length in LENGTHS:
        x = values(lane, max(LENGTHS), seed=14)[-length:] if length else torch.empty(0, dtype=LANES[lane])
        x = x.to(DTYPES[dtype])
        expected = chain_reference(x, scalars, steps)
        assert_bits(run_guarded(chain(dtype, steps, "out"), [x], DTYPES[dtype], scalars), expected)
        run(chain(dtype, steps, "inout"), [x], scalars)
        assert_bits(x, expected)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64", "i32", "bool"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 33), (3, 7), (5, 64), (7, 65), (64, 1), (2, 1000), (4, 0), (0, 5)])
def test_operands_of_rows_and_columns(shape: tuple[int, int], dtype: str):
    rows, cols = shape
    lane, memory = lane_of(dtype), DTYPES[dtype]
    x = values(lane, rows * cols, seed=15).to(memory)
    row = values(lane, max(rows, 1), seed=16).flip(0).to(memory)[:rows].contiguous()
    col = values(lane, max(cols, 1), seed=17).flip(0).to(memory)[:cols].contiguous()
    first, second = ("and", "xor") if lane == "b8" else ("mul", "add")
    text = "\n".join(
        [
            f"operand 0 {dtype} dense in",
            f"operand 1 {dtype} row in",
            f"operand 2 {dtype} columns in",
            f"operand 3 {dtype} dense out",
            *[f"%{k} = load {lane} @{k}" for k in range(3)],
            f"%3 = {first} {lane} %0 %1",
            f"%4 = round {dtype} %3",
            f"%5 = {second} {lane} %4 %2",
            f"%6 = round {dtype} %5",
            "store @3 %6",
        ]
    )
    wide = [t.to(LANES[lane]) for t in (x.view(rows, cols), row[:, None], col[None, :])]
    product = (wide[0] & wide[1] if lane == "b8" else wide[0] * wide[1]).to(memory).to(LANES[lane])
    expected = (product ^ wide[2] if lane == "b8" else product + wide[2]).to(memory)
    assert_bits(run_guarded(text, [x, row, col], memory, rows=rows), expected.flatten())


def test_scalars_of_every_lane_and_several_results():
    x, y = values("f32", 500, seed=18), values("f32", 500, seed=19).flip(0)
    text = """
        operand 0 f32 dense inout
        operand 1 f32 dense in
        operand 2 bool dense out
        operand 3 f64 dense out
        operand 4 i64 dense out
        scalar 0 b8
        scalar 1 f64
        scalar 2 i64
        scalar 3 f32
        %0 = load f32 @0
        %1 = load f32 @1
        %2 = lt f32 %0 %1
        %3 = xor b8 %2 $0
        store @2 %3
        %4 = cast f32 f64 %0
        %5 = mul f64 %4 $1
        store @3 %5
        %6 = cast b8 i64 %3
        %7 = sub i64 $2 %6
        store @4 %7
        %8 = select f32 %3 %1 $3
        store @0 %8
    """
    flags, wide, numbers = (torch.empty(500, dtype=t) for t in (torch.bool, torch.float64, torch.int64))
    changed = x.clone()
    run(text, [changed, y, flags, wide, numbers], [True, 0.1, 2**40, -0.0])
    condition = ~(x < y)
    assert_bits(flags, condition)
    assert_bits(wide, x.double() * 0.1)
    assert_bits(numbers, 2**40 - condition.long())
    assert_bits(changed, torch.where(condition, y, torch.tensor(-0.0)))


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "bool"])
def test_loops_are_vectors_without_checks_of_overlap(dtype: str):
    optimized = llvm.toolchain().optimize(llvm_ir(parse(chain(dtype, 2, "out"))))
    assert re.search(r"(mul|add) <\d+ x ", optimized), "not vectorised"
    assert "vector.memcheck" not in optimized


def test_equal_texts_share_their_code():
    assert compile_stage(chain("f32", 1, "out")) == compile_stage(chain("f32", 1, "out"))
    assert compile_stage(chain("f32", 1, "out")) != compile_stage(chain("f32", 2, "out"))


HEAD = "operand 0 f32 dense in\noperand 1 f32 dense out\nscalar 0 f64\n%0 = load f32 @0\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "stores nothing"),
        ("operand 1 f32 dense in", "numbered from 0"),
        ("operand 0 f31 dense in", "f31"),
        ("operand 0 f32 strided in", "strided"),
        ("operand 0 f32 row out", "only dense operands"),
        ("scalar 1 f32\nscalar 1 f32", "there already"),
        ("hello", "neither an operand"),
        (HEAD, "stores nothing"),
        (HEAD + "%0 = load f32 @0", "%0 is defined already"),
        (HEAD + "%1 = load f64 @0", "loaded as f32"),
        (HEAD + "%1 = load f32 @1", "not read"),
        (HEAD + "%1 = load f32 @2", "no operand 2"),
        (HEAD + "%1 = load f32 %0", "not an operand"),
        (HEAD + "%1 = tanh f32 %0", "no op 'tanh'"),
        (HEAD + "%1 = add f32 %0", "3 words"),
        (HEAD + "%1 = add f32 %0 $0", r"\$0 is f64, not f32"),
        (HEAD + "%1 = add f32 %0 $1", r"\$1 is not defined"),
        (HEAD + "%1 = add f32 %0 %7", "%7 is not defined"),
        (HEAD + "%1 = add f32 %0 0.5", "neither a value nor a scalar"),
        (HEAD + "%1 = and f32 %0 %0", "and has no lane f32"),
        (HEAD + "%1 = select f32 %0 %0 %0", "%0 is f32, not b8"),
        (HEAD + "%1 = round i32 %0", "%0 is f32, not i64"),
        (HEAD + "%1 = ne f32 %0 %0\n%2 = cast b8 i32 %1", "only floating point"),
        (HEAD + "%1 = cast f32 i16 %0", "i16"),
        (HEAD + "store @0 %0", "not written"),
        (HEAD + "store @1 $0", r"\$0 is f64, not f32"),
        (HEAD + "store @1 %0\nstore @1 %0", "stored already"),
        ("operand 0 f32 dense inout\n%0 = load f32 @0\nstore @0 %0\n%1 = load f32 @0", "loaded after it was stored"),
    ],
)
def test_bad_text(text: str, reason: str):
    with pytest.raises(StageError, match=reason):
        compile_stage(text)
