#include "kernels/ref/dense_math.h"

#include <cmath>
#include <vector>

#include "kernels/common/convert.h"
#include "kernels/common/dequantize.h"

namespace fovea::ref {

void norm(float* x, const float* weight, int dim, float eps) {
  RmsNormParams p;
  p.x = p.out = x;
  p.weight = weight;
  p.rows = 1;
  p.dim = dim;
  p.eps = eps;
  rms_norm(p);
}

void rope(float* x, int dim, bool interleaved, const float* cos, const float* sin) {
  const int half = dim / 2;
  for (int i = 0; i < half; ++i) {
    float& a = x[interleaved ? 2 * i : i];
    float& b = x[interleaved ? 2 * i + 1 : i + half];
    const float first = a, second = b;
    a = first * cos[i] - second * sin[i];
    b = second * cos[i] + first * sin[i];
  }
}

void embed(const EmbedParams& p) {
  for (int t = 0; t < p.tokens; ++t) {
    const int32_t id = p.ids[t] >= 0 ? p.ids[t] : p.previous[-1 - p.ids[t]];
    dequantize_row(p.table, id, p.out + static_cast<int64_t>(t) * p.hidden);
  }
}

void rope_angles(const RopeAnglesParams& p) {
  for (int t = 0; t < p.tokens; ++t) {
    for (int i = 0; i < p.half; ++i) {
      const float angle = static_cast<float>(p.positions[t]) * p.inv_freq[i];
      const int64_t at = static_cast<int64_t>(t) * p.half + i;
      p.cos[at] = std::cos(angle) * p.scaling;
      p.sin[at] = std::sin(angle) * p.scaling;
    }
  }
}

void rms_norm(const RmsNormParams& p) {
  for (int r = 0; r < p.rows; ++r) {
    const int64_t from = static_cast<int64_t>(p.row_index ? p.row_index[r] : r) * p.dim;
    const auto sum_at = [&](int i) { return p.add ? p.x[from + i] + p.add[from + i] : p.x[from + i]; };
    double squares = 0.0;
    for (int i = 0; i < p.dim; ++i) squares += static_cast<double>(sum_at(i)) * sum_at(i);
    const float inverse = static_cast<float>(1.0 / std::sqrt(squares / p.dim + p.eps));
    for (int i = 0; i < p.dim; ++i) {
      const float x = sum_at(i);
      if (p.add && !p.row_index) (p.sum ? p.sum : p.x)[from + i] = x;
      if (p.out) p.out[static_cast<int64_t>(r) * p.dim + i] = x * inverse * p.weight[i];
    }
  }
}

void silu_mul(const SiluMulParams& p) {
  const int64_t count = static_cast<int64_t>(p.rows) * p.dim;
  for (int64_t i = 0; i < count; ++i) {
    const double gate = p.gate[i];
    p.out[i] = static_cast<float>(gate / (1.0 + std::exp(-gate)) * p.up[i]);
  }
}

void linear(const LinearParams& p, Numerics numerics) {
  for (int c = 0; c < p.count; ++c) {
    const LinearWeight& weight = p.weights[c];
    std::vector<float> w(static_cast<size_t>(p.k));
    for (int n = 0; n < weight.n(); ++n) {
      dequantize_row(weight.w, n, w.data());
      for (int r = 0; r < p.rows; ++r) {
        const float* x = p.x + static_cast<int64_t>(r) * p.k;
        double sum = 0.0;
        for (int k = 0; k < p.k; ++k) {
          const float a = numerics == Numerics::bf16 ? bf16_to_f32(f32_to_bf16(x[k])) : x[k];
          sum += static_cast<double>(a) * w[static_cast<size_t>(k)];
        }
        if (weight.bias) sum += weight.bias[n];
        weight.out[static_cast<int64_t>(r) * weight.n() + n] = static_cast<float>(sum);
      }
    }
  }
}

}  // namespace fovea::ref
