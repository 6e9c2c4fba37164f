// Vector pieces that the elementwise operations and the cache write share, once per Highway target.
//
// All of them give the bits that the scalar reference gives, on every target: products are rounded before
// they are added (the compiler may not fuse them), and sums of squares run in float64, where a float's square
// is exact.
#if defined(FOVEA_KERNELS_CPU_ELEMENTWISE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_KERNELS_CPU_ELEMENTWISE_INL_H_
#undef FOVEA_KERNELS_CPU_ELEMENTWISE_INL_H_
#else
#define FOVEA_KERNELS_CPU_ELEMENTWISE_INL_H_
#endif

#include <fovea/types.h>

#include <cmath>

#include <hwy/highway.h>
#include "base/check.h"
#include "kernels/common/convert.h"
#include "kernels/cpu/elementwise/fp8_inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::CappedTag<float, 16>;
using FloatVec = hn::Vec<FloatTag>;

// The value as rounded to float32: stops GCC from fusing the multiplication behind it into an addition.
HWY_INLINE float rounded(float v) {
#if HWY_ARCH_X86
  asm("" : "+x"(v));
#endif
  return v;
}
HWY_INLINE FloatVec rounded(FloatVec v) {
#if HWY_ARCH_X86
  asm("" : "+x"(v.raw));
#endif
  return v;
}

// 1 / sqrt(mean of squares + eps), as a float. Four chains hide the latency of the additions.
HWY_INLINE float inverse_rms(const float* HWY_RESTRICT x, int64_t n, double eps) {
  const hn::CappedTag<double, 8> d64;
  const hn::Rebind<float, decltype(d64)> d32;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d64));
  auto s0 = hn::Zero(d64), s1 = s0, s2 = s0, s3 = s0;
  auto wide = [&](int64_t i) HWY_ATTR { return hn::PromoteTo(d64, hn::LoadU(d32, x + i)); };
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    const auto a = wide(i), b = wide(i + lanes), c = wide(i + 2 * lanes), e = wide(i + 3 * lanes);
    s0 = hn::MulAdd(a, a, s0);
    s1 = hn::MulAdd(b, b, s1);
    s2 = hn::MulAdd(c, c, s2);
    s3 = hn::MulAdd(e, e, s3);
  }
  for (; i + lanes <= n; i += lanes) s0 = hn::MulAdd(wide(i), wide(i), s0);
  double sum = hn::GetLane(hn::SumOfLanes(d64, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
  for (; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
  return static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(n) + eps));
}

// ---- Narrow floats, `lanes` at a time, bit for bit as kernels/common/convert.h -------------------------------

HWY_INLINE FloatVec load_bf16(FloatTag d, const uint16_t* p) {
  const hn::Rebind<uint16_t, FloatTag> d16;
  const hn::RebindToUnsigned<FloatTag> d32;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, p))));
}

HWY_INLINE void store_bf16(FloatTag d, FloatVec v, uint16_t* p) {
  const hn::Rebind<uint16_t, FloatTag> d16;
  const hn::RebindToUnsigned<FloatTag> du;
  const hn::RebindToSigned<FloatTag> di;
  const auto u = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(u), hn::Set(du, 1));
  const auto nearest = hn::ShiftRight<16>(hn::Add(u, hn::Add(odd, hn::Set(du, 0x7fff))));
  const auto quiet = hn::Or(hn::ShiftRight<16>(u), hn::Set(du, 0x40));
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(v));
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, hn::IfThenElse(is_nan, quiet, nearest))), d16, p);
  (void)d;
}

HWY_INLINE FloatVec load_f16(FloatTag d, const uint16_t* p) {
#if HWY_ARCH_X86 && HWY_TARGET > HWY_AVX2  // no conversion instruction
  HWY_ALIGN float wide[16];
  for (size_t i = 0; i < hn::Lanes(d); ++i) wide[i] = f16_to_f32(p[i]);
  return hn::Load(d, wide);
#else
  const hn::Rebind<hwy::float16_t, FloatTag> d16;
  return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(p)));
#endif
}

HWY_INLINE void store_f16(FloatTag d, FloatVec v, uint16_t* p) {
#if HWY_ARCH_X86 && HWY_TARGET > HWY_AVX2
  HWY_ALIGN float wide[16];
  hn::Store(v, d, wide);
  for (size_t i = 0; i < hn::Lanes(d); ++i) p[i] = f32_to_f16(wide[i]);
#else
  const hn::Rebind<hwy::float16_t, FloatTag> d16;
  hn::StoreU(hn::DemoteTo(d16, v), d16, reinterpret_cast<hwy::float16_t*>(p));
  (void)d;
#endif
}

// out[0..n) = in as float32.
HWY_INLINE void widen(const void* in, DType dtype, int64_t n, float* HWY_RESTRICT out) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const uint16_t* half = static_cast<const uint16_t*>(in);
  int64_t i = 0;
  switch (dtype) {
    case DType::f32: {
      const float* full = static_cast<const float*>(in);
      for (; i + lanes <= n; i += lanes) hn::StoreU(hn::LoadU(d, full + i), d, out + i);
      break;
    }
    case DType::bf16:
      for (; i + lanes <= n; i += lanes) hn::StoreU(load_bf16(d, half + i), d, out + i);
      break;
    case DType::f16:
      for (; i + lanes <= n; i += lanes) hn::StoreU(load_f16(d, half + i), d, out + i);
      break;
    case DType::fp8_e4m3:
      for (; i + lanes <= n; i += lanes) hn::StoreU(load_fp8(d, static_cast<const E4m3*>(in) + i), d, out + i);
      break;
    case DType::fp8_e5m2:
      for (; i + lanes <= n; i += lanes) hn::StoreU(load_fp8(d, static_cast<const E5m2*>(in) + i), d, out + i);
      break;
    default:
      FOVEA_CHECK(false && "widen: a float dtype");
  }
  for (; i < n; ++i) out[i] = load_as_f32(in, dtype, i);
}

// x[0..n) *= factor, each product rounded.
HWY_INLINE void times(float factor, int64_t n, float* x) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(rounded(hn::Mul(hn::LoadU(d, x + i), hn::Set(d, factor))), d, x + i);
  for (; i < n; ++i) x[i] = rounded(x[i] * factor);
}

// x[0..n) /= by, each quotient rounded.
HWY_INLINE void divide(float by, int64_t n, float* x) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(hn::Div(hn::LoadU(d, x + i), hn::Set(d, by)), d, x + i);
  for (; i < n; ++i) x[i] /= by;
}

// out[0..n) = in rounded to dtype.
HWY_INLINE void narrow(const float* HWY_RESTRICT in, DType dtype, int64_t n, void* out) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  uint16_t* half = static_cast<uint16_t*>(out);
  int64_t i = 0;
  switch (dtype) {
    case DType::f32:
      for (; i + lanes <= n; i += lanes) hn::StoreU(hn::LoadU(d, in + i), d, static_cast<float*>(out) + i);
      break;
    case DType::bf16:
      for (; i + lanes <= n; i += lanes) store_bf16(d, hn::LoadU(d, in + i), half + i);
      break;
    case DType::f16:
      for (; i + lanes <= n; i += lanes) store_f16(d, hn::LoadU(d, in + i), half + i);
      break;
    case DType::fp8_e4m3:
      for (; i + lanes <= n; i += lanes) store_fp8(d, hn::LoadU(d, in + i), static_cast<E4m3*>(out) + i);
      break;
    case DType::fp8_e5m2:
      for (; i + lanes <= n; i += lanes) store_fp8(d, hn::LoadU(d, in + i), static_cast<E5m2*>(out) + i);
      break;
    default:
      FOVEA_CHECK(false && "narrow: a float dtype");
  }
  for (; i < n; ++i) store_f32(out, dtype, i, in[i]);
}

}  // namespace fovea::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
