"""Collectives of NKI: what they check, and the instruction that they make."""

import pytest

import nki.collectives as ncc
import nki.language as nl
from nki import tensor_errors as errors
from nki.trace import Trace, tracing


@pytest.fixture(autouse=True)
def trace():
    with tracing(Trace("trn2", rank=2, ranks=4)) as current:
        yield current


ALL = ncc.ReplicaGroup([[0, 1, 2, 3]])
PAIRS = ncc.ReplicaGroup([[0, 1], [3, 2]])


def hbm(*shape, dtype=nl.float32):
    return nl.ndarray(shape, dtype, buffer=nl.shared_hbm)


def sbuf(*shape, dtype=nl.float32):
    return nl.ndarray(shape, dtype)


def last(trace):
    instruction = trace.instructions[-1]
    assert (instruction.op, instruction.engine) == ("collective", "dma")
    return instruction


def test_all_reduce(trace):
    a, b, c, d = (hbm(4, 8) for _ in range(4))
    ncc.all_reduce([a, b], [c, d], PAIRS, op=nl.add, priority=1, name="sum")
    made = last(trace)
    assert made.attrs == ("all_reduce", ((0, 1), (3, 2)), "add", 0, ())
    assert (made.out, made.args) == ((c, d), (a, b))
    assert (made.name, made.hints) == ("sum", {"priority": 1})


def test_all_gather_on_chip_along_the_free_dimension(trace):
    ncc.all_gather([sbuf(16, 8)], [sbuf(16, 32)], ALL, collective_dim=1)
    assert last(trace).attrs == ("all_gather", ((0, 1, 2, 3),), None, 1, ())


def test_reduce_scatter_and_all_to_all(trace):
    ncc.reduce_scatter([hbm(8, 4)], [hbm(2, 4)], ALL, collective_dim=0, op=nl.maximum)
    assert last(trace).attrs[:4] == ("reduce_scatter", ((0, 1, 2, 3),), "maximum", 0)
    ncc.all_to_all([hbm(8, 4)], [hbm(8, 4)], ALL, collective_dim=0)
    assert last(trace).attrs[:3] == ("all_to_all", ((0, 1, 2, 3),), None)


def test_variable_lengths_write_what_was_received(trace):
    source, target, lengths = hbm(100), hbm(400), hbm(3, 4, dtype=nl.uint32)
    ncc.all_gather_v([source], [target], ALL, lengths)
    assert (last(trace).out, last(trace).args) == ((target, lengths), (source, lengths))
    ncc.all_to_all_v([source], [target], ALL, lengths, recv_counts_known=True)
    assert last(trace).out == (target,)
    places = sbuf(1, 4, 4, dtype=nl.uint32)
    ncc.all_to_all_v([source], [target], ALL, places, has_rdispls=True)
    for wrong in (hbm(4, 4, dtype=nl.uint32), hbm(3, 4), None):
        with pytest.raises(errors.CollectiveOperandError, match="metadata"):
            ncc.all_gather_v([source], [target], ALL, wrong)


def test_permute(trace):
    ncc.collective_permute([hbm(4)], [hbm(4)], [(0, 1), (1, 0)])
    assert last(trace).attrs[:2] == ("collective_permute", ((0, 1), (1, 0)))
    for pairs in ([(0, 1), (2, 1)], [(0, 4)]):
        with pytest.raises(errors.ReplicaGroupError):
            ncc.collective_permute([hbm(4)], [hbm(4)], pairs)


def test_rings(trace):
    a, b, c, d, e, f = (sbuf(4, 4) for _ in range(6))
    ncc.collective_permute_implicit([[a], [b]], [[c], [d]], ALL, channel_ids=[0, 1])
    assert last(trace).attrs == ("permute_implicit", ((0, 1, 2, 3),), None, 0, (0, 1))
    assert (last(trace).out, last(trace).args) == ((c, d), (a, b))
    ncc.collective_permute_implicit_reduce([[a], [b]], [[c], [d]], [[e], [f]], ALL, nl.add, channel_ids=[0, 1])
    assert last(trace).attrs == ("permute_implicit_reduce", ((0, 1, 2, 3),), "add", 0, (0, 1))
    assert last(trace).args == (a, b, c, d)


def test_channels(trace):
    tensors = [[sbuf(4, 4)] for _ in range(5)]
    for group, count in ((ALL, 5), (PAIRS, 3)):
        with pytest.raises(errors.CollectiveOperandError, match="at most"):
            ncc.collective_permute_implicit(tensors[:count], tensors[:count], group, channel_ids=list(range(count)))
    with pytest.raises(errors.CollectiveOperandError):
        ncc.collective_permute_implicit(tensors[:2], tensors[:2], ALL, channel_ids=[0, 2])
    with pytest.raises(errors.CollectiveOperandError):
        ncc.collective_permute_implicit([tensors[0] * 2], [tensors[1] * 2], ALL)


def test_rings_go_backwards_from_the_own_rank(trace):
    def rank_in(iteration, group):
        ncc.collective_permute_implicit_current_processing_rank_id(iteration, group)
        return trace.instructions[-1].args[0]

    assert [rank_in(i, ALL) for i in range(5)] == [2, 1, 0, 3, 2]
    assert [rank_in(i, PAIRS) for i in range(3)] == [2, 3, 2]


def test_rank_id_is_a_register(trace):
    register = ncc.rank_id()
    assert trace.instructions[-1].out == (register,)
    assert trace.instructions[-1].args == (2,)


@pytest.mark.parametrize("groups", [[], [[]], [[0, 1], [1, 2]], [[0, -1]], 3, [[0, "a"], 2]])
def test_groups_are_disjoint_lists(groups):
    with pytest.raises((errors.ReplicaGroupError, ValueError)):
        ncc.ReplicaGroup(groups)


@pytest.mark.parametrize("groups", [[[0, 1]], [[2, 4]]])
def test_a_rank_belongs_to_a_group(groups):
    with pytest.raises(errors.ReplicaGroupError):
        ncc.all_reduce([hbm(4)], [hbm(4)], ncc.ReplicaGroup(groups), nl.add)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: ncc.all_reduce([hbm(4)], [hbm(5)], ALL, nl.add), "shape"),
        (lambda: ncc.all_reduce([hbm(4)], [hbm(4, dtype=nl.int32)], ALL, nl.add), "type"),
        (lambda: ncc.all_reduce([hbm(4)], [hbm(4)], ALL, nl.multiply), "op=multiply"),
        (lambda: ncc.all_reduce(hbm(4), hbm(4), ALL, nl.add), "list"),
        (lambda: ncc.all_reduce([hbm(4)], [], ALL, nl.add), "list"),
        (lambda: ncc.all_reduce([hbm(4, 4)], [sbuf(4, 4)], ALL, nl.add), "HBM"),
        (lambda: ncc.all_reduce([sbuf(4, 4)] * 2, [sbuf(4, 4)] * 2, ALL, nl.add), "takes one"),
        (lambda: ncc.all_gather([hbm(4, 4)], [hbm(4, 16)], ALL, 1), "collective_dim"),
        (lambda: ncc.all_gather([hbm(4, 4)], [hbm(8, 4)], ALL, 0), "factor of 4"),
        (lambda: ncc.reduce_scatter([hbm(4, 4)], [hbm(4, 4)], ALL, 0, nl.add), "factor of 4"),
        (lambda: ncc.all_to_all([sbuf(4, 4)], [sbuf(4, 4)], ALL, 0), "HBM"),
        (lambda: ncc.all_to_all([hbm(6, 4)], [hbm(6, 4)], ALL, 0), "divide"),
        (lambda: ncc.all_reduce([hbm(4)], [hbm(4)], ALL, nl.add, priority=4), "priority"),
    ],
)
def test_operands_are_checked(call, match):
    with pytest.raises(errors.CollectiveOperandError, match=match):
        call()


def test_collectives_in_two_steps(trace):
    metadata = nl.ndarray((3, 4), nl.uint32, buffer=nl.shared_hbm)
    source, target = hbm(16), hbm(16)
    prepared = ncc.all_to_all_v_prepare([source], [target], ALL, metadata)
    with pytest.raises(errors.PreparedCollectiveError, match="not triggered"):
        ncc.all_gather_v_prepare([source], [target], ALL, metadata)
    with pytest.raises(errors.PreparedCollectiveError, match="all_gather_v_trigger takes"):
        ncc.all_gather_v_trigger(prepared)
    ncc.all_to_all_v_trigger(prepared)
    made = [i for i in trace.instructions if i.op == "collective"]
    assert [i.attrs[0] for i in made] == ["all_to_all_v"]
    with pytest.raises(errors.PreparedCollectiveError):
        ncc.all_to_all_v_trigger(prepared)
