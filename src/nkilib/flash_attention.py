"""Attention without its scores in memory: the forward kernel.

## Which way round

For 128 queries and a section of keys, the scores can be made with the queries or with the keys on the partitions.

Keys on partitions: scores^T [keys, queries] is what the second product wants as it is, so nothing is transposed. But
the maximum of a query then runs over partitions, which only GpSimd and the Tensor engine cross, and the exponential
needs it along the free dimension, where the Scalar engine's bias cannot go.

Queries on partitions (taken here): the maximum is one instruction of the Vector engine along the free dimension, the
exponential takes it as bias and hands out the sum of the row for nothing, and the correction between sections is a
column. The price: the Tensor engine transposes the probabilities in blocks of 128 x 128, as many cycles as each of the
two products, and somebody copies the result out of PSUM.

Cycles for 128 queries x 1024 keys, d = 128, bf16 (neuron_hw, trn2): Tensor 3 x 1024 at 2.4 GHz = 1.3 us; Scalar 1024
(exponential) + 512 (half of the copies) at 1.2 GHz = 1.3 us; Vector 1024 (maximum) + 256 (other half, twice as fast
from PSUM in 16 bits) at 0.96 GHz = 1.3 us. The engines are in balance, which is why the copies are shared.

## Order of instructions

Engines take their instructions in program order, so what one section needs of the four engines one after the other must
not stand together: five sections are in work at once, each one step further than the next. All that an engine waits for
was asked of the others a round before. Modelled for 2048 x 2048 at d = 128 in bf16, that takes 72 us a head instead of
200 for one section after the other (the order of the steps was found by trying out those that are possible).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, count

import nki
import nki.isa as nisa
import nki.language as nl
from nki.element_types import DType
from nki.tensor import NkiTensor

from .attention_tiles import Visibility, load_rows, store_rows, transposed
from .tiling import BANK_COLUMNS, PARTITIONS, drain, psum, sbuf, spans

__all__ = ["flash_attention_forward"]

# Keys that one softmax covers before the next correction: two banks of PSUM, so that two sections fit beside the
# transposed probabilities (two banks) and the products (two).
_SECTION = 1024

# Sections in work at once: one after the other is scored, weighed by its exponentials, turned, multiplied, added.
_STAGES = 5

# Queries whose state stays on chip while keys stream past, and what is loaded and stored by one DMA.
_QUERIES, _GROUP = 2048, 512

# Bytes per partition that keys and values of one head may take: longer sequences are streamed.
_RESIDENT_BYTES = 32768

# Lower than every score that counts: a row that sees no key has this as maximum, and no total. Rows that see one have
# a total of 1 or more, so that the smallest one, which keeps the logarithm in its range, changes none of them.
_LOWEST, _SMALLEST_TOTAL = -1e30, 1e-18


class _Banks:
    """Places in PSUM of what the pipeline has in work: no engine waits for another one only for lack of a place.

    Scores take four banks, transposed probabilities two, products half of one; the last bank is for loads and the like.
    """

    def __init__(self, dtype: DType) -> None:
        self._scores = [psum((PARTITIONS, _SECTION)) for _ in range(2)]
        # Two sections in 16 bits, or one in 32.
        self._turned = [psum((PARTITIONS, _SECTION), dtype) for _ in range(4 // dtype.itemsize)]
        self._products = psum((PARTITIONS, 2, PARTITIONS))

    def scores(self, step: _Step) -> NkiTensor:
        return self._scores[step.number % 2][0 : step.queries.rows, 0 : step.size]

    def turned(self, step: _Step) -> NkiTensor:
        bank = self._turned[step.number % len(self._turned)]
        return bank[0 : min(step.size, PARTITIONS), 0 : -(-step.size // PARTITIONS) * step.queries.rows]

    def product(self, step: _Step) -> NkiTensor:
        return self._products[0 : step.queries.rows, step.number % 2, 0 : step.keys.values.shape[2]]


@dataclass
class _Keys:
    """Keys and values of one head on chip: keys^T [d, n], values [P, blocks, d]."""

    start: int
    transposed: NkiTensor
    values: NkiTensor


@dataclass
class _Seen:
    """What 128 queries know after the sections so far."""

    negative_maximum: NkiTensor  # of the scaled scores
    total: NkiTensor


@dataclass
class _Queries:
    """128 queries, from `row` of the head on."""

    group: _Group
    row: int
    rows: int
    seen: _Seen | None = None
    sum: NkiTensor | None = None  # probabilities @ values so far, not yet divided by the total


class _Group:
    """Up to 512 queries of one head: they are loaded and stored together."""

    def __init__(self, query: NkiTensor, result: NkiTensor, start: int, size: int) -> None:
        self.query, self.result = query, result
        self.start, self.size = start, size
        self._transposed: NkiTensor | None = None
        self._out: NkiTensor | None = None
        self._done = 0

    def transposed(self) -> NkiTensor:
        """Queries^T [d, size], loaded when they are first asked for."""
        if self._transposed is None:
            self._transposed = transposed(load_rows(self.query, self.start, self.size), self.size)
        return self._transposed

    def out(self, q: _Queries) -> NkiTensor:
        """Where the result of some of the queries goes."""
        if self._out is None:
            shape = (min(self.size, PARTITIONS), -(-self.size // PARTITIONS), self.result.shape[1])
            self._out = sbuf(shape, self.query.dtype)
        return self._out[0 : q.rows, (q.row - self.start) // PARTITIONS, :]

    def done(self, q: _Queries) -> None:
        """With the last ones of the group, all of it goes to HBM."""
        self._done += q.rows
        if self._done == self.size and self._out is not None:
            store_rows(self.result, self.start, self.size, self._out)


@dataclass
class _Step:
    """128 queries and one section of keys, and what has been computed for them."""

    queries: _Queries
    keys: _Keys
    start: int
    size: int
    number: int
    last: bool  # of the sections that the queries see
    scores: NkiTensor = field(init=False)
    probabilities: NkiTensor = field(init=False)
    bank: NkiTensor = field(init=False)  # probabilities^T, blocks of 128 keys side by side
    turned: NkiTensor = field(init=False)  # the same in SBUF
    product: NkiTensor = field(init=False)  # probabilities @ values
    correction: NkiTensor | None = None  # of what came before


@nki.jit
def flash_attention_forward(
    query: NkiTensor,
    key: NkiTensor,
    value: NkiTensor,
    scale: float | None = None,
    left: int = -1,
    right: int = -1,
    offset: int = 0,
) -> tuple[NkiTensor, ...]:
    """softmax(scale * query @ key^T) @ value, for each head.

    Args:
        query: [batch, heads, queries, d], d <= 128; fp32, bf16 or fp16.
        key: [batch, kv_heads, keys, d]; heads is a multiple of kv_heads (grouped queries).
        value: [batch, kv_heads, keys, e], e <= 128.
        scale: > 0; 1 / sqrt(d) by default.
        left, right: query i sees key j if -left <= j - (i + offset) <= right; -1 is no limit. Causal: right = 0. A
            sliding window of w keys: left = w - 1, right = 0.
        offset: keys before the first query, as in a cache.

    Returns:
        [batch, heads, queries, e] in the type of `query`, and the logarithm of the sum of the exponentials of the
        scaled scores, [batch, heads, queries] in fp32. Queries that see no key get 0 and -1e30 (about).

    Sequences of any length: what is no multiple of 128 makes the last tiles smaller. The heads are dealt out to the
    programs of a grid. Modelled on trn2 at d = 128 in bf16: bound by the Vector engine, which finds the maxima;
    the Tensor engine, at 60 % of its rate, spends two thirds of its cycles on the two products.
    """
    batch, heads, queries, depth = query.shape
    kv_heads, width = value.shape[1], value.shape[3]
    scale = depth**-0.5 if scale is None else scale
    out = nl.ndarray((batch, heads, queries, width), dtype=query.dtype, buffer=nl.shared_hbm)
    logarithms = nl.ndarray((batch, heads, queries), dtype=nl.float32, buffer=nl.shared_hbm)
    visibility = Visibility(left, right, offset)
    banks = _Banks(query.dtype)
    programs = nl.num_programs(0) if nl.program_ndim() else 1
    first = nl.program_id(0) if nl.program_ndim() else 0
    for pair in range(first, batch * kv_heads, programs):
        b, kv_head = divmod(pair, kv_heads)
        head = _Head(key[b, kv_head], value[b, kv_head], queries, banks, visibility, scale)
        shared = heads // kv_heads
        for h in range(kv_head * shared, (kv_head + 1) * shared):
            for start, size in spans(queries, _QUERIES):
                head.attend(query[b, h], out[b, h], logarithms[b, h], start, size)
    return out, logarithms


class _Head:
    """The keys and values of one head, and what is done with them."""

    def __init__(
        self, key: NkiTensor, value: NkiTensor, queries: int, banks: _Banks, visibility: Visibility, scale: float
    ) -> None:
        self.key, self.value = key, value
        self.banks = banks
        self.visibility = visibility
        self.scale = scale
        self.keys = key.shape[0]
        self.blind = visibility.blind(queries, self.keys)
        self.resident = _RESIDENT_BYTES // (2 * PARTITIONS * key.dtype.itemsize) * PARTITIONS
        self._only: _Keys | None = None

    def attend(self, query: NkiTensor, result: NkiTensor, logarithms: NkiTensor, start: int, size: int) -> None:
        """Queries start ... start + size of one head."""
        tiles = -(-size // PARTITIONS)
        # Negative maxima and totals of all queries, one column for each 128. What no query has must be defined.
        maxima = sbuf((PARTITIONS, tiles))
        totals = sbuf((PARTITIONS, tiles))
        nisa.memset(dst=maxima, value=0.0)
        nisa.memset(dst=totals, value=1.0)
        queries = []
        for group_start, group_size in spans(size, _GROUP):
            group = _Group(query, result, start + group_start, group_size)
            for row, rows in spans(group_size, PARTITIONS):
                queries.append(_Queries(group, start + group_start + row, rows))

        window: deque[_Step | None] = deque([None] * _STAGES, maxlen=_STAGES)
        for step in chain(self._steps(queries), [None] * (_STAGES - 1)):
            window.appendleft(step)
            new, scored, weighed, turned, multiplied = window
            if scored is not None:
                self._find_maximum(scored, start, maxima)
                self._exponentials(scored, start, totals)
            if weighed is not None:
                _turn(weighed, self.banks)
            if new is not None:
                self._score(new)
            if weighed is not None:
                _copy(weighed)
            if turned is not None:
                _multiply(turned, self.banks)
            if multiplied is not None:
                self._add(multiplied)
        for q in queries:
            if q.seen is None:
                _nothing_seen(q, start, maxima)
        _store_logarithms(logarithms, start, size, maxima, totals)

    def _steps(self, queries: list[_Queries]) -> Iterator[_Step]:
        numbers = count()
        ranges = [self.visibility.keys(q.row, q.rows, self.keys) for q in queries]
        for start, size in spans(self.keys, self.resident):
            cut = [(max(a, start), min(b, start + size)) for a, b in ranges]
            if not any(a < b for a, b in cut):
                continue
            keys = self._keys(start, size)
            for q, (_, whole_stop), (a, b) in zip(queries, ranges, cut, strict=True):
                if a >= b:
                    continue
                sections = -(-(b - a) // _SECTION)
                section = -(-(b - a) // (sections * PARTITIONS)) * PARTITIONS
                for section_start, section_size in spans(b - a, section):
                    at = a + section_start
                    yield _Step(q, keys, at, section_size, next(numbers), at + section_size == whole_stop)

    def _keys(self, start: int, size: int) -> _Keys:
        if self._only is not None:
            return self._only
        keys = _Keys(start, transposed(load_rows(self.key, start, size), size), load_rows(self.value, start, size))
        if size == self.keys:
            self._only = keys
        return keys

    def _score(self, step: _Step) -> None:
        q = step.queries
        step.scores = self.banks.scores(step)
        row = q.row - q.group.start
        key = step.start - step.keys.start
        for column, columns in spans(step.size, BANK_COLUMNS):
            nisa.nc_matmul(
                dst=step.scores[:, column : column + columns],
                stationary=q.group.transposed()[:, row : row + q.rows],
                moving=step.keys.transposed[:, key + column : key + column + columns],
                accumulate=False,
            )
        self.visibility.hide(step.scores, q.row, step.start)

    def _find_maximum(self, step: _Step, start: int, maxima: NkiTensor) -> None:
        """The maximum of what the queries have seen with this section, and how much less what came before counts."""
        q, before = step.queries, step.queries.seen
        highest = sbuf((q.rows, 1))
        nisa.tensor_reduce(dst=highest, op=nl.maximum, data=step.scores, axis=1, negate=True)
        maximum = _per_row(step, start, maxima, step.last)
        nisa.tensor_scalar(
            dst=maximum,
            data=highest,
            op0=nl.multiply,
            operand0=self.scale,
            op1=nl.minimum,
            operand1=-_LOWEST if before is None else before.negative_maximum,
        )
        if before is None:
            q.seen = _Seen(maximum, maximum)
        else:
            step.correction = sbuf((q.rows, 1))
            nisa.activation(dst=step.correction, op=nl.exp, data=before.negative_maximum, bias=maximum, scale=-1.0)
            before.negative_maximum = maximum

    def _exponentials(self, step: _Step, start: int, totals: NkiTensor) -> None:
        """Probabilities times the total, and the total."""
        q = step.queries
        assert q.seen is not None
        step.probabilities = sbuf((q.rows, step.size), q.group.query.dtype)
        total = _per_row(step, start, totals, step.last and step.correction is None)
        nisa.activation_reduce(
            dst=step.probabilities,
            op=nl.exp,
            data=step.scores,
            bias=q.seen.negative_maximum,
            scale=self.scale,
            reduce_op=nl.add,
            reduce_res=total,
        )
        if step.correction is not None:
            corrected = _per_row(step, start, totals, step.last)
            nisa.activation(dst=corrected, op=nl.copy, data=q.seen.total, scale=step.correction, bias=total)
            total = corrected
        q.seen.total = total

    def _add(self, step: _Step) -> None:
        """Adds the product to those of the sections before; after the last one, the result of 128 queries."""
        q = step.queries
        if step.correction is not None:
            assert q.sum is not None
            nisa.scalar_tensor_tensor(
                dst=q.sum, data=q.sum, op0=nl.multiply, operand0=step.correction, op1=nl.add, operand1=step.product
            )
        elif step.last:
            q.sum = step.product
        else:
            q.sum = sbuf(step.product.shape)
            nisa.tensor_copy(dst=q.sum, src=step.product, engine=nisa.engine.vector)
        if step.last:
            assert q.seen is not None
            share = sbuf((q.rows, 1))
            total = q.seen.total
            if self.blind:  # the total of a row that sees no key is 0, and so is its sum
                total = sbuf((q.rows, 1))
                nisa.tensor_scalar(dst=total, data=q.seen.total, op0=nl.maximum, operand0=_SMALLEST_TOTAL)
            nisa.reciprocal(dst=share, data=total)
            nisa.activation(dst=q.group.out(q), op=nl.copy, data=q.sum, scale=share)
            q.group.done(q)


def _per_row(step: _Step, start: int, shared: NkiTensor, last: bool) -> NkiTensor:
    """A column: that of the queries among all when what it gets is final, else one of its own."""
    q = step.queries
    tile = (q.row - start) // PARTITIONS
    return shared[0 : q.rows, tile : tile + 1] if last else sbuf((q.rows, 1))


def _turn(step: _Step, banks: _Banks) -> None:
    """Transposes the probabilities into PSUM."""
    rows = step.queries.rows
    step.bank = banks.turned(step)
    for key, keys in spans(step.size, PARTITIONS):
        at = key // PARTITIONS * rows
        nisa.nc_transpose(
            dst=step.bank[0:keys, at : at + rows],
            data=step.probabilities[:, key : key + keys],
            engine=nisa.engine.tensor,
        )


def _copy(step: _Step) -> None:
    """The transposed probabilities to SBUF: one half by Vector, one by Scalar."""
    rows = step.queries.rows
    step.turned = sbuf(step.bank.shape, step.bank.dtype)
    whole, rest = divmod(step.size, PARTITIONS)
    half = -(-whole // 2)
    for turn, (keys, first, last) in enumerate(
        ((PARTITIONS, 0, half), (PARTITIONS, half, whole), (rest, whole, whole + 1))
    ):
        if keys and first < last:
            part = (slice(0, keys), slice(first * rows, last * rows))
            drain(step.turned[part], step.bank[part], turn)


def _multiply(step: _Step, banks: _Banks) -> None:
    """probabilities @ values."""
    rows = step.queries.rows
    step.product = banks.product(step)
    first_block = (step.start - step.keys.start) // PARTITIONS
    for key, keys in spans(step.size, PARTITIONS):
        block = key // PARTITIONS
        nisa.nc_matmul(
            dst=step.product,
            stationary=step.turned[0:keys, block * rows : (block + 1) * rows],
            moving=step.keys.values[0:keys, first_block + block, :],
            accumulate=key > 0,
        )


def _nothing_seen(q: _Queries, start: int, maxima: NkiTensor) -> None:
    column = nl.ds((q.row - start) // PARTITIONS, 1)
    nisa.memset(dst=maxima[0 : q.rows, column], value=-_LOWEST)
    nisa.memset(dst=q.group.out(q), value=0.0)
    q.group.done(q)


def _store_logarithms(logarithms: NkiTensor, start: int, size: int, maxima: NkiTensor, totals: NkiTensor) -> None:
    """log(total) + maximum of all queries: transposed, so that HBM gets rows instead of single numbers."""
    tiles = maxima.shape[1]
    nisa.tensor_scalar(dst=totals, data=totals, op0=nl.maximum, operand0=_SMALLEST_TOTAL)
    nisa.activation(dst=totals, op=nl.log, data=totals)
    nisa.tensor_tensor(dst=totals, data1=totals, data2=maxima, op=nl.subtract)
    bank = psum((tiles, PARTITIONS))
    nisa.nc_transpose(dst=bank, data=totals, engine=nisa.engine.tensor)
    rows = sbuf((tiles, PARTITIONS))
    nisa.activation(dst=rows, op=nl.copy, data=bank)
    whole, rest = divmod(size, PARTITIONS)
    if whole:
        nisa.dma_copy(
            dst=logarithms[start : start + whole * PARTITIONS].reshape((whole, PARTITIONS)), src=rows[0:whole, :]
        )
    if rest:
        nisa.dma_copy(
            dst=logarithms[start + whole * PARTITIONS : start + size].reshape((1, rest)),
            src=rows[whole : whole + 1, 0:rest],
        )
