"""nkilib over sequences and experts: sizes, types, ops on all devices, gradients, checks, modelled time."""

from collections.abc import Callable
from typing import Any

import nkilib_references as gradients_of
import nkilib_references_sequence as reference
import pytest
import torch
from nkilib_checks import BF16, FP16, FP32, assert_near, normal, strictly
from nkilib_checks_sequence import (
    assert_gradients_near,
    choice,
    cumsum_case,
    moe_arguments,
    scan_arguments,
    scan_backward_case,
    scan_case,
    topk_case,
)
from tolerances import NKILIB, NKILIB_CHAINED

import nki
import nkilib
from nkilib import mamba, mamba_backward
from nkilib.cumsum import cumsum_columns_kernel, cumsum_rows_kernel
from nkilib.moe import moe_kernel, tokens_that_fit
from nkilib.moe_backward import moe_backward_kernel
from nkilib.topk import topk_kernel

pytestmark = pytest.mark.slow

TARGETS = ["trn1", "trn2", "trn3"]
DTYPES = [FP32, BF16, FP16]


def distinct(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows of numbers none of which is there twice, also in 16 bits."""
    generator = torch.Generator().manual_seed(63)
    ranks = torch.stack([torch.randperm(columns, generator=generator) for _ in range(rows)])
    return (ranks - columns // 2).to(dtype)


# -- Largest elements


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "columns", "k"), [(1, 1, 1), (1, 9, 8), (129, 200, 7), (256, 250, 64), (2, 256, 256)])
def test_topk_of_all_sizes(rows: int, columns: int, k: int, dtype: torch.dtype) -> None:
    with strictly():
        topk_case(topk_kernel, distinct(rows, columns, dtype), k)


def test_topk_of_very_long_rows() -> None:
    with strictly():
        topk_case(topk_kernel, normal(64, 2, 50000), 30)


# -- Running sums


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 2049), (128, 512), (257, 5), (130, 130)])
def test_cumsum_of_all_sizes(rows: int, columns: int, dtype: torch.dtype) -> None:
    with strictly():
        cumsum_case(cumsum_columns_kernel, rows, columns, dtype, 1)
        cumsum_case(cumsum_rows_kernel, rows, columns, dtype, 0)


# -- Experts


def moe_with_gradients(
    layer: Any, device: str, arguments: tuple[torch.Tensor, ...], indices: torch.Tensor, weights: torch.Tensor
) -> None:
    """Its result, and its gradients, against a reference in float64."""
    dtype = arguments[0].dtype
    leaves = [t.detach().to(device).requires_grad_() for t in (*arguments, weights)]
    actual = layer(*leaves[:4], indices.to(device), leaves[4])
    expected = reference.moe(*arguments, indices, weights)
    assert_near(actual.detach().cpu(), expected, dtype, NKILIB_CHAINED)
    dy = normal(61, *expected.shape, dtype=dtype)
    actual.backward(dy.to(device))
    for leaf in leaves:
        assert leaf.grad is not None
        assert leaf.grad.dtype == leaf.dtype
    wanted = gradients_of.gradients(reference.moe, (*arguments, indices, weights), dy)
    assert wanted.pop(4) is None
    actual_gradients = [leaf.grad.cpu() for leaf in leaves]
    assert_gradients_near(actual_gradients[:4], wanted[:4], dtype, NKILIB_CHAINED)
    coarse = dtype if weights.dtype == FP32 else weights.dtype
    assert_gradients_near(actual_gradients[4:], wanted[4:], coarse, NKILIB_CHAINED)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("tokens", "hidden", "intermediate", "experts", "k"),
    [(1, 1, 1, 1, 1), (7, 130, 20, 5, 5), (130, 30, 260, 3, 2), (700, 40, 24, 2, 1), (9, 20, 530, 2, 1)],
)
def test_moe_of_all_sizes(
    tokens: int, hidden: int, intermediate: int, experts: int, k: int, dtype: torch.dtype
) -> None:
    with strictly():
        moe_with_gradients(
            nkilib.moe, "cpu", moe_arguments(tokens, hidden, intermediate, experts, dtype), *choice(tokens, experts, k)
        )


def test_moe_with_experts_that_nobody_chose() -> None:
    indices, weights = torch.tensor([[4, 1]]).expand(20, 2), torch.ones(20, 2)
    with strictly():
        moe_with_gradients(nkilib.moe, "cpu", moe_arguments(20, 16, 24, 6, FP32), indices, weights)


def test_moe_weights_may_have_another_type() -> None:
    indices, weights = choice(30, 3, 2)
    moe_with_gradients(nkilib.moe, "cpu", moe_arguments(30, 16, 24, 3, FP32), indices.int(), weights.to(torch.float16))


@pytest.mark.parametrize("dtype", [FP32, BF16])
@pytest.mark.parametrize("compiled", [False, True])
def test_moe_on_the_device(compiled: bool, dtype: torch.dtype) -> None:
    torch._dynamo.reset()
    layer: Any = torch.compile(nkilib.moe, fullgraph=True) if compiled else nkilib.moe
    moe_with_gradients(layer, "neuron", moe_arguments(150, 20, 30, 3, dtype), *choice(150, 3, 2))


# -- Selective scan


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (2, 129, 33, 16), (1, 4, 1030, 5), (1, 64, 512, 1)], ids=str)
def test_scan_of_all_sizes(sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    with strictly():
        scan_case(mamba, *sizes, dtype)
        scan_backward_case(mamba_backward, *sizes, dtype)


# -- Ops

OPS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "topk": (
        lambda x: nkilib.topk(x, 5)[0],
        lambda x: reference.topk(x, 5)[0],
        lambda: (normal(65, 2, 3, 40),),
    ),
    "cumsum, last": (nkilib.cumsum, lambda x: reference.cumsum(x, -1), lambda: (normal(66, 2, 3, 40),)),
    "cumsum, first": (
        lambda x: nkilib.cumsum(x, 0),
        lambda x: reference.cumsum(x, 0),
        lambda: (normal(67, 140, 2, 3),),
    ),
    "cumsum, middle": (
        lambda x: nkilib.cumsum(x, 1),
        lambda x: reference.cumsum(x, 1),
        lambda: (normal(68, 2, 40, 3),),
    ),
    "selective_scan": (
        lambda *x: nkilib.selective_scan(*x),
        lambda *x: reference.selective_scan(*x)[0],
        lambda: (*(a := scan_arguments(2, 5, 20, 3, FP32))[:5], a[5].reshape(-1), a[6]),
    ),
    "selective_scan, last": (
        lambda *x: nkilib.selective_scan(*x, return_last=True)[1],
        lambda *x: reference.selective_scan(*x)[1],
        lambda: (*(a := scan_arguments(2, 5, 20, 3, FP32))[:5], a[5].reshape(-1), a[6]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("device", ["cpu", "neuron"])
@pytest.mark.parametrize("name", OPS)
def test_op_and_its_gradients(name: str, device: str, compiled: bool) -> None:
    op, expected_op, make = OPS[name]
    arguments = make()
    if compiled:
        torch._dynamo.reset()
        op = torch.compile(op, fullgraph=True)
    leaves = [t.to(device).requires_grad_() for t in arguments]
    result = op(*leaves)
    expected = expected_op(*arguments)
    assert_near(result.detach().cpu(), expected, FP32, NKILIB_CHAINED)
    gradient = normal(69, *expected.shape)
    result.backward(gradient.to(device))
    for leaf, wanted in zip(leaves, gradients_of.gradients(expected_op, arguments, gradient), strict=True):
        if wanted is None:  # the last state does not depend on c and skip
            assert leaf.grad is None or not leaf.grad.any()
            continue
        assert leaf.grad is not None
        size = wanted.abs().max().clamp(min=1e-6)
        assert_near(leaf.grad.cpu() / size.float(), wanted / size, FP32, {FP32: NKILIB[FP32]})


def test_scan_goes_on_from_its_last_state() -> None:
    x, delta, a, b, c, skip, _ = scan_arguments(1, 6, 30, 2, FP32)
    whole, last = nkilib.selective_scan(x, delta, a, b, c, skip.reshape(-1), return_last=True)
    state, parts = None, []
    for part in (slice(0, 11), slice(11, 30)):
        steps = (t[..., part] for t in (x, delta))
        y, state = nkilib.selective_scan(
            *steps, a, b[..., part], c[..., part], skip.reshape(-1), state, return_last=True
        )
        parts.append(y)
    assert_near(torch.cat(parts, -1), whole.double(), FP32)
    assert_near(state, last.double(), FP32)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: nkilib.topk(torch.zeros(2, 3), 4), nkilib.UnsupportedOptionError),
        (lambda: nkilib.topk(torch.zeros(2, 3), 0), nkilib.UnsupportedOptionError),
        (lambda: nkilib.topk(torch.zeros(2, 3, dtype=torch.float64), 1), nkilib.UnsupportedDtypeError),
        (lambda: nkilib.cumsum(torch.zeros(2, 3, dtype=torch.int64)), nkilib.UnsupportedDtypeError),
        (lambda: nkilib.cumsum(torch.tensor(1.0)), nkilib.UnsupportedShapeError),
        (
            lambda: nkilib.moe(*moe_arguments(4, 4, 4, 2, FP32), torch.zeros(4, 1), torch.zeros(4, 1)),
            nkilib.UnsupportedDtypeError,
        ),
        (
            lambda: nkilib.moe(*moe_arguments(4, 4, 4, 2, FP32), torch.zeros(3, 1, dtype=int), torch.zeros(3, 1)),
            nkilib.UnsupportedShapeError,
        ),
        (
            lambda: nkilib.selective_scan(*(torch.zeros(1, 2, 3) for _ in range(5))),
            nkilib.UnsupportedShapeError,
        ),
    ],
)
def test_bad_arguments_are_named(call: Callable[[], Any], error: type[Exception]) -> None:
    with pytest.raises(error, match="nkilib"):
        call()


# -- What the chips say


def _kernels(n: int) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    scan = scan_arguments(1, n, 600, 4, BF16)
    tokens = torch.zeros(n // 128, 128, dtype=torch.int32)
    experts = (
        *moe_arguments(n, 600, 520, 2, BF16), tokens, tokens.float(), tokens[:, :1].contiguous(),
        torch.ones(1, 1, dtype=torch.int32),
    )  # fmt: skip
    return {
        "topk": (topk_kernel, (torch.zeros(n, 1000), 20)),
        "topk of long rows": (topk_kernel, (torch.zeros(n, 40000), 256)),
        "cumsum of columns": (cumsum_columns_kernel, (torch.zeros(n, 5000), True)),
        "cumsum of rows": (cumsum_rows_kernel, (torch.zeros(n, 1000, dtype=BF16),)),
        "moe": (moe_kernel, experts),
        "moe, backward": (moe_backward_kernel, (*experts, experts[0])),
        "selective scan": (mamba.selective_scan_kernel, scan),
        "selective scan, backward": (
            mamba_backward.selective_scan_backward_kernel, (*scan[:6], torch.zeros(1, 2, n, 4), scan[0], scan[6]),
        ),
    }  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", list(_kernels(128)))
def test_nothing_is_found_wrong(name: str, target: str) -> None:
    kernel, arguments = _kernels(256)[name]
    found = nki.check(kernel, target=target)(*arguments)
    assert not found, str(found)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("hidden", "intermediate", "dtype", "sizes"),
    [
        (4096, 14336, BF16, (256, 512)),  # Mixtral 8x7B
        (4096, 2048, FP32, (256, 384)),
        (14848, 600, FP32, (128, 128)),
        (3072, 2048, FP32, (512, 512)),
    ],
)
def test_the_largest_experts_fit(
    hidden: int, intermediate: int, dtype: torch.dtype, sizes: tuple[int, int], target: str
) -> None:
    """With as many tokens in a block as the op takes for the result and for the gradient."""
    shapes = ((512, hidden), (2, hidden, intermediate), (2, hidden, intermediate), (2, intermediate, hidden))
    operands = [torch.empty(1, dtype=dtype).expand(shape) for shape in shapes]
    for kernel, size, gradient in ((moe_kernel, sizes[0], ()), (moe_backward_kernel, sizes[1], operands[:1])):
        tokens = torch.zeros(2, size, dtype=torch.int32)
        rest = (tokens, tokens.float(), tokens[:, :1].contiguous(), tokens[:1, :1].contiguous())
        found = nki.check(kernel, target=target)(*operands, *rest, *gradient)
        assert not found, str(found)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("hidden", "intermediate", "dtype"),
    [(4096, 4096, FP32), (8192, 4096, BF16), (8192, 8192, BF16), (4096, 2048, FP32), (3072, 2048, FP32)],
)
def test_blocks_of_tokens_are_as_large_as_fits(hidden: int, intermediate: int, dtype: torch.dtype, target: str) -> None:
    tokens_of_block = min(512, tokens_that_fit(hidden, intermediate, dtype.itemsize) // 128 * 128)
    assert tokens_of_block >= 128
    shapes = ((512, hidden), (2, hidden, intermediate), (2, hidden, intermediate), (2, intermediate, hidden))
    operands = [torch.empty(1, dtype=dtype).expand(shape) for shape in shapes]
    tokens = torch.zeros(2, tokens_of_block, dtype=torch.int32)
    rest = (tokens, tokens.float(), tokens[:, :1].contiguous(), tokens[:1, :1].contiguous())
    found = nki.check(moe_kernel, target=target)(*operands, *rest)
    assert not found, str(found)


@pytest.mark.parametrize("name", list(_kernels(128)))
def test_modelled_time_grows_with_the_rows(name: str) -> None:
    times = []
    for n in (128, 512):
        kernel, arguments = _kernels(n)[name]
        times.append(nki.profile(kernel, target="trn2")(*arguments).latency_us)
    print(name, [f"{t:.1f} us (modelled)" for t in times])
    assert 0 < times[0] < times[1]
