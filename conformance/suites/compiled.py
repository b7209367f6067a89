"""op_db under torch.compile: each operator in a graph of its own, forward and backward."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.testing._internal import common_methods_invocations as tables
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

from conformance.candidate import Candidate
from conformance.cases import Case
from conformance.compare import COMPILED_RULE, GRADIENT_RULE, Observation
from conformance.placement import Placement, map_leaves, tensors
from conformance.suites.ops import GRADIENT_DTYPES, OpSuite, arguments_of
from conformance.suites.suite import Call, Options, Tally, against_cpu, cotangents

# Compiling is slow beside running: one dtype for all operators, others for a part of them that stays the same.
DTYPES = ("float32", "int64", "bool", "complex64")
MORE_DTYPES = ("bfloat16", "int64")
ONE_IN = 3
# Which of two samples: the plain one at the head of the table, and one from among its corner cases.
SAMPLES = {"forward": slice(0, 2), "gradient": slice(0, 1), "dynamic": slice(1, 2)}


class CompiledSuite(OpSuite):
    """Cases are (operator, variant, dtype), with one or two samples each."""

    def __init__(self) -> None:
        super().__init__("compiled", tables.op_db)

    def cases(self) -> Iterator[Case]:
        for name, info in self._infos.items():
            supported = info.supported_dtypes("cpu")
            chosen = [next((d for d in DTYPES if getattr(torch, d) in supported), "")]
            if _draw(name) == 0:
                chosen += [d for d in MORE_DTYPES if getattr(torch, d) in supported and d not in chosen]
            for dtype in filter(None, chosen):
                yield Case(self._name, name, "forward", dtype)
            backward = info.supported_backward_dtypes("cpu") if info.supports_autograd else ()
            if chosen[0] in GRADIENT_DTYPES and getattr(torch, chosen[0]) in backward:
                yield Case(self._name, name, "gradient", chosen[0])
            if chosen[0] and _draw(name) == 1:
                yield Case(self._name, name, "dynamic", chosen[0])

    def check(self, case: Case, candidate: Candidate, options: Options, check_values: bool) -> Tally:
        info, tally = self._infos[case.entry], Tally()
        gradient = case.variant == "gradient"
        del options
        two = self._samples(info, case.dtype, gradient, 2)
        for index, sample in two[SAMPLES[case.variant]] or two[:1]:
            torch._dynamo.reset()
            make = _gradient if gradient else _forward
            plain, compiled = (
                make(info, sample, info.op),
                make(info, sample, _compiled(info, case.variant == "dynamic")),
            )
            with torch.compiler.config.patch(force_disable_caches=True):
                against_cpu(
                    case.entry,
                    f"sample {index}",
                    plain,
                    candidate,
                    tally,
                    check_values,
                    compiled,
                    GRADIENT_RULE if gradient else COMPILED_RULE,
                )
        return tally


def compiled_suite() -> CompiledSuite:
    """Single operators, compiled."""
    return CompiledSuite()


def _draw(name: str) -> int:
    return zlib.crc32(name.encode()) % ONE_IN


def _compiled(info: OpInfo, dynamic: bool) -> Callable[..., Any]:
    """The operator in a graph of its own, or in several where Dynamo cannot trace it in one."""
    options: dict[str, Any] = {"dynamic": True if dynamic else None}  # the default backend, as most users have it
    op = info.op
    whole = torch.compile(lambda *args, **kwargs: op(*args, **kwargs), fullgraph=True, **options)

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return whole(*args, **kwargs)
        except torch._dynamo.exc.TorchDynamoException as error:
            # An error of the compiler itself stands; where PyTorch cannot trace it in one graph, it may in several.
            inner = getattr(error, "inner_exception", error)
            if not type(inner).__module__.startswith("torch."):
                raise
            torch._dynamo.reset()
            return torch.compile(lambda *args, **kwargs: op(*args, **kwargs), **options)(*args, **kwargs)

    return call


def _forward(info: OpInfo, sample: SampleInput, op: Callable[..., Any]) -> Call:
    def call(place: Placement) -> Observation:
        first, args, kwargs = arguments_of(info, sample, place)
        inputs = list(tensors((first, args, kwargs)))
        versions = Observation.versions_of(inputs)
        with place.default_device():
            results = op(first, *args, **kwargs)
        return Observation(map_leaves(_resolved, results), inputs, versions)

    return call


def _resolved(leaf: Any) -> Any:
    # Graphs hold no lazy conjugates and negatives, on any device.
    return leaf.resolve_conj().resolve_neg() if isinstance(leaf, torch.Tensor) and leaf.is_complex() else leaf


def _gradient(info: OpInfo, sample: SampleInput, op: Callable[..., Any]) -> Call:
    def call(place: Placement) -> Observation:
        first, args, kwargs = arguments_of(info, sample, place)
        inputs = [tensor for tensor in tensors((first, args, kwargs)) if tensor.requires_grad]
        results = map_leaves(_resolved, op(first, *args, **kwargs))
        outputs = [tensor for tensor in tensors(sample.output_process_fn_grad(results)) if tensor.requires_grad]
        if not inputs or not outputs:
            raise TypeError("nothing to differentiate")
        gradients = torch.autograd.grad(outputs, inputs, cotangents(outputs, place), allow_unused=True)
        return Observation((results, gradients), list(tensors((first, args, kwargs))))

    return call
