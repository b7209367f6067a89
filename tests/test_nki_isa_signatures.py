"""Names and parameters of nki.isa are the public ones, so that kernels written for the vendor's package call them."""

from __future__ import annotations

import inspect

import pytest

import nki.isa as nisa

# Parameters in order, as the documentation of nki.isa 0.6 and 0.7 has them; those without a default end with "!".
_REDUCE = "reduce_op reduce_res reduce_cmd name"
PUBLIC = {
    "activate2": "dst! op! data! imm0! imm1! op0! op1! relu_param reverse0 reverse1 " + _REDUCE,
    "activation": "dst! op! data! bias scale reduce_op reduce_res reduce_cmd name",
    "activation_reduce": "dst! op! data! reduce_op! reduce_res bias scale name",
    "affine_select": "dst! pattern! channel_multiplier! on_true_tile! on_false_value! cmp_op offset name",
    "bn_aggr": "dst! data! name",
    "bn_stats": "dst! data! name",
    "core_barrier": "data! cores! engine name",
    "dma_compute": "dst! srcs! reduce_op scales unique_indices oob_mode name",
    "dma_copy": "dst! src! priority oob_mode dge_mode engine name",
    "dma_transpose": "dst! src! axes priority dge_mode oob_mode name",
    "dropout": "dst! data! prob! name",
    "exponential": "dst! src! max_value reduce_res reduce_cmd reduce_init name",
    "get_nc_sub_version": "",
    "get_nc_version": "",
    "iota": "dst! pattern! offset channel_multiplier name",
    "local_gather": "dst! src_buffer! index! num_elem_per_idx num_valid_indices name",
    "max8": "dst! src! name",
    "memset": "dst! value! engine name",
    "nc_find_index8": "dst! data! vals! name",
    "nc_match_replace8": "dst! data! vals! imm! dst_idx name",
    "nc_matmul": "dst! stationary! moving! is_stationary_onezero is_moving_onezero is_transpose accumulate "
    "tile_position tile_size perf_mode name",
    "nc_matmul_mx": "dst! stationary! moving! stationary_scale! moving_scale! tile_position tile_size accumulate name",
    "nc_n_gather": "dst! data! indices! name",
    "nc_stream_shuffle": "dst! src! shuffle_mask! name",
    "nc_transpose": "dst! data! engine name",
    "nonzero_with_count": "dst! src! index_offset padding_val name",
    "quantize_mx": "dst! src! dst_scale! name",
    "rand2": "dst! min! max! name",
    "rand_get_state": "dst! engine name",
    "rand_set_state": "src_seeds! engine name",
    "range_select": "dst! on_true_tile! comp_op0! comp_op1! bound0! bound1! reduce_cmd reduce_res reduce_op "
    "range_start on_false_value name",
    "reciprocal": "dst! data! name",
    "register_alloc": "x",
    "register_load": "dst! src!",
    "register_move": "dst! src!",
    "register_store": "dst! src!",
    "rng": "dst! engine name",
    "scalar_load": "src!",
    "scalar_store": "dst! value!",
    "scalar_tensor_tensor": "dst! data! op0! operand0! op1! operand1! reverse0 reverse1 name",
    "select_reduce": "dst! predicate! on_true! on_false! reduce_res reduce_cmd reduce_op reverse_pred name",
    "sendrecv": "src! dst! send_to_rank! recv_from_rank! pipe_id! dma_engine name",
    "sequence_bounds": "dst! segment_ids! name",
    "set_rng_seed": "src_seeds! name",
    "tensor_copy": "dst! src! engine name",
    "tensor_copy_predicated": "dst! src! predicate! reverse_pred name",
    "tensor_partition_reduce": "dst! op! data! name",
    "tensor_reduce": "dst! op! data! axis! negate keepdims name",
    "tensor_scalar": "dst! data! op0! operand0! reverse0 op1 operand1 reverse1 engine name",
    "tensor_scalar_cumulative": "dst! src! op0! op1! imm0! imm1 reduce_cmd name",
    "tensor_scalar_reduce": "dst! data! op0! operand0! reduce_op! reduce_res reverse0 reduce_cmd reduce_init "
    "reduce_res_negate name",
    "tensor_tensor": "dst! data1! data2! op! engine name",
    "tensor_tensor_scan": "dst! data0! data1! initial! op0! op1! reverse0 reverse1 name",
    "topk": "val_dst! idx_dst! src! n! name",
}
ENUMERATIONS = {
    "engine": {"tensor": 1, "vector": 5, "scalar": 2, "gpsimd": 3, "dma": 4, "sync": 6, "unknown": 0},
    "reduce_cmd": {"idle": 0, "reset": 1, "reduce": 2, "reset_reduce": 3, "load_reduce": 4},
    "dge_mode": {"unknown": 0, "swdge": 1, "hwdge": 2, "none": 3},
    "oob_mode": {"error": 0, "skip": 1},
    "matmul_perf_mode": {"none": "none", "double_row": "double_row"},
    "nc_version": {"gen2": 2, "gen3": 3, "gen4": 4},
    "dma_engine": {"dma": 1, "gpsimd_dma": 2},
}


@pytest.mark.parametrize("name", PUBLIC)
def test_parameters(name: str) -> None:
    parameters = inspect.signature(getattr(nisa, name)).parameters.values()
    written = [
        p.name + "!" * (p.default is p.empty) for p in parameters if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    ]
    assert written == PUBLIC[name].split()


@pytest.mark.parametrize("name", ENUMERATIONS)
def test_enumeration(name: str) -> None:
    assert {member.name: member.value for member in getattr(nisa, name)} == ENUMERATIONS[name]


def test_nothing_else_is_a_function() -> None:
    functions = {name for name in nisa.__all__ if inspect.isfunction(getattr(nisa, name))}
    assert functions == set(PUBLIC)


def test_every_function_says_what_it_does() -> None:
    assert [name for name in PUBLIC if not inspect.getdoc(getattr(nisa, name))] == []
