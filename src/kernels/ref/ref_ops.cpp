#include "kernels/ref/ref_ops.h"

#include "kernels/common/carry_over.h"
#include "kernels/ref/attention.h"
#include "kernels/ref/cache_ops.h"
#include "kernels/ref/dense_math.h"
#include "kernels/ref/dsa_index.h"
#include "kernels/ref/dsa_topk.h"
#include "kernels/ref/hash.h"
#include "kernels/ref/hash_ops.h"
#include "kernels/ref/kv_write.h"
#include "kernels/ref/mla.h"
#include "kernels/ref/moe.h"
#include "kernels/ref/ragged_attention.h"
#include "kernels/ref/residency.h"
#include "kernels/ref/sample.h"
#include "kernels/ref/summary.h"
#include "kernels/ref/xattention.h"

namespace fovea {
namespace {

class RefOps final : public Ops {
 public:
  std::string_view name() const override { return "ref"; }
  Numerics numerics() const override { return Numerics::f32; }
  OpSet supported() const override { return OpSet::all(); }
  bool takes(WeightType) const override { return true; }
  Status prepare(const OpsLimits&) override { return {}; }

  void embed(const EmbedParams& p, Stream&) override { ref::embed(p); }
  void rms_norm(const RmsNormParams& p, Stream&) override { ref::rms_norm(p); }
  void linear(const LinearParams& p, Stream&) override {
    ref::linear(p);
    if (p.gated) ref::silu_mul(gate_of(p));
  }
  void silu_mul(const SiluMulParams& p, Stream&) override { ref::silu_mul(p); }
  void rope_angles(const RopeAnglesParams& p, Stream&) override { ref::rope_angles(p); }
  void kv_write(const KvWriteParams& p, Stream&) override { ref::kv_write(p); }
  void hash_select(const HashSelectParams& p, Stream&) override { ref::hash_select(p); }
  void paged_decode(const AttentionParams& p, Stream&) override { ref::paged_attention(p); }
  void paged_prefill(const AttentionParams& p, Stream&) override { ref::paged_attention(p); }
  void paged_partitions(const PartitionedAttentionParams& p, Stream&) override { ref::paged_partitions(p); }
  void merge_partitions(const MergePartitionsParams& p, Stream&) override { ref::merge_partitions(p); }
  void sample(const SampleParams& p, Stream&) override { ref::sample(p); }
  void mla_write(const MlaWriteParams& p, Stream&) override { ref::mla_write(p); }
  void mla_absorb(const MlaAbsorbParams& p, Stream&) override { ref::mla_absorb(p); }
  void mla_unabsorb(const MlaUnabsorbParams& p, Stream&) override { ref::mla_unabsorb(p); }
  void mla_attend(const MlaAttendParams& p, Stream&) override { ref::mla_attend(p); }
  void mla_gather(const MlaGatherParams& p, Stream&) override { ref::mla_gather(p); }
  void ragged_attend(const RaggedAttentionParams& p, Stream&) override { ref::ragged_attend(p); }
  void lse_merge(const LseMergeParams& p, Stream&) override { ref::lse_merge(p); }
  void moe_route(const MoeRouteParams& p, Stream&) override { ref::moe_route(p); }
  void moe_experts(const MoeExpertsParams& p, Stream&) override { ref::moe_experts(p); }
  void index_write(const IndexWriteParams& p, Stream&) override { ref::index_write(p); }
  void index_topk(const IndexTopkParams& p, Stream&) override { ref::index_topk(p); }
  void index_transform(const IndexTransformParams& p, Stream&) override { ref::index_transform(p); }
  void block_summaries(const BlockSummariesParams& p, Stream&) override { ref::block_summaries(p); }
  void encode_codes(const EncodeCodesParams& p, Stream&) override { ref::encode_codes(p); }
  void hash_encode(const HashEncodeParams& p, Stream&) override { ref::hash_encode(p); }
  void hamming_scores(const HammingScoresParams& p, Stream&) override { ref::hamming_scores(p); }
  void copy_blocks(const CopyBlocksParams& p, Stream&) override { ref::copy_blocks(p); }
  void convert(const ConvertParams& p, Stream&) override { ref::convert(p); }
  void page_table_to_csr(const PageTableToCsrParams& p, Stream&) override { ref::page_table_to_csr(p); }
  void csr_to_page_table(const CsrToPageTableParams& p, Stream&) override { ref::csr_to_page_table(p); }
  void summary_select(const SummarySelectParams& p, Stream&) override { ref::summary_select(p); }
  void attention_mass(const AttentionMassParams& p, Stream&) override { ref::attention_mass(p); }
  void block_topk(const BlockTopkParams& p, Stream&) override { ref::block_topk(p); }
  void carry_over(const CarryOverParams& p, Stream&) override { fovea::carry_over(p); }
  void resolve(const ResolveParams& p, Stream&) override { ref::resolve(p); }
  void fetch_extents(const FetchParams& p, Stream&) override { ref::fetch_extents(p); }
  void stage_extents(const StageParams& p, Stream&) override { ref::stage_extents(p); }
  void move_columns(const MoveColumnsParams& p, Stream&) override { ref::move_columns(p); }
  void xattention_select(const XAttentionParams& p, Stream&) override { ref::xattention_select(p); }
  void xattention_choose(const XAttentionChoiceParams& p, Stream&) override { ref::xattention_choose(p); }
  void flat_group_gemm_fuse_reshape(const FlatGroupGemmParams& p, Stream&) override { ref::flat_group_gemm_fuse_reshape(p); }
  void softmax_fuse_block_sum(const SoftmaxBlockSumParams& p, Stream&) override { ref::softmax_fuse_block_sum(p); }
};

}  // namespace

std::unique_ptr<Ops> make_ref_ops() { return std::make_unique<RefOps>(); }

}  // namespace fovea
