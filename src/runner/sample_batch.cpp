#include "runner/sample_batch.h"

#include "base/check.h"

#include <algorithm>
#include <cstring>

namespace fovea {

SampleBatch::SampleBatch(int32_t max_rows, int32_t vocab, Device& device, StepMemory& staging)
    : max_rows_(max_rows), vocab_(vocab), device_(device) {
  for (auto* a : {&temperature_, &top_p_, &min_p_, &penalty_, &uniform_}) *a = staging.take_rows<float>(max_rows);
  for (auto* a : {&top_k_, &row_index_}) *a = staging.take_rows<int32_t>(max_rows);
  history_indptr_ = staging.take_rows<int32_t>(max_rows + 1);
  targets_.reserve(static_cast<size_t>(max_rows));
  seen_.assign(static_cast<size_t>(vocab), 0);
}

Status SampleBatch::init() {
  FOVEA_ASSIGN(tokens_, device_.allocate(sizeof(int32_t) * static_cast<size_t>(max_rows_), "sampled tokens"));
  return {};
}

Status SampleBatch::build(const StepInput& plan, const Batch& batch) {
  targets_.clear();
  history_.clear();
  has_penalties_ = false;
  history_indptr_.host()[0] = 0;
  if (batch.is_pure_decode()) {
    // Row r of the batch, padding included; the groups of a batch take rows out of the plan's order.
    for (int32_t row = 0; row < batch.forward().tokens; ++row) {
      const int32_t piece = batch.plan_row(row);
      add_row(row, piece < 0 ? nullptr : &plan.samples[static_cast<size_t>(plan.rows[static_cast<size_t>(piece)].first_sample)]);
    }
  } else {
    for (size_t i = 0; i < plan.rows.size(); ++i) {
      const PlannedRows& rows = plan.rows[i];
      for (int32_t s = 0; s < rows.num_samples; ++s)
        add_row(batch.logit_index(i), &plan.samples[static_cast<size_t>(rows.first_sample + s)]);
    }
  }
  if (history_.empty()) return {};
  const size_t bytes = history_.size() * sizeof(int32_t);
  if (device_history_.bytes() < bytes) {
    if (!device_.is_host()) {
      FOVEA_ASSIGN(pinned_history_, device_.allocate_pinned(2 * bytes, "tokens under a repetition penalty"));
    }
    FOVEA_ASSIGN(device_history_, device_.allocate(2 * bytes, "tokens under a repetition penalty"));  // last: its size tells
  }
  return {};
}

void SampleBatch::add_row(int32_t logit_row, const PlannedSample* sample) {
  const auto row = static_cast<int32_t>(targets_.size());
  FOVEA_CHECK(row < max_rows_);
  static const SamplingParams kPadding{.temperature = 0};
  const SamplingParams& p = sample && !sample->chosen_by_host ? *sample->params : kPadding;
  temperature_.host()[row] = p.temperature;
  top_k_.host()[row] = p.top_k;
  top_p_.host()[row] = p.top_p;
  min_p_.host()[row] = p.min_p;
  penalty_.host()[row] = p.repetition_penalty;
  uniform_.host()[row] = sample ? sample->uniform : 0.0f;
  row_index_.host()[row] = logit_row;
  if (p.repetition_penalty != 1.0f) {
    has_penalties_ = true;
    add_history(sample->history);
  }
  history_indptr_.host()[row + 1] = static_cast<int32_t>(history_.size());
  targets_.push_back({sample ? sample->sequence : SequenceId{}, 0});
}

void SampleBatch::add_history(std::span<const TokenId> tokens) {
  const size_t from = history_.size();
  for (TokenId id : tokens) {
    if (id < 0 || id >= vocab_ || seen_[static_cast<size_t>(id)]) continue;
    seen_[static_cast<size_t>(id)] = 1;
    history_.push_back(id);
  }
  for (size_t i = from; i < history_.size(); ++i) seen_[static_cast<size_t>(history_[i])] = 0;
}

void SampleBatch::upload_history(Stream& stream) {
  if (history_.empty()) return;
  const size_t bytes = history_.size() * sizeof(int32_t);
  if (device_.is_host()) {
    std::memcpy(device_history_.data(), history_.data(), bytes);
    return;
  }
  // The step before was read before this one was planned (a penalty needs its token), so its copy is done.
  std::memcpy(pinned_history_.data(), history_.data(), bytes);
  device_.copy(device_history_.data(), pinned_history_.data(), bytes, CopyKind::to_device, stream);
}

SampleParams SampleBatch::params(const float* logits) const {
  SampleParams p;
  p.logits = logits;
  p.rows = static_cast<int32_t>(targets_.size());
  p.vocab = vocab_;
  p.temperature = temperature_.device();
  p.top_k = top_k_.device();
  p.top_p = top_p_.device();
  p.min_p = min_p_.device();
  p.repetition_penalty = penalty_.device();
  p.uniform = uniform_.device();
  p.row_index = row_index_.device();
  if (has_penalties_) {
    p.history = device_history_.as<int32_t>();
    p.history_indptr = history_indptr_.device();
  }
  p.tokens = tokens_.as<int32_t>();
  return p;
}

}  // namespace fovea
