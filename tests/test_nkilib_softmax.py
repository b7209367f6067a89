"""nkilib.softmax."""

import pytest
import torch
from nkilib_checks import BF16, FP16, FP32, assert_near, normal, softmax_backward_case, softmax_case
from nkilib_ops import assert_op

import nkilib
from nkilib.softmax import softmax_backward_kernel, softmax_kernel


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (128, 64), (129, 1000), (3, 8192), (2, 8193), (5, 4097)])
def test_probabilities_and_gradients_match_the_reference(rows, columns, dtype):
    softmax_case(softmax_kernel, rows, columns, dtype)
    softmax_backward_case(softmax_backward_kernel, rows, columns, dtype)


def test_rows_of_a_hundred_thousand_elements_are_streamed():
    softmax_case(softmax_kernel, 2, 100_003, FP32)


@pytest.mark.parametrize("columns", [60, 9000])
def test_masked_elements_get_zero_and_masked_rows_nan(columns):
    x = normal(1, 3, columns)
    x[0] = -torch.inf
    x[1, : columns - 5] = -torch.inf
    actual = softmax_kernel(x)
    assert actual[0].isnan().all()
    assert_near(actual[1:], torch.softmax(x[1:].double(), -1), FP32)


@pytest.mark.parametrize("dtype", [FP32, BF16])
@pytest.mark.parametrize(("shape", "dim"), [((30, 40), -1), ((3, 4, 5), 1), ((3, 4, 5), 0), ((7,), 0)])
def test_op_along_any_dimension_with_gradient(device, shape, dim, dtype):
    assert_op(
        lambda x: nkilib.softmax(x, dim), lambda x: torch.softmax(x.double(), dim), (normal(1, *shape, dtype=dtype),),
        device,
    )  # fmt: skip


def test_unsupported_arguments_are_refused(device):
    with pytest.raises(nkilib.UnsupportedDtypeError, match="float64"):
        nkilib.softmax(torch.ones(2, 3, device=device, dtype=torch.float64))
    with pytest.raises(nkilib.UnsupportedShapeError, match="empty"):
        nkilib.softmax(torch.ones(2, 0, device=device))
    with pytest.raises(nkilib.UnsupportedShapeError, match="dimension"):
        nkilib.softmax(torch.ones((), device=device))
