"""Instructions of the Tensor Engine and of DMA, and those that fill tiles (Beta 1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import nki.isa as hardware
from nki.element_types import of
from nki.errors import AffinePredicateError, MaskedInstructionError
from nki.isa.enums import dge_mode as DescriptorMode
from nki.isa.enums import engine as Engine
from nki.isa.enums import matmul_perf_mode as PerformanceMode
from nki.isa.enums import oob_mode as OutOfBounds
from nki.trace import source_line

from ..addressing import cropped
from ..emission import as_tile, converted, each, elementwise, fresh, in_sbuf, on_engine, plain, transfer
from ..indices import Index, Mask
from ..tile import Tile

__all__ = [
    "affine_select", "dma_copy", "dma_transpose", "dropout", "iota", "memset", "nc_matmul", "nc_transpose"
]  # fmt: skip

UNKNOWN = Engine.unknown


def _no_mask(op: str, mask: Any, shape: tuple[int, ...]) -> None:
    if Mask.of(mask) is not None:
        raise MaskedInstructionError(op=op, mask=mask, shape=shape, line=source_line())


def nc_matmul(
    stationary: Any,
    moving: Any,
    *,
    is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False,
    is_transpose: bool = False,
    tile_position: Any = (),
    tile_size: Any = (),
    mask: Any = None,
    perf_mode: Any = None,
    name: str | None = None,
    **_: Any,
) -> Tile:
    """`stationary.T @ moving`, into a new tile in PSUM.

    Args:
        stationary: (K, M) with K <= 128, M <= 128.
        moving: (K, N) with N <= 512.
        perf_mode: "double_row_gen3" for two rows of fp8 in a cycle; operands (128, 2, M) and (128, 2, N).

    Returns:
        (M, N) in fp32. `tile += nc_matmul(...)` adds to a tile in PSUM.
    """
    left, right = (on_engine(in_sbuf(as_tile(t, "nc_matmul"))) for t in (stationary, moving))
    _no_mask("nc_matmul", mask, right.shape)
    double = perf_mode is not None and str(getattr(perf_mode, "name", perf_mode)).startswith("double_row")
    if double:
        views = [plain(left), plain(right)]
        columns, rows = left.shape[-1], right.shape[2:]
    else:
        views = [next(each(left))[0], next(each(right))[0]]
        columns, rows = left.size // left.shape[0], right.shape[1:]
    # The result of this dialect's transposes is fp32 whatever the operands are, which only fp32 ones allow as such.
    transposes = is_transpose and left.dtype == right.dtype == "float32"
    result = fresh((columns, *rows), "float32", "psum")
    hardware.nc_matmul(
        next(each(result))[0], views[0], views[1], is_stationary_onezero=is_stationary_onezero,
        is_moving_onezero=is_moving_onezero, is_transpose=transposes, accumulate=False,
        tile_position=tuple(tile_position), tile_size=tuple(tile_size),
        perf_mode=PerformanceMode.double_row if double else PerformanceMode.none, name=name,
    )  # fmt: skip
    return result


def nc_transpose(
    data: Any, *, mask: Any = None, dtype: Any = None, engine: Engine = UNKNOWN, name: str | None = None, **_: Any
) -> Tile:
    """Partitions and elements exchanged: (P, F) becomes (F, P).

    Args:
        engine: tensor (the default; up to 128 x 128, the result lies in PSUM) or vector (up to 32 x 32, in SBUF).
    """
    tile = as_tile(data, "nc_transpose")
    _no_mask("nc_transpose", mask, tile.shape)
    vector = engine is Engine.vector
    source = on_engine(tile if vector else in_sbuf(tile))
    result = fresh((source.size // source.shape[0], source.shape[0]), source.dtype, "sbuf" if vector else "psum")
    chosen = Engine.vector if vector else Engine.tensor
    hardware.nc_transpose(plain(result), next(each(source))[0], engine=chosen, name=name)
    return result if dtype is None or of(dtype) == result.dtype else converted(result, of(dtype))


def dma_copy(
    *,
    dst: Any,
    src: Any,
    mask: Any = None,
    dst_rmw_op: Any = None,
    oob_mode: OutOfBounds = OutOfBounds.error,
    dge_mode: DescriptorMode = DescriptorMode.unknown,
    **_: Any,
) -> None:
    """Copies between memories by DMA.

    Args:
        dst_rmw_op: np.add adds to what is there.
        oob_mode: what happens to indices in a tile that are out of bounds.
    """
    target, source = as_tile(dst, "dma_copy"), as_tile(src, "dma_copy")
    chosen = Mask.of(mask)
    if chosen is not None:
        found, part = cropped(target, chosen, target.shape), cropped(source, chosen, target.shape)
        if found is None or part is None:
            return
        target, source = found, part
    if dst_rmw_op is not None:
        hardware.dma_compute(plain(target), [plain(in_sbuf(source)), plain(target)], reduce_op=dst_rmw_op)
        return
    transfer(target, source, oob_mode=oob_mode, dge_mode=dge_mode)


def dma_transpose(
    src: Any,
    *,
    axes: Sequence[int] | None = None,
    mask: Any = None,
    dtype: Any = None,
    dge_mode: DescriptorMode = DescriptorMode.unknown,
    name: str | None = None,
    **_: Any,
) -> Tile:
    """Dimensions reordered by DMA, into a new tile in SBUF; a matrix is transposed."""
    tile = as_tile(src, "dma_transpose")
    _no_mask("dma_transpose", mask, tile.shape)
    if tile.storage.region == "psum":
        tile = in_sbuf(tile)
    order = tuple(axes) if axes is not None else tuple(reversed(range(tile.ndim)))
    result = fresh(tuple(tile.shape[d] for d in order), tile.dtype)
    hardware.dma_transpose(plain(result), plain(tile), axes=order, dge_mode=dge_mode, name=name)
    return result if dtype is None or of(dtype) == result.dtype else converted(result, of(dtype))


def memset(
    shape: Sequence[int],
    value: Any,
    dtype: Any,
    *,
    mask: Any = None,
    engine: Engine = UNKNOWN,
    name: str | None = None,
    **_: Any,
) -> Tile:
    """A new tile full of one number."""
    element = of(dtype)
    number = float(value) if element.is_float else int(value)
    return elementwise(
        lambda dst: hardware.memset(dst, number, engine=engine, name=name), [], element, mask, tuple(map(int, shape))
    )


def iota(expr: Any, dtype: Any, *, mask: Any = None, name: str | None = None, **_: Any) -> Tile:
    """The values of an affine index expression as a tile."""
    index = Index.of(expr)
    if index is None or index.values is not None:
        raise AffinePredicateError(pred=expr, line=source_line())
    _no_mask("iota", mask, index.shape)
    shape = index.shape if index.ndim > 1 else (*index.shape, 1)
    steps = index.steps if index.ndim > 1 else (*index.steps, 0)
    result = fresh(shape, dtype)
    pattern = [[s, n] for n, s in zip(shape[1:], steps[1:], strict=True)]
    hardware.iota(next(each(result))[0], pattern, index.const, steps[0], name=name)
    return result


def affine_select(
    pred: Any,
    on_true_tile: Any,
    on_false_value: Any,
    *,
    mask: Any = None,
    dtype: Any = None,
    name: str | None = None,
    **_: Any,
) -> Tile:
    """`on_true_tile` where a comparison of affine index expressions is true, else `on_false_value`.

    Raises:
        AffinePredicateError: `pred` is something else.
    """
    tile = on_engine(in_sbuf(as_tile(on_true_tile, "affine_select")))
    _no_mask("affine_select", mask, tile.shape)
    if not isinstance(pred, Mask) or len(pred.terms) not in (1, 2) or pred.values is not None:
        raise AffinePredicateError(pred=pred, line=source_line())
    term = pred.terms[0].broadcast(tile.shape)
    comparison = "greater_equal"
    if len(pred.terms) == 2:
        other = pred.terms[1].broadcast(tile.shape)
        if other.const != -term.const or other.steps != tuple(-s for s in term.steps):
            raise AffinePredicateError(pred=pred, line=source_line())
        comparison = "equal"
    result = fresh(tile.shape, dtype or tile.dtype)
    pattern = [[s, n] for n, s in zip(tile.shape[1:], term.steps[1:], strict=True)]
    hardware.affine_select(
        next(each(result))[0], pattern, term.steps[0], next(each(tile))[0], float(on_false_value), comparison,
        term.const, name=name,
    )  # fmt: skip
    return result


def dropout(data: Any, prob: Any, *, mask: Any = None, dtype: Any = None, name: str | None = None, **_: Any) -> Tile:
    """Elements of `data`, each replaced by 0 with probability `prob`."""
    tile = as_tile(data, "dropout")
    return elementwise(
        lambda dst, src, p: hardware.dropout(dst, src, p, name=name), [tile], dtype or tile.dtype, mask, columns=(prob,)
    )
