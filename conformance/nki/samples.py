"""The kernels of nki-samples, each called with small arrays and compared with NumPy or PyTorch on the CPU."""

from __future__ import annotations

import ast
import importlib
import sys
import time
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from conformance.nki.outcome import FAILED, PASSED, Outcome

__all__ = ["CASES", "NAME", "kernels", "run"]

NAME = "samples"
_TUTORIALS = "nki-samples/src/nki_samples/tutorials"
_CONTRIBUTED = "nki-samples/contributed"

Array = np.ndarray[Any, Any]
Check = Callable[[Any], None]
CASES: dict[str, tuple[str, str, Check]] = {}


def _case(name: str, folder: str, module: str) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        CASES[name] = (folder, module, check)
        return check

    return register


def kernels(root: Path) -> list[str]:
    """Names of the cases whose files are there."""
    return [name for name, (folder, module, _) in CASES.items() if (root / folder / f"{module}.py").exists()]


def _load(root: Path, folder: str, module: str) -> Any:
    """A module of the samples, whose neighbours it can import; torch_xla, which some name and none needs, is empty."""
    sys.path.insert(0, str(root / folder))
    for name in ("torch_xla", "torch_xla.core", "torch_xla.core.xla_model"):
        sys.modules.setdefault(name, types.ModuleType(name))
    return importlib.import_module(module)


def _definitions(root: Path, folder: str, module: str, until: str) -> Any:
    """A module whose top level also runs its kernel: only what stands before the assignment to `until`."""
    path = root / folder / f"{module}.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    stop = next(
        i
        for i, node in enumerate(tree.body)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == until
    )
    tree.body = tree.body[:stop]
    namespace = types.ModuleType(module)
    exec(compile(tree, str(path), "exec"), namespace.__dict__)
    return namespace


def run(root: Path, name: str) -> list[Outcome]:
    """Runs one kernel in this process."""
    folder, module, check = CASES[name]
    start = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if module == "pipelined_attention":
                check(_definitions(root, folder, module, "bs"))
            else:
                check(_load(root, folder, module))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this kernel's result
            message = f"{type(error).__name__}: {error}"
            return [Outcome(NAME, name, name, FAILED, message, time.monotonic() - start)]
    return [Outcome(NAME, name, name, PASSED, "", time.monotonic() - start)]


def _close(found: Any, expected: Any, atol: float = 1e-5, rtol: float = 1e-5) -> None:
    np.testing.assert_allclose(np.asarray(found, np.float32), np.asarray(expected, np.float32), atol=atol, rtol=rtol)


def _random(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(dtype)


# -- Tutorials --------------------------------------------------------------------------------------------------------


@_case("average_pool2d", f"{_TUTORIALS}/average_pool2d", "average_pool2d_nki_kernels")
def _(module: Any) -> None:
    x = _random(4, 12, 18)
    expected = x.reshape(4, 6, 2, 9, 2).mean((2, 4))
    _close(module.tensor_avgpool_kernel(x, 2), expected)


@_case("transpose2d", f"{_TUTORIALS}/transpose2d", "transpose2d_nki_kernels")
def _(module: Any) -> None:
    x = np.arange(5 * 3 * 4, dtype=np.int8).reshape(5, 12)
    found = module.tensor_transpose2D_kernel_(x, (3, 4))
    np.testing.assert_array_equal(found, x.reshape(5, 3, 4).transpose(0, 2, 1).reshape(5, 12))


@_case("tensor_addition", f"{_TUTORIALS}/tensor_addition", "tensor_addition_nki_kernels")
def _(module: Any) -> None:
    a, b = _random(256, 1024, dtype=np.float16), _random(256, 1024, seed=1, dtype=np.float16)
    np.testing.assert_array_equal(module.nki_tensor_add(a, b), a + b)


@_case("spmd_tensor_addition", f"{_TUTORIALS}/tensor_addition", "spmd_tensor_addition_nki_kernels")
def _(module: Any) -> None:
    a, b = _random(256, 1024), _random(256, 1024, seed=1)
    np.testing.assert_array_equal(module.nki_tensor_add(a, b), a + b)


@_case("spmd_multiple_nc_tensor_addition", f"{_TUTORIALS}/tensor_addition",
       "spmd_multiple_nc_tensor_addition_nki_kernels")  # fmt: skip
def _(module: Any) -> None:
    a, b = _random(512, 1024), _random(512, 1024, seed=1)
    np.testing.assert_array_equal(module.nki_tensor_add_nc2(a, b), a + b)


def _matmul(kernel: str, k: int, m: int, n: int, **options: int) -> Check:
    def check(module: Any) -> None:
        a, b = (_random(k, size, seed=s).astype(ml_dtypes.bfloat16) for s, size in enumerate((m, n)))
        found = getattr(module, kernel)(a, b, **options)
        expected = a.astype(np.float32).T @ b.astype(np.float32)
        # The result is rounded to bf16 once: 8 bits of it are right.
        _close(found, expected, atol=1e-3 * k**0.5, rtol=2**-8)

    return check


for _name, _check in {
    "nki_matmul_basic_": _matmul("nki_matmul_basic_", 128, 64, 512),
    "nki_matmul_tiled_": _matmul("nki_matmul_tiled_", 256, 256, 1024),
    "nki_matmul_hoist_load_": _matmul("nki_matmul_hoist_load_", 256, 256, 1024),
    "nki_matmul_block_free_dimension_": _matmul("nki_matmul_block_free_dimension_", 256, 256, 1024),
    "nki_matmul_fully_optimized_": _matmul("nki_matmul_fully_optimized_", 1024, 2048, 1024),
}.items():
    CASES[_name] = (f"{_TUTORIALS}/matrix_multiplication", "matrix_multiplication_nki_kernels", _check)


def _attention(version: str, length: int) -> Check:
    def check(module: Any) -> None:
        q, k, v = (_random(128, length, seed=s) for s in range(3))
        scores = q.T @ k
        powers = np.exp(scores - scores.max(1, keepdims=True))
        expected = (powers / powers.sum(1, keepdims=True)) @ v.T
        _close(getattr(module, f"attn_fwd_{version}")(q, k, v), expected, atol=1e-2)

    return check


# v1 and v2 take one tile; v3 keeps all scores in PSUM at once, which has room for those of 512 positions.
_LENGTHS = {"v1": 128, "v2": 128, "v3": 512}

for _version in ("v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v8a", "v9", "v10", "v11"):
    CASES[f"attn_fwd_{_version}"] = (
        f"{_TUTORIALS}/attention_fwd_performance",
        "attention_kernels",
        _attention(_version, _LENGTHS.get(_version, 1024)),
    )


def _mamba(version: str) -> Check:
    def check(module: Any) -> None:
        batch, channels, state, length = 1, 256, 4, 1024
        delta, u = _random(batch, channels, length) * 0.5 + 0.5, _random(batch, channels, length, seed=1)
        a = -np.abs(_random(channels, state, seed=2))
        b, c = _random(batch, state, length, seed=3), _random(batch, state, length, seed=4)
        h = np.zeros((batch, channels, state))
        expected = np.zeros((batch, channels, length))
        for t in range(length):
            decay = np.exp(delta[:, :, t, None].astype(np.float64) * a)
            h = decay * h + (delta[:, :, t] * u[:, :, t])[..., None] * b[:, None, :, t]
            expected[:, :, t] = (h * c[:, None, :, t]).sum(-1)
        _close(getattr(module, f"mamba_{version}")(delta, u, a, b, c), expected, atol=1e-3, rtol=1e-3)

    return check


for _version in ("v1", "v2", "v3"):
    CASES[f"mamba_{_version}"] = (f"{_TUTORIALS}/fused_mamba", "mamba_nki_kernels", _mamba(_version))


# -- MX: the goldens are those of the samples, whose data is made so that quantising it loses nothing -----------------

_MX = f"{_TUTORIALS}/mxfp-matmul"


def _mx_types() -> dict[Any, Any]:
    import nki.language as nl

    return {ml_dtypes.float8_e5m2: nl.float8_e5m2_x4, ml_dtypes.float4_e2m1fn: nl.float4_e2m1fn_x4}


def _seeded() -> Any:
    np.random.seed(0)
    return importlib.import_module("mx_cpu_utils")


@_case("kernel_offline_quantized_mx_matmul", _MX, "mx_kernels")
def _(module: Any) -> None:
    host = _seeded()
    for element, packed in _mx_types().items():
        _, _, left, left_scale = host.generate_stabilized_mx_data(element, (128, 512))
        _, _, right, right_scale = host.generate_stabilized_mx_data(element, (128, 2048))
        found = module.kernel_offline_quantized_mx_matmul(left, left_scale, right, right_scale, packed)
        _close(found, host.nc_matmul_mx_golden(left, right, left_scale, right_scale, element, element), 5e-2, 5e-2)


@_case("kernel_on_device_quantize_matmul_mx", _MX, "mx_kernels")
def _(module: Any) -> None:
    host = _seeded()
    types_ = _mx_types()
    for element in types_:
        moving = ml_dtypes.float8_e5m2
        _, _, left, left_scale = host.generate_stabilized_mx_data(element, (128, 512))
        right, _, _, _ = host.generate_stabilized_mx_data(moving, (128, 2048))
        found = module.kernel_on_device_quantize_matmul_mx(
            left, left_scale, right.astype(ml_dtypes.bfloat16), types_[element], types_[moving]
        )
        packed, scale = host.quantize_mx_golden(right, moving)
        _close(found, host.nc_matmul_mx_golden(left, packed, left_scale, scale, element, moving), 5e-2, 5e-2)


@_case("kernel_copy_strided_quantize_matmul_mx", _MX, "mx_kernels")
def _(module: Any) -> None:
    host = _seeded()
    element = ml_dtypes.float8_e5m2
    left, _, _, _ = host.generate_stabilized_mx_data(element, (512, 128))
    right, _, _, _ = host.generate_stabilized_mx_data(element, (512, 512))
    for by_engine in (True, False):
        found = module.kernel_copy_strided_quantize_matmul_mx(
            left.astype(ml_dtypes.bfloat16), right.astype(ml_dtypes.bfloat16), _mx_types()[element], by_engine
        )
        _close(found, left.T @ right, 5e-2, 5e-2)


# -- Contributed ------------------------------------------------------------------------------------------------------


@_case("matmul", _CONTRIBUTED, "matmul")
def _(module: Any) -> None:
    from neuronxcc import nki

    a, b = _random(1024, 512, dtype=np.float16), _random(1024, 2048, seed=1, dtype=np.float16)
    expected = a.astype(np.float32).T @ b.astype(np.float32)
    _close(nki.baremetal()(module.matmul)(a, b), expected, atol=2e-2, rtol=1e-2)
    # Two blocks of K, which loop_reduce adds in fp16.
    found = nki.baremetal()(module.matmul)(a, b, TILES_IN_BLOCK_K=4)
    _close(found, expected, atol=4e-2, rtol=1e-2)


@_case("max_pooling_2d_stride_1", _CONTRIBUTED, "maxpooling")
def _(module: Any) -> None:
    x = _random(200, 96)
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3))
    np.testing.assert_array_equal(module.max_pooling_2d_stride_1(x, 3), windows.max((2, 3)))


def _interpolated(x: Array, mode: str) -> Array:
    import torch

    found: Array = torch.nn.functional.interpolate(torch.from_numpy(x), scale_factor=2, mode=mode).numpy()
    return found


@_case("interpolate_bilinear_2x_fwd", _CONTRIBUTED, "interpolate_bilinear_fwd")
def _(module: Any) -> None:
    x = _random(2, 64, 24, 16)
    _close(module.interpolate_bilinear_2x_fwd(x), _interpolated(x, "bilinear"), atol=1e-5)


@_case("interpolate_trilinear_2x_fwd", _CONTRIBUTED, "interpolate_trilinear_fwd")
def _(module: Any) -> None:
    x = _random(2, 64, 7, 6, 5)
    _close(module.interpolate_trilinear_2x_fwd(x), _interpolated(x, "trilinear"), atol=1e-5)


@_case("pipelined_attention", _CONTRIBUTED, "pipelined_attention")
def _(module: Any) -> None:
    length, rows = 16 * 1024, 256  # the kernel takes this length only; some of its rows are compared
    q, k = (_random(1, 128, length, seed=s).astype(ml_dtypes.bfloat16) for s in range(2))
    v = _random(1, length, 128, seed=2).astype(ml_dtypes.bfloat16)
    found = module.flash_fwd[0](q, k, v, mixed_precision=True, softmax_scale=0.125, use_causal_mask=False)
    chosen = np.random.default_rng(3).choice(length, rows, replace=False)
    scores = 0.125 * (q[0, :, chosen].astype(np.float32) @ k[0].astype(np.float32))
    powers = np.exp(scores - scores.max(1, keepdims=True))
    expected = powers / powers.sum(1, keepdims=True) @ v[0].astype(np.float32)
    _close(np.asarray(found)[0, chosen], expected, atol=1e-2)
