"""Instructions: what a traced kernel consists of.

One `Instruction` is one hardware instruction (or one step of control). Everything that works on kernels - execution,
checks, the timeline, dependencies - reads this record and nothing else; the extension module reads it by the names of
its fields.

## The instruction set

Operands are views of tensors (:class:`~nki.tensor.NkiTensor`), numbers, registers, or None where one is absent. `out`
are written, `in` are read (what is read *and* written, as the target of an accumulating matmul, stands in `out` only).
`attrs` are known when the kernel is traced: numbers, strings, booleans, None, tuples of them, and for table_copy and
masked_copy NumPy arrays. ALU operators and functions stand there by name ("add", "gelu"). Reduce commands: "idle",
"reset", "reduce", "reset_reduce", "load_reduce".

| op | out | in | attrs |
|---|---|---|---|
| dma_copy | dst | src | skip_out_of_bounds |
| dma_transpose | dst | src | axes, skip_out_of_bounds |
| dma_compute | dst | *srcs | op, scales, skip_out_of_bounds |
| table_copy | dst | src | dst_table, src_table: int64 element numbers in the storage, -1 for "leave out"; or None |
| masked_copy | dst | src | mask: bool array of dst's shape |
| matmul | dst | stationary, moving | accumulate (True, False; None: to what one wrote before), double_row, transposes |
| matmul_mx | dst | stationary, moving, stationary_scale, moving_scale | accumulate |
| transpose | dst | data | |
| copy | dst | src | |
| fill | dst | | value |
| copy_predicated | dst | src, predicate | reverse |
| tensor_tensor | dst | a, b | op, native_integers |
| tensor_scalar | dst | data, operand0, operand1 | op0, reverse0, op1, reverse1 |
| scalar_tensor_tensor | dst | data, operand0, operand1 | op0, op1, reverse0, reverse1 |
| tensor_reduce | dst | data | op, count of trailing dimensions that are reduced, negate |
| tensor_scalar_reduce | dst, res | data, operand0, init | op0, reverse0, reduce_op, reduce_cmd, negate |
| tensor_scalar_cumulative | dst | src, imm0, imm1 | op0, op1, reduce_cmd |
| scan | dst | data0, data1, initial | op0, op1, reverse0, reverse1 |
| partition_reduce | dst | data | op |
| activation | dst, res | data, bias, scale | function, reduce_op, reduce_cmd |
| activate2 | dst, res | data, imm0, imm1, relu_param | function, op0, op1, reverse0, reverse1, reduce_op, reduce_cmd |
| exponential | dst, res | src, max_value, init | reduce_cmd |
| reciprocal | dst | data | |
| quantize_mx | dst, scale | src | |
| bn_stats, bn_aggr | dst | data | |
| max8 | dst | src | |
| find_index8 | dst | data, vals | |
| match_replace8 | dst, dst_idx | data, vals | imm |
| shuffle | dst | src | mask (32 numbers; 255 keeps) |
| range_select | dst, res | data, bound0, bound1 | op0, op1, reduce_cmd, reduce_op, range_start, on_false |
| select_reduce | dst, res | predicate, on_true, on_false | reduce_cmd, reduce_op, reverse |
| dropout | dst | data, probability | |
| rng | dst | | |
| rand2 | dst | min, max | |
| set_rng_seed, rand_set_state | | seeds | |
| rand_get_state | dst | | |
| iota | dst | offset | pattern ((step, count), ...), channel_multiplier |
| affine_select | dst | data, offset | pattern, channel_multiplier, on_false, op |
| local_gather | dst | src, index | elements per index, valid indices or None |
| n_gather | dst | data, indices | |
| nonzero_with_count | dst | src | index_offset, padding |
| sequence_bounds | dst | segment_ids | |
| topk | values, indices | src | n |
| print | | tensor | prefix |
| register_move | register | value | |
| register_load | register | tensor of one element | |
| register_store | tensor of one element | value | |
| register_alu | register | a, b | op; 64 where the result wraps at 64 bits, not 32 |
| loop_begin | register | lower, upper | step |
| loop_end | | | |
| while_begin | | register | |
| while_end | | | |
| barrier | | | cores |
| sendrecv | dst | src | send_to, receive_from, pipe |
| collective | *dsts | *srcs | kind, groups, op, dimension, channels; see nki.collectives |
"""

from __future__ import annotations

from typing import Any

__all__ = ["Instruction", "Line"]

# File, line number and name of the function that a source line of a kernel belongs to.
Line = tuple[str, int, str]


class Instruction:
    """One instruction of a traced kernel; the table above says what its fields hold.

    Attributes:
        op: name in the instruction set.
        engine: "tensor", "vector", "scalar", "gpsimd", "dma", "sync" (control and registers).
        out: operands written.
        args: operands read.
        attrs: what is known when the kernel is traced.
        line: where the kernel says so.
        name: the name that the kernel gave it, or "".
        after: instructions that must come before it whatever their operands (depends_on, no_reorder).
        index: place in the trace.
        hints: what changes time but no result: tile_position, dge_mode, priority, ...
    """

    __slots__ = ("after", "args", "attrs", "engine", "hints", "index", "line", "name", "op", "out")

    def __init__(
        self,
        op: str,
        engine: str,
        out: tuple[Any, ...],
        args: tuple[Any, ...],
        attrs: tuple[Any, ...],
        line: Line,
        name: str = "",
        hints: dict[str, Any] | None = None,
    ) -> None:
        self.op = op
        self.engine = engine
        self.out = out
        self.args = args
        self.attrs = attrs
        self.line = line
        self.name = name
        self.after: tuple[Instruction, ...] = ()
        self.index = -1
        self.hints = hints

    def __repr__(self) -> str:
        def text(operands: tuple[Any, ...]) -> str:
            return ", ".join(str(o) for o in operands)

        attrs = f" {self.attrs}" if self.attrs else ""
        return f"{self.index}: {text(self.out)} = {self.engine}.{self.op}({text(self.args)}){attrs}"
