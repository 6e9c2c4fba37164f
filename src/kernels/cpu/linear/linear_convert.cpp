#include "kernels/cpu/linear/linear_convert.h"

#include "base/check.h"
#include "kernels/common/convert.h"
#include "kernels/cpu/cpu_features.h"

#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels/cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear/linear_convert.cpp"
#include <hwy/foreach_target.h>
// foreach_target first: it compiles this file once per instruction set
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

HWY_INLINE void store_bf16(V v, uint16_t* to) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, v);
  const auto lowest = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(lowest, hn::Set(du, 0x7fffu))));
  const auto quiet_nan = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40u));
  const auto half = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), quiet_nan, rounded);
  const hn::RebindToSigned<D> di;
  hn::StoreU(hn::DemoteTo(hn::Rebind<uint16_t, D>(), hn::BitCast(di, half)), hn::Rebind<uint16_t, D>(), to);
}

template <typename T>
void convert(const T* from, DType dtype, int64_t n, uint16_t* to) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    if constexpr (sizeof(T) == 4)
      store_bf16(hn::LoadU(d, from + i), to + i);
    else
      store_bf16(hn::PromoteTo(d, hn::LoadU(hn::Rebind<T, D>(), from + i)), to + i);
  }
  for (; i < n; ++i) to[i] = f32_to_bf16(load_as_f32(from, dtype, i));
}

void to_bf16_target(const void* from, DType dtype, int64_t n, uint16_t* to) {
  switch (dtype) {
    case DType::f32:
      return convert(static_cast<const float*>(from), dtype, n, to);
    case DType::f16:
      return convert(static_cast<const hwy::float16_t*>(from), dtype, n, to);
    case DType::bf16:
      std::memcpy(to, from, n * sizeof(uint16_t));
      return;
    default:
      FOVEA_CHECK(false && "to_bf16: a float dtype");
  }
}

}  // namespace fovea::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fovea::cpu {

HWY_EXPORT(to_bf16_target);

void to_bf16(const void* from, DType dtype, int64_t n, uint16_t* to) { HWY_DYNAMIC_DISPATCH(to_bf16_target)(from, dtype, n, to); }

#if defined(__x86_64__)
namespace {

// One instruction where the portable way takes nine; Highway 1.0.3 does not know it.
__attribute__((target("avx512f,avx512vl,avx512bf16"))) int64_t round_by_instruction(const float* from, int64_t n, uint16_t* to) {
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const __m512bh both = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + i + 16), _mm512_loadu_ps(from + i));
    _mm512_storeu_si512(to + i, reinterpret_cast<const __m512i&>(both));
  }
  return i;
}

}  // namespace
#endif

void round_to_bf16(const float* from, int64_t n, uint16_t* to) {
  int64_t done = 0;
#if defined(__x86_64__)
  if (cpu_features().avx512_bf16) done = round_by_instruction(from, n, to);
#endif
  to_bf16(from + done, DType::f32, n - done, to + done);
}

}  // namespace fovea::cpu
#endif
