"""Mistakes in single instructions: operands, memories, types, engines, operators, registers.

Part of the catalogue nki.errors, which has these classes too.
"""

from __future__ import annotations

from .base_errors import NkiError, NkiValidationError

__all__ = [
    "BothInPsumError",
    "DependencyError",
    "DescriptorModeError",
    "DoubleRowError",
    "DtypeMismatchError",
    "DynamicOperandError",
    "ElementCountError",
    "EngineError",
    "EnumMemberError",
    "FreeSizeError",
    "GenerationError",
    "MissingOperandError",
    "MixedOperatorsError",
    "NoOtherCoreError",
    "NotANumberError",
    "NotARegisterError",
    "NotATensorError",
    "OperandDtypeError",
    "OperandShapeError",
    "OperandValueError",
    "OperatorError",
    "PartitionLimitError",
    "PartitionMismatchError",
    "PatternError",
    "PsumBankError",
    "ReduceAxisError",
    "ReduceCommandError",
    "RegisterInPythonError",
    "RegisterWidthError",
    "StartPartitionError",
    "TensorEngineTilingError",
    "TransposeAxesError",
    "UnknownOperatorError",
    "WrongBufferError",
]


class NotATensorError(NkiValidationError, TypeError):
    """An operand that is no tensor."""

    message = "{op}: {operand} is {value!r}, but has to be a tensor, as nl.ndarray and nl.load make them."


class NotANumberError(NkiValidationError, TypeError):
    """An operand that is no number."""

    message = "{op}: {operand} is {value!r}, but has to be {allowed}."


class NotARegisterError(NkiValidationError, TypeError):
    """An operand that is no register."""

    message = "{op}: {operand} is {value!r}, but has to be {allowed}."


class EnumMemberError(NkiValidationError, TypeError):
    """A choice that is no member of its enumeration."""

    message = "{op}: {operand}={value!r} is no member of nisa.{enum}. There are: {members}."


class WrongBufferError(NkiValidationError, ValueError):
    """A tensor in a memory that the instruction does not reach."""

    message = "{op}: {operand} {shape} lies in {region}, but has to be in {allowed}. {cure}"


class BothInPsumError(NkiValidationError, ValueError):
    """Two inputs in PSUM."""

    message = (
        "{op}: {first} and {second} both lie in psum, of which the {engine} engine reads one in an instruction. Copy "
        "one to SBUF with nisa.tensor_copy."
    )


class PartitionLimitError(NkiValidationError, ValueError):
    """More partitions than there are."""

    message = (
        "{op}: {operand} {shape} has {partitions} partitions, the limit is {limit}. Dimension 0 is the partition: cut "
        "it into tiles, or bring another dimension to the front."
    )


class StartPartitionError(NkiValidationError, ValueError):
    """A tile that begins at a partition where engines cannot."""

    message = (
        "{op}: {operand} {shape} begins at partition {start}. With {partitions} partitions it may begin at {allowed}. "
        "Move it with nisa.dma_copy, nisa.nc_stream_shuffle or a transpose, or place it there with address=."
    )


class PartitionMismatchError(NkiValidationError, ValueError):
    """Operands with different numbers of partitions."""

    message = (
        "{op}: {operand} {shape} has {partitions} partitions, {other} {other_shape} has {expected}. Engines work on as "
        "many partitions of all operands: slice one of them."
    )


class ElementCountError(NkiValidationError, ValueError):
    """Operands with different numbers of elements."""

    message = (
        "{op}: {operand} {shape} has {count} elements {per}, but {expected} are needed: {reason}. Nothing is broadcast "
        "along free dimensions; slice, or use .broadcast() on a dimension of size 1."
    )


class OperandShapeError(NkiValidationError, ValueError):
    """An operand of another shape than the instruction has."""

    message = "{op}: {operand} has the shape {shape}, but needs {expected}."


class FreeSizeError(NkiValidationError, ValueError):
    """More or fewer elements per partition than the instruction takes."""

    message = "{op}: {operand} {shape} has {count} elements per partition, allowed are {allowed}. {cure}"


class PsumBankError(NkiValidationError, ValueError):
    """The result of a matmul that crosses the border of a PSUM bank."""

    message = (
        "{op}: {operand} {shape} covers the bytes {first} to {last} of its partitions, which lie in more than one PSUM "
        "bank of {bank} bytes. A matmul of this generation writes one bank: 512 fp32 columns, from its beginning at "
        "most to its end."
    )


class OperandDtypeError(NkiValidationError, TypeError):
    """An operand of a type that the instruction does not take."""

    message = "{op}: {operand} has the type {dtype}, allowed are {allowed}. {cure}"


class DtypeMismatchError(NkiValidationError, TypeError):
    """Operands whose types do not go together."""

    message = "{op}: {first} is {first_dtype}, {second} is {second_dtype}, but {rule}."


class GenerationError(NkiValidationError, NotImplementedError):
    """Something that the chip of this kernel does not have."""

    message = (
        "{op}: {what} needs NeuronCore-v{needed} ({chip}) or later, this kernel is made for {target}. Set "
        "NEURON_PLATFORM_TARGET_OVERRIDE={chip} or branch on nisa.get_nc_version()."
    )


class EngineError(NkiValidationError, ValueError):
    """An engine that cannot do this."""

    message = "{op} does not run on engine.{engine}{reason}. Use {allowed}, or leave engine= out."


class UnknownOperatorError(NkiValidationError, TypeError):
    """An operator that is none."""

    message = "{op}: {operand}={value!r} is no operator. Pass a function of nki.language, as nl.add or nl.exp."


class OperatorError(NkiValidationError, ValueError):
    """An operator that this instruction does not have."""

    message = "{op}: {operand}=nl.{name} is not possible here. It takes: {allowed}."


class MixedOperatorsError(NkiValidationError, ValueError):
    """Bitwise and arithmetic operators in one instruction."""

    message = (
        "{op}: op0=nl.{op0} and op1=nl.{op1} cannot be mixed: bitwise operators work on the bits of integers, "
        "arithmetic ones on fp32. Use two instructions."
    )


class MissingOperandError(NkiValidationError, TypeError):
    """Operands that belong together, of which one is absent or too many."""

    message = "{op}: {operand} {problem}."


class ReduceAxisError(NkiValidationError, ValueError):
    """Axes that an engine cannot reduce."""

    message = (
        "{op}: axis={axis} of {operand} {shape} is not possible. Only the last free dimensions together can be "
        "reduced, as {example}; never dimension 0, the partition: transpose it, or multiply with ones by nc_matmul."
    )


class ReduceCommandError(NkiValidationError, ValueError):
    """A command to accumulators that this instruction does not have."""

    message = "{op}: reduce_cmd.{command} is not possible here. It takes: {allowed}."


class PatternError(NkiValidationError, ValueError):
    """An affine pattern that is none, or does not fit."""

    message = "{op}: pattern={pattern!r} is not possible: {reason}."


class OperandValueError(NkiValidationError, ValueError):
    """A number outside of what the instruction takes."""

    message = "{op}: {operand}={value!r} is not possible, allowed are {allowed}."


class TensorEngineTilingError(NkiValidationError, ValueError):
    """Tiles of the Tensor Engine that do not exist."""

    message = "{op}: tile_position={position}, tile_size={size}: {reason}."


class DoubleRowError(NkiValidationError, ValueError):
    """A matmul that cannot run in double-row mode."""

    message = "{op}: perf_mode=double_row is not possible: {reason}."


class TransposeAxesError(NkiValidationError, ValueError):
    """A permutation that DMA does not do."""

    message = "{op}: axes={axes} of src {shape} is not possible. There are (1, 0), (2, 1, 0) and (3, 1, 2, 0)."


class DescriptorModeError(NkiValidationError, ValueError):
    """A DMA that this way of making descriptors cannot do."""

    message = "{op}: dge_mode.{mode} is not possible: {reason}. Leave dge_mode= out to have it chosen."


class DynamicOperandError(NkiValidationError, ValueError):
    """A view with run-time indices where the instruction takes none."""

    message = "{op}: {operand} {shape} moves with run-time indices ({kind}): {reason}."


class NoOtherCoreError(NkiValidationError, ValueError):
    """An exchange between the two cores of a logical core, where there is one."""

    message = (
        "{op}: {reason}. It works between the two cores of a logical NeuronCore: launch with kernel[2](...), and do "
        "it only where nl.num_programs() is 2."
    )


class RegisterInPythonError(NkiError, TypeError):
    """A register's value in Python, where it is not known."""

    message = (
        "The value of a register is known only when the kernel runs: {use} is not possible while it is traced. Use "
        "nl.fori_loop or nl.while_loop for loops, and the register itself as scalar_offset= or in nl.ds."
    )


class RegisterWidthError(NkiValidationError, TypeError):
    """Arithmetic on registers that their width does not have."""

    message = "{op}: {reason}."


class DependencyError(NkiValidationError, ValueError):
    """An order between instructions that cannot be had."""

    message = "depends_on: {reason}."
