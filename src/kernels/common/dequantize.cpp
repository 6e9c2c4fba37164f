#include "kernels/common/dequantize.h"

#include "base/check.h"
#include "kernels/common/convert.h"

#include <bit>
#include <cstring>
#include <string>

namespace fovea {
namespace {

uint16_t load_u16(const uint8_t* p) {
  uint16_t v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
float load_half(const uint8_t* p) { return f16_to_f32(load_u16(p)); }

// Element i of 32 in 16 bytes, 4 bits each: the low halves first.
int low_halves_first(const uint8_t* qs, int i) { return i < 16 ? qs[i] & 15 : qs[i - 16] >> 4; }

// Each block_* is one block to floats: `b` its bytes, `out` its elements. Layouts are ggml's; x is the number that an element holds.

void block_q8_0(const uint8_t* b, float* out) {  // f16 d, int8 x[32]: x d
  const float d = load_half(b);
  for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(static_cast<int8_t>(b[2 + i])) * d;
}

void block_q4_0(const uint8_t* b, float* out) {  // f16 d, 4-bit x[32]: d (x - 8)
  const float d = load_half(b);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(low_halves_first(b + 2, i) - 8);
}

void block_q4_1(const uint8_t* b, float* out) {  // f16 d, f16 m, 4-bit x[32]: d x + m
  const float d = load_half(b), m = load_half(b + 2);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(low_halves_first(b + 4, i)) + m;
}

int five_bits(const uint8_t* high, const uint8_t* low, int i) {
  return low_halves_first(low, i) | (high[i / 8] >> (i % 8) & 1) << 4;
}

void block_q5_0(const uint8_t* b, float* out) {  // f16 d, fifth bits[4], 4-bit x[32]: d (x - 16)
  const float d = load_half(b);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(five_bits(b + 2, b + 6, i) - 16);
}

void block_q5_1(const uint8_t* b, float* out) {  // f16 d, f16 m, fifth bits[4], 4-bit x[32]: d x + m
  const float d = load_half(b), m = load_half(b + 2);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(five_bits(b + 4, b + 8, i)) + m;
}

// 2-bit element i of 256 in 64 bytes: 128 elements in 32 bytes, of which 32 in the same bits of each.
int two_bits(const uint8_t* qs, int i) { return qs[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3; }

void block_q2_k(const uint8_t* b, float* out) {  // (4-bit min, 4-bit scale)[16], 2-bit x[256], f16 d, f16 dmin
  const float d = load_half(b + 80), dmin = load_half(b + 82);
  for (int part = 0; part < 16; ++part) {
    const float dl = d * static_cast<float>(b[part] & 15), ml = dmin * static_cast<float>(b[part] >> 4);
    for (int i = part * 16; i < part * 16 + 16; ++i) out[i] = dl * static_cast<float>(two_bits(b + 16, i)) - ml;
  }
}

void block_q3_k(const uint8_t* b, float* out) {  // third bits[32], 2-bit x[256], scales[12], f16 d: d (scale - 32) (x - 4)
  const float d = load_half(b + 108);
  int8_t scales[16];
  unpack_q3_scales(b + 96, scales);
  for (int i = 0; i < 256; ++i) {
    const int third = b[i % 32] >> (i / 32) & 1;
    out[i] = d * static_cast<float>(scales[i / 16]) * static_cast<float>(two_bits(b + 32, i) - (third ? 0 : 4));
  }
}

// 4-bit element i of 256 in 128 bytes: 64 elements in 32 bytes, the low halves first.
int four_bits(const uint8_t* qs, int i) { return qs[i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15; }

void block_q4_k(const uint8_t* b, float* out) {  // f16 d, f16 dmin, scales[12], 4-bit x[256]: d scale x - dmin min
  const float d = load_half(b), dmin = load_half(b + 2);
  uint8_t scales[8], mins[8];
  unpack_k_scales(b + 4, scales, mins);
  for (int part = 0; part < 8; ++part) {
    const float dl = d * static_cast<float>(scales[part]), ml = dmin * static_cast<float>(mins[part]);
    for (int i = part * 32; i < part * 32 + 32; ++i) out[i] = dl * static_cast<float>(four_bits(b + 16, i)) - ml;
  }
}

void block_q5_k(const uint8_t* b, float* out) {  // as q4_k, with fifth bits[32] before x
  const float d = load_half(b), dmin = load_half(b + 2);
  uint8_t scales[8], mins[8];
  unpack_k_scales(b + 4, scales, mins);
  for (int part = 0; part < 8; ++part) {
    const float dl = d * static_cast<float>(scales[part]), ml = dmin * static_cast<float>(mins[part]);
    for (int i = part * 32; i < part * 32 + 32; ++i)
      out[i] = dl * static_cast<float>(four_bits(b + 48, i) | (b[16 + i % 32] >> part & 1) << 4) - ml;
  }
}

void block_q6_k(const uint8_t* b, float* out) {  // low bits[128], high bits[64], int8 scales[16], f16 d: d scale (x - 32)
  const float d = load_half(b + 208);
  for (int i = 0; i < 256; ++i) {
    const int low = b[i / 128 * 64 + i % 64] >> (i / 64 % 2 * 4) & 15;
    const float dl = d * static_cast<float>(static_cast<int8_t>(b[192 + i / 16]));
    out[i] = dl * static_cast<float>((low | two_bits(b + 128, i) << 4) - 32);
  }
}

void block_iq4_nl(const uint8_t* b, float* out) {  // f16 d, 4-bit x[32]: d value[x]
  const float d = load_half(b);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(kIq4Values[low_halves_first(b + 2, i)]);
}

void block_iq4_xs(const uint8_t* b, float* out) {  // f16 d, u16 high bits of scales, low bits[4], 4-bit x[256]
  const float d = load_half(b);
  const uint16_t high = load_u16(b + 2);
  for (int part = 0; part < 8; ++part) {
    const int scale = (b[4 + part / 2] >> (part % 2 * 4) & 15) | (high >> (2 * part) & 3) << 4;
    const float dl = d * static_cast<float>(scale - 32);
    for (int i = 0; i < 32; ++i) out[part * 32 + i] = dl * static_cast<float>(kIq4Values[low_halves_first(b + 8 + part * 16, i)]);
  }
}

void block_mxfp4(const uint8_t* b, float* out) {  // e8m0, 4-bit x[32]: 2^e value[x]
  const float d = e8m0_half(b[0]);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(kMxfp4Values[low_halves_first(b + 1, i)]);
}

using BlockFn = void (*)(const uint8_t*, float*);
BlockFn block_fn(WeightType type) {
  switch (type) {
    case WeightType::q8_0:
      return block_q8_0;
    case WeightType::q4_0:
      return block_q4_0;
    case WeightType::q4_1:
      return block_q4_1;
    case WeightType::q5_0:
      return block_q5_0;
    case WeightType::q5_1:
      return block_q5_1;
    case WeightType::q2_k:
      return block_q2_k;
    case WeightType::q3_k:
      return block_q3_k;
    case WeightType::q4_k:
      return block_q4_k;
    case WeightType::q5_k:
      return block_q5_k;
    case WeightType::q6_k:
      return block_q6_k;
    case WeightType::iq4_nl:
      return block_iq4_nl;
    case WeightType::iq4_xs:
      return block_iq4_xs;
    case WeightType::mxfp4:
      return block_mxfp4;
    default:
      return nullptr;
  }
}

// Types whose scales lie apart.
void dequantize_scaled(const WeightView& w, int64_t row, int64_t begin, int64_t count, float* out) {
  const uint8_t* data = w.row(row);
  const auto* bits = static_cast<const uint32_t*>(w.scales) + row * w.scales_per_row();
  for (int64_t i = begin; i < begin + count; ++i) {
    const uint32_t scale = bits[i / w.group];
    if (w.type == WeightType::int4) {
      const int zero = static_cast<int>(scale & 255);
      const int x = low_halves_first(data + i / 32 * 16, static_cast<int>(i % 32));
      out[i - begin] = static_cast<float>(x - zero) * std::bit_cast<float>(scale & ~255u);
    } else {
      const float x = w.type == WeightType::int8 ? static_cast<float>(static_cast<int8_t>(data[i])) : fp8_e4m3_to_f32(data[i]);
      out[i - begin] = x * std::bit_cast<float>(scale);
    }
  }
}

}  // namespace

float e8m0_half(uint8_t e) { return std::bit_cast<float>(e < 2 ? 0x00200000u << e : static_cast<uint32_t>(e - 1) << 23); }

void unpack_k_scales(const uint8_t* packed, uint8_t* scales, uint8_t* mins) {
  for (int i = 0; i < 4; ++i) {
    const uint8_t d = packed[i], m = packed[4 + i], both = packed[8 + i];
    scales[i] = d & 63;
    mins[i] = m & 63;
    scales[4 + i] = static_cast<uint8_t>((both & 15) | (d >> 2 & 48));
    mins[4 + i] = static_cast<uint8_t>(both >> 4 | (m >> 2 & 48));
  }
}

void unpack_q3_scales(const uint8_t* packed, int8_t* scales) {
  for (int i = 0; i < 16; ++i) {
    const int low = packed[i % 8] >> (i / 8 * 4) & 15, high = packed[8 + i % 4] >> (i / 4 * 2) & 3;
    scales[i] = static_cast<int8_t>((low | high << 4) - 32);
  }
}

void dequantize(const WeightView& w, int64_t row, int64_t begin, int64_t count, float* out) {
  const WeightFormat& format = weight_format(w.type);
  FOVEA_CHECK(!w.interleaved && begin % format.block == 0 && count % format.block == 0);
  if (format.scaled) return dequantize_scaled(w, row, begin, count, out);
  if (is_plain(w.type)) {
    for (int64_t i = 0; i < count; ++i) out[i] = load_as_f32(w.data, w.dtype(), row * w.cols + begin + i);
    return;
  }
  const BlockFn block = block_fn(w.type);
  const uint8_t* from = w.row(row) + begin / format.block * format.bytes;
  for (int64_t i = 0; i < count; i += format.block, from += format.bytes) block(from, out + i);
}

Status check_weight(const WeightView& w) {
  const WeightFormat& format = weight_format(w.type);
  const std::string what =
      "weights [" + std::to_string(w.rows) + ", " + std::to_string(w.cols) + "] of type " + std::string(format.name) + ": ";
  if (w.cols % format.block != 0)
    return Status::invalid_argument(what + "rows are no multiple of its blocks of " + std::to_string(format.block));
  if (!format.scaled) return {};
  if (!w.scales && w.rows > 0) return Status::invalid_argument(what + "its scales are missing");
  if (w.group < 1 || (w.group % 32 != 0 && w.group < w.cols))
    return Status::invalid_argument(what + "groups of " + std::to_string(w.group) + " columns, a multiple of 32 or all expected");
  return {};
}

}  // namespace fovea
