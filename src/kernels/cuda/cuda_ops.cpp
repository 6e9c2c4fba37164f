#include "kernels/cuda/cuda_ops.h"

#include "base/check.h"
#include "device/cuda/cuda_device.h"
#include "kernels/cuda/cache_ops/cache_ops.h"
#include "kernels/cuda/carry_over/carry_over.h"
#include "kernels/cuda/decode/decode.h"
#include "kernels/cuda/dsa/dsa.h"
#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/embed/embed.h"
#include "kernels/cuda/hash_ops/hash_ops.h"
#include "kernels/cuda/hash_select/hash_select.h"
#include "kernels/cuda/kv_write/kv_write.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/mass/attention_mass.h"
#include "kernels/cuda/mla/mla.h"
#include "kernels/cuda/mla/ragged.h"
#include "kernels/cuda/moe/moe.h"
#include "kernels/cuda/norm/rms_norm.h"
#include "kernels/cuda/prefill/prefill.h"
#include "kernels/cuda/residency/residency.h"
#include "kernels/cuda/sample/sample.h"
#include "kernels/cuda/summary/summary.h"
#include "kernels/cuda/xattention/unfused.h"
#include "kernels/cuda/xattention/xattention.h"

namespace fovea {
namespace {

class CudaOps final : public Ops {
 public:
  CudaOps(CudaDevice& device, Numerics numerics, bool fp8) : device_(device), numerics_(numerics), fp8_(fp8) {}

  std::string_view name() const override { return "cuda"; }
  Numerics numerics() const override { return numerics_; }
  OpSet supported() const override { return cuda_op_set(); }
  bool takes(WeightType) const override { return true; }
  bool experts_take(WeightType type) const override { return is_plain(type); }

  Status prepare(const OpsLimits& limits) override {
    device_.make_current();
    overlap_ = cuda::runs_code_for_hopper();
    FOVEA_TRY(linear_.prepare(limits, device_, numerics_, fp8_));
    FOVEA_TRY(decode_.prepare(limits, device_));
    FOVEA_TRY(prefill_.prepare(limits, device_, numerics_));
    FOVEA_TRY(select_.prepare(limits, device_));
    FOVEA_TRY(summaries_.prepare(limits, device_));
    FOVEA_TRY(mass_.prepare(limits, device_));
    FOVEA_TRY(xattention_.prepare(limits, device_, numerics_));
    FOVEA_TRY(index_topk_.prepare(limits, device_, numerics_));
    FOVEA_TRY(latents_.prepare(limits, device_, numerics_));
    FOVEA_TRY(ragged_.prepare(limits, numerics_));
    FOVEA_TRY(moe_.prepare(limits, device_, numerics_));
    return sample_.prepare(limits, device_);
  }

  void embed(const EmbedParams& p, Stream& s) override { cuda::embed(p, queue(s)); }
  void rms_norm(const RmsNormParams& p, Stream& s) override { cuda::rms_norm(p, queue(s)); }
  void linear(const LinearParams& p, Stream& s) override {
    const bool gated = linear_.run(p, queue(s));
    if (p.gated && !gated) cuda::silu_mul(gate_of(p), queue(s));
  }
  void linear_after(const RmsNormParams& first, const LinearParams& p, Stream& s) override {
    FOVEA_CHECK(!p.gated);
    linear_.run_after(first, p, queue(s));
  }
  void feed_forward(const RmsNormParams& first, const LinearParams& gate_up, const LinearParams& down, Stream& s) override {
    if (linear_.run_after(first, gate_up, queue(s))) {
      linear_.run(down, queue(s));
    } else {
      linear_.run_after(gate_of(gate_up), down, queue(s));
    }
  }
  void silu_mul(const SiluMulParams& p, Stream& s) override { cuda::silu_mul(p, queue(s)); }
  void rope_angles(const RopeAnglesParams& p, Stream& s) override { cuda::rope_angles(p, queue(s)); }
  void kv_write(const KvWriteParams& p, Stream& s) override { cuda::kv_write(p, queue(s)); }
  void encode_codes(const EncodeCodesParams& p, Stream& s) override { cuda::encode_codes(p, on(s)); }
  void hash_encode(const HashEncodeParams& p, Stream& s) override { cuda::hash_encode(p, on(s)); }
  void hamming_scores(const HammingScoresParams& p, Stream& s) override { cuda::hamming_scores(p, on(s)); }
  void copy_blocks(const CopyBlocksParams& p, Stream& s) override { cuda::copy_blocks(p, on(s)); }
  void convert(const ConvertParams& p, Stream& s) override { cuda::convert(p, on(s)); }
  void page_table_to_csr(const PageTableToCsrParams& p, Stream& s) override { cuda::page_table_to_csr(p, on(s)); }
  void csr_to_page_table(const CsrToPageTableParams& p, Stream& s) override { cuda::csr_to_page_table(p, on(s)); }
  void paged_partitions(const PartitionedAttentionParams& p, Stream& s) override { decode_.run(p, queue(s)); }
  void merge_partitions(const MergePartitionsParams& p, Stream& s) override { cuda::merge_partitions(p, on(s)); }
  void hash_select(const HashSelectParams& p, Stream& s) override { select_.run(p, queue(s)); }
  void block_summaries(const BlockSummariesParams& p, Stream& s) override { cuda::block_summaries(p, on(s)); }
  void summary_select(const SummarySelectParams& p, Stream& s) override { summaries_.run(p, on(s)); }
  void attention_mass(const AttentionMassParams& p, Stream& s) override { mass_.run(p, on(s)); }
  void block_topk(const BlockTopkParams& p, Stream& s) override { summaries_.run(p, on(s)); }
  void carry_over(const CarryOverParams& p, Stream& s) override { cuda::carry_over(p, on(s)); }
  void index_write(const IndexWriteParams& p, Stream& s) override { cuda::index_write(p, on(s)); }
  void index_topk(const IndexTopkParams& p, Stream& s) override { index_topk_.run(p, on(s)); }
  void index_transform(const IndexTransformParams& p, Stream& s) override { cuda::index_transform(p, on(s)); }
  void resolve(const ResolveParams& p, Stream& s) override { cuda::resolve(p, queue(s)); }
  void fetch_extents(const FetchParams& p, Stream& s) override { cuda::fetch_extents(p, queue(s)); }
  void stage_extents(const StageParams& p, Stream& s) override { cuda::stage_extents(p, queue(s)); }
  void move_columns(const MoveColumnsParams& p, Stream& s) override { cuda::move_columns(p, queue(s)); }
  void xattention_select(const XAttentionParams& p, Stream& s) override { xattention_.run(p, on(s)); }
  void xattention_choose(const XAttentionChoiceParams& p, Stream& s) override { xattention_.run(p, on(s)); }
  void flat_group_gemm_fuse_reshape(const FlatGroupGemmParams& p, Stream& s) override {
    cuda::flat_group_gemm_fuse_reshape(p, on(s));
  }
  void softmax_fuse_block_sum(const SoftmaxBlockSumParams& p, Stream& s) override { cuda::softmax_fuse_block_sum(p, on(s)); }
  void paged_decode(const AttentionParams& p, Stream& s) override { decode_.run(p, queue(s)); }
  void paged_prefill(const AttentionParams& p, Stream& s) override { prefill_.run(p, on(s)); }
  void sample(const SampleParams& p, Stream& s) override { sample_.run(p, queue(s)); }
  void mla_write(const MlaWriteParams& p, Stream& s) override { cuda::mla_write(p, on(s)); }
  void mla_absorb(const MlaAbsorbParams& p, Stream& s) override { cuda::mla_absorb(p, numerics_, on(s)); }
  void mla_unabsorb(const MlaUnabsorbParams& p, Stream& s) override { cuda::mla_unabsorb(p, numerics_, on(s)); }
  void mla_attend(const MlaAttendParams& p, Stream& s) override { latents_.run(p, on(s)); }
  void mla_gather(const MlaGatherParams& p, Stream& s) override { cuda::mla_gather(p, on(s)); }
  void ragged_attend(const RaggedAttentionParams& p, Stream& s) override { ragged_.run(p, on(s)); }
  void lse_merge(const LseMergeParams& p, Stream& s) override { cuda::lse_merge(p, on(s)); }
  void moe_route(const MoeRouteParams& p, Stream& s) override { moe_.route(p, on(s)); }
  void moe_experts(const MoeExpertsParams& p, Stream& s) override { moe_.experts(p, queue(s)); }

 private:
  // A launch goes to the thread's current GPU, whatever the stream's: the step's thread need not be the one
  // that made it.
  cudaStream_t on(Stream& stream) const {
    device_.make_current();
    return cuda_stream(stream);
  }
  cuda::Queue queue(Stream& stream) const { return {on(stream), overlap_}; }

  CudaDevice& device_;
  const Numerics numerics_;
  const bool fp8_;
  bool overlap_ = false;
  cuda::Linear linear_;
  cuda::Decode decode_;
  cuda::Prefill prefill_;
  cuda::HashSelect select_;
  cuda::SummarySelect summaries_;
  cuda::AttentionMass mass_;
  cuda::XAttentionSelect xattention_;
  cuda::IndexTopk index_topk_;
  cuda::MlaAttention latents_;
  cuda::RaggedAttention ragged_;
  cuda::Moe moe_;
  cuda::Sample sample_;
};

}  // namespace

Result<std::unique_ptr<Ops>> make_cuda_ops(Device& device, Numerics numerics, bool fp8) {
  FOVEA_CHECK(device.kind() == "cuda");
  return std::unique_ptr<Ops>(std::make_unique<CudaOps>(static_cast<CudaDevice&>(device), numerics, fp8));
}

}  // namespace fovea
