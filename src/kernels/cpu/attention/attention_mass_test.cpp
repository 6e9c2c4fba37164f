#include "kernels/cpu/attention/attention_mass.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/cpu/simd_targets_test_util.h"
#include "kernels/mass_cases.h"
#include "kernels/ref/summary.h"

namespace fovea {
namespace {

TEST(CpuAttentionMass, EqualsTheReferenceOnHostileProblems) {
  ThreadPool one(1), three(3);
  for (const auto& shape : testing::mass_cases()) {
    SCOPED_TRACE(shape.name);
    testing::AttentionProblem problem(shape);
    testing::MassRows rows(problem);
    const auto want = rows.run([](const AttentionMassParams& p) { ref::attention_mass(p); });
    cpu::for_each_target([&] {
      cpu::AttentionMass mass;
      ASSERT_TRUE(mass.prepare(rows.limits).ok());
      const auto got = rows.run([&](const AttentionMassParams& p) { mass.run(p, one); });
      for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-5f) << "cell " << i;
      ASSERT_EQ(rows.run([&](const AttentionMassParams& p) { mass.run(p, three); }), got);
    });
  }
}

TEST(CpuAttentionMass, ARowsMassIsTheSizeOfItsGroup) {
  testing::LongMassProblem long_one;
  ThreadPool pool(2);
  cpu::AttentionMass mass;
  ASSERT_TRUE(mass.prepare(long_one.rows.limits).ok());
  long_one.expect_whole(long_one.rows.run([&](const AttentionMassParams& p) { mass.run(p, pool); }));
}

}  // namespace
}  // namespace fovea
