"""Views of NKI tensors: which elements they see, against NumPy on an array of element numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nki import tensor_errors as errors
from nki.isa.registers import NkiScalar, register_alloc
from nki.memory import MemoryRegion, allocate
from nki.tensor import NkiTensor
from nki.trace import Trace, tracing

HBM, SBUF, PSUM = MemoryRegion.shared_hbm, MemoryRegion.sbuf, MemoryRegion.psum


@pytest.fixture(autouse=True)
def trace():
    with tracing(Trace("trn2")) as current:
        yield current


def make(region, *shape, dtype="float32"):
    return allocate(region, shape, dtype)


def numbers(view: NkiTensor) -> np.ndarray:
    """The element numbers that a view sees, by its strides."""
    storage = view.storage
    count = int(np.prod(storage.shape)) * storage.dtype.itemsize // view.dtype.itemsize
    memory = np.arange(count, dtype=np.int64)
    grids = np.indices(view.shape)
    places = view.offset + sum(g * s for g, s in zip(grids, view.strides, strict=True))
    return memory[places]


def array(tensor: NkiTensor) -> np.ndarray:
    return np.arange(tensor.size).reshape(tensor.shape)


def assert_same(view: NkiTensor, expected: np.ndarray) -> None:
    assert view.shape == expected.shape
    np.testing.assert_array_equal(numbers(view), expected)


class TestIndexing:
    @pytest.mark.parametrize(
        "key",
        [
            np.s_[1:3, 0:2, 2:5],
            np.s_[0],
            np.s_[-1],
            np.s_[1, 2],
            np.s_[:, 1],
            np.s_[..., 3],
            np.s_[1, ..., 2:4],
            np.s_[::2, :, ::3],
            np.s_[-2:, -1, :-1],
            np.s_[...],
            np.s_[:, :, 2],
            np.s_[1:2],
        ],
    )
    def test_hbm_follows_numpy(self, key):
        tensor = make(HBM, 4, 3, 6)
        assert_same(tensor[key], array(tensor)[key])

    def test_hbm_keeps_one_dimension(self):
        tensor = make(HBM, 4, 3)
        assert_same(tensor[2, 1], array(tensor)[2, 1:2])
        assert make(HBM, 5)[3].shape == (1,)

    def test_on_chip_integer_keeps_the_partition(self):
        tensor = make(SBUF, 64, 8, 16)
        assert_same(tensor[3], array(tensor)[3:4])
        assert_same(tensor[3, :, 2], array(tensor)[3:4, :, 2])
        assert_same(tensor[0, ..., :], array(tensor)[0:1])

    def test_on_chip_keeps_two_dimensions(self):
        tensor = make(SBUF, 64, 8, 16)
        assert_same(tensor[:, 0], array(tensor)[:, 0])
        assert_same(tensor[:, 2, 10], array(tensor)[:, 2, 10:11])
        assert_same(tensor[5, 2, 10], array(tensor)[5:6, 2, 10:11])
        assert_same(make(SBUF, 64, 8)[:, 3], np.arange(512).reshape(64, 8)[:, 3:4])

    def test_numpy_integers_are_indices(self):
        tensor = make(HBM, 4, 6)
        assert_same(tensor[np.int64(2), np.int32(1) : np.int64(4)], array(tensor)[2, 1:4])

    def test_a_chain_of_indices_composes(self):
        tensor = make(SBUF, 128, 4, 16)
        view = tensor[0:64, :, :].permute((0, 2, 1))[:, 0, :]
        assert_same(view, array(tensor)[0:64].transpose(0, 2, 1)[:, 0, :])

    @pytest.mark.parametrize(
        ("key", "dim"), [((0, 6), 1), ((4,), 0), ((slice(0, 5),), 0), ((-5,), 0), ((slice(None), slice(3, 3)), 1)]
    )
    def test_outside_names_tensor_dimension_and_size(self, key, dim):
        tensor = allocate(HBM, (4, 6), "bfloat16", "weights")
        with pytest.raises(errors.IndexOutOfBoundsError, match="weights") as caught:
            tensor[key]
        assert caught.value.facts["dim"] == dim
        assert caught.value.facts["size"] == tensor.shape[dim]
        assert isinstance(caught.value, (IndexError, AssertionError))
        assert caught.value.line[0] == __file__

    def test_more_indices_than_dimensions(self):
        with pytest.raises(errors.TooManyIndicesError):
            make(HBM, 4, 6)[0, 0, 0]

    @pytest.mark.parametrize("key", [None, 1.5, "a", True, [0, 1], slice(0.0, 2.0)])
    def test_no_indices(self, key):
        with pytest.raises(errors.IndexKindError):
            make(HBM, 4, 6)[key]

    def test_no_steps_over_partitions(self):
        with pytest.raises(errors.PartitionViewError):
            make(SBUF, 64, 8)[::2, :]

    def test_iteration_ends(self):
        assert [row.shape for row in make(HBM, 3, 5)] == [(5,)] * 3


class TestRunTimeIndices:
    def test_ds_of_an_integer_is_a_range(self):
        from nki.indexing import ds

        tensor = make(HBM, 8, 6)
        assert_same(tensor[ds(2, 3), ds(np.int64(1), 2)], array(tensor)[2:5, 1:3])

    def test_ds_of_a_register(self):
        from nki.indexing import ds

        tensor, register = make(HBM, 8, 6), register_alloc(0)
        view = tensor[ds(register, 3), 1:4]
        assert view.shape == (3, 3)
        assert view.dynamic.kind == "scalar"
        assert view.dynamic.index is register
        assert (view.dynamic.step, view.dynamic.limit, view.offset) == (6, 6, 1)

    def test_a_register_selects(self):
        tensor, register = make(HBM, 8, 6, 5), register_alloc(0)
        view = tensor.select(1, register)
        assert view.shape == (8, 5)
        assert (view.dynamic.step, view.dynamic.limit) == (5, 6)
        assert tensor[:, register].dynamic == view.dynamic

    def test_a_tile_of_one_element_selects(self):
        index = make(SBUF, 1, 1, dtype="int32")
        view = make(HBM, 4, 128, 8).select(0, index)
        assert view.shape == (128, 8)
        assert view.dynamic.index is index
        assert view.is_indirect()
        assert view[0:64, 2].shape == (64,)

    def test_rows_by_a_list(self):
        index = make(SBUF, 32, 1, dtype="int32")
        tensor = make(HBM, 64, 16, 8)
        view = tensor.vector_select(0, index)
        assert view.shape == (32, 16, 8)
        assert (view.dynamic.kind, view.dynamic.step, view.dynamic.limit) == ("vector", 128, 64)
        assert view[:, 3, 2:4].offset == 26
        with pytest.raises(errors.DynamicViewError):
            view[0:16]
        with pytest.raises(errors.PartitionViewError):
            view.permute((1, 0, 2))

    def test_one_run_time_index_per_view(self):
        register = register_alloc(0)
        view = make(HBM, 8, 6, 5).select(0, register)
        for again in (lambda: view.select(0, register), lambda: view.ap([[1, 5]]), lambda: view.view("int32")):
            with pytest.raises(errors.DynamicViewError):
                again()

    def test_the_partition_is_known(self):
        register = register_alloc(0)
        with pytest.raises(errors.PartitionViewError):
            make(SBUF, 64, 8).select(0, register)
        with pytest.raises(errors.PartitionViewError):
            make(SBUF, 64, 8).ap([[8, 64], [1, 4]], scalar_offset=register)

    def test_offsets_on_chip_have_32_bits(self, trace):
        scalar = NkiScalar(trace, "int64")
        assert make(HBM, 8, 6).select(0, scalar).dynamic.index is scalar
        with pytest.raises(errors.IndirectionError, match="64"):
            make(SBUF, 8, 6).select(1, scalar)

    def test_an_index_is_an_integer(self):
        with pytest.raises(errors.IndirectionError, match="float32"):
            make(HBM, 8, 6).vector_select(0, make(SBUF, 4, 1))

    def test_indirection_is_of_trn3(self):
        index = make(SBUF, 64, 4, dtype="uint16")
        with pytest.raises(errors.IndirectionError, match="trn3"):
            make(SBUF, 64, 100).indirect(index)
        with tracing(Trace("trn3")):
            view = make(SBUF, 64, 100).indirect(make(SBUF, 64, 4, dtype="uint16"))
            assert view.shape == (64, 64)
            assert (view.dynamic.kind, view.dynamic.group, view.dynamic.limit) == ("indirect", 16, 100)
            assert make(SBUF, 64, 100).indirect(make(SBUF, 64, 4, dtype="uint16"), 10).shape == (64, 10)


class TestShapes:
    def test_permute(self):
        tensor = make(HBM, 2, 3, 4)
        assert_same(tensor.permute((2, 0, 1)), array(tensor).transpose(2, 0, 1))
        with pytest.raises(errors.ReshapeError):
            tensor.permute((0, 0, 1))
        with pytest.raises(errors.PartitionViewError):
            make(SBUF, 2, 3).permute((1, 0))

    def test_broadcast(self):
        tensor = make(SBUF, 8, 1, 4)
        assert_same(tensor.broadcast(1, 5), np.broadcast_to(array(tensor), (8, 5, 4)))
        with pytest.raises(errors.BroadcastError):
            tensor.broadcast(2, 5)
        with pytest.raises(errors.PartitionViewError):
            make(SBUF, 1, 4).broadcast(0, 5)

    def test_expand_and_squeeze(self):
        tensor = make(SBUF, 8, 4)
        assert tensor.expand_dim(1).shape == (8, 1, 4)
        assert tensor.expand_dim(2).shape == (8, 4, 1) == tensor.expand_dim(-1).shape
        assert_same(tensor.expand_dim(1).squeeze_dim(1), array(tensor))
        for dim in (0, 1):
            with pytest.raises((errors.PartitionViewError, errors.SqueezeError)):
                make(SBUF, 1, 1).squeeze_dim(dim)
        with pytest.raises(errors.SqueezeError):
            make(HBM, 3, 1).squeeze_dim(0)

    def test_reshape_dim_and_flatten(self):
        tensor = make(SBUF, 8, 24)
        assert_same(tensor.reshape_dim(1, (4, -1)), array(tensor).reshape(8, 4, 6))
        assert_same(tensor.reshape_dim(1, (4, 6)).flatten_dims(1, 2), array(tensor))
        assert tensor.reshape_dim(0, (8,)).shape == (8, 24)
        with pytest.raises(errors.PartitionViewError):
            tensor.reshape_dim(0, (2, 4))
        with pytest.raises(errors.ReshapeError):
            tensor.reshape_dim(1, (5, 5))
        with pytest.raises(errors.NotContiguousError):
            make(HBM, 4, 6)[:, 0:3].flatten_dims(0, 1)

    def test_reshape(self):
        tensor = make(HBM, 4, 6)
        assert_same(tensor.reshape((3, 8)), array(tensor).reshape(3, 8))
        assert_same(tensor.reshape((2, -1, 3)), array(tensor).reshape(2, 4, 3))
        sliced = tensor[:, 0:3]
        assert_same(sliced.reshape((2, 2, 3)), array(tensor)[:, 0:3].reshape(2, 2, 3))
        with pytest.raises(errors.NotContiguousError):
            sliced.reshape((12,))
        with pytest.raises(errors.ReshapeError):
            tensor.reshape((5, 5))
        with pytest.raises(errors.PartitionViewError):
            make(SBUF, 4, 6).reshape((2, 12))
        with pytest.raises(errors.ReshapeError):
            make(SBUF, 1, 1).reshape((1,))

    @given(st.data())
    def test_reshape_agrees_with_numpy(self, data):
        with tracing(Trace("trn2")):
            shape = data.draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4))
            tensor = make(HBM, *shape)
            order = data.draw(st.permutations(range(len(shape))))
            keys = tuple(slice(data.draw(st.integers(0, n - 1)), n) for n in tensor.permute(order).shape)
            view = tensor.permute(order)[keys]
            expected = array(tensor).transpose(order)[keys]
            count = expected.size
            divisors = [d for d in range(1, count + 1) if count % d == 0]
            first = data.draw(st.sampled_from(divisors))
            target = (first, count // first)
            without_copy = expected.view()
            try:
                without_copy.shape = target
            except AttributeError:
                with pytest.raises(errors.NotContiguousError):
                    view.reshape(target)
            else:
                assert_same(view.reshape(target), without_copy)

    def test_rearrange(self):
        tensor = make(SBUF, 8, 24)
        expected = array(tensor).reshape(8, 4, 6)
        assert_same(tensor.rearrange(("b", ("h", "w")), ("b", "w", "h"), {"h": 4}), expected.transpose(0, 2, 1))
        hbm = make(HBM, 6, 4)
        assert_same(
            hbm.rearrange((("a", "b"), "c"), ("b", "a", "c"), {"a": 2}), array(hbm).reshape(2, 3, 4).transpose(1, 0, 2)
        )
        assert_same(make(HBM, 2, 3, 4).rearrange(("a", "b", "c"), (("a", "b"), "c")), np.arange(24).reshape(6, 4))
        for source, target in [(("b",), ("b",)), (("b", "c"), ("b", "d")), (("b", ("c", "d")), ("b", "c", "d"))]:
            with pytest.raises(errors.RearrangePatternError):
                tensor.rearrange(source, target)
        with pytest.raises(errors.PartitionViewError):
            tensor.rearrange(("a", "b"), ("b", "a"))
        with pytest.raises(errors.NotContiguousError):
            hbm.rearrange(("a", "b"), (("b", "a"),))

    def test_no_access_pattern_has_six_dimensions_on_chip(self):
        with pytest.raises(errors.TooManyDimensionsError):
            make(SBUF, 4, 32).reshape((4, 2, 2, 2, 2, 2))

    def test_is_contiguous(self):
        tensor = make(SBUF, 8, 4, 6)
        assert tensor.is_contiguous()
        assert tensor[0:4].is_contiguous()
        assert tensor[:, 1, :].is_contiguous()
        assert not tensor[:, :, 0:3].is_contiguous()
        assert not tensor.permute((0, 2, 1)).is_contiguous()
        assert not make(HBM, 8, 4)[:, 0:2].is_contiguous()

    def test_dimensions_that_do_not_exist(self):
        with pytest.raises(errors.DimensionError):
            make(HBM, 8, 4).slice(2, 0, 1)


class TestTypes:
    def test_larger_and_smaller_elements(self):
        tensor = make(SBUF, 8, 16)
        small = tensor[2:4, 4:8].view("uint8")
        assert small.shape == (2, 16)
        assert (small.strides, small.offset) == ((64, 1), 2 * 64 + 16)
        assert small.view("float32").strides == tensor.strides
        assert tensor.reinterpret_cast("int32").dtype == "int32"

    def test_bytes_that_do_not_divide(self):
        for wrong in (make(SBUF, 8, 6, dtype="uint8"), make(SBUF, 8, 16, dtype="uint8")[:, 0:6]):
            with pytest.raises(errors.ReinterpretError):
                wrong.view("float32")
        with pytest.raises(errors.ReinterpretError):
            make(SBUF, 8, 16)[:, ::2].view("bfloat16")


class TestAccessPatterns:
    def test_it_is_as_strided_on_the_memory(self):
        tensor = make(HBM, 4, 6)
        memory = np.arange(24)
        expected = np.lib.stride_tricks.as_strided(memory[5:], (3, 2, 4), (8 * 4, 8 * 3, 8 * 1))
        assert_same(tensor.ap([[4, 3], [3, 2], [1, 4]], offset=5), expected)

    def test_it_ignores_the_view_but_for_its_offset(self):
        tensor = make(SBUF, 128, 256)
        inner = tensor.ap([[256, 128], [2, 120]], offset=7)
        assert inner.ap([[256, 128], [1, 64]]).offset == 7
        assert_same(inner.ap([(256, 128), (1, 64)], offset=0), array(tensor)[:, 0:64])
        view = tensor[:, 8:24]
        assert view.get_pattern() == [[256, 128], [1, 16]]
        assert_same(tensor.ap(view.get_pattern(), offset=view.offset), array(tensor)[:, 8:24])

    def test_another_type_counts_in_its_elements(self):
        tensor = make(SBUF, 128, 256, dtype="int32")
        view = tensor.ap([[512, 128], [1, 512]], offset=0, dtype="bfloat16")
        assert (view.shape, view.strides, view.dtype) == ((128, 512), (512, 1), "bfloat16")
        assert tensor[:, 4:8].ap([[512, 128], [1, 8]], dtype="bfloat16").offset == 8

    def test_the_partition_has_its_stride(self):
        with pytest.raises(errors.AccessPatternError, match="32"):
            make(SBUF, 16, 32).ap([[64, 8], [1, 32]])
        assert make(SBUF, 16, 32).ap([[1, 1], [1, 32]], offset=64).strides == (32, 1)

    @pytest.mark.parametrize(
        ("pattern", "offset"),
        [([[32, 17], [1, 32]], 0), ([[32, 16], [1, 33]], 0), ([[32, 16], [1, 32]], 1), ([[32, 16], [-1, 2]], 0)],
    )
    def test_it_stays_inside(self, pattern, offset):
        with pytest.raises(errors.AccessPatternOutOfBoundsError):
            make(SBUF, 16, 32).ap(pattern, offset=offset)

    def test_run_time_offsets_count_rows_of_the_tensor(self):
        register = register_alloc(0)
        view = make(HBM, 512, 512).ap([[512, 128], [1, 256]], offset=0, scalar_offset=register, indirect_dim=0)
        assert view.shape == (128, 256)
        # The last start at which 128 rows fit.
        assert (view.dynamic.step, view.dynamic.limit) == (512, 512 - 128 + 1)
        columns = make(SBUF, 8, 4, 16).ap([[64, 8], [1, 2]], scalar_offset=register, indirect_dim=1)
        assert columns.dynamic.step == 16
        index = make(SBUF, 64, 1, dtype="int32")
        rows = make(HBM, 128, 512).ap([[512, 64], [1, 512]], 0, vector_offset=index)
        assert (rows.shape, rows.dynamic.step, rows.dynamic.limit) == ((64, 512), 512, 128)
        with pytest.raises(errors.AccessPatternError):
            make(HBM, 8, 8).ap([[8, 8], [1, 8]], scalar_offset=register, vector_offset=index)

    @pytest.mark.parametrize("pattern", [[1, 2], [[1]], [["a", 1]], [[1.5, 2]]])
    def test_no_patterns(self, pattern):
        with pytest.raises(errors.AccessPatternError):
            make(HBM, 8, 8).ap(pattern)


class TestDialect:
    def test_operators_name_the_function(self):
        tensor = make(SBUF, 8, 8)
        for wrong, name in [
            (lambda: tensor + 1, "add"),
            (lambda: 2 * tensor, "multiply"),
            (lambda: -tensor, "negative"),
        ]:
            with pytest.raises(errors.OperatorNotInDialectError, match=f"nl.{name}"):
                wrong()
        with pytest.raises(TypeError):
            tensor[:, 0:4] += tensor[:, 4:8]

    def test_attributes(self):
        tensor = allocate(PSUM, (8, 4, 2), "float32", "sums")
        assert (tensor.ndim, tensor.size, tensor.name, tensor.buffer) == (3, 64, "sums", PSUM)
        assert (tensor.shape, tensor.strides, tensor.offset) == ((8, 4, 2), (8, 2, 1), 0)
        assert "sums" in repr(tensor)
        assert "float32[8, 4, 2]" in repr(tensor)

    def test_assignment_copies_by_the_memories(self, trace):
        tile, other, hbm = make(SBUF, 8, 8), make(SBUF, 8, 4), make(HBM, 8, 4)
        tile[:, 0:4] = other
        tile[:, 4:8] = hbm
        hbm[...] = other
        tile[:, 0:2] = 1.0
        assert [i.op for i in trace.instructions] == ["copy", "dma_copy", "dma_copy", "fill"]
        with pytest.raises(errors.AssignmentError):
            tile[:, 0:2] = "text"
        with pytest.raises(errors.AssignmentError):
            hbm[...] = 1.0
