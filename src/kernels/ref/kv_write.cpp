#include "kernels/ref/kv_write.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"
#include "kernels/common/convert.h"
#include "kernels/ref/dense_math.h"
#include "kernels/ref/hash.h"
#include "kernels/ref/kv_layout.h"

namespace fovea::ref {
namespace {

void rope_head(float* x, const KvWriteParams& p, int token) {
  const int64_t at = static_cast<int64_t>(token) * (p.rope_dim / 2);
  rope(x, p.rope_dim, p.rope_interleaved, p.cos + at, p.sin + at);
}

// A quantised cache holds value / scale: the quotient is rounded to float32, then to the cache's dtype.
float scale_of(const float* scales, int head) { return scales != nullptr ? scales[head] : 1.0f; }

}  // namespace

void kv_write(const KvWriteParams& p) {
  const KvView& kv = p.kv;
  const int d = kv.head_dim;
  FOVEA_CHECK(d <= kMaxHeadDim && p.rope_dim <= d && p.rope_dim % 2 == 0);
  std::array<float, kMaxHeadDim> key, row;
  for (int t = 0; t < p.tokens; ++t) {
    for (int h = 0; h < p.num_heads; ++h) {
      const int64_t at = (static_cast<int64_t>(t) * p.num_heads + h) * d;
      for (int i = 0; i < d; ++i) row[i] = load_as_f32(p.q, p.dtype, at + i);
      if (p.q_norm) norm(row.data(), p.q_norm, d, p.norm_eps);
      rope_head(row.data(), p, t);
      for (int i = 0; i < d; ++i) store_f32(p.q, p.dtype, at + i, row[i]);
    }
    const int64_t slot = p.slot_mapping[t];
    if (slot < 0) continue;
    const int64_t code_slot = p.code_mapping ? p.code_mapping[t] : slot;
    for (int h = 0; h < kv.kv_heads; ++h) {
      const int64_t from = (static_cast<int64_t>(t) * kv.kv_heads + h) * d;
      for (int i = 0; i < d; ++i) key[i] = load_as_f32(p.k, p.dtype, from + i);
      if (p.k_norm) norm(key.data(), p.k_norm, d, p.norm_eps);
      rope_head(key.data(), p, t);
      const int64_t base = slot / kv.block_size * kv.block_stride + h * kv.head_stride;
      const int64_t in_block = slot % kv.block_size;
      const float k_scale = scale_of(kv.k_scale, h), v_scale = scale_of(kv.v_scale, h);
      for (int i = 0; i < d; ++i) {
        const int64_t at = base + key_offset(kv, in_block, i);
        store_f32(kv.k, kv.dtype, at, key[i] / k_scale);
        key[i] = load_as_f32(kv.k, kv.dtype, at) * k_scale;  // what the code is of: the key that attention reads
        store_f32(kv.v, kv.dtype, base + value_offset(kv, in_block, i), load_as_f32(p.v, p.dtype, from + i) / v_scale);
      }
      if (p.codes && code_slot >= 0) write_code(*p.codes, kv.block_size, code_slot, h, key.data());
    }
  }
}

}  // namespace fovea::ref
