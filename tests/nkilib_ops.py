"""Running ops of nkilib on the device, on the CPU and compiled, against nkilib_references."""

from collections.abc import Callable, Sequence
from typing import Any

import nkilib_references as reference
import torch
from comparison import copied_to
from nkilib_checks import assert_near, normal
from tolerances import NKILIB_GRADIENTS


def leaves(arguments: Sequence[Any], device: torch.device | str, fixed: Sequence[int] = ()) -> list[Any]:
    """The arguments on the device; floating tensors want gradients, but not those with a number in `fixed`."""
    return [
        a.requires_grad_() if isinstance(a, torch.Tensor) and a.is_floating_point() and i not in fixed else a
        for i, a in enumerate(copied_to(list(arguments), device))
    ]


def run(function: Callable[..., torch.Tensor], arguments: Sequence[Any]) -> list[torch.Tensor]:
    """The result and the gradients of all arguments that want them."""
    result = function(*arguments)
    wanted = [a for a in arguments if isinstance(a, torch.Tensor) and a.requires_grad]
    grad = normal(99, *result.shape, dtype=result.dtype).to(result.device)
    return [result.detach(), *torch.autograd.grad(result, wanted, grad)]


def assert_op(
    function: Callable[..., torch.Tensor],
    expected: Callable[..., torch.Tensor],
    arguments: Sequence[Any],
    device: torch.device | str,
    fixed: Sequence[int] = (),
) -> None:
    """`function` gives what `expected` gives in float64, with its gradients: eager, and the same bits compiled."""
    given = leaves(arguments, device, fixed)
    actual = run(function, given)
    grad = normal(99, *actual[0].shape, dtype=actual[0].dtype)
    gradients = reference.gradients(expected, arguments, grad)
    wanted = [g for i, g in enumerate(gradients) if g is not None and i not in fixed]
    for one, other in zip(actual, [expected(*arguments), *wanted], strict=True):
        assert_near(one.cpu(), other.detach(), one.dtype, NKILIB_GRADIENTS)
    torch._dynamo.reset()
    compiled = run(torch.compile(function, fullgraph=True, backend="aot_eager"), given)
    for one, other in zip(compiled, actual, strict=True):
        assert torch.equal(one, other)
