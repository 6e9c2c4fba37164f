#include "kernels/cpu/quant/unpack.h"

#include "base/check.h"
#include "kernels/common/convert.h"
#include "kernels/common/dequantize.h"
#include "kernels/cpu/linear/linear_convert.h"
#include "kernels/cpu/quant/interleave.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/quant/unpack.cpp"
#include <hwy/foreach_target.h>
// foreach_target first: it compiles this file once per instruction set
#include <hwy/highway.h>
#include "kernels/cpu/elementwise/elementwise_inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu::HWY_NAMESPACE {

// The loops of fixed length below are plain C++: the compiler makes vectors of them, once per target.

HWY_INLINE float half_at(const uint8_t* p) {
  uint16_t h;
  std::memcpy(&h, p, sizeof(h));
  return f16_to_f32(h);
}

// ---- Codes of 32 elements ------------------------------------------------------------------------------------------

// 16 bytes: the low halves are the first 16 elements.
HWY_INLINE void halves(const uint8_t* HWY_RESTRICT qs, int less, int8_t* HWY_RESTRICT code) {
  for (int i = 0; i < 16; ++i) {
    code[i] = static_cast<int8_t>((qs[i] & 15) - less);
    code[i + 16] = static_cast<int8_t>((qs[i] >> 4) - less);
  }
}

HWY_INLINE void halves_with_fifth(const uint8_t* HWY_RESTRICT high, const uint8_t* HWY_RESTRICT qs, int less,
                                  int8_t* HWY_RESTRICT code) {
  uint8_t fifth[32];
  for (int i = 0; i < 32; ++i) fifth[i] = static_cast<uint8_t>((high[i / 8] >> (i % 8) & 1) << 4);
  for (int i = 0; i < 16; ++i) {
    code[i] = static_cast<int8_t>(((qs[i] & 15) | fifth[i]) - less);
    code[i + 16] = static_cast<int8_t>(((qs[i] >> 4) | fifth[i + 16]) - less);
  }
}

HWY_INLINE void halves_of_table(const uint8_t* HWY_RESTRICT qs, const int8_t* HWY_RESTRICT table, int8_t* HWY_RESTRICT code) {
#if HWY_TARGET == HWY_SCALAR
  for (int i = 0; i < 16; ++i) {
    code[i] = table[qs[i] & 15];
    code[i + 16] = table[qs[i] >> 4];
  }
#else
  const hn::Full128<uint8_t> d;
  const auto bytes = hn::LoadU(d, qs);
  const auto values = hn::LoadU(d, reinterpret_cast<const uint8_t*>(table));
  const auto low = hn::And(bytes, hn::Set(d, 15));
  const hn::Repartition<uint16_t, decltype(d)> d16;
  const auto high = hn::And(hn::BitCast(d, hn::ShiftRight<4>(hn::BitCast(d16, bytes))), hn::Set(d, 15));
  hn::StoreU(hn::TableLookupBytes(values, low), d, reinterpret_cast<uint8_t*>(code));
  hn::StoreU(hn::TableLookupBytes(values, high), d, reinterpret_cast<uint8_t*>(code + 16));
#endif
}

HWY_INLINE void set_pair(float value, float offset, int part, UnpackedPiece* out) {
  out->value[2 * part] = out->value[2 * part + 1] = value;
  out->offset[2 * part] = out->offset[2 * part + 1] = offset;
}

// ---- Blocks of 256 -------------------------------------------------------------------------------------------------

HWY_INLINE void two_bits(const uint8_t* HWY_RESTRICT qs, int8_t* HWY_RESTRICT code) {
  for (int half = 0; half < 2; ++half) {
    for (int part = 0; part < 4; ++part) {
      for (int i = 0; i < 32; ++i) code[half * 128 + part * 32 + i] = static_cast<int8_t>(qs[half * 32 + i] >> (2 * part) & 3);
    }
  }
}

HWY_INLINE void four_bits(const uint8_t* HWY_RESTRICT qs, int8_t* HWY_RESTRICT code) {
  for (int j = 0; j < 4; ++j) {
    for (int i = 0; i < 32; ++i) {
      code[j * 64 + i] = static_cast<int8_t>(qs[j * 32 + i] & 15);
      code[j * 64 + 32 + i] = static_cast<int8_t>(qs[j * 32 + i] >> 4);
    }
  }
}

void block_q2_k(const uint8_t* b, UnpackedPiece* out) {
  two_bits(b + 16, out->code);
  const float d = half_at(b + 80), dmin = half_at(b + 82);
  for (int part = 0; part < 16; ++part) {
    out->value[part] = d * static_cast<float>(b[part] & 15);
    out->offset[part] = -(dmin * static_cast<float>(b[part] >> 4));
  }
}

void block_q3_k(const uint8_t* b, UnpackedPiece* out) {
  int8_t low[256], scales[16];
  two_bits(b + 32, low);
  for (int part = 0; part < 8; ++part) {
    for (int i = 0; i < 32; ++i) out->code[part * 32 + i] = static_cast<int8_t>((low[part * 32 + i] | (b[i] >> part & 1) << 2) - 4);
  }
  unpack_q3_scales(b + 96, scales);
  const float d = half_at(b + 108);
  for (int part = 0; part < 16; ++part) out->value[part] = d * static_cast<float>(scales[part]);
}

void block_q4_or_5_k(const uint8_t* b, bool fifth, UnpackedPiece* out) {
  uint8_t scales[8], mins[8];
  unpack_k_scales(b + 4, scales, mins);
  const float d = half_at(b), dmin = half_at(b + 2);
  for (int part = 0; part < 8; ++part)
    set_pair(d * static_cast<float>(scales[part]), -(dmin * static_cast<float>(mins[part])), part, out);
  four_bits(b + (fifth ? 48 : 16), out->code);
  if (!fifth) return;
  for (int part = 0; part < 8; ++part) {
    for (int i = 0; i < 32; ++i)
      out->code[part * 32 + i] = static_cast<int8_t>(out->code[part * 32 + i] | (b[16 + i] >> part & 1) << 4);
  }
}

void block_q6_k(const uint8_t* b, UnpackedPiece* out) {
  int8_t high[256];
  two_bits(b + 128, high);
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < 64; ++i) {
      const uint8_t q = b[half * 64 + i];
      const int at = half * 128 + i;
      out->code[at] = static_cast<int8_t>(((q & 15) | high[at] << 4) - 32);
      out->code[at + 64] = static_cast<int8_t>((q >> 4 | high[at + 64] << 4) - 32);
    }
  }
  const float d = half_at(b + 208);
  for (int part = 0; part < 16; ++part) out->value[part] = d * static_cast<float>(static_cast<int8_t>(b[192 + part]));
}

void block_iq4_xs(const uint8_t* b, UnpackedPiece* out) {
  const float d = half_at(b);
  const unsigned high = b[2] | b[3] << 8;
  for (int part = 0; part < 8; ++part) {
    const int scale = (b[4 + part / 2] >> (part % 2 * 4) & 15) | static_cast<int>(high >> (2 * part) & 3) << 4;
    set_pair(d * static_cast<float>(scale - 32), 0.0f, part, out);
    halves_of_table(b + 8 + part * 16, kIq4Values, out->code + part * 32);
  }
}

// ---- Pieces --------------------------------------------------------------------------------------------------------

void small_block(WeightType type, const uint8_t* b, int part, UnpackedPiece* out) {
  int8_t* code = out->code + part * 32;
  switch (type) {
    case WeightType::q8_0:
      set_pair(half_at(b), 0.0f, part, out);
      std::memcpy(code, b + 2, 32);
      return;
    case WeightType::q4_0:
      set_pair(half_at(b), 0.0f, part, out);
      return halves(b + 2, 8, code);
    case WeightType::q4_1:
      set_pair(half_at(b), half_at(b + 2), part, out);
      return halves(b + 4, 0, code);
    case WeightType::q5_0:
      set_pair(half_at(b), 0.0f, part, out);
      return halves_with_fifth(b + 2, b + 6, 16, code);
    case WeightType::q5_1:
      set_pair(half_at(b), half_at(b + 2), part, out);
      return halves_with_fifth(b + 4, b + 8, 0, code);
    case WeightType::iq4_nl:
      set_pair(half_at(b), 0.0f, part, out);
      return halves_of_table(b + 2, kIq4Values, code);
    case WeightType::mxfp4:
      set_pair(e8m0_half(b[0]), 0.0f, part, out);
      return halves_of_table(b + 1, kMxfp4Values, code);
    default:
      FOVEA_CHECK(false && "unpack: a type of small blocks");
  }
}

void large_block(WeightType type, const uint8_t* b, UnpackedPiece* out) {
  switch (type) {
    case WeightType::q2_k:
      return block_q2_k(b, out);
    case WeightType::q3_k:
      return block_q3_k(b, out);
    case WeightType::q4_k:
      return block_q4_or_5_k(b, false, out);
    case WeightType::q5_k:
      return block_q4_or_5_k(b, true, out);
    case WeightType::q6_k:
      return block_q6_k(b, out);
    case WeightType::iq4_xs:
      return block_iq4_xs(b, out);
    default:
      FOVEA_CHECK(false && "unpack: a type of large blocks");
  }
}

void scaled_codes(const WeightView& w, int64_t row, int64_t begin, int64_t count, UnpackedPiece* out) {
  const auto* scales = static_cast<const uint32_t*>(w.scales) + row * w.scales_per_row();
  const uint8_t* data = w.row(row);
  if (w.type == WeightType::int8) std::memcpy(out->code, data + begin, static_cast<size_t>(count));
  for (int part = 0; part * 32 < count; ++part) {
    const uint32_t scale = scales[(begin + part * 32) / w.group];
    if (w.type == WeightType::int8) {
      set_pair(std::bit_cast<float>(scale), 0.0f, part, out);
    } else {
      set_pair(std::bit_cast<float>(scale & ~255u), 0.0f, part, out);
      halves(data + (begin / 32 + part) * 16, static_cast<int>(scale & 255), out->code + part * 32);
    }
  }
}

void unpack_codes_target(const WeightView& w, int64_t row, int64_t begin, int64_t count, UnpackedPiece* out) {
  const WeightFormat& format = weight_format(w.type);
  if (format.scaled) return scaled_codes(w, row, begin, count, out);
  if (w.interleaved) {
    uint8_t block[256];
    copy_block(w, row, begin / format.block, block);
    return large_block(w.type, block, out);
  }
  const uint8_t* from = w.row(row) + begin / format.block * format.bytes;
  if (format.block == kUnpackedPiece) return large_block(w.type, from, out);
  for (int part = 0; part * 32 < count; ++part) small_block(w.type, from + part * format.bytes, part, out);
}

// n elements, n at most a piece.
HWY_INLINE void codes_to_f32(const UnpackedPiece& piece, bool offsets, int64_t n, float* HWY_RESTRICT out) {
  for (int64_t part = 0; part * 16 < n; ++part) {
    const float value = piece.value[part], offset = piece.offset[part];
    const int8_t* HWY_RESTRICT code = piece.code + part * 16;
    float* HWY_RESTRICT to = out + part * 16;
    const int64_t count = std::min<int64_t>(16, n - part * 16);
    if (count < 16) {
      for (int64_t i = 0; i < count; ++i) to[i] = value * static_cast<float>(code[i]);
      continue;
    }
    const FloatTag d;
    const hn::Rebind<int8_t, FloatTag> d8;
    const hn::RebindToSigned<FloatTag> d32;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    for (int64_t i = 0; i < 16; i += lanes) {
      const auto product = rounded(hn::Mul(hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, code + i))), hn::Set(d, value)));
      hn::StoreU(offsets ? hn::Add(product, hn::Set(d, offset)) : product, d, to + i);
    }
  }
}

void fp8_to_f32(const WeightView& w, int64_t row, int64_t begin, int64_t count, float* out) {
  const auto* scales = static_cast<const float*>(w.scales) + row * w.scales_per_row();
  const uint8_t* data = w.row(row);
  for (int64_t i = begin; i < begin + count;) {
    const int64_t end = std::min(begin + count, (i / w.group + 1) * w.group);
    widen(data + i, DType::fp8_e4m3, end - i, out + (i - begin));
    times(scales[i / w.group], end - i, out + (i - begin));
    i = end;
  }
}

void unpack_f32_target(const WeightView& w, int64_t row, int64_t begin, int64_t count, float* out) {
  const int64_t block = weight_format(w.type).block;
  FOVEA_CHECK(begin % block == 0 && count % block == 0);
  if (is_plain(w.type)) return widen(w.row(row) + begin * block * weight_format(w.type).bytes, w.dtype(), count, out);
  if (w.type == WeightType::fp8_e4m3) return fp8_to_f32(w, row, begin, count, out);
  UnpackedPiece piece;
  const bool offsets = has_offsets(w.type);
  for (int64_t i = 0; i < count; i += kUnpackedPiece) {
    const int64_t n = std::min<int64_t>(kUnpackedPiece, count - i);
    unpack_codes_target(w, row, begin + i, n, &piece);
    codes_to_f32(piece, offsets, n, out + i);
  }
}

}  // namespace fovea::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fovea::cpu {

HWY_EXPORT(unpack_f32_target);
HWY_EXPORT(unpack_codes_target);

void unpack_f32(const WeightView& w, int64_t row, int64_t begin, int64_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(unpack_f32_target)(w, row, begin, count, out);
}

void unpack_codes(const WeightView& w, int64_t row, int64_t begin, int64_t count, UnpackedPiece* out) {
  FOVEA_CHECK(count <= kUnpackedPiece);
  HWY_DYNAMIC_DISPATCH(unpack_codes_target)(w, row, begin, count, out);
}

void unpack_bf16(const WeightView& w, int64_t first, int64_t rows, uint16_t* out) {
  if (is_plain(w.type)) return to_bf16(w.row(first), w.dtype(), rows * w.cols, out);
  constexpr int64_t kPiece = 1024;  // floats that stay in the L1 cache
  float wide[kPiece];
  for (int64_t row = first; row < first + rows; ++row, out += w.cols) {
    for (int64_t i = 0; i < w.cols; i += kPiece) {
      const int64_t n = std::min(kPiece, w.cols - i);
      unpack_f32(w, row, i, n, wide);
      round_to_bf16(wide, n, out + i);
    }
  }
}

}  // namespace fovea::cpu
#endif
