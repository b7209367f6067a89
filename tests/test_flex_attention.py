"""FlexAttention forward: modifications of scores, masks by blocks, shapes, types, compiled and eager."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from attention_reference import (
    CAUSAL,
    SOFT_CAP,
    Mods,
    alibi,
    dense,
    dense_attention,
    documents,
    flex,
    prefix,
    sliding_window,
)
from compiling import assert_near, compiled, fresh_compiler
from tolerances import ATTENTION
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

pytestmark = [
    pytest.mark.neuron_only,  # on the CPU, compiled FlexAttention needs a C++ compiler and gives no logsumexp
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
]

SLOW = pytest.mark.slow  # most of the time is Dynamo's
DOCUMENTS = torch.arange(300) // 70


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    with fresh_compiler():
        yield


def operands(
    batch: int, heads: int, kv_heads: int, queries: int, keys: int, depth: int = 32, value_depth: int = 0, **kind: Any
) -> list[Tensor]:
    sizes = [
        (batch, heads, queries, depth),
        (batch, kv_heads, keys, depth),
        (batch, kv_heads, keys, value_depth or depth),
    ]
    return [torch.randn(size, **kind) for size in sizes]


def assert_attends(qkv: list[Tensor], mods: Mods, device: torch.device, eager: bool = False, **options: Any) -> None:
    q, k, v = (t.to(device) for t in qkv)
    function = flex(q, k, v, mods, **options)
    out, logsumexp = (function if eager else compiled(function))(q, k, v)
    expected, expected_logsumexp = dense_attention(*qkv, mods, options.get("scale"))
    assert out.device == q.device
    assert_near(out, expected.to(q.dtype), ATTENTION[q.dtype], "output", strides=False)
    assert_near(logsumexp, expected_logsumexp, ATTENTION[torch.float32], "logsumexp")


@pytest.mark.parametrize(
    "mods",
    [
        pytest.param(Mods(), id="plain", marks=SLOW),
        pytest.param(CAUSAL, id="causal", marks=SLOW),
        pytest.param(sliding_window(50), id="window", marks=SLOW),
        pytest.param(documents(DOCUMENTS), id="documents"),
        pytest.param(prefix(torch.tensor([17, 150])), id="prefix", marks=SLOW),
        pytest.param(alibi(4), id="alibi"),
        pytest.param(SOFT_CAP, id="soft cap", marks=SLOW),
        pytest.param(Mods(score=SOFT_CAP.score, mask=CAUSAL.mask), id="soft cap causal"),
    ],
)
def test_scores_are_changed(mods, device):
    assert_attends(operands(2, 4, 2, 300, 300), mods, device)


def test_eager_gives_the_same(device):
    for mods in (CAUSAL, alibi(4), Mods(SOFT_CAP.score, sliding_window(20).mask)):
        assert_attends(operands(2, 4, 2, 150, 150), mods, device, eager=True)


@SLOW
@pytest.mark.parametrize("block", [16, 64, (32, 128), (128, 48), 512])
def test_block_sizes(block, device):
    assert_attends(operands(1, 2, 2, 200, 333), sliding_window(90), device, block=block)


@SLOW
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 700), (5, 129), (17, 15), (129, 257)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lengths(queries, keys, dtype, device):
    assert_attends(operands(2, 4, 2, queries, keys, dtype=dtype), Mods(), device)


@SLOW
@pytest.mark.parametrize(("depth", "value_depth"), [(8, 8), (20, 36), (64, 128), (80, 17)])
def test_depths(depth, value_depth, device):
    assert_attends(operands(1, 2, 1, 140, 140, depth, value_depth), CAUSAL, device)


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=SLOW)])
def test_low_precision(dtype, device):
    assert_attends(operands(2, 4, 2, 200, 200, 64, dtype=dtype), Mods(SOFT_CAP.score, CAUSAL.mask), device)


@SLOW
def test_double_precision_is_dense(device):
    qkv = operands(1, 2, 2, 20, 20, dtype=torch.float64)
    q, k, v = (t.to(device) for t in qkv)
    out = compiled(lambda q, k, v: flex_attention(q, k, v))(q, k, v)
    assert_near(out, torch.softmax(qkv[0] @ qkv[1].mT / math.sqrt(32), -1) @ qkv[2], strides=False)


@SLOW
def test_scale_is_taken(device):
    assert_attends(operands(1, 2, 2, 40, 40), CAUSAL, device, scale=0.3)


def test_rows_without_keys_give_zero(device):
    allowed = torch.rand(100, 130) > 0.7
    allowed[7] = False
    allowed[40:60] = False
    mods = Mods(mask=lambda allowed: lambda b, h, q, k: allowed[q, k], captured=[allowed])
    assert_attends(operands(2, 2, 2, 100, 130), mods, device, block=32)
    q, k, v = (t.to(device) for t in operands(1, 1, 1, 100, 130))
    out, logsumexp = compiled(flex(q, k, v, mods))(q, k, v)
    assert torch.equal(out[0, 0, 7].cpu(), torch.zeros(32))
    assert logsumexp[0, 0, 7].item() == -math.inf


@SLOW
def test_scores_that_are_not_finite(device):
    def score(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return torch.where(k == 3, torch.where(q == 5, math.nan, -math.inf), s)

    qkv = operands(1, 1, 1, 30, 30)
    q, k, v = (t.to(device) for t in qkv)
    out = compiled(lambda q, k, v: flex_attention(q, k, v, score))(q, k, v).cpu()
    expected, _ = dense(*qkv, score, None)
    assert_near(out, expected, ATTENTION[torch.float32])
    assert out[0, 0, 5].isnan().all()


@SLOW
def test_masks_of_their_own_for_batches_and_heads(device):
    lengths = torch.tensor([[30, 200, 77, 1], [128, 129, 5, 64]])
    mods = Mods(mask=lambda lengths: lambda b, h, q, k: k < lengths[b, h], captured=[lengths])
    assert_attends(operands(2, 4, 2, 140, 200), mods, device)


@SLOW
def test_one_mask_for_all(device):
    qkv = operands(2, 4, 2, 140, 140)
    q, k, v = (t.to(device) for t in qkv)
    block_mask = create_block_mask(CAUSAL.mask_mod(device), None, None, 140, 140, device=str(device))
    out = compiled(lambda q, k, v: flex_attention(q, k, v, block_mask=block_mask, enable_gqa=True))(q, k, v)
    assert_near(out, dense_attention(*qkv, CAUSAL)[0], ATTENTION[torch.float32])


@pytest.mark.parametrize("chained", [pytest.param(False, marks=SLOW), True])
def test_bias_for_each_score(chained, device):
    bias = torch.randn(2, 4, 60, 70)
    qkv = operands(2, 4, 2, 60, 70)
    q, k, v, bias_here = (t.to(device) for t in (*qkv, bias))

    def score(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return s + (bias_here[b][h][q][k] if chained else bias_here[b, h, q, k])

    out = compiled(lambda q, k, v: flex_attention(q, k, v, score, enable_gqa=True))(q, k, v)
    assert_near(out, dense(*qkv, lambda s, b, h, q, k: s + bias[b, h, q, k], None)[0], ATTENTION[torch.float32])


@SLOW
def test_relative_bias_with_indices_from_the_end(device):
    table = torch.randn(4, 32)
    qkv = operands(1, 4, 4, 100, 100)

    def score(table: Tensor) -> Any:
        return lambda s, b, h, q, k: s + table[h, torch.clamp(q - k, -16, 15)]

    assert_attends(qkv, Mods(score=score, captured=[table]), device)


@SLOW
def test_keys_in_pages(device):
    """A paged cache: physical blocks of keys in any order, and a mask that knows the logical place of each."""
    page, pages = 32, 6
    logical = torch.randperm(pages)  # of each physical page
    qkv = operands(1, 2, 2, 1, page * pages)
    q, k, v = qkv
    paged = [q, *(t.view(1, 2, pages, page, -1)[:, :, logical].reshape(t.shape) for t in (k, v))]

    def mask(logical: Tensor) -> Any:
        return lambda b, h, q, k: logical[k // page] * page + k % page < 100

    out, _ = dense(*qkv, None, lambda b, h, q, k: k < 100)
    here = [t.to(device) for t in paged]
    mods = Mods(mask=mask, captured=[logical])
    actual, _ = compiled(flex(*here, mods, block=page))(*here)
    assert_near(actual, out, ATTENTION[torch.float32])


@SLOW
def test_statistics_of_rows(device):
    qkv = operands(1, 2, 2, 50, 60)
    q, k, v = (t.to(device) for t in qkv)
    scores = qkv[0] @ qkv[1].mT / math.sqrt(32)
    request = AuxRequest(lse=True, max_scores=True)
    for function in (flex_attention, compiled(flex_attention)):
        _, aux = function(q, k, v, return_aux=request)
        assert_near(aux.lse, scores.logsumexp(-1), ATTENTION[torch.float32])
        assert_near(aux.max_scores, scores.amax(-1), ATTENTION[torch.float32])


@SLOW
def test_strides_are_those_of_the_query(device):
    q, k, v = (torch.randn(2, 40, 4, 32, device=device).transpose(1, 2) for _ in range(3))
    out = compiled(lambda q, k, v: flex_attention(q, k, v))(q, k, v)
    assert out.stride() == q.stride()
    assert_near(out, dense(q.cpu(), k.cpu(), v.cpu(), None, None)[0], ATTENTION[torch.float32], strides=False)


def test_inside_a_larger_graph(device):
    width, heads = 64, 4
    weights = [torch.randn(width, width) / 8 for _ in range(4)]
    block_mask = create_block_mask(CAUSAL.mask_mod(device), None, None, 90, 90, device=str(device))

    def layer(x: Tensor, weights: list[Tensor], attend: Any) -> Tensor:
        q, k, v = ((x @ w).unflatten(-1, (heads, -1)).transpose(1, 2) for w in weights[:3])
        return x + attend(q, k, v).transpose(1, 2).flatten(2) @ weights[3]

    x = torch.randn(2, 90, width)
    function = compiled(lambda x, w: layer(x, w, lambda *qkv: flex_attention(*qkv, block_mask=block_mask)))
    actual = function(x.to(device), [w.to(device) for w in weights])
    assert_near(actual, layer(x, weights, lambda *qkv: dense_attention(*qkv, CAUSAL)[0]), ATTENTION[torch.float32])


@SLOW
def test_lengths_that_change(device):
    function = torch.compile(lambda q, k, v: flex_attention(q, k, v, SOFT_CAP.score()), backend="neuron", dynamic=True)
    for length in (40, 130, 300):
        qkv = operands(1, 2, 2, length, length)
        out = function(*(t.to(device) for t in qkv))
        assert_near(out, dense_attention(*qkv, SOFT_CAP)[0], ATTENTION[torch.float32])


def test_scores_are_not_in_memory(device):
    """One program of one step, whose arena is empty: attention over 4096 keys would need 64 MB for its scores."""
    q, k, v = (torch.randn(1, 1, 4096, 16, device=device) for _ in range(3))
    function = compiled(lambda q, k, v: flex_attention(q, k, v))
    function(q, k, v)
    torch.neuron.synchronize()
    torch.neuron.reset_peak_memory_stats()
    before = torch.neuron.memory_allocated()
    function(q, k, v)
    assert torch.neuron.max_memory_allocated() - before < 2**21


@SLOW
def test_without_machine_code_it_is_dense(device, monkeypatch):
    monkeypatch.setattr("torch_neuronx.jit.available", lambda: False)
    assert_attends(operands(1, 2, 2, 60, 60), Mods(mask=CAUSAL.mask, score=SOFT_CAP.score), device)
