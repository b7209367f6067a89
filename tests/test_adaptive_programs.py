"""Programs of pointwise ops, reductions, views, lifetimes and streams give the bits of CPU eager, window on or off.

`ADAPTIVE_PROGRAMS` says how many random programs there are, `ADAPTIVE_SEED` which: a nightly run takes 10,000 and
another seed. One that fails is printed as a script.
"""

import math
import os

import adaptive_vocabulary as say
import pytest
import torch
from adaptive_programs import Outcome, Program, check, differences, reduced, run
from adaptive_writer import programs
from hypothesis import HealthCheck, Phase, given, seed, settings

PROGRAMS = int(os.environ.get("ADAPTIVE_PROGRAMS", "300"))
SEED = int(os.environ.get("ADAPTIVE_SEED", "0"))

SETTINGS = {
    "deadline": None,
    "database": None,
    "print_blob": False,  # the program itself is printed
    "phases": [Phase.generate],  # a failing program is made shorter line by line
    "suppress_health_check": list(HealthCheck),
}


@pytest.mark.neuron_only
@seed(SEED)
@settings(max_examples=PROGRAMS, **SETTINGS)
@given(program=programs())
def test_random_program_gives_the_bits_of_cpu_eager(device, program):
    check(program, device)


@pytest.mark.neuron_only
@seed(SEED + 1)
@settings(max_examples=max(1, PROGRAMS // 20), **SETTINGS)
@given(program=programs())
def test_random_program_that_runs_often_gives_the_bits_of_cpu_eager(device, program):
    check(program, device, runs=(False, True) * 8)


# --- each template by itself, which 300 random programs do not promise

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.bool)
SMALL = (3, 37)  # not a multiple of any vector's width
LARGE = (2, 40_001)  # split between two threads
OUT_OF_PLACE = (
    *(*say.UNARY, *say.UNARY_INTEGRAL, *say.BINARY, *say.BINARY_INTEGRAL, *say.SCALAR, *say.POWERS, *say.TERNARY),
    *(*say.CASTS, *say.ROW_WISE, *say.IDIOMS, *say.FOREACH_NEW, *say.DROPOUT),
)
IN_PLACE = (*say.IN_PLACE_UNARY, *say.IN_PLACE_BINARY, *say.FOREACH)


def lines_of(template: str, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[str, ...]:
    """The template between two ops that a window may merge it with, on operands that broadcast and mix dtypes."""
    result = f"result_{dtype}".replace("torch.", "")
    other = torch.float32 if dtype == torch.bfloat16 else dtype
    text = template.format(a="a", b="b", c="c", s="0.75", t="1.25", n=2)
    return (
        f"a = make(1, {shape}, {dtype}, special=True)",
        f"b = make(2, {shape[-1:]}, {other}, special=True)",
        f"c = make(3, {shape}, {dtype})",
        "a = a * 3",
        f"{text}; {result} = a" if template in IN_PLACE else f"{result} = {text}",
        "del a, b, c",
        f"{result} = {result} * 2",
        f"{result} = {result} + 1",
    )


@pytest.mark.neuron_only
@pytest.mark.parametrize("template", [*OUT_OF_PLACE, *IN_PLACE])
def test_each_template_gives_the_bits_of_cpu_eager(device, template):
    programs = [Program(tuple(line for dtype in DTYPES for line in lines_of(template, SMALL, dtype)), seed=5)]
    programs += [Program(lines_of(template, LARGE, dtype), seed=5) for dtype in (torch.float32, torch.bfloat16)]
    assert run(programs[0], "cpu").values, "PyTorch refuses the template for every dtype"
    for program in programs:
        check(program, device, runs=(True,))


@pytest.mark.neuron_only
@pytest.mark.parametrize("template", say.WRONG)
def test_calls_are_refused_amid_a_window_as_by_the_cpu(device, template):
    program = Program(lines_of(template, SMALL, torch.float32), seed=5)
    assert run(program, "cpu").errors
    check(program, device)


# --- the comparison can fail


def outcome(value: torch.Tensor, *errors: str) -> Outcome:
    return Outcome({"t1": value}, {"t1": value.stride()}, list(errors))


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (torch.tensor([1.0, -0.0]), torch.tensor([1.0, 0.0])),
        (torch.tensor([2.0]), torch.nextafter(torch.tensor([2.0]), torch.tensor([3.0]))),
        (torch.tensor([math.nan]), torch.tensor([1.0])),
        (torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.float64)),
        (torch.zeros(2, 2), torch.zeros(2, 2).t()),
        (torch.zeros(2, 1), torch.zeros(2)),
        (torch.tensor([True]), torch.tensor([False])),
    ],
    ids=["signed zero", "last bit", "nan", "dtype", "strides", "shape", "bool"],
)
def test_different_tensors_are_told(actual, expected):
    assert differences(outcome(actual), outcome(expected))
    assert not differences(outcome(actual.clone()), outcome(actual))


def test_nans_are_alike_whatever_their_payload():
    payloads = torch.tensor([0x7FC00000, 0x7FC00001, -0x400000], dtype=torch.int32).view(torch.float32)
    assert payloads.isnan().all()
    assert not differences(outcome(payloads), outcome(torch.full((3,), math.nan)))


def test_different_errors_and_lifetimes_are_told():
    x = torch.ones(2)
    assert differences(outcome(x), outcome(x, "line 3: IndexError"))
    assert differences(outcome(x, "line 3: RuntimeError"), outcome(x, "line 3: IndexError"))
    assert differences(Outcome(), outcome(x))


def test_a_failing_program_is_made_shorter():
    lines = tuple(f"t{i} = make({i}, (2,), torch.float32)" for i in range(20))

    def fails(program: Program) -> bool:
        return {lines[3], lines[11], lines[19]} <= set(program.lines)

    assert reduced(Program(lines, seed=1), fails) == Program((lines[3], lines[11], lines[19]), seed=1)


def test_a_program_on_two_streams_is_made_shorter_when_it_fails_on_one():
    lines = ("t1 = make(1, (2,), torch.float32)", "wait(1, 0)", "with on(1): t2 = t1 * 2", "t3 = t1 + 1")
    program = Program(lines, seed=1)
    assert reduced(program, lambda p: any("t2 = t1" in line for line in p.lines)).lines == ("t2 = t1 * 2",)
    assert reduced(program, lambda p: "wait(1, 0)" in p.lines) == program


def test_a_program_prints_as_a_script_that_makes_it_again():
    program = Program(
        seed=3, lines=("t1 = make(1, (2,), torch.float32)", "t1 = t1 * float('inf')", "h2 = t1.sum().item()")
    )
    source = repr(program).replace('check(program, "neuron")', "")
    names: dict[str, object] = {}
    exec(source, names)
    assert names["program"] == program
