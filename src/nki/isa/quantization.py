"""Quantisation to the OCP microscaling formats, on the Vector engine of NeuronCore-v4."""

from __future__ import annotations

from .. import errors
from ..limits import QUADRANT
from ..tensor import NkiTensor
from ..trace import current
from .instruction_handle import NkiInstruction
from .matrix import require_scales
from .validation import emit, extent, fail, require_dtype, require_generation, require_region, require_shape

__all__ = ["quantize_mx"]

_SOURCES = frozenset({"float16", "bfloat16"})
_RESULTS = frozenset({"float8_e4m3fn_x4", "float8_e5m2_x4"})


def quantize_mx(dst: NkiTensor, src: NkiTensor, dst_scale: NkiTensor, name: str | None = None) -> NkiInstruction:
    """MXFP8 elements and scales of `src`; 8 partitions times 4 elements share a scale, a power of two.

    The scale is twice that of the OCP specification's example: 2 ** (floor(log2(largest)) - (Emax - 1)).

    Args:
        dst: float8_e4m3fn_x4 or float8_e5m2_x4 in SBUF, a fourth of the elements of `src`.
        src: fp16 or bf16 in SBUF; 32, 64, 96 or 128 partitions, a multiple of 4 elements in each.
        dst_scale: float8_e8m0fnu or uint8 in SBUF, as many elements per partition as `dst`; 4 of each 32 partitions are
            written.
    """
    op = "quantize_mx"
    trace = current()
    require_generation(trace, 4, op)
    size = extent(dst, op, "dst")
    like = extent(src, op, "src")
    for operand, view in (("dst", dst), ("src", src)):
        require_region(view, op, operand, "sbuf")
    require_dtype(src, _SOURCES, op, "src", "Convert it with nisa.tensor_copy.")
    require_dtype(dst, _RESULTS, op, "dst")
    if like[0] % QUADRANT:
        fail(errors.OperandShapeError, op=op, operand="src", shape=src.shape, expected="a multiple of 32 partitions")
    if like[1] % 4:
        fail(
            errors.FreeSizeError,
            op=op,
            operand="src",
            shape=src.shape,
            count=like[1],
            allowed="multiples of 4",
            cure="Four elements become one of dst.",
        )
    require_shape(dst, size, (like[0], like[1] // 4), op, "dst")
    require_scales(dst_scale, like[0], like[1] // 4, op, "dst_scale")
    return emit(trace, op, "vector", (dst, dst_scale), (src,), (), name)
