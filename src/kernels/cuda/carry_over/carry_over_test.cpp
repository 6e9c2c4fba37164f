#include "kernels/cuda/carry_over/carry_over.h"

#include <gtest/gtest.h>

#include "kernels/carry_over_cases.h"
#include "kernels/common/carry_over.h"
#include "kernels/cuda/gpu_test_util.h"

namespace fovea {
namespace {

using testing::CarryOverProblem;
using testing::device_ok;
using testing::DeviceArray;

class CarryOverTest : public testing::GpuTest {};

TEST_F(CarryOverTest, GivesWhatTheHostGives) {
  for (uint32_t seed = 1; seed <= 50; ++seed) {
    CarryOverProblem c(seed);
    const DeviceArray<int32_t> row_len(c.row_len), k(c.k), chosen(c.chosen), from(c.from), from_count(c.from_count);
    const DeviceArray<int32_t> keep_at(c.keep_at), kept(c.kept), units(c.units);
    CarryOverParams p = c.p;
    p.row_len = row_len.data(), p.k = k.data(), p.chosen = chosen.data();
    p.from = from.data(), p.from_count = from_count.data(), p.keep_at = keep_at.data();
    p.kept = kept.data(), p.units = units.data();
    cuda::carry_over(p, handle());
    ASSERT_TRUE(device_ok());
    carry_over(c.p);
    ASSERT_EQ(units.download(), c.units) << seed;
    ASSERT_EQ(kept.download(), c.kept) << seed;
  }
}

}  // namespace
}  // namespace fovea
