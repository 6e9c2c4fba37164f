#include "kernels/cpu/linear/linear.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <filesystem>

#include "base/count_allocations_test_util.h"
#include "kernels/cpu/linear/linear_test_util.h"

namespace fovea::cpu {
namespace {

using testing::kBf16Tolerance;
using testing::kF32Tolerance;
using testing::LinearCase;

constexpr CpuFeatures kNoMatrixHardware = {.avx2 = true, .avx512 = true};

// Where the library multiplies in bf16: oneDNN emulates the instructions with AVX-512 and has nothing for less, so on other
// machines these tests run what Linear chooses there.
const CpuFeatures kLibrary =
    cpu_features().avx512 ? CpuFeatures{.avx2 = true, .avx512 = true, .avx512_bf16 = true} : cpu_features();

struct Runner {
  Runner(const LinearCase& c, int threads, Numerics numerics, const CpuFeatures& features) : pool(threads) {
    int32_t n = 1;
    for (const auto& w : c.weights) n = std::max(n, w.n);
    EXPECT_TRUE(linear.prepare(testing::linear_limits(c.rows, c.k, n), threads, numerics, features).ok());
    for (const auto& w : c.weights) {
      if (w.n == 0) continue;
      const Status status = linear.add_shape(c.k, w.n, weight_view(nullptr, w.dtype, 0, 0).type);
      EXPECT_TRUE(status.ok()) << status.message();
    }
  }
  void run(LinearCase& c, int32_t rows) { linear.run(c.params(storage, rows), pool); }

  ThreadPool pool;
  Linear linear;
  std::vector<LinearWeight> storage;
};

constexpr int32_t kRows[] = {1, 2, 3, 4, 5, 8, 15, 16, 17, 33, 100};
const std::vector<std::pair<int32_t, DType>> kShapes = {{63, DType::bf16}, {129, DType::f16}, {1, DType::f32},
                                                        {65, DType::bf16}, {0, DType::bf16},  {130, DType::f32}};

TEST(LinearRows, AsManyGivesFewRowsTheBitsOfMany) {
  LinearCase c(40, 272, kShapes);
  Runner runner(c, 2, Numerics::f32, kNoMatrixHardware);
  runner.run(c, 40);
  std::vector<std::vector<float>> many;
  for (const auto& w : c.weights) many.push_back(w.out);
  for (const int32_t rows : {1, 2, 5, 16, 17}) {
    c.poison();
    LinearParams p = c.params(runner.storage, rows);
    p.as_many = true;
    runner.linear.run(p, runner.pool);
    for (size_t i = 0; i < many.size(); ++i) {
      const size_t end = static_cast<size_t>(rows) * c.weights[i].n;
      EXPECT_TRUE(std::equal(many[i].begin(), many[i].begin() + end, c.weights[i].out.begin())) << rows << " rows, weight " << i;
    }
  }
}

// One row of x takes other tiles than many, by the length of the rows of W.
TEST(LinearRows, ARowAloneHasItsBitsBesideOthers) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().DeInit();
    for (const int32_t k : {40, 1000, 1024, 2090, 3072, 3100, 8192}) {
      LinearCase c(3, k, {{29, DType::bf16}, {13, DType::f16}, {15, DType::f32}});
      Runner runner(c, 2, Numerics::f32, kNoMatrixHardware);
      runner.run(c, 3);
      std::vector<std::vector<float>> many;
      for (const auto& w : c.weights) many.push_back(w.out);
      c.poison();
      runner.run(c, 1);
      EXPECT_LT(c.worst_error(1), kF32Tolerance) << hwy::TargetName(target) << ", k " << k;
      for (size_t i = 0; i < many.size(); ++i)
        EXPECT_TRUE(std::equal(many[i].begin(), many[i].begin() + c.weights[i].n, c.weights[i].out.begin()))
            << hwy::TargetName(target) << ", k " << k << ", weight " << i;
    }
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().DeInit();
  }
}

class LinearOfK : public ::testing::TestWithParam<int32_t> {};
INSTANTIATE_TEST_SUITE_P(K, LinearOfK, ::testing::Values(1, 16, 31, 64, 100, 272, 1025));

TEST_P(LinearOfK, F32EqualsTheReferenceOnEveryTarget) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().DeInit();
    LinearCase c(100, GetParam(), kShapes);
    Runner runner(c, 2, Numerics::f32, kNoMatrixHardware);
    for (const int32_t rows : kRows) {
      c.poison();
      runner.run(c, rows);
      EXPECT_LT(c.worst_error(rows), kF32Tolerance) << hwy::TargetName(target) << ", rows " << rows;
      for (const auto& w : c.weights) {
        const size_t end = static_cast<size_t>(rows) * w.n;
        EXPECT_TRUE(std::all_of(w.out.begin() + end, w.out.end(), [](float v) { return std::isnan(v); }))
            << "wrote beyond row " << rows;
      }
    }
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().DeInit();
  }
}

TEST_P(LinearOfK, Bf16ThroughTheLibraryIsWithinItsRounding) {
  LinearCase c(100, GetParam(), kShapes);
  Runner runner(c, 2, Numerics::bf16, kLibrary);
  for (const int32_t rows : kRows) {
    c.poison();
    runner.run(c, rows);
    EXPECT_LT(c.worst_error(rows), rows <= 16 ? kF32Tolerance : kBf16Tolerance) << "rows " << rows;
  }
}

// In every mode the float32 sums of the row alone: neither rounded nor dependent on the rows beside it.
TEST_P(LinearOfK, FullPrecisionIsFloat32InEveryMode) {
  for (const auto& [numerics, features] :
       {std::pair{Numerics::f32, kNoMatrixHardware}, {Numerics::bf16, kLibrary}, {Numerics::bf16, cpu_features()}}) {
    LinearCase c(100, GetParam(), kShapes);
    Runner runner(c, 2, numerics, features);
    LinearParams p = c.params(runner.storage, 100);
    p.full_precision = true;
    c.poison();
    runner.linear.run(p, runner.pool);
    EXPECT_LT(c.worst_error(100), kF32Tolerance);
    const std::vector<float> all = c.weights[1].out;
    p.rows = 3;
    c.poison();
    runner.linear.run(p, runner.pool);
    for (size_t i = 0; i < 3 * static_cast<size_t>(c.weights[1].n); ++i) ASSERT_EQ(c.weights[1].out[i], all[i]);
  }
}

TEST(Linear, TallPrefill) {
  for (const auto& [numerics, features, tolerance] :
       {std::tuple{Numerics::f32, kNoMatrixHardware, kF32Tolerance}, {Numerics::bf16, kLibrary, kBf16Tolerance}}) {
    LinearCase c(527, 256, {{1100, DType::bf16}, {192, DType::f16}});
    Runner runner(c, 2, numerics, features);
    for (const int32_t rows : {512, 527}) {
      c.poison();
      runner.run(c, rows);
      EXPECT_LT(c.worst_error(rows), tolerance);
    }
  }
}

TEST(Linear, WideOutput) {
  LinearCase c(5, 32, {{4096, DType::bf16}, {4097, DType::f32}});
  Runner runner(c, 2, Numerics::f32, kNoMatrixHardware);
  for (const int32_t rows : {1, 5}) {
    c.poison();
    runner.run(c, rows);
    EXPECT_LT(c.worst_error(rows), kF32Tolerance);
  }
}

TEST(Linear, Bf16NumericsWithoutTheHardwareRoundNothing) {
  LinearCase c(40, 256, {{64, DType::bf16}});
  Runner runner(c, 1, Numerics::bf16, kNoMatrixHardware);
  runner.run(c, 40);
  EXPECT_LT(c.worst_error(40), kF32Tolerance);
}

// Row r computed among `rows` rows by `threads` workers: the same bits as among any others of the same
// kernel.
TEST(Linear, F32RowsDependOnNothingElse) {
  LinearCase c(100, 1300, {{129, DType::bf16}, {97, DType::f16}, {50, DType::f32}});
  const auto results = [&](int32_t rows, int threads) {
    c.poison();
    Runner runner(c, threads, Numerics::f32, kNoMatrixHardware);
    runner.run(c, rows);
    std::vector<std::vector<float>> outs;
    for (const auto& w : c.weights) outs.emplace_back(w.out.begin(), w.out.begin() + static_cast<size_t>(rows) * w.n);
    return outs;
  };
  for (const auto& [most, fewer] : {std::pair{16, std::vector{1, 2, 3, 4, 5, 7, 8, 9, 11, 13, 15}}, {100, {17, 29, 64}}}) {
    const auto all = results(most, 1);
    EXPECT_EQ(results(most, 3), results(most, 2));
    for (const int32_t rows : fewer) {
      const auto some = results(rows, 2);
      for (size_t i = 0; i < all.size(); ++i) {
        EXPECT_TRUE(std::equal(some[i].begin(), some[i].end(), all[i].begin())) << most << " " << rows << " " << i;
      }
    }
  }
}

TEST(Linear, FewAndManyRowsDifferByRoundingAlone) {
  LinearCase c(17, 2048, {{64, DType::bf16}});
  Runner runner(c, 2, Numerics::f32, kNoMatrixHardware);
  runner.run(c, 16);
  const std::vector<float> few = c.weights[0].out;
  runner.run(c, 17);
  for (int64_t i = 0; i < 16 * 64; ++i) {
    const double size = c.expected(c.weights[0], i / 64, i % 64).second;
    EXPECT_LT(std::fabs(c.weights[0].out[i] - few[i]) / size, 1e-6);
  }
}

TEST(Linear, NonFiniteInputsStayInTheirRowsAndColumns) {
  LinearCase c(20, 70, {{40, DType::bf16}});
  c.x[3 * 70 + 5] = NAN;
  c.x[7 * 70 + 69] = INFINITY;
  for (const int32_t rows : {8, 20}) {
    Runner runner(c, 2, Numerics::f32, kNoMatrixHardware);
    runner.run(c, rows);
    for (int32_t i = 0; i < rows * 40; ++i) EXPECT_EQ(std::isfinite(c.weights[0].out[i]), i / 40 != 3 && i / 40 != 7);
  }
}

TEST(Linear, RunAllocatesNothing) {
  LinearCase c(100, 300, {{200, DType::bf16}, {64, DType::f16}});
  Runner runner(c, 2, Numerics::f32, kNoMatrixHardware);
  const LinearParams few = c.params(runner.storage, 3);
  const LinearParams many = {few.x, 100, few.k, few.weights, few.count};
  const int64_t before = testing::heap_allocations();
  runner.linear.run(few, runner.pool);
  runner.linear.run(many, runner.pool);
  EXPECT_EQ(testing::heap_allocations(), before);
}

int64_t threads_of_this_process() {
  int64_t n = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) ++n;
  return n;
}

TEST(Linear, TheLibraryStartsNoThreads) {
  LinearCase c(64, 512, {{1024, DType::bf16}});
  Runner runner(c, 2, Numerics::bf16, kLibrary);
  const int64_t before = threads_of_this_process();
  for (int i = 0; i < 20; ++i) runner.run(c, 64);
  EXPECT_EQ(threads_of_this_process(), before);
  EXPECT_LT(c.worst_error(64), kBf16Tolerance);
}

TEST(Linear, WorkersRunTheLibraryAtOnce) {
  LinearCase c(64, 256, {{1024, DType::bf16}, {1024, DType::bf16}, {512, DType::f32}});
  Runner alone(c, 1, Numerics::bf16, kLibrary), together(c, 4, Numerics::bf16, kLibrary);
  alone.run(c, 64);
  const std::vector<float> expected = c.weights[1].out;
  for (int i = 0; i < 10; ++i) {
    c.poison();
    together.run(c, 64);
    EXPECT_LT(c.worst_error(64), kBf16Tolerance);
    for (size_t j = 0; j < expected.size(); ++j) ASSERT_NEAR(c.weights[1].out[j], expected[j], 1e-4);
  }
}

TEST(Linear, ShapesThatCannotBeAreRefused) {
  Linear linear;
  EXPECT_EQ(linear.prepare(testing::linear_limits(0, 8, 8), 1, Numerics::f32).code(), StatusCode::invalid_argument);
  ASSERT_TRUE(linear.prepare(testing::linear_limits(4, 8, 16), 1, Numerics::f32).ok());
  EXPECT_TRUE(linear.add_shape(8, 16, WeightType::f16).ok());
  EXPECT_EQ(linear.add_shape(9, 16, WeightType::f16).code(), StatusCode::invalid_argument);
  EXPECT_EQ(linear.add_shape(8, 17, WeightType::f16).code(), StatusCode::invalid_argument);
  EXPECT_EQ(linear.add_shape(0, 16, WeightType::f16).code(), StatusCode::invalid_argument);
  ThreadPool pool(1);
  linear.run({.rows = 0, .k = 8}, pool);  // nothing to do is no error
}

TEST(LibraryGemm, MultipliesWhatItSays) {
  Result<LibraryGemm> gemm = LibraryGemm::create(DType::f32, 33, 100, 64, 2);
  ASSERT_TRUE(gemm.ok());
  ThreadPool pool(2);
  gemm->run(pool);
  EXPECT_EQ(gemm->flops(), 2.0 * 33 * 100 * 64);
  EXPECT_FALSE(LibraryGemm::create(DType::u8, 1, 1, 1, 1).ok());
}

}  // namespace
}  // namespace fovea::cpu
