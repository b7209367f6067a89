"""module_db: every class of torch.nn in PyTorch's own table, forward and backward, in training and evaluation."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.testing._internal.common_modules import ModuleErrorEnum, ModuleInfo, ModuleInput, module_db

from conformance.candidate import Candidate
from conformance.cases import Case
from conformance.compare import Observation
from conformance.placement import Placement, tensors
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

DTYPES = ("float32", "float64", "bfloat16", "float16", "complex64")
# Variant: (training mode, what is done).
VARIANTS = {
    "train": (True, "forward"),
    "eval": (False, "forward"),
    "backward": (True, "backward"),
    "backward-eval": (False, "backward"),
    "factory": (True, "factory"),
}


class ModuleSuite:
    """Cases are (class, variant, dtype). The module is built on the CPU, copied to the device and called there."""

    def __init__(self) -> None:
        self._infos = {_name(info): info for info in module_db}

    def cases(self) -> Iterator[Case]:
        for name, info in self._infos.items():
            for dtype in DTYPES:
                if getattr(torch, dtype) in info.supported_dtypes("cpu"):
                    for variant in VARIANTS:
                        yield Case("module", name, variant, dtype)
                    if info.module_error_inputs_func is not None:
                        yield Case("module", name, "error", dtype)

    def check(self, case: Case, candidate: Candidate, options: Options, check_values: bool) -> Tally:
        info = self._infos[case.entry]
        dtype = getattr(torch, case.dtype)
        tally = Tally()
        if case.variant == "error":
            _check_errors(info, dtype, candidate, tally)
            return tally
        training, action = VARIANTS[case.variant]
        for index, sample in spread(_samples(info, dtype, action == "backward", training), options.max_samples):
            call = _CALLS[action](info, sample, dtype, training)
            against_cpu(case.entry, sample.desc or f"sample {index}", call, candidate, tally, check_values)
        return tally


def module_suite() -> ModuleSuite:
    """Everything in the table."""
    return ModuleSuite()


def _name(info: ModuleInfo) -> str:
    name: str = info.name
    return name


@functools.lru_cache(maxsize=4)
def _samples(info: ModuleInfo, dtype: torch.dtype, requires_grad: bool, training: bool) -> list[ModuleInput]:
    seed_everything()
    return list(
        info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=requires_grad, training=training)
    )


def _build(info: ModuleInfo, sample: ModuleInput, dtype: torch.dtype, training: bool) -> torch.nn.Module:
    # Built on the host, wherever it is going to run.
    torch.default_generator.manual_seed(SEED)
    arguments = sample.constructor_input
    module: torch.nn.Module = info.module_cls(*copy.deepcopy(arguments.args), **copy.deepcopy(arguments.kwargs))
    return module.to(dtype).train(training)


def _observe(module: torch.nn.Module, results: Any) -> Observation:
    """What the module returned, its parameters, and the buffers it may have updated."""
    state = dict((*module.named_parameters(), *module.named_buffers()))
    return Observation((results, {name: tensor for name, tensor in state.items() if not is_lazy(tensor)}))


def _forward(info: ModuleInfo, sample: ModuleInput, dtype: torch.dtype, training: bool) -> Call:
    def call(place: Placement) -> Observation:
        module = _build(info, sample, dtype, training).to(place.device, place(dtype))
        arguments = sample.forward_input
        place.seed(SEED)
        return _observe(module, module(*place(arguments.args), **place(arguments.kwargs)))

    return call


def _backward(info: ModuleInfo, sample: ModuleInput, dtype: torch.dtype, training: bool) -> Call:
    def call(place: Placement) -> Observation:
        module = _build(info, sample, dtype, training).to(place.device, place(dtype))
        args, kwargs = place(sample.forward_input.args), place(sample.forward_input.kwargs)
        place.seed(SEED)
        results = module(*args, **kwargs)
        outputs = [tensor for tensor in tensors(results) if tensor.requires_grad]
        inputs = [tensor for tensor in (*tensors((args, kwargs)), *module.parameters()) if tensor.requires_grad]
        if not outputs or not inputs:
            raise TypeError("nothing to differentiate")
        torch.autograd.backward(outputs, cotangents(outputs, place), inputs=inputs)
        return _observe(module, (results, [tensor.grad for tensor in inputs]))

    return call


def _factory(info: ModuleInfo, sample: ModuleInput, dtype: torch.dtype, training: bool) -> Call:
    """Builds the module on the device by its ``device`` argument, so that its parameters are drawn there."""

    def call(place: Placement) -> Observation:
        arguments = sample.constructor_input
        place.seed(SEED)
        module = info.module_cls(
            *place(arguments.args), **{**place(arguments.kwargs), "device": place.device, "dtype": dtype}
        )
        return _observe(module.train(training), None)

    return call


_CALLS: dict[str, Callable[[ModuleInfo, ModuleInput, torch.dtype, bool], Call]] = {
    "forward": _forward,
    "backward": _backward,
    "factory": _factory,
}


def _check_errors(info: ModuleInfo, dtype: torch.dtype, candidate: Candidate, tally: Tally) -> None:
    seed_everything()
    wrongs = info.module_error_inputs_func(info, device="cpu", dtype=dtype, requires_grad=False, training=True)
    for index, wrong in enumerate(wrongs):
        sample = wrong.module_error_input

        def call(place: Placement, sample: ModuleInput = sample, error_on: Any = wrong.error_on) -> Any:
            module = _build(info, sample, dtype, training=True).to(place.device)
            if error_on is ModuleErrorEnum.CONSTRUCTION_ERROR:
                return module
            return module(*place(sample.forward_input.args), **place(sample.forward_input.kwargs))

        def accepts(message: str, pattern: str = wrong.error_regex) -> bool:
            return re.search(pattern, message) is not None

        same_error(_name(info), f"error input {index}", call, wrong.error_type, accepts, candidate, tally)
