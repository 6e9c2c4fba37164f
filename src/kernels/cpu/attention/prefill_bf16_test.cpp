// The engines that round to bf16: AMX tiles and dot products.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <vector>

#include "kernels/cpu/attention/prefill_amx_emulated.h"
#include "kernels/cpu/attention/prefill_dot_emulated.h"
#include "kernels/cpu/attention/prefill_test_cases.h"

namespace fovea {
namespace {

using testing::AttentionCase;
using testing::AttentionProblem;

// A bf16 engine rounds q, the weights, and K and V of other dtypes to 8 bits: a few of these add up.
constexpr float kBf16Tolerance = 2e-2f;  // of the largest value
// The same where q and K are exact in bf16: weights alone are rounded, each by up to 2^-8 of itself (bf16 has 8 significant bits),
// and their errors cancel in part.
constexpr float kWeightTolerance = 1.0f / 512;

// The emulations where the CPU has AVX-512, and the engine whose instructions it has.
std::vector<const cpu::PrefillEngine*> engines() {
  std::vector<const cpu::PrefillEngine*> list;
  const cpu::PrefillEngine* real = &cpu::choose_prefill_engine(Numerics::bf16);
  for (const cpu::PrefillEngine* e : {cpu::emulated_amx_engine(), cpu::emulated_dot_engine(), real}) {
    if (e != nullptr && e != &cpu::choose_prefill_engine(Numerics::f32)) list.push_back(e);
  }
  return list;
}

// Makes q such that what a bf16 engine rounds, q * scale * log2(e) or q * scale / cap, is exact in bf16.
void round_queries(AttentionProblem& problem) {
  const AttentionParams& p = problem.params();
  const float scale = p.scale * (p.soft_cap > 0 ? 1.0f / p.soft_cap : std::numbers::log2e_v<float>);
  for (float& q : problem.q()) q = bf16_to_f32(f32_to_bf16(q * scale)) / scale;
}

class PrefillBf16 : public ::testing::TestWithParam<AttentionCase> {
 protected:
  void SetUp() override {
    if (engines().empty()) GTEST_SKIP() << "no AVX-512";
  }
};

TEST_P(PrefillBf16, EqualsTheReference) {
  AttentionProblem problem(GetParam());
  const float most = testing::largest_value(problem);
  ThreadPool pool(1);
  for (const bool exact_inputs : {false, true}) {
    if (exact_inputs && GetParam().dtype != DType::bf16) break;
    if (exact_inputs) round_queries(problem);
    ref::paged_attention(problem.params());
    const std::vector<float> out = problem.out(), lse = problem.lse();
    const auto tolerance = exact_inputs ? testing::Tolerance{kWeightTolerance * most, testing::kFloat32Tolerance}
                                        : testing::Tolerance{kBf16Tolerance * most, kBf16Tolerance};
    for (const cpu::PrefillEngine* engine : engines()) {
      SCOPED_TRACE(engine->name);
      std::fill(problem.out().begin(), problem.out().end(), NAN);
      testing::run(problem, pool, *engine);
      testing::expect_near(problem, out, lse, tolerance);
    }
  }
}

// Large scores: maxima grow by more than the slack in many key tiles, and what was summed before is rescaled.
TEST(PrefillBf16Maxima, GrowWithLargeScores) {
  AttentionProblem problem({.name = "large", .heads = 8, .kv_heads = 2, .seqs = {{20, 700}, {33, 300}}});
  problem.params().scale *= 12;
  round_queries(problem);
  ref::paged_attention(problem.params());
  const std::vector<float> out = problem.out(), lse = problem.lse();
  const float most = testing::largest_value(problem);
  ThreadPool pool(1);
  for (const cpu::PrefillEngine* engine : engines()) {
    SCOPED_TRACE(engine->name);
    testing::run(problem, pool, *engine);
    testing::expect_near(problem, out, lse, {kWeightTolerance * most, testing::kFloat32Tolerance});
  }
}

TEST(PrefillBf16Gate, KeysAreReadWhenTheyAreThere) {
  for (const cpu::PrefillEngine* engine : engines()) testing::expect_gated(*engine);
}

TEST(PrefillBf16Narrow, RowsIn16BitsAreThoseOfFloat32Rounded) {
  for (const cpu::PrefillEngine* engine : engines()) testing::expect_narrow_rows(*engine);
}

TEST_P(PrefillBf16, LaterRowsKeysAreNotMultiplied) {
  for (const cpu::PrefillEngine* engine : engines()) testing::expect_no_later_keys(GetParam(), *engine);
}

TEST_P(PrefillBf16, RowsDoNotDependOnTheirNeighbours) {
  for (const cpu::PrefillEngine* engine : engines()) testing::expect_rows_alone(GetParam(), *engine);
}

TEST_P(PrefillBf16, HeadRangesEqualTheWholeCall) {
  for (const cpu::PrefillEngine* engine : engines()) testing::expect_head_ranges(GetParam(), *engine);
}

INSTANTIATE_TEST_SUITE_P(Cases, PrefillBf16, ::testing::ValuesIn(testing::prefill_cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fovea
