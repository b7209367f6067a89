"""nkilib.swiglu and nkilib.swiglu_mlp."""

import importlib

import nkilib_references as reference
import pytest
import torch
from nkilib_checks import BF16, FP16, FP32, normal, swiglu_case, swiglu_mlp_case
from nkilib_ops import assert_op

import nkilib
from nkilib.swiglu import swiglu_mlp_kernel

# `nkilib.swiglu` is the op.
MODULE = importlib.import_module("nkilib.swiglu")


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (128, 512), (129, 4097), (300, 65)])
def test_activation_and_its_gradients_match_the_reference(rows, columns, dtype):
    swiglu_case(MODULE, rows, columns, dtype)


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16])
@pytest.mark.parametrize(
    ("tokens", "d", "hidden", "d_out"), [(1, 1, 1, 1), (128, 128, 256, 128), (513, 130, 129, 513), (3, 600, 1000, 600)]
)
def test_mlp_matches_the_reference(tokens, d, hidden, d_out, dtype):
    swiglu_mlp_case(swiglu_mlp_kernel, tokens, d, hidden, d_out, dtype)


def test_mlp_of_a_size_that_leaves_room_for_128_tokens_only():
    swiglu_mlp_case(swiglu_mlp_kernel, 129, 140, 28500, 30, FP32)


@pytest.mark.parametrize("dtype", [FP32, BF16])
def test_ops_with_gradients(device, dtype):
    x, d, hidden = normal(1, 2, 9, 24, dtype=dtype), 24, 40
    gate, up = normal(2, d, hidden, dtype=dtype, scale=d**-0.5), normal(3, d, hidden, dtype=dtype, scale=d**-0.5)
    down = normal(4, hidden, 24, dtype=dtype, scale=hidden**-0.5)
    operands = normal(5, 3, 4, 50, dtype=dtype), normal(6, 3, 4, 50, dtype=dtype)
    assert_op(nkilib.swiglu, reference.swiglu, operands, device)
    assert_op(nkilib.swiglu_mlp, reference.swiglu_mlp, (x, gate, up, down), device)


def test_unsupported_arguments_are_refused(device):
    x = torch.ones(2, 4, device=device)
    with pytest.raises(nkilib.UnsupportedShapeError, match="gate has"):
        nkilib.swiglu(x, x[:1])
    with pytest.raises(nkilib.UnsupportedShapeError, match="w_down"):
        nkilib.swiglu_mlp(x, x.T, x.T, x.T)
    with pytest.raises(nkilib.UnsupportedShapeError, match="114688 bytes"):
        nkilib.swiglu_mlp(*(torch.ones(s, device=device) for s in ((1, 4), (4, 32768), (4, 32768), (32768, 4))))
    with pytest.raises(nkilib.UnsupportedDtypeError):
        nkilib.swiglu(x.int(), x.int())
