"""Programs as text for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch_neuronx.jit.kernel import Kernel, Variable

from .spec import FlexStep, IntRef, KernelStep, ProgramSpec, Tensor, TensorRef

__all__ = ["listing"]


def listing(spec: ProgramSpec, name: str) -> str:
    """Steps in order with the tensors that they meet, then the kernels."""
    return "\n".join(_lines(spec, name)) + "\n"


def _lines(spec: ProgramSpec, name: str) -> Iterable[str]:
    yield f"program {name}: {spec.inputs} arguments, {len(spec.steps)} steps, {len(spec.kernels)} kernels"
    if spec.symbols:
        yield "symbols " + ", ".join(f"{s.name} = {s.what} of argument {s.argument}" for s in spec.symbols)
    for k, step in enumerate(spec.steps):
        if isinstance(step, KernelStep):
            reads, writes = step.tensors[: -step.stored], step.tensors[-step.stored :]
            call = f"kernel {step.kernel}({', '.join(_tensor(spec, t) for t in reads)})"
        elif isinstance(step, FlexStep):
            read = [_tensor(spec, t) for t in step.tensors if t is not None and t not in step.stored]
            codes = [
                f"kernel {c.kernel}({', '.join(_tensor(spec, t) for t in c.captured)})" if c else "none"
                for c in step.codes
            ]
            writes = step.stored
            call = f"flex_attention{'_backward' if step.backward else ''}({', '.join([*read, *codes])})"
        else:
            args, kwargs = step.args
            shown = [_argument(spec, a) for a in args] + [f"{n}={_argument(spec, a)}" for n, a in kwargs.items()]
            writes = tuple(out for out in step.outs if out is not None)
            call = f"{step.op}.{step.overload or 'default'}({', '.join(shown)})"
        results = ", ".join(_tensor(spec, t) for t in writes)
        yield f"{k:4}  {results + ' = ' if results else ''}{call}    # {step.label}"
    outputs = []
    for output in spec.outputs:
        if output.tensor >= 0:
            outputs.append(_tensor(spec, output.tensor))
        elif output.argument >= 0:
            outputs.append(f"argument {output.argument}")
        else:
            outputs.append("None" if output.number < 0 else str(spec.ints[output.number]))
    yield f"return {', '.join(outputs)}"
    for k, kernel in enumerate(spec.kernels):
        yield ""
        yield from _kernel(k, kernel)


def _tensor(spec: ProgramSpec, index: int) -> str:
    tensor: Tensor = spec.tensors[index]
    buffer = spec.buffers[tensor.buffer]
    place = f"input{buffer.index}" if buffer.kind == "input" else f"{buffer.kind}{tensor.buffer}"
    sizes = ", ".join(str(spec.ints[size]) for size in tensor.sizes)
    return f"{place}:{str(tensor.dtype).removeprefix('torch.')}[{sizes}]"


def _argument(spec: ProgramSpec, argument: Any) -> str:
    if isinstance(argument, TensorRef):
        return _tensor(spec, argument.index)
    if isinstance(argument, IntRef):
        return str(spec.ints[argument.index])
    if isinstance(argument, (list, tuple)):
        return "[" + ", ".join(_argument(spec, a) for a in argument) + "]"
    return str(argument)


def _kernel(number: int, kernel: Kernel) -> Iterable[str]:
    def text(value: Any) -> str:
        return f"n{value.index}" if isinstance(value, Variable) else str(value)

    loops = [f"{text(size)}{' reduced' if dim in kernel.reduced else ''}" for dim, size in enumerate(kernel.sizes)]
    yield f"kernel {number}: loops {' x '.join(loops)}"
    for k, operand in enumerate(kernel.operands):
        shared = f" in place of @{operand.alias}" if operand.alias not in (-1, k) else ""
        yield f"  @{k} {operand.dtype} strides ({', '.join(map(text, operand.strides))}){shared}"
    for k, i in enumerate(kernel.code):
        args = " ".join(f"%{a}" for a in i.args)
        extra = [f"@{i.operand}"] if i.operand >= 0 else []
        extra += [f"loop {i.dim}"] if i.op == "index" else []
        extra += [text(i.constant)] if i.constant is not None else []
        extra += [str(i.dtype)] if i.dtype is not None else []
        target = "" if i.op == "store" else f"%{k} = "
        yield f"  {target}{i.op} {i.lane} {' '.join(filter(None, [args, *extra]))}".rstrip()
