#include "kernels/common/mass_levels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace fovea {
namespace {

TEST(MassLevels, MassesArePowersOfTwo) {
  for (int32_t level = 0; level < kMassLevels; ++level) {
    const double exact = std::exp2(30 - level / 64.0);
    EXPECT_LE(std::abs(static_cast<double>(mass_of_level(level)) - exact), 1.0) << level;
    // Rounded, no entry depends on the last bits of a library.
    if (level < 64) {
      EXPECT_GT(std::abs(exact - std::floor(exact) - 0.5), 1e-4) << level;
    }
  }
  EXPECT_EQ(mass_of_level(0), uint64_t{1} << 30);
  EXPECT_EQ(mass_of_level(kMassLevels - 1), 0u);
}

TEST(MassLevels, LevelsOfASumAreItsLogarithm) {
  for (uint64_t sum = uint64_t{1} << 30; sum < uint64_t{1} << 52; sum += sum / 97 + 1) {
    const double exact = 64 * std::log2(static_cast<double>(sum) / (1 << 30));
    EXPECT_NEAR(levels_of_sum(sum), std::floor(exact), exact - std::floor(exact) < 1e-5 ? 1 : 0) << sum;
  }
  EXPECT_EQ(levels_of_sum(uint64_t{1} << 30), 0);
  EXPECT_EQ(levels_of_sum(mass_of_level(0) + mass_of_level(64)), 37);  // log2(1.5)
  EXPECT_EQ(levels_of_sum(uint64_t{1} << 40), 640);
}

TEST(MassLevels, AnyScoreHasOne) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(mass_level(1.0f, 3.5f, 4.0f), 10);
  EXPECT_EQ(mass_level(1.0f, 1.0f, kInf), 0);
  EXPECT_EQ(mass_level(1.0f, 1.5f, kInf), kMassLevels - 1);
  EXPECT_EQ(mass_level(-kInf, 1.0f, 1.0f), kMassLevels - 1);
  EXPECT_EQ(mass_level(-kInf, -kInf, 1.0f), 0);
  EXPECT_EQ(mass_level(1.0f, kInf, 0.0f), 0);
  EXPECT_EQ(mass_level(-2e38f, 3e38f, 1.0f), kMassLevels - 1);
}

TEST(MassLevels, ALengthFactorsScoreTimesTheQueryIsALogit) {
  HashCodec codec;
  codec.n = 128, codec.bits = 256;
  EXPECT_FLOAT_EQ(levels_per_score(codec, 0.125f, 30.0, 3), 64 * 1.442695f * 0.125f / 2 * 10);
}

TEST(MassLevels, Bounds) {
  EXPECT_EQ(share_bounds(32, 1000, 3).least, 8);
  EXPECT_EQ(share_bounds(32, 1000, 3).most, 128);
  EXPECT_EQ(share_bounds(5, 1000, 3).least, 3);
  EXPECT_EQ(share_bounds(32, 100, 20).least, 20);
  EXPECT_EQ(share_bounds(32, 100, 20).most, 100);
  EXPECT_TRUE(holds_share(9, 10, 9000));
  EXPECT_FALSE(holds_share(9, 10, 9001));
}

}  // namespace
}  // namespace fovea
