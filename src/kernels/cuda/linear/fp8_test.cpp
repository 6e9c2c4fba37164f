// Products of fp8 with fp8 on a GPU, and the rows they take, against ref/fp8.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <tuple>
#include <vector>

#include "kernels/common/convert.h"
#include "kernels/common/dequantize.h"
#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/gpu_test_util.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/norm/rms_norm.h"
#include "kernels/quant_cases.h"
#include "kernels/ref/dense_math.h"
#include "kernels/ref/fp8.h"

namespace fovea::cuda {
namespace {

using testing::DeviceArray;
using testing::MixedMatrix;

constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
// Of sum |x w| of the codes. Hopper's tensor cores keep some 13 bits below the largest product of a sum of 32 before it joins a
// float32 one.
constexpr double kAccumulation = 0x1p-11;
constexpr double kRounded = 0x1p-8 * 2.02;  // x rounded to bf16, and weights, of sum |x w|

std::vector<float> normals(size_t count, uint32_t seed, float deviation = 1.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> out(count);
  for (float& v : out) v = normal(random);
  return out;
}

// Rows of every size of numbers, and those that have no ordinary scale.
std::vector<float> hostile_rows(int32_t rows, int32_t k) {
  std::vector<float> x = normals(static_cast<size_t>(rows) * k, 7);
  for (int32_t r = 0; r < rows; ++r) {
    float* row = x.data() + static_cast<size_t>(r) * k;
    const float factors[] = {1.0f, 1e-6f, 1e-20f, 1e-38f, 1e-42f, 1e30f, 3e37f, 0.0f, -0.0f};
    for (int32_t i = 0; i < k; ++i) row[i] *= factors[r % 9];
    const int32_t at = r * 37 % k;
    if (r % 5 == 1) row[at] *= 1000.0f;  // an outlier
    if (r % 11 == 3) row[at] = kNan;
    if (r % 11 == 5) row[at] = r % 2 ? kInfinity : -kInfinity;
    if (r % 11 == 7) std::fill(row, row + k, kNan);
    if (r % 11 == 9) {  // ties between neighbours: sixteenths of numbers of one binade
      for (int32_t i = 0; i < k; ++i) row[i] = 1.0f + static_cast<float>(i % 16) / 16;
      row[0] = 448.0f;
    }
  }
  return x;
}

struct CodesOnDevice {
  CodesOnDevice(int32_t rows, int32_t k, int32_t group)
      : codes(std::vector<uint8_t>(static_cast<size_t>(rows) * k, 0xee)),
        scales(std::vector<float>(static_cast<size_t>(rows) * ceil_div(k, group), -1.0f)),
        out{codes.data(), scales.data(), group, rows} {}
  DeviceArray<uint8_t> codes;
  DeviceArray<float> scales;
  Fp8Rows out;
};

class Fp8Test : public testing::GpuTest {
 protected:
  Queue queue() { return {handle(), runs_code_for_hopper()}; }
  void prepare(Linear& linear, int32_t rows, int32_t k, bool fp8) {
    OpsLimits l;
    l.max_rows = rows, l.max_k = k, l.max_n = 8192;
    const Status s = linear.prepare(l, *device_, Numerics::bf16, fp8);
    ASSERT_TRUE(s.ok()) << s.message();
  }
};

TEST_F(Fp8Test, RowsEqualTheReferenceToTheBit) {
  constexpr int32_t kRows = 99;
  for (const int32_t k : {4, 32, 128, 132, 384, 1000, 4096, 14336, 32768}) {
    const std::vector<float> x = hostile_rows(kRows, k);
    const DeviceArray<float> device_x(x);
    for (const int32_t group : {k, kFp8Group}) {
      SCOPED_TRACE(std::to_string(k) + " numbers by " + std::to_string(group));
      CodesOnDevice got(kRows, k, group);
      fp8_rows(device_x.data(), kRows, k, got.out, queue());
      std::vector<uint8_t> codes(x.size());
      std::vector<float> scales(got.scales.size());
      ref::round_rows_to_e4m3(x.data(), kRows, k, group, codes.data(), scales.data());
      EXPECT_EQ(got.codes.download(), codes);
      EXPECT_EQ(got.scales.download(), scales);
    }
  }
}

TEST_F(Fp8Test, ActivatedRowsEqualThoseOfTheActivationToTheBit) {
  constexpr int32_t kRows = 40, kDim = 1040;
  const DeviceArray<float> gate(hostile_rows(kRows, kDim)), up(normals(kRows * kDim, 2)), out(std::vector<float>(kRows * kDim));
  const SiluMulParams p = {gate.data(), up.data(), out.data(), kRows, kDim};
  silu_mul(p, queue());
  for (const int32_t group : {kDim, kFp8Group}) {
    CodesOnDevice want(kRows, kDim, group), got(kRows, kDim, group);
    fp8_rows(out.data(), kRows, kDim, want.out, queue());
    fp8_rows_of(p, got.out, queue());
    EXPECT_EQ(got.codes.download(), want.codes.download()) << group;
    EXPECT_EQ(got.scales.download(), want.scales.download()) << group;
  }
}

TEST_F(Fp8Test, NormedRowsAreThoseOfTheNorm) {
  constexpr int32_t kRows = 33, kDim = 2080;
  const std::vector<float> x = normals(kRows * kDim, 3), add = normals(kRows * kDim, 4), weight = normals(kDim, 5);
  const DeviceArray<float> device_add(add), device_weight(weight), out(std::vector<float>(kRows * kDim));
  for (const bool adds : {false, true}) {
    DeviceArray<float> normed_x(x), rounded_x(x);
    RmsNormParams p = {normed_x.data(), adds ? device_add.data() : nullptr, device_weight.data(), out.data(), kRows, kDim};
    rms_norm(p, queue());
    CodesOnDevice got(kRows, kDim, kFp8Group);
    p.x = rounded_x.data();
    fp8_rows_of(p, got.out, queue());
    EXPECT_EQ(rounded_x.download(), normed_x.download());
    const std::vector<float> normed = out.download(), scales = got.scales.download();
    const std::vector<uint8_t> codes = got.codes.download();
    for (int32_t r = 0; r < kRows; ++r) {
      for (int32_t i = 0; i < kDim; ++i) {
        const float scale = scales[static_cast<size_t>(i / kFp8Group * kRows + r)], n = normed[static_cast<size_t>(r * kDim + i)];
        ASSERT_NEAR(scale * fp8_e4m3_to_f32(codes[static_cast<size_t>(r * kDim + i)]), n,
                    0x1.01p-4f * std::fabs(n) + 0x1p-9f * scale)
            << r << ", " << i;
      }
    }
  }
}

enum class Scales : uint8_t { rows, blocks, groups };

MixedMatrix weights(int32_t n, int32_t k, Scales scales) {
  MixedMatrix m(WeightType::fp8_e4m3, n, k, scales == Scales::rows ? k : kFp8Group, 5);
  const auto groups = static_cast<size_t>(m.view().scales_per_row());
  for (size_t i = 0; scales == Scales::blocks && i < m.scales.size(); ++i)
    m.scales[i] = m.scales[i / groups / kFp8Group * kFp8Group * groups + i % groups];
  return m;
}

// One weight with its data on both sides.
struct Product {
  Product(int32_t n, int32_t k, Scales scales, int32_t rows, bool with_bias = false)
      : Product(weights(n, k, scales), rows, with_bias) {}
  Product(MixedMatrix m, int32_t rows, bool with_bias)
      : matrix(std::move(m)),
        x(normals(static_cast<size_t>(rows * matrix.cols), 9)),
        bias(with_bias ? normals(static_cast<size_t>(matrix.rows), 8) : std::vector<float>()),
        device_data(matrix.data),
        device_scales(matrix.scales),
        device_x(x),
        device_bias(bias),
        device_out(std::vector<float>(static_cast<size_t>(rows * matrix.rows))) {
    WeightView view = matrix.view();
    view.data = device_data.data(), view.scales = device_scales.data();
    weight = {view, device_bias.data(), device_out.data()};
  }
  LinearParams params(int32_t rows) const { return {device_x.data(), rows, static_cast<int32_t>(matrix.cols), &weight, 1}; }
  void poison() { device_out.upload(std::vector<float>(device_out.size(), kNan)); }

  std::vector<float> expected(int32_t rows) const {
    std::vector<float> out(static_cast<size_t>(rows * matrix.rows));
    const LinearWeight w = {matrix.view(), bias.empty() ? nullptr : bias.data(), out.data()};
    ref::linear_fp8({x.data(), rows, static_cast<int32_t>(matrix.cols), &w, 1});
    return out;
  }
  // The largest |out - expected| / sum |x w|.
  double worst_error(const std::vector<float>& expected, int32_t rows) const {
    const std::vector<float> out = device_out.download();
    std::vector<float> w(static_cast<size_t>(matrix.cols));
    double worst = 0;
    for (int64_t n = 0; n < matrix.rows; n += std::max<int64_t>(1, matrix.rows / 50)) {
      dequantize_row(matrix.view(), n, w.data());
      for (int64_t r = 0; r < rows; ++r) {
        double size = bias.empty() ? 0.0 : std::fabs(bias[static_cast<size_t>(n)]);
        for (int64_t i = 0; i < matrix.cols; ++i)
          size += std::fabs(static_cast<double>(x[static_cast<size_t>(r * matrix.cols + i)]) * w[static_cast<size_t>(i)]);
        const auto at = static_cast<size_t>(r * matrix.rows + n);
        const double error = std::fabs(out[at] - expected[at]) / size;
        worst = std::isnan(error) ? INFINITY : std::max(worst, error);
      }
    }
    EXPECT_TRUE(std::all_of(out.begin() + rows * matrix.rows, out.end(), [](float v) { return std::isnan(v); }))
        << "wrote beyond row " << rows;
    return worst;
  }

  const MixedMatrix matrix;
  const std::vector<float> x, bias;
  DeviceArray<uint8_t> device_data;
  DeviceArray<uint32_t> device_scales;
  DeviceArray<float> device_x, device_bias, device_out;
  LinearWeight weight;
};

// What the library declines, whatever it is, is unpacked to bf16: no shape is refused.
TEST_F(Fp8Test, ProductsAreThoseOfTheReferenceOrOfBf16) {
  constexpr int32_t kRows = 131;
  int multiplied = 0;
  for (const auto& [n, k, scales] : {std::tuple{256, 512, Scales::rows},
                                     {256, 512, Scales::blocks},
                                     {256, 512, Scales::groups},
                                     {1024, 384, Scales::rows},
                                     {131, 1312, Scales::rows},
                                     {64, 4096, Scales::rows},
                                     {64, 4096, Scales::blocks},
                                     {1000, 160, Scales::rows},
                                     {1000, 416, Scales::blocks},
                                     {48, 14336, Scales::rows}}) {
    SCOPED_TRACE(std::to_string(n) + " x " + std::to_string(k) + ", scales of kind " + std::to_string(static_cast<int>(scales)));
    Product product(n, k, scales, kRows, n % 3 == 1);
    Linear linear;
    prepare(linear, kRows, k, true);
    for (const int32_t rows : {17, 64, 100, 131}) {
      const LinearParams p = product.params(rows);
      product.poison();
      linear.run(p, queue());
      ASSERT_TRUE(testing::device_ok());
      const bool fp8 = linear.multiplies_fp8(p, queue());
      EXPECT_FALSE(fp8 && scales == Scales::groups) << "rows of one block have other scales";
      multiplied += fp8;
      std::vector<float> expected = product.expected(rows);
      if (!fp8) {
        const LinearWeight w = {product.matrix.view(), product.bias.empty() ? nullptr : product.bias.data(), expected.data()};
        ref::linear({product.x.data(), rows, k, &w, 1});
      }
      EXPECT_LT(product.worst_error(expected, rows), fp8 ? kAccumulation : kRounded) << rows << " rows" << (fp8 ? ", fp8" : "");
    }
  }
  EXPECT_GE(multiplied, runs_code_for_hopper() ? 28 : 0) << "the library was expected to take these";
}

// Few rows, scales of other groups, and calls with weights of another type are computed as without fp8.
TEST_F(Fp8Test, WhatIsNotForFp8IsAsEver) {
  constexpr int32_t kRows = 64, kDepth = 512;
  const Product by_row(64, kDepth, Scales::rows, kRows), by_32(MixedMatrix(WeightType::fp8_e4m3, 64, kDepth, 32, 5), kRows, false);
  const MixedMatrix other(WeightType::q8_0, 64, kDepth, 32, 6);
  const DeviceArray<uint8_t> other_data(other.data);
  DeviceArray<float> other_out(std::vector<float>(kRows * 64));
  WeightView other_view = other.view();
  other_view.data = other_data.data();
  const std::vector<LinearWeight> mixed = {by_row.weight, {other_view, nullptr, other_out.data()}};
  const LinearParams cases[] = {by_row.params(16), by_32.params(kRows), {by_row.device_x.data(), kRows, kDepth, mixed.data(), 2}};
  for (const LinearParams& p : cases) {
    std::vector<std::vector<float>> results;
    for (const bool fp8 : {false, true}) {
      Linear linear;
      prepare(linear, kRows, kDepth, fp8);
      EXPECT_FALSE(linear.multiplies_fp8(p, queue()));
      linear.run(p, queue());
      results.push_back((&p == &cases[1] ? by_32 : by_row).device_out.download());
    }
    EXPECT_EQ(results[0], results[1]);
  }
}

TEST_F(Fp8Test, AProductAfterAnActivationOrANormIsOneAfterTheOther) {
  constexpr int32_t kRows = 70, kDepth = 640;
  Product product(96, kDepth, Scales::rows, kRows);
  Linear linear;
  prepare(linear, kRows, kDepth, true);
  const DeviceArray<float> gate(normals(kRows * kDepth, 21)), up(normals(kRows * kDepth, 22)), weight(normals(kDepth, 23));
  for (const int32_t rows : {5, kRows}) {
    const LinearParams p = product.params(rows);
    const auto results = [&](auto&& run) {
      product.poison();
      run();
      return product.device_out.download();
    };
    const SiluMulParams silu = {gate.data(), up.data(), product.device_x.data(), rows, kDepth};
    const auto after = results([&] { linear.run_after(silu, p, queue()); });
    EXPECT_EQ(std::count_if(after.begin(), after.end(), [](float v) { return !std::isnan(v); }), rows * 96);
    const auto apart = results([&] {
      silu_mul(silu, queue());
      linear.run(p, queue());
    });
    EXPECT_TRUE(std::equal(after.begin(), after.begin() + rows * 96, apart.begin())) << rows;

    DeviceArray<float> x(normals(kRows * kDepth, 24));
    const RmsNormParams norm = {x.data(), nullptr, weight.data(), product.device_x.data(), rows, kDepth};
    const auto normed = results([&] { linear.run_after(norm, p, queue()); });
    const auto one_by_one = results([&] {
      rms_norm(norm, queue());
      linear.run(p, queue());
    });
    // A last bit of a norm may turn a code into its neighbour.
    double most = 0, difference = 0;
    for (int32_t i = 0; i < rows * 96; ++i) {
      most = std::max<double>(most, std::fabs(one_by_one[static_cast<size_t>(i)]));
      difference = std::max<double>(difference, std::fabs(one_by_one[static_cast<size_t>(i)] - normed[static_cast<size_t>(i)]));
    }
    EXPECT_LE(difference, 0.02 * most) << rows;
    EXPECT_GT(most, 0.0);
  }
}

TEST_F(Fp8Test, NonFiniteInputsStayInTheirRows) {
  constexpr int32_t kRows = 40, kDepth = 256, kOutputs = 32;
  for (const Scales scales : {Scales::rows, Scales::blocks}) {
    Product product(kOutputs, kDepth, scales, kRows);
    std::vector<float> x = product.x;
    x[3 * kDepth + 5] = kNan;
    x[7 * kDepth + 255] = kInfinity;
    product.device_x.upload(x);
    Linear linear;
    prepare(linear, kRows, kDepth, true);
    linear.run(product.params(kRows), queue());
    const std::vector<float> out = product.device_out.download();
    for (int32_t i = 0; i < kRows * kOutputs; ++i)
      EXPECT_EQ(std::isfinite(out[static_cast<size_t>(i)]), i / kOutputs != 3 && i / kOutputs != 7) << i;
  }
}

}  // namespace
}  // namespace fovea::cuda
