#include "kernels/cpu/dsa/dsa_index_write.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "kernels/common/checks.h"
#include "kernels/common/convert.h"
#include "kernels/cpu/elementwise/elementwise.h"

namespace fovea::cpu {
namespace {

constexpr int32_t kHeadsPerTask = 8;  // so that one token of many heads keeps several threads busy

void round_to_bf16(float* x, int n) {
  for (int i = 0; i < n; ++i) x[i] = bf16_to_f32(f32_to_bf16(x[i]));
}

// x [n] <- H x n^-0.5 for fp8, H the Walsh-Hadamard matrix in Sylvester order, bf16 in and out. The order of the butterflies is
// part of the definition.
void hadamard(float* x, int n) {
  round_to_bf16(x, n);
  for (int h = 1; h < n; h *= 2) {
    for (int i = 0; i < n; ++i) {
      if (i & h) continue;
      const float a = x[i], b = x[i + h];
      x[i] = a + b;
      x[i + h] = a - b;
    }
  }
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(n)));
  for (int i = 0; i < n; ++i) x[i] *= scale;
  round_to_bf16(x, n);
}

// x [n] <- the values of x / scale in e4m3. Returns the scale: the least power of two that brings x into e4m3's range, amax
// clamped at 1e-4.
float quantise(float* x, int n) {
  float amax = 1e-4f;
  for (int i = 0; i < n; ++i) amax = std::max(amax, std::abs(x[i]));
  int exponent = 0;
  const float fraction = std::frexp(amax / 448.0f, &exponent);  // in [0.5, 1)
  const float scale = std::ldexp(1.0f, fraction == 0.5f ? exponent - 1 : exponent);
  for (int i = 0; i < n; ++i) x[i] = fp8_e4m3_to_f32(f32_to_fp8_e4m3(x[i] / scale));
  return scale;
}

void write_query(const IndexWriteParams& p, int64_t token, int32_t head) {
  const int32_t dim = p.keys.dim;
  float* q = p.q + (token * p.heads + head) * dim;
  float& weight = p.weights[token * p.heads + head];
  weight *= static_cast<float>(1.0 / std::sqrt(static_cast<double>(p.heads) * dim));
  rotate(q, p.rope_dim, p.rope_interleaved, p.cos + token * (p.rope_dim / 2), p.sin + token * (p.rope_dim / 2));
  if (p.keys.precision == IndexPrecision::bf16) round_to_bf16(q, dim);
  if (p.keys.precision != IndexPrecision::fp8) return;
  hadamard(q, dim);
  weight *= quantise(q, dim);  // a power of two: exact
}

// LayerNorm in float32 (biased variance), rope, rounding.
void write_key(const IndexWriteParams& p, int64_t token) {
  const IndexKeysView& keys = p.keys;
  const int32_t dim = keys.dim;
  const float* k = p.k + token * dim;
  std::array<float, kMaxIndexDim> key;
  double sum = 0.0, squares = 0.0;
  for (int32_t i = 0; i < dim; ++i) sum += k[i];
  const double mean = sum / dim;
  for (int32_t i = 0; i < dim; ++i) squares += (k[i] - mean) * (k[i] - mean);
  const auto inverse = static_cast<float>(1.0 / std::sqrt(squares / dim + p.norm_eps));
  const auto centre = static_cast<float>(mean);
  for (int32_t i = 0; i < dim; ++i) key[i] = (k[i] - centre) * inverse * p.norm_weight[i] + p.norm_bias[i];
  rotate(key.data(), p.rope_dim, p.rope_interleaved, p.cos + token * (p.rope_dim / 2), p.sin + token * (p.rope_dim / 2));
  const int64_t slot = p.slot_mapping[token];
  DType dtype = keys.precision == IndexPrecision::exact ? DType::f32 : DType::bf16;
  if (keys.precision == IndexPrecision::fp8) {
    hadamard(key.data(), dim);
    keys.scale[slot] = quantise(key.data(), dim);
    dtype = DType::fp8_e4m3;
  }
  for (int32_t i = 0; i < dim; ++i) store_f32(keys.k, dtype, slot * dim + i, key[i]);
}

}  // namespace

void index_write(const IndexWriteParams& p, ThreadPool& pool) {
  check_index_write(p);
  const int32_t groups = std::max(1, (p.heads + kHeadsPerTask - 1) / kHeadsPerTask);
  pool.parallel_for(int64_t{p.tokens} * groups, [&](int64_t task, int) {
    const int64_t token = task / groups;
    const int32_t first = static_cast<int32_t>(task % groups) * kHeadsPerTask;
    for (int32_t h = first; h < std::min(first + kHeadsPerTask, p.heads); ++h) write_query(p, token, h);
    if (first == 0 && p.slot_mapping[token] >= 0) write_key(p, token);
  });
}

}  // namespace fovea::cpu
