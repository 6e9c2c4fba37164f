#include "kernels/cpu/sample/sample.h"

#include "base/check.h"

#include <algorithm>
#include <cmath>

namespace fovea::cpu {

void Sample::prepare(int32_t vocab) {
  candidates_.resize(static_cast<size_t>(vocab));
  logits_.resize(static_cast<size_t>(vocab));
  seen_.assign(static_cast<size_t>(vocab), 0);
}

void Sample::run(const SampleParams& p) {
  FOVEA_CHECK(static_cast<size_t>(p.vocab) <= candidates_.size());
  for (int32_t r = 0; r < p.rows; ++r) p.tokens[r] = choose(p, r);
}

// The row's logits with the repetition penalty of each token that occurred, once however often it did.
void Sample::load(const SampleParams& p, int32_t row) {
  const int64_t from = p.row_index ? p.row_index[row] : row;
  std::copy_n(p.logits + from * p.vocab, p.vocab, logits_.begin());
  const float penalty = p.repetition_penalty ? p.repetition_penalty[row] : 1.0f;
  if (penalty == 1.0f || !p.history) return;
  for (int32_t i = p.history_indptr[row]; i < p.history_indptr[row + 1]; ++i) {
    const int32_t id = p.history[i];
    if (id < 0 || id >= p.vocab || seen_[id]) continue;
    seen_[id] = 1;
    logits_[id] = logits_[id] > 0.0f ? logits_[id] / penalty : logits_[id] * penalty;
  }
  for (int32_t i = p.history_indptr[row]; i < p.history_indptr[row + 1]; ++i) {
    if (p.history[i] >= 0 && p.history[i] < p.vocab) seen_[p.history[i]] = 0;
  }
}

// Keeps the least head of the ranking whose mass reaches top_p; returns its size. candidates_[0, count) become sorted.
size_t Sample::keep_top_p(size_t count, float top_p) {
  const auto first = candidates_.begin();
  std::sort(first, first + count,
            [](const Candidate& a, const Candidate& b) { return a.logit != b.logit ? a.logit > b.logit : a.id < b.id; });
  const float top = candidates_[0].logit;
  double total = 0.0;
  for (size_t i = 0; i < count; ++i) total += std::exp(candidates_[i].logit - top);
  double mass = 0.0;
  size_t kept = 0;
  while (kept < count && (kept == 0 || mass < double(top_p) * total)) mass += std::exp(candidates_[kept++].logit - top);
  return kept;
}

// candidates_[0, count) in ascending id: the first at which the weights so far exceed uniform * (sum of all).
int32_t Sample::walk(size_t count, float uniform) const {
  float top = candidates_[0].logit;
  for (size_t i = 1; i < count; ++i) top = std::max(top, candidates_[i].logit);
  double total = 0.0;
  for (size_t i = 0; i < count; ++i) total += std::exp(candidates_[i].logit - top);
  double left = uniform * total;
  int32_t last = candidates_[0].id;
  for (size_t i = 0; i < count; ++i) {
    const float weight = std::exp(candidates_[i].logit - top);
    if (weight == 0.0f) continue;
    last = candidates_[i].id;
    left -= weight;
    if (left < 0.0) break;
  }
  return last;
}

int32_t Sample::choose(const SampleParams& p, int32_t row) {
  load(p, row);
  const float temperature = p.temperature[row];
  if (temperature == 0.0f)  // max_element keeps the first of equals: the lower id
    return static_cast<int32_t>(std::max_element(logits_.begin(), logits_.begin() + p.vocab) - logits_.begin());

  size_t count = static_cast<size_t>(p.vocab);
  for (size_t i = 0; i < count; ++i) candidates_[i] = {logits_[i] / temperature, static_cast<int32_t>(i)};
  const auto first = candidates_.begin();
  const size_t top_k = static_cast<size_t>(p.top_k[row]);
  if (top_k > 0 && top_k < count) {
    std::nth_element(first, first + top_k, first + count,
                     [](const Candidate& a, const Candidate& b) { return a.logit != b.logit ? a.logit > b.logit : a.id < b.id; });
    count = top_k;
  }
  if (p.top_p[row] < 1.0f) count = keep_top_p(count, p.top_p[row]);
  if (p.min_p[row] > 0.0f) {
    float top = candidates_[0].logit;
    for (size_t i = 1; i < count; ++i) top = std::max(top, candidates_[i].logit);
    const auto end =
        std::remove_if(first, first + count, [&](const Candidate& c) { return std::exp(c.logit - top) < p.min_p[row]; });
    count = static_cast<size_t>(end - first);
  }
  const bool ordered = (top_k == 0 || top_k >= static_cast<size_t>(p.vocab)) && p.top_p[row] >= 1.0f;
  if (!ordered) std::sort(first, first + count, [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  return walk(count, p.uniform[row]);
}

}  // namespace fovea::cpu
