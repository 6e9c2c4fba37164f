// For tests: the arithmetic of a layer as plainly as it can be written, sums in double.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/common/dequantize.h"
#include "model/checkpoint.h"

namespace fovea {

using Row = std::vector<float>;

// A weight matrix in float32, converted once.
struct Dense {
  explicit Dense(const WeightView& w) : rows(w.rows), cols(w.cols), data(static_cast<size_t>(w.rows * w.cols)) {
    for (int64_t row = 0; row < rows; ++row) dequantize_row(w, row, data.data() + row * cols);
  }
  int64_t rows, cols;
  std::vector<float> data;
};

inline Row multiply(const Dense& w, const Row& x, WeightVector bias = {}) {
  Row y(static_cast<size_t>(w.rows));
  for (int64_t n = 0; n < w.rows; ++n) {
    const float* row = w.data.data() + n * w.cols;
    double sum = bias.empty() ? 0.0 : bias[n];
    for (int64_t k = 0; k < w.cols; ++k) sum += row[k] * x[k];
    y[n] = static_cast<float>(sum);
  }
  return y;
}

inline void norm(float* x, WeightVector weight, float eps) {
  double sum = 0;
  for (size_t i = 0; i < weight.size(); ++i) sum += x[i] * x[i];
  const auto scale = static_cast<float>(1 / std::sqrt(sum / static_cast<double>(weight.size()) + eps));
  for (size_t i = 0; i < weight.size(); ++i) x[i] *= scale * weight[i];
}

inline void add(const Row& x, Row* y) {
  for (size_t i = 0; i < x.size(); ++i) (*y)[i] += x[i];
}

inline float silu(float x) { return x / (1 + std::exp(-x)); }

inline Row embedding(const ModelWeights& w, int32_t id) {
  Row row(static_cast<size_t>(w.embed.cols));
  dequantize_row(w.embed, id, row.data());
  return row;
}

}  // namespace fovea
