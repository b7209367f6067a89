"""The interface of the extension module; csrc/bindings implements it."""

from collections.abc import Sequence
from typing import Any, TypedDict

import torch

class InstanceType(TypedDict):
    name: str
    chip: str
    chips: int
    logical_cores_per_chip: int
    hbm_bytes_per_core: int

class DeviceFacts(TypedDict):
    name: str
    chip: str
    instance: str
    total_memory: int

# Set-up
def configure(
    instance: str,
    hbm_bytes: int,
    visible_cores: list[int],
    launch_blocking: bool,
    launch_lines: bool,
    error: str,
) -> None: ...
def instance_types() -> list[InstanceType]: ...
def register_eager() -> None: ...
def set_launch_blocking(on: bool) -> None: ...
def set_launch_lines(on: bool) -> None: ...
def launch_statistics() -> dict[str, int]: ...
def set_chip_numerics(on: bool) -> None: ...

# Adaptive eager
def set_adaptive(on: bool) -> None: ...
def adaptive() -> bool: ...
def adaptive_report() -> dict[str, Any]: ...
def reset_adaptive_report() -> None: ...
def set_compiler(on: bool) -> None: ...
def next_stage_to_compile(timeout_seconds: float) -> tuple[int, str] | None: ...
def wake_compiler() -> None: ...
def install_stage(stage: int, address: int) -> None: ...

# Programs
#
# A program is a list of steps over planned memory that runs as one launch. All its numbers are places in a table of
# integers, `Ref`, that each binding gives it: a program for fixed shapes has one binding, one for dynamic shapes has
# more. Tensors, buffers and steps are numbered in the order in which they are made.
Ref = int
Buffer = int
Tensor = int
# An argument of a call: ("tensor", Tensor), ("tensors", [Tensor | None, ...]), ("int", Ref), ("ints", [Ref, ...]), or
# a constant as torch.ops would take it. A neuron device becomes the CPU; a number where the op takes a tensor does not
# take part in type promotion, as in eager mode; a reference to an integer may stand for a tensor or a float too.
CallArgument = Any

class ProgramBuilder:
    """Describes a program. Every mistake is a ValueError that says where (some only show in :meth:`Program.bind`)."""

    def __init__(
        self,
        name: str,
        device: int,
        arguments: list[tuple[torch.dtype, str] | None],
        synchronous: bool = False,
    ) -> None:
        """`arguments`: dtype and "neuron" or "cpu" of each tensor; None for what is no tensor, or never touched.

        Buffer k is the memory of argument k, from the first element of that tensor on, whatever its storage_offset.

        A CPU argument must have one element, whose value is read when the program is launched. In a `synchronous`
        program it may have any size, and may be written: the host waits for the end of each run.
        """
    def output(self, bytes: Ref, first: int = 0) -> Buffer:
        """A fresh block of the caching allocator; `bytes` is the size of the storage. Several outputs may lie in it.

        No step before number `first` uses it, so what earlier steps give back may become part of it.
        """
    def block(self, bytes: Ref, first: int, last: int) -> Buffer:
        """A block of the caching allocator for steps `first` to `last`; then later ones may have its memory."""
    def donate(self, argument: int, last: int) -> None:
        """Nobody looks at this argument after step `last` (-1: at all). If the list that `run(clear=True)` is given
        held its last reference, its memory is given back then, for outputs and blocks of later steps."""
    def host_output(self, bytes: Ref) -> Buffer:
        """The same in host memory, for results on the CPU. Synchronous programs only."""
    def arena(self, offset: Ref) -> Buffer:
        """Memory for temporaries, at byte `offset` of the one block that a run has for them.

        The block is as large as the tensors in it need. Offsets should be multiples of 64.
        """
    def constant(self, tensor: torch.Tensor) -> Buffer:
        """The memory of a tensor that the program keeps, of its device or of the CPU, from its first element on."""
    def tensor(self, buffer: Buffer, dtype: torch.dtype, sizes: list[Ref], strides: list[Ref], offset: Ref) -> Tensor:
        """A tensor at `offset` elements of its own dtype. Negative offsets reach before an argument's first element.

        Tensors may overlap. Those of one buffer share a storage for the kernels of calls, so ATen's checks of
        overlapping arguments see them.
        """
    def call(
        self,
        op: str,
        overload: str,
        args: list[CallArgument],
        kwargs: dict[str, CallArgument],
        results: list[Tensor | None],
        label: str = "",
    ) -> None:
        """A call of an ATen op, e.g. ("aten::add", "Tensor"): its CPU kernel, or the device's replacement of it.

        `results`: the tensors that receive the returns, lists flattened; None for those that nobody needs, and for
        arguments that the op returns. May be shorter than the returns, not longer. Their memory must not overlap that
        of the arguments of the same call. Results of other sizes or dtypes are an error of the run; other strides cost
        a copy.

        An op that writes to an argument (add_, copy_, out=) writes to that tensor, and must not resize it. Random ops
        draw from the device's default generator, as in eager mode: keep their order.

        `label` (a source line) stands in errors.
        """
    def kernel(
        self,
        address: int,
        operands: list[Tensor],
        ints: list[Ref],
        units: Ref,
        grain: Ref,
        scratch: Ref,
        name: str,
        label: str = "",
    ) -> None:
        """Machine code: void (char* const* operands, const int64_t* ints, char* scratch, int64_t begin, int64_t end).

        `operands` are the first elements of tensors (offsets are added already), `ints` a dense copy of the integers
        referred to, [begin, end) a part of [0, `units`) that is computed by one thread. A thread gets no fewer than
        `grain` units, as long as there are as many. `scratch` bytes per thread, aligned to 64, hold nothing yet. No
        code is run when `units` is 0. It must not raise.
        """
    def flex(
        self,
        backward: bool,
        tensors: list[Tensor | None],
        scale: float,
        query_block: Ref,
        key_block: Ref,
        codes: list[tuple[int, list[Tensor], list[Ref]]],
        label: str = "",
    ) -> None:
        """Attention by blocks, or its gradient: csrc/engines/flex_attention.h.

        `tensors` by role, see csrc/program/flex_step.h. `codes`: address, captured tensors and further integers of what
        changes the scores of partial and of full blocks, and of what pulls gradients back; address 0 for nothing.
        """
    def build(self, outputs: list[tuple[str, int] | None]) -> Program:
        """Ends the description. The builder is empty afterwards.

        `outputs`: ("tensor", Tensor) is a new tensor over the memory of an output buffer, or of an argument (which is
        so given up, or returned as a view); ("argument", k) is argument k itself; ("constant", Buffer) the constant;
        None is None.
        """

class Program:
    @property
    def name(self) -> str: ...
    def bind(self, ints: list[int]) -> Binding:
        """The program with these integers; takes microseconds. Raises ValueError when they do not fit it."""
    def steps(self) -> list[tuple[str, str]]:
        """Name and label of each step."""

class Binding:
    """Keeps its program alive. May be run on several streams, and from several threads, at a time."""

    @property
    def arena_bytes(self) -> int: ...
    def run(self, args: list[Any], clear: bool = False) -> list[Any]:
        """Launches one run on the current stream of the program's device, and returns the outputs.

        Sizes and strides of tensors are not looked at: whoever calls has made sure of them. With `clear` the list is
        emptied once the launch is made, so that the memory of arguments can be used again by what comes behind it.

        Raises:
            RuntimeError: an argument is on another device, of another dtype, or has less memory than the program uses.
            torch.OutOfMemoryError: there is no room for outputs and temporaries.
        An error of a step is raised by the next synchronization, as in eager mode; it names the step and its label.
        """

def can_be_step(op: str, overload: str) -> bool:
    """Whether a program can call the op: a C++ kernel whose results are tensors of predictable shapes."""

def program_statistics() -> dict[str, int]:
    """`runs` that have ended, and their `steps`. Copies of misplaced results count in launch_statistics()."""

# Graphs: torch.accelerator.Graph is the class
def register_graphs() -> None: ...
def graph_pool_handle() -> tuple[int, int]: ...

# Kernels of NKI
def launch_foreign(program: object, name: str, tensors: Sequence[torch.Tensor], addresses: Sequence[int]) -> None:
    """Launches `program`, a capsule of nki._engines, on the current stream of the tensors' device.

    `tensors` are all that it uses; `addresses` are those of its HBM storages, 0 where it finds a place itself.

    Raises:
        RuntimeError: a tensor is not on the device, or used by an open capture of another stream.
    """

def tensor_engine_host() -> object:
    """A capsule with the matrix product and the threads that PyTorch brings, for nki._engines.set_host."""

# Devices
def device_count() -> int: ...
def current_device() -> int: ...
def set_device(device: int) -> None: ...
def exchange_device(device: int) -> int: ...
def device_properties(device: int) -> DeviceFacts: ...
def is_initialized() -> bool: ...
def is_in_bad_fork() -> bool: ...
def init() -> None: ...
def synchronize(device: int) -> None: ...
def shutdown() -> str | None: ...

# Streams
def stream_priority(stream_id: int, device_index: int) -> int: ...
def priority_range() -> tuple[int, int]: ...

# Memory and random numbers
def memory_snapshot(device: int) -> list[dict[str, Any]]: ...
def default_generators() -> tuple[torch.Generator, ...]: ...
