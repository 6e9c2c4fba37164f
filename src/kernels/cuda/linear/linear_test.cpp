#include "kernels/cuda/linear/linear.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/linear/linear_test_util.h"
#include "kernels/cuda/gpu_test_util.h"
#include "kernels/cuda/linear/config.h"
#include "kernels/cuda/linear/gemv.h"
#include "kernels/cuda/linear/skinny_gemm.h"
#include "kernels/cuda/linear/tiled_gemm.h"

namespace fovea::cuda {
namespace {

using testing::DeviceArray;
using testing::kBf16Tolerance;
using testing::kF32Tolerance;
using testing::LinearCase;

// A LinearCase in the GPU's memory; results come back into the case.
class LinearOnDevice {
 public:
  explicit LinearOnDevice(LinearCase& c) : case_(c), x_(c.x) {
    for (const testing::WeightData& w : c.weights) {
      w_.emplace_back(w.bytes);
      bias_.emplace_back(w.bias);
      out_.emplace_back(w.out);
    }
    for (size_t i = 0; i < c.weights.size(); ++i) {
      const testing::WeightData& w = c.weights[i];
      weights_.push_back(
          {weight_view(w_[i].data(), w.dtype, w.n, c.k), w.bias.empty() ? nullptr : bias_[i].data(), out_[i].data()});
    }
  }
  LinearParams params(int32_t rows) const {
    return {x_.data(), rows, case_.k, weights_.data(), static_cast<int32_t>(weights_.size())};
  }
  void poison() {
    case_.poison();
    for (size_t i = 0; i < out_.size(); ++i) out_[i].upload(case_.weights[i].out);
  }
  void download() {
    for (size_t i = 0; i < out_.size(); ++i) case_.weights[i].out = out_[i].download();
  }
  DeviceArray<float>& x() { return x_; }
  // The largest |out - expected| / sum |x w| over some of each weight's outputs, corners among them.
  double worst_error(int32_t rows) const {
    double worst = 0.0;
    for (const testing::WeightData& w : case_.weights) {
      const int64_t outputs = static_cast<int64_t>(rows) * w.n;
      for (int64_t i = 0; i < outputs; i += std::max<int64_t>(1, outputs / 300 | 1)) worst = std::max(worst, case_.error_at(w, i));
      if (outputs > 0) worst = std::max(worst, case_.error_at(w, outputs - 1));
    }
    return worst;
  }

 private:
  LinearCase& case_;
  DeviceArray<float> x_;
  std::vector<DeviceArray<uint8_t>> w_;
  std::vector<DeviceArray<float>> bias_, out_;
  std::vector<LinearWeight> weights_;
};

constexpr int32_t kRows[] = {1, 2, 5, 8, 9, 17, 65, 257};
const std::vector<std::pair<int32_t, DType>> kBf16Shapes = {{64, DType::bf16}, {33, DType::bf16},  {1, DType::bf16},
                                                            {0, DType::bf16},  {512, DType::bf16}, {40, DType::bf16}};
const std::vector<std::pair<int32_t, DType>> kMixedShapes = {
    {63, DType::bf16}, {129, DType::f16},  {1, DType::f32},  {65, DType::bf16}, {0, DType::bf16},
    {130, DType::f32}, {256, DType::bf16}, {66, DType::f16}, {2, DType::bf16},  {500, DType::f16}};

class LinearTest : public testing::GpuTest {
 protected:
  void prepare(Linear& linear, const OpsLimits& l, Numerics numerics) {
    const Status prepared = linear.prepare(l, *device_, numerics);
    ASSERT_TRUE(prepared.ok()) << prepared.message();
  }
  Queue queue() { return {handle(), runs_code_for_hopper()}; }
};

class LinearOfK : public LinearTest, public ::testing::WithParamInterface<int32_t> {};
INSTANTIATE_TEST_SUITE_P(K, LinearOfK, ::testing::Values(1, 4, 8, 31, 100, 272, 1025, 2048));

void expect_untouched_behind(const LinearCase& c, int32_t rows) {
  for (const auto& w : c.weights) {
    EXPECT_TRUE(std::all_of(w.out.begin() + static_cast<size_t>(rows) * w.n, w.out.end(), [](float v) { return std::isnan(v); }))
        << "wrote beyond row " << rows;
  }
}

TEST_P(LinearOfK, IsWithinTheRoundingOfItsNumerics) {
  for (const auto& shapes : {kMixedShapes, kBf16Shapes}) {
    LinearCase c(258, GetParam(), shapes);
    LinearOnDevice on_device(c);
    for (const Numerics numerics : {Numerics::f32, Numerics::bf16}) {
      Linear linear;
      prepare(linear, testing::linear_limits(258, c.k, 512), numerics);
      for (const int32_t rows : kRows) {
        on_device.poison();
        linear.run(on_device.params(rows), queue());
        on_device.download();
        const bool exact = numerics == Numerics::f32 || (rows == 1 && describe(on_device.params(1), numerics).on_vectors);
        EXPECT_LT(on_device.worst_error(rows), exact ? kF32Tolerance : kBf16Tolerance) << "rows " << rows << " exact " << exact;
        expect_untouched_behind(c, rows);
      }
    }
  }
}

// Wide and deep enough for the library's large tiles, for f16 in more than one piece, and for many tiles of
// gemv.
TEST_F(LinearTest, LargeShapes) {
  LinearCase c(300, 4096, {{3072, DType::bf16}, {2500, DType::f16}, {512, DType::f32}, {1025, DType::bf16}});
  LinearOnDevice on_device(c);
  for (const Numerics numerics : {Numerics::f32, Numerics::bf16}) {
    Linear linear;
    prepare(linear, testing::linear_limits(300, 4096, 3072), numerics);
    for (const int32_t rows : {1, 6, 16, 300}) {
      on_device.poison();
      linear.run(on_device.params(rows), queue());
      on_device.download();
      EXPECT_LT(on_device.worst_error(rows), numerics == Numerics::f32 || rows == 1 ? kF32Tolerance : kBf16Tolerance);
    }
  }
}

TEST_F(LinearTest, AllBf16OfSomeRowsInTheirRange) {
  LinearCase c(16, 4096, {{2048, DType::bf16}, {1000, DType::bf16}});
  LinearOnDevice on_device(c);
  for (const int32_t rows : {2, 8, 9, 16}) {
    on_device.poison();
    skinny_gemm(on_device.params(rows), queue());
    on_device.download();
    EXPECT_LT(on_device.worst_error(rows), kBf16Tolerance) << rows;
    expect_untouched_behind(c, rows);
    if (rows > kGemvRowsMax) continue;
    on_device.poison();
    gemv(on_device.params(rows), queue());
    on_device.download();
    EXPECT_LT(on_device.worst_error(rows), kF32Tolerance) << rows;
    expect_untouched_behind(c, rows);
  }
}

// The two products of one row become one number; of more rows, or of weights of two types, both are there.
TEST_F(LinearTest, AGatedRowIsMultipliedOnTheWay) {
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    for (const auto& [n, k] : {std::pair{1, 8}, {7, 272}, {1025, 4096}, {64, 5000}}) {
      LinearCase c(2, k, {{n, dtype}, {n, dtype}});
      LinearOnDevice on_device(c);
      const auto run = [&](int32_t rows, bool gated) {
        on_device.poison();
        LinearParams p = on_device.params(rows);
        p.gated = gated;
        const bool done = gemv(p, queue());
        on_device.download();
        return done;
      };
      EXPECT_FALSE(run(1, false));
      const std::vector<float> gate = c.weights[0].out, up = c.weights[1].out;
      ASSERT_TRUE(run(1, true));
      for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
        const double want = static_cast<double>(gate[i]) / (1.0 + std::exp(-static_cast<double>(gate[i]))) * up[i];
        ASSERT_NEAR(c.weights[0].out[i], want, 1e-6 * std::fabs(want) + 1e-12) << n << " outputs of " << k << ", " << i;
      }
      expect_untouched_behind(c, 1);
      EXPECT_FALSE(run(2, true));
      EXPECT_LT(on_device.worst_error(2), kF32Tolerance);
    }
  }
  LinearCase c(1, 64, {{8, DType::bf16}, {8, DType::f16}});
  LinearOnDevice on_device(c);
  LinearParams p = on_device.params(1);
  p.gated = true;
  EXPECT_FALSE(gemv(p, queue()));
  on_device.download();
  EXPECT_LT(on_device.worst_error(1), kF32Tolerance);
}

TEST_F(LinearTest, ARowOfATiledProductDependsOnNothingElse) {
  LinearCase c(200, 1300, {{129, DType::bf16}, {97, DType::f16}, {50, DType::f32}});
  LinearOnDevice on_device(c);
  const auto results = [&](int32_t rows) {
    const LinearParams p = on_device.params(rows);
    for (int32_t i = 0; i < p.count; ++i) tiled_gemm(p.x, rows, p.k, p.weights[i], p.weights[i].n(), handle());
    on_device.download();
    std::vector<std::vector<float>> outs;
    for (const auto& w : c.weights) outs.emplace_back(w.out.begin(), w.out.begin() + static_cast<size_t>(rows) * w.n);
    return outs;
  };
  const auto all = results(200);
  for (const int32_t rows : {1, 9, 64, 65, 130}) {
    const auto some = results(rows);
    for (size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(std::equal(some[i].begin(), some[i].end(), all[i].begin())) << rows;
  }
}

TEST_F(LinearTest, NonFiniteInputsStayInTheirRows) {
  LinearCase c(20, 128, {{40, DType::bf16}, {24, DType::f16}, {8, DType::f32}});
  c.x[3 * 128 + 5] = NAN;
  c.x[7 * 128 + 127] = INFINITY;
  LinearOnDevice on_device(c);
  for (const Numerics numerics : {Numerics::f32, Numerics::bf16}) {
    Linear linear;
    prepare(linear, testing::linear_limits(20, 128, 40), numerics);
    for (const int32_t rows : {8, 20}) {
      linear.run(on_device.params(rows), queue());
      on_device.download();
      for (const auto& w : c.weights) {
        for (int32_t i = 0; i < rows * w.n; ++i) EXPECT_EQ(std::isfinite(w.out[i]), i / w.n != 3 && i / w.n != 7);
      }
    }
  }
}

TEST_F(LinearTest, LargeValuesKeepTheirRange) {
  LinearCase c(20, 64, {{16, DType::f16}, {16, DType::bf16}, {16, DType::f32}});
  for (float& v : c.x) v *= 1e20f;  // beyond f16, within float32
  LinearOnDevice on_device(c);
  Linear linear;
  prepare(linear, testing::linear_limits(20, 64, 16), Numerics::bf16);
  linear.run(on_device.params(20), queue());
  on_device.download();
  EXPECT_LT(on_device.worst_error(20), kBf16Tolerance);
}

TEST_F(LinearTest, AGraphReplaysWithOtherActivationsAndTakesNoMemory) {
  LinearCase c(64, 512, {{300, DType::bf16}, {64, DType::f16}, {128, DType::f32}});
  LinearOnDevice on_device(c);
  Linear linear;
  prepare(linear, testing::linear_limits(64, 512, 300), Numerics::bf16);
  const DeviceCounters before = device_->counters();
  for (const int32_t rows : {1, 8, 64}) {
    auto graph = device_->capture(*stream_, [&] {
      linear.run(on_device.params(rows), queue());
      return Status();
    });
    ASSERT_TRUE(graph.ok()) << graph.status().message();
    for (int round = 0; round < 2; ++round) {
      for (float& v : c.x) v = 0.5f - v;
      on_device.x().upload(c.x);
      on_device.poison();
      ASSERT_TRUE((*graph)->launch(*stream_).ok());
      on_device.download();
      EXPECT_LT(on_device.worst_error(rows), rows == 1 ? kF32Tolerance : kBf16Tolerance) << rows;
    }
  }
  EXPECT_EQ(device_->counters().allocations, before.allocations);
  EXPECT_EQ(device_->counters().synchronizations, before.synchronizations);
}

// Whatever the numerics: float32 activations, and a row's bits do not depend on the rows beside it.
TEST_F(LinearTest, FullPrecisionRoundsNothingAndEachRowStandsAlone) {
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    LinearCase c(37, 1024, {{96, dtype}, {7, dtype}});
    LinearOnDevice on(c);
    Linear linear;
    prepare(linear, testing::linear_limits(37, 1024, 96), Numerics::bf16);
    std::vector<std::vector<float>> all;
    for (const int32_t rows : {37, 16, 3, 1}) {
      on.poison();
      LinearParams p = on.params(rows);
      p.full_precision = true;
      linear.run(p, queue());
      on.download();
      EXPECT_LT(on.worst_error(rows), kF32Tolerance) << dtype_name(dtype) << ", " << rows << " rows";
      for (size_t i = 0; i < c.weights.size(); ++i) {
        const std::vector<float>& out = c.weights[i].out;
        if (rows == 37) all.push_back(out);
        EXPECT_TRUE(std::equal(out.begin(), out.begin() + int64_t{rows} * c.weights[i].n, all[i].begin())) << rows << " rows";
      }
    }
  }
}

TEST_F(LinearTest, NothingToDoIsNoError) {
  Linear linear;
  prepare(linear, testing::linear_limits(4, 8, 8), Numerics::bf16);
  linear.run({.rows = 0, .k = 8}, queue());
  linear.run({.rows = 4, .k = 8, .count = 0}, queue());
}

}  // namespace
}  // namespace fovea::cuda
