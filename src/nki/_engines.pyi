"""Programs of kernels, and the simulated NeuronCores that run them (csrc/bindings/engines)."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .instruction import Instruction
from .storage import Storage

class ProgramFault(RuntimeError):
    """What went wrong while programs ran.

    Attributes:
        kind: "out_of_bounds", "bad_index", "mismatch" (operands that do not fit), "loop" (one without an end),
            "deadlock" or "other".
        instruction: its number in the program, or -1.
        program: place of the program in the list that ran, or -1.
        detail: what happened, with the values.
    """

    kind: str
    instruction: int
    program: int
    detail: str

class Program:
    """A traced kernel made ready to run. It does not change, and may run on several threads at once."""

    def __init__(
        self, instructions: Sequence[Instruction], storages: Sequence[Storage], registers: int, precise: bool = True
    ) -> None:
        """Reads the trace.

        Args:
            instructions: in program order.
            storages: by number.
            registers: how many there are.
            precise: False keeps bfloat16, float16 and the 8-bit floats as float32 on chip, except where a view shows
                them as another type or the kernel gave an address.

        Raises:
            ValueError: the trace makes no sense: an unknown operation, a view past the end of its storage, ...
        """

    @property
    def memory_bytes(self) -> int:
        """What one run of it takes for tensors on chip and for those in HBM that only live inside."""

    def capsule(self) -> Any:
        """A PyCapsule "nki.program" of this program alone, see :func:`capsule`."""

    def lifetimes(self) -> list[tuple[int, int]]:
        """Per storage the first and last instruction that use it, (-1, -1) if none does. Use in a loop lasts as long
        as the outermost loop that the storage was allocated before."""

    def unwritten_reads(self) -> list[tuple[int, int, int]]:
        """Reads of what no earlier instruction can have written: instruction, operand (counted through `out` and
        `args`), number of the storage."""

    def unwritten_storages(self) -> list[int]:
        """Outputs in HBM that no instruction writes."""

    def dependencies(self, places: Sequence[tuple[int, int, int] | None] | None = None) -> list[tuple[int, ...]]:
        """Per instruction the earlier ones that it must wait for, ascending.

        Args:
            places: per storage (partition, byte, memory): storages of one memory may share bytes. A storage with None
                has bytes of its own, whatever its address. None for all: as the kernel's own addresses have it.
        """

    def storage_types(self) -> list[int]:
        """Codes of the types that storages are kept in: those of the trace unless `precise` is False."""

def run(
    programs: Sequence[Program],
    memories: Sequence[Sequence[int]],
    threads: int | None = None,
    print: Callable[[str, np.ndarray[Any, Any]], None] | None = None,
) -> None:
    """Runs programs that belong together: the cores of a kernel, or the ranks that collectives connect.

    Args:
        programs: by core or rank.
        memories: per program the address of each of its storages in HBM, in order; 0 in private HBM where the machine
            finds a place.
        threads: use at most so many; None or 0 uses all.
        print: gets the prefix and the values (float32, int64 or bool) of what kernels print; None writes to stdout.

    Raises:
        ProgramFault: what only shows when a program runs. Memory that was written until then stays so.
    """

def capsule(programs: Sequence[Program], lines: Sequence[Sequence[str]] = ()) -> Any:
    """A PyCapsule "nki.program" by which other extension modules run programs together (csrc/engines/isa/capsule.h).

    `lines` says for each program where its instructions come from; what goes wrong is told with it.
    """

def set_host(host: Any) -> None:
    """Takes GEMM and threads from the PyCapsule "neuron.tensor_engine_host" instead of those of this module."""
