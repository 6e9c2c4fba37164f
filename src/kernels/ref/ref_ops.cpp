#include "kernels/ref/ref_ops.h"

#include "kernels/ref/attention.h"
#include "kernels/ref/dense_math.h"
#include "kernels/ref/hash.h"
#include "kernels/ref/kv_write.h"
#include "kernels/ref/sample.h"
#include "kernels/ref/summary.h"
#include "kernels/ref/xattention.h"

namespace fovea {
namespace {

class RefOps final : public Ops {
 public:
  std::string_view name() const override { return "ref"; }
  Numerics numerics() const override { return Numerics::f32; }
  Status prepare(const OpsLimits& limits) override {
    sample_.prepare(limits.vocab);
    return {};
  }

  void embed(const EmbedParams& p, Stream&) override { ref::embed(p); }
  void rms_norm(const RmsNormParams& p, Stream&) override { ref::rms_norm(p); }
  void linear(const LinearParams& p, Stream&) override { ref::linear(p); }
  void silu_mul(const SiluMulParams& p, Stream&) override { ref::silu_mul(p); }
  void rope_angles(const RopeAnglesParams& p, Stream&) override { ref::rope_angles(p); }
  void kv_write(const KvWriteParams& p, Stream&) override { ref::kv_write(p); }
  void hash_select(const HashSelectParams& p, Stream&) override { ref::hash_select(p); }
  void paged_decode(const AttentionParams& p, Stream&) override { ref::paged_attention(p); }
  void paged_prefill(const AttentionParams& p, Stream&) override { ref::paged_attention(p); }
  void sample(const SampleParams& p, Stream&) override { sample_.run(p); }
  void block_summaries(const BlockSummariesParams& p, Stream&) override { ref::block_summaries(p); }
  void encode_codes(const EncodeCodesParams& p, Stream&) override { ref::encode_codes(p); }
  void summary_select(const SummarySelectParams& p, Stream&) override { ref::summary_select(p); }
  void attention_mass(const AttentionMassParams& p, Stream&) override { ref::attention_mass(p); }
  void block_topk(const BlockTopkParams& p, Stream&) override { ref::block_topk(p); }
  void xattention_select(const XAttentionParams& p, Stream&) override { ref::xattention_select(p); }

 private:
  ref::Sample sample_;
};

}  // namespace

std::unique_ptr<Ops> make_ref_ops() { return std::make_unique<RefOps>(); }

}  // namespace fovea
