"""What the compiler returns for one graph: pickled by AOTAutograd's cache, called with a list of arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._inductor.output_code import OutputCode
from torch.utils._pytree import tree_map_only

from torch_neuronx import knobs
from torch_neuronx.jit import ObjectCache, default_directory

from .executable import Executable
from .listing import listing
from .partition import HostCall, Ref
from .spec import ProgramSpec

__all__ = ["CompiledGraph", "Program", "object_cache"]


def object_cache() -> ObjectCache | None:
    """Where machine code is kept."""
    directory = Path(knobs.CACHE_DIR.value) if knobs.CACHE_DIR.value else default_directory()
    return ObjectCache(directory) if directory else None


@dataclasses.dataclass
class Program:
    """One program of a graph. `inputs` and `outputs` are places in the graph's table of values."""

    spec: ProgramSpec
    name: str
    arguments: tuple[tuple[torch.dtype, str] | None, ...]  # type and device of tensors
    inputs: list[int]
    outputs: list[int]
    donated: list[int]  # inputs that nobody looks at afterwards


@dataclasses.dataclass
class CompiledGraph(OutputCode):
    """Programs and host calls, and how they hand on values.

    Called with a list, which is emptied: so the last references to saved activations go while a backward graph runs.
    """

    parts: list[Program | HostCall]
    results: list[Any]  # with Ref for values

    def __post_init__(self) -> None:
        self._boxed_call = True
        self._run: Callable[[list[Any]], list[Any]] = self._first_run

    def __call__(self, inputs: Sequence[Any]) -> Any:
        return self._run(inputs)  # type: ignore[arg-type]

    def make_ready(self) -> None:
        """Compiles the kernels now, not when the graph first runs."""
        cache = object_cache()
        self._runs = [
            Executable(part.spec, part.name, part.arguments, part.donated, cache) if isinstance(part, Program) else None
            for part in self.parts
        ]
        self._run = self._run_parts
        if self._is_one_program():
            (executable,) = self._runs
            assert executable is not None
            self._run = executable.run

    def counts(self) -> dict[str, int]:
        """How much there is of what."""
        programs = [part for part in self.parts if isinstance(part, Program)]
        return {
            "programs": len(programs),
            "steps": sum(len(program.spec.steps) for program in programs),
            "kernels": sum(len(program.spec.kernels) for program in programs),
            "host_calls": len(self.parts) - len(programs),
        }

    def listings(self) -> dict[str, str]:
        """Texts for people, by file name."""
        programs = [part for part in self.parts if isinstance(part, Program)]
        return {f"{program.name}.program.txt": listing(program.spec, program.name) for program in programs}

    def _is_one_program(self) -> bool:
        part = self.parts[0] if len(self.parts) == 1 else None
        if not isinstance(part, Program):
            return False
        return part.inputs == list(range(len(part.inputs))) == list(range(part.spec.inputs)) and self.results == [
            Ref(k) for k in part.outputs
        ]

    def _first_run(self, inputs: list[Any]) -> list[Any]:
        self.make_ready()
        return self._run(inputs)

    def _run_parts(self, inputs: list[Any]) -> list[Any]:
        values = dict(enumerate(inputs))
        inputs.clear()

        def fill(tree: Any) -> Any:
            return tree_map_only(Ref, lambda ref: values[ref.index], tree)

        for part, run in zip(self.parts, self._runs, strict=True):
            if isinstance(part, Program):
                assert run is not None
                outputs = run.run([values[k] for k in part.inputs])
                values.update(zip(part.outputs, outputs, strict=True))
            else:
                values[part.output] = part.target(*fill(part.args), **fill(part.kwargs))
        return fill(self.results)

    # -- AOTAutograd's cache --
    def prepare_for_serialization(self) -> None:
        self._run = self._first_run

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_run", "_runs")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()

    def post_compile(self, example_inputs: Any, constants: Any, graph_kwargs: Any) -> None:
        """Nothing: programs of a cached graph are made ready by their first run."""

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """There is no Triton here."""
