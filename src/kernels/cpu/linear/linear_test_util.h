// A linear call with its data, and the float64 result that every kernel is held to.
#pragma once

#include <fovea/kernels/limits.h>
#include <fovea/kernels/linear.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "kernels/common/convert.h"

namespace fovea::testing {

struct WeightData {
  DType dtype = DType::bf16;
  int32_t n = 0;
  std::vector<uint8_t> bytes;
  std::vector<float> bias, out;
};

struct LinearCase {
  int32_t rows = 1, k = 1;
  std::vector<WeightData> weights;
  std::vector<float> x;

  // Each weight has a bias where its index is odd. Data and out end where their vectors do, for the
  // sanitizers.
  LinearCase(int32_t rows_, int32_t k_, const std::vector<std::pair<int32_t, DType>>& shapes, uint32_t seed = 1)
      : rows(rows_), k(k_), x(static_cast<size_t>(rows_) * k_) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
    for (float& v : x) v = uniform(random);
    for (size_t i = 0; i < shapes.size(); ++i) {
      WeightData w;
      w.n = shapes[i].first;
      w.dtype = shapes[i].second;
      w.bytes.resize(static_cast<size_t>(w.n) * k * dtype_bytes(w.dtype));
      for (int64_t j = 0; j < static_cast<int64_t>(w.n) * k; ++j) store_f32(w.bytes.data(), w.dtype, j, uniform(random));
      if (i % 2 == 1) {
        for (int32_t j = 0; j < w.n; ++j) w.bias.push_back(uniform(random));
      }
      w.out.assign(static_cast<size_t>(rows) * w.n, NAN);
      weights.push_back(std::move(w));
    }
  }

  // Parameters over the first `some` rows.
  LinearParams params(std::vector<LinearWeight>& storage, int32_t some) {
    storage.clear();
    for (WeightData& w : weights)
      storage.push_back({weight_view(w.bytes.data(), w.dtype, w.n, k), w.bias.empty() ? nullptr : w.bias.data(), w.out.data()});
    return {x.data(), some, k, storage.data(), static_cast<int32_t>(storage.size())};
  }

  void poison() {
    for (WeightData& w : weights) std::fill(w.out.begin(), w.out.end(), NAN);
  }

  // sum over k of x w + bias, and of |x w| + |bias|: what rounding errors are proportional to.
  std::pair<double, double> expected(const WeightData& w, int64_t row, int64_t j) const {
    double sum = w.bias.empty() ? 0.0 : w.bias[j], size = std::fabs(sum);
    for (int64_t c = 0; c < k; ++c) {
      const double product = static_cast<double>(x[row * k + c]) * load_as_f32(w.bytes.data(), w.dtype, j * k + c);
      sum += product;
      size += std::fabs(product);
    }
    return {sum, size};
  }

  // The largest |out - expected| / sum |x w| over at most some 4000 outputs of each weight, corners among
  // them.
  double worst_error(int32_t some) const {
    double worst = 0;
    for (const WeightData& w : weights) {
      const int64_t outputs = static_cast<int64_t>(some) * w.n;
      const int64_t step = std::max<int64_t>(1, std::min<int64_t>(outputs / 4000 | 1, 1 << 20));
      for (int64_t i = 0; i < outputs; i += step) worst = std::max(worst, error_at(w, i));
      if (outputs > 0) worst = std::max(worst, error_at(w, outputs - 1));
    }
    return worst;
  }

  double error_at(const WeightData& w, int64_t i) const {
    const auto [sum, size] = expected(w, i / w.n, i % w.n);
    const double error = std::fabs(w.out[i] - sum) / (size + 1e-30);
    return std::isnan(error) ? INFINITY : error;
  }
};

// Sums in float32 are off by some rounding errors of a part of sum |x w|; bf16 rounds x (and f16 or f32
// weights) by 2^-8 each at most.
inline constexpr double kF32Tolerance = 1e-6;
inline constexpr double kBf16Tolerance = 0x1p-8 * 2.02;

inline OpsLimits linear_limits(int32_t rows, int32_t k, int32_t n) {
  OpsLimits l;
  l.max_rows = rows;
  l.max_k = k;
  l.max_n = n;
  return l;
}

}  // namespace fovea::testing
