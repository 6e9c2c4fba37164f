#include "kernels/ref/dsa_index.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "kernels/common/checks.h"
#include "kernels/common/convert.h"
#include "kernels/ref/dense_math.h"
#include "kernels/ref/hash.h"

namespace fovea::ref {
namespace {

constexpr float kLeastAmax = 1e-4f;
constexpr float kLargestE4m3 = 448.0f;

void rope_token(const IndexWriteParams& p, int64_t token, float* x) {
  const int64_t at = token * (p.rope_dim / 2);
  rope(x, p.rope_dim, p.rope_interleaved, p.cos + at, p.sin + at);
}

void round_to_bf16(float* x, int n) {
  for (int i = 0; i < n; ++i) x[i] = bf16_to_f32(f32_to_bf16(x[i]));
}

}  // namespace

float index_weight_factor(int heads, int dim) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(heads) * dim)); }

float ue8m0_scale(float amax) {
  const uint32_t ratio = std::bit_cast<uint32_t>(std::max(amax, kLeastAmax) / kLargestE4m3);
  const uint32_t exponent = (ratio >> 23) + ((ratio & 0x7fffffu) != 0);  // ceil: up unless it is a power of two
  return std::bit_cast<float>(exponent << 23);
}

void index_hadamard(float* x, int n) {
  round_to_bf16(x, n);
  walsh_hadamard(x, n);
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(n)));
  for (int i = 0; i < n; ++i) x[i] *= scale;
  round_to_bf16(x, n);
}

float index_quantise(float* x, int n) {
  float amax = 0.0f;
  for (int i = 0; i < n; ++i) amax = std::max(amax, std::abs(x[i]));
  const float scale = ue8m0_scale(amax);
  for (int i = 0; i < n; ++i) x[i] = fp8_e4m3_to_f32(f32_to_fp8_e4m3(x[i] / scale));
  return scale;
}

void index_key(const IndexWriteParams& p, int64_t token, float* out) {
  const int dim = p.keys.dim;
  const float* k = p.k + token * dim;
  double sum = 0.0;
  for (int i = 0; i < dim; ++i) sum += k[i];
  const double mean = sum / dim;
  double squares = 0.0;
  for (int i = 0; i < dim; ++i) squares += (k[i] - mean) * (k[i] - mean);
  const float inverse = static_cast<float>(1.0 / std::sqrt(squares / dim + p.norm_eps));
  const float centre = static_cast<float>(mean);
  for (int i = 0; i < dim; ++i) out[i] = (k[i] - centre) * inverse * p.norm_weight[i] + p.norm_bias[i];
  rope_token(p, token, out);
}

void index_query(const IndexWriteParams& p, int64_t token, int32_t head) {
  const int dim = p.keys.dim;
  float* q = p.q + (token * p.heads + head) * dim;
  float& weight = p.weights[token * p.heads + head];
  weight *= index_weight_factor(p.heads, dim);
  rope_token(p, token, q);
  if (p.keys.precision == IndexPrecision::bf16) round_to_bf16(q, dim);
  if (p.keys.precision != IndexPrecision::fp8) return;
  index_hadamard(q, dim);
  weight *= index_quantise(q, dim);  // a power of two: exact
}

void index_store(const IndexKeysView& keys, int64_t slot, float* key) {
  const int64_t at = slot * keys.dim;
  DType dtype = keys.precision == IndexPrecision::exact ? DType::f32 : DType::bf16;
  if (keys.precision == IndexPrecision::fp8) {
    index_hadamard(key, keys.dim);
    keys.scale[slot] = index_quantise(key, keys.dim);
    dtype = DType::fp8_e4m3;
  }
  for (int i = 0; i < keys.dim; ++i) store_f32(keys.k, dtype, at + i, key[i]);
}

void index_load(const IndexKeysView& keys, int64_t slot, float* key) {
  const DType dtype = keys.precision == IndexPrecision::exact  ? DType::f32
                      : keys.precision == IndexPrecision::bf16 ? DType::bf16
                                                               : DType::fp8_e4m3;
  for (int i = 0; i < keys.dim; ++i) key[i] = load_as_f32(keys.k, dtype, slot * keys.dim + i);
}

void index_write(const IndexWriteParams& p) {
  check_index_write(p);
  std::array<float, kMaxIndexDim> key;
  for (int64_t t = 0; t < p.tokens; ++t) {
    for (int32_t h = 0; h < p.heads; ++h) index_query(p, t, h);
    if (p.slot_mapping[t] < 0) continue;
    index_key(p, t, key.data());
    index_store(p.keys, p.slot_mapping[t], key.data());
  }
}

}  // namespace fovea::ref
