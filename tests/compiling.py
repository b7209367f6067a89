"""Comparing a compiled function on the device with the plain function on the CPU."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from comparison import copied_to
from conftest import DEVICE_TYPE
from tolerances import COMPILED, Tolerance
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._pytree import tree_flatten, tree_leaves

from torch_neuronx.compile import neuron

# With TEST_DEVICE=cpu the tests show that they ask for what PyTorch does; Inductor would need a C++ compiler for that.
BACKEND = neuron if DEVICE_TYPE == "neuron" else "aot_eager"


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """`torch.compile` with the backend under test, in one graph unless `fullgraph=False`."""
    return torch.compile(function, backend=BACKEND, fullgraph=options.pop("fullgraph", True), **options)


def counter() -> CompileCounterWithBackend:
    """The backend under test, counting: `frame_count` graphs were compiled."""
    return CompileCounterWithBackend(BACKEND)


def assert_near(
    actual: Any, expected: Any, tolerance: Tolerance | None = None, where: str = "result", strides: bool = True
) -> None:
    """Two trees are the same: shapes, dtypes and strides exactly, values within the tolerance of their dtype."""
    (have, have_spec), (want, want_spec) = tree_flatten(actual), tree_flatten(expected)
    assert str(have_spec) == str(want_spec), f"{where}: {have_spec}, expected {want_spec}"
    for k, (a, e) in enumerate(zip(have, want, strict=True)):
        name = f"{where}[{k}]"
        if not isinstance(e, torch.Tensor):
            assert type(a) is type(e), f"{name}: {a!r}, expected {e!r}"
            assert a == e or (a != a and e != e), f"{name}: {a!r}, expected {e!r}"
            continue
        assert a.shape == e.shape, f"{name}: shape {a.shape}, expected {e.shape}"
        assert a.dtype == e.dtype, f"{name}: dtype {a.dtype}, expected {e.dtype}"
        assert not strides or _strides(a) == _strides(e), f"{name}: strides {a.stride()}, expected {e.stride()}"
        limit = tolerance or COMPILED.get(e.dtype, Tolerance(0, 0))
        torch.testing.assert_close(
            a.detach().cpu(),
            e.detach(),
            rtol=limit.rtol,
            atol=limit.atol,
            equal_nan=True,
            msg=lambda m, n=name: f"{n}: {m}",
        )


def _strides(tensor: torch.Tensor) -> list[int]:
    """Those that say where elements are."""
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1 and tensor.numel()]


def assert_compiled_same(
    function: Callable[..., Any],
    *arguments: Any,
    tolerance: Tolerance | None = None,
    seed: int = 11,
    where: str = "result",
    **options: Any,
) -> None:
    """`function` compiled on the device gives what it gives on the CPU, changes its arguments likewise, and does so
    again when called again."""
    on_cpu = copied_to(arguments, "cpu")
    torch.manual_seed(seed)
    expected = function(*on_cpu)
    call = compiled(function, **options)
    for repetition in ("first call", "second call"):
        here = copied_to(arguments, DEVICE_TYPE)
        torch.manual_seed(seed)
        actual = call(*here)
        for tensor in tree_leaves(actual):
            if isinstance(tensor, torch.Tensor):
                assert tensor.device.type == DEVICE_TYPE, f"{where}, {repetition}: a tensor on {tensor.device}"
        assert_near(actual, expected, tolerance, f"{where}, {repetition}")
        assert_near(here, on_cpu, tolerance, f"arguments of {where} after the {repetition}")


def gradients(function: Callable[..., Any], *arguments: Any) -> tuple[Any, list[torch.Tensor | None]]:
    """Results, and the gradients of arguments that require them, of a fixed random combination of all results."""
    result = function(*arguments)
    outputs = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
    inputs = [t for t in tree_leaves(arguments) if isinstance(t, torch.Tensor) and t.requires_grad]
    source = torch.Generator().manual_seed(3)
    weights = [torch.randn(o.shape, generator=source).to(o.dtype).to(o.device) for o in outputs]
    return result, list(torch.autograd.grad(outputs, inputs, weights, allow_unused=True))


def assert_gradients_same(
    function: Callable[..., Any], *arguments: Any, tolerance: Tolerance | None = None, seed: int = 11, **options: Any
) -> None:
    """The same with gradients: all floating-point arguments require them."""
    leaves = [a.clone().requires_grad_() if _differentiable(a) else a for a in arguments]
    torch.manual_seed(seed)
    expected = gradients(function, *leaves)
    call = compiled(function, **options)
    for repetition in ("first call", "second call"):
        torch.manual_seed(seed)
        actual = gradients(call, *copied_to(leaves, DEVICE_TYPE))
        assert_near(actual[0], expected[0], tolerance, f"result of the {repetition}")
        # PyTorch promises no strides of gradients.
        assert_near(actual[1], expected[1], tolerance, f"gradients of the {repetition}", strides=False)


def _differentiable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


@contextmanager
def fresh_compiler() -> Iterator[None]:
    """Nothing is remembered from before, nothing is looked up on disk."""
    torch._dynamo.reset()
    with torch.compiler.config.patch(force_disable_caches=True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="dynamo_pgo force disabled")
        yield
    torch._dynamo.reset()
