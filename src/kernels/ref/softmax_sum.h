// Softmax-weighted sum of values for one query, scalar, in float64: what the reference attentions share.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace fovea::ref {

// q . key, element by element; key(i) gives one.
template <typename Key>
double dot(const float* q, int32_t dim, const Key& key) {
  double sum = 0;
  for (int32_t i = 0; i < dim; ++i) sum += static_cast<double>(q[i]) * key(i);
  return sum;
}

// out [dim] = sum over keys j of softmax(score)[j] * value(j, :); lse, or null, the natural log of the sum of exponentials.
// No key: out = 0, lse = -inf. score(j) gives a key's score, value(j, i) element i of its value.
template <typename Score, typename Value>
void softmax_sum(int64_t keys, int32_t dim, const Score& score, const Value& value, float* out, float* lse) {
  std::vector<double> weights;
  double most = -std::numeric_limits<double>::infinity();
  for (int64_t j = 0; j < keys; ++j) {
    weights.push_back(score(j));
    most = std::max(most, weights.back());
  }
  double sum = 0;
  std::vector<double> acc(dim, 0.0);
  for (int64_t j = 0; j < keys; ++j) {
    const double w = std::exp(weights[j] - most);
    sum += w;
    for (int32_t i = 0; i < dim; ++i) acc[i] += w * value(j, i);
  }
  for (int32_t i = 0; i < dim; ++i) out[i] = keys == 0 ? 0.0f : static_cast<float>(acc[i] / sum);
  if (lse == nullptr) return;
  *lse = keys == 0 ? -std::numeric_limits<float>::infinity() : static_cast<float>(most + std::log(sum));
}

}  // namespace fovea::ref
