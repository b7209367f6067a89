"""What functions of nki.language compute in a simulation, against NumPy, SciPy-free formulas and PyTorch on the CPU."""

import math

import ml_dtypes
import numpy as np
import pytest
import torch
from torch.nn import functional as F

import nki
import nki.isa as nisa
import nki.language as nl

RNG = np.random.default_rng(20261130)
X = RNG.standard_normal((64, 96), dtype=np.float32)
Y = RNG.standard_normal((64, 96), dtype=np.float32)
# Results of Scalar-engine functions, which this simulator computes in fp32.
CLOSE = {"rtol": 2e-6, "atol": 2e-6}


def store(result):
    """A tile as an output of the kernel."""
    out = nl.ndarray(result.shape, dtype=result.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.copy(result) if result.buffer is nl.psum else result)
    return out


def run1(function, x, target="trn2"):
    @nki.jit
    def kernel(x):
        return store(function(nl.load(x)))

    return nki.simulate(kernel, target=target)(x)


def run2(function, x, y, target="trn2"):
    @nki.jit
    def kernel(x, y):
        return store(function(nl.load(x), nl.load(y)))

    return nki.simulate(kernel, target=target)(x, y)


BINARY = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "mod": np.mod,
    "fmod": np.fmod,
}


@pytest.mark.parametrize("name", BINARY)
def test_arithmetic_and_comparisons(name):
    y = np.where(RNG.random(X.shape) < 0.2, X, Y)
    result = run2(getattr(nl, name), X, y)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, BINARY[name](X, y).astype(np.float32), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["subtract", "less", "maximum"])
def test_numbers_on_either_side(name):
    function = getattr(nl, name)
    np.testing.assert_array_equal(run1(lambda x: function(x, 0.5), X), BINARY[name](X, np.float32(0.5)))
    np.testing.assert_array_equal(run1(lambda x: function(0.5, x), X), BINARY[name](np.float32(0.5), X))


def test_power():
    np.testing.assert_allclose(run2(nl.power, np.abs(X), Y), np.abs(X) ** Y, rtol=1e-5)


def test_magnitudes_keep_their_signs():
    a, b = np.float32([[-5, 3, 2, -2]]), np.float32([[3, -5, -2, 2]])
    np.testing.assert_array_equal(run2(nl.abs_max, a, b, "trn3"), [[-5, -5, -2, 2]])
    np.testing.assert_array_equal(run2(nl.abs_min, a, b, "trn3"), [[3, 3, -2, 2]])


def test_bits():
    a = RNG.integers(0, 2**31, (8, 16), dtype=np.int32)
    b = RNG.integers(0, 2**31, (8, 16), dtype=np.int32)
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        np.testing.assert_array_equal(run2(getattr(nl, name), a, b), getattr(np, name)(a, b))
    np.testing.assert_array_equal(run1(nl.invert, a), ~a)
    np.testing.assert_array_equal(run1(nl.invert, a.astype(np.uint8)), ~a.astype(np.uint8))
    np.testing.assert_array_equal(run1(lambda x: nl.right_shift(x, 3), a), a >> 3)
    np.testing.assert_array_equal(run1(lambda x: nl.left_shift(x, 3), a & 255), (a & 255) << 3)


def test_truth_values():
    a, b = (RNG.integers(0, 2, (8, 16)).astype(np.float32) for _ in range(2))
    for name in ("logical_and", "logical_or", "logical_xor"):
        np.testing.assert_array_equal(run2(getattr(nl, name), a, b), getattr(np, name)(a, b).astype(np.float32))
    np.testing.assert_array_equal(run1(nl.logical_not, a), 1 - a)


def through_torch(function):
    def apply(x):
        return function(torch.from_numpy(x).double()).float().numpy()

    return apply


def derivative(function):
    def apply(x):
        x = torch.from_numpy(x).double().requires_grad_()
        function(x).sum().backward()
        return x.grad.float().numpy()

    return apply


def gelu_sigmoid(x):
    return x * torch.sigmoid(1.702 * x)


UNARY = {
    "exp": np.exp,
    "tanh": np.tanh,
    "arctan": np.arctan,
    "abs": np.abs,
    "square": np.square,
    "sign": np.sign,
    "negative": np.negative,
    "reciprocal": np.reciprocal,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "sigmoid": through_torch(torch.sigmoid),
    "relu": through_torch(torch.relu),
    "gelu": through_torch(F.gelu),
    "gelu_dx": derivative(F.gelu),
    "gelu_apprx_tanh": through_torch(lambda x: F.gelu(x, approximate="tanh")),
    "gelu_apprx_tanh_dx": derivative(lambda x: F.gelu(x, approximate="tanh")),
    "gelu_apprx_sigmoid": through_torch(gelu_sigmoid),
    "gelu_apprx_sigmoid_dx": derivative(gelu_sigmoid),
    "silu": through_torch(F.silu),
    "silu_dx": derivative(F.silu),
    "softplus": through_torch(F.softplus),
    "mish": through_torch(F.mish),
    "erf": through_torch(torch.erf),
    "erf_dx": derivative(torch.erf),
}


@pytest.mark.parametrize("name", UNARY)
def test_functions(name):
    x = np.where(np.abs(X) < 1e-2, np.float32(0.5), X) if name == "reciprocal" else 2 * X
    if name == "arctan":
        x = np.clip(x, -1.5, 1.5)
    np.testing.assert_allclose(run1(getattr(nl, name), x), UNARY[name](x), **CLOSE)


@pytest.mark.parametrize("name", ["log", "sqrt", "rsqrt"])
def test_functions_of_positive_numbers(name):
    x = np.abs(X) + np.float32(1e-3)
    expected = 1 / np.sqrt(x.astype(np.float64)) if name == "rsqrt" else getattr(np, name)(x.astype(np.float64))
    np.testing.assert_allclose(run1(getattr(nl, name), x), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("name", "reference"), [("sin", np.sin), ("cos", np.cos), ("tan", np.tan)])
def test_angles_beyond_one_turn(name, reference):
    x = (RNG.random((64, 96), dtype=np.float32) - 0.5) * 200
    expected = reference(x.astype(np.float64))
    ordinary = np.abs(expected) < 20
    np.testing.assert_allclose(run1(getattr(nl, name), x)[ordinary], expected[ordinary], rtol=2e-4, atol=2e-6)


def test_results_round_once_into_their_type():
    a = X.astype(ml_dtypes.bfloat16)
    result = run1(lambda x: nl.multiply(x, 3.0), a)
    assert result.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(result, (a.astype(np.float32) * 3).astype(ml_dtypes.bfloat16))
    np.testing.assert_array_equal(
        run1(lambda x: nl.copy(x, dtype=nl.int32), np.float32([[0.5, 1.5, 2.5, -0.5, 3e9]])), [[0, 2, 2, 0, 2**31 - 1]]
    )


def test_where():
    condition = (X > 0).astype(np.float32)
    x = np.where(X > 0, Y, np.float32(np.nan))
    result = run2(lambda c, v: nl.where(c, v, -1.0), condition, x)
    np.testing.assert_array_equal(result, np.where(X > 0, Y, np.float32(-1)))


REDUCTIONS = {"sum": np.sum, "max": np.max, "min": np.min, "mean": np.mean, "prod": np.prod}


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("axis", [2, (1, 2)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions(name, axis, keepdims):
    x = RNG.standard_normal((16, 3, 8), dtype=np.float32)
    expected = REDUCTIONS[name](x.astype(np.float64), axis=axis, keepdims=keepdims)
    result = run1(lambda t: getattr(nl, name)(t, axis, keepdims=keepdims), x)
    np.testing.assert_allclose(result, expected.reshape(result.shape), rtol=1e-5, atol=1e-6)
    assert result.size == expected.size


def test_variance_and_all():
    x = RNG.standard_normal((16, 3, 8), dtype=np.float32) + 100
    expected = x.astype(np.float64).var(axis=2, keepdims=True)
    np.testing.assert_allclose(run1(lambda t: nl.var(t, 2), x), expected, rtol=1e-4)
    flags = (RNG.random((16, 4)) < 0.7).astype(np.float32)
    result = run1(lambda t: nl.all(t, 1), flags)
    np.testing.assert_array_equal(result[:, 0], flags.all(axis=1).astype(np.float32))


@pytest.mark.parametrize("axis", [-1, 2, (1, 2)])
def test_softmax(axis):
    x = 10 * RNG.standard_normal((16, 3, 8), dtype=np.float32)
    flat = torch.from_numpy(x).double().reshape(16, -1) if axis == (1, 2) else torch.from_numpy(x).double()
    expected = F.softmax(flat, dim=-1).reshape(x.shape).numpy()
    np.testing.assert_allclose(run1(lambda t: nl.softmax(t, axis), x), expected, rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("weights", [(64, 96), (64, 1)])
def test_rms_norm(weights):
    w = RNG.standard_normal(weights, dtype=np.float32)
    x = X.astype(np.float64)
    expected = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-6) * w
    np.testing.assert_allclose(run2(lambda t, v: nl.rms_norm(t, v, 1, 96), X, w), expected, rtol=1e-5, atol=1e-6)


def test_dropout_keeps_or_drops():
    result = run1(lambda t: nl.dropout(t, 0.25), np.ones((128, 512), np.float32))
    assert set(np.unique(result)) <= {0.0, 1.0}
    # 65,536 draws: five standard deviations are 0.0085.
    assert abs(1 - result.mean() - 0.25) < 0.0085


@pytest.mark.parametrize("transposed", [False, True])
def test_matmul(transposed):
    a, b = X[:32, :64], Y[:64, :48]
    left = np.ascontiguousarray(a.T) if transposed else a
    expected = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(run2(lambda x, y: nl.matmul(x, y, transposed), left, b), expected, rtol=1e-5, atol=1e-5)


def test_transposes():
    np.testing.assert_array_equal(run1(nl.transpose, X), X.T)
    a = X.astype(ml_dtypes.bfloat16)

    @nki.jit
    def kernel(x):
        return store(nl.load_transpose2d(x))

    np.testing.assert_array_equal(nki.simulate(kernel)(a), a.T)


@pytest.mark.parametrize("shape", [(100, 96), (1, 96), (100, 1)])
def test_broadcast_to(shape):
    x = X[: shape[0] if shape[0] == 1 else 1, : shape[1]] if shape[0] == 1 else np.resize(X, shape)
    target = (100, 96)
    np.testing.assert_array_equal(run1(lambda t: nl.broadcast_to(t, target), x), np.broadcast_to(x, target))


def test_gather():
    indices = RNG.integers(0, 96, (64, 20), dtype=np.uint32)
    expected = np.take_along_axis(X, indices.astype(np.int64), axis=1)
    np.testing.assert_array_equal(run2(nl.gather_flattened, X, indices), expected)


@pytest.mark.parametrize("shape", [(5,), (300, 7), (3, 130, 60)])
def test_filled_tensors_in_hbm(shape):
    @nki.jit
    def kernel(x):
        return nl.full(shape, 2.5, nl.float32, buffer=nl.shared_hbm), nl.zeros(shape, nl.int32, buffer=nl.shared_hbm)

    full, zeros = nki.simulate(kernel)(X)
    np.testing.assert_array_equal(full, np.full(shape, 2.5, np.float32))
    np.testing.assert_array_equal(zeros, np.zeros(shape, np.int32))


def test_identities_and_constants():
    table = np.arange(12, dtype=np.int32).reshape(3, 4)

    @nki.jit
    def kernel(x):
        eye = nl.shared_identity_matrix(16, nl.bfloat16)
        return store(nl.copy(eye)), store(nl.load(nl.shared_constant(table)))

    eye, constant = nki.simulate(kernel)(X)
    np.testing.assert_array_equal(eye, np.eye(16))
    np.testing.assert_array_equal(constant, table)


def test_random_numbers_are_uniform_and_repeat():
    @nki.jit
    def kernel(x):
        seed = nl.ndarray((1, 1), nl.int32)
        nisa.memset(seed, 7)
        nl.random_seed(seed)
        first = nl.rand((128, 512), nl.float32)
        nl.random_seed(seed)
        second = nl.rand((128, 512), nl.float32)
        return store(first), store(second), nl.rand((300, 100), nl.float32, buffer=nl.shared_hbm)

    first, second, hbm = nki.simulate(kernel)(X)
    np.testing.assert_array_equal(first, second)
    for values in (first, hbm):
        assert values.min() >= 0
        assert values.max() < 1
    # Five standard deviations of the mean and of a tenth's share of 65,536 draws.
    assert abs(first.mean() - 0.5) < 5 / math.sqrt(12 * first.size)
    shares = np.histogram(first, bins=10, range=(0, 1))[0] / first.size
    assert np.abs(shares - 0.1).max() < 5 * math.sqrt(0.09 / first.size)


def test_run_time_loops():
    @nki.jit
    def kernel(x, count):
        out = nl.zeros((8, 4), nl.float32, buffer=nl.shared_hbm)
        tile = nl.ndarray((1, 1), nl.int32)
        nisa.dma_copy(dst=tile, src=count)
        stop = nisa.register_alloc()
        nisa.register_load(stop, tile)

        def body(i):
            row = nl.load(x[nl.ds(i, 1), :])
            nl.store(out[nl.ds(i, 1), :], nl.multiply(row, 2.0))

        nl.fori_loop(0, stop, body, 2)
        return out

    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    for count in (0, 1, 5, 8):
        expected = np.zeros((8, 4), np.float32)
        expected[0:count:2] = 2 * x[0:count:2]
        np.testing.assert_array_equal(nki.simulate(kernel)(x, np.array([[count]], np.int32)), expected)


def test_while_loops():
    @nki.jit
    def kernel(x, count):
        total, left, one = nl.zeros((1, 1), nl.float32), nl.load(count), nl.ones((1, 1), nl.int32)
        register = nisa.register_alloc()
        nisa.register_load(register, left)

        def body(r):
            nisa.tensor_scalar(dst=total, data=total, op0=nl.add, operand0=1.5)
            nisa.tensor_tensor(dst=left, data1=left, data2=one, op=nl.subtract)
            nisa.register_load(r, left)
            return r

        nl.while_loop(register, body)
        return store(total)

    for count in (0, 1, 6):
        assert nki.simulate(kernel)(X, np.array([[count]], np.int32)).item() == 1.5 * count


def test_grids_copy_a_tensor_whole():
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        source, target = nl.tiles(x, tile_shape=(128, 256)), nl.tiles(out, tile_shape=(128, 256))
        for i in range(source.shape[0]):
            for j in range(source.shape[1]):
                tile = nl.ndarray(source[i, j].element_shape, x.dtype)
                nisa.dma_copy(dst=tile.data, src=source[i, j].data)
                nisa.dma_copy(dst=target[i, j].data, src=tile.data)
        return out

    x = RNG.standard_normal((300, 600), dtype=np.float32)
    np.testing.assert_array_equal(nki.simulate(kernel)(x), x)


def test_printing(capfd):
    run1(lambda t: (nl.device_print("tile: ", t), t)[1], np.float32([[1.5, 2.5]]))
    printed = capfd.readouterr().out
    assert "tile: " in printed
    assert "2.5" in printed
