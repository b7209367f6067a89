"""nki.language: names, allocation, result types and the instructions that functions stand for."""

import ast
import pickle
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest

import nki.dtype
import nki.isa as nisa
import nki.language as nl
import nki.typing as nt
from nki import errors as nki_errors
from nki import tensor_errors as errors
from nki.language.promotion import promote
from nki.trace import Trace, tracing

# Names of nki.language in SDK 2.32 and 2.33, from its public documentation.
NAMES = """
bool_ int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 bfloat16 tfloat32 float8_e4m3 float8_e4m3fn
float8_e5m2 float8_e5m2_x4 float8_e4m3fn_x4 float8_e8m0fnu float4_e2m1fn_x4 sbuf psum hbm private_hbm shared_hbm
tile_size average prelu bypass MemoryRegion NKIObject NkiTensor is_hbm is_on_chip is_psum is_sbuf add subtract
multiply divide maximum minimum abs_max abs_min abs square power equal not_equal less less_equal greater greater_equal
bitwise_and bitwise_or bitwise_xor invert left_shift right_shift logical_and logical_or logical_xor logical_not exp
log sqrt rsqrt tanh sigmoid relu gelu gelu_apprx_sigmoid gelu_apprx_tanh gelu_dx gelu_apprx_sigmoid_dx silu silu_dx
softplus mish erf erf_dx reciprocal copy sin cos tan arctan ceil floor trunc negative sign fmod mod sum max min mean
prod var all softmax rms_norm where dropout ones full zeros_like empty_like random_seed expand_dims broadcast_to
transpose matmul no_reorder load_transpose2d gather_flattened ds affine_range sequential_range static_range
dynamic_range fori_loop while_loop ndarray zeros load store program_id num_programs program_ndim shared_constant
shared_identity_matrix device_print rand tiles blocks alloc_tiles alloc_blocks NkiGrid NkiTileGrid NkiBlockGrid range
"""
PUBLIC = NAMES.split()


@pytest.fixture(autouse=True)
def trace():
    with tracing(Trace("trn2")) as current:
        yield current


def tile(*shape, dtype=nl.float32):
    return nl.ndarray(shape, dtype)


def ops(trace):
    return [i.op for i in trace.instructions]


class TestNames:
    @pytest.mark.parametrize("name", PUBLIC)
    def test_exists_under_its_name(self, name):
        value = getattr(nl, name)
        if callable(value) and not isinstance(value, type) and name not in ("range", "prelu", "bypass", "average"):
            assert value.__name__ == name
            assert value.__doc__

    def test_types_are_strings(self):
        assert nl.bfloat16 == "bfloat16"
        assert type(str(nl.bfloat16)) is str
        assert nki.dtype.bfloat16 is nl.bfloat16
        assert pickle.loads(pickle.dumps(nl.float8_e4m3)) is nl.float8_e4m3

    def test_memories(self):
        assert nl.hbm is nl.private_hbm
        assert [r.value for r in nl.MemoryRegion] == ["sbuf", "psum", "private_hbm", "shared_hbm"]
        assert nl.is_hbm(nl.hbm)
        assert nl.is_hbm(nl.shared_hbm)
        assert not nl.is_hbm(nl.sbuf)
        assert nl.is_on_chip(nl.psum)
        assert nl.is_psum(nl.psum)
        assert nl.is_sbuf(nl.sbuf)
        assert not nl.is_sbuf("sbuf")

    def test_annotations(self):
        assert nt.tensor[128, 512].shape == (128, 512)
        assert nt.mutable_tensor.mutable
        assert nt.mutable_tensor[4].shape == (4,)
        assert nt.tensor | None is nt.tensor

    def test_tile_sizes(self):
        sizes = nl.tile_size
        assert (sizes.pmax, sizes.psum_fmax, sizes.psum_bank_fmax_bytes, sizes.psum_num_banks) == (128, 512, 2048, 8)
        assert (sizes.gemm_stationary_fmax, sizes.gemm_moving_fmax, sizes.bn_stats_fmax) == (128, 512, 512)
        for target, kib in (("trn1", 192), ("trn2", 192), ("trn3", 256)):
            with tracing(Trace(target)):
                physical = sizes.sbuf_size_bytes // 128 // 1024
                assert physical >= kib
                assert sizes.sbuf_fmax_bytes <= physical * 1024
                assert sizes.sbuf_fmax * 4 == sizes.total_available_sbuf_size

    def test_a_bank_serves_transposes(self, monkeypatch):
        monkeypatch.setenv("NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE", "true")
        assert nl.tile_size.psum_num_banks == 7


class TestObjects:
    def test_fields_and_defaults(self):
        class Config(nl.NKIObject):
            rows: int
            columns: int = 4

        config = Config(rows=2)
        assert (config.rows, config.columns) == (2, 4)
        assert config == Config(rows=2)
        assert config != Config(rows=3)
        with pytest.raises(TypeError, match="rows"):
            Config()
        with pytest.raises(TypeError, match="wide"):
            Config(rows=1, wide=2)

    def test_under_dataclass(self):
        @dataclass
        class Config(nl.NKIObject):
            rows: int
            columns: int = 4

        assert Config(2) == Config(2, 4)

    def test_attributes_without_annotations_are_fields(self):
        @dataclass
        class Section(nl.NKIObject):
            index = None
            offset = 0

        assert (Section(index=3).index, Section(index=3).offset) == (3, 0)

        class Plain(nl.NKIObject):
            index = None

        assert Plain(index=2).index == 2


class TestAllocation:
    def test_it_is_recorded(self, trace):
        made = nl.ndarray((128, 4, 8), nl.bfloat16, buffer=nl.psum, name="sums", address=(0, 2048))
        storage = trace.storages[-1]
        assert made.storage is storage
        assert (storage.number, storage.region, storage.free, storage.address) == (0, "psum", 32, (0, 2048))
        assert storage.line[0] == __file__

    @pytest.mark.parametrize(
        ("shape", "buffer", "error"),
        [
            ((129, 4), nl.sbuf, errors.PartitionDimensionError),
            ((128,), nl.sbuf, errors.TensorShapeError),
            ((4, 0), nl.sbuf, errors.TensorShapeError),
            ((4, 2.0), nl.sbuf, errors.TensorShapeError),
            ((1, 1, 1, 1, 1, 1), nl.sbuf, errors.TensorShapeError),
            ((128, 4097), nl.psum, errors.PsumTileError),
            ((4, 4), "sbuf", errors.BufferKindError),
            ((4, 4), None, errors.BufferKindError),
        ],
    )
    def test_what_fits_nowhere(self, shape, buffer, error):
        with pytest.raises(error) as caught:
            nl.ndarray(shape, nl.float32, buffer=buffer)
        assert caught.value.line[0] == __file__

    @pytest.mark.parametrize(
        ("address", "buffer"),
        [
            ((0, 100), nl.psum),
            ((64, 0), nl.sbuf),
            ((0, -4), nl.sbuf),
            (5, nl.sbuf),
            ((0, 0), nl.hbm),
            ((0, 2), nl.sbuf),
        ],
    )
    def test_places_that_do_not_exist(self, address, buffer):
        with pytest.raises(errors.AddressError):
            nl.ndarray((128, 4), nl.float32, buffer=buffer, address=address)

    def test_types_that_do_not_exist(self):
        with pytest.raises(nki_errors.UnknownDtypeError):
            nl.ndarray((4, 4), "complex64")

    def test_outside_of_kernels(self):
        with tracing(None), pytest.raises(nki_errors.OutsideKernelError):
            nl.ndarray((4, 4), nl.float32)

    def test_like_another(self):
        source = nl.ndarray((4, 8, 2), nl.float16, buffer=nl.psum)
        assert (nl.empty_like(source).buffer, nl.empty_like(source).dtype) == (nl.psum, nl.float16)
        assert nl.empty_like(source, dtype=nl.int32, buffer=nl.sbuf).dtype == nl.int32
        assert nl.empty_like(source, buffer=nl.sbuf, transpose_axes=(2, 1, 0)).shape == (2, 8, 4)
        with pytest.raises(errors.LanguageArgumentError):
            nl.empty_like(source, transpose_axes=(0, 2, 1))
        assert nl.zeros_like(source).shape == source.shape

    def test_filled_tiles_are_one_instruction(self, trace):
        nl.zeros((4, 4), nl.float32)
        nl.full((4, 4), 3, nl.int32)
        assert ops(trace) == ["fill", "fill"]

    def test_constants(self, trace):
        data = np.arange(6, dtype=ml_dtypes.bfloat16).reshape(2, 3)
        made = nl.shared_constant(data)
        assert (made.dtype, made.shape, made.buffer) == (nl.bfloat16, (2, 3), nl.shared_hbm)
        assert (made.storage.role, made.storage.data.tolist()) == ("constant", data.tolist())
        with pytest.raises(errors.ConstantError):
            nl.shared_constant(3)

    def test_constants_of_files(self, tmp_path):
        np.save(tmp_path / "c.npy", np.ones((2, 2), np.float32))
        assert nl.shared_constant(str(tmp_path / "c.npy")).shape == (2, 2)

    def test_one_constant_for_all_identities(self, trace):
        nl.shared_identity_matrix(32, nl.bfloat16)
        nl.shared_identity_matrix(32, nl.bfloat16)
        nl.shared_identity_matrix(32)
        assert [s.name for s in trace.storages if s.role == "constant"] == ["identity_32_bfloat16", "identity_32_uint8"]


class TestResultTypes:
    @pytest.mark.parametrize(
        ("a", "b", "result"),
        [
            ("float16", "bfloat16", "float32"),
            ("float32", "bfloat16", "float32"),
            ("float8_e4m3", "float8_e5m2", "bfloat16"),
            ("float8_e4m3", "float16", "float16"),
            ("int32", "bfloat16", "bfloat16"),
            ("int8", "uint8", "int16"),
            ("int16", "uint16", "int32"),
            ("int32", "uint32", "float32"),
            ("int16", "uint8", "int16"),
            ("int8", "uint16", "int32"),
            ("int8", "int32", "int32"),
            ("bool", "uint8", "uint8"),
        ],
    )
    def test_two_tiles(self, a, b, result):
        types = nki.dtype.TYPES
        assert promote(types[a], types[b]) == result
        assert promote(types[b], types[a]) == result
        assert nl.add(tile(4, 4, dtype=a), tile(4, 4, dtype=b)).dtype == result

    @pytest.mark.parametrize(
        ("dtype", "number", "result"),
        [
            ("bfloat16", 2.0, "bfloat16"),
            ("bfloat16", 2, "bfloat16"),
            ("int32", 2, "int32"),
            ("int32", 2.0, "float32"),
            ("uint8", True, "uint8"),
        ],
    )
    def test_a_tile_and_a_number(self, dtype, number, result):
        assert nl.multiply(tile(4, 4, dtype=dtype), number).dtype == result

    def test_the_kernel_says(self):
        assert nl.equal(tile(4, 4), 1.0, dtype=nl.uint8).dtype == nl.uint8
        assert nl.exp(tile(4, 4), dtype=nl.bfloat16).dtype == nl.bfloat16


class TestElementwise:
    def test_two_tiles(self, trace):
        a, b = tile(4, 4), tile(4, 4)
        result = nl.subtract(a, b)
        made = trace.instructions[-1]
        assert (made.op, made.out, made.args, made.attrs[0]) == ("tensor_tensor", (result,), (a, b), "subtract")

    def test_a_number_first_is_the_reversed_operand(self, trace):
        a = tile(4, 4)
        nl.subtract(1.0, a)
        made = trace.instructions[-1]
        assert (made.op, made.args[0], made.attrs[:2]) == ("tensor_scalar", a, ("subtract", True))

    def test_no_tiles(self):
        with pytest.raises(errors.NoTileOperandError):
            nl.add(1, 2)

    def test_engines_do_not_broadcast(self):
        with pytest.raises(errors.ShapeMismatchError):
            nl.add(tile(4, 4), tile(4, 1))

    def test_hbm_is_no_operand(self):
        with pytest.raises(nki_errors.WrongBufferError):
            nl.add(nl.ndarray((4, 4), nl.float32, buffer=nl.hbm), 1.0)

    def test_functions_are_operators(self, trace):
        nisa.activation(tile(4, 4), op=nl.gelu_apprx_tanh, data=tile(4, 4))
        assert trace.instructions[-1].attrs[0] == "gelu_apprx_tanh"


class TestReductions:
    @pytest.mark.parametrize("axis", [0, (1,), (0, 1, 2), (1, 3), 4, (2, 2)])
    def test_only_the_last_dimensions(self, axis):
        with pytest.raises(errors.ReductionAxisError):
            nl.sum(tile(4, 2, 3), axis)

    def test_shapes(self):
        x = tile(4, 2, 3)
        assert nl.sum(x, 2).shape == (4, 2)
        assert nl.sum(x, -1, keepdims=True).shape == (4, 2, 1)
        assert nl.max(x, (1, 2)).shape == (4, 1)
        assert nl.min(x, (1, 2), keepdims=True).shape == (4, 1, 1)
        assert nl.var(x, 2).shape == (4, 2, 1)
        assert nl.all(x, 2).shape == (4, 2)

    def test_softmax_of_rows_is_one_pass_of_each_engine(self, trace):
        nl.softmax(tile(128, 512), axis=1)
        assert ops(trace) == ["tensor_reduce", "activation", "reciprocal", "tensor_scalar"]


class TestTransfers:
    def test_load_and_store(self, trace):
        source = nl.ndarray((4, 8), nl.float32, buffer=nl.hbm)
        loaded = nl.load(source, dtype=nl.bfloat16)
        assert (loaded.buffer, loaded.dtype, loaded.shape) == (nl.sbuf, nl.bfloat16, (4, 8))
        nl.store(source, loaded)
        assert ops(trace) == ["dma_copy", "dma_copy"]

    def test_wrong_memories(self):
        psum, sbuf, hbm = (nl.ndarray((4, 8), nl.float32, buffer=b) for b in (nl.psum, nl.sbuf, nl.hbm))
        for wrong in (lambda: nl.load(sbuf), lambda: nl.store(hbm, psum), lambda: nl.store(sbuf, sbuf),
                      lambda: nl.store(hbm, 1.0)):  # fmt: skip
            with pytest.raises(errors.LanguageArgumentError):
                wrong()

    def test_matmul_transposes_what_the_engine_needs(self, trace):
        product = nl.matmul(tile(16, 32), tile(32, 64))
        assert (product.shape, product.buffer, product.dtype) == ((16, 64), nl.psum, nl.float32)
        assert ops(trace) == ["transpose", "copy", "matmul"]
        assert nl.matmul(tile(32, 16), tile(32, 64), transpose_x=True).shape == (16, 64)
        with pytest.raises(errors.ShapeMismatchError):
            nl.matmul(tile(16, 32), tile(16, 64))

    def test_broadcast_to_the_same_is_nothing(self, trace):
        x = tile(4, 8)
        assert nl.broadcast_to(x, (4, 8)) is x
        with pytest.raises(errors.ShapeMismatchError):
            nl.broadcast_to(x, (8, 8))

    def test_printing_is_an_instruction(self, trace):
        nl.device_print("x = ", tile(4, 8))
        assert trace.instructions[-1].attrs == ("x = ",)
        with pytest.raises(errors.LanguageArgumentError):
            nl.device_print(3, tile(4, 8))


class TestPrograms:
    def test_without_a_grid(self):
        assert (nl.program_id(), nl.num_programs(), nl.program_ndim()) == (0, 1, 0)

    def test_with_a_grid(self):
        with tracing(Trace("trn2", grid=(2, 3), program=(1, 2))):
            assert (nl.program_id(0), nl.program_id(1)) == (1, 2)
            assert (nl.num_programs(0), nl.num_programs((0, 1)), nl.num_programs(None)) == (2, 6, 6)
            assert nl.program_ndim() == 2
            with pytest.raises(errors.LanguageArgumentError):
                nl.program_id(2)


class TestGrids:
    def values(self, view):
        grids = np.indices(view.shape)
        return view.offset + sum(g * s for g, s in zip(grids, view.strides, strict=True))

    def test_tiles(self):
        x = nl.ndarray((300, 1000), nl.float32, buffer=nl.hbm)
        expected = np.arange(300_000).reshape(300, 1000)
        grid = nl.tiles(x, tile_shape=(128, 256))
        assert (grid.shape, grid.element_shape, grid.index_step_elements) == ((3, 4), (300, 1000), (128, 256))
        for i in range(3):
            for j in range(4):
                part = grid[i, j]
                assert part.shape == ()
                wanted = expected[128 * i : 128 * (i + 1), 256 * j : 256 * (j + 1)]
                assert part.element_shape == wanted.shape == part.data.shape
                assert part.is_remainder == (i == 2 or j == 3)
                np.testing.assert_array_equal(self.values(part.data), wanted)
        np.testing.assert_array_equal(self.values(grid[1, :].data), expected[128:256])
        np.testing.assert_array_equal(self.values(grid[-1, 1:3].data), expected[256:, 256:768])

    def test_dimensions_without_tiles_come_first(self):
        x = nl.ndarray((3, 64, 100), nl.float32, buffer=nl.hbm)
        expected = np.arange(19200).reshape(3, 64, 100)
        grid = nl.tiles(x, tile_shape=(64, 40))
        assert grid.shape == (3, 1, 3)
        np.testing.assert_array_equal(self.values(grid[2, 0, 2].data), expected[2, :, 80:])
        assert grid[1].element_shape == (64, 100)

    def test_gaps_are_no_tensor(self):
        grid = nl.tiles(nl.ndarray((512, 64), nl.float32, buffer=nl.hbm), tile_shape=(128, 64))
        odd = grid[1::2]
        assert (odd.shape, odd.element_shape, odd.is_data_representable) == ((2, 1), (256, 64), False)
        assert odd[1].data.offset == 384 * 64
        with pytest.raises(errors.GridDataError):
            _ = odd.data

    def test_blocks(self):
        x = nl.ndarray((512, 1000), nl.float32, buffer=nl.hbm)
        expected = np.arange(512_000).reshape(512, 1000)
        grid = nl.blocks(x, tile_shape=(128, 256), block_shape=(2, 3))
        assert (grid.shape, grid.tile_shape, grid.block_shape) == ((2, 2), (128, 256), (2, 3))
        edge = grid[1, 1]
        np.testing.assert_array_equal(self.values(edge.data), expected[256:, 768:])
        inner = nl.tiles(grid[1, 0])
        assert inner.shape == (2, 3)
        np.testing.assert_array_equal(self.values(inner[1, 2].data), expected[384:, 512:768])

    def test_tiles_on_chip_lie_behind_each_other(self):
        grid = nl.alloc_tiles(tile_shape=(128, 256), element_shape=(300, 600), buffer=nl.sbuf, dtype=nl.float32)
        assert grid.shape == (3, 3)
        row = np.arange(128)[:, None] * (9 * 256)
        np.testing.assert_array_equal(self.values(grid[1, 1].data), row + np.arange(256) + 4 * 256)
        np.testing.assert_array_equal(self.values(grid[2, 2].data), row[:44] + np.arange(88) + 8 * 256)
        np.testing.assert_array_equal(self.values(grid[0, :].data), row + np.arange(600))
        assert not grid.is_data_representable

    def test_blocks_on_chip(self):
        grid = nl.alloc_blocks(
            tile_shape=(64, 32), block_shape=(1, 2), element_shape=(128, 128), buffer=nl.sbuf, dtype=nl.float32
        )
        assert grid.shape == (2, 2)
        assert nl.tiles(grid[1, 1])[0, 1].data.offset == 7 * 32
        assert grid[1, 1].data.shape == (64, 64)

    def test_like_a_grid(self):
        grid = nl.tiles(nl.ndarray((300, 600), nl.float32, buffer=nl.hbm), tile_shape=(128, 256))
        like = nl.empty_like(grid[2, :], buffer=nl.sbuf, dtype=nl.bfloat16)
        assert (like.shape, like.element_shape, like.dtype, like.buffer) == ((3,), (44, 600), nl.bfloat16, nl.sbuf)

    @pytest.mark.parametrize("shape", [None, [128, 256], (128, 2.0)])
    def test_a_tile_shape_is_a_tuple(self, shape):
        with pytest.raises(TypeError):
            nl.tiles(nl.ndarray((300, 600), nl.float32, buffer=nl.hbm), tile_shape=shape)

    @pytest.mark.parametrize("shape", [(128,), (128, 0), (1, 1, 1)])
    def test_a_tile_shape_fits(self, shape):
        with pytest.raises(ValueError, match="tile_shape"):
            nl.tiles(nl.ndarray((300, 600), nl.float32, buffer=nl.hbm), tile_shape=shape)


def test_all_errors_of_this_part_are_raised_somewhere():
    from pathlib import Path

    source = Path(errors.__file__)
    names = [n.name for n in ast.parse(source.read_text()).body if isinstance(n, ast.ClassDef)]
    others = "".join(p.read_text() for p in source.parent.rglob("*.py") if p != source)
    assert [name for name in names if f"{name}(" not in others] == []
