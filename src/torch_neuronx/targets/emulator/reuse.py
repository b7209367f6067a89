"""Memory whose contents nobody needs any more is used again.

A kernel without reductions writes over an operand that it reads for the last time. Large intermediate results get
blocks of their own, and give them back, as arguments that nobody else has ("donated": saved activations), after the
last step that reads them: what is given back is there for later steps, results among them. Small ones share one block
for the whole run (memory.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch_neuronx.jit.kernel import Kernel

from .spec import Buffer, KernelStep, ProgramSpec, Tensor, tensors_of

__all__ = ["reuse_memory"]

# Smaller results stay where they are: a kernel of its own for each alias, or a call of the allocator, costs more than
# the memory.
_LEAST_BYTES = 65536


def reuse_memory(spec: ProgramSpec, donated: Sequence[int]) -> ProgramSpec:
    """The same program with other buffers, where its sizes are numbers.

    Args:
        spec: the program; it is left as it is.
        donated: arguments that nobody looks at after the run.
    """
    if spec.dynamic:
        return spec
    spec = dataclasses.replace(
        spec,
        buffers=list(spec.buffers),
        tensors=list(spec.tensors),
        kernels=list(spec.kernels),
        work=list(spec.work),
        steps=list(spec.steps),
        donated=[],
    )
    _Reuse(spec).run(donated)
    return spec


class _Reuse:
    def __init__(self, spec: ProgramSpec) -> None:
        self._spec = spec
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {}
        for k, step in enumerate(spec.steps):
            for tensor in tensors_of(step):
                buffer = spec.tensors[tensor].buffer
                self._first.setdefault(buffer, k)
                self._last[buffer] = k
        for output in spec.outputs:
            if output.tensor >= 0:
                self._last[spec.tensors[output.tensor].buffer] = len(spec.steps)

    def run(self, donated: Sequence[int]) -> None:
        for k in range(len(self._spec.steps)):
            self._write_over(k)
        leaving = {output.argument for output in self._spec.outputs}
        leaving |= {self._spec.tensors[output.tensor].buffer for output in self._spec.outputs if output.tensor >= 0}
        self._spec.donated = [(k, self._last.get(k, -1)) for k in donated if k not in leaving]
        self._note_lives()

    # -- In place ------------------------------------------------------------------------------------------------------
    def _write_over(self, k: int) -> None:
        spec, step = self._spec, self._spec.steps[k]
        if not isinstance(step, KernelStep) or spec.kernels[step.kernel].reduced:
            return
        kernel = spec.kernels[step.kernel]
        loads = len(step.tensors) - step.stored
        aliases = [operand.alias for operand in kernel.operands]
        for result in range(loads, len(step.tensors)):
            new = spec.tensors[step.tensors[result]]
            if spec.buffers[new.buffer].kind not in ("arena", "output") or not self._is_alone(new, k):
                continue
            for source in range(loads):
                old = spec.tensors[step.tensors[source]]
                if (
                    aliases[source] == -1
                    and kernel.operands[source].strides == kernel.operands[result].strides
                    and self._is_last_look(step, source, k)
                    and self._same_place(old, new)
                ):
                    aliases[source] = aliases[result] = source
                    self._merge(old.buffer, new.buffer)
                    break
        if any(alias != -1 for alias in aliases):
            operands = tuple(
                dataclasses.replace(operand, alias=alias)
                for operand, alias in zip(kernel.operands, aliases, strict=True)
            )
            spec.steps[k] = dataclasses.replace(
                step, kernel=self._variant(step.kernel, dataclasses.replace(kernel, operands=operands))
            )

    def _is_alone(self, tensor: Tensor, k: int) -> bool:
        """A result that begins to live in this step, is the whole of its buffer, and large."""
        buffer = self._spec.buffers[tensor.buffer]
        return (
            self._first.get(tensor.buffer) == k
            and self._bytes(buffer) >= _LEAST_BYTES
            and self._bytes(buffer) == self._size(tensor)
        )

    def _is_last_look(self, step: KernelStep, source: int, k: int) -> bool:
        buffer = self._spec.tensors[step.tensors[source]].buffer
        uses = sum(self._spec.tensors[t].buffer == buffer for t in step.tensors)
        return self._spec.buffers[buffer].kind == "arena" and self._last[buffer] == k and uses == 1

    def _same_place(self, old: Tensor, new: Tensor) -> bool:
        ints = self._spec.ints
        return (
            old.dtype.itemsize == new.dtype.itemsize
            and ints[old.offset] == ints[new.offset] == 0
            and self._bytes(self._spec.buffers[old.buffer])
            == self._bytes(self._spec.buffers[new.buffer])
            == self._size(old)
        )

    def _merge(self, old: int, new: int) -> None:
        """`new` begins where `old` ends, in the same memory: that of a result that leaves the program, if it is one."""
        spec = self._spec
        kept, gone = (new, old) if spec.buffers[new].kind == "output" else (old, new)
        spec.tensors[:] = [dataclasses.replace(t, buffer=kept) if t.buffer == gone else t for t in spec.tensors]
        self._first[kept], self._last[kept] = self._first[old], self._last[new]
        self._first.pop(gone)
        self._last.pop(gone)

    def _variant(self, number: int, kernel: Kernel) -> int:
        spec = self._spec
        if kernel not in spec.kernels:
            spec.kernels.append(kernel)
            spec.work.append(spec.work[number])
        return spec.kernels.index(kernel)

    # -- Lives ---------------------------------------------------------------------------------------------------------
    def _note_lives(self) -> None:
        spec = self._spec
        for k, buffer in enumerate(spec.buffers):
            if buffer.kind in ("arena", "output"):
                if k in self._first or any(t.buffer == k for t in spec.tensors):
                    large = buffer.kind == "arena" and self._bytes(buffer) >= _LEAST_BYTES and k in self._first
                    spec.buffers[k] = dataclasses.replace(
                        buffer,
                        kind="block" if large else buffer.kind,
                        first=self._first.get(k, 0),
                        last=self._last.get(k, 0),
                    )
                else:  # its tensors are elsewhere
                    spec.buffers[k] = Buffer("none")

    def _bytes(self, buffer: Buffer) -> int:
        return int(self._spec.ints[buffer.nbytes]) if buffer.nbytes >= 0 else 0

    def _size(self, tensor: Tensor) -> int:
        elements = 1
        for size in tensor.sizes:
            elements *= int(self._spec.ints[size])
        return elements * tensor.dtype.itemsize
