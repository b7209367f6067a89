"""Programs made ready to run: machine code for their kernels, and the device's own form of the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch.utils._sympy.printers import PythonPrinter

from torch_neuronx import _C
from torch_neuronx.jit.cache import ObjectCache
from torch_neuronx.jit.compiler import compile_kernels
from torch_neuronx.jit.kernel_code import kernel_code

from .memory import plan_arena
from .reuse import reuse_memory
from .spec import Buffer, FlexStep, IntRef, KernelStep, ProgramSpec, TensorRef

__all__ = ["Executable"]

# A thread gets at least so much work (in additions of one element): waking it costs about 5 us.
_WORK_PER_THREAD = 32768
# Sizes for which a program with dynamic shapes keeps its memory plan.
_MAX_BINDINGS = 256


class Executable:
    """`run(args)` launches the program and returns its results; `args` is a list and is emptied.

    Args:
        spec: the program; it is left as it is.
        name: for errors and listings.
        arguments: type and device of each tensor, None for numbers.
        donated: arguments that nobody looks at after a run.
        cache: where machine code is kept.
    """

    def __init__(
        self,
        spec: ProgramSpec,
        name: str,
        arguments: Sequence[tuple[torch.dtype, str] | None],
        donated: Sequence[int],
        cache: ObjectCache | None,
    ) -> None:
        spec = self._spec = reuse_memory(spec, donated)
        codes = [kernel_code(kernel) for kernel in spec.kernels]
        addresses = compile_kernels(spec.kernels, cache)
        builder = _C.ProgramBuilder(name, spec.device, list(arguments), spec.synchronous)
        # Numbers that follow from others: offsets in the arena, then units, grain and scratch of each kernel step.
        extra = len(spec.ints)
        buffers: list[int] = []
        self._arena: list[Buffer] = []
        for k, buffer in enumerate(spec.buffers):
            if buffer.kind == "input":
                buffers.append(k)
            elif buffer.kind == "none":
                buffers.append(-1)
            elif buffer.kind == "constant":
                buffers.append(builder.constant(spec.constants[buffer.index]))
            elif buffer.kind == "output":
                on_cpu = any(t.buffer == k and t.on_cpu for t in spec.tensors)
                if on_cpu:
                    buffers.append(builder.host_output(buffer.nbytes))
                else:
                    buffers.append(builder.output(buffer.nbytes, first=max(buffer.first, 0)))
            elif buffer.kind == "block":
                buffers.append(builder.block(buffer.nbytes, first=buffer.first, last=buffer.last))
            else:
                buffers.append(builder.arena(extra + len(self._arena)))
                self._arena.append(buffer)
        extra += len(self._arena)
        for argument, last in spec.donated:
            builder.donate(argument, last)
        for tensor in spec.tensors:
            builder.tensor(
                buffers[tensor.buffer], tensor.dtype, list(tensor.sizes), list(tensor.strides), tensor.offset
            )
        self._kernel_steps: list[tuple[Any, KernelStep]] = []
        for step in spec.steps:
            if isinstance(step, KernelStep):
                place = extra + 3 * len(self._kernel_steps)
                self._kernel_steps.append((codes[step.kernel], step))
                builder.kernel(
                    addresses[step.kernel],
                    list(step.tensors),
                    list(step.ints),
                    place,
                    place + 1,
                    place + 2,
                    step.label.partition(" (")[0],
                    step.label,
                )
            elif isinstance(step, FlexStep):
                builder.flex(
                    step.backward,
                    list(step.tensors),
                    step.scale,
                    *step.blocks,
                    [(addresses[c.kernel], list(c.captured), list(c.ints)) if c else (0, [], []) for c in step.codes],
                    step.label,
                )
            else:
                args, kwargs = step.args
                builder.call(
                    step.op,
                    step.overload,
                    [_tagged(a) for a in args],
                    {k: _tagged(a) for k, a in kwargs.items()},
                    list(step.outs),
                    step.label,
                )
        outputs: list[tuple[str, int] | None] = []
        self._numbers: list[tuple[int, int]] = []
        for k, output in enumerate(spec.outputs):
            if output.argument >= 0:
                outputs.append(("argument", output.argument))
            elif output.tensor >= 0:
                outputs.append(("tensor", output.tensor))
            else:
                outputs.append(None)
                if output.number >= 0:
                    self._numbers.append((k, output.number))
        self.program = builder.build(outputs)
        self._bindings: dict[tuple[int, ...], Any] = {}
        self._tables: dict[tuple[int, ...], list[int]] = {}
        self.run: Callable[[list[Any]], list[Any]]
        if spec.dynamic:
            self._evaluate = _evaluator(spec)
            self.run = self._run_dynamic
        else:
            self.binding = self._bind([int(i) for i in spec.ints])
            self.run = self._run_static

    def _run_static(self, args: list[Any]) -> list[Any]:
        results = self.binding.run(args, clear=True)
        for k, number in self._numbers:
            results[k] = self._spec.ints[number]
        return results

    def _run_dynamic(self, args: list[Any]) -> list[Any]:
        symbols = tuple(
            args[s.argument]
            if s.what == "value"
            else args[s.argument].shape[s.dim]
            if s.what == "size"
            else args[s.argument].stride(s.dim)
            for s in self._spec.symbols
        )
        binding = self._bindings.get(symbols)
        if binding is None:
            if len(self._bindings) >= _MAX_BINDINGS:
                oldest = next(iter(self._bindings))
                del self._bindings[oldest], self._tables[oldest]
            ints = self._tables[symbols] = self._evaluate(*symbols)
            binding = self._bindings[symbols] = self._bind(ints)
        results = binding.run(args, clear=True)
        for k, number in self._numbers:
            results[k] = self._tables[symbols][number]
        return results

    def _bind(self, ints: list[int]) -> Any:
        offsets, _ = plan_arena([(ints[b.nbytes], b.first, b.last) for b in self._arena])
        table = [*ints, *offsets]
        for code, step in self._kernel_steps:
            own = [ints[k] for k in step.ints]
            work = max(1.0, code.elements_per_unit(own) * self._spec.work[step.kernel])
            table += [code.units(own), max(1, int(_WORK_PER_THREAD / work)), code.scratch_bytes(own)]
        return self.program.bind(table)


def _tagged(argument: Any) -> Any:
    if isinstance(argument, TensorRef):
        return ("tensor", argument.index)
    if isinstance(argument, IntRef):
        return ("int", argument.index)
    if isinstance(argument, list):
        if any(isinstance(a, TensorRef) for a in argument):
            return ("tensors", [a.index if a is not None else None for a in argument])
        if any(isinstance(a, IntRef) for a in argument):
            return ("ints", [a.index for a in argument])
    return argument


def _evaluator(spec: ProgramSpec) -> Callable[..., list[int]]:
    """A function from the values of the symbols to all of `spec.ints`."""
    printer = PythonPrinter()
    items = ", ".join(printer.doprint(i) if isinstance(i, sympy.Expr) else str(i) for i in spec.ints)
    names = ", ".join(s.name for s in spec.symbols)
    space: dict[str, Any] = {"math": __import__("math"), "torch": torch}
    exec(f"def ints({names}):\n    return [{items}]", space)
    return space["ints"]
