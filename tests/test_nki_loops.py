"""Loops of NKI kernels: what Python unrolls, and what the hardware runs."""

import pytest

import nki.isa as nisa
import nki.language as nl
from nki import tensor_errors as errors
from nki.loops import check_loops
from nki.trace import Trace, tracing


@pytest.fixture(autouse=True)
def trace():
    with tracing(Trace("trn2")) as current:
        yield current


def ops(trace):
    return [i.op for i in trace.instructions]


@pytest.mark.parametrize("function", [nl.affine_range, nl.sequential_range, nl.static_range])
def test_static_ranges_are_pythons(function):
    assert function(4) == range(4)
    assert function(1, 10, 3) == range(1, 10, 3)


def test_dynamic_range_traces_its_body_once(trace):
    stop = nisa.register_alloc(5)
    rounds = 0
    for i in nl.dynamic_range(1, stop, 2):
        rounds += 1
        index = i
        tile = nl.ndarray((4, 4), nl.float32)
        nisa.memset(tile, 1.0)
    assert rounds == 1
    assert ops(trace) == ["register_move", "loop_begin", "fill", "loop_end"]
    begin = trace.instructions[1]
    assert begin.out == (index,)
    assert begin.args == (1, stop)
    assert begin.attrs == (2,)
    assert tile.storage.loops == (begin.index,)
    assert trace.loops == ()
    check_loops(trace)


def test_dynamic_range_with_one_bound_begins_at_0(trace):
    for _ in nl.dynamic_range(3):
        pass
    assert trace.instructions[0].args == (0, 3)


def test_fori_loop(trace):
    seen = []
    nl.fori_loop(0, 8, seen.append, 4)
    assert ops(trace) == ["loop_begin", "loop_end"]
    assert trace.instructions[0].out == (seen[0],)
    assert trace.instructions[0].attrs == (4,)


def test_nested_loops_end_in_order(trace):
    def outer(i):
        nl.fori_loop(0, 2, lambda j: nisa.memset(nl.ndarray((4, 4), nl.float32), 0.0))

    nl.fori_loop(0, 3, outer)
    assert ops(trace) == ["loop_begin", "loop_begin", "fill", "loop_end", "loop_end"]
    assert trace.storages[-1].loops == (0, 1)
    check_loops(trace)


def test_while_loop_asks_a_register_of_its_own(trace):
    count = nl.ndarray((1, 1), nl.int32)
    start = nisa.register_alloc(3)

    def body(r):
        nisa.register_load(r, count)
        return r

    nl.while_loop(start, body)
    assert ops(trace)[1:] == [
        "register_move", "while_begin", "register_move", "register_load", "register_move", "while_end"
    ]  # fmt: skip
    condition = trace.instructions[2].args[0]
    assert condition is not start
    assert trace.instructions[-2].out == (condition,)


@pytest.mark.parametrize("step", [0, -1, 1.5, True])
def test_the_step_is_a_positive_integer(step):
    with pytest.raises(errors.LoopStepError):
        nl.dynamic_range(0, 4, step)
    with pytest.raises(AssertionError):
        nl.fori_loop(0, 4, lambda i: None, step)


def test_a_register_is_no_step():
    with pytest.raises(errors.LoopStepError):
        nl.dynamic_range(0, 4, nisa.register_alloc(1))


def test_bounds_have_32_bits():
    wide = nisa.scalar_load(nl.ndarray((1, 1), nl.int64, buffer=nl.hbm))
    for bound in (wide, 2.0, "4", None):
        with pytest.raises(errors.LoopBoundError):
            nl.fori_loop(0, bound, lambda i: None)


def test_the_index_cannot_be_written():
    for i in nl.dynamic_range(4):
        with pytest.raises(AssertionError):
            nisa.register_move(i, 0)


def test_bodies_return_what_they_should():
    with pytest.raises(errors.LoopBodyError):
        nl.fori_loop(0, 4, lambda i: 1)
    with pytest.raises(errors.LoopBodyError):
        nl.while_loop(nisa.register_alloc(1), lambda r: None)


def test_break_is_found(trace):
    for _ in nl.dynamic_range(4):
        break
    with pytest.raises(errors.LoopLeftError) as caught:
        check_loops(trace)
    assert caught.value.line[0] == __file__


def test_a_loop_left_inside_another_is_found():
    with pytest.raises(errors.LoopLeftError):
        for _ in nl.dynamic_range(4):
            for _ in nl.dynamic_range(4):
                break


def test_tensors_stay_in_their_loop(trace):
    for _ in nl.dynamic_range(4):
        tile = nl.ndarray((4, 4), nl.float32)
        nisa.memset(tile, 1.0)
    nisa.tensor_copy(nl.ndarray((4, 4), nl.float32), tile)
    with pytest.raises(errors.EscapedTensorError):
        check_loops(trace)


def test_tensors_do_not_pass_to_the_next_loop(trace):
    for _ in nl.dynamic_range(4):
        tile = nl.ndarray((4, 4), nl.float32)
    for _ in nl.dynamic_range(4):
        nisa.memset(tile, 1.0)
    with pytest.raises(errors.EscapedTensorError):
        check_loops(trace)


def test_no_reorder_orders_what_is_inside(trace):
    first, second = (nl.ndarray((4, 4), nl.float32) for _ in range(2))
    nisa.memset(first, 1.0)
    with nl.no_reorder():
        a = nisa.memset(first, 2.0)
        b = nisa.memset(second, 2.0)
    c = nisa.memset(second, 3.0)
    assert b.after == (a,)
    assert c.after == ()
    assert trace.ordered == 0


def test_no_dynamic_loops_where_order_is_pinned():
    with nl.no_reorder():
        for loop in (lambda: next(nl.dynamic_range(4)), lambda: nl.fori_loop(0, 4, lambda i: None)):
            with pytest.raises(errors.LoopInNoReorderError):
                loop()
