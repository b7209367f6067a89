"""Attention without its scores in memory: the backward kernel.

With s = scale * query @ key^T, p = exp(s - logarithm), and per query d = the sum of gradient * result, - dlogarithm:

    dvalue = p^T @ gradient            dp = gradient @ value^T        ds = p * (dp - d)
    dkey = scale * ds^T @ query        dquery = scale * ds @ key

Everything per query is a column, as queries are on the partitions: the exponential takes -logarithm as bias, and
ds is one instruction of the Vector engine. p and ds are what dvalue and dkey want as they are; made as [d, keys], both
are matmuls with 512 moving columns that accumulate in PSUM over all queries. Only dquery wants ds the other way round,
transposed in blocks by the Tensor engine.

For 128 queries x 512 keys at d = 128 the Tensor engine is busy for 6 x 512 cycles = 1.3 us (trn2), Vector for about
1.4 us (ds with dp from PSUM, half of the copies, dquery), Scalar for 0.9 us (exponential, half of the copies). As in
the forward kernel, several pairs of queries and keys are in work at once, each one step further than the next: modelled
for 2048 x 2048, 124 us a head instead of 290.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

import nki
import nki.isa as nisa
import nki.language as nl
from nki.element_types import DType
from nki.tensor import NkiTensor

from .attention_tiles import Visibility, load_rows, rectangles, store_rows, transposed
from .tiling import BANK_COLUMNS, PARTITIONS, psum, sbuf, spans

__all__ = ["flash_attention_backward"]

# Bytes per partition of query, gradient and their transposes that stay on chip together.
_RESIDENT_BYTES = 65536

# Bytes that as many keys as are multiplied at a time take in a row: half a bank.
_KEY_BYTES = 1024

# Pairs of queries and keys in work at once: one after the other is scored, weighed, turned, multiplied, added.
_STAGES = 5


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
    kv_heads = value.shape[1]
    scale = depth**-0.5 if scale is None else scale

    dquery = nl.ndarray(query.shape, dtype=query.dtype, buffer=nl.shared_hbm)
    dkey = nl.ndarray(key.shape, dtype=key.dtype, buffer=nl.shared_hbm)
    dvalue = nl.ndarray(value.shape, dtype=value.dtype, buffer=nl.shared_hbm)
    visibility = Visibility(left, right, offset)
    banks = _Banks(query.dtype)
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
            _run(_pairs(part, sums, number), banks)
            part.store(dquery[b, h])
    return dquery, dkey, dvalue


def _pairs(part: _Queries, sums: _Sums, number: int) -> Iterator[_Pair]:
    """Queries and keys that see each other. Late queries come first: causal ones see all keys of a block."""
    keys = sums.key.shape[0]
    for start, count in spans(keys, _KEY_BYTES // part.rows.dtype.itemsize):
        seen = []
        for tile in reversed(range(part.tiles)):
            a, b = part.visibility.keys(part.start + tile * PARTITIONS, part.count(tile), keys)
            a, b = max(a, start), min(b, start + count)
            if a < b:
                seen.append((tile, a, b))
        block = _Keys(sums, start, count, number)
        if not seen:
            block.close_untouched()
        for i, (tile, a, b) in enumerate(seen):
            yield _Pair(part, block, tile, a, b, i == len(seen) - 1)


def _run(pairs: Iterator[_Pair], banks: _Banks) -> None:
    window: deque[_Pair | None] = deque([None] * _STAGES, maxlen=_STAGES)
    for turn, pair in enumerate(chain(pairs, [None] * (_STAGES - 1))):
        window.appendleft(pair)
        new, scored, weighed, turned, multiplied = window
        if scored is not None:
            scored.weigh()
        if weighed is not None:
            weighed.turn(banks, turn)
        if new is not None:
            new.score(banks, turn)
        if weighed is not None:
            weighed.copy()
            weighed.add_to_keys()
        if turned is not None:
            turned.multiply(banks, turn)
        if multiplied is not None:
            multiplied.add_to_queries()


class _Banks:
    """Places in PSUM of what the pipeline has in work: two banks of scores, two of the gradients of probabilities, and
    one that the transposed gradients of scores share with products. The sums for the keys take two more."""

    def __init__(self, dtype: DType) -> None:
        self._scores = [psum((PARTITIONS, BANK_COLUMNS)) for _ in range(2)]
        self._dprobabilities = [psum((PARTITIONS, BANK_COLUMNS)) for _ in range(2)]
        shared = psum((PARTITIONS, BANK_COLUMNS))
        half = BANK_COLUMNS // 2
        self._turned = shared[:, 0:half].view(dtype)
        self._products = shared[:, half:BANK_COLUMNS].reshape_dim(1, (2, PARTITIONS))

    def scores(self, turn: int, rows: int, keys: int) -> tuple[NkiTensor, NkiTensor]:
        place = (slice(0, rows), slice(0, keys))
        return self._scores[turn % 2][place], self._dprobabilities[turn % 2][place]

    def turned(self, rows: int, keys: int) -> NkiTensor:
        return self._turned[0 : min(keys, PARTITIONS), 0 : -(-keys // PARTITIONS) * rows]

    def product(self, turn: int, rows: int, columns: int) -> NkiTensor:
        return self._products[0:rows, turn % 2, 0:columns]


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
    """A block of keys and values, and their gradients from one part of the queries."""

    def __init__(self, sums: _Sums, start: int, count: int, part: int) -> None:
        self.sums, self.start, self.count, self.part = sums, start, count, part
        self.rows = load_rows(sums.key, start, count)
        self.transposed = transposed(self.rows, count)
        self.values_transposed = transposed(load_rows(sums.value, start, count), count)
        self._gradients: tuple[NkiTensor, NkiTensor] | None = None

    def add(self, seen: slice, factors: tuple[tuple[NkiTensor, NkiTensor], ...]) -> None:
        """Adds one product each to the gradients of the keys `seen`, [d, keys], and of their values."""
        whole = seen == slice(0, self.count)
        first = self._gradients is None
        if self._gradients is None:
            columns = (self.sums.key.shape[1], self.sums.value.shape[1])
            self._gradients = (psum((columns[0], self.count)), psum((columns[1], self.count)))
            if not whole:  # nobody overwrites the columns that this product leaves out
                for bank in self._gradients:
                    nisa.memset(dst=bank, value=0.0, engine=nisa.engine.vector)
        for bank, (stationary, moving) in zip(self._gradients, factors, strict=True):
            nisa.nc_matmul(dst=bank[:, seen], stationary=stationary, moving=moving, accumulate=not (first and whole))

    def close_untouched(self) -> None:
        """No query of the part sees these keys."""
        columns = (self.sums.key.shape[1], self.sums.value.shape[1])
        self._gradients = (sbuf((columns[0], self.count)), sbuf((columns[1], self.count)))
        for zeros in self._gradients:
            nisa.memset(dst=zeros, value=0.0)
        self.close()

    def close(self) -> None:
        """Hands the sums over: to the next part, or as gradients."""
        assert self._gradients is not None
        for bank, gradient, scale, which in (
            (self._gradients[0], self.sums.dkey, self.sums.scale, 0),
            (self._gradients[1], self.sums.dvalue, 1.0, 1),
        ):
            place = slice(self.start, self.start + self.count)
            total = sbuf(bank.shape)
            if self.part == 0:
                nisa.activation(dst=total, op=nl.copy, data=bank)
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
        out, bank = sbuf(shape, gradient.dtype), psum(shape)
        for start, size in spans(self.count, PARTITIONS):
            place = (slice(0, size), start // PARTITIONS)
            nisa.nc_transpose(dst=bank[place], data=total[:, start : start + size], engine=nisa.engine.tensor)
        for at, blocks, rows in rectangles(self.count):
            part = (slice(0, rows), slice(at, at + blocks))
            nisa.activation(dst=out[part], op=nl.copy, data=bank[part], scale=scale)
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
        for at, blocks, rows in rectangles(self.size):
            part = (slice(0, rows), slice(at, at + blocks))
            nisa.tensor_tensor(dst=products[part], data1=results[part], data2=self.gradient[part], op=nl.multiply)
            nisa.tensor_reduce(dst=dots[part], op=nl.add, data=products[part], axis=2)
            nisa.tensor_tensor(dst=dots[part], data1=dots[part], data2=negative[part], op=nl.add)
        return dots

    def count(self, tile: int) -> int:
        """How many queries a tile has."""
        return min(PARTITIONS, self.size - tile * PARTITIONS)

    def store(self, gradient: NkiTensor) -> None:
        """The gradient of these queries, complete now."""
        for tile, touched in enumerate(self.touched):
            if not touched:
                nisa.memset(dst=self.sum[0 : self.count(tile), tile, :], value=0.0)
        out = sbuf(self.sum.shape, gradient.dtype)
        for at, blocks, rows in rectangles(self.size):
            part = (slice(0, rows), slice(at, at + blocks))
            nisa.activation(dst=out[part], op=nl.copy, data=self.sum[part], scale=self.scale)
        store_rows(gradient, self.start, self.size, out)


@dataclass
class _Pair:
    """128 queries and a block of keys, of which they see those from `first` to `last`."""

    queries: _Queries
    keys: _Keys
    tile: int
    first: int
    last: int
    closes: bool  # the block of keys
    scores: NkiTensor = field(init=False)
    dprobabilities: NkiTensor = field(init=False)
    probabilities: NkiTensor = field(init=False)
    dscores: NkiTensor = field(init=False)
    bank: NkiTensor = field(init=False)  # dscores^T, blocks of 128 keys side by side
    turned: NkiTensor = field(init=False)  # the same in SBUF
    product: NkiTensor = field(init=False)  # dscores @ keys

    @property
    def rows(self) -> int:
        return self.queries.count(self.tile)

    @property
    def count(self) -> int:
        return self.last - self.first

    @property
    def seen(self) -> slice:
        return slice(self.first - self.keys.start, self.last - self.keys.start)

    def score(self, banks: _Banks, turn: int) -> None:
        """Scores, and the gradients of the probabilities."""
        at = slice(self.tile * PARTITIONS, self.tile * PARTITIONS + self.rows)
        self.scores, self.dprobabilities = banks.scores(turn, self.rows, self.count)
        for result, queries, keys in (
            (self.scores, self.queries.transposed, self.keys.transposed),
            (self.dprobabilities, self.queries.gradient_transposed, self.keys.values_transposed),
        ):
            nisa.nc_matmul(dst=result, stationary=queries[:, at], moving=keys[:, self.seen], accumulate=False)
        self.queries.visibility.hide(self.scores, self.queries.start + self.tile * PARTITIONS, self.first)

    def weigh(self) -> None:
        """Probabilities, and the gradients of the scores."""
        shape, dtype = (self.rows, self.count), self.queries.rows.dtype
        column = (slice(0, self.rows), slice(self.tile, self.tile + 1))
        self.probabilities, self.dscores = sbuf(shape, dtype), sbuf(shape, dtype)
        nisa.activation(
            dst=self.probabilities,
            op=nl.exp,
            data=self.scores,
            bias=self.queries.negative_logarithms[column],
            scale=self.queries.scale,
        )
        nisa.scalar_tensor_tensor(
            dst=self.dscores,
            data=self.dprobabilities,
            op0=nl.subtract,
            operand0=self.queries.dots[column],
            op1=nl.multiply,
            operand1=self.probabilities,
        )

    def turn(self, banks: _Banks, turn: int) -> None:
        """Transposes the gradients of the scores into PSUM."""
        self.bank = banks.turned(self.rows, self.count)
        for key, keys in spans(self.count, PARTITIONS):
            at = key // PARTITIONS * self.rows
            nisa.nc_transpose(
                dst=self.bank[0:keys, at : at + self.rows],
                data=self.dscores[:, key : key + keys],
                engine=nisa.engine.tensor,
            )

    def copy(self) -> None:
        """The transposed gradients to SBUF."""
        self.turned = sbuf(self.bank.shape, self.bank.dtype)
        for at, blocks, keys in rectangles(self.count):
            part = (slice(0, keys), slice(at * self.rows, (at + blocks) * self.rows))
            nisa.activation(dst=self.turned[part], op=nl.copy, data=self.bank[part])

    def add_to_keys(self) -> None:
        """What the queries add to the gradients of keys and values."""
        factors = (
            (self.queries.rows[0 : self.rows, self.tile, :], self.dscores),
            (self.queries.gradient[0 : self.rows, self.tile, :], self.probabilities),
        )
        self.keys.add(self.seen, factors)
        if self.closes:
            self.keys.close()

    def multiply(self, banks: _Banks, turn: int) -> None:
        """dscores @ keys."""
        self.product = banks.product(turn, self.rows, self.keys.rows.shape[2])
        first_block = (self.first - self.keys.start) // PARTITIONS
        for key, keys in spans(self.count, PARTITIONS):
            block = key // PARTITIONS
            nisa.nc_matmul(
                dst=self.product,
                stationary=self.turned[0:keys, block * self.rows : (block + 1) * self.rows],
                moving=self.keys.rows[0:keys, first_block + block, :],
                accumulate=key > 0,
            )

    def add_to_queries(self) -> None:
        """What the keys add to the gradients of the queries."""
        total = self.queries.sum[0 : self.rows, self.tile, :]
        if self.queries.touched[self.tile]:
            nisa.tensor_tensor(dst=total, data1=self.product, data2=total, op=nl.add, engine=nisa.engine.vector)
        else:
            nisa.tensor_copy(dst=total, src=self.product, engine=nisa.engine.vector)
        self.queries.touched[self.tile] = True


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
