#include "kernels/cpu/cpu_ops.h"
#include "kernels/common/carry_over.h"

#include <string_view>

#include "kernels/cpu/attention/attention_mass.h"
#include "kernels/cpu/attention/decode_attention.h"
#include "kernels/cpu/attention/prefill_attention.h"
#include "kernels/cpu/attention/ragged_attention.h"
#include "kernels/cpu/cache_ops/cache_ops.h"
#include "kernels/cpu/cpu_features.h"
#include "kernels/cpu/dsa/dsa_index_map.h"
#include "kernels/cpu/dsa/dsa_index_write.h"
#include "kernels/cpu/dsa/dsa_topk.h"
#include "kernels/cpu/elementwise/elementwise.h"
#include "kernels/cpu/kv_write/kv_write.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/mla/mla_attention.h"
#include "kernels/cpu/mla/mla_projections.h"
#include "kernels/cpu/moe/moe.h"
#include "kernels/cpu/residency/resolve.h"
#include "kernels/cpu/sample/sample.h"
#include "kernels/cpu/select/block_topk.h"
#include "kernels/cpu/select/hash_ops.h"
#include "kernels/cpu/select/hash_select.h"
#include "kernels/cpu/select/summary.h"
#include "kernels/cpu/select/summary_select.h"
#include "kernels/cpu/xattention/unfused.h"
#include "kernels/cpu/xattention/xattention.h"

namespace fovea {
namespace {

class CpuOpsImpl final : public CpuOps {
 public:
  CpuOpsImpl(ThreadPool& pool, Numerics numerics, cpu::Int8Rows int8) : pool_(pool), numerics_(numerics), int8_(int8) {}

  std::string_view name() const override { return "cpu"; }
  Numerics numerics() const override { return numerics_; }
  OpSet supported() const override {
    using enum OpKind;
    return OpSet::all().without({fetch_extents, stage_extents, move_columns});
  }

  bool takes(WeightType) const override { return true; }

  Status prepare(const OpsLimits& limits) override {
    FOVEA_TRY(linear_.prepare(limits, pool_.size(), numerics_, cpu::cpu_features(), int8_));
    FOVEA_TRY(decode_.prepare(limits, pool_.size(), numerics_));
    FOVEA_TRY(prefill_.prepare(limits, pool_.size(), numerics_));
    FOVEA_TRY(index_topk_.prepare(limits, pool_.size()));
    FOVEA_TRY(mla_.prepare(limits, pool_.size()));
    FOVEA_TRY(mass_.prepare(limits));
    FOVEA_TRY(summary_select_.prepare(limits));
    summaries_.prepare(limits);
    topk_.prepare(limits, pool_.size());
    FOVEA_TRY(xattention_.prepare(limits, pool_.size(), numerics_));
    FOVEA_TRY(ragged_.prepare(limits, pool_.size()));
    FOVEA_TRY(moe_.prepare(limits, pool_.size()));
    sample_.prepare(limits.vocab);
    return select_.prepare(limits, pool_.size());
  }
  Status add_linear_shape(int32_t k, int32_t n, WeightType type) override { return linear_.add_shape(k, n, type); }

  void embed(const EmbedParams& p, Stream&) override { cpu::embed(p, pool_); }
  void rms_norm(const RmsNormParams& p, Stream&) override { cpu::rms_norm(p, pool_); }
  void linear(const LinearParams& p, Stream&) override {
    linear_.run(p, pool_);
    if (p.gated) cpu::silu_mul(gate_of(p), pool_);
  }
  void silu_mul(const SiluMulParams& p, Stream&) override { cpu::silu_mul(p, pool_); }
  void rope_angles(const RopeAnglesParams& p, Stream&) override { cpu::rope_angles(p); }
  void kv_write(const KvWriteParams& p, Stream&) override { cpu::kv_write(p, pool_); }
  void hash_select(const HashSelectParams& p, Stream&) override { select_.run(p, pool_); }
  void paged_decode(const AttentionParams& p, Stream&) override { decode_.run(p, pool_); }
  void paged_prefill(const AttentionParams& p, Stream&) override { prefill_.run(p, pool_); }
  void paged_partitions(const PartitionedAttentionParams& p, Stream&) override { decode_.run(p, pool_); }
  void merge_partitions(const MergePartitionsParams& p, Stream&) override { cpu::merge_partitions(p, pool_); }
  void sample(const SampleParams& p, Stream&) override { sample_.run(p); }
  void mla_write(const MlaWriteParams& p, Stream&) override { cpu::mla_write(p, pool_); }
  void mla_absorb(const MlaAbsorbParams& p, Stream&) override { cpu::mla_absorb(p, pool_); }
  void mla_unabsorb(const MlaUnabsorbParams& p, Stream&) override { cpu::mla_unabsorb(p, pool_); }
  void mla_attend(const MlaAttendParams& p, Stream&) override { mla_.run(p, pool_); }
  void mla_gather(const MlaGatherParams& p, Stream&) override { cpu::mla_gather(p, pool_); }
  void ragged_attend(const RaggedAttentionParams& p, Stream&) override { ragged_.run(p, pool_); }
  void lse_merge(const LseMergeParams& p, Stream&) override { cpu::lse_merge(p, pool_); }
  void moe_route(const MoeRouteParams& p, Stream&) override { moe_.route(p, linear_, pool_); }
  void moe_experts(const MoeExpertsParams& p, Stream&) override { moe_.experts(p, linear_, pool_); }
  void index_write(const IndexWriteParams& p, Stream&) override { cpu::index_write(p, pool_); }
  void index_topk(const IndexTopkParams& p, Stream&) override { index_topk_.run(p, pool_); }
  void index_transform(const IndexTransformParams& p, Stream&) override { cpu::index_transform(p); }
  void block_summaries(const BlockSummariesParams& p, Stream&) override { summaries_.run(p, pool_); }
  void encode_codes(const EncodeCodesParams& p, Stream&) override { cpu::encode_codes(p, pool_); }
  void hash_encode(const HashEncodeParams& p, Stream&) override { cpu::hash_encode(p, pool_); }
  void hamming_scores(const HammingScoresParams& p, Stream&) override { cpu::hamming_scores(p, pool_); }
  void copy_blocks(const CopyBlocksParams& p, Stream&) override { cpu::copy_blocks(p, pool_); }
  void convert(const ConvertParams& p, Stream&) override { cpu::convert(p, pool_); }
  void page_table_to_csr(const PageTableToCsrParams& p, Stream&) override { cpu::page_table_to_csr(p); }
  void csr_to_page_table(const CsrToPageTableParams& p, Stream&) override { cpu::csr_to_page_table(p, pool_); }
  void summary_select(const SummarySelectParams& p, Stream&) override { summary_select_.run(p, pool_); }
  void block_topk(const BlockTopkParams& p, Stream&) override { topk_.run(p, pool_); }
  void carry_over(const CarryOverParams& p, Stream&) override { fovea::carry_over(p); }
  void attention_mass(const AttentionMassParams& p, Stream&) override { mass_.run(p, pool_); }
  void resolve(const ResolveParams& p, Stream&) override { cpu::resolve(p, pool_); }
  void xattention_select(const XAttentionParams& p, Stream&) override { xattention_.run(p, pool_); }
  void xattention_choose(const XAttentionChoiceParams& p, Stream&) override { xattention_.run(p, pool_); }
  void flat_group_gemm_fuse_reshape(const FlatGroupGemmParams& p, Stream&) override { cpu::flat_group_gemm_fuse_reshape(p, pool_); }
  void softmax_fuse_block_sum(const SoftmaxBlockSumParams& p, Stream&) override { cpu::softmax_fuse_block_sum(p, pool_); }

 private:
  ThreadPool& pool_;
  const Numerics numerics_;
  const cpu::Int8Rows int8_;
  cpu::Linear linear_;
  cpu::DecodeAttention decode_;
  cpu::PrefillAttention prefill_;
  cpu::HashSelect select_;
  cpu::IndexTopk index_topk_;
  cpu::MlaAttention mla_;
  cpu::BlockSummaries summaries_;
  cpu::SummarySelect summary_select_;
  cpu::BlockTopk topk_;
  cpu::AttentionMass mass_;
  cpu::XAttentionSelect xattention_;
  cpu::RaggedAttention ragged_;
  cpu::Moe moe_;
  cpu::Sample sample_;
};

}  // namespace

std::unique_ptr<CpuOps> make_cpu_ops(ThreadPool& pool, Numerics numerics, cpu::Int8Rows int8) {
  return std::make_unique<CpuOpsImpl>(pool, numerics, int8);
}

Numerics preferred_numerics() {
  const auto& f = cpu::cpu_features();
  return f.amx_bf16 || f.avx512_bf16 ? Numerics::bf16 : Numerics::f32;
}

}  // namespace fovea
