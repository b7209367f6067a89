"""op_db, and the tables of foreach operators beside it: each operator in every way that it can be called."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.testing._internal import common_methods_invocations as tables
from torch.testing._internal.opinfo.core import ForeachFuncInfo, OpInfo, SampleInput

from conformance.candidate import Candidate
from conformance.cases import ANY_DTYPE, Case
from conformance.compare import Observation
from conformance.placement import Placement, map_leaves, tensors
from conformance.suites.suite import (
    SEED,
    Call,
    Options,
    Tally,
    against_cpu,
    cotangents,
    same_error,
    seed_everything,
    spread,
)

DTYPES = ("float32", "float64", "bfloat16", "float16", "int64", "bool", "complex64")
GRADIENT_DTYPES = ("float32", "float64", "complex64")

# Entries with tensor arguments that hold host data on every accelerator: PyTorch's own tables never move them.
HOST_ARGUMENTS = {"tensor_split"}


class OpSuite:
    """Cases are (operator, variant, dtype); the samples come from the operator's own generator."""

    def __init__(self, name: str, infos: Iterable[OpInfo]) -> None:
        self._name = name
        self._infos = {info.full_name: info for info in infos}
        self._variants: dict[str, Callable[[OpInfo, SampleInput], dict[str, Call]]] = {
            "forward": _forward,
            "noncontiguous": _noncontiguous,
            "inplace": _inplace,
            "out": _out,
            "gradient": _gradient,
        }
        self._generated: dict[tuple[str, str, bool, int], list[tuple[int, SampleInput]]] = {}

    def cases(self) -> Iterator[Case]:
        for name, info in self._infos.items():
            supported = info.supported_dtypes("cpu")
            for dtype in DTYPES:
                if getattr(torch, dtype) in supported:
                    for variant in self._variants:
                        if _applies(info, variant, dtype):
                            yield Case(self._name, name, variant, dtype)
            if info.error_inputs_func is not None:
                yield Case(self._name, name, "error", ANY_DTYPE)

    def check(self, case: Case, candidate: Candidate, options: Options, check_values: bool) -> Tally:
        info = self._infos[case.entry]
        tally = Tally()
        if case.variant == "error":
            _check_errors(info, candidate, tally)
            return tally
        build = self._variants[case.variant]
        for index, sample in self._samples(info, case.dtype, case.variant == "gradient", options.max_samples):
            for label, call in build(info, sample).items():
                against_cpu(case.entry, f"sample {index}{label}", call, candidate, tally, check_values)
        return tally

    def _samples(self, info: OpInfo, dtype: str, requires_grad: bool, limit: int) -> list[tuple[int, SampleInput]]:
        """The variants of one entry and dtype follow each other and share their samples; some generators are slow."""
        key = (info.full_name, dtype, requires_grad, limit)
        if key not in self._generated:
            self._generated.clear()
            # Seeded once: with set_seed the table calls torch.manual_seed for each sample, at a millisecond each.
            seed_everything()
            samples = info.sample_inputs("cpu", getattr(torch, dtype), requires_grad=requires_grad, set_seed=False)
            self._generated[key] = spread(list(samples), limit)
        return self._generated[key]


def op_suite() -> OpSuite:
    """Single operators."""
    return OpSuite("op", tables.op_db)


def foreach_suite() -> OpSuite:
    """Operators on lists of tensors, which optimizers are made of."""
    return OpSuite(
        "foreach",
        (
            *tables.foreach_unary_op_db,
            *tables.foreach_binary_op_db,
            *tables.foreach_pointwise_op_db,
            *tables.foreach_reduce_op_db,
            *tables.foreach_other_op_db,
        ),
    )


def _applies(info: OpInfo, variant: str, dtype: str) -> bool:
    if variant == "inplace":
        return info.get_inplace() is not None
    if variant == "out":
        # The foreach tables leave the flag at its default; the Python functions take no out.
        return bool(info.supports_out) and not isinstance(info, ForeachFuncInfo)
    if variant == "gradient":
        backward = info.supported_backward_dtypes("cpu") if info.supports_autograd else ()
        return dtype in GRADIENT_DTYPES and getattr(torch, dtype) in backward
    return True


def arguments_of(info: OpInfo, sample: SampleInput, place: Placement) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, placed."""
    if info.name in HOST_ARGUMENTS:
        return place(sample.input), sample.args, sample.kwargs
    return place(sample.input), place(sample.args), place(sample.kwargs)


def _forward(info: OpInfo, sample: SampleInput) -> dict[str, Call]:
    def call(place: Placement) -> Observation:
        first, args, kwargs = arguments_of(info, sample, place)
        inputs = list(tensors((first, args, kwargs)))
        versions = Observation.versions_of(inputs)
        with place.default_device():
            results = info(first, *args, **kwargs)
        return Observation(results, inputs, versions)

    return {"": call}


def _noncontiguous(info: OpInfo, sample: SampleInput) -> dict[str, Call]:
    # Made within the call: a sample that has no strided form is one that the CPU refuses.
    return {"": lambda place: _forward(info, sample.noncontiguous())[""](place)}


def _inplace(info: OpInfo, sample: SampleInput) -> dict[str, Call]:
    function = info.get_inplace()

    def call(place: Placement) -> Observation:
        first, args, kwargs = arguments_of(info, sample, place)
        result = function(first, *args, **kwargs)
        return Observation((result, first, result is first), list(tensors((first, args, kwargs))))

    return {} if sample.broadcasts_input else {"": call}


def _out(info: OpInfo, sample: SampleInput) -> dict[str, Call]:
    def into(prepare: Callable[[Tensor], Tensor]) -> Call:
        def call(place: Placement) -> Observation:
            first, args, kwargs = arguments_of(info, sample, place)
            # The call without out= tells what the out tensors have to look like.
            template = map_leaves(_detached_on_host, info(first, *args, **kwargs))
            if not all(isinstance(leaf, Tensor) for leaf in ([template] if isinstance(template, Tensor) else template)):
                raise TypeError("out= needs an operator that returns tensors")
            written = [place(prepare(tensor)) for tensor in tensors(template)]
            place.seed(SEED)
            returned = info(first, *args, **kwargs, out=written[0] if isinstance(template, Tensor) else tuple(written))
            same = [one is other for one, other in zip(tensors(returned), written, strict=True)]
            gaps = [_gaps(tensor) for tensor in written if prepare is _strided]
            return Observation((written, same, gaps), list(tensors((first, args, kwargs))))

        return call

    return {
        " into the same layout": into(_same),
        " into a strided out": into(_strided),
        " into an empty out": into(_empty),
    }


def _detached_on_host(leaf: Any) -> Any:
    # A copy between devices resolves lazy conjugation, and one that stays on the host must not differ from it.
    return leaf.detach().to("cpu").resolve_conj().resolve_neg() if isinstance(leaf, Tensor) else leaf


def _same(tensor: Tensor) -> Tensor:
    return torch.full_like(tensor, 1)


def _strided(tensor: Tensor) -> Tensor:
    return torch.full((*tensor.shape, 2), 1, dtype=tensor.dtype)[..., 0]


def _gaps(strided: Tensor) -> Tensor:
    """The elements between those of a tensor made by ``_strided``, which no operator may touch."""
    return strided.as_strided((strided.numel(),), (2,), min(1, strided.numel()))


def _empty(tensor: Tensor) -> Tensor:
    return torch.empty(0, dtype=tensor.dtype)


def _gradient(info: OpInfo, sample: SampleInput) -> dict[str, Call]:
    def call(place: Placement) -> Observation:
        first, args, kwargs = arguments_of(info, sample, place)
        inputs = [tensor for tensor in tensors((first, args, kwargs)) if tensor.requires_grad]
        results = info(first, *args, **kwargs)
        outputs = [tensor for tensor in tensors(sample.output_process_fn_grad(results)) if tensor.requires_grad]
        if not inputs or not outputs:
            raise TypeError("nothing to differentiate")
        gradients = torch.autograd.grad(outputs, inputs, cotangents(outputs, place), allow_unused=True)
        return Observation((results, gradients), list(tensors((first, args, kwargs))))

    return {"": call}


def _check_errors(info: OpInfo, candidate: Candidate, tally: Tally) -> None:
    for index, wrong in enumerate(info.error_inputs("cpu")):
        sample = wrong.sample_input

        def call(place: Placement, sample: SampleInput = sample) -> Any:
            first, args, kwargs = arguments_of(info, sample, place)
            return info(first, *args, **kwargs)

        def accepts(message: str, pattern: str = wrong.error_regex) -> bool:
            return re.search(pattern, message) is not None

        same_error(info.full_name, f"error input {index}", call, wrong.error_type, accepts, candidate, tally)
