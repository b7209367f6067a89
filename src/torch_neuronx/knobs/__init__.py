"""The registry of knobs: every setting that can come from the environment, with its type, default and meaning.

A knob is read once, when torch_neuronx is imported. A value given with :func:`set` wins over the environment. A bad
value never fails the import: it is reported at the first use of the device (or of the knob).

A new knob is one line in the table below; ``python -m torch_neuronx.knobs`` renders docs/knobs.md from it.
Imports nothing but the catalogue of errors.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from ..errors import BadKnobValueError, KnobError, KnobTooLateError, UnknownKnobError

__all__ = ["Kind", "Knob", "all_knobs", "bind", "get", "problems", "render", "set"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class Kind(Generic[T_co]):
    """The type of a knob: how a text becomes a value (ValueError says why not), and what to tell who got it wrong."""

    name: str
    parse: Callable[[str], T_co]
    expected: str


class Knob(Generic[T]):
    """One setting. `value` is the Python setting, else the environment's, else the default.

    A `live` knob may be set while the device is in use.
    """

    def __init__(
        self, name: str, kind: Kind[T], default: T, meaning: str, *, default_text: str = "", live: bool = False
    ) -> None:
        self.name = name
        self.kind = kind
        self.default = default
        self.meaning = meaning
        self.default_text = default_text or kind_text(default)
        self.live = live
        self.problem: KnobError | None = None
        self._value = default
        text = os.environ.get(name, "").strip()
        if text:  # An empty variable counts as unset: launchers export empty ones.
            try:
                self._value = self.parse(text)
            except BadKnobValueError as problem:
                self.problem = problem
        _registry[name] = self

    @property
    def value(self) -> T:
        if self.problem is not None:
            raise self.problem
        return self._value

    def parse(self, text: str) -> T:
        try:
            return self.kind.parse(text)
        except ValueError as reason:
            raise BadKnobValueError(name=self.name, value=text, reason=reason, expected=self.kind.expected) from None

    def set(self, value: T) -> None:
        self._value, self.problem = value, None


_registry: dict[str, Knob[Any]] = {}


def kind_text(value: object) -> str:
    """A value as one would write it into the environment."""
    return str(int(value)) if isinstance(value, bool) else str(value)


# -- Kinds ------------------------------------------------------------------------------------------------------------

_SWITCH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}


def _parse_switch(text: str) -> bool:
    try:
        return _SWITCH[text.lower()]
    except KeyError:
        raise ValueError("it is neither on nor off") from None


def _parse_count(text: str) -> int:
    if not re.fullmatch(r"[0-9]+", text) or int(text) == 0:
        raise ValueError("it is not a whole number above zero")
    return int(text)


def _parse_bytes(text: str) -> int:
    match = re.fullmatch(r"([0-9]+)\s*([A-Za-z]*)", text)
    if not match or int(match[1]) == 0:
        raise ValueError("it is not a whole number of bytes above zero")
    if match[2].lower() not in _UNITS:
        raise ValueError(f"{match[2]!r} is not a unit")
    return int(match[1]) * _UNITS[match[2].lower()]


def _parse_numerics(text: str) -> str:
    if text.lower() not in ("cpu", "chip"):
        raise ValueError("there is no such choice")
    return text.lower()


def _parse_cores(text: str) -> tuple[int, ...]:
    cores: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", part.strip())
        if not match:
            raise ValueError(f"{part.strip()!r} is neither a core nor a range of cores")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ValueError(f"the range {part.strip()} runs backwards")
        if last >= 1 << 16:
            raise ValueError(f"there is no core {last} in any instance")
        cores.extend(range(first, last + 1))
    if len({*cores}) < len(cores):
        raise ValueError("a core stands in it twice")
    return tuple(cores)


SWITCH = Kind("bool", _parse_switch, "1 (true, yes, on) or 0 (false, no, off)")
COUNT = Kind("int", _parse_count, "a whole number above zero")
BYTES = Kind("bytes", _parse_bytes, "a whole number of bytes, or one with the unit KiB, MiB, GiB or TiB, such as 2GiB")
CORES = Kind("cores", _parse_cores, "cores and ranges of cores separated by commas, such as 0-3 or 1,3")
TEXT = Kind("str", str, "a text")
NUMERICS = Kind("choice", _parse_numerics, "cpu or chip")

# -- The table --------------------------------------------------------------------------------------------------------

EMU_INSTANCE = Knob(
    "NEURON_EMU_INSTANCE", TEXT, "trn2.3xlarge",
    "The emulated machine. `trn2.3xlarge`: 1 Trainium2 chip, 4 devices of 24 GiB. `trn2.48xlarge`, `trn2u.48xlarge`: "
    "16 chips, 64 devices. `trn3.gen1`: 16 Trainium3 chips, 64 devices of 36 GiB. `trn3.gen2`: 4 chips, 16 devices.",
)  # fmt: skip
EMU_HBM_BYTES = Knob[int | None](
    "NEURON_EMU_HBM_BYTES", BYTES, None,
    "Memory of each device, instead of what the instance type has: to see what a smaller device would do.",
    default_text="as the instance has",
)  # fmt: skip
RT_VISIBLE_CORES = Knob[tuple[int, ...] | None](
    "NEURON_RT_VISIBLE_CORES", CORES, None,
    "Logical cores of the instance that this process sees; the first becomes `neuron:0`.",
    default_text="all",
)  # fmt: skip
RT_NUM_CORES = Knob[int | None](
    "NEURON_RT_NUM_CORES", COUNT, None,
    "How many logical cores this process sees, counted from core 0. With `NEURON_RT_VISIBLE_CORES` set it must be the "
    "number of cores named there.",
    default_text="all",
)  # fmt: skip
LAUNCH_BLOCKING = Knob(
    "NEURON_LAUNCH_BLOCKING", SWITCH, False,
    "Each launch finishes before the call returns, so an error is raised by the line that caused it. Slow: for "
    "debugging.",
    live=True,
)  # fmt: skip
LAUNCH_LINES = Knob(
    "TORCH_NEURONX_LAUNCH_LINES", SWITCH, False,
    "Errors of asynchronous launches name the Python line that launched them.",
    live=True,
)  # fmt: skip

ADAPTIVE_EAGER = Knob(
    "TORCH_NEURONX_ADAPTIVE_EAGER", SWITCH, True,
    "Neighbouring pointwise and row-wise launches run as one, with the same bits. `torch.neuron.adaptive_eager()` "
    "switches it for a stretch of code.",
    live=True,
)  # fmt: skip
JIT = Knob(
    "TORCH_NEURONX_JIT", SWITCH, True,
    "Fused regions that take much time are compiled to machine code in the background (needs the package llvmlite).",
)  # fmt: skip
CACHE_DIR = Knob(
    "TORCH_NEURONX_CACHE_DIR", TEXT, "",
    "Directory that keeps machine code of fused regions from run to run.",
    default_text="torchneuron in the user's cache directory",
)  # fmt: skip
DISABLE_FALLBACK_EXECUTION = Knob(
    "TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION", SWITCH, True,
    "A graph that `torch.compile` cannot build is an error; off, it runs op by op with a warning. The option "
    "`fallback_execution` says it for one call.",
    live=True,
)  # fmt: skip
DEBUG_DIR = Knob(
    "TORCH_NEURONX_DEBUG_DIR", TEXT, "",
    "Directory for listings of compiled graphs.",
    default_text="neuron_backend in the system's directory for temporary files",
    live=True,
)  # fmt: skip
PRESERVE_COMPILATION_ARTIFACTS = Knob(
    "TORCH_NEURONX_PRESERVE_COMPILATION_ARTIFACTS", SWITCH, False,
    "`torch.compile` leaves readable listings of each graph and program in TORCH_NEURONX_DEBUG_DIR.",
    live=True,
)  # fmt: skip
EMU_NUMERICS = Knob(
    "NEURON_EMU_NUMERICS", NUMERICS, "cpu",
    "`cpu`: results of CPU PyTorch, except where the chip's way is both faster and more exact (bf16 and fp16 matrix "
    "products on CPUs without instructions for them). `chip`: always as a NeuronCore computes: exact products of bf16, "
    "fp16 and fp8, accumulation in fp32, one rounding at the end.",
)  # fmt: skip

# -- Use --------------------------------------------------------------------------------------------------------------

# Prefixes that are ours alone: a variable with one of them that is not in the table is a typing error.
_OWN_PREFIXES = ("NEURON_EMU_",)
_unknown = [name for name in os.environ if name.startswith(_OWN_PREFIXES) and name not in _registry]

_in_use: Callable[[], bool] = lambda: False  # noqa: E731
_apply: Callable[[], None] = lambda: None  # noqa: E731


def bind(in_use: Callable[[], bool], apply: Callable[[], None]) -> None:
    """The device registers itself: whether it is in use (then no knob may change), and what makes a change take
    effect. This module stands below the device and cannot call it by name."""
    global _in_use, _apply
    _in_use, _apply = in_use, apply


def all_knobs() -> tuple[Knob[Any], ...]:
    """All knobs, in the order of the documentation."""
    return tuple(_registry.values())


def _find(name: str) -> Knob[Any]:
    if name not in _registry:
        raise _unknown_knob(name)
    return _registry[name]


def _unknown_knob(name: str) -> UnknownKnobError:
    close = difflib.get_close_matches(name, _registry, n=1)
    return UnknownKnobError(name=name, hint=f" (did you mean {close[0]}?)" if close else "")


def get(name: str) -> Any:
    """The value in effect. Raises the knob's error when its value in the environment is bad."""
    return _find(name).value


def set(name: str, value: object) -> None:
    """Sets a knob for this process; wins over the environment. None restores the default.

    `value` is what `get` returns, or the text that the environment would hold.

    Raises:
        UnknownKnobError: there is no such knob.
        BadKnobValueError: the value does not fit it.
        KnobTooLateError: the knob describes the machine, and that is in use already.
    """
    knob = _find(name)
    if _in_use() and not knob.live:
        raise KnobTooLateError(name=name)
    knob.set(knob.default if value is None else knob.parse(_as_text(value)))
    _apply()


def _as_text(value: object) -> str:
    # Going through the text gives Python values the same checks as the environment's.
    if isinstance(value, (list, tuple, range)):
        return ",".join(str(item) for item in cast("list[object]", value))
    return kind_text(value)


def problems() -> list[str]:
    """What is wrong with the values in the environment, one text per mistake; empty when all is well."""
    found: list[KnobError] = [knob.problem for knob in _registry.values() if knob.problem is not None]
    found.extend(_unknown_knob(name) for name in _unknown)
    return [str(problem) for problem in found]


def render() -> str:
    """docs/knobs.md."""
    rows = [
        f"| `{knob.name}` | {knob.kind.name} | {knob.default_text} | {knob.meaning}{_LIVE if knob.live else ''} |"
        for knob in _registry.values()
    ]
    kinds = dict.fromkeys(knob.kind for knob in _registry.values())
    types = [f"- **{kind.name}**: {kind.expected}" for kind in kinds]
    return "\n".join([*_HEAD, *rows, "", "## Types", "", *types, ""])


_LIVE = " *Any time.*"
_HEAD = [
    "<!-- Written by `python -m torch_neuronx.knobs > docs/knobs.md`; edit the table in that module instead. -->",
    "# Knobs",
    "",
    "Environment variables, read once when `torch_neuronx` is imported, which `import torch` does. An empty variable",
    "counts as unset. From Python, `torch.neuron.knobs.set(name, value)` wins over the environment; it must come",
    "before the first use of the device, except where *any time* is noted. A bad value never fails the import: the",
    "first use of the device raises an error that names the variable, its value and what it takes. A variable that",
    "begins with `NEURON_EMU_` and is not listed here is such an error as well.",
    "",
    "| name | type | default | meaning |",
    "|---|---|---|---|",
]
