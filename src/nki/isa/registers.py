"""Registers of the engines' sequencers: numbers that are known only when the kernel runs.

`VirtualRegister` is what kernels allocate and load; `NkiScalar` is a value made by loading or by arithmetic, which does
not change. Both may stand for an index (scalar_offset=, nl.ds), a bound of nl.fori_loop, or an offset of nisa.iota.
"""

from __future__ import annotations

from typing import Any, NoReturn

from .. import errors
from ..element_types import DType, of
from ..tensor import NkiTensor
from ..trace import Register, Trace, current
from .validation import emit, fail, integer, refuse, require_dtype, require_region, tensor

__all__ = [
    "NkiScalar", "VirtualRegister", "register_alloc", "register_load", "register_move", "register_store",
    "scalar_load", "scalar_store"
]  # fmt: skip

INT32 = of("int32")
_SCALARS = frozenset({"int32", "int64"})
_PACKED = frozenset({"float8_e4m3fn_x4", "float8_e5m2_x4", "float4_e2m1fn_x4"})
# What a register of 32 bits holds: as a signed or as an unsigned number.
_LOWEST, _HIGHEST = -(2**31), 2**32 - 1


class VirtualRegister(Register):
    """A register. Its value is not known in Python: `if`, `while`, int() and range() raise RegisterInPythonError.

    `+`, `-` and `*` with integers and other registers are computed when the kernel runs and give an NkiScalar.
    """

    __slots__ = ()

    @property
    def dtype(self) -> DType:
        return INT32

    def __bool__(self) -> NoReturn:
        refuse(errors.RegisterInPythonError, use="if, while, and, or, not")

    def __int__(self) -> NoReturn:
        refuse(errors.RegisterInPythonError, use="int()")

    def __float__(self) -> NoReturn:
        refuse(errors.RegisterInPythonError, use="float()")

    def __index__(self) -> NoReturn:
        refuse(errors.RegisterInPythonError, use="range() or an index")

    def __iter__(self) -> NoReturn:
        refuse(errors.RegisterInPythonError, use="iteration")

    def __add__(self, other: Any) -> NkiScalar:
        return _arithmetic("add", self, other)

    def __radd__(self, other: Any) -> NkiScalar:
        return _arithmetic("add", other, self)

    def __sub__(self, other: Any) -> NkiScalar:
        return _arithmetic("subtract", self, other)

    def __rsub__(self, other: Any) -> NkiScalar:
        return _arithmetic("subtract", other, self)

    def __mul__(self, other: Any) -> NkiScalar:
        return _arithmetic("multiply", self, other)

    def __rmul__(self, other: Any) -> NkiScalar:
        return _arithmetic("multiply", other, self)

    def __neg__(self) -> NkiScalar:
        return _arithmetic("subtract", 0, self)

    def __pos__(self) -> VirtualRegister:
        return self

    def __repr__(self) -> str:
        return f"register {self.number}"


class NkiScalar(VirtualRegister):
    """One integer of 32 or 64 bits, computed when the kernel runs.

    Arithmetic wraps at its width. Comparisons exist at 32 bits only, and their result can be used by nothing but other
    instructions.

    Attributes:
        dtype: nl.int32 or nl.int64.
    """

    __slots__ = ("_dtype",)

    def __init__(self, trace: Trace, dtype: Any = INT32) -> None:
        super().__init__(trace)
        self._dtype = of(dtype)

    @property
    def dtype(self) -> DType:
        return self._dtype

    __hash__ = object.__hash__

    def __lt__(self, other: Any) -> NkiScalar:
        return _arithmetic("less", self, other)

    def __le__(self, other: Any) -> NkiScalar:
        return _arithmetic("less_equal", self, other)

    def __gt__(self, other: Any) -> NkiScalar:
        return _arithmetic("greater", self, other)

    def __ge__(self, other: Any) -> NkiScalar:
        return _arithmetic("greater_equal", self, other)

    def __eq__(self, other: Any) -> NkiScalar:  # type: ignore[override]
        return _arithmetic("equal", self, other)

    def __ne__(self, other: Any) -> NkiScalar:  # type: ignore[override]
        return _arithmetic("not_equal", self, other)


def _arithmetic(operator: str, a: Any, b: Any) -> NkiScalar:
    for value in (a, b):
        if not isinstance(value, VirtualRegister) and (isinstance(value, bool) or not hasattr(value, "__index__")):
            refuse(
                errors.NotARegisterError,
                op=operator,
                operand="an operand",
                value=value,
                allowed="a register or an integer",
            )
    dtypes = {value.dtype for value in (a, b) if isinstance(value, VirtualRegister)}
    if len(dtypes) > 1:
        refuse(
            errors.RegisterWidthError,
            op=operator,
            reason="the operands have 32 and 64 bits; load both from tiles of the same type",
        )
    dtype = dtypes.pop()
    if dtype == "int64" and operator not in ("add", "subtract", "multiply"):
        refuse(errors.RegisterWidthError, op=operator, reason="registers of 64 bits have no comparisons; load an int32")
    trace = current()
    result = NkiScalar(trace, dtype)
    args = tuple(value if isinstance(value, VirtualRegister) else int(value.__index__()) for value in (a, b))
    # The width at which the result wraps goes with the operator.
    emit(trace, "register_alu", "sync", (result,), args, (operator, 64) if dtype == "int64" else (operator,), None)
    return result


def _register(value: Any, op: str, operand: str) -> Register:
    if not isinstance(value, Register):
        refuse(
            errors.NotARegisterError,
            op=op,
            operand=operand,
            value=value,
            allowed="a register, as nisa.register_alloc makes them",
        )
    return value


def _writable(value: Any, op: str) -> Register:
    register = _register(value, op, "dst")
    if isinstance(register, NkiScalar):
        refuse(
            errors.NotARegisterError,
            op=op,
            operand="dst",
            value=value,
            allowed="a register of nisa.register_alloc: the value of an NkiScalar does not change",
        )
    return register


def _single(view: Any, op: str, operand: str) -> NkiTensor:
    tile = tensor(view, op, operand)
    if tile.size != 1:
        fail(errors.OperandShapeError, op=op, operand=operand, shape=tile.shape, expected="exactly one element")
    require_region(tile, op, operand, "sbuf", "private_hbm", "shared_hbm")
    if tile.dtype in _PACKED:
        fail(
            errors.OperandDtypeError,
            op=op,
            operand=operand,
            dtype=tile.dtype,
            allowed="types of one element",
            cure="View it as nl.uint32 or nl.uint16.",
        )
    return tile


def register_alloc(x: int | None = None) -> VirtualRegister:
    """A register of 32 bits, holding the integer `x` (or another register's value), or anything if that is None.

    Raises:
        OperandValueError: `x` needs more than 32 bits.
    """
    trace = current()
    register = VirtualRegister(trace)
    if x is not None:
        register_move(register, x)
    return register


def register_move(dst: Any, src: Any) -> None:
    """Puts an integer, or another register's value, into register `dst`."""
    register = _writable(dst, "register_move")
    if not isinstance(src, Register):
        src = integer(src, "register_move", "src")
        if not _LOWEST <= src <= _HIGHEST:
            fail(
                errors.OperandValueError,
                op="register_move",
                operand="src",
                value=src,
                allowed="integers of 32 bits",
            )
    emit(current(), "register_move", "sync", (register,), (src,), (), None)


def register_load(dst: Any, src: NkiTensor) -> None:
    """Reads the one element of `src` (SBUF or HBM, up to 32 bits) into register `dst`."""
    register = _writable(dst, "register_load")
    tile = _single(src, "register_load", "src")
    emit(current(), "register_load", "sync", (register,), (tile,), (), None)


def register_store(dst: NkiTensor, src: Any) -> None:
    """Writes the value of register `src` into the one element of `dst` (SBUF or HBM)."""
    register = _register(src, "register_store", "src")
    tile = _single(dst, "register_store", "dst")
    emit(current(), "register_store", "sync", (tile,), (register,), (), None)


def scalar_load(src: NkiTensor) -> NkiScalar:
    """The one element of `src`, int32 or int64 in SBUF or HBM, as a scalar of that type.

    Raises:
        OperandDtypeError: another type; unsigned ones are none of them.
    """
    tile = _single(src, "scalar_load", "src")
    require_dtype(tile, _SCALARS, "scalar_load", "src", "Convert it with nisa.tensor_copy, or use register_load.")
    trace = current()
    result = NkiScalar(trace, tile.dtype)
    emit(trace, "register_load", "sync", (result,), (tile,), (), None)
    return result


def scalar_store(dst: NkiTensor, value: NkiScalar) -> None:
    """Writes a scalar into the one element of `dst`, which has its type.

    Raises:
        NotARegisterError: `value` is an integer; nisa.memset writes constants.
        RegisterWidthError: `dst` has another width.
    """
    if not isinstance(value, NkiScalar):
        refuse(
            errors.NotARegisterError,
            op="scalar_store",
            operand="value",
            value=value,
            allowed="an NkiScalar; nisa.memset writes what is known while tracing",
        )
    tile = _single(dst, "scalar_store", "dst")
    require_dtype(tile, _SCALARS, "scalar_store", "dst", "")
    if tile.dtype != value.dtype:
        fail(
            errors.RegisterWidthError,
            op="scalar_store",
            reason=f"a scalar of type {value.dtype} does not fit into dst of type {tile.dtype}; store it at its own "
            "width and convert in memory",
        )
    emit(current(), "register_store", "sync", (tile,), (value,), (), None)


def offset_of(value: Any, op: str) -> Any:
    """The offset of an affine pattern: an integer of 32 bits, or a register."""
    if isinstance(value, Register):
        return value
    offset = integer(value, op, "offset")
    if not _LOWEST <= offset < 2**31:
        fail(errors.OperandValueError, op=op, operand="offset", value=offset, allowed="integers of 32 bits")
    return offset
