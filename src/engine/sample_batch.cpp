#include "engine/sample_batch.h"

#include "base/check.h"
#include "engine/sampler.h"

#include <algorithm>
#include <cstring>

namespace fovea {

SampleBatch::SampleBatch(int32_t max_rows, int32_t vocab, Device& device, StepMemory& staging)
    : max_rows_(max_rows), vocab_(vocab), device_(device) {
  for (auto* a : {&temperature_, &top_p_, &min_p_, &penalty_, &uniform_}) *a = staging.take<float>(max_rows);
  for (auto* a : {&top_k_, &row_index_}) *a = staging.take<int32_t>(max_rows);
  history_indptr_ = staging.take<int32_t>(max_rows + 1);
  targets_.reserve(static_cast<size_t>(max_rows));
  seen_.assign(static_cast<size_t>(vocab), 0);
}

Status SampleBatch::init() {
  FOVEA_ASSIGN(tokens_, device_.allocate(sizeof(int32_t) * static_cast<size_t>(max_rows_), "sampled tokens"));
  return {};
}

Status SampleBatch::build(const StepPlan& plan, const Batch& batch, const Scheduler& scheduler, const Batch::Sequences& sequences) {
  targets_.clear();
  history_.clear();
  has_penalties_ = false;
  history_indptr_.host()[0] = 0;
  if (batch.is_pure_decode()) {
    for (int32_t row = 0; row < batch.forward().tokens; ++row) set_row(row, row, batch.row_sequence(row), &scheduler);
  } else {
    for (size_t i = 0; i < plan.rows.size(); ++i) {
      for (SequenceId id : plan.rows[i].sample_for)
        set_row(static_cast<int32_t>(targets_.size()), batch.logit_index(i), sequences.at(id).get(), &scheduler);
    }
  }
  if (history_.empty()) return {};
  const size_t bytes = history_.size() * sizeof(int32_t);
  if (device_history_.bytes() < bytes) {
    FOVEA_ASSIGN(device_history_, device_.allocate(2 * bytes, "tokens under a repetition penalty"));
    if (!device_.is_host()) {
      FOVEA_ASSIGN(pinned_history_, device_.allocate_pinned(2 * bytes, "tokens under a repetition penalty"));
    }
  }
  return {};
}

void SampleBatch::set_row(int32_t row, int32_t logit_row, Sequence* s, const Scheduler* scheduler) {
  FOVEA_CHECK(row < max_rows_);
  static const SamplingParams kPadding = [] {
    SamplingParams p;
    p.temperature = 0;
    return p;
  }();
  const SamplingParams& p = s ? s->sampling : kPadding;
  temperature_.host()[row] = p.temperature;
  top_k_.host()[row] = p.top_k;
  top_p_.host()[row] = p.top_p;
  min_p_.host()[row] = p.min_p;
  penalty_.host()[row] = p.repetition_penalty;
  uniform_.host()[row] = s ? sample_uniform(s->seed, s->index, static_cast<int64_t>(scheduler->tokens(s->id).size()) - s->prompt_tokens) : 0.0f;
  row_index_.host()[row] = logit_row;
  if (p.repetition_penalty != 1.0f) {
    has_penalties_ = true;
    add_history(scheduler->tokens(s->id));
  }
  history_indptr_.host()[row + 1] = static_cast<int32_t>(history_.size());
  targets_.push_back({});
  if (!s) return;
  targets_.back() = {s->id, s->request, s->index, logit_row};
  s->sample_row = row;
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
