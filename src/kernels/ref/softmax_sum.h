// Softmax-weighted sum of values for one query, scalar, in float64: what the reference attentions with keys and values
// of different sizes share.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace fovea::ref {

struct SoftmaxQuery {
  const float* q = nullptr;  // [k_dim]
  int32_t k_dim = 0, v_dim = 0;
  int64_t keys = 0;
  float scale = 1.0f;
};

// out [v_dim] = sum over keys j of softmax(scale * q . key(j, :))[j] * value(j, :); lse, or null, the natural log of the sum of
// exponentials. No key: out = 0, lse = -inf. key(j, i) and value(j, i) give element i.
template <typename Key, typename Value>
void softmax_sum(const SoftmaxQuery& query, const Key& key, const Value& value, float* out, float* lse) {
  std::vector<double> weights;
  double most = -std::numeric_limits<double>::infinity();
  for (int64_t j = 0; j < query.keys; ++j) {
    double dot = 0;
    for (int32_t i = 0; i < query.k_dim; ++i) dot += static_cast<double>(query.q[i]) * key(j, i);
    weights.push_back(dot * query.scale);
    most = std::max(most, weights.back());
  }
  double sum = 0;
  std::vector<double> acc(query.v_dim, 0.0);
  for (int64_t j = 0; j < query.keys; ++j) {
    const double w = std::exp(weights[j] - most);
    sum += w;
    for (int32_t i = 0; i < query.v_dim; ++i) acc[i] += w * value(j, i);
  }
  for (int32_t i = 0; i < query.v_dim; ++i) out[i] = query.keys == 0 ? 0.0f : static_cast<float>(acc[i] / sum);
  if (lse == nullptr) return;
  *lse = query.keys == 0 ? -std::numeric_limits<float>::infinity() : static_cast<float>(most + std::log(sum));
}

}  // namespace fovea::ref
