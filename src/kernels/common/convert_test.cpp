#include "kernels/common/convert.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace fovea {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(Convert, EverySixteenBitValueSurvivesTheRoundTrip) {
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    if (std::isnan(bf16_to_f32(bits))) {
      EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(bf16_to_f32(bits)))));
    } else {
      EXPECT_EQ(f32_to_bf16(bf16_to_f32(bits)), bits);
    }
    if (std::isnan(f16_to_f32(bits))) {
      EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(f16_to_f32(bits)))));
    } else {
      EXPECT_EQ(f32_to_f16(f16_to_f32(bits)), bits);
    }
  }
}

// Between two neighbours: to the nearer one; from the middle to the even one; one ulp of float32 decides.
TEST(Convert, RoundsToNearestEven) {
  for (uint32_t i = 0; i < 0x7bffu; ++i) {  // finite, positive, both dtypes; up to f16's largest pair
    const auto lo = static_cast<uint16_t>(i), hi = static_cast<uint16_t>(i + 1), even = i % 2 == 0 ? lo : hi;
    const float bf_mid = std::bit_cast<float>((i << 16) + 0x8000u);
    EXPECT_EQ(f32_to_bf16(bf_mid), even);
    EXPECT_EQ(f32_to_bf16(std::nextafter(bf_mid, 0.0f)), lo);
    EXPECT_EQ(f32_to_bf16(std::nextafter(bf_mid, kInf)), hi);
    const float mid = (f16_to_f32(lo) + f16_to_f32(hi)) / 2;  // exact in float32
    EXPECT_EQ(f32_to_f16(mid), even);
    EXPECT_EQ(f32_to_f16(std::nextafter(mid, 0.0f)), lo);
    EXPECT_EQ(f32_to_f16(std::nextafter(mid, kInf)), hi);
    EXPECT_EQ(f32_to_f16(-mid), even | 0x8000u);
  }
}

TEST(Convert, KnownValuesAndEnds) {
  EXPECT_EQ(f32_to_bf16(1.0f), 0x3f80u);
  EXPECT_EQ(f32_to_f16(1.0f), 0x3c00u);
  EXPECT_EQ(f16_to_f32(0x0001u), 0x1p-24f);
  EXPECT_EQ(f16_to_f32(0x7bffu), 65504.0f);
  EXPECT_EQ(f32_to_f16(65519.0f), 0x7bffu);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00u);
  EXPECT_EQ(f32_to_f16(0x1p-25f), 0x0000u);  // half of the smallest: to even
  EXPECT_EQ(f32_to_f16(1e30f), 0x7c00u);
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7f80u);
  EXPECT_EQ(f32_to_bf16(-kInf), 0xff80u);
  EXPECT_EQ(f32_to_f16(-kInf), 0xfc00u);
  // A NaN whose payload lies in the low bits alone must not become an infinity.
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(std::bit_cast<float>(0xff800001u)))));
}

struct Fp8 {
  float (*widen)(uint8_t);
  uint8_t (*narrow)(float);
  uint32_t largest;  // finite; beyond it lie infinity, where there is one, and NaN
};
constexpr Fp8 kFp8[] = {{&fp8_e4m3_to_f32, &f32_to_fp8_e4m3, 0x7e}, {&fp8_e5m2_to_f32, &f32_to_fp8_e5m2, 0x7b}};

TEST(Convert, EveryFp8ValueSurvivesTheRoundTrip) {
  for (const Fp8& f : kFp8) {
    for (uint32_t i = 0; i < 256; ++i) {
      const auto bits = static_cast<uint8_t>(i);
      if ((i & 0x7fu) <= f.largest) {
        EXPECT_EQ(f.narrow(f.widen(bits)), bits);
      } else {
        EXPECT_FALSE(std::isfinite(f.widen(bits)));
      }
    }
    EXPECT_EQ(f.narrow(std::nanf("")), 0x7f);
    EXPECT_EQ(f.narrow(-std::nanf("")), 0xff);
    EXPECT_TRUE(std::isnan(f.widen(0x7f)));
  }
}

TEST(Convert, Fp8RoundsToNearestEvenAndSaturates) {
  for (const Fp8& f : kFp8) {
    for (uint32_t i = 0; i < f.largest; ++i) {
      const auto lo = static_cast<uint8_t>(i), hi = static_cast<uint8_t>(i + 1), even = i % 2 == 0 ? lo : hi;
      const float mid = (f.widen(lo) + f.widen(hi)) / 2;  // exact in float32
      EXPECT_EQ(f.narrow(mid), even);
      EXPECT_EQ(f.narrow(std::nextafter(mid, 0.0f)), lo);
      EXPECT_EQ(f.narrow(std::nextafter(mid, kInf)), hi);
      EXPECT_EQ(f.narrow(-mid), even | 0x80u);
    }
    for (float x : {f.widen(static_cast<uint8_t>(f.largest)) * 1.001f, 1e30f, kInf}) {
      EXPECT_EQ(f.narrow(x), f.largest);
      EXPECT_EQ(f.narrow(-x), f.largest | 0x80u);
    }
  }
  EXPECT_EQ(fp8_e4m3_to_f32(0x38), 1.0f);
  EXPECT_EQ(fp8_e4m3_to_f32(0x01), 0x1p-9f);
  EXPECT_EQ(fp8_e4m3_to_f32(0x7e), fp8_max(DType::fp8_e4m3));
  EXPECT_EQ(fp8_e5m2_to_f32(0x3c), 1.0f);
  EXPECT_EQ(fp8_e5m2_to_f32(0x01), 0x1p-16f);
  EXPECT_EQ(fp8_e5m2_to_f32(0x7b), fp8_max(DType::fp8_e5m2));
}

TEST(Convert, ArraysByDtype) {
  float f32[2] = {};
  uint16_t f16[2] = {}, bf16[2] = {};
  uint8_t fp8[2] = {};
  store_f32(f32, DType::f32, 1, 1.0009766f);
  store_f32(f16, DType::f16, 1, 1.0009766f);
  store_f32(bf16, DType::bf16, 1, 1.0009766f);
  store_f32(fp8, DType::fp8_e4m3, 1, 1.0009766f);
  EXPECT_EQ(load_as_f32(fp8, DType::fp8_e4m3, 1), 1.0f);
  store_f32(fp8, DType::fp8_e5m2, 1, -1.3f);
  EXPECT_EQ(load_as_f32(fp8, DType::fp8_e5m2, 1), -1.25f);
  EXPECT_EQ(load_as_f32(f32, DType::f32, 1), 1.0009766f);
  EXPECT_EQ(load_as_f32(f16, DType::f16, 1), 1.0009766f);
  EXPECT_EQ(load_as_f32(bf16, DType::bf16, 1), 1.0f);
  EXPECT_EQ(f32[0], 0.0f);
  EXPECT_EQ(f16[0], 0u);
}

}  // namespace
}  // namespace fovea
