#include "kernels/cpu/sample/sample.h"

#include "base/check.h"

#include <algorithm>
#include <cmath>

namespace fovea::cpu {
namespace {

// As many chains as hide the latency of a maximum: one takes four times as long.
float most(const float* x, int32_t n) {
  constexpr int32_t kChains = 32;
  float tops[kChains];
  std::fill_n(tops, kChains, x[0]);
  int32_t i = 0;
  for (; i + kChains <= n; i += kChains) {
    for (int32_t j = 0; j < kChains; ++j) tops[j] = x[i + j] > tops[j] ? x[i + j] : tops[j];
  }
  for (; i < n; ++i) tops[0] = x[i] > tops[0] ? x[i] : tops[0];
  return *std::max_element(tops, tops + kChains);
}

}  // namespace

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

// Keeps the least head of the ranking whose mass reaches top_p; returns its size. candidates_[0, it) become sorted. Of a vocabulary
// of 128K few are kept as a rule: no more is sorted than it takes.
size_t Sample::keep_top_p(size_t count, float top_p) {
  const auto ranks_before = [](const Candidate& a, const Candidate& b) { return a.logit != b.logit ? a.logit > b.logit : a.id < b.id; };
  const auto first = candidates_.begin();
  const float top = std::min_element(first, first + count, ranks_before)->logit;
  double total = 0.0;
  for (size_t i = 0; i < count; ++i) total += std::exp(candidates_[i].logit - top);
  double mass = 0.0;
  size_t kept = 0, sorted = 0;
  for (; kept < count && (kept == 0 || mass < double(top_p) * total); ++kept) {
    if (kept == sorted) {
      const size_t end = std::min(count, std::max<size_t>(256, 4 * sorted));
      if (end < count) std::nth_element(first + sorted, first + end, first + count, ranks_before);
      std::sort(first + sorted, first + end, ranks_before);
      sorted = end;
    }
    mass += std::exp(candidates_[kept].logit - top);
  }
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
  if (temperature == 0.0f) {
    const auto end = logits_.begin() + p.vocab, at = std::find(logits_.begin(), end, most(logits_.data(), p.vocab));
    return at == end ? 0 : static_cast<int32_t>(at - logits_.begin());  // of equals the first; none equals NaN
  }

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
