"""nkilib.rope."""

import nkilib_references as reference
import pytest
import torch
from nkilib_checks import BF16, FP16, FP32, angles, normal, rope_case
from nkilib_ops import assert_op

import nkilib
from nkilib.rope import rope_kernel


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16])
@pytest.mark.parametrize("heads_first", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    ("batch", "tokens", "heads", "d"), [(1, 1, 1, 2), (2, 129, 3, 64), (1, 128, 40, 128), (3, 7, 1, 6)]
)
def test_turned_heads_match_the_reference(batch, tokens, heads, d, heads_first, interleaved, dtype):
    rope_case(rope_kernel, batch, tokens, heads, d, dtype, heads_first, interleaved, per_batch=batch == 3)


def test_turning_back_gives_what_was_turned():
    x, (cos, sin) = normal(1, 2, 9, 3, 16), angles(2, 9, 8)
    back = rope_kernel(rope_kernel(x, cos, sin), cos, sin, False, False, True)
    torch.testing.assert_close(back, x, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [FP32, BF16])
@pytest.mark.parametrize("heads_first", [False, True])
def test_op_with_gradient(device, dtype, heads_first):
    x, (cos, sin) = normal(1, 2, 5, 5, 16, dtype=dtype), angles(2, 5, 8)
    assert_op(
        lambda *a: nkilib.rope(*a, heads_first=heads_first, interleaved=True),
        lambda *a: reference.rope(*a, heads_first, True),
        (x, cos, sin),
        device,
        fixed=(1, 2),
    )


def test_unsupported_arguments_are_refused(device):
    x, angle = torch.ones(1, 4, 2, 6, device=device), torch.ones(4, 3, device=device)
    with pytest.raises(nkilib.UnsupportedShapeError, match="even"):
        nkilib.rope(x[..., :5], angle, angle)
    with pytest.raises(nkilib.UnsupportedShapeError, match="sin"):
        nkilib.rope(x, angle, angle[:3])
    with pytest.raises(nkilib.UnsupportedDtypeError):
        nkilib.rope(x.double(), angle, angle)
