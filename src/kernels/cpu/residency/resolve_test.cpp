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
      const ResolveParams p = got.next_wave();
      cpu::resolve(p, pool);
      ref::resolve(want.next_wave());
      ASSERT_EQ(got.num_misses, want.num_misses) << "wave " << wave;
      for (int32_t h = 0; h < p.tables.heads; ++h) {
        const int64_t at = int64_t{h} * p.tables.columns;
        ASSERT_TRUE(std::equal(&got.misses[at], &got.misses[at] + got.num_misses[h], &want.misses[at])) << "wave " << wave;
      }
      ASSERT_EQ(got.slot_of, want.slot_of) << "wave " << wave;
      ASSERT_EQ(got.owner, want.owner) << "wave " << wave;
      ASSERT_EQ(got.stamp, want.stamp) << "wave " << wave;
      ASSERT_EQ(got.table, want.table) << "wave " << wave;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Resolve, ::testing::ValuesIn(testing::residency_cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fovea
