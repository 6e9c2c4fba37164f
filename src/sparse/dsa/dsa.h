// DSA (DeepSeek-V3.2, GLM-5; docs/dsa.md): the model's own indexer scores every visible token for each query row, and
// attention reads the best `topk` of them. Index keys lie in planes named by their precision; the forward pass writes them.
#pragma once

#include <fovea/options.h>

#include "device/step_memory.h"
#include "sparse/method.h"

#include <string>
#include <vector>

namespace fovea {

class Dsa final : public Method {
 public:
  explicit Dsa(DsaOptions options) : options_(options) {}

  std::string_view name() const override { return "dsa"; }
  OpSet needs() const override { return {OpKind::index_write, OpKind::index_topk}; }
  std::string lineage() const override;
  bool prefills() const override { return true; }
  bool trained() const override { return true; }
  bool reads_latents() const override { return true; }
  // Rows that would be given every token are dense rows: the indexer only writes their keys.
  int64_t prefill_min_context() const override { return topk_; }
  std::vector<int32_t> reuse_layers() const override { return shape_.shared_index_layers; }

  Status attach(const ModelShape& shape, const MethodLimits& limits, Device& device, StepMemory& staging) override;
  std::vector<PlaneSpec> planes() const override;
  bool index_keys(std::byte* const* planes, IndexKeysView* out) const override;
  Status step_begin(const StepRows& step) override;
  Status select(const SelectInputs& in, Ops& ops, Stream& stream, Selection* out) override;
  int64_t estimate_blocks(int64_t tokens, int32_t budget_tokens) const override;
  int64_t summary_bytes(int64_t row_len) const override;

 private:
  // Prefill and decode rows of a step are chosen for one after the other, and read later: each has its own.
  struct Lists {
    Buffer positions, counts;
  };

  Status check(const ModelShape& shape, const MethodLimits& limits, const Device& device) const;
  Status allocate(Lists* lists, Device& device);
  IndexTopkParams choice(const SelectInputs& in, Lists& lists) const;

  const DsaOptions options_;
  ModelShape shape_;
  MethodLimits limits_;
  int32_t topk_ = 0;
  Lists lists_[2];  // [prefill]
  Buffer logits_;   // option materialize only
  int64_t logits_floats_ = 0;
};

}  // namespace fovea
