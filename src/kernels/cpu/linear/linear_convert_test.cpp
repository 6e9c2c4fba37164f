#include "kernels/cpu/linear/linear_convert.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/common/convert.h"

namespace fovea::cpu {
namespace {

TEST(ToBf16, EqualsTheScalarConversionOnEveryTarget) {
  std::vector<float> x;
  std::vector<uint16_t> h;
  std::mt19937 random(3);
  for (uint32_t top = 0; top < 0x10000; top += 7) {  // ties, their neighbours, and any tail
    for (const uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu, static_cast<uint32_t>(random()) & 0xffffu})
      x.push_back(std::bit_cast<float>(top << 16 | low));
  }
  for (uint32_t i = 0; i < 0x10000; ++i) {  // Highway's scalar target takes an infinite f16 for a number
    if ((i & 0x7c00u) != 0x7c00u) h.push_back(static_cast<uint16_t>(i));
  }
  const auto check = [](const auto& from, DType dtype) {
    std::vector<uint16_t> to(from.size());
    to_bf16(from.data(), dtype, static_cast<int64_t>(from.size()), to.data());
    for (size_t i = 0; i < to.size(); ++i) {
      const float v = load_as_f32(from.data(), dtype, static_cast<int64_t>(i));
      ASSERT_EQ(to[i], f32_to_bf16(v)) << i << " of " << dtype_name(dtype);
    }
  };
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().DeInit();
    SCOPED_TRACE(hwy::TargetName(target));
    check(x, DType::f32);
    check(h, DType::f16);
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().DeInit();
  }
  std::vector<uint16_t> same(h.size());
  to_bf16(h.data(), DType::bf16, static_cast<int64_t>(h.size()), same.data());
  EXPECT_EQ(same, h);
}

TEST(RoundToBf16, IsTheSameButForSubnormalNumbers) {
  std::vector<float> x;
  for (uint32_t top = 0; top < 0x10000; top += 5) {
    for (const uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) x.push_back(std::bit_cast<float>(top << 16 | low));
  }
  for (const size_t n : {x.size(), size_t{31}, size_t{32}, size_t{33}, size_t{1}, size_t{0}}) {
    std::vector<uint16_t> to(n + 1, 0xabcd);
    round_to_bf16(x.data(), static_cast<int64_t>(n), to.data());
    for (size_t i = 0; i < n; ++i) {
      if (std::fpclassify(x[i]) == FP_SUBNORMAL && (to[i] & 0x7fffu) == 0) continue;
      ASSERT_EQ(to[i], f32_to_bf16(x[i])) << i << " " << x[i];
    }
    EXPECT_EQ(to[n], 0xabcd);
  }
}

}  // namespace
}  // namespace fovea::cpu
