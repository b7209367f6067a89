"""nki.isa: one function per hardware instruction, with the signatures of the vendor's NKI 0.7.

Each checks its operands against what the chip of the current kernel can do, appends an instruction to the trace, and
returns it; `dst` is always an argument. Mistakes raise the classes of nki.errors, with the line of the kernel.

Limits and semantics: documentation of nki.isa in SDK 2.32 and 2.33, and the architecture guides for NKI.
"""

from ..errors import NkiValidationError
from ..operators import average, bypass, prelu
from . import constants
from .cores import core_barrier, get_nc_sub_version, get_nc_version, sendrecv
from .dma import dma_compute, dma_copy, dma_transpose
from .elementwise import (
    reciprocal,
    scalar_tensor_tensor,
    tensor_copy,
    tensor_copy_predicated,
    tensor_scalar,
    tensor_tensor,
)
from .enums import (
    dge_mode,
    dma_engine,
    engine,
    gpsimd_engine,
    matmul_perf_mode,
    nc_version,
    oob_mode,
    reduce_cmd,
    scalar_engine,
    tensor_engine,
    unknown_engine,
    vector_engine,
)
from .gpsimd import affine_select, iota, local_gather, memset, nc_n_gather, nonzero_with_count, sequence_bounds, topk
from .instruction_handle import NkiInstruction
from .matrix import nc_matmul, nc_matmul_mx, nc_transpose
from .quantization import quantize_mx
from .random import dropout, rand2, rand_get_state, rand_set_state, rng, set_rng_seed
from .reductions import (
    bn_aggr,
    bn_stats,
    exponential,
    tensor_partition_reduce,
    tensor_reduce,
    tensor_scalar_cumulative,
    tensor_scalar_reduce,
    tensor_tensor_scan,
)
from .registers import (
    NkiScalar,
    VirtualRegister,
    register_alloc,
    register_load,
    register_move,
    register_store,
    scalar_load,
    scalar_store,
)
from .scalar import activate2, activation, activation_reduce
from .selection import max8, nc_find_index8, nc_match_replace8, nc_stream_shuffle, range_select, select_reduce

__all__ = [
    "NkiInstruction",
    "NkiScalar",
    "NkiValidationError",
    "VirtualRegister",
    "activate2",
    "activation",
    "activation_reduce",
    "affine_select",
    "average",
    "bn_aggr",
    "bn_stats",
    "bypass",
    "constants",
    "core_barrier",
    "dge_mode",
    "dma_compute",
    "dma_copy",
    "dma_engine",
    "dma_transpose",
    "dropout",
    "engine",
    "exponential",
    "get_nc_sub_version",
    "get_nc_version",
    "gpsimd_engine",
    "iota",
    "local_gather",
    "matmul_perf_mode",
    "max8",
    "memset",
    "nc_find_index8",
    "nc_match_replace8",
    "nc_matmul",
    "nc_matmul_mx",
    "nc_n_gather",
    "nc_stream_shuffle",
    "nc_transpose",
    "nc_version",
    "nonzero_with_count",
    "oob_mode",
    "prelu",
    "quantize_mx",
    "rand2",
    "rand_get_state",
    "rand_set_state",
    "range_select",
    "reciprocal",
    "reduce_cmd",
    "register_alloc",
    "register_load",
    "register_move",
    "register_store",
    "rng",
    "scalar_engine",
    "scalar_load",
    "scalar_store",
    "scalar_tensor_tensor",
    "select_reduce",
    "sendrecv",
    "sequence_bounds",
    "set_rng_seed",
    "tensor_copy",
    "tensor_copy_predicated",
    "tensor_engine",
    "tensor_partition_reduce",
    "tensor_reduce",
    "tensor_scalar",
    "tensor_scalar_cumulative",
    "tensor_scalar_reduce",
    "tensor_tensor",
    "tensor_tensor_scan",
    "topk",
    "unknown_engine",
    "vector_engine",
]
