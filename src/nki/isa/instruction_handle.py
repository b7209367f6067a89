"""What a call of an instruction returns: the instruction, to which others can be put in order."""

from __future__ import annotations

from ..errors import DependencyError
from ..instruction import Instruction
from ..trace import active, report, source_line

__all__ = ["NkiInstruction"]


class NkiInstruction(Instruction):
    """An instruction of the kernel that is being traced."""

    __slots__ = ()

    def depends_on(self, *producers: NkiInstruction) -> NkiInstruction:
        """Makes this instruction wait for `producers`, whatever their operands; returns this instruction.

        Raises:
            DependencyError: a producer comes later, belongs to another kernel, or stands in a dynamic loop that this
                instruction is not in.
        """
        for producer in producers:
            problem = _problem(self, producer)
            if problem:
                report(DependencyError(reason=problem, line=source_line()))
        self.after = (*self.after, *producers)
        return self


def _problem(consumer: Instruction, producer: object) -> str:
    if not isinstance(producer, Instruction):
        return f"{producer!r} is no instruction; pass what a nisa function returned"
    trace = active()
    if trace is None:
        return "the kernel has been traced already; call it inside of the kernel"
    instructions = trace.instructions
    for instruction in (producer, consumer):
        index = instruction.index
        if not 0 <= index < len(instructions) or instructions[index] is not instruction:
            return "an instruction of another kernel has no order with this one"
    if producer.index >= consumer.index:
        return (
            f"{producer.op} (line {producer.line[1]}) comes after {consumer.op} (line {consumer.line[1]}) in the "
            "program; only an earlier instruction can be waited for"
        )
    depth = 0
    for between in instructions[producer.index : consumer.index]:
        if between.op in ("loop_begin", "while_begin"):
            depth += 1
        elif between.op in ("loop_end", "while_end"):
            depth -= 1
        if depth < 0:
            return (
                f"{producer.op} (line {producer.line[1]}) stands in a dynamic loop that ended before {consumer.op}; "
                "the loop may have run any number of times"
            )
    return ""
