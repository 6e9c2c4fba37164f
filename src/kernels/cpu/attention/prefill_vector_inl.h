// Vector pieces that prefill attention and the estimate before it share, once per Highway target: 2^x, and rows of the
// cache widened to float32.
#if defined(FOVEA_KERNELS_CPU_PREFILL_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_KERNELS_CPU_PREFILL_VECTOR_INL_H_
#undef FOVEA_KERNELS_CPU_PREFILL_VECTOR_INL_H_
#else
#define FOVEA_KERNELS_CPU_PREFILL_VECTOR_INL_H_
#endif

#include <hwy/highway.h>

#include <type_traits>

#include "kernels/common/convert.h"
#include "kernels/cpu/elementwise/fp8_inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using DI = hn::RebindToSigned<D>;
using V = hn::Vec<D>;

constexpr int32_t kVec = static_cast<int32_t>(HWY_LANES(float));
// Accumulators of the micro-kernels: kKeys x kVecs. 32 registers hold 8 x 3 and what feeds them, 16 hold 4
// x 3.
constexpr int32_t kKeys = kVec == 16 ? 8 : 4, kVecs = 3;
constexpr int32_t kPanel = kVec * kVecs;

// 2^x for x <= 0, relative error 1e-7, exactly 1 at 0, exactly 0 below -126 and for -inf; NaN stays NaN.
HWY_INLINE V exp2_nonpositive(V x) {
  const D d;
  const DI di;
  const V magic = hn::Set(d, 12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer, in the low bits
  const V t = hn::Add(x, magic);
  const V f = hn::Sub(x, hn::Sub(t, magic));  // in [-0.5, 0.5]
  V y = hn::Set(d, 1.5345812e-4f);
  y = hn::MulAdd(y, f, hn::Set(d, 1.3399931e-3f));
  y = hn::MulAdd(y, f, hn::Set(d, 9.6184891e-3f));
  y = hn::MulAdd(y, f, hn::Set(d, 5.5503288e-2f));
  y = hn::MulAdd(y, f, hn::Set(d, 2.4022647e-1f));
  y = hn::MulAdd(y, f, hn::Set(d, 6.9314721e-1f));
  y = hn::MulAdd(y, f, hn::Set(d, 1.0f));
  const auto scaled = hn::Add(hn::BitCast(di, y), hn::ShiftLeft<23>(hn::BitCast(di, t)));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -126.0f)), hn::BitCast(d, scaled));
}

template <typename T>
HWY_INLINE V load_wide(const T* p) {
  const D d;
  if constexpr (std::is_same_v<T, float>) {
    return hn::LoadU(d, p);
  } else if constexpr (sizeof(T) == 1) {
    return load_fp8(d, p);
  } else if constexpr (std::is_same_v<T, hwy::float16_t>) {
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<hwy::float16_t, D>(), p));
  } else {
    const auto bits = hn::LoadU(hn::Rebind<uint16_t, D>(), p);
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(hn::Rebind<uint32_t, D>(), bits)));
  }
}

HWY_INLINE float widen(float x) { return x; }
HWY_INLINE float widen(uint16_t x) { return bf16_to_f32(x); }
HWY_INLINE float widen(hwy::float16_t x) { return f16_to_f32(x.bits); }
HWY_INLINE float widen(E4m3 x) { return fp8_e4m3_to_f32(x.bits); }
HWY_INLINE float widen(E5m2 x) { return fp8_e5m2_to_f32(x.bits); }

// Calls fn with a null pointer to the cache's element.
template <typename Fn>
HWY_INLINE void with_element(DType dtype, Fn&& fn) {
  switch (dtype) {
    case DType::f32:
      return fn(static_cast<float*>(nullptr));
    case DType::f16:
      return fn(static_cast<hwy::float16_t*>(nullptr));
    case DType::fp8_e4m3:
      return fn(static_cast<E4m3*>(nullptr));
    case DType::fp8_e5m2:
      return fn(static_cast<E5m2*>(nullptr));
    default:
      return fn(static_cast<uint16_t*>(nullptr));  // bf16
  }
}

// A key or value of `dim` elements that lie one after the other (hnd).
template <typename T>
HWY_INLINE void widen_row(const T* src, int32_t dim, float* dst) {
  const D d;
  for (int32_t i = 0; i < dim; i += kVec) hn::StoreU(load_wide(src + i), d, dst + i);
}

// A key whose elements lie in groups of `x`, `step` elements apart (classic; x = 1: a value).
template <typename T>
HWY_INLINE void widen_classic(const T* src, int32_t dim, int32_t x, int64_t step, float* dst) {
  for (int32_t i = 0; i < dim; i += x, src += step) {
    for (int32_t e = 0; e < x; ++e) dst[i + e] = widen(src[e]);
  }
}

}  // namespace fovea::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
