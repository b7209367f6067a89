"""What the knobs say about the machine: the checks that concern more than one knob, and handing them to the driver.

Touches no device: the driver makes its machine at first use, and raises then what is wrong here.
"""

from __future__ import annotations

from . import _C, knobs
from .errors import BadKnobValueError, ConflictingKnobsError, KnobError

__all__ = ["configure", "problems"]


def configure() -> None:
    """Tells the driver what the knobs say. Called at import and after each change of a knob."""
    _C.set_adaptive(_or_default(knobs.ADAPTIVE_EAGER))
    _C.set_chip_numerics(_or_default(knobs.EMU_NUMERICS) == "chip")
    _C.set_compiler(_or_default(knobs.JIT))
    if _C.is_initialized():  # Only live knobs change now.
        _C.set_launch_blocking(knobs.LAUNCH_BLOCKING.value)
        _C.set_launch_lines(knobs.LAUNCH_LINES.value)
        return
    found = problems()
    instances = {instance["name"]: instance for instance in _C.instance_types()}
    _C.configure(
        instance=_or_default(knobs.EMU_INSTANCE) if not found else next(iter(instances)),
        hbm_bytes=_or_default(knobs.EMU_HBM_BYTES) or 0,
        visible_cores=[] if found else list(_visible_cores()),
        launch_blocking=_or_default(knobs.LAUNCH_BLOCKING),
        launch_lines=_or_default(knobs.LAUNCH_LINES),
        error="\n".join(found),
    )


def problems() -> list[str]:
    """All that is wrong with the knobs, one text per mistake."""
    found = knobs.problems()
    if not found:  # Knobs that do not parse cannot be compared with each other.
        try:
            _check_machine()
        except KnobError as problem:
            found.append(str(problem))
    return found


def _or_default(knob: knobs.Knob[knobs.T]) -> knobs.T:
    return knob.default if knob.problem is not None else knob.value


def _visible_cores() -> tuple[int, ...]:
    cores, count = knobs.RT_VISIBLE_CORES.value, knobs.RT_NUM_CORES.value
    return cores or tuple(range(count or 0))


def _check_machine() -> None:
    instances = {instance["name"]: instance for instance in _C.instance_types()}
    name = knobs.EMU_INSTANCE.value
    if name not in instances:
        raise BadKnobValueError(
            name=knobs.EMU_INSTANCE.name, value=name, reason="there is no such instance type",
            expected="one of " + ", ".join(instances),
        )  # fmt: skip
    available = instances[name]["chips"] * instances[name]["logical_cores_per_chip"]
    cores, count = knobs.RT_VISIBLE_CORES.value, knobs.RT_NUM_CORES.value
    beyond = [core for core in cores or () if core >= available]
    if beyond:
        raise ConflictingKnobsError(
            first=f"{knobs.RT_VISIBLE_CORES.name} (core {beyond[0]})", second=f"{knobs.EMU_INSTANCE.name}={name}",
            reason=f"the instance has the cores 0-{available - 1}",
            remedy="Name cores that it has, or a larger instance",
        )  # fmt: skip
    if count is not None and count > available:
        raise ConflictingKnobsError(
            first=f"{knobs.RT_NUM_CORES.name}={count}", second=f"{knobs.EMU_INSTANCE.name}={name}",
            reason=f"the instance has {available} cores", remedy="Ask for fewer cores, or for a larger instance",
        )  # fmt: skip
    if cores is not None and count is not None and count != len(cores):
        raise ConflictingKnobsError(
            first=f"{knobs.RT_NUM_CORES.name}={count}", second=knobs.RT_VISIBLE_CORES.name,
            reason=f"it names {len(cores)} cores", remedy=f"Unset {knobs.RT_NUM_CORES.name}",
        )  # fmt: skip
