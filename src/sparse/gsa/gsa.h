// GSA (UCM; docs/methods.md): sparse decode whose unread blocks may lie outside the pool. It scores blocks by one of several
// representations, keeps the best per layer and KV head, and names what later steps will want near.
//
// Memory of a request beside its lists (gsa_family.h): with `recency` a count for each block, on the host: its choice follows from
// lengths alone.
#pragma once

#include "sparse/gsa/recency.h"
#include "sparse/gsa_family/gsa_family.h"

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace fovea {

class Gsa final : public GsaFamily {
 public:
  explicit Gsa(GsaOptions options) : GsaFamily(std::move(options)) {}

  std::string_view name() const override { return "gsa"; }
  bool chooses_without_keys() const override {
    return options_.representation == GsaRepresentation::hash || options_.representation == GsaRepresentation::recency;
  }
  OpSet needs() const override {
    using enum OpKind;
    return GsaFamily::needs().with({block_summaries, encode_codes, summary_select, attention_mass, block_topk});
  }

  Status attach(const ModelShape& shape, const MethodLimits& limits, Device& device, StepMemory& staging) override;
  std::vector<PlaneSpec> planes() const override;
  bool codes_view(std::byte* plane, CodesView* out) const override;
  void request_finish(SequenceId sequence) override;
  Status step_begin(const StepRows& step) override;
  void step_finish(bool ok) override;
  uint64_t graph_key() const override { return GsaFamily::graph_key() << 1 | static_cast<uint64_t>(half_); }
  Status select(const SelectInputs& in, Ops& ops, Stream& stream, Selection* out) override;
  void on_kv_written(const KvWritten& written, Ops& ops, Stream& stream) override;
  int64_t summary_bytes(int64_t row_len) const override;

 private:
  bool has_codec() const;
  bool chooses_by_scores() const override { return options_.representation != GsaRepresentation::recency; }
  Status choose_by_recency(const StepRows& step);
  int32_t* recent_units() const { return limits_.host ? units_.as<int32_t>() : recent_[half_].as<int32_t>(); }
  Status score(const SelectInputs& in, int32_t* units, Ops& ops, Stream& stream) override;
  void select_by_mass(const SelectInputs& in, int32_t* units, Ops& ops, Stream& stream);

  Buffer mass_;  // float [kMassRows, kv_heads, blocks]: oracle
  // recency: lists as the host chose them, [rows, capacity]. Steps take turns: the copy from one of them may still be under way.
  Buffer recent_[2];               // pinned; not used where the device is the host
  int32_t half_ = 0;               // that of this step
  bool sent_ = false;              // in this step
  Staged<int32_t> recent_counts_;  // [rows]
  std::vector<int32_t> order_;     // [blocks]
  std::unordered_map<SequenceId, Recency> recency_;
};

}  // namespace fovea
