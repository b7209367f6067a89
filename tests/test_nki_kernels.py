"""Kernels of NKI as functions: arguments, results, specialisations, grids, frameworks."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

import nki
import nki.isa as nisa
import nki.language as nl
from nki import errors


@nki.jit
def double(x):
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def scale_in_place(x, by=3.0):
    tile = nl.load(x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=by)
    nl.store(x, tile)


@nki.jit
def sum_and_difference(pair, options):
    a, b = nl.load(pair[0]), nl.load(pair[1])
    results = {}
    for name, op in (("sum", nl.add), ("difference", nl.subtract)):
        if options.get(name, True):
            tile = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=tile, data1=a, data2=b, op=op)
            results[name] = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
            nl.store(results[name], tile)
    return tuple(results.values())


def numbers(*shape: int, dtype: object = np.float32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int32])
def test_arrays_of_numpy(dtype):
    x = (numbers(128, 40) * 10).astype(dtype)
    result = double(x)
    assert result.dtype == x.dtype
    np.testing.assert_array_equal(result, x * 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e5m2])
def test_tensors_of_the_cpu(dtype):
    x = torch.randn(64, 24, generator=torch.Generator().manual_seed(0)).to(dtype)
    result = double(x)
    assert result.dtype == dtype
    torch.testing.assert_close(result.float(), x.float() * 2)


def test_simulate_runs_what_a_call_runs():
    x = numbers(16, 8)
    np.testing.assert_array_equal(nki.simulate(double)(x), double(x))
    np.testing.assert_array_equal(nki.simulate(double, target="trn3")(x), 2 * x)


def test_arguments_are_written_in_place():
    x = numbers(32, 8)
    expected = x * 4
    assert scale_in_place(x, by=4.0) is None
    np.testing.assert_array_equal(x, expected)


def test_arguments_without_contiguous_memory():
    x = numbers(8, 32)
    expected = x.T * 3
    view = x.T
    scale_in_place(view)
    np.testing.assert_array_equal(x.T, expected)
    tensor = torch.arange(12.0).reshape(3, 4).t()
    scale_in_place(tensor)
    torch.testing.assert_close(tensor, torch.arange(12.0).reshape(3, 4).t() * 3)


def test_read_only_arguments_are_refused_when_written():
    x = numbers(4, 4)
    x.flags.writeable = False
    np.testing.assert_array_equal(double(x), 2 * x)
    with pytest.raises(errors.ReadOnlyArgumentError, match="argument x"):
        scale_in_place(x)


def test_nests_of_arguments_and_several_results():
    a, b = numbers(16, 4), numbers(16, 4, seed=1)
    total, difference = sum_and_difference((a, b), {})
    np.testing.assert_array_equal(total, a + b)
    np.testing.assert_array_equal(difference, a - b)
    (total,) = sum_and_difference([a, b], {"difference": False})
    np.testing.assert_array_equal(total, a + b)


def test_one_specialisation_for_equal_arguments():
    runs = []

    @nki.jit
    def counted(x, factor=2.0):
        runs.append(x.shape)
        tile = nl.load(x)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=factor)
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(out, tile)
        return out

    for _ in range(3):
        counted(numbers(4, 4))
    assert len(runs) == 1
    counted(numbers(4, 8))
    counted(numbers(4, 8).astype(np.float16))
    np.testing.assert_array_equal(counted(numbers(4, 4), factor=1), numbers(4, 4))  # 1 is not 1.0 or True
    assert len(runs) == 4


def test_a_kernel_inside_a_kernel_becomes_part_of_it():
    @nki.jit
    def tile_of(x):
        return nl.load(x)

    @nki.jit
    def outer(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(out, tile_of(x))
        return out

    x = numbers(8, 8)
    np.testing.assert_array_equal(outer(x), x)


def test_two_programs_share_their_output():
    @nki.jit
    def halves(x):
        core, cores = nl.program_id(0), nl.num_programs(0)
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        rows = x.shape[0] // cores
        tile = nl.load(x[core * rows : (core + 1) * rows, :])
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=float(core))
        nl.store(out[core * rows : (core + 1) * rows, :], tile)
        return out

    x = numbers(64, 16)
    np.testing.assert_allclose(halves[2](x), x + np.repeat([[0.0], [1.0]], 32, axis=0), rtol=1e-6)
    np.testing.assert_array_equal(halves[1](x), x)


def test_a_kernel_is_debugged_with_breakpoint(monkeypatch):
    """Row N14 of the collection: `breakpoint()` in a kernel works."""
    seen = []
    monkeypatch.setattr("sys.breakpointhook", lambda: seen.append("stopped"))

    @nki.jit
    def stops(x):
        tile = nl.load(x)
        breakpoint()
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(out, tile)
        return out

    x = numbers(4, 4)
    np.testing.assert_array_equal(stops(x), x)
    assert seen == ["stopped"]


def test_any_python_is_allowed_while_tracing():
    @nki.jit
    def generators(*tensors, **named):
        out = nl.ndarray(tensors[0].shape, dtype=tensors[0].dtype, buffer=nl.shared_hbm)
        tiles = (nl.load(t) for t in (*tensors, *named.values()))
        total = next(tiles)
        for tile in tiles:
            nisa.tensor_tensor(dst=total, data1=total, data2=tile, op=nl.add)
        nl.store(out, total)
        return out

    a, b, c = numbers(4, 4), numbers(4, 4, seed=1), numbers(4, 4, seed=2)
    np.testing.assert_allclose(generators(a, b, third=c), a + b + c, rtol=1e-6)


def test_fp32_everywhere_without_precise_floats(monkeypatch):
    """NKI_PRECISE_FP=0 keeps tiles of low precision in fp32."""

    @nki.jit
    def add_small(x):
        tile = nl.load(x)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=2.0**-12)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.subtract, operand0=1.0)
        out = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=tile)
        return out

    x = np.ones((4, 4), ml_dtypes.bfloat16)
    assert (add_small(x) == 0).all()
    monkeypatch.setenv("NKI_PRECISE_FP", "0")
    assert (add_small(x) == 2.0**-12).all()


def test_a_kernel_is_for_the_chip_that_it_names():
    @nki.jit(platform_target="trn3")
    def newest(x):
        tile = nl.load(x)
        nisa.exponential(dst=tile, src=tile)
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(out, tile)
        return out

    x = numbers(4, 4)
    np.testing.assert_allclose(newest(x), np.exp(x), rtol=1e-6)
    with pytest.raises(errors.NkiValidationError):
        nki.simulate(newest, target="trn2")(x)


class TestMistakes:
    def test_arguments_that_do_not_fit(self):
        with pytest.raises(errors.KernelArgumentError, match="double"):
            double(numbers(4, 4), 3)

    def test_no_tensor(self):
        with pytest.raises(errors.NoTensorArgumentError, match="without a tensor"):
            scale_in_place(3.0)

    def test_no_kernel(self):
        with pytest.raises(errors.NotAKernelError, match=r"@nki\.jit"):
            nki.simulate(lambda x: x)

    def test_bad_grid(self):
        with pytest.raises(errors.BadGridError):
            double[0]
        with pytest.raises(errors.BadGridError):
            double["two"]

    def test_unknown_target(self):
        with pytest.raises(errors.UnknownTargetError, match="trn2"):
            nki.simulate(double, target="h100")(numbers(4, 4))

    def test_unknown_option(self):
        with pytest.raises(errors.UnknownJitOptionError, match=r"no option grid.*kernel\[2\]"):
            nki.jit(grid=2)
        with pytest.raises(errors.UnknownTargetError):
            nki.jit(platform_target="h100")

    def test_a_type_without_an_engine(self):
        with pytest.raises(errors.UnknownDtypeError, match="float64"):
            double(np.zeros((4, 4)))

    def test_something_that_is_no_type(self):
        @nki.jit
        def wrong(x):
            return nl.ndarray((4, 4), dtype=["float32"], buffer=nl.shared_hbm)

        with pytest.raises(errors.UnknownDtypeError, match="float32"):
            wrong(numbers(4, 4))

    def test_results_must_be_tensors(self):
        @nki.jit
        def returns_a_number(x):
            return x.shape[0]

        with pytest.raises(errors.ResultNotTensorError, match="4"):
            returns_a_number(numbers(4, 4))

    def test_results_must_be_in_shared_hbm(self):
        @nki.jit
        def returns_a_tile(x):
            return nl.load(x)

        with pytest.raises(errors.OutputNotInSharedHbmError, match="sbuf") as raised:
            returns_a_tile(numbers(4, 4))
        assert raised.value.line[0] == __file__

    def test_output_never_written(self):
        """Row N3 of the collection."""

        @nki.jit
        def forgets_to_store(x):
            nl.load(x)
            return nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)

        with pytest.raises(errors.OutputNeverWrittenError, match="no instruction writes it"):
            forgets_to_store(numbers(4, 4))

    def test_output_never_returned(self):
        """Row N3 of the collection: an output is expected, nothing is returned."""

        @nki.jit
        def forgets_to_return(x):
            out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm, name="result")
            nl.store(out, nl.load(x))

        with pytest.raises(errors.OutputNotReturnedError, match="result"):
            forgets_to_return(numbers(4, 4))

    def test_programs_with_other_outputs(self):
        @nki.jit
        def disagree(x):
            out = nl.ndarray((4, 4 + nl.program_id(0)), dtype=x.dtype, buffer=nl.shared_hbm)
            nl.store(out[:, 0:4], nl.load(x))
            return out

        with pytest.raises(errors.ProgramsDisagreeError, match="program 1"):
            disagree[2](numbers(4, 4))

    def test_instructions_outside_of_kernels(self):
        with pytest.raises(errors.OutsideKernelError, match=r"@nki\.jit"):
            nl.ndarray((4, 4), dtype=nl.float32, buffer=nl.sbuf)

    def test_unknown_names_in_a_schedule(self):
        with pytest.raises(errors.UnknownScheduleNameError, match="nothing"):
            double.with_schedule([("nothing", "neither")])(numbers(4, 4))


def test_a_variable_collective_in_two_steps():
    import nki.collectives as ncc

    @nki.jit
    def exchange(x, counts):
        group = ncc.ReplicaGroup([[0, 1]])
        received = nl.ndarray((8,), dtype=x.dtype, buffer=nl.shared_hbm)
        source = nl.ndarray((8,), dtype=x.dtype, buffer=nl.private_hbm)
        nisa.dma_copy(dst=received, src=x)
        prepared = ncc.all_to_all_v_prepare([source], [received], group, counts)
        nisa.dma_copy(dst=source, src=x)  # after the prepare
        ncc.all_to_all_v_trigger(prepared)
        return received, counts

    @nki.jit
    def forgets(x, counts):
        ncc.all_to_all_v_prepare([x], [x], ncc.ReplicaGroup([[0, 1]]), counts)
        return counts

    x = [np.arange(8, dtype=np.float32) + 100 * rank for rank in range(2)]
    # send counts, where they begin, received counts (written)
    counts = [np.array([[1, 2], [0, 4], [0, 0]], np.uint32), np.array([[3, 4], [0, 4], [0, 0]], np.uint32)]
    results = nki.simulate(exchange, ranks=2)(nki.PerRank(x), nki.PerRank(counts))
    np.testing.assert_array_equal(results[0][0], [0, 1, 2, 3, 100, 101, 102, 7])
    np.testing.assert_array_equal(results[0][1][2], [1, 3])
    np.testing.assert_array_equal(results[1][0], [4, 5, 102, 103, 104, 105, 106, 107])
    with pytest.raises(errors.PreparedCollectiveError, match="no trigger"):
        nki.simulate(forgets, ranks=2)(nki.PerRank(x), nki.PerRank([c.copy() for c in counts]))
