"""Checks of the kernels of nkilib against nkilib_references, on small arrays.

Each takes the module that the kernels stand in, so that the same checks that guard the library can be turned on a copy
of it that is wrong on purpose (nkilib_mutations). Kernels run here on CPU tensors, without the device.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import nkilib_references as reference
import torch
from tolerances import NKILIB, NKILIB_CHAINED, Tolerance

import nki
from nki.errors import OutOfBoundsAccessError

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


@contextmanager
def strictly() -> Iterator[None]:
    """Warnings of the simulator, as of reads of memory that was never written, count as errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def assert_near(
    actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype, table: dict[torch.dtype, Tolerance] = NKILIB
) -> None:
    """`actual`, of type `dtype`, is `expected` (float64) within the tolerance of that type."""
    assert actual.dtype == dtype, f"{actual.dtype}, expected {dtype}"
    assert actual.shape == expected.shape, f"{actual.shape}, expected {expected.shape}"
    torch.testing.assert_close(
        actual.double(), expected.double(), rtol=table[dtype].rtol, atol=table[dtype].atol, equal_nan=True
    )


def assert_fits(kernel: Any, *arguments: Any) -> None:
    """The chip could run the kernel: its tiles fit into SBUF."""
    found = nki.check(kernel)(*arguments)
    assert not found, str(found)


def normal(seed: int, *shape: int, dtype: torch.dtype = FP32, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * scale).to(dtype)


# -- Matrix product ---------------------------------------------------------------------------------------------------


def matmul_case(kernel: Any, m: int, k: int, n: int, dtype: torch.dtype, ta: bool, tb: bool, with_bias: bool) -> None:
    """One product. Operands are scaled so that its elements are around 1."""
    a = normal(1, *((k, m) if ta else (m, k)), dtype=dtype, scale=k**-0.5)
    b = normal(2, *((n, k) if tb else (k, n)), dtype=dtype)
    bias = normal(3, n, dtype=dtype) if with_bias else None
    assert_near(kernel(a, b, bias, ta, tb), reference.matmul(a, b, bias, ta, tb), dtype)


def check_matmul(module: ModuleType) -> None:
    for case in (
        (130, 140, 520, FP32, False, False, True),
        (130, 140, 130, FP32, True, True, False),
        (150, 1300, 600, BF16, False, False, True),  # more than one depth
        (1160, 130, 140, BF16, True, False, True),  # more than one block of rows
        (3, 270, 2100, BF16, False, True, False),  # more than one block of columns, of 16 bits
        (130, 1200, 1100, FP32, False, False, False),  # and of 32
    ):
        matmul_case(module.matmul_kernel, *case)
    assert_fits(module.matmul_kernel, torch.zeros(1024, 1030), torch.zeros(1030, 4096))


# -- Softmax ----------------------------------------------------------------------------------------------------------


def softmax_case(kernel: Any, rows: int, columns: int, dtype: torch.dtype, scale: float = 3.0) -> None:
    x = normal(4, rows, columns, dtype=dtype, scale=scale)
    assert_near(kernel(x), reference.softmax(x), dtype)


def softmax_backward_case(kernel: Any, rows: int, columns: int, dtype: torch.dtype) -> None:
    """From probabilities that have been rounded already, so that only the kernel's own rounding counts."""
    y = reference.softmax(normal(5, rows, columns, scale=2.0)).to(dtype)
    grad = normal(6, rows, columns, dtype=dtype, scale=columns**0.5)
    y64, g64 = y.double(), grad.double()
    assert_near(kernel(y, grad), y64 * (g64 - (y64 * g64).sum(-1, keepdim=True)), dtype)


def check_softmax(module: ModuleType) -> None:
    for rows, columns, dtype in ((130, 37, FP32), (3, 600, BF16), (2, 9000, FP32), (2, 9000, BF16)):
        softmax_case(module.softmax_kernel, rows, columns, dtype)
        softmax_backward_case(module.softmax_backward_kernel, rows, columns, dtype)
    # Large numbers overflow without the maximum; masked ones, by the piece, must not give NaN.
    x = normal(7, 3, 9000, scale=100.0) + 500
    x[0, :5000] = -torch.inf
    x[1, 100:] = -torch.inf
    assert_near(module.softmax_kernel(x), reference.softmax(x), FP32)
    x[1] = -torch.inf
    assert module.softmax_kernel(x)[1].isnan().all()
    assert_near(module.softmax_kernel(-x[2:, :50]), reference.softmax(-x[2:, :50]), FP32)


# -- Norms ------------------------------------------------------------------------------------------------------------


def rms_norm_case(module: ModuleType, rows: int, d: int, dtype: torch.dtype, with_weight: bool, eps: float) -> None:
    x, grad = normal(8, rows, d, dtype=dtype, scale=2.0), normal(9, rows, d, dtype=dtype)
    weight = normal(10, d, dtype=dtype) if with_weight else None
    y, rstd = module.rms_norm_kernel(x, weight, eps)
    assert_near(y, reference.rms_norm(x, weight, eps), dtype)
    assert_near(rstd, (x.double().square().mean(-1) + eps).rsqrt(), FP32)
    ones = torch.ones(d) if weight is None else weight
    dx, dweight = reference.gradients(lambda x, w: reference.rms_norm(x, w, eps), (x, ones), grad)
    actual = module.rms_norm_backward_kernel(x, weight, rstd, grad)
    assert_near(actual[0], dx, dtype)
    assert_near(actual[1], dweight, FP32)


def layer_norm_case(
    module: ModuleType, rows: int, d: int, dtype: torch.dtype, with_weight: bool, with_bias: bool, eps: float
) -> None:
    x, grad = normal(11, rows, d, dtype=dtype, scale=2.0) + 1, normal(12, rows, d, dtype=dtype)
    weight = normal(13, d, dtype=dtype) if with_weight else None
    bias = normal(14, d, dtype=dtype) if with_bias else None
    y, mean, rstd = module.layer_norm_kernel(x, weight, bias, eps)
    assert_near(y, reference.layer_norm(x, weight, bias, eps), dtype)
    assert_near(mean, x.double().mean(-1), FP32)
    assert_near(rstd, (x.double().var(-1, correction=0) + eps).rsqrt(), FP32)
    ones = torch.ones(d) if weight is None else weight
    dx, dweight, dbias = reference.gradients(
        lambda x, w, b: reference.layer_norm(x, w, b, eps), (x, ones, torch.zeros(d)), grad
    )
    actual = module.layer_norm_backward_kernel(x, weight, mean, rstd, grad)
    assert_near(actual[0], dx, dtype)
    assert_near(actual[1], dweight, FP32)
    assert_near(actual[2], dbias, FP32)


def check_norms(module: ModuleType) -> None:
    for rows, d, dtype in ((130, 40, FP32), (3, 700, BF16), (2, 2100, FP32)):
        for has in (True, False):
            rms_norm_case(module, rows, d, dtype, has, 0.5)
            layer_norm_case(module, rows, d, dtype, has, has, 0.5)
    layer_norm_case(module, 3, 60, BF16, True, False, 0.01)
    layer_norm_case(module, 3, 60, BF16, False, True, 0.01)


# -- Rotary embedding -------------------------------------------------------------------------------------------------


def angles(seed: int, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    phases = normal(seed, *shape, scale=3.0)
    return phases.cos(), phases.sin()


def rope_case(
    kernel: Any, batch: int, tokens: int, heads: int, d: int, dtype: torch.dtype, heads_first: bool,
    interleaved: bool, per_batch: bool,
) -> None:  # fmt: skip
    x = normal(15, *((batch, heads, tokens, d) if heads_first else (batch, tokens, heads, d)), dtype=dtype)
    cos, sin = angles(16, *((batch, tokens, d // 2) if per_batch else (tokens, d // 2)))
    actual = kernel(x, cos, sin, heads_first, interleaved)
    assert_near(actual, reference.rope(x, cos, sin, heads_first, interleaved), dtype)
    back = kernel(x, cos, sin, heads_first, interleaved, True)
    assert_near(back, reference.rope(x, cos, -sin, heads_first, interleaved), dtype)


def check_rope(module: ModuleType) -> None:
    rope_case(module.rope_kernel, 2, 130, 3, 8, FP32, False, False, False)
    rope_case(module.rope_kernel, 2, 5, 3, 6, BF16, True, True, True)
    rope_case(module.rope_kernel, 1, 3, 70, 64, FP32, True, False, True)  # more heads than are turned at a time
    rope_case(module.rope_kernel, 2, 4, 3, 2, FP32, False, True, False)
    assert_fits(module.rope_kernel, torch.zeros(1, 2, 192, 128), *angles(0, 2, 64))


# -- SwiGLU -----------------------------------------------------------------------------------------------------------


def swiglu_case(module: ModuleType, rows: int, columns: int, dtype: torch.dtype) -> None:
    gate, up, grad = (normal(17 + i, rows, columns, dtype=dtype, scale=2.0) for i in range(3))
    assert_near(module.swiglu_kernel(gate, up), reference.swiglu(gate, up), dtype)
    expected = reference.gradients(reference.swiglu, (gate, up), grad)
    for actual, gradient in zip(module.swiglu_backward_kernel(gate, up, grad), expected, strict=True):
        assert_near(actual, gradient, dtype)


def swiglu_mlp_case(kernel: Any, tokens: int, d: int, hidden: int, d_out: int, dtype: torch.dtype) -> None:
    x = normal(20, tokens, d, dtype=dtype)
    w_gate, w_up = (normal(21 + i, d, hidden, dtype=dtype, scale=2 * d**-0.5) for i in range(2))
    w_down = normal(23, hidden, d_out, dtype=dtype, scale=hidden**-0.5)
    actual = kernel(x, w_gate, w_up, w_down)
    assert_near(actual, reference.swiglu_mlp(x, w_gate, w_up, w_down, dtype), dtype, NKILIB_CHAINED)


def check_swiglu(module: ModuleType) -> None:
    swiglu_case(module, 130, 60, FP32)
    swiglu_case(module, 3, 4200, BF16)
    swiglu_mlp_case(module.swiglu_mlp_kernel, 530, 140, 530, 140, FP32)
    swiglu_mlp_case(module.swiglu_mlp_kernel, 5, 260, 2200, 530, FP32)
    swiglu_mlp_case(module.swiglu_mlp_kernel, 140, 130, 140, 60, BF16)
    for tokens, d, hidden in ((512, 128, 28000), (512, 10240, 512)):
        up, down = torch.zeros(d, hidden, dtype=BF16), torch.zeros(hidden, 128, dtype=BF16)
        assert_fits(module.swiglu_mlp_kernel, torch.zeros(tokens, d, dtype=BF16), up, up, down)


# -- Cross entropy ----------------------------------------------------------------------------------------------------


def cross_entropy_case(
    module: ModuleType, rows: int, classes: int, dtype: torch.dtype, reduction: str, ignored: Sequence[int] = (),
    ignore_index: int = -100,
) -> None:  # fmt: skip
    logits = normal(24, rows, classes, dtype=dtype, scale=3.0)
    target = torch.randint(classes, (rows,), generator=torch.Generator().manual_seed(25), dtype=torch.int32)
    target[list(ignored)] = ignore_index
    loss, lse, count = module.cross_entropy_kernel(logits, target, ignore_index, reduction)
    expected = reference.cross_entropy(logits, target, ignore_index, reduction)
    assert_near(loss, expected.reshape(loss.shape), FP32)
    assert_near(lse, logits.double().logsumexp(-1), FP32)
    assert count.tolist() == [(target != ignore_index).sum().item()]
    grad = normal(26, *loss.shape, scale=float(rows) if reduction == "mean" else 1.0)
    (expected_gradient,) = reference.gradients(
        lambda x: reference.cross_entropy(x, target, ignore_index, reduction), (logits,), grad
    )
    actual = module.cross_entropy_backward_kernel(logits, target, lse, count, grad, ignore_index, reduction)
    assert_near(actual, expected_gradient, dtype)


def check_cross_entropy(module: ModuleType) -> None:
    for reduction in reference.REDUCTIONS:
        cross_entropy_case(module, 133, 11, FP32, reduction, ignored=(0, 5, 131))
        cross_entropy_case(module, 3, 4100, BF16, reduction, ignored=(1,), ignore_index=7)
    # What an ignored row holds does not matter to the loss.
    logits, target = normal(27, 3, 5), torch.tensor([1, -100, 2], dtype=torch.int32)
    logits[1] = torch.nan
    loss, _, _ = module.cross_entropy_kernel(logits, target)
    assert_near(loss[0], reference.cross_entropy(logits[[0, 2]], target[[0, 2]]), FP32)
    for wrong in (5, -1):
        target[0] = wrong
        try:
            module.cross_entropy_kernel(logits, target)
        except OutOfBoundsAccessError:
            continue
        raise AssertionError(f"nobody noticed the class {wrong} of 5")


CHECKS: dict[str, Callable[[ModuleType], None]] = {
    "matmul": check_matmul,
    "softmax": check_softmax,
    "norms": check_norms,
    "rope": check_rope,
    "swiglu": check_swiglu,
    "cross_entropy": check_cross_entropy,
}

_SIZE = "only how much is done or kept at a time, as long as it fits; the result does not depend on it"
_TURNS = "only which of the two engines copies, or when; both copy the same"

# Mutations that no result can show, by their key, with the reason.
EQUIVALENT: dict[str, str] = {
    "rope.rope_kernel: 1 -> 2": _SIZE,
    "rope._pairs: 0:d:2 -> 0:d - 1:2": "d is even: the last even place is d - 2",
    "tiling.drain: turn % 2 == 0 -> turn % 2 != 0": _TURNS,
    "tiling.drain: 0 -> 1": _TURNS,
    "tiling.drain: 2 -> 3": _TURNS,
    "tiling.load_transposed: 0 -> 1": _TURNS,
    "tiling.load_transposed: 1 -> 2": _TURNS,
    "tiling.load_transposed: 1 -> 2 (no. 2)": _TURNS,
    "tiling.load_transposed: PARTITIONS * source.dtype.itemsize -> PARTITIONS // source.dtype.itemsize": _SIZE,
    "tiling.load_transposed: _BANK_BYTES // (PARTITIONS * source.dtype.itemsize) -> "
    "_BANK_BYTES * (PARTITIONS * source.dtype.itemsize)": _SIZE,
    "swiglu.swiglu_mlp_kernel: -d // PARTITIONS -> -d * PARTITIONS": _SIZE,
    "swiglu.swiglu_mlp_kernel: -hidden // PARTITIONS -> -hidden * PARTITIONS": _SIZE,
    "swiglu.swiglu_mlp_kernel: MAX_TOKEN_BYTES // (tiles * size) // PARTITIONS * PARTITIONS -> "
    "MAX_TOKEN_BYTES // (tiles * size) // PARTITIONS // PARTITIONS": _SIZE,
    "swiglu.swiglu_mlp_kernel: 1 -> 2": _SIZE,
    "swiglu.swiglu_mlp_kernel: _WEIGHT_BYTES // (BANK_COLUMNS * size) -> _WEIGHT_BYTES * (BANK_COLUMNS * size)": _SIZE,
    "swiglu.swiglu_mlp_kernel: BANK_COLUMNS * size -> BANK_COLUMNS // size": _SIZE,
    "swiglu._hidden: _WEIGHT_BYTES // (2 * bytes_per_column) // PARTITIONS * PARTITIONS -> "
    "_WEIGHT_BYTES // (2 * bytes_per_column) // PARTITIONS // PARTITIONS": _SIZE,
    "swiglu._hidden: 2 -> 3": _SIZE,
    "cross_entropy.cross_entropy_kernel: 2 -> 3": "a column of sums that nobody adds to or reads",
    "cross_entropy._targets: 0 -> 1 (no. 2)": "the stride of a dimension that has one element",
    "cross_entropy._targets: nl.add -> nl.subtract (no. 2)": "out of bounds before the first element as well as after",
}
