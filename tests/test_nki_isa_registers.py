"""Registers and scalars: numbers that a kernel has only while it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from nki_tiles import hbm, i32, psum, tile

import nki.isa as nisa
from nki import errors
from nki.trace import Register, Trace, tracing


def test_registers_are_moved_loaded_and_stored() -> None:
    with tracing(Trace("trn2")) as trace:
        cell = i32(1, 1)
        counter = nisa.register_alloc(np.int64(5))
        other = nisa.register_alloc()
        nisa.register_move(other, counter)
        nisa.register_load(other, cell)
        nisa.register_store(dst=hbm(1, dtype="int32"), src=other)
    assert [i.op for i in trace.instructions] == ["register_move", "register_move", "register_load", "register_store"]
    assert {i.engine for i in trace.instructions} == {"sync"}
    assert trace.instructions[0].args == (5,)
    assert trace.instructions[1].args == (counter,)
    assert trace.instructions[2].out == (other,)
    assert (counter.number, other.number, trace.registers) == (0, 1, 2)
    assert isinstance(counter, Register)


@pytest.mark.parametrize(
    "use",
    [bool, int, float, range, list, lambda r: [1, 2][r], lambda r: r and 1, lambda r: not r],
    ids=["bool", "int", "float", "range", "list", "index", "and", "not"],
)
@pytest.mark.parametrize("scalar", [False, True])
def test_values_are_not_known_in_python(use: Callable[[Any], Any], scalar: bool) -> None:
    with tracing(Trace("trn2")):
        value = nisa.scalar_load(i32(1, 1)) if scalar else nisa.register_alloc(3)
        with pytest.raises(errors.RegisterInPythonError, match="fori_loop") as raised:
            use(value)
    assert isinstance(raised.value, TypeError)
    assert raised.value.line is not None
    assert raised.value.line[0] == __file__


def test_arithmetic_is_traced() -> None:
    with tracing(Trace("trn2")) as trace:
        i = nisa.scalar_load(i32(1, 1))
        result = -(2 * i - 1) + i
        nisa.scalar_store(i32(1, 1), result)
    made = [
        (i.attrs, tuple(a.number if isinstance(a, Register) else a for a in i.args)) for i in trace.instructions[1:-1]
    ]
    assert [attrs for attrs, _ in made] == [("multiply",), ("subtract",), ("subtract",), ("add",)]
    assert made[0][1] == (2, i.number)
    assert made[1][1][1] == 1
    assert made[2][1][0] == 0
    assert trace.instructions[-1].args == (result,)
    assert result.dtype == "int32"


def test_comparisons_of_scalars_are_traced() -> None:
    with tracing(Trace("trn2")) as trace:
        i = nisa.scalar_load(i32(1, 1))
        flag = i < 4
        same = i == i + 0
        with pytest.raises(errors.RegisterInPythonError):
            bool(flag)
    assert isinstance(same, nisa.NkiScalar)
    assert [i.attrs[0] for i in trace.instructions[1:]] == ["less", "add", "equal"]


def test_wide_scalars_have_no_comparisons_and_do_not_mix() -> None:
    with tracing(Trace("trn2")) as trace:
        wide, narrow = nisa.scalar_load(tile(1, 1, dtype="int64")), nisa.scalar_load(i32(1, 1))
        assert (wide + 1).dtype == "int64"
        assert trace.instructions[-1].attrs == ("add", 64)
        with pytest.raises(errors.RegisterWidthError, match="comparisons"):
            wide < 4  # noqa: B015
        with pytest.raises(errors.RegisterWidthError, match="32 and 64"):
            wide + narrow
        with pytest.raises(errors.RegisterWidthError, match="int32"):
            nisa.scalar_store(i32(1, 1), wide)


@pytest.mark.parametrize(
    ("call", "mistake", "text"),
    [
        (lambda: nisa.register_move(3, 4), errors.NotARegisterError, "register_alloc"),
        (lambda: nisa.register_alloc(1.5), errors.NotANumberError, "integer"),
        (lambda: nisa.register_alloc(2**32), errors.OperandValueError, "32 bits"),
        (lambda: nisa.register_load(nisa.register_alloc(), i32(1, 2)), errors.OperandShapeError, "one element"),
        (lambda: nisa.register_load(nisa.register_alloc(), psum(1, 1)), errors.WrongBufferError, "psum"),
        (lambda: nisa.register_load(nisa.scalar_load(i32(1, 1)), i32(1, 1)), errors.NotARegisterError, "NkiScalar"),
        (lambda: nisa.scalar_load(tile(1, 1, dtype="uint32")), errors.OperandDtypeError, "int32, int64"),
        (lambda: nisa.scalar_store(i32(1, 1), 3), errors.NotARegisterError, "memset"),
        (lambda: nisa.register_alloc(1) + 1.5, errors.NotARegisterError, "1.5"),
        (lambda: nisa.memset(tile(1, 1), nisa.register_alloc(1)), errors.NotANumberError, "value"),
    ],
)
def test_mistake(call: Callable[[], Any], mistake: type[errors.NkiError], text: str) -> None:
    with tracing(Trace("trn2")), pytest.raises(mistake, match=text):
        call()
