// SampleBatch: which rows of logits a step samples, and how: SampleParams from the requests' own parameters.
#pragma once

#include "device/step_memory.h"
#include "runner/batch.h"

#include <vector>

namespace fovea {

class SampleBatch {
 public:
  // Arrays for `max_rows` are taken from `staging`, which is committed later.
  SampleBatch(int32_t max_rows, int32_t vocab, Device& device, StepMemory& staging);
  Status init();

  // After batch.build(). In a pure decode step sampled row r is row r of the batch, padding included, so that one captured
  // graph serves every step of that size; else only what the plan asks for is sampled, in its order.
  Status build(const StepInput& plan, const Batch& batch);

  // Sampled row i is for targets()[i], drawn from row logit_rows()[i] of the logits; padding has no sequence.
  std::span<const SampledToken> targets() const { return targets_; }
  std::span<const int32_t> logit_rows() const { return {row_index_.host(), targets_.size()}; }
  bool has_penalties() const { return has_penalties_; }
  SampleParams params(const float* logits) const;
  const int32_t* tokens() const { return tokens_.as<int32_t>(); }  // [max_rows], device memory; stays until the next step

  // History goes its own way: it can be long, and few requests have penalties. After build(), before sampling.
  void upload_history(Stream& stream);

 private:
  void add_row(int32_t logit_row, const PlannedSample* sample);
  void add_history(std::span<const TokenId> tokens);

  const int32_t max_rows_;
  const int32_t vocab_;
  Device& device_;
  Staged<float> temperature_, top_p_, min_p_, penalty_, uniform_;
  Staged<int32_t> top_k_, row_index_, history_indptr_;
  Buffer tokens_;
  std::vector<SampledToken> targets_;
  bool has_penalties_ = false;
  std::vector<int32_t> history_;  // of this step's rows: each token that occurred, once
  std::vector<uint8_t> seen_;     // [vocab]
  Buffer device_history_, pinned_history_;
};

}  // namespace fovea
