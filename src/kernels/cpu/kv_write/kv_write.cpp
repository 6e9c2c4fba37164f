#include "kernels/cpu/kv_write/kv_write.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/kv_write/kv_write.cpp"
#define HWY_WANT_AVX3_DL
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>
#include "kernels/cpu/elementwise/elementwise_inl.h"
#include "kernels/cpu/select/hash_encode_inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu::HWY_NAMESPACE {

HWY_INLINE void norm_head(float* HWY_RESTRICT x, const float* HWY_RESTRICT weight, int n, float eps) {
  const FloatTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const FloatVec scale = hn::Set(d, inverse_rms(x, n, eps));
  for (int i = 0; i < n; i += lanes) {
    hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(d, x + i), scale), hn::LoadU(d, weight + i)), d, x + i);
  }
}

// Pairs (i, i + half).
HWY_INLINE void rope_half_split(float* HWY_RESTRICT x, const float* HWY_RESTRICT cos, const float* HWY_RESTRICT sin, int half) {
  const FloatTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  int i = 0;
  for (; i + lanes <= half; i += lanes) {
    const FloatVec a = hn::LoadU(d, x + i), b = hn::LoadU(d, x + half + i);
    const FloatVec c = hn::LoadU(d, cos + i), s = hn::LoadU(d, sin + i);
    hn::StoreU(hn::Sub(rounded(hn::Mul(a, c)), rounded(hn::Mul(b, s))), d, x + i);
    hn::StoreU(hn::Add(rounded(hn::Mul(b, c)), rounded(hn::Mul(a, s))), d, x + half + i);
  }
  for (; i < half; ++i) {  // half need not be a multiple of the vector
    const float a = x[i], b = x[half + i];
    x[i] = rounded(a * cos[i]) - rounded(b * sin[i]);
    x[half + i] = rounded(b * cos[i]) + rounded(a * sin[i]);
  }
}

// Pairs (2i, 2i + 1): the partner is the neighbouring lane, cos and sin are each used twice.
HWY_INLINE void rope_interleaved(float* HWY_RESTRICT x, const float* HWY_RESTRICT cos, const float* HWY_RESTRICT sin, int half) {
  int i = 0;
#if HWY_TARGET != HWY_SCALAR
  const FloatTag d;
  const hn::Half<FloatTag> dh;
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (; 2 * i + lanes <= 2 * half; i += lanes / 2) {
    const auto c = hn::LoadU(dh, cos + i), s = hn::LoadU(dh, sin + i);
    HWY_ALIGN float cc[16], ss[16];
    hn::StoreInterleaved2(c, c, dh, cc);
    hn::StoreInterleaved2(hn::Neg(s), s, dh, ss);
    const FloatVec v = hn::LoadU(d, x + 2 * i);
    const FloatVec turned = hn::Mul(hn::Shuffle2301(v), hn::Load(d, ss));
    hn::StoreU(hn::Add(rounded(hn::Mul(v, hn::Load(d, cc))), rounded(turned)), d, x + 2 * i);
  }
#endif
  for (; i < half; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    x[2 * i] = rounded(a * cos[i]) - rounded(b * sin[i]);
    x[2 * i + 1] = rounded(b * cos[i]) + rounded(a * sin[i]);
  }
}

HWY_INLINE void norm_and_rope(const KvWriteParams& p, int64_t token, const float* weight, float* x) {
  if (weight) norm_head(x, weight, p.kv.head_dim, p.norm_eps);
  const int half = p.rope_dim / 2;
  if (half == 0) return;
  const float* cos = p.cos + token * half;
  const float* sin = p.sin + token * half;
  if (p.rope_interleaved) {
    rope_interleaved(x, cos, sin, half);
  } else {
    rope_half_split(x, cos, sin, half);
  }
}

// A token's row of a head, `row` holding d elements of the cache dtype, to its place in the block. With the
// classic layout a key is cut in pieces of 16 bytes, bs tokens apart, and a value in single elements.
HWY_INLINE void place(const KvView& kv, const uint8_t* HWY_RESTRICT row, int64_t base, int64_t in_block, bool is_key, void* plane) {
  const int64_t element = static_cast<int64_t>(dtype_bytes(kv.dtype));
  uint8_t* out = static_cast<uint8_t*>(plane) + base * element;
  if (kv.layout == KvLayout::hnd) {
    std::memcpy(out + in_block * kv.tokens_apart() * element, row, static_cast<size_t>(kv.head_dim * element));
  } else if (is_key) {
    const int64_t pieces = kv.head_dim * element / 16;
    for (int64_t i = 0; i < pieces; ++i) std::memcpy(out + (i * kv.block_size + in_block) * 16, row + i * 16, 16);
  } else if (element == 1) {
    for (int64_t i = 0; i < kv.head_dim; ++i) out[i * kv.block_size + in_block] = row[i];
  } else if (element == 2) {
    for (int64_t i = 0; i < kv.head_dim; ++i) std::memcpy(out + (i * kv.block_size + in_block) * 2, row + i * 2, 2);
  } else {
    for (int64_t i = 0; i < kv.head_dim; ++i) std::memcpy(out + (i * kv.block_size + in_block) * 4, row + i * 4, 4);
  }
}

HWY_INLINE void load_head(const void* from, DType dtype, int64_t at, int d, float* head) {
  widen(static_cast<const uint8_t*>(from) + at * static_cast<int64_t>(dtype_bytes(dtype)), dtype, d, head);
}

// A head of q, in place.
HWY_INLINE void write_query(const KvWriteParams& p, int64_t t, int64_t at) {
  if (p.dtype == DType::f32) return norm_and_rope(p, t, p.q_norm, static_cast<float*>(p.q) + at);
  HWY_ALIGN float head[kMaxHeadDim];
  load_head(p.q, p.dtype, at, p.kv.head_dim, head);
  norm_and_rope(p, t, p.q_norm, head);
  narrow(head, p.dtype, p.kv.head_dim, static_cast<uint16_t*>(p.q) + at);
}

HWY_INLINE void write_token(const KvWriteParams& p, int64_t t, int64_t slot, int64_t code_slot) {
  const KvView& kv = p.kv;
  const int d = kv.head_dim;
  HWY_ALIGN float key[kMaxHeadDim];
  HWY_ALIGN uint8_t row[kMaxHeadDim * sizeof(float)];
  const int64_t in_block = slot % kv.block_size;
  for (int h = 0; h < kv.kv_heads; ++h) {
    const int64_t in = (t * kv.kv_heads + h) * d;
    const int64_t base = slot / kv.block_size * kv.block_stride + h * kv.head_stride;
    load_head(p.k, p.dtype, in, d, key);
    norm_and_rope(p, t, p.k_norm, key);
    if (kv.k_scale) divide(kv.k_scale[h], d, key);
    narrow(key, kv.dtype, d, row);
    place(kv, row, base, in_block, true, kv.k);
    if (p.codes && code_slot >= 0) {
      widen(row, kv.dtype, d, key);  // the code is of what attention will read
      if (kv.k_scale) times(kv.k_scale[h], d, key);
      write_code(*p.codes, kv.block_size, code_slot, h, key);
    }
    load_head(p.v, p.dtype, in, d, key);
    if (kv.v_scale) divide(kv.v_scale[h], d, key);
    narrow(key, kv.dtype, d, row);
    place(kv, row, base, in_block, false, kv.v);
  }
}

void kv_write_tokens(const KvWriteParams& p, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    for (int h = 0; h < p.num_heads; ++h) write_query(p, t, (t * p.num_heads + h) * p.kv.head_dim);
    const int64_t slot = p.slot_mapping[t];
    if (slot >= 0) write_token(p, t, slot, p.code_mapping ? p.code_mapping[t] : slot);
  }
}

}  // namespace fovea::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fovea::cpu {
namespace {

HWY_EXPORT(kv_write_tokens);

// Heads a worker should have before a second one helps: 64 heads are some 5 microseconds.
constexpr int64_t kHeadsPerTask = 64;

}  // namespace

void kv_write(const KvWriteParams& p, ThreadPool& pool) {
  FOVEA_CHECK(p.kv.head_dim % 16 == 0 && p.kv.head_dim <= kMaxHeadDim);
  FOVEA_CHECK(p.rope_dim <= p.kv.head_dim && p.rope_dim % 2 == 0);
  FOVEA_CHECK(!p.codes || p.codes->codec.head_dim == p.kv.head_dim);
  const int64_t heads = p.num_heads + 2 * static_cast<int64_t>(p.kv.kv_heads);
  const int64_t step = std::max<int64_t>(1, kHeadsPerTask / heads);
  const int64_t tasks = (p.tokens + step - 1) / step;
  if (tasks <= 1 || p.tokens * heads < 2 * kHeadsPerTask) {
    HWY_DYNAMIC_DISPATCH(kv_write_tokens)(p, 0, p.tokens);
    return;
  }
  pool.parallel_for(tasks, [&](int64_t task, int) {
    HWY_DYNAMIC_DISPATCH(kv_write_tokens)(p, task * step, std::min<int64_t>(p.tokens, (task + 1) * step));
  });
}

}  // namespace fovea::cpu
#endif  // HWY_ONCE
