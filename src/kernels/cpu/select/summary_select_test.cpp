// Selection by summaries and by given scores. Where sums are exact the lists equal the reference's; elsewhere no block left
// out may score more than one kept.
#include "kernels/cpu/select/summary_select.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cpu/select/block_topk.h"
#include "kernels/cpu/simd_targets_test_util.h"
#include "kernels/ref/summary.h"
#include "kernels/ref/topk.h"
#include "kernels/summary_cases.h"

namespace fovea {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(CpuFloatTopk, EqualsTheReferenceAtEveryKeep) {
  std::mt19937 rng(2);
  const float strange[] = {0.0f, -0.0f, kNan, -kNan, kInfinity, -kInfinity, 1e-42f, -1e-42f, 3e38f, -3e38f};
  for (int n : {1, 2, 31, 64, 100, 517}) {
    for (int kind = 0; kind < 4; ++kind) {
      std::vector<float> scores(n);
      for (float& x : scores) {
        x = kind == 0   ? static_cast<float>(rng() % 3)
            : kind == 1 ? strange[rng() % 10]
            : kind == 2 ? std::normal_distribution<float>()(rng)
                        : 1.0f + 0x1p-23f * static_cast<float>(rng() % 300);
      }
      for (int keep = 1; keep <= n; keep += 1 + n / 40) {
        std::vector<int32_t> want(n), got(keep + 1, -1);
        ref::select_topk(scores.data(), n, keep, 0, 0, want.data());
        cpu::float_topk(scores.data(), n, keep, 1000, got.data());
        for (int i = 0; i < keep; ++i) ASSERT_EQ(got[i], want[i] + 1000) << n << " kind " << kind << " keep " << keep;
        ASSERT_EQ(got[keep], -1);
      }
    }
  }
}

TEST(CpuSummarySelect, EqualsTheReferenceWhereSumsAreExact) {
  ThreadPool one(1), three(3);
  cpu::for_each_target([&] {
    uint32_t seed = 0;
    for (const testing::SummarySelectShape& shape : testing::kSummarySelectShapes) {
      testing::SummarySelectProblem c(shape, ++seed, 300 * shape.block_size + 3);
      cpu::SummarySelect select;
      ASSERT_TRUE(select.prepare(c.limits).ok());
      for (int k : {1, 3, 40, 301, 400}) {
        for (auto [init, local] : {std::pair{1, 2}, {0, 0}, {3, 50}}) {
          c.set_k(k);
          c.p.init_blocks = init, c.p.local_blocks = local;
          const auto want = c.run([](const auto& p) { ref::summary_select(p); });
          ASSERT_TRUE(c.run([&](const auto& p) { select.run(p, one); }) == want)
              << "shape " << seed << " k " << k << " init " << init << " local " << local;
          ASSERT_TRUE(c.run([&](const auto& p) { select.run(p, three); }) == want);
        }
      }
    }
  });
}

TEST(CpuSummarySelect, KeepsTheBestOfRealValues) {
  ThreadPool pool(2);
  for (const testing::SummarySelectShape& shape : testing::kSummarySelectShapes) {
    if (shape.summary == BlockSummary::mean_code) continue;  // integers, seen above
    testing::SummarySelectProblem c(shape, 77, 100 * shape.block_size, true);
    cpu::SummarySelect select;
    ASSERT_TRUE(select.prepare(c.limits).ok());
    c.p.init_blocks = 0, c.p.local_blocks = 0;
    c.set_k(20);
    // Two lists may differ only where scores are within rounding: so the reference keeps nearly the same.
    const auto want = c.run([](const auto& p) { ref::summary_select(p); });
    const auto got = c.run([&](const auto& p) { select.run(p, pool); });
    ASSERT_EQ(got.counts, want.counts);
    EXPECT_GE(c.in_common(got, want) + 1, c.kept(want));
  }
}

TEST(CpuBlockTopk, EqualsTheReference) {
  ThreadPool one(1), three(3);
  testing::BlockTopkProblem c;
  for (bool share : {false, true}) {
    for (int k : {1, 4, 30, 100, 110}) {
      c.set(share, k);
      const auto want = c.run([](const auto& p) { ref::block_topk(p); });
      for (ThreadPool* pool : {&one, &three}) {
        cpu::BlockTopk topk;
        topk.prepare(c.limits, pool->size());
        ASSERT_EQ(c.run([&](const auto& p) { topk.run(p, *pool); }), want) << share << " " << k;
      }
    }
  }
}

}  // namespace
}  // namespace fovea
