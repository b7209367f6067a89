"""The catalogue, continued: mistakes with tensors, their views, loops and collectives.

They are found in nki.errors, which has the whole catalogue; docs/nki-errors.md is its glossary.
"""

from __future__ import annotations

from .base_errors import NkiError, NkiValidationError

__all__ = [
    "AccessPatternError", "AccessPatternOutOfBoundsError", "AddressError", "AssignmentError", "BroadcastError",
    "BufferKindError", "CollectiveOperandError", "ConstantError", "DimensionError", "DynamicViewError",
    "EscapedTensorError", "GridDataError", "IndexKindError", "IndexOutOfBoundsError", "IndirectionError",
    "LanguageArgumentError", "LoopBodyError", "LoopBoundError", "LoopInNoReorderError", "LoopLeftError",
    "LoopStepError", "NoTileOperandError", "NotContiguousError", "OperatorNotInDialectError",
    "PartitionDimensionError", "PartitionViewError", "PreparedCollectiveError", "PsumTileError",
    "RearrangePatternError", "ReductionAxisError", "ReinterpretError", "ReplicaGroupError", "ReshapeError",
    "ShapeMismatchError", "SqueezeError", "TensorShapeError", "TileShapeError", "TileShapeKindError",
    "TooManyDimensionsError", "TooManyIndicesError",
]  # fmt: skip

# -- Allocation -------------------------------------------------------------------------------------------------------


class BufferKindError(NkiError, TypeError):
    """A memory that is no member of MemoryRegion."""

    message = "buffer={buffer!r} names no memory. Use nl.sbuf, nl.psum, nl.hbm, nl.private_hbm or nl.shared_hbm{hint}."


class TensorShapeError(NkiError, ValueError):
    """A shape that no tensor of that memory can have."""

    message = "A tensor of shape {shape!r} in {region}: {why}."


class PartitionDimensionError(NkiValidationError, ValueError):
    """A tensor on chip with more partitions than there are."""

    message = (
        "A tensor of shape {shape} in {region} has a partition dimension of {size}; it may have {limit}. Dimension 0 "
        "is the partition: work on tiles of at most {limit} rows, or move rows into a free dimension."
    )


class PsumTileError(NkiValidationError, ValueError):
    """A tensor that is larger than the PSUM of a partition."""

    message = (
        "A {dtype} tensor of shape {shape} takes {used} bytes of PSUM per partition; there are {limit} (8 banks of "
        "2048 bytes). Work on smaller tiles, or accumulate into SBUF."
    )


class AddressError(NkiValidationError, ValueError):
    """A place on chip that a tensor cannot have."""

    message = (
        "address={address!r} of a tensor of shape {shape} in {region}: {why}. An address is (first partition, byte "
        "within the partition)."
    )


class ConstantError(NkiError, TypeError):
    """Data that no constant can be made of."""

    message = "shared_constant takes a NumPy array or the path of a .npy file, not {value}."


# -- Views ------------------------------------------------------------------------------------------------------------


class IndexOutOfBoundsError(NkiValidationError, IndexError):
    """An index outside of its dimension, or a slice without elements."""

    message = (
        "{tensor} has {size} elements in dimension {dim}, and [{index}] reaches outside of them, or selects none. "
        "Tiles at an edge are shorter: end the slice at min(stop, size), and skip what is empty."
    )


class IndexKindError(NkiError, TypeError):
    """Something that is no index."""

    message = (
        "{tensor} cannot be indexed with {index!r} in dimension {dim}. Use an integer, a slice of integers, ..., or "
        "nl.ds(start, size), whose start may be a register; tensors of indices go to .select() and .vector_select()."
    )


class TooManyIndicesError(NkiError, IndexError):
    """More indices than dimensions."""

    message = "{tensor} has {count} dimensions and was indexed with {given} indices (and at most one ...)."


class DimensionError(NkiError, IndexError):
    """A dimension that the tensor does not have."""

    message = "{tensor} has no dimension {dim!r}; they are 0 to {count} - 1, or negative from the end."


class TooManyDimensionsError(NkiValidationError, ValueError):
    """More dimensions than an access pattern has."""

    message = "{tensor} seen as shape {shape} would have more than {limit} dimensions, which no access pattern has."


class PartitionViewError(NkiValidationError, ValueError):
    """A view that would move, split, merge or repeat the partitions of a tensor."""

    message = (
        "{tensor}: {what} would change dimension 0, which stays as it is: partitions are separate memories, and rows "
        "that an index chooses have no order. Move data between partitions with a transpose, a shuffle or a DMA."
    )


class DynamicViewError(NkiValidationError, ValueError):
    """More than one run-time index, or a cut through what one chooses."""

    message = (
        "{tensor}: {what}. A view has one index that is known at run time, which comes last: cut and reshape the "
        "tensor first, or copy the part that the index chooses."
    )


class IndirectionError(NkiValidationError, ValueError):
    """A run-time index that cannot be one."""

    message = "{tensor} cannot be indexed at run time so: {why}. Indices are integers in SBUF, or a register."


class ReshapeError(NkiError, ValueError):
    """A shape that the elements of a tensor do not fill."""

    message = "{tensor} cannot take {shape}: {why}."


class NotContiguousError(NkiError, ValueError):
    """Dimensions that do not follow each other in memory."""

    message = (
        "{tensor} cannot be seen as {what}: its elements do not follow each other in memory (strides {strides}). "
        "Reshape before slicing or permuting, or copy it into a tensor of that shape."
    )


class BroadcastError(NkiError, ValueError):
    """A dimension that cannot be repeated."""

    message = "{tensor} cannot be repeated {size} times in dimension {dim}, which has to have size 1."


class SqueezeError(NkiError, ValueError):
    """A dimension that cannot be dropped."""

    message = (
        "Dimension {dim} of {tensor} cannot be dropped: it has to have size 1, and tensors keep a dimension in HBM and "
        "two on chip."
    )


class RearrangePatternError(NkiError, ValueError):
    """Patterns that do not describe the tensor or each other."""

    message = (
        "{tensor} cannot be rearranged from {source} to {target}: the first names each of its dimensions once, the "
        "second uses the same names, and in each group of names all sizes but one are given."
    )


class ReinterpretError(NkiError, ValueError):
    """Bytes that are no whole elements of another type."""

    message = (
        "{tensor} cannot be read as {dtype}: the last dimension has to be contiguous, and rows and offset a whole "
        "number of {dtype} elements."
    )


class AccessPatternError(NkiValidationError, ValueError):
    """An access pattern that is none."""

    message = "{tensor}: the access pattern {pattern} is not possible: {why}."


class AccessPatternOutOfBoundsError(NkiValidationError, IndexError):
    """An access pattern that leaves the memory of its tensor."""

    message = (
        "{tensor}: the access pattern {pattern} from element {offset} leaves the memory of the tensor, which has "
        "{partitions} x {free} elements (partitions x elements)."
    )


class AssignmentError(NkiError, TypeError):
    """What cannot be assigned to a part of a tensor."""

    message = (
        "A {value} cannot be assigned to {tensor}. Assign a tile, or a number to a tensor on chip; nisa.memset and "
        "nisa.dma_copy say what happens."
    )


class OperatorNotInDialectError(NkiError, TypeError):
    """Arithmetic with the operators of Python."""

    message = (
        "{tensor} has no operator {symbol}: instructions name where their result goes. Use nl.{function}, or an "
        "instruction of nki.isa with a dst. (Operators belong to the older dialect, neuronxcc.nki.)"
    )


# -- nki.language -----------------------------------------------------------------------------------------------------


class NoTileOperandError(NkiError, TypeError):
    """An elementwise function without a tile."""

    message = "nl.{function} got {operands}; at least one operand has to be a tile in SBUF or PSUM."


class ShapeMismatchError(NkiValidationError, ValueError):
    """Operands of different shapes."""

    message = (
        "nl.{function}: the operands have the shapes {first} and {second}. Engines repeat nothing by themselves: use "
        ".broadcast() on a free dimension of size 1, or nl.broadcast_to."
    )


class ReductionAxisError(NkiValidationError, ValueError):
    """Dimensions that cannot be reduced."""

    message = (
        "nl.{function} over axis {axis} of shape {shape}: only the last dimensions can be reduced, without a gap, and "
        "not the partition. Permute the free dimensions; over partitions use nisa.tensor_partition_reduce or a matmul."
    )


class LanguageArgumentError(NkiError, ValueError):
    """An argument that a function of nki.language cannot work with."""

    message = "nl.{function}: {what}."


# -- Loops ------------------------------------------------------------------------------------------------------------


class LoopStepError(NkiError, AssertionError, ValueError):
    """A step that a hardware loop cannot have."""

    message = "nl.{function}: the step of a dynamic loop is a positive integer that is known now, not {step!r}."


class LoopBoundError(NkiError, TypeError):
    """A bound that is neither an integer nor a register."""

    message = "nl.{function}: a bound of a dynamic loop is an integer, a register or a 32-bit scalar, not {bound!r}."


class LoopInNoReorderError(NkiError, ValueError):
    """A dynamic loop where order is pinned."""

    message = (
        "nl.{function} inside of nl.no_reorder(): the order of a hardware loop with what is around it cannot be "
        "pinned. Put `with nl.no_reorder():` into the body of the loop."
    )


class LoopLeftError(NkiError, RuntimeError):
    """A dynamic loop that was left with break or return while it was traced."""

    message = (
        "The dynamic loop of this line was left before its body ended: break and return do not exist in a hardware "
        "loop, whose body is traced once. Bound the loop, or use nl.while_loop."
    )


class LoopBodyError(NkiError, TypeError):
    """A body that returns the wrong thing."""

    message = "nl.{function}: the body returned {value!r}; it has to return {wanted}."


class EscapedTensorError(NkiError, ValueError):
    """A tensor of a dynamic loop's body that is used outside of the loop."""

    message = (
        "{tensor} was allocated in the body of a dynamic loop, and is used outside of it, where it holds nothing in "
        "particular. Allocate it before the loop."
    )


# -- Grids of tiles ---------------------------------------------------------------------------------------------------


class TileShapeError(NkiError, ValueError):
    """Tiles that do not fit the tensor."""

    message = "{function}: {what}."


class TileShapeKindError(NkiError, TypeError):
    """A shape that is no tuple of integers."""

    message = "{function}: {name} is a tuple of integers, not {value!r}."


class GridDataError(NkiError, ValueError):
    """Tiles that are no single tensor."""

    message = (
        "{grid} is not one access pattern of its tensor ({why}), so that it has no .data. Ask is_data_representable, "
        "and take tile after tile."
    )


# -- Collectives ------------------------------------------------------------------------------------------------------


class ReplicaGroupError(NkiError, ValueError):
    """Groups of ranks that overlap, are empty or do not contain this rank."""

    message = "{function}: the replica group {groups} {why}."


class CollectiveOperandError(NkiValidationError, ValueError):
    """Tensors that a collective cannot take."""

    message = "{function}: {what}."


class PreparedCollectiveError(NkiError, RuntimeError):
    """The two steps of a collective that do not go together."""

    message = "{why}. Each prepare is followed by the trigger that takes it, before another collective is prepared."
