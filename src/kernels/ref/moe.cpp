#include "kernels/ref/moe.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "kernels/common/convert.h"
#include "kernels/ref/dense_math.h"

namespace fovea::ref {
namespace {

// score(expert) of the row, float32.
std::vector<float> scores_of(const MoeRouteParams& p, const std::vector<double>& logits) {
  std::vector<float> scores(p.experts);
  double sum = 0;
  const double most = *std::max_element(logits.begin(), logits.end());
  for (const double x : logits) sum += std::exp(x - most);
  for (int32_t e = 0; e < p.experts; ++e) {
    scores[e] = static_cast<float>(p.scoring == ExpertScoring::sigmoid ? 1.0 / (1.0 + std::exp(-logits[e]))
                                                                       : std::exp(logits[e] - most) / sum);
  }
  return scores;
}

// Indices of values, the greatest first, ties to the lower index.
std::vector<int32_t> ranking(const std::vector<float>& values) {
  std::vector<int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return values[a] > values[b]; });
  return order;
}

// The best top_k experts of the best topk_groups groups.
std::vector<int32_t> chosen(const MoeRouteParams& p, const std::vector<float>& scores) {
  const int32_t size = p.experts / p.groups;
  std::vector<float> choice = scores, groups;
  for (int32_t e = 0; e < p.experts; ++e) choice[e] += p.bias ? p.bias[e] : 0.0f;
  for (int32_t g = 0; g < p.groups; ++g) {
    std::vector<float> members(choice.begin() + g * size, choice.begin() + (g + 1) * size);
    std::sort(members.begin(), members.end(), std::greater<>());
    groups.push_back(std::accumulate(members.begin(), members.begin() + std::min(p.group_top, size), 0.0f));
  }
  std::vector<int32_t> best = ranking(groups), result;
  best.resize(p.topk_groups);
  for (const int32_t e : ranking(choice)) {
    if (std::find(best.begin(), best.end(), e / size) != best.end()) result.push_back(e);
  }
  result.resize(p.top_k);
  return result;
}

}  // namespace

void moe_route(const MoeRouteParams& p) {
  FOVEA_CHECK(p.experts % p.groups == 0 && p.top_k <= p.topk_groups * (p.experts / p.groups));
  for (int64_t t = 0; t < p.rows; ++t) {
    std::vector<double> logits(p.experts, 0.0);
    for (int64_t e = 0; e < p.experts; ++e) {
      for (int32_t i = 0; i < p.hidden; ++i) {
        logits[e] += p.x[t * p.hidden + i] * static_cast<double>(load_as_f32(p.gate.data, p.gate.dtype(), e * p.hidden + i));
      }
    }
    const std::vector<float> scores = scores_of(p, logits);
    const std::vector<int32_t> experts = chosen(p, scores);
    float sum = 0;
    for (const int32_t e : experts) sum += scores[e];
    for (int32_t i = 0; i < p.top_k; ++i) {
      p.ids[t * p.top_k + i] = experts[i];
      p.weights[t * p.top_k + i] = scores[experts[i]] / (p.normalise ? sum + 1e-20f : 1.0f) * p.scaling;
    }
  }
}

void moe_experts(const MoeExpertsParams& p, Numerics numerics) {
  std::vector<float> gate(p.inter), up(p.inter), down(p.hidden);
  std::vector<int32_t> order(p.top_k);
  for (int64_t t = 0; t < p.rows; ++t) {
    const int32_t* ids = p.ids + t * p.top_k;
    float* out = p.out + t * p.hidden;
    std::fill_n(out, p.hidden, 0.0f);
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [ids](int32_t a, int32_t b) { return ids[a] < ids[b]; });
    for (int32_t i : order) {
      FOVEA_CHECK(ids[i] >= 0 && ids[i] < p.experts);
      const FeedForwardWeights& w = p.expert_weights[ids[i]];
      const LinearWeight in[] = {{w.gate, nullptr, gate.data()}, {w.up, nullptr, up.data()}};
      linear({p.x + t * p.hidden, 1, p.hidden, in, 2}, numerics);
      silu_mul({gate.data(), up.data(), gate.data(), 1, p.inter});
      const LinearWeight last{w.down, nullptr, down.data()};
      linear({gate.data(), 1, p.inter, &last, 1}, numerics);
      for (int32_t j = 0; j < p.hidden; ++j) out[j] += p.weights[t * p.top_k + i] * down[j];
    }
  }
}

}  // namespace fovea::ref
