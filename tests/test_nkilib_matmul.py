"""nkilib.matmul and nkilib.linear."""

import nkilib_references as reference
import pytest
import torch
from nkilib_checks import BF16, FP16, FP32, matmul_case, normal
from nkilib_ops import assert_op
from torch.nn import functional as F

import nkilib
from nkilib.matmul import matmul_kernel


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16])
@pytest.mark.parametrize(("ta", "tb"), [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize(
    ("m", "k", "n"), [(1, 1, 1), (128, 128, 512), (129, 127, 513), (1, 300, 40), (257, 1, 3), (64, 1029, 130)]
)
def test_products_of_all_layouts_match_the_reference(m, k, n, ta, tb, dtype):
    matmul_case(matmul_kernel, m, k, n, dtype, ta, tb, with_bias=m % 2 == 1)


@pytest.mark.parametrize(("m", "k", "n"), [(1100, 2060, 130), (130, 1030, 2060), (1025, 1025, 2049)])
def test_products_of_several_blocks_match_the_reference(m, k, n):
    matmul_case(matmul_kernel, m, k, n, BF16, False, False, with_bias=True)


def test_sums_are_rounded_once():
    # 256 + 2**-9 * 512: each term alone would be lost in bf16.
    a = torch.cat([torch.full((1, 1), 256.0), torch.full((1, 1024), 2.0**-9)], 1).to(BF16)
    assert matmul_kernel(a, torch.ones(1025, 1, dtype=BF16)).item() == 258.0


@pytest.mark.parametrize("dtype", [FP32, BF16])
@pytest.mark.parametrize(("ta", "tb"), [(False, False), (False, True), (True, False), (True, True)])
def test_gradients_of_all_layouts_match_autograd(device, dtype, ta, tb):
    m, k, n = 33, 40, 21
    a = normal(1, *((k, m) if ta else (m, k)), dtype=dtype, scale=k**-0.5)
    b, bias = normal(2, *((n, k) if tb else (k, n)), dtype=dtype), normal(3, n, dtype=dtype)
    assert_op(
        lambda a, b, bias: nkilib.matmul(a, b, bias, transpose_a=ta, transpose_b=tb),
        lambda a, b, bias: reference.matmul(a, b, bias, ta, tb),
        (a, b, bias),
        device,
    )


def test_linear_takes_what_torch_takes(device):
    x, weight, bias = normal(1, 2, 3, 20), normal(2, 7, 20), normal(3, 7)
    assert_op(nkilib.linear, lambda *a: F.linear(*(t.double() for t in a)), (x, weight, bias), device)


def test_cpu_tensors_are_computed_with(device):
    x, weight = normal(1, 5, 20), normal(2, 7, 20)
    assert torch.equal(nkilib.linear(x.to(device), weight.to(device)).cpu(), nkilib.linear(x, weight))


def test_operands_that_do_not_fit_are_refused(device):
    a = torch.ones(3, 4, device=device)
    with pytest.raises(nkilib.UnsupportedShapeError, match="4 elements where the sums run"):
        nkilib.matmul(a, a)
    with pytest.raises(nkilib.UnsupportedShapeError, match="empty"):
        nkilib.matmul(a[:0], a.T)
    with pytest.raises(nkilib.UnsupportedShapeError, match="bias"):
        nkilib.matmul(a, a.T, torch.ones(4, device=device))
    with pytest.raises(nkilib.UnsupportedDtypeError, match="int64"):
        nkilib.matmul(a.long(), a.T.long())
    with pytest.raises(nkilib.UnsupportedDtypeError, match="one type"):
        nkilib.matmul(a, a.T.bfloat16())
