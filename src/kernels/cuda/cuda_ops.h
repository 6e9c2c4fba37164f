// The CUDA backend: NVIDIA GPUs of compute capability 8.0 and later, with ways of their own for 9.0.
#pragma once

#include <fovea/status.h>

#include <memory>

#include "kernels/ops/ops.h"

namespace fovea {

class Device;

// `device` is one of make_cuda_device() and outlives the result. With Numerics::f32 linear layers are exact
// to float32 rounding, and slow; bf16 is what tensor cores are for. fp8, with bf16: where weights are e4m3, more than 16 rows are
// rounded to e4m3 too, and multiplied so if cuBLASLt does (docs/linear.md). Errors of prepare(): resource_exhausted; unsupported
// where cuBLASLt is not found. Errors here: unsupported (built without CUDA).
Result<std::unique_ptr<Ops>> make_cuda_ops(Device& device, Numerics numerics, bool fp8 = false);

// What it has, also for those who have not made it yet.
constexpr OpSet cuda_op_set() {
  using enum OpKind;
  return {embed,           rms_norm,       linear,         silu_mul,   rope_angles, kv_write,   encode_codes,   hash_select,
          block_summaries, summary_select, attention_mass, block_topk, carry_over,  resolve,    fetch_extents,  stage_extents,
          move_columns,    paged_decode,   paged_prefill,  sample,     index_write, index_topk, index_transform,
          xattention_select, xattention_choose, flat_group_gemm_fuse_reshape, softmax_fuse_block_sum,
          hash_encode, hamming_scores, copy_blocks, convert, page_table_to_csr, csr_to_page_table, paged_partitions, merge_partitions,
          mla_write, mla_absorb, mla_unabsorb, mla_attend, mla_gather, ragged_attend, lse_merge, moe_route, moe_experts};
}

}  // namespace fovea
