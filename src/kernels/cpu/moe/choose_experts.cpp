#include "kernels/cpu/moe/choose_experts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"

namespace fovea::cpu {
namespace {

constexpr int32_t kMaxExpertGroups = 64;

// Puts the indices of the `k` greatest of values[0..n) to the front of `ranks`, the greatest first, ties to the lower index.
void rank(const float* values, int32_t n, int32_t k, int32_t* ranks) {
  std::iota(ranks, ranks + n, 0);
  std::partial_sort(ranks, ranks + k, ranks + n,
                    [values](int32_t a, int32_t b) { return values[a] != values[b] ? values[a] > values[b] : a < b; });
}

void score_experts(const MoeRouteParams& p, const float* logits, float* scores) {
  if (p.scoring == ExpertScoring::sigmoid) {
    for (int32_t e = 0; e < p.experts; ++e) scores[e] = static_cast<float>(1.0 / (1.0 + std::exp(-static_cast<double>(logits[e]))));
    return;
  }
  const float most = *std::max_element(logits, logits + p.experts);
  double sum = 0;
  for (int32_t e = 0; e < p.experts; ++e) sum += std::exp(static_cast<double>(logits[e]) - most);
  for (int32_t e = 0; e < p.experts; ++e) scores[e] = static_cast<float>(std::exp(static_cast<double>(logits[e]) - most) / sum);
}

// Sets `choice` to -inf in all groups but the best topk_groups. `ranks` [experts] is scratch.
void keep_best_groups(const MoeRouteParams& p, float* choice, int32_t* ranks) {
  const int32_t size = p.experts / p.groups;
  const auto group_score = [&](int32_t g) {
    rank(choice + g * size, size, p.group_top, ranks);
    float sum = 0;
    for (int32_t i = 0; i < p.group_top; ++i) sum += choice[g * size + ranks[i]];
    return sum;
  };
  float scores[kMaxExpertGroups];
  int32_t order[kMaxExpertGroups];
  for (int32_t g = 0; g < p.groups; ++g) scores[g] = group_score(g);
  rank(scores, p.groups, p.groups, order);
  for (int32_t i = p.topk_groups; i < p.groups; ++i) {
    std::fill_n(choice + order[i] * size, size, -std::numeric_limits<float>::infinity());
  }
}

}  // namespace

void choose_experts(const MoeRouteParams& p, const float* logits, float* scores, int32_t* ranks, int32_t* ids, float* weights) {
  FOVEA_CHECK(p.groups >= 1 && p.groups <= kMaxExpertGroups && p.experts % p.groups == 0);
  const int32_t size = p.experts / p.groups;
  FOVEA_CHECK(p.topk_groups >= 1 && p.topk_groups <= p.groups && p.top_k >= 1 && p.top_k <= p.topk_groups * size);
  float* choice = scores + p.experts;
  score_experts(p, logits, scores);
  for (int32_t e = 0; e < p.experts; ++e) choice[e] = p.bias != nullptr ? scores[e] + p.bias[e] : scores[e];
  if (p.topk_groups < p.groups) {
    FOVEA_CHECK(p.group_top >= 1 && p.group_top <= size);
    keep_best_groups(p, choice, ranks);
  }
  rank(choice, p.experts, p.top_k, ranks);
  float sum = 0;
  for (int32_t i = 0; i < p.top_k; ++i) {
    ids[i] = ranks[i];
    weights[i] = scores[ranks[i]];
    sum += weights[i];
  }
  for (int32_t i = 0; i < p.top_k; ++i) weights[i] = (p.normalise ? weights[i] / (sum + 1e-20f) : weights[i]) * p.scaling;
}

}  // namespace fovea::cpu
