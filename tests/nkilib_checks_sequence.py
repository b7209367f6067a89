"""Checks of nkilib's kernels over sequences and experts, as nkilib_checks has them for the others."""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import nkilib_references as others
import nkilib_references_sequence as reference
import torch
from nkilib_checks import BF16, FP16, FP32, assert_near, normal
from nkilib_mutations import standing_on
from tolerances import NKILIB, NKILIB_ATTENTION, NKILIB_CHAINED, Tolerance

# -- Attention --------------------------------------------------------------------------------------------------------

# (batch, heads, kv_heads, queries, keys, d, e)
Sizes = tuple[int, int, int, int, int, int, int]


def attention_arguments(sizes: Sizes, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    batch, heads, kv_heads, queries, keys, d, e = sizes
    # Scores have a spread of about 2, so that some probabilities are large and maxima matter.
    query = normal(31, batch, heads, queries, d, dtype=dtype, scale=2.0)
    return query, normal(32, batch, kv_heads, keys, d, dtype=dtype), normal(33, batch, kv_heads, keys, e, dtype=dtype)


def attention_case(kernel: Any, sizes: Sizes, dtype: torch.dtype, *options: Any, spread: float = 1.0) -> None:
    query, key, value = attention_arguments(sizes, dtype)
    arguments = (query * spread, key, value)
    result, logarithms = kernel(*arguments, *options)
    expected, expected_logarithms = reference.attention(*arguments, *options)
    assert_near(result, expected, dtype, NKILIB_ATTENTION)
    # What sees no key has a number that stands for -infinity.
    blind = expected_logarithms == -torch.inf
    assert bool((logarithms[blind] < -1e29).all())
    assert bool(logarithms.isfinite().all())
    assert_near(logarithms[~blind], expected_logarithms[~blind], FP32)


def attention_backward_case(kernel: Any, sizes: Sizes, dtype: torch.dtype, *options: Any) -> None:
    arguments = attention_arguments(sizes, dtype)
    expected, logarithms = reference.attention(*arguments, *options)
    gradient = normal(34, *expected.shape, dtype=dtype)
    blind = logarithms == -torch.inf
    dlogarithms = normal(35, *logarithms.shape).masked_fill(blind, 0.0)

    def loss(*leaves: torch.Tensor) -> torch.Tensor:
        result, sums = reference.attention(*leaves, *options)
        return (result * gradient.double()).sum() + (sums.masked_fill(blind, 0.0) * dlogarithms.double()).sum()

    expected_gradients = others.gradients(loss, arguments)
    known = (expected.to(dtype), logarithms.float().clamp(min=-1e30))
    actual = kernel(*arguments, *known, gradient, dlogarithms, *options)
    for value, wanted in zip(actual, expected_gradients, strict=True):
        assert wanted is not None
        # Sums of products that have been rounded: what counts is the size of the whole gradient.
        size = wanted.abs().max().clamp(min=1e-3)
        assert_near(value.float() / size.float(), wanted / size, FP32, {FP32: NKILIB_ATTENTION[dtype]})


ATTENTION_CASES: Sequence[tuple[Any, ...]] = (
    # sizes, dtype, scale, left, right, offset
    ((1, 1, 1, 129, 200, 16, 24), FP32, None, -1, -1, 0),
    ((2, 4, 2, 140, 140, 16, 16), BF16, 0.5, -1, 0, 0),
    ((1, 1, 1, 300, 300, 8, 8), FP32, None, 70, 0, 0),
    ((1, 1, 1, 5, 290, 8, 8), FP32, None, 150, 3, 250),
)


def check_flash_attention(module: ModuleType) -> None:
    kernel = module.flash_attention_forward
    for case in ATTENTION_CASES:
        attention_case(kernel, *case)
    # More than one section of keys, more than a group of queries, more keys than stay on chip, and maxima that grow.
    attention_case(kernel, (1, 1, 1, 600, 2300, 8, 8), BF16, None, -1, -1, 0)
    attention_case(kernel, (1, 1, 1, 2100, 4300, 4, 4), FP32, None, -1, 0, 2200)
    # Queries before and after all keys that they may see.
    attention_case(kernel, (1, 1, 1, 300, 140, 8, 8), FP32, None, 20, 10, -150)
    attention_case(kernel, (1, 1, 1, 2200, 40, 4, 4), FP32, None, 20, 0, 0)
    # Scores whose exponentials overflow without the maximum.
    attention_case(kernel, (1, 1, 1, 130, 1200, 8, 8), FP32, 0.3, spread=300.0)
    attention_case(kernel[2], (1, 3, 3, 140, 150, 8, 8), FP32)


def check_flash_attention_backward(module: ModuleType) -> None:
    kernel = module.flash_attention_backward
    for case in ATTENTION_CASES:
        attention_backward_case(kernel, *case)
    attention_backward_case(kernel, (1, 2, 1, 260, 1100, 8, 8), BF16, None, -1, -1, 0)
    # Parts of the queries, the first one of which sees no key.
    attention_backward_case(kernel, (1, 1, 1, 3300, 130, 4, 6), FP32, None, -1, 0, -3250)
    attention_backward_case(kernel[2], (1, 3, 3, 140, 150, 8, 8), FP32)
    attention_backward_case(kernel, (1, 1, 1, 300, 140, 8, 8), FP32, None, 20, 10, -150)


# -- Largest elements -------------------------------------------------------------------------------------------------


def topk_case(kernel: Any, x: torch.Tensor, k: int) -> None:
    values, places = kernel(x, k)
    expected_values, expected_places = reference.topk(x, k)
    assert places.dtype == torch.int32
    torch.testing.assert_close(values.double(), expected_values, rtol=0, atol=0)
    assert torch.equal(places.long(), expected_places)


def check_topk(module: ModuleType) -> None:
    kernel = module.topk_kernel
    topk_case(kernel, normal(36, 130, 40), 9)
    topk_case(kernel, normal(37, 3, 5, dtype=BF16), 5)
    topk_case(kernel, normal(38, 2, 300, dtype=FP16), 256)
    # More than one piece, with the largest elements at their ends.
    x = normal(39, 2, 16384 + 16384 + 12)
    x[:, [0, 16383, 16384, 32767, 32779]] = torch.arange(10.0).reshape(2, 5) + 10
    topk_case(kernel, x, 17)
    # Equal elements, within eight and over the edges of eights and of pieces.
    topk_case(kernel, torch.randint(4, (7, 90), generator=torch.Generator().manual_seed(40)).float(), 30)
    topk_case(kernel, torch.zeros(2, 16390), 20)


# -- Running sums -----------------------------------------------------------------------------------------------------


def cumsum_case(kernel: Any, rows: int, columns: int, dtype: torch.dtype, dim: int) -> None:
    x = normal(41, rows, columns, dtype=dtype)
    for reverse in (False, True):
        expected, actual = reference.cumsum(x, dim, reverse), kernel(x, reverse)
        assert actual.dtype == dtype
        # A sum that nearly cancels out has the rounding of the large sums before it.
        size = expected.abs().max()
        assert_near(actual.float() / size.float(), expected / size, FP32, {FP32: NKILIB[dtype]})


def check_cumsum(module: ModuleType) -> None:
    for rows, columns, dtype in ((130, 30, FP32), (3, 4200, BF16)):
        cumsum_case(module.cumsum_columns_kernel, rows, columns, dtype, 1)
        cumsum_case(module.cumsum_rows_kernel, columns, rows, dtype, 0)
    cumsum_case(module.cumsum_rows_kernel, 200, 600, FP32, 0)


# -- Experts ----------------------------------------------------------------------------------------------------------


def moe_arguments(
    tokens: int, hidden: int, intermediate: int, experts: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    x = normal(42, tokens, hidden, dtype=dtype)
    gate, up = (normal(43 + i, experts, hidden, intermediate, dtype=dtype, scale=2 * hidden**-0.5) for i in range(2))
    return x, gate, up, normal(45, experts, intermediate, hidden, dtype=dtype, scale=intermediate**-0.5)


def choice(tokens: int, experts: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Experts of each token, those with small numbers more often, and their weights."""
    chances = torch.linspace(1.0, 0.1, experts).expand(tokens, experts)
    indices = torch.multinomial(chances, k, generator=torch.Generator().manual_seed(46))
    return indices, torch.softmax(normal(47, tokens, k), -1)


# Experts and the tokens of their blocks, as a block is given by hand.
Blocks = Sequence[tuple[int, Sequence[int]]]


def moe_blocks(size: int, blocks: Blocks) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Operands for blocks of `size` places, whose last ones are taken, and one more, which must be left out."""
    tokens = torch.full((len(blocks) + 1, size), -1, dtype=torch.int32)
    tokens[-1] = 0
    weights = torch.full(tokens.shape, 0.3)
    experts = torch.zeros(len(blocks) + 1, 1, dtype=torch.int32)
    for number, (expert, chosen) in enumerate(blocks):
        experts[number] = expert
        # Empty places stand anywhere.
        tokens[number, size - len(chosen) :] = torch.tensor(chosen)
        weights[number, size - len(chosen) :] = normal(48 + number, len(chosen), scale=0.3)
    return tokens, weights, experts, torch.tensor([[len(blocks)]], dtype=torch.int32)


def moe_of_blocks(
    blocks: Blocks, x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """What the layer gives for the blocks of moe_blocks, whose weights these are."""
    result = torch.zeros(x.shape, dtype=torch.float64)
    for number, (expert, chosen) in enumerate(blocks):
        row = torch.tensor(chosen)
        taken = weights[number, weights.shape[1] - len(chosen) :, None].double()
        result = result.index_add(0, row, taken * others.swiglu_mlp(x[row], gate[expert], up[expert], down[expert]))
    return result


def moe_case(kernel: Any, size: int, blocks: Blocks, *sizes: Any) -> None:
    arguments = moe_arguments(*sizes)
    tokens, weights, experts, used = moe_blocks(size, blocks)
    actual = kernel(*arguments, tokens, weights, experts, used)
    assert_near(actual, moe_of_blocks(blocks, *arguments, weights), arguments[0].dtype, NKILIB_CHAINED)


def moe_backward_case(kernel: Any, size: int, blocks: Blocks, *sizes: Any) -> None:
    arguments = moe_arguments(*sizes)
    dtype = arguments[0].dtype
    tokens, weights, experts, used = moe_blocks(size, blocks)
    dy = normal(60, *arguments[0].shape, dtype=dtype)
    expected = others.gradients(lambda *leaves: moe_of_blocks(blocks, *leaves), (*arguments, weights), dy)
    actual = kernel(*arguments, tokens, weights, experts, used, dy)
    assert_gradients_near(actual, expected, dtype, NKILIB_CHAINED)


def assert_gradients_near(
    actual: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor | None],
    dtype: torch.dtype,
    table: dict[torch.dtype, Tolerance],
) -> None:
    """Gradients that are sums of what was rounded to `dtype`: what counts is the size of the whole gradient."""
    for value, wanted in zip(actual, expected, strict=True):
        assert wanted is not None
        size = wanted.abs().max()
        assert_near(value.float() / size.float(), wanted / size, FP32, {FP32: table[dtype]})
        assert not value[wanted == 0].any()


MOE_CASES: Sequence[tuple[Any, ...]] = (
    # size of blocks, blocks, tokens, hidden, intermediate, experts, dtype
    (128, [(1, range(5)), (0, (2, 3, 139)), (1, (7,))], 140, 30, 140, 2, FP32),
    (256, [(2, range(150, -1, -1)), (0, (3, 150))], 151, 530, 40, 3, BF16),
)


def check_moe(module: ModuleType) -> None:
    for case in MOE_CASES:
        moe_case(module.moe_kernel, *case)
    # Weights in several pieces.
    moe_case(module.moe_kernel, 128, [(0, range(3))], 3, 600, 2200, 1, FP32)
    # What the gradient shares with it: products over tokens need zeros in empty places.
    moe_backward_case(standing_on(module, "moe_backward", "moe").moe_backward_kernel, *MOE_CASES[0])


def check_moe_backward(module: ModuleType) -> None:
    kernel = module.moe_backward_kernel
    for case in MOE_CASES:
        moe_backward_case(kernel, *case)
    # Intermediate in several pieces, and gradients that several transfers fill with zeros.
    moe_backward_case(kernel, 128, [(0, range(3))], 3, 600, 1100, 2, FP32)
    # All tokens of a block that is as large as can be.
    moe_backward_case(kernel, 512, [(0, range(512))], 513, 8, 140, 1, FP32)


# -- Selective scan ---------------------------------------------------------------------------------------------------


def scan_arguments(batch: int, channels: int, time: int, states: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    x = normal(51, batch, channels, time, dtype=dtype)
    delta = torch.nn.functional.softplus(normal(52, batch, channels, time) - 1).to(dtype)
    a = -torch.rand(channels, states, generator=torch.Generator().manual_seed(53)) * 2
    b, c = (normal(54 + i, batch, states, time, dtype=dtype) for i in range(2))
    return x, delta, a, b, c, normal(56, channels, 1), normal(57, batch, channels, states)


def begins_of(arguments: Sequence[torch.Tensor], piece: int) -> torch.Tensor:
    """States where each piece of time begins."""
    x, delta, a, b, c, skip, initial = arguments
    begins = []
    for start in range(0, x.shape[2], piece):
        part = slice(0, start)
        _, state = reference.selective_scan(
            x[..., part], delta[..., part], a, b[..., part], c[..., part], skip, initial
        ) if start else (None, initial)  # fmt: skip
        begins.append(state)
    return torch.stack(begins, 1).float()


def scan_case(module: ModuleType, *sizes: Any) -> None:
    arguments = scan_arguments(*sizes)
    y, last, begins = module.selective_scan_kernel(*arguments)
    expected, expected_last = reference.selective_scan(*arguments)
    assert_near(y, expected, arguments[0].dtype, NKILIB_CHAINED)
    assert_near(last, expected_last, FP32, NKILIB_CHAINED)
    assert_near(begins, begins_of(arguments, 512).double(), FP32, NKILIB_CHAINED)


def scan_backward_case(module: ModuleType, *sizes: Any) -> None:
    arguments = scan_arguments(*sizes)
    dtype = arguments[0].dtype
    dy, dlast = normal(58, *arguments[0].shape, dtype=dtype), normal(59, *arguments[6].shape)

    def loss(*leaves: torch.Tensor) -> torch.Tensor:
        y, last = reference.selective_scan(*leaves)
        return (y * dy.double()).sum() + (last * dlast.double()).sum()

    expected = others.gradients(loss, arguments)
    actual = module.selective_scan_backward_kernel(*arguments[:6], begins_of(arguments, 512), dy, dlast)
    for value, wanted, argument in zip(actual, expected, arguments, strict=True):
        assert wanted is not None
        assert value.dtype == (FP32 if argument.dtype == FP32 else dtype)
        size = wanted.abs().max()
        assert_near(value.float() / size.float(), wanted / size, FP32, {FP32: NKILIB[dtype]})


SCAN_CASES: Sequence[tuple[Any, ...]] = (
    (2, 5, 7, 3, FP32),
    (1, 130, 530, 2, FP32),
    (1, 1100, 4, 2, BF16),
    (1, 3, 1, 1, FP16),
)


def check_mamba(module: ModuleType) -> None:
    for case in SCAN_CASES:
        scan_case(module, *case)


def check_mamba_backward(module: ModuleType) -> None:
    for case in SCAN_CASES:
        scan_backward_case(module, *case)


CHECKS: dict[str, Callable[[ModuleType], None]] = {
    "flash_attention": check_flash_attention,
    "flash_attention_backward": check_flash_attention_backward,
    "topk": check_topk,
    "cumsum": check_cumsum,
    "moe": check_moe,
    "moe_backward": check_moe_backward,
    "mamba": check_mamba,
    "mamba_backward": check_mamba_backward,
}

_SIZE = "only how much is done or kept at a time, as long as it fits; the result does not depend on it"
_UNUSED = "only what no result is made of: partitions, columns or places that nobody reads"
_WHEN = "the first product overwrites and all others add, before as after"

# Mutations that no result can show, by their key, with the reason.
EQUIVALENT: dict[str, str] = {
    "topk._rounds: start + _ROUND -> start - _ROUND": "takes the last eight out as well, of rows that are used up",
    "cumsum._rounded: x.dtype == nl.float32 -> x.dtype != nl.float32": "what Vector does not round, DMA does",
    "cumsum._triangle: 1 -> 2": "the sign alone decides which half of the triangle an element is in",
    "cumsum._triangle: 1 -> 2 (no. 2)": "the sign alone decides which half of the triangle an element is in",
    "moe._first_half: -hidden // PARTITIONS -> -hidden * PARTITIONS": _SIZE,
    "moe._first_half: step // PARTITIONS -> step * PARTITIONS": _SIZE,
    "moe._first_half: _WEIGHT_BYTES // (-(-hidden // PARTITIONS) * dtype.itemsize) -> "
    "_WEIGHT_BYTES * (-(-hidden // PARTITIONS) * dtype.itemsize)": _SIZE,
    "moe._first_half: step // PARTITIONS * PARTITIONS -> step // PARTITIONS // PARTITIONS": _SIZE,
    "moe._second_half: _WEIGHT_BYTES // (BANK_COLUMNS * down.dtype.itemsize) -> "
    "_WEIGHT_BYTES * (BANK_COLUMNS * down.dtype.itemsize)": _SIZE,
    "moe._second_half: BANK_COLUMNS * down.dtype.itemsize -> BANK_COLUMNS // down.dtype.itemsize": _SIZE,
    "flash_attention.__init__: 2 -> 3": "more places in PSUM than are taken in turns",
    "flash_attention.__init__: 2 -> 3 (no. 2)": "more places in PSUM than are taken in turns",
    "flash_attention.__init__: 2 -> 3 (no. 3)": _SIZE,
    "flash_attention.__init__: 4 -> 5": "5 // 2 and 5 // 4 are 4 // 2 and 4 // 4",
    "flash_attention.__init__: 2 * PARTITIONS * key.dtype.itemsize -> 2 * PARTITIONS // key.dtype.itemsize": _SIZE,
    "flash_attention.__init__: _RESIDENT_BYTES // (2 * PARTITIONS * key.dtype.itemsize) -> "
    "_RESIDENT_BYTES * (2 * PARTITIONS * key.dtype.itemsize)": _SIZE,
    "flash_attention._steps: b - a -> b + a (no. 2)": _SIZE,
    "flash_attention._steps: b - a -> b + a (no. 3)": _SIZE,
    "flash_attention._steps: -(b - a) // _SECTION -> -(b - a) * _SECTION": _SIZE,
    "flash_attention.attend: 0.0 -> 1.0": _UNUSED,
    "flash_attention.attend: 1.0 -> 2.0": _UNUSED,
    "flash_attention.attend: _STAGES - 1 -> _STAGES + 1": "two more rounds, with nothing in them",
    "flash_attention._multiply: 0 -> 1": _WHEN,
    "flash_attention._copy: first * rows -> first // rows": "copies from the beginning on what the other engine copies",
    "flash_attention._copy: 2 -> 3": "which engine copies how much",
    "flash_attention_backward.__init__: 2 -> 3": "more places in PSUM than are taken in turns",
    "flash_attention_backward.__init__: 2 -> 3 (no. 2)": "more places in PSUM than are taken in turns",
    "flash_attention_backward.flash_attention_backward: 1 -> 2 (no. 3)": _SIZE,
    "flash_attention_backward.flash_attention_backward: 4 -> 5": _SIZE,
    "flash_attention_backward.flash_attention_backward: 4 -> 5 (no. 2)": _SIZE,
    "flash_attention_backward.flash_attention_backward: 4 * query.dtype.itemsize + 4 -> "
    "4 * query.dtype.itemsize - 4": _SIZE,
    "flash_attention_backward.flash_attention_backward: 4 * query.dtype.itemsize -> 4 // query.dtype.itemsize": _SIZE,
    "flash_attention_backward.flash_attention_backward: _RESIDENT_BYTES // per_row -> _RESIDENT_BYTES * per_row": _SIZE,
    "flash_attention_backward._run: _STAGES - 1 -> _STAGES + 1": "two more rounds, with nothing in them",
    "flash_attention_backward.multiply: 0 -> 1": _WHEN,
    "flash_attention_backward.add: 0 -> 1": "fills with zeros and adds, instead of overwriting",
    "flash_attention_backward.copy: at * self.rows -> at // self.rows": "copies from the beginning on, again",
    "flash_attention_backward._columns: 0.0 -> 1.0": _UNUSED,
    "mamba_backward.__init__: 2 * states - 1 -> 2 * states + 1": _UNUSED,
    "mamba_backward.__init__: 2 -> 3": _UNUSED,
    "mamba_backward._state: 1 -> 2": _UNUSED,
    "mamba_backward.add: 1 -> 2": _WHEN,
}
