// fp8 to wider floats and back, once per Highway target, bit for bit as kernels/common/convert.h. Every fp8 value is a f16 value:
// e5m2 is its upper half, and e4m3's bits moved to a f16's exponent and mantissa are the value times 2^-8, subnormals among them.
#if defined(FOVEA_KERNELS_CPU_FP8_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_KERNELS_CPU_FP8_INL_H_
#undef FOVEA_KERNELS_CPU_FP8_INL_H_
#else
#define FOVEA_KERNELS_CPU_FP8_INL_H_
#endif

#include <fovea/types.h>

#include <cstdint>
#include <type_traits>

#include <hwy/highway.h>
#include "kernels/common/convert.h"

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

struct E4m3 {
  uint8_t bits;
};
struct E5m2 {
  uint8_t bits;
};

// What f16_bits() leaves out: the value is this times the f16.
template <typename T>
inline constexpr float kF16Unit = std::is_same_v<T, E4m3> ? 256.0f : 1.0f;

// Lanes(d) elements as f16, divided by kF16Unit. d: int16_t.
template <typename T, class D16>
HWY_INLINE hn::Vec<D16> f16_bits(D16 d, const T* p) {
  const hn::Rebind<int8_t, D16> d8;
  const auto x = hn::PromoteTo(d, hn::LoadU(d8, reinterpret_cast<const int8_t*>(p)));  // its sign is in every upper bit
  if constexpr (std::is_same_v<T, E5m2>) {
    return hn::ShiftLeft<8>(x);
  } else {
    const auto low = hn::Set(d, int16_t{0x7f});
    const auto nan = hn::VecFromMask(d, hn::Eq(hn::And(x, low), low));
    const auto moved = hn::And(hn::ShiftLeft<7>(x), hn::Set(d, static_cast<int16_t>(0xbf80)));
    return hn::Or(moved, hn::And(nan, hn::Set(d, int16_t{0x7c00})));
  }
}

// Lanes(d) elements. d: float.
template <typename T, class DF>
HWY_INLINE hn::Vec<DF> load_fp8(DF d, const T* p) {
#if HWY_ARCH_X86 && HWY_TARGET > HWY_AVX2  // no instruction for f16, and Highway's own way loses NaN and infinities
  HWY_ALIGN float wide[16];
  for (size_t i = 0; i < hn::Lanes(d); ++i)
    wide[i] = std::is_same_v<T, E5m2> ? fp8_e5m2_to_f32(p[i].bits) : fp8_e4m3_to_f32(p[i].bits);
  return hn::Load(d, wide);
#else
  const hn::Rebind<hwy::float16_t, DF> d16;
  const auto x = hn::PromoteTo(d, hn::BitCast(d16, f16_bits(hn::Rebind<int16_t, DF>(), p)));
  return kF16Unit<T> == 1.0f ? x : hn::Mul(x, hn::Set(d, kF16Unit<T>));
#endif
}

// Lanes(d) elements rounded to nearest even, saturating; a NaN stays one of its sign.
template <typename T, class DF>
HWY_INLINE void store_fp8(DF d, hn::Vec<DF> v, T* p) {
  constexpr bool e5m2 = std::is_same_v<T, E5m2>;
  constexpr int kShift = e5m2 ? 21 : 20;                        // bits of a float's mantissa that are lost
  constexpr uint32_t kBias = e5m2 ? 0x38000000u : 0x3c000000u;  // between the exponents
  constexpr float kLeast = e5m2 ? 0x1p-14f : 0x1p-6f;           // normal
  constexpr float kMagic = e5m2 ? 0x1p7f : 0x1p14f;             // its unit is that of subnormals
  const hn::RebindToUnsigned<DF> du;
  const hn::RebindToSigned<DF> di;
  const auto clamped = hn::Min(hn::Abs(v), hn::Set(d, e5m2 ? 57344.0f : 448.0f));
  const auto u = hn::BitCast(du, clamped);
  const auto odd = hn::And(hn::ShiftRight<kShift>(u), hn::Set(du, 1u));
  const auto up = hn::Add(odd, hn::Set(du, (1u << (kShift - 1)) - 1u - kBias));  // wraps round
  const auto normal = hn::ShiftRight<kShift>(hn::Add(u, up));
  const auto magic = hn::Set(d, kMagic);
  const auto subnormal = hn::Sub(hn::BitCast(du, hn::Add(clamped, magic)), hn::BitCast(du, magic));
  const auto is_small = hn::RebindMask(du, hn::Lt(clamped, hn::Set(d, kLeast)));
  const auto finite = hn::IfThenElse(is_small, subnormal, normal);
  const auto code = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), hn::Set(du, 0x7fu), finite);
  const auto sign = hn::And(hn::ShiftRight<24>(hn::BitCast(du, v)), hn::Set(du, 0x80u));
  const hn::Rebind<uint8_t, DF> d8;
  hn::StoreU(hn::DemoteTo(d8, hn::BitCast(di, hn::Or(code, sign))), d8, reinterpret_cast<uint8_t*>(p));
}

}  // namespace fovea::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
