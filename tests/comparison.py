"""Comparing a computation on the device with the same computation on the CPU, bit for bit."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from tolerances import Tolerance
from torch.utils._pytree import tree_map


def copied_to(tree: Any, device: torch.device | str) -> Any:
    """A copy of all tensors in `tree` on `device`; leaves that require grad stay leaves that require grad."""

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return leaf.detach().clone().to(device).requires_grad_(leaf.requires_grad)

    return tree_map(move, tree)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor's elements, on the CPU: tells apart -0.0 and 0.0. All NaNs count as one: neither IEEE 754
    nor PyTorch's own vector and scalar kernels agree on their signs and payloads."""
    plain = tensor.detach().to("cpu").resolve_conj().resolve_neg()
    if plain.layout != torch.strided:
        raise AssertionError(f"not a strided tensor: {plain.layout}")
    dense = torch.empty(plain.numel(), dtype=plain.dtype).copy_(plain.reshape(-1))
    if dense.dtype.is_floating_point and dense.dtype.itemsize > 1:
        dense.masked_fill_(dense.isnan(), float("nan"))
    return dense.view(torch.uint8)


def assert_same(actual: Any, expected: Any, tolerance: Tolerance | None = None, where: str = "result") -> None:
    """Shape, dtype, strides and bits (or values within `tolerance`) of all tensors in two trees are the same."""
    if isinstance(expected, torch.Tensor):
        assert isinstance(actual, torch.Tensor), f"{where}: a {type(actual).__name__}, expected a tensor"
        assert actual.shape == expected.shape, f"{where}: shape {actual.shape}, expected {expected.shape}"
        assert actual.dtype == expected.dtype, f"{where}: dtype {actual.dtype}, expected {expected.dtype}"
        assert actual.stride() == expected.stride(), f"{where}: strides {actual.stride()}, expected {expected.stride()}"
        if tolerance is not None:
            torch.testing.assert_close(
                actual.cpu(), expected.cpu(), rtol=tolerance.rtol, atol=tolerance.atol, equal_nan=True
            )
        elif not torch.equal(bits(actual), bits(expected)):
            raise AssertionError(f"{where}: not bit-equal\nactual   {actual.cpu()}\nexpected {expected.cpu()}")
    elif isinstance(expected, Mapping):
        assert expected.keys() == actual.keys(), f"{where}: keys {list(actual)}, expected {list(expected)}"
        for key, value in expected.items():
            assert_same(actual[key], value, tolerance, f"{where}[{key!r}]")
    elif isinstance(expected, list | tuple):
        assert len(actual) == len(expected), f"{where}: {len(actual)} items, expected {len(expected)}"
        for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
            assert_same(a, e, tolerance, f"{where}[{i}]")
    elif isinstance(expected, float) and expected != expected:
        assert actual != actual, f"{where}: {actual}, expected nan"
    elif isinstance(expected, float) and tolerance is not None:
        allowed = tolerance.atol + tolerance.rtol * abs(expected)
        assert abs(actual - expected) <= allowed, f"{where}: {actual!r}, expected {expected!r}"
    else:
        assert actual == expected, f"{where}: {actual!r}, expected {expected!r}"


def assert_same_as_cpu(
    function: Callable[..., Any],
    *arguments: Any,
    device: torch.device | str,
    tolerance: Tolerance | None = None,
    repetitions: int = 2,
) -> None:
    """`function` gives the same on the device as on the CPU, from the same arguments (CPU tensors).

    Runs it `repetitions` times on the device: the first run of a launch takes another path than those that follow.
    """
    torch.manual_seed(7)
    expected = function(*copied_to(arguments, "cpu"))
    for repetition in range(repetitions):
        torch.manual_seed(7)
        actual = function(*copied_to(arguments, device))
        _assert_on(actual, expected, torch.device(device))
        assert_same(actual, expected, tolerance, f"result of run {repetition + 1}")


def _assert_on(actual: Any, expected: Any, device: torch.device) -> None:
    leaves = torch.utils._pytree.tree_leaves
    for a, e in zip(leaves(actual), leaves(expected), strict=True):
        if isinstance(e, torch.Tensor):
            assert a.device.type == device.type, f"result on {a.device}, expected it on {device}"
