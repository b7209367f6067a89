"""The interface of kernels: what their code says of itself, that it is made once, and what is no kernel."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from jit_kernels import Builder, random, reduction, row_kernel, run

from torch_neuronx.jit import ObjectCache, available, llvm
from torch_neuronx.jit.compiler import compile_kernel, compile_kernels
from torch_neuronx.jit.kernel import Instruction, Kernel, Operand, Variable
from torch_neuronx.jit.kernel_code import KernelError, check, kernel_code
from torch_neuronx.jit.stage import Dtype, Lane

pytestmark = [pytest.mark.neuron_only, pytest.mark.skipif(not available(), reason="needs llvmlite")]

F32, F64, I64, B8 = Lane.F32, Lane.F64, Lane.I64, Lane.B8


def test_numbers_of_a_kernel():
    code = kernel_code(row_kernel("softmax", (Variable(1), Variable(0))).kernel())
    assert code.units((77, 5)) == 5
    assert code.elements_per_unit((77, 5)) == 77
    assert code.scratch_bytes((77, 5)) == 80 * 4
    pointwise = Builder(3, Variable(0))
    pointwise.store(pointwise.operand(torch.float32, (Variable(0), 1)), pointwise.constant(1.0))
    code = kernel_code(pointwise.kernel())
    assert code.units((100,)) == 3
    assert code.elements_per_unit((100,)) == 100
    assert code.units((10**6,)) > 3
    assert code.scratch_bytes((100,)) == 0
    columns, _ = reduction("sum", torch.zeros(30, 1000), (0,))
    code = kernel_code(columns.kernel())
    assert code.units(()) * code.elements_per_unit(()) >= 30 * 1000
    assert code.units(()) > 1


def test_index_of_a_dimension_that_is_too_long():
    b = Builder(Variable(0))
    b.store(b.operand(torch.int64, (1,)), b.index(0))
    code = kernel_code(b.kernel())
    assert code.units((2**31 - 1,)) == 2**31 - 1
    with pytest.raises(KernelError, match="2\\*\\*31"):
        code.units((2**31,))


def test_argmax_uses_the_index_of_its_dimension():
    b = Builder(4, Variable(0), reduced=(1,))
    value = b.load(b.operand(torch.float32, (Variable(0), 1)))
    b.store(b.operand(torch.int64, (1, 0)), b.argument("argmax", value))
    with pytest.raises(KernelError, match="2\\*\\*31"):
        kernel_code(b.kernel()).units((2**31,))


def test_object_code_is_kept_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    kernel = row_kernel("softmax", (4, 53)).kernel()
    compile_kernel(kernel, ObjectCache(tmp_path))
    assert list(tmp_path.rglob("*.o"))
    monkeypatch.setattr("torch_neuronx.jit.compiler._addresses", {})
    monkeypatch.setattr(llvm.Toolchain, "object_code", lambda *args: pytest.fail("it compiled again"))
    compile_kernel(kernel, ObjectCache(tmp_path))
    x, out = random(4, 53), torch.zeros(4, 53)
    run(kernel, [x, out])
    torch.testing.assert_close(out, torch.softmax(x, 1))


def test_equal_kernels_are_compiled_once():
    first, again = (row_kernel("softmax", (4, 50)).kernel() for _ in range(2))
    assert kernel_code(first).ir == kernel_code(again).ir
    other = row_kernel("softmax", (4, 51)).kernel()
    addresses = compile_kernels([first, other, again])
    assert addresses[0] == addresses[2] != addresses[1]
    assert compile_kernel(again) == addresses[0]


# -- Ill-formed kernels -----------------------------------------------------------------------------------------------


def simple() -> Builder:
    b = Builder(4, 8, reduced=(1,))
    x, out = b.operand(torch.float32, (8, 1)), b.operand(torch.float32, (8, 1))
    b.store(out, b.add("exp", b.load(x)))
    return b


def changed(place: int, **fields: object) -> Callable[[Kernel], Kernel]:
    def change(kernel: Kernel) -> Kernel:
        code = list(kernel.code)
        code[place] = replace(code[place], **fields)
        return replace(kernel, code=tuple(code))

    return change


def with_operand(place: int, **fields: object) -> Callable[[Kernel], Kernel]:
    def change(kernel: Kernel) -> Kernel:
        operands = list(kernel.operands)
        operands[place] = replace(operands[place], **fields)
        return replace(kernel, operands=tuple(operands))

    return change


def with_code(*code: Instruction) -> Callable[[Kernel], Kernel]:
    return lambda kernel: replace(kernel, code=code)


LOAD, LATE = Instruction("load", F32, operand=0), Instruction("store", F32, (1,), operand=1)
SUM = Instruction("reduce_sum", F32, (0,))
ILL_FORMED: dict[str, tuple[Callable[[Kernel], Kernel], str]] = {
    "no dimensions": (lambda k: replace(k, sizes=(), operands=(), reduced=()), "at least one dimension"),
    "negative size": (lambda k: replace(k, sizes=(4, -1)), "-1 is not a size"),
    "reduced apart": (lambda k: replace(k, reduced=(1, 0)), "stand together"),
    "reduced beyond": (lambda k: replace(k, reduced=(2,)), "stand together"),
    "kept twice after": (
        lambda k: replace(k, sizes=(2, 4, 8), reduced=(0,), operands=(Operand(Dtype.F32, (0, 0, 1)),) * 2),
        "at most one kept dimension",
    ),
    "strides": (with_operand(0, strides=(1,)), "operand 0 has 1 strides, not 2"),
    "sizes of elements": (
        lambda k: with_operand(1, alias=1, dtype=Dtype.F64)(with_operand(0, alias=1)(k)),
        "elements have another size",
    ),
    "op": (changed(1, op="frobnicate"), "instruction 1 (frobnicate): there is no such op"),
    "arguments": (changed(1, args=(0, 0)), "takes 1 arguments, not 2"),
    "order": (changed(1, args=(1,)), "value 1 does not come before it"),
    "lane": (changed(1, lane=I64), "it has no lane i64"),
    "result": (changed(1, op="isnan"), "its result is b8, not f32"),
    "lane of load": (changed(0, lane=F64), "values of f32 are f32, not f64"),
    "operand": (changed(0, operand=2), "there is no operand 2"),
    "dimension": (with_code(Instruction("index", I64, dim=2)), "there is no dimension 2"),
    "constant": (with_code(Instruction("constant", I64, constant=1.5)), "1.5 is not an integer"),
    "variable": (with_code(Instruction("constant", F32, constant=Variable(0))), "a constant of lane i64"),
    "cast": (changed(1, op="cast"), "says the lane it is from"),
    "round": (changed(1, op="round"), "it says no type"),
    "store of a store": (with_code(LOAD, replace(LATE, args=(0,)), LATE), "1 is a store"),
    "nothing stored": (with_code(LOAD), "stores nothing"),
    "stored twice": (
        lambda k: replace(k, code=(*k.code, replace(LATE, args=(0,)))),
        "was stored to by instruction 2",
    ),
    "load after store": (
        lambda k: with_operand(0, alias=0)(with_operand(1, alias=0)(replace(k, code=(*k.code, LOAD)))),
        "was stored to by instruction 2",
    ),
    "one element many values": (with_operand(1, strides=(8, 0)), "varies where the operand does not"),
    "one element many stores": (with_operand(1, strides=(0, 1)), "several indices store to one element"),
    "gather with strides": (
        lambda k: with_code(Instruction("index", I64, dim=1), Instruction("gather", F32, (0,), operand=0), LATE)(k),
        "the operand has strides",
    ),
    "reduce of pointwise": (
        lambda k: changed(1, op="reduce_sum")(replace(k, reduced=())),
        "has no reduced dimensions",
    ),
    "reduce of a lane": (changed(1, op="reduce_any"), "it does not reduce f32"),
    "columns beside the whole": (
        lambda k: replace(
            k,
            reduced=(0,),
            code=(
                LOAD,
                Instruction("reduce_sum", F32, (0,)),
                Instruction("sub", F32, (0, 1)),
                replace(LATE, args=(2,)),
            ),
        ),
        "beside values of the whole space",
    ),
    "columns reduced again": (
        lambda k: replace(
            k,
            reduced=(0,),
            operands=(k.operands[0], Operand(Dtype.F32, (0, 1))),
            code=(LOAD, SUM, replace(SUM, args=(1,)), LATE),
        ),
        "which columns cannot",
    ),
}


def test_well_formed():
    check(simple().kernel())


@pytest.mark.parametrize("name", ILL_FORMED)
def test_ill_formed(name: str):
    change, message = ILL_FORMED[name]
    with pytest.raises(KernelError, match=re.escape(message)):
        kernel_code(change(simple().kernel()))
