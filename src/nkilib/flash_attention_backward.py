"""Attention without its scores in memory: the backward kernel.

With s = scale * query @ key^T, p = exp(s - logarithm), and per query d = the sum of gradient * result, - dlogarithm:

    dvalue = p^T @ gradient            dp = gradient @ value^T        ds = p * (dp - d)
    dkey = scale * ds^T @ query        dquery = scale * ds @ key

Everything per query is a column, as queries are on the partitions: the exponential takes -logarithm as bias, and
ds is one instruction of the Vector engine. p and ds are what dvalue and dkey want as they are; made as [d, keys], both
are matmuls with 512 moving columns that accumulate in PSUM over all queries. Only dquery wants ds the other way round,
transposed in blocks by the Tensor engine.

For 128 queries x 512 keys at d = 128 the Tensor engine is busy for 6 x 512 cycles = 1.3 us (trn2), Vector for about
1.3 us (ds with dp from PSUM, half of the copies, dquery), Scalar for 0.9 us (exponential, half of the copies).
"""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl
from nki.tensor import NkiTensor

from .attention_tiles import Visibility, load_rows, store_rows, transposed
from .tiling import BANK_COLUMNS, PARTITIONS, psum, sbuf, spans

__all__ = ["flash_attention_backward"]

# Bytes per partition of query, gradient and their transposes that stay on chip together.
_RESIDENT_BYTES = 65536


@nki.jit
def flash_attention_backward(
    query: NkiTensor,
    key: NkiTensor,
    value: NkiTensor,
    result: NkiTensor,
    logarithms: NkiTensor,
    gradient: NkiTensor,
    dlogarithms: NkiTensor,
    scale: float | None = None,
    left: int = -1,
    right: int = -1,
    offset: int = 0,
) -> tuple[NkiTensor, ...]:
    """Gradients of :func:`~nkilib.flash_attention.flash_attention_forward` with respect to query, key and value.

    Args:
        query, key, value, scale, left, right, offset: those of the forward kernel.
        result, logarithms: what it returned.
        gradient: of the result, same shape and type.
        dlogarithms: gradient of the logarithms.

    Returns:
        Gradients of query, key and value in their shapes and types.

    Sums over queries and heads are kept in fp32. Where the queries of all heads that share keys do not fit on chip
    together, the sums for the keys wait in HBM in between.
    """
    batch, heads, queries, depth = query.shape
    kv_heads, keys = value.shape[1], value.shape[2]
    scale = depth**-0.5 if scale is None else scale

    dquery = nl.ndarray(query.shape, dtype=query.dtype, buffer=nl.shared_hbm)
    dkey = nl.ndarray(key.shape, dtype=key.dtype, buffer=nl.shared_hbm)
    dvalue = nl.ndarray(value.shape, dtype=value.dtype, buffer=nl.shared_hbm)
    visibility = Visibility(left, right, offset)
    programs = nl.num_programs(0) if nl.program_ndim() else 1
    first = nl.program_id(0) if nl.program_ndim() else 0
    shared = heads // kv_heads
    # Query, gradient, and the transposes of both; the gradient of the query in fp32.
    per_row = (4 * query.dtype.itemsize + 4) * PARTITIONS
    resident = max(1, _RESIDENT_BYTES // per_row) * PARTITIONS
    for pair in range(first, batch * kv_heads, programs):
        b, kv_head = divmod(pair, kv_heads)
        parts = [
            (h, start, size)
            for h in range(kv_head * shared, (kv_head + 1) * shared)
            for start, size in spans(queries, resident)
        ]
        sums = _Sums(key[b, kv_head], value[b, kv_head], dkey[b, kv_head], dvalue[b, kv_head], scale, len(parts))
        for number, (h, start, size) in enumerate(parts):
            tensors = (query[b, h], result[b, h], logarithms[b, h], gradient[b, h], dlogarithms[b, h])
            part = _Queries(*tensors, start, size, visibility, scale)
            for key_start, key_count in spans(keys, BANK_COLUMNS):
                block = _Keys(sums, key_start, key_count, number)
                for tile in range(part.tiles):
                    part.add(tile, block)
                block.close()
            part.store(dquery[b, h])
    return dquery, dkey, dvalue


class _Sums:
    """Keys and values of one head, and where their gradients are collected."""

    def __init__(
        self, key: NkiTensor, value: NkiTensor, dkey: NkiTensor, dvalue: NkiTensor, scale: float, parts: int
    ) -> None:
        self.key, self.value, self.dkey, self.dvalue = key, value, dkey, dvalue
        self.scale = scale
        self.parts = parts
        # [d, keys] in fp32 between parts.
        self.between: list[NkiTensor] = []
        if parts > 1:
            for matrix in (dkey, dvalue):
                shape = (matrix.shape[1], matrix.shape[0])
                self.between.append(nl.ndarray(shape, dtype=nl.float32, buffer=nl.private_hbm))


class _Keys:
    """Up to 512 keys and values, and their gradients from one part of the queries."""

    def __init__(self, sums: _Sums, start: int, count: int, part: int) -> None:
        self.sums, self.start, self.count, self.part = sums, start, count, part
        self.rows = load_rows(sums.key, start, count)
        self.transposed = transposed(self.rows, count)
        self.values_transposed = transposed(load_rows(sums.value, start, count), count)
        self.dkey = self._zeros(sums.key.shape[1])
        self.dvalue = self._zeros(sums.value.shape[1])

    def _zeros(self, columns: int) -> NkiTensor:
        # Queries that see only some of the keys add to some of the columns, so none of them can be the one that
        # overwrites.
        bank = psum((columns, self.count))
        nisa.memset(dst=bank, value=0.0, engine=nisa.engine.vector)
        return bank

    def close(self) -> None:
        """Hands the sums over: to the next part, or as gradients."""
        for bank, gradient, scale, which in (
            (self.dkey, self.sums.dkey, self.sums.scale, 0),
            (self.dvalue, self.sums.dvalue, 1.0, 1),
        ):
            place = slice(self.start, self.start + self.count)
            total = sbuf(bank.shape)
            if self.part == 0:
                nisa.tensor_copy(dst=total, src=bank, engine=nisa.engine.scalar)
            else:
                before = sbuf(bank.shape)
                nisa.dma_copy(dst=before, src=self.sums.between[which][:, place])
                nisa.tensor_tensor(dst=total, data1=bank, data2=before, op=nl.add, engine=nisa.engine.vector)
            if self.part < self.sums.parts - 1:
                nisa.dma_copy(dst=self.sums.between[which][:, place], src=total)
            else:
                self._store(gradient, total, scale)

    def _store(self, gradient: NkiTensor, total: NkiTensor, scale: float) -> None:
        columns = total.shape[0]
        shape = (min(self.count, PARTITIONS), -(-self.count // PARTITIONS), columns)
        out = sbuf(shape, gradient.dtype)
        for start, size in spans(self.count, PARTITIONS):
            bank = psum((size, columns))
            nisa.nc_transpose(dst=bank, data=total[:, start : start + size], engine=nisa.engine.tensor)
            nisa.activation(dst=out[0:size, start // PARTITIONS, :], op=nl.copy, data=bank, scale=scale)
        store_rows(gradient, self.start, self.count, out)


class _Queries:
    """Queries of one head with all that belongs to them, on chip."""

    def __init__(
        self,
        query: NkiTensor,
        result: NkiTensor,
        logarithms: NkiTensor,
        gradient: NkiTensor,
        dlogarithms: NkiTensor,
        start: int,
        size: int,
        visibility: Visibility,
        scale: float,
    ) -> None:
        self.start, self.size = start, size
        self.tiles = -(-size // PARTITIONS)
        self.visibility, self.scale = visibility, scale
        self.rows = load_rows(query, start, size)
        self.transposed = transposed(self.rows, size)
        self.gradient = load_rows(gradient, start, size)
        self.gradient_transposed = transposed(self.gradient, size)
        self.dots = self._dots(result, dlogarithms)
        self.negative_logarithms = _columns(logarithms, start, size)
        self.sum = sbuf((min(size, PARTITIONS), self.tiles, query.shape[1]))
        self.touched = [False] * self.tiles

    def _dots(self, result: NkiTensor, dlogarithms: NkiTensor) -> NkiTensor:
        """The sum of gradient * result, - dlogarithm, for each query; one column for each 128."""
        results = load_rows(result, self.start, self.size)
        products = sbuf(results.shape)
        dots = sbuf((results.shape[0], self.tiles))
        negative = _columns(dlogarithms, self.start, self.size)
        for at, blocks, rows in self._rectangles():
            part = (slice(0, rows), slice(at, at + blocks))
            nisa.tensor_tensor(dst=products[part], data1=results[part], data2=self.gradient[part], op=nl.multiply)
            nisa.tensor_reduce(dst=dots[part], op=nl.add, data=products[part], axis=2)
            nisa.tensor_tensor(dst=dots[part], data1=dots[part], data2=negative[part], op=nl.add)
        return dots

    def _rectangles(self) -> list[tuple[int, int, int]]:
        """(block, blocks, rows): the full blocks, and the one that is not."""
        whole, rest = divmod(self.size, PARTITIONS)
        return [r for r in ((0, whole, PARTITIONS), (whole, 1, rest)) if r[1] and r[2]]

    def add(self, tile: int, keys: _Keys) -> None:
        """What 128 queries and up to 512 keys add to each other's gradients."""
        row, rows = tile * PARTITIONS, min(PARTITIONS, self.size - tile * PARTITIONS)
        a, b = self.visibility.keys(self.start + row, rows, keys.sums.key.shape[0])
        a, b = max(a, keys.start), min(b, keys.start + keys.count)
        if a >= b:
            return
        seen = slice(a - keys.start, b - keys.start)
        count = b - a
        dtype = self.rows.dtype
        at = slice(row, row + rows)

        scores = psum((rows, count))
        nisa.nc_matmul(dst=scores, stationary=self.transposed[:, at], moving=keys.transposed[:, seen], accumulate=False)
        self.visibility.hide(scores, self.start + row, a)
        dprobabilities = psum((rows, count))
        nisa.nc_matmul(
            dst=dprobabilities,
            stationary=self.gradient_transposed[:, at],
            moving=keys.values_transposed[:, seen],
            accumulate=False,
        )
        probabilities = sbuf((rows, count), dtype)
        column = nl.ds(tile, 1)
        nisa.activation(
            dst=probabilities,
            op=nl.exp,
            data=scores,
            bias=self.negative_logarithms[0:rows, column],
            scale=self.scale,
        )
        dscores = sbuf((rows, count), dtype)
        nisa.scalar_tensor_tensor(
            dst=dscores,
            data=dprobabilities,
            op0=nl.subtract,
            operand0=self.dots[0:rows, column],
            op1=nl.multiply,
            operand1=probabilities,
        )
        nisa.nc_matmul(
            dst=keys.dvalue[:, seen], stationary=self.gradient[0:rows, tile, :], moving=probabilities, accumulate=True
        )
        nisa.nc_matmul(dst=keys.dkey[:, seen], stationary=self.rows[0:rows, tile, :], moving=dscores, accumulate=True)
        self._add_to_query(tile, rows, dscores, keys, (a - keys.start) // PARTITIONS)

    def _add_to_query(self, tile: int, rows: int, dscores: NkiTensor, keys: _Keys, first_block: int) -> None:
        count = dscores.shape[1]
        whole, rest = divmod(count, PARTITIONS)
        bank = psum((PARTITIONS if whole else rest, -(-count // PARTITIONS), rows), dscores.dtype)
        columns = sbuf(bank.shape, dscores.dtype)
        product = psum((rows, keys.rows.shape[2]))
        for start, size in spans(count, PARTITIONS):
            nisa.nc_transpose(
                dst=bank[0:size, start // PARTITIONS, :],
                data=dscores[:, start : start + size],
                engine=nisa.engine.tensor,
            )
        engine = nisa.engine.vector if tile % 2 == 0 else nisa.engine.scalar
        if whole:
            nisa.tensor_copy(dst=columns[:, 0:whole, :], src=bank[:, 0:whole, :], engine=engine)
        if rest:
            nisa.tensor_copy(dst=columns[0:rest, whole, :], src=bank[0:rest, whole, :], engine=engine)
        for start, size in spans(count, PARTITIONS):
            block = start // PARTITIONS
            nisa.nc_matmul(
                dst=product,
                stationary=columns[0:size, block, :],
                moving=keys.rows[0:size, first_block + block, :],
                accumulate=block > 0,
            )
        total = self.sum[0:rows, tile, :]
        if self.touched[tile]:
            nisa.tensor_tensor(dst=total, data1=product, data2=total, op=nl.add, engine=nisa.engine.vector)
        else:
            nisa.tensor_copy(dst=total, src=product, engine=nisa.engine.vector)
        self.touched[tile] = True

    def store(self, gradient: NkiTensor) -> None:
        """The gradient of these queries, complete now."""
        for tile, touched in enumerate(self.touched):
            if not touched:
                nisa.memset(dst=self.sum[0 : min(PARTITIONS, self.size - tile * PARTITIONS), tile, :], value=0.0)
        out = sbuf(self.sum.shape, gradient.dtype)
        for at, blocks, rows in self._rectangles():
            part = (slice(0, rows), slice(at, at + blocks))
            nisa.activation(dst=out[part], op=nl.copy, data=self.sum[part], scale=self.scale)
        store_rows(gradient, self.start, self.size, out)


def _columns(x: NkiTensor, start: int, size: int) -> NkiTensor:
    """-x, one column for each 128 queries: loaded as rows, transposed on the Tensor engine."""
    whole, rest = divmod(size, PARTITIONS)
    tiles = whole + (rest > 0)
    rows = sbuf((tiles, PARTITIONS))
    if rest:
        nisa.memset(dst=rows, value=0.0)
        tail = x[start + whole * PARTITIONS : start + size].reshape((1, rest))
        nisa.dma_copy(dst=rows[whole : whole + 1, 0:rest], src=tail)
    if whole:
        nisa.dma_copy(dst=rows[0:whole, :], src=x[start : start + whole * PARTITIONS].reshape((whole, PARTITIONS)))
    bank = psum((PARTITIONS, tiles))
    nisa.nc_transpose(dst=bank, data=rows, engine=nisa.engine.tensor)
    columns = sbuf((PARTITIONS, tiles))
    nisa.activation(dst=columns, op=nl.copy, data=bank, scale=-1.0)
    return columns
