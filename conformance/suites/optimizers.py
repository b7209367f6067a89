"""optim_db: every optimizer of PyTorch's own table, over several steps and through a saved state."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor
from torch.testing._internal.common_optimizers import OptimizerErrorEnum, OptimizerInfo, OptimizerInput, optim_db

from conformance.candidate import Candidate
from conformance.cases import ANY_DTYPE, Case
from conformance.compare import Observation
from conformance.placement import Placement, map_leaves
from conformance.suites.suite import SEED, Call, Options, Tally, against_cpu, same_error, seed_everything

DTYPES = ("float32", "float64", "bfloat16", "float16", "complex64")
FINE_DTYPES = ("float32", "float64", "complex64")
# Variant: the implementation flags it passes. "default" lets the optimizer choose, as user code does.
IMPLEMENTATIONS: dict[str, dict[str, bool]] = {
    "default": {},
    "single": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "sparse": {},
}
SHAPES = ((4, 5), (5,), (3, 2, 2), (1,), ())
MATRIX_SHAPES = ((4, 5), (6, 3))
STEPS_BEFORE_SAVING = 4
STEPS_AFTER_LOADING = 2


class OptimizerSuite:
    """Cases are (optimizer, implementation, dtype). Each trains a few parameters, saves, loads and goes on."""

    def __init__(self) -> None:
        self._infos = {info.name: info for info in optim_db}

    def cases(self) -> Iterator[Case]:
        for name, info in self._infos.items():
            for variant in IMPLEMENTATIONS:
                if _applies(info, variant):
                    # By default the CPU loops and a device takes foreach, which rounds coarse formats at other points.
                    for dtype in FINE_DTYPES if variant == "default" else DTYPES:
                        yield Case("optim", name, variant, dtype)
            if info.optim_error_inputs_func is not None:
                yield Case("optim", name, "error", ANY_DTYPE)

    def check(self, case: Case, candidate: Candidate, options: Options, check_values: bool) -> Tally:
        info = self._infos[case.entry]
        tally = Tally()
        if case.variant == "error":
            _check_errors(info, candidate, tally)
            return tally
        dtype = getattr(torch, case.dtype)
        for sample in info.optim_inputs_func("cpu", dtype)[: options.max_samples]:
            kwargs = {**sample.kwargs, **IMPLEMENTATIONS[case.variant]}
            call = _training(info, kwargs, dtype, case.variant == "sparse" or info.only_supports_sparse_grads)
            against_cpu(case.entry, sample.desc, call, candidate, tally, check_values)
        return tally


def optimizer_suite() -> OptimizerSuite:
    """Everything in the table."""
    return OptimizerSuite()


def _applies(info: OptimizerInfo, variant: str) -> bool:
    if variant in ("single", "foreach"):
        return "foreach" in info.supported_impls
    if variant == "fused":
        return "cpu" in info.supports_fused_on
    if variant == "sparse":
        return bool(info.supports_sparse)
    return True


def _parameters(info: OptimizerInfo, dtype: torch.dtype) -> list[Tensor]:
    source = torch.Generator().manual_seed(SEED)
    shapes = MATRIX_SHAPES if info.name == "Muon" else SHAPES
    return [torch.nn.Parameter(torch.randn(shape, dtype=dtype, generator=source)) for shape in shapes]


def _make(info: OptimizerInfo, parameters: Any, kwargs: dict[str, Any]) -> torch.optim.Optimizer:
    # The table's annotation says instance where it holds the class.
    optimizer_class = cast("type[torch.optim.Optimizer]", info.optim_cls)
    return optimizer_class(parameters, **copy.deepcopy(kwargs))


class _Problem:
    """A loss with a known gradient: half the squared distance of each parameter to a target."""

    def __init__(self, parameters: list[Tensor], place: Placement, sparse: bool) -> None:
        self.parameters: list[Tensor] = [place(parameter) for parameter in parameters]
        source = torch.Generator().manual_seed(SEED + 1)
        self.targets: list[Tensor] = [
            place(torch.randn(parameter.shape, dtype=parameter.dtype, generator=source)) for parameter in parameters
        ]
        self.sparse = sparse

    def loss(self) -> Tensor:
        terms = [
            (parameter - target).abs().square().sum() / 2
            for parameter, target in zip(self.parameters, self.targets, strict=True)
        ]
        return torch.stack(terms).sum()

    def train(self, optimizer: torch.optim.Optimizer, steps: int) -> list[Tensor]:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = self.loss()
            loss.backward()
            if self.sparse:
                for parameter in self.parameters:
                    assert parameter.grad is not None
                    parameter.grad = parameter.grad.to_sparse()
            return loss

        losses: list[Tensor] = []
        for _ in range(steps):
            # The annotation of step() promises floats; what every optimizer hands back is the closure's own result.
            loss: Any = optimizer.step(cast("Callable[[], float]", closure))
            losses.append(loss.detach())
        return losses


def _training(info: OptimizerInfo, kwargs: dict[str, Any], dtype: torch.dtype, sparse: bool) -> Call:
    def call(place: Placement) -> Observation:
        # Tensor hyperparameters (lr, betas) stay where the user made them: in host memory.
        parameters = _parameters(info, dtype)
        if sparse:
            parameters = [parameter for parameter in parameters if parameter.dim()]
        first = _Problem(parameters, place, sparse)
        optimizer = _make(info, first.parameters, kwargs)
        losses = first.train(optimizer, STEPS_BEFORE_SAVING)
        saved = copy.deepcopy(optimizer.state_dict())
        second = _Problem(parameters, place, sparse)
        with torch.no_grad():
            for mine, theirs in zip(second.parameters, first.parameters, strict=True):
                mine.copy_(theirs)
        resumed = _make(info, second.parameters, kwargs)
        # Loading may take over the very tensors of the state, and what was saved is compared at the end.
        resumed.load_state_dict(copy.deepcopy(saved))
        losses += second.train(resumed, STEPS_AFTER_LOADING)
        return Observation(
            (losses, first.parameters, second.parameters, _state(saved, place), _state(resumed.state_dict(), place))
        )

    return call


def _state(state_dict: dict[str, Any], place: Placement) -> list[Any]:
    """The state of each parameter. Scalars such as step counters may live in host memory: only their value counts."""

    def comparable(leaf: Any) -> Any:
        return leaf.to(place.device) if isinstance(leaf, Tensor) and leaf.dim() == 0 else leaf

    return [map_leaves(comparable, state) for state in state_dict["state"].values()]


def _check_errors(info: OptimizerInfo, candidate: Candidate, tally: Tally) -> None:
    seed_everything()
    for wrong in info.optim_error_inputs_func("cpu", torch.float32):
        sample = wrong.optimizer_error_input

        def call(place: Placement, sample: OptimizerInput = sample, error_on: Any = wrong.error_on) -> Any:
            given = sample.params
            params = _parameters(info, torch.float32) if given is None else given
            placed = _place_with_gradients(place, params)
            optimizer = _make(info, placed, sample.kwargs)
            if error_on is OptimizerErrorEnum.STEP_ERROR:
                optimizer.step()
            return optimizer

        def accepts(message: str, pattern: str = wrong.error_regex) -> bool:
            return re.search(pattern, message) is not None

        same_error(info.name, sample.desc, call, wrong.error_type, accepts, candidate, tally)


def _place_with_gradients(place: Placement, params: Any) -> Any:
    def with_gradient(leaf: Any) -> Any:
        placed = place(leaf)
        if isinstance(leaf, Tensor) and leaf.grad is not None:
            placed.grad = place(leaf.grad)
        return placed

    return map_leaves(with_gradient, params)
