// Summaries and codes from the cache: every shape against the reference, bit for bit.
#include "kernels/cpu/select/summary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/cpu/simd_targets_test_util.h"
#include "kernels/ref/summary.h"
#include "kernels/summary_cases.h"

namespace fovea {
namespace {

TEST(CpuSummaries, EqualTheReferenceBitForBit) {
  ThreadPool one(1), three(3);
  uint32_t seed = 0;
  for (const testing::SummaryShape& shape : testing::kSummaryShapes) {
    const int bs = shape.block_size;
    testing::SummaryProblem c(shape, {bs, 0, 1, bs - 1, bs / 2, 0, bs, 2, 3, bs - 2}, ++seed);
    const auto want = c.run([](const auto& p) { ref::block_summaries(p); }, [](const auto& p) { ref::encode_codes(p); });
    for (float x : want.mean) ASSERT_FALSE(std::isnan(x));
    cpu::for_each_target([&] {
      cpu::BlockSummaries summaries;
      OpsLimits limits;
      limits.max_rows = static_cast<int32_t>(c.slots.size());
      summaries.prepare(limits);
      for (ThreadPool* pool : {&one, &three}) {
        const auto got =
            c.run([&](const auto& p) { summaries.run(p, *pool); }, [&](const auto& p) { cpu::encode_codes(p, *pool); });
        ASSERT_TRUE(got == want) << "shape " << seed << ": mean " << (got.mean == want.mean) << " minmax "
                                 << (got.minmax == want.minmax) << " codes " << (got.codes == want.codes);
      }
    });
  }
}

TEST(CpuSummaries, AStepWithoutTokensChangesNothing) {
  ThreadPool pool(2);
  testing::SummaryProblem c(testing::kSummaryShapes[0], {}, 1);
  cpu::BlockSummaries summaries;
  OpsLimits limits;
  limits.max_rows = 4;
  summaries.prepare(limits);
  for (const std::vector<int64_t>& slots : {std::vector<int64_t>{}, {-1, -1, -1}}) {
    c.slots = slots;
    const auto out = c.run([&](const auto& p) { summaries.run(p, pool); }, [&](const auto& p) { cpu::encode_codes(p, pool); });
    for (float x : out.mean) ASSERT_EQ(x, -3.0f);
    for (float x : out.minmax) ASSERT_EQ(x, -3.0f);
    for (uint64_t x : out.codes) ASSERT_EQ(x, 5u);
    for (uint64_t x : out.mean_codes) ASSERT_EQ(x, 5u);
  }
}

}  // namespace
}  // namespace fovea
