"""Building kernels, running them on tensors, and an interpreter that says what they mean."""

import ctypes
from collections.abc import Callable, Sequence

import torch
from jit_stages import DTYPES, LANES

from torch_neuronx.jit.compiler import compile_kernel
from torch_neuronx.jit.kernel import Instruction, Int, Kernel, Operand, Variable
from torch_neuronx.jit.kernel_code import kernel_code
from torch_neuronx.jit.stage import Dtype, Lane, lane_of

_DTYPES = {dtype: Dtype(name) for name, dtype in DTYPES.items()}
_SIGNATURE = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64, ctypes.c_int64)
_GUARD = 64  # bytes after scratch memory that must stay as they are


class Builder:
    """Writes a kernel, value by value; methods give the place of the value."""

    def __init__(self, *sizes: Int, reduced: Sequence[int] = ()):
        self.sizes, self.reduced = tuple(sizes), tuple(reduced)
        self.operands: list[Operand] = []
        self.code: list[Instruction] = []

    def operand(self, dtype: torch.dtype, strides: Sequence[Int], offset: Int = 0, alias: int = -1) -> int:
        self.operands.append(Operand(_DTYPES[dtype], tuple(strides), offset, alias))
        return len(self.operands) - 1

    def like(self, tensor: torch.Tensor, alias: int = -1) -> int:
        """The operand for a tensor that has been expanded to the sizes; a stride of 0 where its size is 1."""
        strides = [0 if size == 1 else stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
        return self.operand(tensor.dtype, strides, alias=alias)

    def add(self, op: str, *args: int, lane: Lane | None = None, **fields: object) -> int:
        lane = lane or self.code[args[-1]].lane
        self.code.append(Instruction(op, lane, tuple(args), **fields))
        return len(self.code) - 1

    def compare(self, op: str, *args: int) -> int:
        lane = self.code[args[0]].lane
        return self.add(op, *args, lane=Lane.B8, source=lane)

    def cast(self, value: int, lane: Lane) -> int:
        return self.add("cast", value, lane=lane, source=self.code[value].lane)

    def constant(self, value: float | Variable, lane: Lane = Lane.F32) -> int:
        return self.add("constant", lane=lane, constant=value)

    def index(self, dim: int) -> int:
        return self.add("index", lane=Lane.I64, dim=dim)

    def argument(self, op: str, value: int) -> int:
        """argmax or argmin."""
        return self.add(f"reduce_{op}", value, lane=Lane.I64, source=self.code[value].lane)

    def load(self, operand: int) -> int:
        return self.add("load", lane=lane_of(self.operands[operand].dtype), operand=operand)

    def gather(self, operand: int, offset: int) -> int:
        return self.add("gather", offset, lane=lane_of(self.operands[operand].dtype), operand=operand)

    def store(self, operand: int, value: int) -> None:
        self.add("store", value, lane=lane_of(self.operands[operand].dtype), operand=operand)

    def kernel(self) -> Kernel:
        return Kernel(self.sizes, tuple(self.operands), tuple(self.code), self.reduced)


def run(
    kernel: Kernel | Builder,
    tensors: Sequence[torch.Tensor],
    ints: Sequence[int] = (),
    ranges: Sequence[tuple[int, int]] | None = None,
) -> None:
    """Runs units [begin, end) of each of `ranges`, by default all of them at once."""
    if isinstance(kernel, Builder):
        kernel = kernel.kernel()
    code = kernel_code(kernel)
    function = _SIGNATURE(compile_kernel(kernel))
    addresses = (ctypes.c_void_p * len(tensors))(*[tensor.data_ptr() for tensor in tensors])
    numbers = (ctypes.c_int64 * (len(ints) + 1))(*ints, -(2**63))
    size = code.scratch_bytes(ints)
    scratch = torch.full((size + 64 + _GUARD,), 0x5A, dtype=torch.uint8)
    start = -scratch.data_ptr() % 64
    for begin, end in [(0, code.units(ints))] if ranges is None else ranges:
        function(addresses, numbers, scratch.data_ptr() + start, begin, end)
    assert (scratch[:start] == 0x5A).all()
    assert (scratch[start + size :] == 0x5A).all()


# -- The interpreter --------------------------------------------------------------------------------------------------

_COMPARISONS: dict[str, Callable[..., torch.Tensor]] = {
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "isnan": torch.isnan,
    "isinf": torch.isinf,
    "signbit": torch.signbit,
}
_SAME_NAME = """add sub mul div neg abs sqrt rsqrt reciprocal floor ceil trunc exp exp2 expm1 log log2 log10 log1p sin
cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc erfinv sigmoid lgamma digamma pow atan2 hypot copysign
sign fmod"""
OPS: dict[str, Callable[..., torch.Tensor]] = {
    **_COMPARISONS,
    **{name: getattr(torch, name) for name in _SAME_NAME.split()},
    "fma": lambda a, b, c: a * b + c,
    "min": torch.minimum,
    "max": torch.maximum,
    "nearest": torch.round,
    "mod": torch.remainder,
    "rem": torch.fmod,
    "floordiv": torch.floor_divide,
    "truncdiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "not": torch.bitwise_not,
    "shl": torch.bitwise_left_shift,
    "shr": torch.bitwise_right_shift,
    "select": torch.where,
}


def _flat_argument(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def reduce(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
        start, shape = dims[0], list(x.shape)
        flat = x.flatten(start, dims[-1])
        for dim in dims:
            shape[dim] = 1
        return function(flat, start).reshape(shape)

    return reduce


def _over(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def reduce(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
        for dim in dims:
            x = function(x, dim, keepdim=True)
        return x

    return reduce


_REDUCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "sum": lambda x, dims: x.sum(dims, keepdim=True),
    "prod": _over(torch.prod),
    "max": _over(torch.amax),
    "min": _over(torch.amin),
    "any": _over(torch.any),
    "all": _over(torch.all),
    "argmax": _flat_argument(torch.argmax),
    "argmin": _flat_argument(torch.argmin),
}


def interpret(kernel: Kernel | Builder, tensors: Sequence[torch.Tensor], ints: Sequence[int] = ()) -> None:
    """Runs `kernel` by PyTorch's own ops, whole tensors at a time; floating point in f64, rounded only where stored."""
    if isinstance(kernel, Builder):
        kernel = kernel.kernel()

    def number(value: Int) -> int:
        return ints[value.index] if isinstance(value, Variable) else value

    sizes = [number(size) for size in kernel.sizes]

    def view(operand: int) -> torch.Tensor:
        strides = [number(stride) for stride in kernel.operands[operand].strides]
        offset = tensors[operand].storage_offset() + number(kernel.operands[operand].offset)
        return torch.as_strided(tensors[operand], sizes, strides, offset)

    values: list[torch.Tensor] = []
    stores: list[tuple[torch.Tensor, torch.Tensor]] = []
    for instruction in kernel.code:
        op = instruction.op
        args = [values[arg] for arg in instruction.args]
        if op == "load":
            value = view(instruction.operand).clone()
        elif op == "gather":
            offset = tensors[instruction.operand].storage_offset() + number(kernel.operands[instruction.operand].offset)
            storage = torch.as_strided(tensors[instruction.operand], [offset + int(args[0].max()) + 1], [1], 0)
            value = storage[args[0] + offset]
        elif op == "constant":
            constant = instruction.constant
            value = torch.tensor(number(constant) if isinstance(constant, Variable) else constant)
            value = value.to(LANES[instruction.lane])
        elif op == "index":
            shape = [-1 if dim == instruction.dim else 1 for dim in range(len(sizes))]
            value = torch.arange(sizes[instruction.dim]).reshape(shape)
        elif op == "store":
            target = view(instruction.operand)
            strides = kernel.operands[instruction.operand].strides
            if any(number(strides[dim]) == 0 and sizes[dim] != 1 for dim in kernel.reduced):
                for dim in kernel.reduced:
                    target = target.narrow(dim, 0, 1)
            stores.append((target, args[0]))
            value = args[0]
        elif op == "cast":
            value = args[0] != 0 if instruction.lane == Lane.B8 else args[0].to(LANES[instruction.lane])
        elif op == "round":
            value = args[0].to(DTYPES[instruction.dtype.value])
        elif op.startswith("reduce_"):
            whole = args[0].broadcast_to(sizes)
            value = _REDUCTIONS[op.removeprefix("reduce_")](whole, kernel.reduced)
        else:
            value = OPS[op](*args)
        wide = torch.float64 if instruction.lane in (Lane.F32, Lane.F64) else LANES[instruction.lane]
        values.append(value.to(wide))
    for target, value in stores:
        value = value.broadcast_to(torch.broadcast_shapes(value.shape, target.shape))
        for dim in kernel.reduced:
            if target.shape[dim] == 1:
                value = value.narrow(dim, 0, 1)
        target.copy_(value)


# -- Comparison --------------------------------------------------------------------------------------------------------

TOLERANCES = {torch.float32: 2e-5, torch.float64: 1e-12, torch.bfloat16: 1e-2, torch.float16: 1e-3}


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(*shape, generator=generator, dtype=torch.float32).to(dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 100, shape, generator=generator).to(dtype)


def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = TOLERANCES.get(found.dtype, 0)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


def verify(builder: Builder, tensors: list[torch.Tensor], ints: tuple[int, ...] = (), **kwargs: object) -> None:
    """That machine code leaves in `tensors` what the interpreter does."""
    expected = [torch.empty(0)] * len(tensors)
    copies: dict[int, torch.Tensor] = {}
    for k, tensor in enumerate(tensors):
        storage = tensor.untyped_storage()
        copy = copies.setdefault(storage.data_ptr(), torch.UntypedStorage(storage.nbytes()).copy_(storage))
        expected[k] = torch.empty(0, dtype=tensor.dtype).set_(
            copy, tensor.storage_offset(), tensor.shape, tensor.stride()
        )
    interpret(builder, expected, ints)
    run(builder, tensors, ints, **kwargs)
    for found, wanted in zip(tensors, expected, strict=True):
        assert_same(found, wanted)


def split(count: int) -> list[tuple[int, int]]:
    """[0, count) in three ranges and an empty one, out of order."""
    a, b = count // 3, count - count // 4
    return [(b, count), (0, a), (a, a), (a, b)]


# -- Kernels -----------------------------------------------------------------------------------------------------------


def reduction(
    op: str, x: torch.Tensor, reduced: tuple[int, ...], variable: bool = False
) -> tuple[Builder, torch.Tensor]:
    """A kernel that reduces `x`, and memory for the result."""
    b = Builder(*(Variable(k) if variable else size for k, size in enumerate(x.shape)), reduced=reduced)
    a = b.like(x)
    value = b.load(a)
    value = b.argument(op, value) if op.startswith("arg") else b.add(f"reduce_{op}", value)
    kept = [1 if dim in reduced else size for dim, size in enumerate(x.shape)]
    dtype = LANES[b.code[value].lane.value]
    out = torch.zeros(kept, dtype=dtype)
    strides = [0 if dim in reduced else stride for dim, stride in enumerate(out.stride())]
    b.store(b.operand(dtype, strides), value)
    return b, out


def row_kernel(name: str, sizes: tuple[int | Variable, ...], dtype: torch.dtype = torch.float32) -> Builder:
    """A kernel over rows of the last dimension: x -> out, both dense with the strides of `sizes`."""
    rows, length = sizes
    b = Builder(rows, length, reduced=(1,))
    x, out = b.operand(dtype, (length, 1)), b.operand(dtype, (length, 1))
    value = b.load(x)
    if name in ("softmax", "log softmax"):
        shifted = b.add("sub", value, b.add("reduce_max", value))
        exp = b.add("exp", shifted)
        total = b.add("reduce_sum", exp)
        result = b.add("div", exp, total) if name == "softmax" else b.add("sub", shifted, b.add("log", total))
    elif name == "layer norm":
        length_as_float = b.cast(b.constant(length, Lane.I64), Lane.F32)
        mean = b.add("div", b.add("reduce_sum", value), length_as_float)
        centred = b.add("sub", value, mean)
        variance = b.add("div", b.add("reduce_sum", b.add("mul", centred, centred)), length_as_float)
        result = b.add("mul", centred, b.add("rsqrt", b.add("add", variance, b.constant(1e-5))))
    else:
        weight, bias = b.operand(dtype, (0, 1)), b.operand(dtype, (1, 0))
        gelu = b.add("mul", value, b.add("add", b.add("erf", value), b.constant(1.0)))
        scale = b.add("rsqrt", b.add("reduce_sum", b.add("mul", gelu, gelu)))
        result = b.add("add", b.add("mul", b.add("mul", gelu, scale), b.load(weight)), b.load(bias))
    b.store(out, result)
    return b
