// Linear layers over quantised weights of every type.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "base/count_allocations_test_util.h"
#include "kernels/common/dequantize.h"
#include "kernels/common/random_weights.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/linear/linear_test_util.h"
#include "kernels/cpu/quant/interleave.h"

namespace fovea::cpu {
namespace {

const CpuFeatures kLibrary =
    cpu_features().avx512 ? CpuFeatures{.avx2 = true, .avx512 = true, .avx512_bf16 = true} : cpu_features();
const CpuFeatures kNoMatrixHardware = {.avx2 = cpu_features().avx2, .avx512 = cpu_features().avx512};
constexpr int32_t kRows = 40;

class QuantisedLinearTest : public ::testing::TestWithParam<int> {
 protected:
  QuantisedLinearTest()
      : type_(static_cast<WeightType>(GetParam())),
        m_(type_, 131, weight_format(type_).block == 256 ? 2304 : 2336, 32, 5),
        x_(static_cast<size_t>(kRows * m_.cols)),
        out_(static_cast<size_t>(kRows * m_.rows)),
        pool_(2) {
    std::mt19937 random(9);
    std::normal_distribution<float> normal;
    for (float& v : x_) v = normal(random);
  }

  void prepare(Linear& linear, Numerics numerics, const CpuFeatures& features, Int8Rows int8) {
    const auto k = static_cast<int32_t>(m_.cols), n = static_cast<int32_t>(m_.rows);
    ASSERT_TRUE(linear.prepare(testing::linear_limits(kRows, k, n), 2, numerics, features, int8).ok());
    ASSERT_TRUE(linear.add_shape(k, n, type_).ok());
  }

  std::vector<float> run(Linear& linear, int32_t rows, bool as_many = false) {
    const LinearWeight w{m_.view(), nullptr, out_.data()};
    const int64_t before = testing::heap_allocations();
    out_.assign(out_.size(), NAN);
    linear.run({x_.data(), rows, static_cast<int32_t>(m_.cols), &w, 1, false, as_many}, pool_);
    allocations_ = testing::heap_allocations() - before;
    return {out_.begin(), out_.begin() + rows * m_.rows};
  }

  // The largest error, in terms of sum |x w|.
  double worst_error(const std::vector<float>& out) const {
    std::vector<float> w(static_cast<size_t>(m_.cols));
    double worst = 0;
    for (int64_t j = 0; j < m_.rows; ++j) {
      dequantize_row(m_.view(), j, w.data());
      for (int64_t r = 0; r * m_.rows < static_cast<int64_t>(out.size()); ++r) {
        double sum = 0, size = 0;
        for (int64_t c = 0; c < m_.cols; ++c) {
          const double product = static_cast<double>(x_[r * m_.cols + c]) * w[c];
          sum += product;
          size += std::fabs(product);
        }
        const double error = std::fabs(out[r * m_.rows + j] - sum) / size;
        worst = std::isnan(error) ? INFINITY : std::max(worst, error);
      }
    }
    return worst;
  }

  const WeightType type_;
  const RandomMatrix m_;
  std::vector<float> x_, out_;
  ThreadPool pool_;
  int64_t allocations_ = 0;
};

TEST_P(QuantisedLinearTest, Float32IsExactUpToRounding) {
  Linear linear;
  prepare(linear, Numerics::f32, kNoMatrixHardware, Int8Rows::none);
  for (const int32_t rows : {1, 5, 16, 17, kRows}) EXPECT_LT(worst_error(run(linear, rows)), testing::kF32Tolerance) << rows;
  const std::vector<float> all = run(linear, kRows), few = run(linear, 3, true);
  EXPECT_TRUE(std::equal(few.begin(), few.end(), all.begin())) << "as_many";
}

TEST_P(QuantisedLinearTest, Bf16RoundsOnlyWhatIsMany) {
  Linear linear;
  prepare(linear, Numerics::bf16, kLibrary, Int8Rows::none);
  EXPECT_LT(worst_error(run(linear, 16)), testing::kF32Tolerance);
  for (const int32_t rows : {17, kRows}) EXPECT_LT(worst_error(run(linear, rows)), testing::kBf16Tolerance) << rows;
}

// Rows that are not published alone: a prompt's have the bits of many.
TEST_P(QuantisedLinearTest, RoundsFewRowsToInt8OnlyWhereItMay) {
  for (const Numerics numerics : {Numerics::f32, Numerics::bf16}) {
    Linear linear, exact;
    const CpuFeatures features = numerics == Numerics::f32 ? kNoMatrixHardware : kLibrary;
    prepare(linear, numerics, features, Int8Rows::few);
    prepare(exact, numerics, features, Int8Rows::none);
    const double error = worst_error(run(linear, 16));
    EXPECT_EQ(error > 1e-5, quant_gemv_takes(type_)) << "rounded or not";
    EXPECT_LT(error, 3e-3);
    EXPECT_EQ(run(linear, 16, true), run(exact, 16, true));
    EXPECT_EQ(run(linear, kRows), run(exact, kRows));
  }
}

// A row has the same bits among 17 and more.
TEST_P(QuantisedLinearTest, RoundsAllRowsToInt8WhereItMay) {
  if (!quant_gemv_takes(type_)) {
    Linear may, may_not;
    prepare(may, Numerics::bf16, kLibrary, Int8Rows::all);
    prepare(may_not, Numerics::bf16, kLibrary, Int8Rows::none);
    EXPECT_EQ(run(may, kRows), run(may_not, kRows)) << "never rounded";
    return;
  }
  Linear portable, linear;
  prepare(portable, Numerics::f32, kNoMatrixHardware, Int8Rows::all);
  prepare(linear, Numerics::bf16, cpu_features(), Int8Rows::all);
  const std::vector<float> all = run(linear, kRows), few = run(linear, 19), same = run(portable, kRows);
  EXPECT_LT(worst_error(all), 3e-3);
  EXPECT_GT(worst_error(all), 1e-5);
  EXPECT_TRUE(std::equal(few.begin(), few.end(), all.begin()));
  // The same products of the same integers, in another order.
  float most = 0, apart = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    most = std::max(most, std::fabs(same[i]));
    apart = std::max(apart, std::fabs(same[i] - all[i]));
  }
  EXPECT_LT(apart, 1e-5f * most);
}

TEST_P(QuantisedLinearTest, AllocatesNothing) {
  for (const Int8Rows int8 : {Int8Rows::few, Int8Rows::all}) {
    Linear linear;
    prepare(linear, Numerics::f32, cpu_features(), int8);
    for (const int32_t rows : {1, 17}) {
      run(linear, rows);
      EXPECT_EQ(allocations_, 0);
    }
  }
}

TEST_P(QuantisedLinearTest, TakesInterleavedRows) {
  const RandomMatrix m(type_, 144, 2304, 32, 5);
  WeightView together = m.view();
  if (!gains_interleaved(together, {.avx512_vnni = true})) GTEST_SKIP() << "stays as files have it";
  std::vector<uint8_t> data(m.data.size());
  interleave(together, data.data());
  together.data = data.data();
  together.interleaved = true;
  const auto k = static_cast<int32_t>(m.cols), n = static_cast<int32_t>(m.rows);
  for (const CpuFeatures& features : {kNoMatrixHardware, kLibrary, cpu_features()}) {
    for (const Int8Rows int8 : {Int8Rows::none, Int8Rows::few, Int8Rows::all}) {
      Linear linear;
      ASSERT_TRUE(linear.prepare(testing::linear_limits(kRows, k, n), 2, Numerics::bf16, features, int8).ok());
      ASSERT_TRUE(linear.add_shape(k, n, type_).ok());
      for (const int32_t rows : {1, 3, 16, 17, kRows}) {
        std::vector<float> out[2];
        for (const bool interleaved : {false, true}) {
          out[interleaved].assign(static_cast<size_t>(kRows * n), NAN);
          const LinearWeight w{interleaved ? together : m.view(), nullptr, out[interleaved].data()};
          linear.run({x_.data(), rows, k, &w, 1, false, false}, pool_);
        }
        float most = 0;
        for (int64_t i = 0; i < int64_t{rows} * n; ++i) most = std::max(most, std::fabs(out[0][i]));
        for (int64_t i = 0; i < int64_t{rows} * n; ++i) ASSERT_NEAR(out[1][i], out[0][i], 1e-5f * most) << rows << " rows, " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, QuantisedLinearTest, ::testing::Range(static_cast<int>(WeightType::q8_0), kWeightTypes),
                         [](const auto& info) { return std::string(weight_type_name(static_cast<WeightType>(info.param))); });

}  // namespace
}  // namespace fovea::cpu
