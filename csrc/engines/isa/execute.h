#pragma once
// What each instruction does, one function per operation; operands and attributes are those of src/nki/instruction.py.
// Control, printing and what several cores do together are the machine's own.
#include "engines/isa/core.h"

namespace neuron::engines::isa {

void execute_dma_copy(Core& core, const Instruction& instruction);
void execute_dma_transpose(Core& core, const Instruction& instruction);
void execute_dma_compute(Core& core, const Instruction& instruction);
void execute_table_copy(Core& core, const Instruction& instruction);
void execute_masked_copy(Core& core, const Instruction& instruction);
void execute_matmul(Core& core, const Instruction& instruction);
void execute_matmul_mx(Core& core, const Instruction& instruction);
void execute_transpose(Core& core, const Instruction& instruction);
void execute_copy(Core& core, const Instruction& instruction);
void execute_fill(Core& core, const Instruction& instruction);
void execute_copy_predicated(Core& core, const Instruction& instruction);
void execute_tensor_tensor(Core& core, const Instruction& instruction);
void execute_tensor_scalar(Core& core, const Instruction& instruction);
void execute_scalar_tensor_tensor(Core& core, const Instruction& instruction);
void execute_tensor_reduce(Core& core, const Instruction& instruction);
void execute_tensor_scalar_reduce(Core& core, const Instruction& instruction);
void execute_tensor_scalar_cumulative(Core& core, const Instruction& instruction);
void execute_scan(Core& core, const Instruction& instruction);
void execute_partition_reduce(Core& core, const Instruction& instruction);
void execute_activation(Core& core, const Instruction& instruction);
void execute_activate2(Core& core, const Instruction& instruction);
void execute_exponential(Core& core, const Instruction& instruction);
void execute_reciprocal(Core& core, const Instruction& instruction);
void execute_quantize_mx(Core& core, const Instruction& instruction);
void execute_bn_stats(Core& core, const Instruction& instruction);
void execute_bn_aggr(Core& core, const Instruction& instruction);
void execute_max8(Core& core, const Instruction& instruction);
void execute_find_index8(Core& core, const Instruction& instruction);
void execute_match_replace8(Core& core, const Instruction& instruction);
void execute_shuffle(Core& core, const Instruction& instruction);
void execute_range_select(Core& core, const Instruction& instruction);
void execute_select_reduce(Core& core, const Instruction& instruction);
void execute_dropout(Core& core, const Instruction& instruction);
void execute_rng(Core& core, const Instruction& instruction);
void execute_rand2(Core& core, const Instruction& instruction);
void execute_set_rng_seed(Core& core, const Instruction& instruction);
void execute_rand_set_state(Core& core, const Instruction& instruction);
void execute_rand_get_state(Core& core, const Instruction& instruction);
void execute_iota(Core& core, const Instruction& instruction);
void execute_affine_select(Core& core, const Instruction& instruction);
void execute_local_gather(Core& core, const Instruction& instruction);
void execute_n_gather(Core& core, const Instruction& instruction);
void execute_nonzero_with_count(Core& core, const Instruction& instruction);
void execute_sequence_bounds(Core& core, const Instruction& instruction);
void execute_topk(Core& core, const Instruction& instruction);
void execute_register_move(Core& core, const Instruction& instruction);
void execute_register_load(Core& core, const Instruction& instruction);
void execute_register_store(Core& core, const Instruction& instruction);
void execute_register_alu(Core& core, const Instruction& instruction);

}  // namespace neuron::engines::isa
