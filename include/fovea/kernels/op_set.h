// Operations by name, and sets of them: what a backend has, what a method or a model needs.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace fovea {

// Every operation: its name and its Params. Ops, OpKind and op_name() walk this one list.
#define FOVEA_FOR_EACH_OP(X)                           \
  X(embed, EmbedParams)                                \
  X(rms_norm, RmsNormParams)                           \
  X(linear, LinearParams)                              \
  X(silu_mul, SiluMulParams)                           \
  X(rope_angles, RopeAnglesParams)                     \
  X(kv_write, KvWriteParams)                           \
  X(paged_decode, AttentionParams)                     \
  X(paged_prefill, AttentionParams)                    \
  X(paged_partitions, PartitionedAttentionParams)      \
  X(merge_partitions, MergePartitionsParams)           \
  X(sample, SampleParams)                              \
  X(hash_select, HashSelectParams)                     \
  X(block_summaries, BlockSummariesParams)             \
  X(encode_codes, EncodeCodesParams)                   \
  X(hash_encode, HashEncodeParams)                     \
  X(hamming_scores, HammingScoresParams)               \
  X(copy_blocks, CopyBlocksParams)                     \
  X(convert, ConvertParams)                            \
  X(page_table_to_csr, PageTableToCsrParams)           \
  X(csr_to_page_table, CsrToPageTableParams)           \
  X(summary_select, SummarySelectParams)               \
  X(attention_mass, AttentionMassParams)               \
  X(block_topk, BlockTopkParams)                       \
  X(carry_over, CarryOverParams)                       \
  X(resolve, ResolveParams)                            \
  X(fetch_extents, FetchParams)                        \
  X(stage_extents, StageParams)                        \
  X(move_columns, MoveColumnsParams)                   \
  X(xattention_select, XAttentionParams)               \
  X(xattention_choose, XAttentionChoiceParams)         \
  X(flat_group_gemm_fuse_reshape, FlatGroupGemmParams) \
  X(softmax_fuse_block_sum, SoftmaxBlockSumParams)     \
  X(mla_write, MlaWriteParams)                         \
  X(mla_absorb, MlaAbsorbParams)                       \
  X(mla_unabsorb, MlaUnabsorbParams)                   \
  X(mla_attend, MlaAttendParams)                       \
  X(mla_gather, MlaGatherParams)                       \
  X(ragged_attend, RaggedAttentionParams)              \
  X(lse_merge, LseMergeParams)                         \
  X(moe_route, MoeRouteParams)                         \
  X(moe_experts, MoeExpertsParams)                     \
  X(index_write, IndexWriteParams)                     \
  X(index_topk, IndexTopkParams)                       \
  X(index_transform, IndexTransformParams)

enum class OpKind : uint8_t {
#define FOVEA_OP(name, Params) name,
  FOVEA_FOR_EACH_OP(FOVEA_OP)
#undef FOVEA_OP
};

constexpr const char* op_name(OpKind op) {
  constexpr const char* kNames[] = {
#define FOVEA_OP(name, Params) #name,
      FOVEA_FOR_EACH_OP(FOVEA_OP)
#undef FOVEA_OP
  };
  return kNames[static_cast<int>(op)];
}

class OpSet {
 public:
  constexpr OpSet() = default;
  constexpr OpSet(std::initializer_list<OpKind> ops) {
    for (const OpKind op : ops) bits_ |= uint64_t{1} << static_cast<int>(op);
  }
  static constexpr OpSet all() {
    OpSet set;
    set.bits_ = ~uint64_t{0};
    return set;
  }
  constexpr OpSet with(OpSet ops) const {
    OpSet set;
    set.bits_ = bits_ | ops.bits_;
    return set;
  }
  constexpr OpSet without(OpSet ops) const {
    OpSet set;
    set.bits_ = bits_ & ~ops.bits_;
    return set;
  }
  constexpr bool has(OpKind op) const { return bits_ >> static_cast<int>(op) & 1; }
  constexpr bool has_all(OpSet needed) const { return (needed.bits_ & ~bits_) == 0; }

 private:
  uint64_t bits_ = 0;
};

}  // namespace fovea
