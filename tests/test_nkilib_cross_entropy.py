"""nkilib.cross_entropy."""

import importlib

import nkilib_references as reference
import pytest
import torch
from nkilib_checks import BF16, FP16, FP32, cross_entropy_case, normal
from nkilib_ops import assert_op

import nkilib
from nki.errors import OutOfBoundsAccessError
from nkilib.cross_entropy import cross_entropy_kernel

# `nkilib.cross_entropy` is the op.
MODULE = importlib.import_module("nkilib.cross_entropy")


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16])
@pytest.mark.parametrize("reduction", reference.REDUCTIONS)
@pytest.mark.parametrize(("rows", "classes"), [(1, 1), (128, 64), (257, 10), (3, 4097), (130, 4096)])
def test_loss_and_gradient_match_the_reference(rows, classes, reduction, dtype):
    cross_entropy_case(MODULE, rows, classes, dtype, reduction, ignored=range(1, rows, 3))


def test_a_vocabulary_of_128_thousand_is_streamed():
    cross_entropy_case(MODULE, 4, 128_256, BF16, "mean", ignored=[2])


def test_mean_over_no_rows_is_nan_as_in_torch():
    target = torch.full((3,), -100, dtype=torch.int32)
    loss, _, count = cross_entropy_kernel(normal(1, 3, 5), target)
    assert loss.isnan().all()
    assert count.item() == 0
    assert cross_entropy_kernel(normal(1, 3, 5), target, reduction="sum")[0].item() == 0


@pytest.mark.parametrize("wrong", [5, -1, 2**31 - 1, -(2**31)])
def test_a_class_that_does_not_exist_is_an_error(wrong):
    target = torch.tensor([1, wrong, 2], dtype=torch.int32)
    with pytest.raises(OutOfBoundsAccessError):
        cross_entropy_kernel(normal(1, 3, 5), target)


@pytest.mark.parametrize("dtype", [FP32, BF16])
@pytest.mark.parametrize("reduction", reference.REDUCTIONS)
def test_op_with_gradient(device, reduction, dtype):
    target = torch.tensor([3, -100, 0, 6, 6])
    assert_op(
        lambda x, t: nkilib.cross_entropy(x, t, reduction=reduction),
        lambda x, t: reference.cross_entropy(x, t, reduction=reduction),
        (normal(1, 5, 7, dtype=dtype), target),
        device,
    )


def test_unsupported_arguments_are_refused(device):
    x, target = torch.ones(3, 4, device=device), torch.ones(3, dtype=torch.int64, device=device)
    with pytest.raises(nkilib.UnsupportedShapeError, match="one class for each row"):
        nkilib.cross_entropy(x, target[:2])
    with pytest.raises(nkilib.UnsupportedShapeError, match="matrix"):
        nkilib.cross_entropy(x[0], target)
    with pytest.raises(nkilib.UnsupportedDtypeError, match="int32 or int64"):
        nkilib.cross_entropy(x, target.float())
