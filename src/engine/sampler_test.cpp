#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>

namespace fovea {
namespace {

TEST(SampleUniform, RepeatsAndDiffers) {
  EXPECT_EQ(sample_uniform(5, 1, 7), sample_uniform(5, 1, 7));
  EXPECT_NE(sample_uniform(5, 1, 7), sample_uniform(5, 2, 7));
  EXPECT_NE(sample_uniform(5, 1, 7), sample_uniform(6, 1, 7));
  double sum = 0;
  for (int i = 0; i < 10000; ++i) sum += sample_uniform(0, 0, i);
  EXPECT_NEAR(sum / 10000, 0.5, 0.02);
}

TEST(CheckSampling, ImpossibleValuesAreNamed) {
  SamplingParams p;
  p.top_p = 0.0f;
  EXPECT_NE(check_sampling(p).message().find("top_p"), std::string::npos);
  p = {};
  p.temperature = NAN;
  EXPECT_FALSE(check_sampling(p).ok());
  p = {};
  p.stop = {""};
  EXPECT_FALSE(check_sampling(p).ok());
  EXPECT_TRUE(check_sampling(SamplingParams{}).ok());
}

}  // namespace
}  // namespace fovea
