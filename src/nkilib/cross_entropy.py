"""Cross entropy of logits and class numbers, and its gradient, for vocabularies of any size."""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl
from nki.tensor import NkiTensor

from .softmax import RowSum
from .tiling import PARTITIONS, flat, load, load_row, psum, sbuf, spans, store

__all__ = ["MAX_CLASSES", "cross_entropy_backward_kernel", "cross_entropy_kernel"]

# Columns of the logits at a time.
_PIECE = 4096
# Added to the index of a class that does not exist, so that its row's access is out of bounds in any tensor.
_BEYOND = 2**30
# The index of an element within 128 rows stays below _BEYOND.
MAX_CLASSES = 2**22


@nki.jit
def cross_entropy_kernel(
    logits: NkiTensor, target: NkiTensor, ignore_index: int = -100, reduction: str = "mean"
) -> tuple[NkiTensor, NkiTensor, NkiTensor]:
    """`log(sum(exp(logits))) - logits[target]` for each row, 0 where the target is `ignore_index`; in fp32.

    Args:
        logits: (rows, classes) of bf16, fp16 or fp32, up to MAX_CLASSES classes.
        target: (rows,) of int32. A class that does not exist is an access out of bounds.
        reduction: "none", "sum", or "mean" over the rows that are not ignored (NaN if all are).

    Returns:
        The loss, (rows,) for "none" and (1,) otherwise; the logarithms of the sums, (rows,); the number of rows that
        are not ignored, (1,). All fp32: what the gradient needs.

    128 rows at a time pass once through SBUF, in pieces of 4096 columns, each with a maximum (Vector) and exponentials
    with their sum (Scalar) of its own, which meet at the end. The target's logit is fetched by an indirect transfer of
    one element per row. Modelled on trn2: Vector bound, a cycle for each column of 128 rows.
    """
    rows, classes = logits.shape
    many = reduction == "none"
    loss = nl.ndarray((rows,) if many else (1,), dtype=nl.float32, buffer=nl.shared_hbm)
    lse = nl.ndarray((rows,), dtype=nl.float32, buffer=nl.shared_hbm)
    count = nl.ndarray((1,), dtype=nl.float32, buffer=nl.shared_hbm)
    # Per partition: the losses and the number of rows that count.
    sums = sbuf((min(rows, PARTITIONS), 2))
    nisa.memset(sums, 0.0)
    for start, p in spans(rows, PARTITIONS):
        pieces = spans(classes, _PIECE)
        run = RowSum(p, len(pieces))
        for i, (c0, c) in enumerate(pieces):
            run.add(i, load(logits[start : start + p, c0 : c0 + c]))
        run.finish()
        logarithm, place = sbuf((p, 1)), sbuf((p, 1))
        nisa.activation(logarithm, nl.log, run.total)
        nisa.tensor_tensor(place, logarithm, run.negated_maximum, op=nl.subtract)
        store(flat(lse, start, p), place)
        valid, index = _targets(target, start, p, classes, ignore_index)
        picked, distance, losses = sbuf((p, 1)), sbuf((p, 1)), sbuf((p, 1))
        nisa.dma_copy(dst=picked, src=_elements(logits, start, p).vector_select(0, index))
        nisa.tensor_tensor(distance, place, picked, op=nl.subtract)
        nisa.memset(losses, 0.0)
        # A product with 0 would let the NaN of an ignored row through.
        nisa.tensor_copy_predicated(losses, distance, _predicate(valid))
        if many:
            store(flat(loss, start, p), losses)
        nisa.tensor_tensor(sums[0:p, 0:1], sums[0:p, 0:1], losses, op=nl.add)
        nisa.tensor_tensor(sums[0:p, 1:2], sums[0:p, 1:2], valid, op=nl.add)
    total, inverse, result = _totals(sums), sbuf((1, 1)), sbuf((1, 1))
    store(count.reshape((1, 1)), total[:, 1:2])
    if not many:
        nisa.reciprocal(inverse, total[:, 1:2])
        nisa.tensor_tensor(result, total[:, 0:1], inverse, op=nl.multiply)
        store(loss.reshape((1, 1)), result if reduction == "mean" else total[:, 0:1])
    return loss, lse, count


@nki.jit
def cross_entropy_backward_kernel(
    logits: NkiTensor,
    target: NkiTensor,
    lse: NkiTensor,
    count: NkiTensor,
    grad: NkiTensor,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> NkiTensor:
    """Gradient of the logits: `(exp(logits - lse) - onehot(target)) * grad`, 0 in ignored rows; in fp32, rounded once.

    Args:
        logits, target, ignore_index, reduction: as of cross_entropy_kernel.
        lse, count: what that returned.
        grad: gradient of the loss, fp32: (rows,) for "none", (1,) otherwise.

    Returns:
        As `logits`.

    Each piece is an exponential (Scalar) and a product (Vector). The target's element, where 1 is subtracted, is
    computed apart and written over the others' result by an indirect transfer: a comparison with all column numbers
    would double the Vector engine's work. Bound by DMA.
    """
    rows, classes = logits.shape
    dlogits = nl.ndarray((rows, classes), dtype=logits.dtype, buffer=nl.shared_hbm)
    for start, p in spans(rows, PARTITIONS):
        valid, index = _targets(target, start, p, classes, ignore_index)
        factor = load(flat(grad, start, p)) if reduction == "none" else load_row(grad, p)
        if reduction == "mean":
            inverse = sbuf((p, 1))
            nisa.reciprocal(inverse, load_row(count, p))
            nisa.tensor_tensor(factor, factor, inverse, op=nl.multiply)
        scale, negated = sbuf((p, 1)), sbuf((p, 1))
        nisa.memset(scale, 0.0)
        nisa.tensor_copy_predicated(scale, factor, _predicate(valid))
        nisa.tensor_scalar(negated, load(flat(lse, start, p)), op0=nl.multiply, operand0=-1.0)
        for c0, c in spans(classes, _PIECE):
            powers, result = sbuf((p, c)), sbuf((p, c), logits.dtype)
            nisa.activation(powers, nl.exp, load(logits[start : start + p, c0 : c0 + c]), bias=negated)
            nisa.tensor_scalar(result, powers, op0=nl.multiply, operand0=scale)
            store(dlogits[start : start + p, c0 : c0 + c], result)
        picked, power, own = sbuf((p, 1)), sbuf((p, 1)), sbuf((p, 1), logits.dtype)
        nisa.dma_copy(dst=picked, src=_elements(logits, start, p).vector_select(0, index))
        nisa.activation(power, nl.exp, picked, bias=negated)
        nisa.tensor_scalar(own, power, op0=nl.subtract, operand0=1.0, op1=nl.multiply, operand1=scale)
        nisa.dma_copy(dst=_elements(dlogits, start, p).vector_select(0, index), src=own)
    return dlogits


def _elements(matrix: NkiTensor, start: int, rows: int) -> NkiTensor:
    """All elements of some rows of a matrix in HBM, one per row of the view."""
    return matrix[start : start + rows, :].reshape((rows * matrix.shape[1], 1))


def _targets(target: NkiTensor, start: int, rows: int, classes: int, ignore_index: int) -> tuple[NkiTensor, NkiTensor]:
    """Which rows are not ignored (1 or 0 in fp32), and where their class is in the view that _elements gives (int32).

    Ignored rows get the place of their first element; classes that do not exist a place out of bounds.
    """
    labels = load(flat(target, start, rows))
    valid, real, wrong = sbuf((rows, 1)), sbuf((rows, 1)), sbuf((rows, 1))
    nisa.tensor_scalar(valid, labels, op0=nl.not_equal, operand0=float(ignore_index))
    nisa.scalar_tensor_tensor(real, labels, nl.greater_equal, 0.0, nl.multiply, valid)
    nisa.scalar_tensor_tensor(real, labels, nl.less, float(classes), nl.multiply, real)
    nisa.tensor_tensor(wrong, valid, real, op=nl.subtract)
    # From here on in integers: fp32 would round places beyond 2**24.
    kept, beyond, index = (sbuf((rows, 1), nl.int32) for _ in range(3))
    nisa.tensor_copy(kept, real)
    nisa.tensor_scalar(beyond, wrong, op0=nl.multiply, operand0=float(_BEYOND))
    nisa.iota(index, [[0, 1]], offset=0, channel_multiplier=classes)
    nisa.tensor_tensor(kept, kept, labels, op=nl.multiply)
    nisa.tensor_tensor(index, index, kept, op=nl.add)
    nisa.tensor_tensor(index, index, beyond, op=nl.add)
    return valid, index


def _predicate(flags: NkiTensor) -> NkiTensor:
    """1 and 0 of fp32 as the integers that a predicate has to be."""
    predicate = sbuf(flags.shape, nl.uint8)
    nisa.tensor_copy(predicate, flags)
    return predicate


def _totals(sums: NkiTensor) -> NkiTensor:
    """Sums over partitions of a tile (p, n) of fp32, (1, n): a product with ones."""
    rows, columns = sums.shape
    ones, bank, total = sbuf((rows, 1)), psum((1, columns)), sbuf((1, columns))
    nisa.memset(ones, 1.0)
    nisa.nc_matmul(bank, ones, sums, accumulate=False)
    nisa.tensor_copy(total, bank)
    return total
