"""nkilib's attention: kernels against plain PyTorch, the op on all devices, its gradients, checks and modelled time."""

from typing import Any

import nkilib_references as gradients_of
import nkilib_references_sequence as reference
import pytest
import torch
import torch.nn.functional as F
from nkilib_checks import BF16, FP16, FP32, assert_near, normal, strictly
from nkilib_checks_sequence import (
    Sizes,
    attention_arguments,
    attention_backward_case,
    attention_case,
)
from tolerances import NKILIB_ATTENTION

import nki
import nkilib
from nkilib.flash_attention import flash_attention_forward
from nkilib.flash_attention_backward import flash_attention_backward

# (batch, heads, kv_heads, queries, keys, d, e), scale, left, right, offset
CASES: list[tuple[Sizes, float | None, int, int, int]] = [
    ((1, 1, 1, 1, 1, 1, 1), None, -1, -1, 0),
    ((1, 1, 1, 1, 300, 64, 64), None, -1, 0, 299),
    ((2, 3, 3, 127, 129, 32, 48), 0.3, -1, -1, 0),
    ((1, 8, 2, 128, 128, 128, 128), None, -1, 0, 0),
    ((1, 2, 1, 257, 515, 80, 40), None, -1, 0, 258),
    ((1, 2, 2, 400, 400, 16, 16), None, 99, 0, 0),
    ((1, 1, 1, 200, 1500, 16, 16), 1.5, -1, -1, 0),
    ((1, 1, 1, 256, 40, 16, 16), None, 30, 20, 0),
]


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_sizes_masks_and_types(case: Any, dtype: torch.dtype) -> None:
    sizes, *options = case
    with strictly():
        attention_case(flash_attention_forward, sizes, dtype, *options)
        attention_backward_case(flash_attention_backward, sizes, dtype, *options)


def test_large_scores_do_not_overflow() -> None:
    query, key, value = attention_arguments((1, 1, 1, 130, 1200, 8, 8), FP32)
    result, logarithms = flash_attention_forward(query * 30, key * 30, value)
    expected, expected_logarithms = reference.attention(query * 30, key * 30, value)
    assert_near(result, expected, FP32, {FP32: NKILIB_ATTENTION[FP32]._replace(atol=1e-3)})
    assert_near(logarithms, expected_logarithms, FP32)


def test_two_programs_share_the_heads() -> None:
    arguments = attention_arguments((1, 3, 3, 140, 150, 16, 16), FP32)
    alone, both = flash_attention_forward(*arguments), flash_attention_forward[2](*arguments)
    for one, other in zip(alone, both, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("device", ["cpu", "neuron"])
@pytest.mark.parametrize("compiled", [False, True])
def test_op_and_its_gradients(device: str, compiled: bool) -> None:
    arguments = attention_arguments((2, 4, 2, 140, 140, 16, 16), FP32)

    def function(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        result: tuple[torch.Tensor, torch.Tensor] = nkilib.flash_attention(
            query, key, value, causal=True, window=(60, -1), return_logarithms=True
        )
        return result

    def loss(result: torch.Tensor, logarithms: torch.Tensor) -> torch.Tensor:
        return (result * result).sum() + (logarithms * 0.5).sum()

    attend = torch.compile(function, fullgraph=True) if compiled else function
    leaves = [t.to(device).requires_grad_() for t in arguments]
    result, logarithms = attend(*leaves)
    expected, expected_logarithms = reference.attention(*arguments, None, 60, 0)
    assert_near(result.detach().cpu(), expected, FP32, NKILIB_ATTENTION)
    assert_near(logarithms.detach().cpu(), expected_logarithms, FP32)
    loss(result, logarithms).backward()
    wanted = gradients_of.gradients(lambda *x: loss(*reference.attention(*x, None, 60, 0)), arguments)
    for leaf, gradient in zip(leaves, wanted, strict=True):
        assert leaf.grad is not None
        assert gradient is not None
        assert_near(leaf.grad.cpu(), gradient, FP32, {FP32: NKILIB_ATTENTION[FP32]._replace(atol=1e-4)})


@pytest.mark.parametrize("causal", [False, True])
def test_enable_routes_scaled_dot_product_attention(causal: bool) -> None:
    query, key, value = (t.to("neuron") for t in attention_arguments((1, 4, 2, 130, 130, 16, 16), BF16))
    with nkilib.enable("scaled_dot_product_attention"):
        routed = F.scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=True)
    assert torch.equal(routed, nkilib.flash_attention(query, key, value, causal=causal))


@pytest.mark.parametrize("kind", ["mask", "dropout", "heads", "depth"])
def test_what_the_kernel_has_not_goes_to_pytorch(kind: str) -> None:
    sizes: Sizes = (1, 2, 2, 20, 20, 136 if kind == "depth" else 16, 16)
    query, key, value = (t.to("neuron") for t in attention_arguments(sizes, FP32))
    options: dict[str, Any] = {}
    if kind == "mask":
        options["attn_mask"] = torch.ones(20, 20, dtype=torch.bool, device="neuron").tril()
    if kind == "heads":
        query = query[:, :, :, None].flatten(2, 3)[0]
        key, value = key[0], value[0]
    with torch.no_grad():
        expected = F.scaled_dot_product_attention(query.cpu(), key.cpu(), value.cpu(), **{
            name: option.cpu() for name, option in options.items()
        })  # fmt: skip
    if kind == "dropout":
        options["dropout_p"] = 1e-9
    with nkilib.enable():
        actual = F.scaled_dot_product_attention(query, key, value, **options)
    assert_near(actual.cpu(), expected.double(), FP32, {FP32: NKILIB_ATTENTION[FP32]})


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"query": (1, 2, 4, 130)}, nkilib.UnsupportedShapeError),
        ({"query": (1, 3, 4, 8)}, nkilib.UnsupportedShapeError),
        ({"key": (2, 2, 4, 8)}, nkilib.UnsupportedShapeError),
        ({"value": (1, 2, 5, 8)}, nkilib.UnsupportedShapeError),
        ({"value": (2, 4, 8)}, nkilib.UnsupportedShapeError),
        ({"scale": 0.0}, nkilib.UnsupportedOptionError),
        ({"window": (-2, 0)}, nkilib.UnsupportedOptionError),
    ],
)
def test_bad_arguments_are_named(change: dict[str, Any], error: type[Exception]) -> None:
    shapes = {name: change.pop(name, (1, 2, 4, 8)) for name in ("query", "key", "value")}
    with pytest.raises(error, match="flash_attention"):
        nkilib.flash_attention(*(torch.zeros(shape) for shape in shapes.values()), **change)


def test_mixed_types_are_named() -> None:
    query, key, value = attention_arguments((1, 1, 1, 4, 4, 8, 8), FP32)
    with pytest.raises(nkilib.UnsupportedDtypeError, match="key"):
        nkilib.flash_attention(query, key.bfloat16(), value)


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_chips_can_run_it(target: str) -> None:
    arguments = attention_arguments((1, 2, 1, 260, 1100, 128, 128), BF16)
    assert nki.check(flash_attention_forward, target=target)(*arguments, None, 300, 0, 840) == []
    result, logarithms = flash_attention_forward(*arguments)
    gradients = (normal(61, *result.shape, dtype=BF16), normal(62, *logarithms.shape))
    arguments = (*arguments, result, logarithms, *gradients)
    assert nki.check(flash_attention_backward, target=target)(*arguments, None, 300, 0, 840) == []


def test_modelled_time_grows_with_the_work() -> None:
    def time(queries: int, keys: int, right: int = -1) -> float:
        arguments = attention_arguments((1, 1, 1, queries, keys, 128, 128), BF16)
        return nki.profile(flash_attention_forward, target="trn2")(*arguments, None, -1, right).latency_us

    short, long, causal = time(512, 512), time(1024, 1024), time(1024, 1024, 0)
    print(f"512: {short:.1f} us, 1024: {long:.1f} us, causal: {causal:.1f} us (modelled)")
    assert 0 < short < causal < long
