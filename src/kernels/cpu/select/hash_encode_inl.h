// The Walsh-Hadamard hash of one vector, and what of its length codes keep, once per Highway target. The butterflies are those of
// kernels/ref/hash.cpp in the same order, so the sums round alike and the bits are equal on every target.
#if defined(FOVEA_KERNELS_CPU_HASH_ENCODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_KERNELS_CPU_HASH_ENCODE_INL_H_
#undef FOVEA_KERNELS_CPU_HASH_ENCODE_INL_H_
#else
#define FOVEA_KERNELS_CPU_HASH_ENCODE_INL_H_
#endif

#include <fovea/kernels/cache.h>
#include <fovea/kernels/hash_rotation.h>

#include <cstring>

#include <hwy/highway.h>
#include "kernels/common/convert.h"
#include "kernels/cpu/elementwise/elementwise_inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using HashTag = hn::CappedTag<float, 16>;
using HashVec = hn::Vec<HashTag>;

#if HWY_TARGET != HWY_SCALAR

// Negates the lanes whose index has bit h set.
HWY_INLINE HashVec negate_odd(HashTag d, HashVec v, int h) {
  alignas(64) static constexpr uint32_t kSigns[4][16] = {
#define FOVEA_S 0x80000000u
      {0, FOVEA_S, 0, FOVEA_S, 0, FOVEA_S, 0, FOVEA_S, 0, FOVEA_S, 0, FOVEA_S, 0, FOVEA_S, 0, FOVEA_S},
      {0, 0, FOVEA_S, FOVEA_S, 0, 0, FOVEA_S, FOVEA_S, 0, 0, FOVEA_S, FOVEA_S, 0, 0, FOVEA_S, FOVEA_S},
      {0, 0, 0, 0, FOVEA_S, FOVEA_S, FOVEA_S, FOVEA_S, 0, 0, 0, 0, FOVEA_S, FOVEA_S, FOVEA_S, FOVEA_S},
      {0, 0, 0, 0, 0, 0, 0, 0, FOVEA_S, FOVEA_S, FOVEA_S, FOVEA_S, FOVEA_S, FOVEA_S, FOVEA_S, FOVEA_S},
#undef FOVEA_S
  };
  const hn::RebindToUnsigned<HashTag> du;
  return hn::BitCast(d, hn::Xor(hn::BitCast(du, v), hn::Load(du, kSigns[h])));
}

// The stages h = 1, 2, ... below the vector's length: partner lanes are a fixed swap apart. Lane i becomes a
// + b below its partner and a - b above it, a the lower: swapped + (-x) is the same float as swapped - x.
HWY_INLINE HashVec butterflies_within(HashTag d, HashVec v) {
  v = hn::Add(hn::Shuffle2301(v), negate_odd(d, v, 0));
  v = hn::Add(hn::Shuffle1032(v), negate_odd(d, v, 1));
#if HWY_MAX_BYTES >= 32
  v = hn::Add(hn::SwapAdjacentBlocks(v), negate_odd(d, v, 2));
#endif
#if HWY_MAX_BYTES >= 64
  v = hn::Add(hn::ConcatLowerUpper(d, v, v), negate_odd(d, v, 3));
#endif
  return v;
}

// y <- H D y, for n a multiple of the vector's length.
HWY_INLINE void sign_and_transform(float* HWY_RESTRICT y, const float* HWY_RESTRICT signs, int n) {
  const HashTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int i = 0; i < n; i += lanes) {
    hn::Store(butterflies_within(d, hn::Mul(hn::Load(d, y + i), hn::LoadU(d, signs + i))), d, y + i);
  }
  for (int h = lanes; h < n; h *= 2) {
    for (int i = 0; i < n; i += 2 * h) {
      for (int j = i; j < i + h; j += lanes) {
        const HashVec a = hn::Load(d, y + j);
        const HashVec b = hn::Load(d, y + j + h);
        hn::Store(hn::Add(a, b), d, y + j);
        hn::Store(hn::Sub(a, b), d, y + j + h);
      }
    }
  }
}

#endif  // HWY_TARGET != HWY_SCALAR

constexpr int kRotatedMax = kMaxHashBits + kMaxHeadDim;  // floats: the last rotation may give more than are kept

// One value at a time, in the same order of sums.
inline void rotate_scalar(const HashCodec& codec, const float* x, float* y) {
  for (int r = 0; r * codec.n < codec.bits; ++r, y += codec.n) {
    for (int i = 0; i < codec.n; ++i) y[i] = i < codec.head_dim ? x[i] : 0.0f;
    for (int round = 0; round < 3; ++round) {
      for (int i = 0; i < codec.n; ++i) y[i] *= codec.signs[(r * 3 + round) * codec.n + i];
      for (int h = 1; h < codec.n; h *= 2) {
        for (int i = 0; i < codec.n; ++i) {
          if (i & h) continue;
          const float a = y[i], b = y[i + h];
          y[i] = a + b;
          y[i + h] = a - b;
        }
      }
    }
  }
}

// y[codec.bits] of x [codec.head_dim], rotation after rotation; y: aligned, [kRotatedMax].
HWY_INLINE void rotate(const HashCodec& codec, const float* HWY_RESTRICT x, float* HWY_RESTRICT y) {
#if HWY_TARGET == HWY_SCALAR
  rotate_scalar(codec, x, y);
#else
  const int n = codec.n;
  if (n < 16) return rotate_scalar(codec, x, y);  // shorter than a vector
  for (int r = 0; r * n < codec.bits; ++r, y += n) {
    std::memcpy(y, x, sizeof(float) * codec.head_dim);
    std::memset(y + codec.head_dim, 0, sizeof(float) * (n - codec.head_dim));
    for (int round = 0; round < 3; ++round) sign_and_transform(y, codec.signs + (r * 3 + round) * n, n);
  }
#endif
}

// Bit i is y[i] > 0.
HWY_INLINE void take_signs(const float* HWY_RESTRICT y, int bits, uint64_t* HWY_RESTRICT words) {
  for (int w = 0; w < bits / 64; ++w) words[w] = 0;
#if HWY_TARGET == HWY_SCALAR
  for (int i = 0; i < bits; ++i) words[i / 64] |= uint64_t{y[i] > 0.0f} << (i % 64);
#else
  const HashTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int i = 0; i < bits; i += lanes) {
    uint8_t mask[8] = {};
    hn::StoreMaskBits(d, hn::Gt(hn::Load(d, y + i), hn::Zero(d)), mask);
    const uint64_t positive = static_cast<uint64_t>(mask[0]) | static_cast<uint64_t>(mask[1]) << 8;
    words[i / 64] |= positive << (i % 64);
  }
#endif
}

// HashCodec::length_factor, rounded to bf16.
HWY_INLINE uint16_t length_factor(const HashCodec& codec, const float* HWY_RESTRICT y) {
  const HashTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  HWY_ALIGN float squares[32] = {}, sums[32] = {};
  for (int i = 0; i < codec.bits; i += lanes) {
    const HashVec v = hn::Load(d, y + i);
    hn::Store(hn::Add(hn::Load(d, squares + i % 32), rounded(hn::Mul(v, v))), d, squares + i % 32);
    hn::Store(hn::Add(hn::Load(d, sums + i % 32), hn::Abs(v)), d, sums + i % 32);
  }
  for (int half = 16; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) squares[i] += squares[i + half], sums[i] += sums[i + half];
  }
  const float factor = squares[0] / sums[0] * codec.scale;
  return factor < 0x1.ffp127f ? f32_to_bf16(factor) : 0;
}

// words[codec.bits / 64] of x [codec.head_dim].
HWY_INLINE void encode_hash(const HashCodec& codec, const float* HWY_RESTRICT x, uint64_t* HWY_RESTRICT words) {
  HWY_ALIGN float y[kRotatedMax];
  rotate(codec, x, y);
  take_signs(y, codec.bits, words);
}

// The code of one token's key, with its length factor, to its place in the plane. slot: block * bs + offset.
HWY_INLINE void write_code(const CodesView& view, int64_t block_size, int64_t slot, int head, const float* HWY_RESTRICT key) {
  HWY_ALIGN float y[kRotatedMax];
  uint64_t words[kMaxHashWords];
  rotate(view.codec, key, y);
  take_signs(y, view.codec.bits, words);
  const int64_t count = view.codec.bits / 64;
  uint64_t* block = view.codes + slot / block_size * view.block_stride + head * view.head_stride;
  for (int64_t w = 0; w < count; ++w) block[w * block_size + slot % block_size] = words[w];
  if (!view.codec.length_factor) return;
  reinterpret_cast<uint16_t*>(block + count * block_size)[slot % block_size] = length_factor(view.codec, y);
}

}  // namespace fovea::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
