"""When a result of the device counts as equal to the CPU's. Every tolerance of the conformance run is in this file."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from conformance.placement import leaves, tensors

# (relative, absolute), as in torch.testing.assert_close. The device runs the same kernels as the CPU, so equality is
# the rule and is tried first. These bound what is accepted, and counted apart, where a kernel sums in another order.
TOLERANCES: dict[torch.dtype, tuple[float, float]] = {
    torch.float64: (1e-7, 1e-7),
    torch.float32: (1.3e-6, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float16: (1e-3, 1e-5),
    torch.complex128: (1e-7, 1e-7),
    torch.complex64: (1.3e-6, 1e-5),
    torch.complex32: (1e-3, 1e-5),
}


# Formats so coarse that two correct kernels may differ by more than the above: a matrix product rounded once and one
# rounded along the way, carried through a cancellation. There the exact answer decides; see ``no_farther``.
COARSE = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Rule:
    """What counts as equal in a kind of run.

    ``coarse`` dtypes get a second chance by the exact answer, which is computed in ``wide``. ``strides`` says which
    strides have to be the CPU's: all, those of dimensions with more than one element, or none.
    """

    tolerances: Mapping[torch.dtype, tuple[float, float]]
    coarse: tuple[torch.dtype, ...]
    wide: torch.dtype
    strides: Literal["all", "used", "none"] = "all"


EXACT_RULE = Rule(TOLERANCES, COARSE, torch.float32)
# Compiled graphs keep intermediate values unrounded, sum in another order and have elementary functions of their own.
COMPILED_RULE = Rule(TOLERANCES, (*COARSE, torch.float32), torch.float64, strides="used")
# PyTorch promises no strides of gradients.
GRADIENT_RULE = replace(COMPILED_RULE, strides="none")


class Grade(enum.IntEnum):
    """How well a result matches; a higher grade is a weaker match."""

    EXACT = 0
    CLOSE = 1


class Mismatch(AssertionError):
    """The device answered, and the answer differs from the CPU's."""


class ValueMismatch(Mismatch):
    """The values differ, and perhaps nothing else."""


@dataclass
class Observation:
    """What can be seen after a call: what it returned, and the inputs as it left them."""

    results: Any
    inputs: Sequence[Tensor] = ()
    versions: Sequence[int] = field(default=(), repr=False)

    @classmethod
    def versions_of(cls, inputs: Sequence[Tensor]) -> list[int]:
        """Version counters; taken before a call, they tell afterwards which inputs it wrote to."""
        return [tensor._version for tensor in inputs]


def compare(
    expected: Observation,
    actual: Observation,
    device: torch.device,
    check_values: bool = True,
    rule: Rule = EXACT_RULE,
) -> Grade:
    """Raises ``Mismatch`` unless ``actual``, seen on ``device``, is what the CPU gave; returns how exact it is."""
    want, have = leaves(expected.results), leaves(actual.results)
    if len(want) != len(have):
        raise Mismatch(f"structure: {len(have)} results instead of {len(want)}")
    grade = Grade.EXACT
    for index, (one, other) in enumerate(zip(want, have, strict=True)):
        place = f"result {index}" if len(want) > 1 else "result"
        grade = max(grade, _compare_leaf(one, other, device, place, check_values, rule))
    _compare_aliases(expected, actual)
    for index, (one, other, version) in enumerate(
        zip(expected.inputs, actual.inputs, expected.versions or [0] * len(expected.inputs), strict=True)
    ):
        if expected.versions and one._version != version:
            grade = max(grade, _compare_leaf(one, other, device, f"mutated input {index}", check_values, rule))
    return grade


def no_farther(expected: Observation, actual: Observation, exact: Observation, rule: Rule = EXACT_RULE) -> bool:
    """Whether the device's coarse results are as near as the CPU's to ``exact``, the same call made in a wider dtype.

    As near: at most twice the CPU's largest error, plus one unit in the last place of the largest element.
    """
    triples = list(zip(leaves(expected.results), leaves(actual.results), leaves(exact.results), strict=True))
    for cpu, device, truth in triples:
        if not isinstance(cpu, Tensor):
            if cpu != device:
                return False
            continue
        host = device.detach().to("cpu")
        if cpu.dtype not in rule.coarse:
            if _close(cpu.detach(), host, *rule.tolerances.get(cpu.dtype, (0.0, 0.0))) is not None:
                return False
            continue
        finite = cpu.isfinite()
        if truth.shape != cpu.shape or _close(cpu.detach()[~finite], host[~finite], 0.0, 0.0) is not None:
            return False
        want, have, right = (tensor.detach()[finite].double() for tensor in (cpu, host, truth))
        if want.numel():
            format_ = torch.finfo(cpu.dtype)
            unit = format_.eps * max(right.abs().max().item(), format_.tiny)
            # Written so that a NaN, which compares as false, is not near.
            if not (have - right).abs().max() <= 2 * (want - right).abs().max() + unit:
                return False
    return any(isinstance(cpu, Tensor) and cpu.dtype in rule.coarse for cpu, _, _ in triples)


def _compare_leaf(want: Any, have: Any, device: torch.device, place: str, check_values: bool, rule: Rule) -> Grade:
    if isinstance(want, Tensor):
        return compare_tensors(want, have, device, place, check_values, rule)
    if isinstance(want, torch.device):
        want = device if want.type == "cpu" else want
    if isinstance(want, torch.Generator) or not check_values:
        return Grade.EXACT
    if type(want) is not type(have):
        raise Mismatch(f"{place}: type {type(have).__name__} instead of {type(want).__name__}")
    if isinstance(want, float) and math.isnan(want) and math.isnan(have):
        return Grade.EXACT
    if want != have:
        raise Mismatch(f"{place}: {have!r} instead of {want!r}")
    return Grade.EXACT


def compare_tensors(
    want: Tensor, have: Any, device: torch.device, place: str, check_values: bool = True, rule: Rule = EXACT_RULE
) -> Grade:
    """Compares metadata, then values: first for equality (NaN equals NaN), then within the tolerance of the dtype."""
    if not isinstance(have, Tensor):
        raise Mismatch(f"{place}: type {type(have).__name__} instead of Tensor")
    expected_device = device if want.device.type == "cpu" else want.device
    if have.device != expected_device:
        raise Mismatch(f"{place}: device {have.device} instead of {expected_device}")
    strided = want.layout is torch.strided and not want.is_nested
    for name, one, other in (
        ("dtype", want.dtype, have.dtype),
        ("layout", want.layout, have.layout),
        ("shape", *((tuple(want.shape), tuple(have.shape)) if not want.is_nested else ((), ()))),
        ("stride", *((_strides(want, rule), _strides(have, rule)) if strided else ((), ()))),
        ("conjugate bit", want.is_conj(), have.is_conj()),
        ("negative bit", want.is_neg(), have.is_neg()),
        ("requires_grad", want.requires_grad, have.requires_grad),
    ):
        if one != other:
            raise Mismatch(f"{place}: {name} {other} instead of {one}")
    if not check_values or want.device.type == "meta":
        return Grade.EXACT
    host = have.detach().to("cpu")
    reference = want.detach()
    if strided and _equal(reference, host):
        return Grade.EXACT
    relative, absolute = rule.tolerances.get(want.dtype, (0.0, 0.0))
    exact = _close(reference, host, 0.0, 0.0)
    if exact is None:
        return Grade.EXACT
    if relative == absolute == 0.0:
        raise ValueMismatch(f"{place}: values: {exact}")
    close = _close(reference, host, relative, absolute)
    if close is not None:
        raise ValueMismatch(f"{place}: values: {close}")
    return Grade.CLOSE


def _strides(tensor: Tensor, rule: Rule) -> tuple[int, ...]:
    if rule.strides == "all":
        return tensor.stride()
    if rule.strides == "none" or tensor.numel() == 0:
        return ()
    return tuple(stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)


def _equal(want: Tensor, have: Tensor) -> bool:
    # torch.equal says no to any NaN; that case is left to assert_close, which costs a hundred times more.
    try:
        return torch.equal(want, have)
    except (RuntimeError, NotImplementedError):
        return False


def _close(want: Tensor, have: Tensor, relative: float, absolute: float) -> str | None:
    try:
        torch.testing.assert_close(have, want, rtol=relative, atol=absolute, equal_nan=True, check_stride=False)
    except AssertionError as error:
        return " ".join(str(error).split())
    return None


def _compare_aliases(expected: Observation, actual: Observation) -> None:
    """A view has to stay a view of the same input, and a fresh result must not share memory with one."""
    want, have = _aliases(expected), _aliases(actual)
    if want != have:
        raise Mismatch(f"aliases: results share memory with inputs {have} instead of {want}")


def _aliases(observed: Observation) -> list[list[int]]:
    """For each result the positions of the inputs that it shares memory with."""
    inputs = [_storage_of(tensor) for tensor in observed.inputs]
    results = [_storage_of(tensor) for tensor in tensors(observed.results)]
    return [[index for index, storage in enumerate(inputs) if storage and storage == own] for own in results]


def _storage_of(tensor: Tensor) -> int:
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.numel() == 0:
        return 0
    return tensor.untyped_storage()._cdata
