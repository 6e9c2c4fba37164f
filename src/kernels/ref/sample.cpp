#include "kernels/ref/sample.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <vector>

namespace fovea::ref {
namespace {

std::vector<float> penalised(const SampleParams& p, int32_t row) {
  const float* from = p.logits + static_cast<int64_t>(p.row_index ? p.row_index[row] : row) * p.vocab;
  std::vector<float> logits(from, from + p.vocab);
  if (p.repetition_penalty == nullptr || p.history == nullptr) return logits;
  const float penalty = p.repetition_penalty[row];
  const std::set<int32_t> seen(p.history + p.history_indptr[row], p.history + p.history_indptr[row + 1]);
  for (const int32_t id : seen) {
    if (id < 0 || id >= p.vocab) continue;
    logits[id] = logits[id] > 0.0f ? logits[id] / penalty : logits[id] * penalty;
  }
  return logits;
}

int32_t choose(const SampleParams& p, int32_t row) {
  std::vector<float> logits = penalised(p, row);
  std::vector<int32_t> ranking(p.vocab);
  std::iota(ranking.begin(), ranking.end(), 0);
  std::stable_sort(ranking.begin(), ranking.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  if (p.temperature[row] == 0.0f) return ranking[0];

  for (float& x : logits) x /= p.temperature[row];
  const auto weight = [&](int32_t id) { return double{std::exp(logits[id] - logits[ranking[0]])}; };
  const auto mass = [&] {
    double sum = 0.0;
    for (const int32_t id : ranking) sum += weight(id);
    return sum;
  };
  if (p.top_k[row] > 0) ranking.resize(std::min(p.top_k[row], p.vocab));
  if (p.top_p[row] < 1.0f) {
    const double enough = double{p.top_p[row]} * mass();
    double sum = weight(ranking[0]);
    size_t kept = 1;
    while (kept < ranking.size() && sum < enough) sum += weight(ranking[kept++]);
    ranking.resize(kept);
  }
  const int32_t first = ranking[0];
  std::erase_if(ranking, [&](int32_t id) { return id != first && weight(id) < p.min_p[row]; });

  double left = double{p.uniform[row]} * mass();
  std::vector<int32_t> ascending = ranking;
  std::sort(ascending.begin(), ascending.end());
  int32_t last = first;
  for (const int32_t id : ascending) {
    if (weight(id) == 0.0) continue;
    last = id;
    left -= weight(id);
    if (left < 0.0) break;
  }
  return last;
}

}  // namespace

void sample(const SampleParams& p) {
  for (int32_t r = 0; r < p.rows; ++r) p.tokens[r] = choose(p, r);
}

}  // namespace fovea::ref
