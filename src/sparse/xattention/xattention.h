// XAttention (Xu et al. 2025; docs/xattention.md): sparse prefill. Antidiagonal scores say, for each query head and tile
// of queries, which blocks of keys hold most of the attention; the rest is not read. It keeps nothing beside K and V.
#pragma once

#include <fovea/options.h>

#include "device/device.h"
#include "device/step_memory.h"
#include "sparse/method.h"

#include <string>

namespace fovea {

class XAttention final : public Method {
 public:
  explicit XAttention(XAttentionOptions options) : options_(std::move(options)) {}

  std::string_view name() const override { return "xattention"; }
  OpSet needs() const override { return {OpKind::xattention_select}; }
  std::string lineage() const override;
  bool decodes() const override { return false; }
  bool prefills() const override { return true; }
  int32_t prefill_alignment() const override { return 128; }  // tiles of 64 tokens divide it
  int64_t prefill_min_context() const override { return options_.min_context; }

  Status attach(const ModelShape& shape, const MethodLimits& limits, Device& device, StepMemory& staging) override;
  void raise_limits(OpsLimits* limits) const override;
  Status step_begin(const StepRows& step) override;
  Status select(const SelectInputs& in, Ops& ops, Stream& stream, Selection* out) override;
  // Never asked: it serves no decode rows.
  int64_t estimate_blocks(int64_t tokens, int32_t) const override { return (tokens + shape_.block_size - 1) / shape_.block_size; }

 private:
  Status check_thresholds() const;
  Status place_thresholds();
  Status reserve_units(int64_t entries);
  int32_t groups() const { return options_.group_vote ? shape_.kv_heads : shape_.num_heads; }

  XAttentionOptions options_;
  ModelShape shape_;
  MethodLimits limits_;
  Device* device_ = nullptr;
  Buffer threshold_;             // float [layers, H]
  Staged<int32_t> tile_seq_;     // of this step: [tiles]
  Staged<int32_t> tile_indptr_;  // [tiles + 1]
  int32_t tiles_ = 0;
  int32_t capacity_ = 0;  // blocks of the step's longest sequence
  Buffer units_;          // int32 [tiles, groups, capacity]; grows with the largest step
  Buffer counts_;         // int32 [tiles, groups]
};

}  // namespace fovea
