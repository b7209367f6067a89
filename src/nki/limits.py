"""What a NeuronCore of each generation can take, as instructions and allocations check it.

Sources: "Trainium/Inferentia2", "Trainium2" and "Trainium3 Architecture Guide for NKI" (start partitions, engines), the
documentation of nki.isa in SDK 2.32 and 2.33 (limits of single instructions). Sizes of memories are those of neuron_hw.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from .trace import active

__all__ = ["ALL", "Limits", "limits", "limits_of"]

PARTITIONS = 128
QUADRANT = 32  # partitions that one group of lanes covers: where accesses may start
PSUM_BANK_BYTES = 2048  # per partition
PSUM_BANKS = 8
STATIONARY_COLUMNS = 128
BN_STATS_ELEMENTS = 512
MAX8_ELEMENTS = (8, 16384)
GATHER_INDICES = 4096  # of local_gather, per core of the GpSimd engine
TOPK_ELEMENTS = (8, 65535)
DMA_COMPUTE_SOURCES = 16
DVE_TRANSPOSE = 32  # rows and columns
PE_TRANSPOSE = 128
ENGINE_ELEMENTS = 65536  # per partition, that an engine walks through in one instruction


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that differ between generations.

    Attributes:
        generation: 2, 3 or 4 (NeuronCore-v2, -v3, -v4).
        moving_columns: of the moving operand of a matmul, by the type of its destination.
        matmul_dtypes: of the operands of a matmul.
        psum_dtypes: of the destination of a matmul.
        row_tiles: rows that a tile of the Tensor Engine may have.
    """

    generation: int
    moving_columns: MappingProxyType[str, int]
    matmul_dtypes: frozenset[str]
    psum_dtypes: frozenset[str]
    row_tiles: frozenset[int]


_FLOATS = ("float8_e4m3", "float8_e5m2", "bfloat16", "float16", "tfloat32", "float32")
_ONE_BANK = MappingProxyType({"float32": 512})
_ALL_BANKS = MappingProxyType({"float32": 4096, "bfloat16": 8192})

ALL = MappingProxyType(
    {
        "trn1": Limits(2, _ONE_BANK, frozenset(_FLOATS), frozenset({"float32"}), frozenset({64, 128})),
        "trn2": Limits(3, _ONE_BANK, frozenset(_FLOATS), frozenset({"float32"}), frozenset({32, 64, 128})),
        "trn3": Limits(
            4,
            _ALL_BANKS,
            frozenset((*_FLOATS, "float8_e4m3fn")),
            frozenset({"float32", "bfloat16"}),
            frozenset({32, 64, 128}),
        ),
    }
)


def limits_of(target: str) -> Limits:
    """Limits of "trn1", "trn2" or "trn3"."""
    return ALL[target]


def limits() -> Limits:
    """Limits of the chip that the current kernel is traced for; outside of a kernel, of the default one."""
    trace = active()
    if trace is not None:
        return ALL[trace.target]
    from .targets import target_of

    return ALL[target_of()]
