// The Walsh-Hadamard hash of one vector, once per Highway target. The butterflies are those of
// kernels/ref/hash.cpp in the same order, so the sums round alike and the bits are equal on every target.
#if defined(FOVEA_KERNELS_CPU_HASH_ENCODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_KERNELS_CPU_HASH_ENCODE_INL_H_
#undef FOVEA_KERNELS_CPU_HASH_ENCODE_INL_H_
#else
#define FOVEA_KERNELS_CPU_HASH_ENCODE_INL_H_
#endif

#include <cstring>

#include <hwy/highway.h>
#include "kernels/common/hash_rotation.h"
#include "kernels/ops/kv_write.h"

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

// One value at a time, in the same order of sums.
inline void encode_hash_scalar(const HashCodec& codec, const float* x, uint64_t* words) {
  for (int w = 0; w < codec.bits / 64; ++w) words[w] = 0;
  for (int bit = 0, r = 0; bit < codec.bits; ++r) {
    float y[kMaxHeadDim];
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
    for (int i = 0; i < codec.n && bit < codec.bits; ++i, ++bit) words[bit / 64] |= uint64_t{y[i] > 0.0f} << (bit % 64);
  }
}

// words[codec.bits / 64] of x [codec.head_dim].
HWY_INLINE void encode_hash(const HashCodec& codec, const float* HWY_RESTRICT x, uint64_t* HWY_RESTRICT words) {
#if HWY_TARGET == HWY_SCALAR
  encode_hash_scalar(codec, x, words);
#else
  const HashTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const int n = codec.n;
  if (n < 16) return encode_hash_scalar(codec, x, words);  // shorter than a vector
  HWY_ALIGN float y[kMaxHeadDim];
  for (int w = 0; w < codec.bits / 64; ++w) words[w] = 0;
  for (int base = 0, r = 0; base < codec.bits; base += n, ++r) {
    std::memcpy(y, x, sizeof(float) * codec.head_dim);
    std::memset(y + codec.head_dim, 0, sizeof(float) * (n - codec.head_dim));
    for (int round = 0; round < 3; ++round) sign_and_transform(y, codec.signs + (r * 3 + round) * n, n);
    const int wanted = n < codec.bits - base ? n : codec.bits - base;
    for (int i = 0; i < wanted; i += lanes) {
      uint8_t mask[8] = {};
      hn::StoreMaskBits(d, hn::Gt(hn::Load(d, y + i), hn::Zero(d)), mask);
      const uint64_t positive = static_cast<uint64_t>(mask[0]) | static_cast<uint64_t>(mask[1]) << 8;
      words[(base + i) / 64] |= positive << ((base + i) % 64);
    }
  }
#endif
}

}  // namespace fovea::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
