"""nkilib.rms_norm and nkilib.layer_norm."""

import nkilib_references as reference
import pytest
import torch
from nkilib_checks import BF16, FP16, FP32, assert_near, layer_norm_case, normal, rms_norm_case
from nkilib_ops import assert_op

import nkilib
import nkilib.norms
from nkilib.norms import layer_norm_backward_kernel, layer_norm_kernel, rms_norm_backward_kernel, rms_norm_kernel

_SHAPES = [(1, 1), (1, 2), (128, 512), (129, 513), (300, 65), (2, 6144)]


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16])
@pytest.mark.parametrize(("rows", "d"), _SHAPES)
def test_rms_norm_and_its_gradients_match_the_reference(rows, d, dtype):
    rms_norm_case(nkilib.norms, rows, d, dtype, with_weight=True, eps=1e-3)


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16])
@pytest.mark.parametrize(("rows", "d"), _SHAPES)
def test_layer_norm_and_its_gradients_match_the_reference(rows, d, dtype):
    layer_norm_case(nkilib.norms, rows, d, dtype, True, True, 1e-3)


@pytest.mark.parametrize(("weight", "bias"), [(False, False), (True, False), (False, True)])
def test_weight_and_bias_may_be_absent(weight, bias):
    layer_norm_case(nkilib.norms, 5, 70, BF16, weight, bias, 1e-5)
    rms_norm_case(nkilib.norms, 5, 70, BF16, weight, 1e-5)


def test_rows_of_12288_elements_of_16_bits_fit():
    rms_norm_case(nkilib.norms, 130, 12288, BF16, with_weight=True, eps=1e-5)
    layer_norm_case(nkilib.norms, 130, 12288, BF16, True, True, 1e-5)


def test_variance_keeps_its_digits_beside_a_large_mean():
    x = normal(1, 4, 1000) + 1000
    y, _, _ = layer_norm_kernel(x)
    torch.testing.assert_close(y.double(), reference.layer_norm(x), rtol=1e-3, atol=1e-4)


def test_statistics_of_bf16_are_fp32():
    _, rstd = rms_norm_kernel(normal(1, 4, 100, dtype=BF16))
    assert rstd.dtype == FP32
    dx, dweight = rms_norm_backward_kernel(normal(1, 4, 100, dtype=BF16), None, rstd, normal(2, 4, 100, dtype=BF16))
    assert (dx.dtype, dweight.dtype) == (BF16, FP32)
    assert layer_norm_backward_kernel is not None


@pytest.mark.parametrize("dtype", [FP32, BF16])
def test_ops_with_gradients(device, dtype):
    x, weight, bias = normal(1, 3, 5, 40, dtype=dtype), normal(2, 40, dtype=dtype), normal(3, 40, dtype=dtype)
    assert_op(nkilib.rms_norm, reference.rms_norm, (x, weight), device)
    assert_op(nkilib.rms_norm, reference.rms_norm, (x,), device)
    assert_op(nkilib.layer_norm, reference.layer_norm, (x, weight, bias), device)
    assert_op(
        lambda x, b: nkilib.layer_norm(x, None, b), lambda x, b: reference.layer_norm(x, None, b), (x, bias), device
    )


def test_unsupported_arguments_are_refused(device):
    x = torch.ones(2, 8000, device=device)
    with pytest.raises(nkilib.UnsupportedShapeError, match="24576 bytes"):
        nkilib.rms_norm(x)
    with pytest.raises(nkilib.UnsupportedShapeError, match="weight"):
        nkilib.layer_norm(x[:, :10], torch.ones(9, device=device))
    with pytest.raises(nkilib.UnsupportedDtypeError, match="float64"):
        nkilib.rms_norm(x.double())


def test_a_row_of_zeros_is_zero():
    y, rstd = rms_norm_kernel(torch.zeros(2, 10), None, 1e-6)
    assert_near(y, torch.zeros(2, 10, dtype=torch.float64), FP32)
    torch.testing.assert_close(rstd, torch.full((2,), 1e3))
