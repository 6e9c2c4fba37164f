// The operations of the fake device: another backend's, run when their turn in the stream comes.
#pragma once

#include "device/fake/fake_device_test_util.h"
#include "kernels/ops/ops.h"

#include <memory>
#include <utility>

namespace fovea::testing {

// Those that a GPU has. `inner` runs on the host; here its Params point into the fake device's memory.
class FakeOps final : public Ops {
 public:
  FakeOps(FakeDevice& device, std::unique_ptr<Ops> inner) : device_(device), inner_(std::move(inner)) {}
  ~FakeOps() override { device_.finish_all(); }

  std::string_view name() const override { return "fake"; }
  Numerics numerics() const override { return inner_->numerics(); }
  bool takes(WeightType type) const override { return inner_->takes(type); }
  OpSet supported() const override {
    using enum OpKind;
    return {embed,         rms_norm,        linear,         silu_mul,       rope_angles,    kv_write,      encode_codes,
            hash_select,   block_summaries, summary_select, attention_mass, block_topk,     carry_over,    resolve,
            fetch_extents, stage_extents,   move_columns,   paged_decode,   paged_prefill,  sample,        xattention_select,
            mla_write,     mla_absorb,      mla_unabsorb,   mla_attend,     mla_gather,     ragged_attend, lse_merge,
            moe_route,     moe_experts,     index_write,    index_topk,     index_transform};
  }
  Status prepare(const OpsLimits& limits) override { return inner_->prepare(limits); }

  void embed(const EmbedParams& p, Stream& stream) override { later("embed", &Ops::embed, p, stream); }
  void rms_norm(const RmsNormParams& p, Stream& stream) override { later("rms_norm", &Ops::rms_norm, p, stream); }
  void linear(const LinearParams& p, Stream& stream) override;
  void silu_mul(const SiluMulParams& p, Stream& stream) override { later("silu_mul", &Ops::silu_mul, p, stream); }
  void rope_angles(const RopeAnglesParams& p, Stream& stream) override { later("rope_angles", &Ops::rope_angles, p, stream); }
  void kv_write(const KvWriteParams& p, Stream& stream) override;
  void encode_codes(const EncodeCodesParams& p, Stream& stream) override { later("encode_codes", &Ops::encode_codes, p, stream); }
  void hash_select(const HashSelectParams& p, Stream& stream) override { later("hash_select", &Ops::hash_select, p, stream); }
  void block_summaries(const BlockSummariesParams& p, Stream& s) override { later("block_summaries", &Ops::block_summaries, p, s); }
  void summary_select(const SummarySelectParams& p, Stream& s) override { later("summary_select", &Ops::summary_select, p, s); }
  void attention_mass(const AttentionMassParams& p, Stream& s) override { later("attention_mass", &Ops::attention_mass, p, s); }
  void block_topk(const BlockTopkParams& p, Stream& s) override { later("block_topk", &Ops::block_topk, p, s); }
  void carry_over(const CarryOverParams& p, Stream& s) override { later("carry_over", &Ops::carry_over, p, s); }
  void resolve(const ResolveParams& p, Stream& stream) override;
  void fetch_extents(const FetchParams& p, Stream& stream) override { later("fetch_extents", &Ops::fetch_extents, p, stream); }
  void stage_extents(const StageParams& p, Stream& stream) override { later("stage_extents", &Ops::stage_extents, p, stream); }
  void move_columns(const MoveColumnsParams& p, Stream& stream) override { later("move_columns", &Ops::move_columns, p, stream); }
  void paged_decode(const AttentionParams& p, Stream& stream) override { attend("paged_decode", &Ops::paged_decode, p, stream); }
  void paged_prefill(const AttentionParams& p, Stream& stream) override { attend("paged_prefill", &Ops::paged_prefill, p, stream); }
  void xattention_select(const XAttentionParams& p, Stream& s) override { later("xattention", &Ops::xattention_select, p, s); }
  void sample(const SampleParams& p, Stream& stream) override { later("sample", &Ops::sample, p, stream); }
  void mla_write(const MlaWriteParams& p, Stream& stream) override { on_plane("mla_write", &Ops::mla_write, p, stream); }
  void mla_absorb(const MlaAbsorbParams& p, Stream& stream) override { later("mla_absorb", &Ops::mla_absorb, p, stream); }
  void mla_unabsorb(const MlaUnabsorbParams& p, Stream& stream) override { later("mla_unabsorb", &Ops::mla_unabsorb, p, stream); }
  void mla_attend(const MlaAttendParams& p, Stream& stream) override;
  void mla_gather(const MlaGatherParams& p, Stream& stream) override { on_plane("mla_gather", &Ops::mla_gather, p, stream); }
  void ragged_attend(const RaggedAttentionParams& p, Stream& s) override { later("ragged_attend", &Ops::ragged_attend, p, s); }
  void lse_merge(const LseMergeParams& p, Stream& stream) override { later("lse_merge", &Ops::lse_merge, p, stream); }
  void moe_route(const MoeRouteParams& p, Stream& stream) override { later("moe_route", &Ops::moe_route, p, stream); }
  void moe_experts(const MoeExpertsParams& p, Stream& stream) override;
  void index_write(const IndexWriteParams& p, Stream& stream) override { later("index_write", &Ops::index_write, p, stream); }
  void index_topk(const IndexTopkParams& p, Stream& stream) override { later("index_topk", &Ops::index_topk, p, stream); }
  void index_transform(const IndexTransformParams& p, Stream& s) override { later("index_transform", &Ops::index_transform, p, s); }

 private:
  template <typename Params>
  using Op = void (Ops::*)(const Params&, Stream&);

  template <typename Params>
  void later(const char* name, Op<Params> op, const Params& p, Stream& stream) {
    static_cast<FakeStream&>(stream).enqueue(
        name, [this, op, p] { (inner_.get()->*op)(p, host_); }, true);
  }
  // Params whose kv is host memory, read before the call returns.
  template <typename Params>
  void on_plane(const char* name, Op<Params> op, const Params& p, Stream& stream) {
    static_cast<FakeStream&>(stream).enqueue(
        name,
        [this, op, p, kv = *p.kv] {
          Params now = p;
          now.kv = &kv;
          (inner_.get()->*op)(now, host_);
        },
        true);
  }
  void attend(const char* name, Op<AttentionParams> op, const AttentionParams& p, Stream& stream);

  FakeDevice& device_;
  std::unique_ptr<Ops> inner_;
  CpuStream host_;
};

}  // namespace fovea::testing
