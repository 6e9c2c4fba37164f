// SampleBatch: which rows of logits a step samples, and how: SampleParams from the sequences' own parameters.
#pragma once

#include "device/step_memory.h"
#include "engine/batch.h"

#include <vector>

namespace fovea {

struct SampleTarget {
  SequenceId seq;
  RequestId request;
  int32_t answer = 0;
  int32_t logit_row = 0;
};

class SampleBatch {
 public:
  // Arrays for `max_rows` are taken from `staging`, which is committed later.
  SampleBatch(int32_t max_rows, int32_t vocab, Device& device, StepMemory& staging);
  Status init();

  // After batch.build(). In a pure decode step sampled row r is row r of the batch, padding included, so that one captured
  // graph serves every step of that size; else only what the plan asks for is sampled, in its order.
  Status build(const StepPlan& plan, const Batch& batch, const Scheduler& scheduler, const Batch::Sequences& sequences);

  // Sampled row i is for targets()[i]; padding has no sequence.
  const std::vector<SampleTarget>& targets() const { return targets_; }
  bool has_penalties() const { return has_penalties_; }
  SampleParams params(const float* logits) const;
  const int32_t* tokens() const { return tokens_.as<int32_t>(); }  // [max_rows], device memory; stays until the next step

  // History goes its own way: it can be long, and few requests have penalties. After build(), before sampling.
  void upload_history(Stream& stream);

 private:
  void set_row(int32_t row, int32_t logit_row, Sequence* sequence, const Scheduler* scheduler);
  void add_history(std::span<const TokenId> tokens);

  const int32_t max_rows_;
  const int32_t vocab_;
  Device& device_;
  Staged<float> temperature_, top_p_, min_p_, penalty_, uniform_;
  Staged<int32_t> top_k_, row_index_, history_indptr_;
  Buffer tokens_;
  std::vector<SampleTarget> targets_;
  bool has_penalties_ = false;
  std::vector<int32_t> history_;  // of this step's rows: each token that occurred, once
  std::vector<uint8_t> seen_;     // [vocab]
  Buffer device_history_, pinned_history_;
};

}  // namespace fovea
