#include "kernels/ref/kv_write.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"
#include "kernels/common/convert.h"
#include "kernels/ref/hash.h"
#include "kernels/ref/kv_layout.h"

namespace fovea::ref {
namespace {

// Squares are summed in float64, where each is exact and the order of the sum does not show in the float32
// result.
void norm_head(float* x, const float* weight, int d, float eps) {
  double sum = 0.0;
  for (int i = 0; i < d; ++i) sum += static_cast<double>(x[i]) * x[i];
  const float inverse = static_cast<float>(1.0 / std::sqrt(sum / d + eps));
  for (int i = 0; i < d; ++i) x[i] = x[i] * inverse * weight[i];
}

void rope_head(float* x, const KvWriteParams& p, int token) {
  const int half = p.rope_dim / 2;
  const float* cos = p.cos + static_cast<int64_t>(token) * half;
  const float* sin = p.sin + static_cast<int64_t>(token) * half;
  for (int i = 0; i < half; ++i) {
    float& a = x[p.rope_interleaved ? 2 * i : i];
    float& b = x[p.rope_interleaved ? 2 * i + 1 : i + half];
    const float first = a;
    const float second = b;
    a = first * cos[i] - second * sin[i];
    b = second * cos[i] + first * sin[i];
  }
}

// A quantised cache holds value / scale: the quotient is rounded to float32, then to the cache's dtype.
float scale_of(const float* scales, int head) { return scales != nullptr ? scales[head] : 1.0f; }

}  // namespace

void kv_write(const KvWriteParams& p) {
  const KvView& kv = p.kv;
  const int d = kv.head_dim;
  FOVEA_CHECK(d <= kMaxHeadDim && p.rope_dim <= d && p.rope_dim % 2 == 0);
  std::array<float, kMaxHeadDim> key;
  for (int t = 0; t < p.tokens; ++t) {
    for (int h = 0; h < p.num_heads; ++h) {
      float* q = p.q + (static_cast<int64_t>(t) * p.num_heads + h) * d;
      if (p.q_norm) norm_head(q, p.q_norm, d, p.norm_eps);
      rope_head(q, p, t);
    }
    const int64_t slot = p.slot_mapping[t];
    if (slot < 0) continue;
    const int64_t code_slot = p.code_mapping ? p.code_mapping[t] : slot;
    for (int h = 0; h < kv.kv_heads; ++h) {
      const int64_t row = (static_cast<int64_t>(t) * kv.kv_heads + h) * d;
      std::copy_n(p.k + row, d, key.begin());
      if (p.k_norm) norm_head(key.data(), p.k_norm, d, p.norm_eps);
      rope_head(key.data(), p, t);
      const int64_t base = slot / kv.block_size * kv.block_stride + h * kv.head_stride;
      const int64_t in_block = slot % kv.block_size;
      const float k_scale = scale_of(kv.k_scale, h), v_scale = scale_of(kv.v_scale, h);
      for (int i = 0; i < d; ++i) {
        const int64_t at = base + key_offset(kv, in_block, i);
        store_f32(kv.k, kv.dtype, at, key[i] / k_scale);
        key[i] = load_as_f32(kv.k, kv.dtype, at);  // what the code is of: a positive scale changes no sign
        store_f32(kv.v, kv.dtype, base + value_offset(kv, in_block, i), p.v[row + i] / v_scale);
      }
      if (p.codes && code_slot >= 0) write_code(*p.codes, kv.block_size, code_slot, h, key.data());
    }
  }
}

}  // namespace fovea::ref
