"""The catalogue of mistakes in kernels: one class per mistake, its text as class attribute.

Every error that concerns a line of a kernel carries it: `error.line`. docs/nki-errors.md is the glossary.
Imports nothing but its parts, so that every part of the package may import it.
"""

from __future__ import annotations

from .base_errors import NkiError, NkiValidationError
from .instruction_errors import *  # noqa: F403 - one catalogue, in several files
from .tensor_errors import *  # noqa: F403

__all__ = ["NkiError", "NkiValidationError", "OutsideKernelError", "UnknownDtypeError"]


class OutsideKernelError(NkiError, RuntimeError):
    """An instruction outside of any kernel."""

    message = (
        "{function} was called outside of a kernel. Instructions belong into a function with @nki.jit, which runs when "
        "it is called or given to nki.simulate."
    )


class UnknownDtypeError(NkiError, TypeError):
    """A type that no engine computes with."""

    message = "{dtype!r} is no element type of a NeuronCore. There are: {known}."


# -- Kernels, their arguments and results -----------------------------------------------------------------------------


class UnknownTargetError(NkiError, ValueError):
    """There is no such chip."""

    message = "There is no target {target!r}. There are: {known}."


class UnknownJitOptionError(NkiError, TypeError):
    """nki.jit takes no such option."""

    message = (
        "nki.jit takes no option {options}. It takes platform_target=; a grid is given when the kernel is called, as "
        "in kernel[2](...)."
    )


class BadGridError(NkiError, ValueError):
    """A grid that is no positive number of programs."""

    message = "{kernel}[{grid!r}]: a grid is a positive number of programs, or one for each of its axes."


class KernelArgumentError(NkiError, TypeError):
    """Arguments that do not fit the kernel's signature."""

    message = "{kernel}: {reason}."


class NoTensorArgumentError(NkiError, TypeError):
    """A kernel called without any tensor."""

    message = (
        "{kernel} was called without a tensor. A kernel runs where its tensors are: pass NumPy arrays, PyTorch tensors "
        "(cpu or neuron) or JAX arrays."
    )


class UnknownFrameworkError(NkiError, TypeError):
    """A tensor that is neither the host's nor that of a device whose package is installed."""

    message = (
        "{kernel} was given a {tensor}, and no installed package says how to run a kernel on it. Pass strided "
        "tensors of the CPU or of the device 'neuron'."
    )


class NotAKernelError(NkiError, TypeError):
    """A plain function where a kernel is expected."""

    message = "{function} takes a kernel, but was given {kernel!r}. Put @nki.jit above the function."


class ReadOnlyArgumentError(NkiError, ValueError):
    """A kernel that writes an array that must not be written."""

    message = (
        "{kernel} writes its argument {name}, which is read-only. Pass a copy, or let the kernel return a new tensor."
    )


class PerRankError(NkiError, ValueError):
    """Another number of values than there are ranks."""

    message = "A PerRank argument has {values} values, but there are {ranks} ranks. Give one value for each rank."


class ResultNotTensorError(NkiError, TypeError):
    """A kernel that returns something else than tensors."""

    message = (
        "{kernel} returned {result!r}: a kernel returns tensors made with buffer=nl.shared_hbm, tuples of them, or "
        "nothing. Numbers are known before it runs; return them from the function that calls it."
    )


class OutputNotInSharedHbmError(NkiError, ValueError):
    """A result that the caller cannot have."""

    message = (
        "{kernel}: {name} is {tensor} in {region}, or a part of it. A result is a whole tensor made with "
        "nl.ndarray(..., buffer=nl.shared_hbm); copy into one with nisa.dma_copy."
    )


class OutputNeverWrittenError(NkiError, ValueError):
    """A result that nobody wrote."""

    message = (
        "{kernel} returns {tensor} {shape}, but no instruction writes it. Copy the result into it with nisa.dma_copy "
        "or nl.store."
    )


class OutputNotReturnedError(NkiError, ValueError):
    """A kernel without a result."""

    message = (
        "{kernel} returned nothing and wrote none of its arguments, so nothing comes of it. Return the output tensor. "
        "Tensors in shared HBM that it made: {tensors}."
    )


class ProgramsDisagreeError(NkiError, ValueError):
    """Programs of a grid that do not have the same outputs."""

    message = (
        "{kernel}: program 0 of the grid makes {first} in shared HBM, program {program} makes {other}. All programs of "
        "a grid share these tensors: allocate the same ones in the same order, whatever nl.program_id says."
    )


class UnknownScheduleNameError(NkiError, ValueError):
    """with_schedule names an instruction that does not exist."""

    message = "with_schedule: no instruction of this kernel has name={name!r}. Names in use: {names}."


# -- The whole kernel -------------------------------------------------------------------------------------------------


class MemoryOverflowError(NkiError, MemoryError):
    """More is alive in SBUF or PSUM than fits."""

    message = (
        "{region} of {target} is too small: {used} bytes per partition are in use at once, {limit} are there. Alive "
        "then, largest first:\n{tensors}\n"
        "Make tiles smaller, or use them up before others are loaded. A tensor lives from its first use to its last."
    )


class UnwrittenReadError(NkiError, ValueError):
    """A read of memory that nobody has written."""

    message = (
        "{op} reads elements of {tensor} {shape} (made in line {made}) that no instruction before it has written. On "
        "the chip they hold whatever was there; here NaN, or 4 in integers. Write them first, or read a smaller slice."
    )


class UnwrittenReadWarning(UserWarning):
    """What UnwrittenReadError says, where the kernel runs all the same."""


class AccumulationAfterReadError(NkiError, ValueError):
    """A matmul that goes on adding to sums that were read out already."""

    message = (
        "nc_matmul adds to {tensor}, whose sums were read already ({reader}). With accumulate=None only the first "
        "write to PSUM overwrites. Allocate the tile inside the loop, or pass accumulate=(k > 0)."
    )


class RaceError(NkiError, RuntimeError):
    """Two accesses to the same memory without an order."""

    message = (
        "{first} and {second} use the same bytes of {region}, and nothing puts them in order: they are different "
        "tensors at overlapping addresses. Use one tensor, other addresses, or second.depends_on(first)."
    )


class CoreRaceError(NkiError, RuntimeError):
    """A core reads what the other one may be writing at the same time."""

    message = (
        "One core writes elements of {tensor} ({writer}) that the other one reads ({reader}), and nothing between them "
        "puts that in order. Let both cores reach nisa.core_barrier({tensor}, cores=(0, 1)) after the write."
    )


class CoreRaceWarning(UserWarning):
    """Two cores write the same elements of shared HBM."""


# -- While a kernel runs ----------------------------------------------------------------------------------------------


class KernelFaultError(NkiError, RuntimeError):
    """What only shows when a kernel runs."""

    message = "{kernel}: {op} failed: {detail}"


class OutOfBoundsAccessError(KernelFaultError, IndexError):
    """An index that is known only at run time lies outside of its tensor."""

    message = (
        "{kernel}: {op} is out of bounds: {detail}. Check the indices, or leave such elements out with "
        "oob_mode=nisa.oob_mode.skip."
    )


class DeadlockError(KernelFaultError):
    """Cores wait for each other for ever."""

    message = (
        "{kernel}: all cores wait: {detail}. Every core of the group has to reach the same barriers, exchanges and "
        "collectives in the same order."
    )


# -- The Beta 1 dialect (neuronxcc.nki) -------------------------------------------------------------------------------


class IndexExpressionError(NkiError, TypeError):
    """Indices of the Beta 1 dialect that choose nothing, or cannot be combined."""

    message = "{reason}. Indices are integers, slices, nl.arange and nl.mgrid, sums and multiples of them, and tiles."


class TileBoundsError(NkiValidationError, IndexError):
    """An index expression that leaves its tensor, where no mask leaves those elements out."""

    message = (
        "Dimension {dim} of {tensor} {shape} has {size} elements, but is indexed from {low} to {high}. Narrow the "
        "index, or pass mask=, as in mask=(i_p < {size})."
    )


class BlockIndexError(NkiError, IndexError):
    """Dimensions before the partition, which stand for tiles of their own, indexed otherwise than by integers."""

    message = (
        "{tensor} {shape} has {blocks} dimensions before its partition. Each of them counts tiles that lie apart: "
        "index it with an integer, as in tensor[i, :, :] within a loop over i."
    )


class MaskedInstructionError(NkiValidationError, ValueError):
    """A mask that an instruction cannot follow."""

    message = (
        "{op}: mask={mask!r} is no box of its operand {shape}, so the instruction cannot leave the other elements out. "
        "Compare each index with a number (i_p < 64), or select afterwards with nl.where."
    )


class AffinePredicateError(NkiValidationError, ValueError):
    """A predicate that the GpSimd engine cannot compute by itself."""

    message = (
        "affine_select: pred={pred!r} is no comparison of one affine expression with another, as in (i_f < i_p). Use "
        "nl.where for conditions that are put together."
    )


class TileAssignmentError(NkiValidationError, ValueError):
    """A tile assigned to a place of another shape."""

    message = "A value of shape {value} is assigned to {tensor} {shape}: as many partitions and elements are needed."


class TileBroadcastError(NkiValidationError, ValueError):
    """Tiles whose shapes do not go together."""

    message = "{op}: shapes {shapes} cannot be broadcast to each other."


class LoopCarriedError(NkiError, ValueError):
    """An iteration of a parallel loop that needs what an earlier one wrote."""

    message = (
        "{op} reads elements of {tensor} {shape} that an earlier iteration of nl.affine_range (line {loop}) wrote in "
        "line {written}: a loop-carried dependency, but the iterations of affine_range run in any order. Use "
        "nl.sequential_range, or accumulate into a tile in PSUM with +=."
    )


class MaskTruthWarning(UserWarning):
    """A mask used with `and`, `or` or `not`, which drop one of its sides."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(
            f"The truth of a mask of shape {shape} is taken: `a and b` means just b, `a or b` just a. Combine masks "
            "with & and |."
        )
