#include "kernels/cpu/quant/quant_gemv.h"

#include "base/check.h"
#include "kernels/cpu/quant/unpack.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/quant/quant_gemv.cpp"
#include <hwy/foreach_target.h>
// foreach_target first: it compiles this file once per instruction set
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::CappedTag<float, 16>;

// n elements, a part at most: codes, sums of 16 of them, and their scale. Loops of fixed length over a padded copy: the compiler makes vectors of them.
HWY_INLINE float round_part(const float* x, int64_t n, int8_t* HWY_RESTRICT code, int32_t* HWY_RESTRICT sums) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  const hn::Rebind<int8_t, FloatTag> d8;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  HWY_ALIGN float part[32];
  if (n < 32) {
    std::memset(part, 0, sizeof(part));
    std::memcpy(part, x, static_cast<size_t>(n) * sizeof(float));
    x = part;
  }
  auto most = hn::Zero(d);
  for (int64_t i = 0; i < 32; i += lanes) most = hn::Max(most, hn::Abs(hn::LoadU(d, x + i)));
  const float scale = hn::GetLane(hn::MaxOfLanes(d, most)) / 127.0f;
  const auto inverse = hn::Set(d, scale > 0.0f ? 1.0f / scale : 0.0f);
  for (int64_t half = 0; half < 2; ++half) {
    auto sum = hn::Zero(di);
    for (int64_t i = half * 16; i < half * 16 + 16; i += lanes) {
      const auto rounded = hn::NearestInt(hn::Mul(hn::LoadU(d, x + i), inverse));
      hn::StoreU(hn::DemoteTo(d8, rounded), d8, code + i);
      sum = hn::Add(sum, rounded);
    }
    sums[half] = hn::GetLane(hn::SumOfLanes(di, sum));
  }
  return scale;
}

// Where 16 elements of a piece go.
HWY_INLINE int place(XOrder order, int sixteen) {
  switch (order) {
    case XOrder::natural:
    case XOrder::biased:
      return sixteen;
    case XOrder::halves:
      return sixteen / 8 * 8 + sixteen % 2 * 4 + sixteen % 8 / 2;
    case XOrder::pairs:
      return sixteen / 2 % 2 * 8 + sixteen % 2 * 4 + sixteen / 4;
    case XOrder::across:
      return sixteen % 8 * 2 + sixteen / 8;
  }
  return sixteen;
}

HWY_INLINE void quantise_piece(const float* x, int64_t n, XOrder order, QuantisedX* out) {
  HWY_ALIGN int8_t code[kQuantPiece];
  for (int part = 0; part < 8; ++part) {
    const int64_t left = std::clamp<int64_t>(n - part * 32, 0, 32);
    int32_t sums[2] = {};
    const float scale = left > 0 ? round_part(x + part * 32, left, code + part * 32, sums) : 0.0f;
    if (left == 0) std::memset(code + part * 32, 0, 32);
    for (int half = 0; half < 2; ++half) {
      const int8_t* from = code + part * 32 + half * 16;
      out->scale[2 * part + half] = scale;
      out->sum[2 * part + half] = scale * static_cast<float>(sums[half]);
      std::memcpy(out->code + place(order, 2 * part + half) * 16, from, 16);
    }
    out->scale_of_32[part] = order == XOrder::pairs && part % 2 == 1 ? scale / 16 : scale;
    out->sum_of_32[part] = scale * static_cast<float>(sums[0] + sums[1]);
  }
  if (order != XOrder::biased) return;
  for (int8_t& c : out->code) c = static_cast<int8_t>(static_cast<uint8_t>(c) + kXBias);
}

void quantise_target(const float* x, int64_t rows, int64_t k, int64_t begin, int64_t end, XOrder order, QuantisedX* packed) {
  for (int64_t c = 0; c < k; c += kQuantPiece, packed += rows) {
    for (int64_t r = begin; r < end; ++r) quantise_piece(x + r * k + c, k - c, order, packed + r);
  }
}

}  // namespace fovea::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fovea::cpu {

HWY_EXPORT(quantise_target);

namespace {

// Sum over n elements (whole sixteens) of a piece.
float dot(const UnpackedPiece& w, bool offsets, int64_t n, const QuantisedX& x) {
  float total = 0;
  for (int64_t part = 0; part * 16 < n; ++part) {
    int sum = 0;
    for (int i = 0; i < 16; ++i) sum += w.code[part * 16 + i] * x.code[part * 16 + i];
    total += w.value[part] * x.scale[part] * static_cast<float>(sum);
    if (offsets) total += w.offset[part] * x.sum[part];
  }
  return total;
}

// For CPUs without AVX2: by codes that were unpacked first.
void quant_gemv_portable(const QuantGemvSlice& s) {
  const bool offsets = has_offsets(s.w.type);
  UnpackedPiece piece;
  float sums[kQuantGemvRows];
  for (int64_t j = 0; j < s.w.rows; ++j) {
    std::fill_n(sums, s.rows, 0.0f);
    const QuantisedX* x = s.packed;
    for (int64_t c = 0; c < s.w.cols; c += kQuantPiece, x += s.rows) {
      const int64_t n = std::min(kQuantPiece, s.w.cols - c);
      unpack_codes(s.w, j, c, n, &piece);
      for (int64_t i = n; i % 16 != 0; ++i) piece.code[i] = 0;
      for (int32_t r = 0; r < s.rows; ++r) sums[r] += dot(piece, offsets, n, x[r]);
    }
    for (int32_t r = 0; r < s.rows; ++r) s.out[r * s.out_stride + j] = sums[r] + (s.bias ? s.bias[j] : 0.0f);
  }
}

}  // namespace

XOrder x_order(const WeightView& w, const CpuFeatures& features) {
  if (w.interleaved) return XOrder::natural;
  if (!features.avx512_vnni) return features.avx2 ? XOrder::across : XOrder::natural;
  switch (w.type) {
    case WeightType::q2_k:
    case WeightType::q3_k:
    case WeightType::q6_k:
      return XOrder::natural;
    case WeightType::q4_k:
    case WeightType::q5_k:
      return XOrder::pairs;
    default:
      return XOrder::halves;
  }
}

void quantise_x(const float* x, int64_t rows, int64_t k, int64_t begin, int64_t end, XOrder order, QuantisedX* packed) {
  HWY_DYNAMIC_DISPATCH(quantise_target)(x, rows, k, begin, end, order, packed);
}

void quant_gemv(const QuantGemvSlice& slice, const CpuFeatures& features) {
  FOVEA_CHECK(slice.rows >= 1 && slice.rows <= kQuantGemvRows && quant_gemv_takes(slice.w.type));
#if defined(__x86_64__)
  if (features.avx512_vnni) return slice.w.interleaved ? quant_gemv_rows(slice) : quant_gemv_vnni(slice);
  if (features.avx2 && !slice.w.interleaved) return features.avx_vnni ? quant_gemv_avx_vnni(slice) : quant_gemv_avx2(slice);
#endif
  quant_gemv_portable(slice);
}

}  // namespace fovea::cpu
#endif
