#include "kernels/cpu/residency/resolve.h"

#include <gtest/gtest.h>

#include "kernels/ref/residency.h"
#include "kernels/residency_cases.h"

namespace fovea {
namespace {

using testing::ResidencyCase;
using testing::ResidencyWorld;

class Resolve : public ::testing::TestWithParam<ResidencyCase> {};

TEST_P(Resolve, EqualsTheReference) {
  ThreadPool pool(2);
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    ResidencyWorld got(GetParam(), seed), want(GetParam(), seed);
    for (int wave = 0; wave < 60; ++wave) {
      got.move_pins(), want.move_pins();
      cpu::resolve(got.next_wave(), pool);
      ref::resolve(want.next_wave());
      ASSERT_EQ(got.difference(want), "") << "wave " << wave;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Resolve, ::testing::ValuesIn(testing::residency_cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fovea
