// Linear layers and embeddings over quantised weights of every type, on a GPU.
#include "kernels/quant_cases.h"

#include <fovea/kernels/limits.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>

#include "kernels/common/dequantize.h"
#include "kernels/cuda/embed/embed.h"
#include "kernels/cuda/gpu_test_util.h"
#include "kernels/cuda/late_copy_test_util.h"
#include "kernels/cuda/linear/config.h"
#include "kernels/cuda/linear/linear.h"

namespace fovea::cuda {
namespace {

using testing::DeviceArray;
using testing::for_type;
using testing::kQuantCases;
using testing::MixedMatrix;
using testing::QuantCase;

constexpr double kExact = 2e-6, kRounded = 0x1p-8 * 2.02;  // of sum |x w|
constexpr int32_t kRowsMax = 33;

// A matrix on the device, with bias and results.
struct OnDevice {
  explicit OnDevice(const MixedMatrix& m, bool with_bias) : matrix(m), data(m.data), scales(m.scales) {
    std::vector<float> b(with_bias ? static_cast<size_t>(m.rows) : 0);
    for (size_t i = 0; i < b.size(); ++i) b[i] = 0.01f * static_cast<float>(i % 7);
    host_bias = b;
    bias = DeviceArray<float>(b);
    out = DeviceArray<float>(std::vector<float>(static_cast<size_t>(kRowsMax * m.rows)));
  }
  WeightView view() const {
    WeightView v = matrix.view();
    v.data = data.data(), v.scales = scales.data();
    return v;
  }
  LinearWeight weight() const { return {view(), bias.data(), out.data()}; }

  const MixedMatrix matrix;
  DeviceArray<uint8_t> data;
  DeviceArray<uint32_t> scales;
  std::vector<float> host_bias;
  DeviceArray<float> bias, out;
};

class QuantTest : public testing::OnGpu<::testing::TestWithParam<int>> {
 protected:
  WeightType type() const { return static_cast<WeightType>(GetParam()); }
  Queue queue() { return {handle(), runs_code_for_hopper()}; }

  void draw_x(int32_t k, float scale = 1.0f) {
    std::mt19937 random(9);
    std::normal_distribution<float> normal;
    x_.resize(static_cast<size_t>(kRowsMax) * k);
    for (float& v : x_) v = scale * normal(random);
    device_x_ = DeviceArray<float>(x_);
  }
  void prepare(Linear& linear, int32_t k, Numerics numerics) {
    OpsLimits l;
    l.max_rows = kRowsMax, l.max_k = k, l.max_n = 8192;
    const Status s = linear.prepare(l, *device_, numerics);
    ASSERT_TRUE(s.ok()) << s.message();
  }
  LinearParams params(const std::vector<LinearWeight>& weights, int32_t rows, int32_t k) const {
    return {device_x_.data(), rows, k, weights.data(), static_cast<int32_t>(weights.size())};
  }

  // The largest error over some outputs of each row, in terms of sum |x w|; rows that were not asked for are untouched.
  double worst_error(OnDevice& w, int32_t rows) {
    const MixedMatrix& m = w.matrix;
    const std::vector<float> out = w.out.download();
    std::vector<float> row(static_cast<size_t>(m.cols));
    double worst = 0;
    const int64_t step = std::max<int64_t>(1, m.rows / 40);
    for (int64_t j = 0; j < m.rows; j = j + step < m.rows || j == m.rows - 1 ? j + step : m.rows - 1) {
      dequantize_row(m.view(), j, row.data());
      for (int64_t r = 0; r < rows; ++r) {
        double sum = w.host_bias.empty() ? 0 : w.host_bias[static_cast<size_t>(j)], size = std::fabs(sum);
        for (int64_t c = 0; c < m.cols; ++c) {
          const double product = static_cast<double>(x_[static_cast<size_t>(r * m.cols + c)]) * row[static_cast<size_t>(c)];
          sum += product, size += std::fabs(product);
        }
        const double error = std::fabs(out[static_cast<size_t>(r * m.rows + j)] - sum) / size;
        worst = std::isnan(error) ? INFINITY : std::max(worst, error);
      }
    }
    for (size_t i = static_cast<size_t>(rows * m.rows); i < out.size(); ++i)
      EXPECT_TRUE(std::isnan(out[i])) << "wrote beyond row " << rows;
    return worst;
  }
  static void poison(OnDevice& w) { w.out.upload(std::vector<float>(w.out.size(), NAN)); }

  std::vector<float> x_;
  DeviceArray<float> device_x_;
};

TEST_P(QuantTest, ProductsAreWithinTheRoundingOfTheirNumerics) {
  for (QuantCase c : kQuantCases) {
    c = for_type(c, type());
    SCOPED_TRACE(std::to_string(c.n) + " x " + std::to_string(c.cols));
    draw_x(c.cols);
    OnDevice w(MixedMatrix(type(), c.n, c.cols, c.group, 5), c.n % 2 == 1);
    for (const Numerics numerics : {Numerics::f32, Numerics::bf16}) {
      Linear linear;
      prepare(linear, c.cols, numerics);
      for (const int32_t rows : {1, 2, 3, 8, 16, 17, 33}) {
        poison(w);
        linear.run(params({w.weight()}, rows, c.cols), queue());
        EXPECT_LT(worst_error(w, rows), numerics == Numerics::f32 ? kExact : kRounded) << rows << " rows";
      }
      ASSERT_TRUE(testing::device_ok());
    }
  }
}

// What few rows round is x: nothing where x is bf16, or next to nothing.
TEST_P(QuantTest, FewRowsRoundNoWeight) {
  for (const int32_t group : {64, 256, 1024}) {
    const QuantCase c = for_type({35, 1024, group}, type());
    draw_x(c.cols);
    for (float& v : x_) v = __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, v) & 0xffff0000u);
    device_x_.upload(x_);
    OnDevice w(MixedMatrix(type(), c.n, c.cols, c.group, 6), false);
    Linear linear;
    prepare(linear, c.cols, Numerics::bf16);
    for (const int32_t rows : {1, 2, 3, 16}) {
      poison(w);
      linear.run(params({w.weight()}, rows, c.cols), queue());
      EXPECT_LT(worst_error(w, rows), rows > 2 ? kExact : 2e-5) << rows << " rows, scales of " << group;
    }
  }
}

// Sizes beyond those of 16-bit floats, and neighbours of all sizes.
TEST_P(QuantTest, FewRowsTakeInputsOfAnySize) {
  const QuantCase c = for_type({35, 1024, 256}, type());
  OnDevice w(MixedMatrix(type(), c.n, c.cols, c.group, 10), false);
  Linear linear;
  prepare(linear, c.cols, Numerics::bf16);
  for (const float scale : {1e-30f, 1e-4f, 1e30f}) {
    for (const bool mixed : {false, true}) {
      draw_x(c.cols, scale);
      for (size_t i = 0; mixed && i < x_.size(); ++i) x_[i] = std::ldexp(x_[i], static_cast<int>(i * 7 % 29) - 20);
      device_x_.upload(x_);
      for (const int32_t rows : {1, 2}) {
        poison(w);
        linear.run(params({w.weight()}, rows, c.cols), queue());
        EXPECT_LT(worst_error(w, rows), kRounded) << rows << " rows, of " << scale;
      }
    }
  }
}

TEST_P(QuantTest, WhatIsNoNumberStaysNone) {
  const QuantCase c = for_type({35, 1024, 256}, type());
  OnDevice w(MixedMatrix(type(), c.n, c.cols, c.group, 11), false);
  Linear linear;
  prepare(linear, c.cols, Numerics::bf16);
  for (const float value : {INFINITY, NAN}) {
    draw_x(c.cols);
    x_[static_cast<size_t>(c.cols) + 700] = value;  // of the second row
    device_x_.upload(x_);
    poison(w);
    linear.run(params({w.weight()}, 2, c.cols), queue());
    const std::vector<float> out = w.out.download();
    int finite = 0;
    for (int32_t i = 0; i < c.n; ++i) EXPECT_TRUE(std::isfinite(out[static_cast<size_t>(i)]));
    for (int32_t i = c.n; i < 2 * c.n; ++i) finite += std::isfinite(out[static_cast<size_t>(i)]);
    EXPECT_EQ(finite, 0) << value;
  }
}

// q, k and v of one call, of other types and plain ones among them.
TEST_P(QuantTest, AGroupOfSeveralTypesIsMultipliedOneByOne) {
  const int32_t k = 512;
  draw_x(k);
  std::vector<std::unique_ptr<OnDevice>> all;
  const WeightType next = GetParam() + 1 < kWeightTypes ? static_cast<WeightType>(GetParam() + 1) : WeightType::q8_0;
  for (const WeightType t : {type(), type(), next, type(), type(), type(), type(), type()})
    all.push_back(
        std::make_unique<OnDevice>(MixedMatrix(t, 20 + 3 * static_cast<int>(all.size()), k, 64, all.size()), all.size() % 2 == 0));
  std::vector<LinearWeight> weights;
  for (const auto& w : all) weights.push_back(w->weight());
  const DeviceArray<uint8_t> plain(std::vector<uint8_t>(2 * 16 * k));
  DeviceArray<float> out(std::vector<float>(16 * kRowsMax, 1.0f));
  weights.insert(weights.begin() + 3, {weight_view(plain.data(), DType::bf16, 16, k), nullptr, out.data()});
  for (const Numerics numerics : {Numerics::f32, Numerics::bf16}) {
    Linear linear;
    prepare(linear, k, numerics);
    for (const int32_t rows : {1, 5, 33}) {
      for (const auto& w : all) poison(*w);
      out.upload(std::vector<float>(out.size(), 1.0f));
      linear.run(params(weights, rows, k), queue());
      for (const auto& w : all) EXPECT_LT(worst_error(*w, rows), numerics == Numerics::f32 ? kExact : kRounded) << rows << " rows";
      const std::vector<float> zeros = out.download();
      EXPECT_EQ(std::count(zeros.begin(), zeros.begin() + rows * 16, 0.0f), rows * 16);
    }
  }
}

// One launch of one or two rows makes silu(gate) * up of the sums that its products alone would be, of an x that they norm too.
TEST_P(QuantTest, AGatedCallIsTheGateOfItsProducts) {
  for (const int32_t n : {16, 300, 5000}) {
    const QuantCase c = for_type({n, 512, 128}, type());
    draw_x(c.cols, 0.5f);
    OnDevice gate(MixedMatrix(type(), c.n, c.cols, c.group, 12), true), up(MixedMatrix(type(), c.n, c.cols, c.group, 13), n == 300);
    Linear linear;
    prepare(linear, c.cols, Numerics::bf16);
    const std::vector<LinearWeight> weights = {gate.weight(), up.weight()};
    const DeviceArray<float> norm_weight(std::vector<float>(c.cols, 0.5f)), normed(std::vector<float>(3 * c.cols));
    for (const auto& [rows, norms] : {std::pair{1, false}, {2, false}, {3, false}, {1, true}, {2, true}, {3, true}}) {
      LinearParams p = params(weights, rows, c.cols);
      const RmsNormParams norm = {device_x_.data(), nullptr, norm_weight.data(), normed.data(), rows, c.cols, 1e-5f};
      if (norms) p.x = normed.data();
      const auto run = [&, norms = norms] { return norms ? linear.run_after(norm, p, queue()) : linear.run(p, queue()); };
      poison(gate), poison(up);
      EXPECT_FALSE(run());
      const std::vector<float> g = gate.out.download(), u = up.out.download();
      poison(gate);
      p.gated = true;
      ASSERT_EQ(run(), rows <= 2) << rows;
      const std::vector<float> out = gate.out.download();
      for (size_t i = 0; rows <= 2 && i < static_cast<size_t>(rows * c.n); ++i) {
        const double want = static_cast<double>(g[i]) / (1.0 + std::exp(-static_cast<double>(g[i]))) * u[i];
        ASSERT_NEAR(out[i], want, 1e-6 * std::fabs(want) + 1e-12) << n << " outputs, " << rows << " rows, " << i;
      }
      for (size_t i = static_cast<size_t>(rows * c.n); i < out.size(); ++i) ASSERT_TRUE(std::isnan(out[i])) << i;
    }
  }
}

// What the residual stream takes is added on the way, where it goes elsewhere. Inputs come late, and some are so small that eps counts.
TEST_P(QuantTest, OneOrTwoRowsAreNormedByTheirProducts) {
  for (const int32_t k : {512, 4096, 5120}) {
    const QuantCase c = for_type({300, k, 128}, type());
    draw_x(k, k == 4096 ? 0.003f : 3.0f);
    const std::vector<float> x = x_, weight(x.begin() + k / 2, x.begin() + k / 2 + k), add(x.begin() + k, x.begin() + 3 * k);
    OnDevice w(MixedMatrix(type(), c.n, k, c.group, 14), true), more(MixedMatrix(type(), 35, k, c.group, 15), false);
    const DeviceArray<float> d_weight(weight), own_x(x), own_add(add);
    DeviceArray<float> d_add(add), sum(std::vector<float>(static_cast<size_t>(2 * k)));
    Linear linear;
    prepare(linear, k, Numerics::bf16);
    for (const int32_t rows : {1, 2}) {
      for (const bool adds : {false, true}) {
        const auto size = static_cast<size_t>(rows * k);
        device_x_.upload(std::vector<float>(x.size(), NAN));
        d_add.upload(std::vector<float>(add.size(), NAN));
        sum.upload(std::vector<float>(sum.size(), NAN));
        poison(w), poison(more);
        const DeviceArray<float> normed(std::vector<float>(size, NAN));
        const std::vector<LinearWeight> weights = {w.weight(), more.weight()};
        LinearParams p = params(weights, rows, k);
        p.x = normed.data();
        const RmsNormParams norm = {
            device_x_.data(), adds ? d_add.data() : nullptr, d_weight.data(), normed.data(), rows, k, 1e-5f, nullptr, sum.data()};
        const auto late = [](const DeviceArray<float>& to, const DeviceArray<float>& from) {
          return testing::LateCopy{to.data(), from.data(), static_cast<int64_t>(from.size() * sizeof(float))};
        };
        testing::copy_late({late(device_x_, own_x), late(d_add, own_add)}, handle());
        linear.run_after(norm, p, queue());
        EXPECT_EQ(device_x_.download(), x);
        std::vector<float> want_sum(sum.size(), NAN);
        x_ = x;
        for (int32_t r = 0; r < rows; ++r) {
          double squares = 0;
          for (int32_t i = 0; i < k; ++i) {
            float& v = x_[static_cast<size_t>(r * k + i)];
            if (adds) want_sum[static_cast<size_t>(r * k + i)] = v += add[static_cast<size_t>(r * k + i)];
            squares += static_cast<double>(v) * v;
          }
          for (int32_t i = 0; i < k; ++i) {
            float& v = x_[static_cast<size_t>(r * k + i)];
            v = static_cast<float>(v / std::sqrt(squares / k + 1e-5) * weight[static_cast<size_t>(i)]);
          }
        }
        const std::vector<float> got_sum = sum.download();
        EXPECT_EQ(std::memcmp(got_sum.data(), want_sum.data(), size * sizeof(float)), 0) << rows << " rows of " << k;
        const bool bytes = type() == WeightType::fp8_e4m3 || type() == WeightType::int8;  // bytes_gemv.h
        const double most = bytes ? 1e-3 : 5e-5;
        EXPECT_LT(worst_error(w, rows), most) << rows << " rows of " << k;
        EXPECT_LT(worst_error(more, rows), most) << rows << " rows of " << k;
        if (bytes) continue;
        const std::vector<float> untouched = normed.download();
        EXPECT_TRUE(std::all_of(untouched.begin(), untouched.end(), [](float v) { return std::isnan(v); }))
            << "not by its products";
      }
    }
  }
}

TEST_P(QuantTest, AGraphReplaysWithOtherActivationsAndTakesNoMemory) {
  const QuantCase c = for_type({300, 4096, 128}, type());
  draw_x(c.cols);
  OnDevice w(MixedMatrix(type(), c.n, c.cols, c.group, 7), true);
  Linear linear;
  prepare(linear, c.cols, Numerics::bf16);
  const DeviceCounters before = device_->counters();
  for (const int32_t rows : {1, 4, 33}) {
    auto graph = device_->capture(*stream_, [&] {
      linear.run(params({w.weight()}, rows, c.cols), queue());
      linear.run(params({w.weight()}, rows, c.cols), queue());
      return Status();
    });
    ASSERT_TRUE(graph.ok()) << graph.status().message();
    for (int round = 0; round < 2; ++round) {
      for (float& v : x_) v = 0.5f - v;
      device_x_.upload(x_);
      poison(w);
      ASSERT_TRUE((*graph)->launch(*stream_).ok());
      EXPECT_LT(worst_error(w, rows), kRounded) << rows;
    }
  }
  EXPECT_EQ(device_->counters().allocations, before.allocations);
}

TEST_P(QuantTest, ManyRowsAloneHaveTheirBits) {
  const QuantCase c = for_type({70, 1312, 32}, type());
  draw_x(c.cols);
  OnDevice w(MixedMatrix(type(), c.n, c.cols, c.group, 8), true);
  Linear linear;
  prepare(linear, c.cols, Numerics::f32);
  const auto run = [&](int32_t rows) {
    LinearParams p = params({w.weight()}, rows, c.cols);
    const std::vector<LinearWeight> weights = {w.weight()};
    p.weights = weights.data();
    p.as_many = true;
    linear.run(p, queue());
    std::vector<float> out = w.out.download();
    out.resize(static_cast<size_t>(rows * c.n));
    return out;
  };
  const std::vector<float> all = run(33), few = run(3);
  EXPECT_TRUE(std::equal(few.begin(), few.end(), all.begin()));
}

TEST_P(QuantTest, EmbeddedRowsAreTheDequantisedOnes) {
  for (const int32_t group : {32, 1312}) {
    const QuantCase c = for_type({50, 1312, group}, type());
    const MixedMatrix m(type(), c.n, c.cols, c.group, 9);
    OnDevice table(m, false);
    const std::vector<int32_t> ids = {3, 49, 0, -1, 17, -2};
    const DeviceArray<int32_t> device_ids(ids), previous(std::vector<int32_t>{8, 31});
    DeviceArray<float> out(std::vector<float>(ids.size() * static_cast<size_t>(c.cols), NAN));
    embed({table.view(), device_ids.data(), out.data(), static_cast<int32_t>(ids.size()), c.cols, previous.data()}, queue());
    const std::vector<float> got = out.download();
    std::vector<float> want(static_cast<size_t>(c.cols));
    for (size_t i = 0; i < ids.size(); ++i) {
      dequantize_row(m.view(), ids[i] == -1 ? 8 : ids[i] == -2 ? 31 : ids[i], want.data());
      float worst = 0, most = 0;
      for (size_t j = 0; j < want.size(); ++j) {
        const float difference = std::fabs(got[i * want.size() + j] - want[j]);
        worst = std::isnan(difference) ? INFINITY : std::max(worst, difference);
        most = std::max(most, std::fabs(want[j]));
      }
      EXPECT_LE(worst, 1e-6f * most) << "token " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, QuantTest, ::testing::Range(static_cast<int>(WeightType::q8_0), kWeightTypes),
                         [](const auto& info) { return std::string(weight_type_name(static_cast<WeightType>(info.param))); });

// Bytes with scales apart have no blocks: rows of any length.
class QuantBytesTest : public QuantTest {};
TEST_P(QuantBytesTest, RowsThatAreNoWholeBlocks) {
  for (const int32_t k : {31, 33, 1025}) {
    draw_x(k);
    OnDevice w(MixedMatrix(type(), 19, k, k, 5), true);
    for (const Numerics numerics : {Numerics::f32, Numerics::bf16}) {
      Linear linear;
      prepare(linear, k, numerics);
      for (const int32_t rows : {1, 17}) {
        poison(w);
        linear.run(params({w.weight()}, rows, k), queue());
        EXPECT_LT(worst_error(w, rows), numerics == Numerics::f32 ? kExact : kRounded) << k << ", " << rows << " rows";
      }
    }
  }
}

TEST_P(QuantBytesTest, TwoRowsHaveTheBitsOfEachAlone) {
  for (const auto& [k, group] : {std::pair{4096, 4096}, {1184, 1184}, {1408, 128}}) {
    draw_x(k);
    const int32_t n = 37;
    OnDevice w(MixedMatrix(type(), n, k, group, 14), true);
    Linear linear;
    prepare(linear, k, Numerics::bf16);
    linear.run(params({w.weight()}, 2, k), queue());
    const std::vector<float> both = w.out.download();
    for (int32_t r = 0; r < 2; ++r) {
      LinearParams p = params({}, 1, k);
      const std::vector<LinearWeight> weights = {w.weight()};
      p.weights = weights.data(), p.count = 1, p.x += r * k;
      linear.run(p, queue());
      const std::vector<float> alone = w.out.download();
      EXPECT_TRUE(std::equal(alone.begin(), alone.begin() + n, both.begin() + r * n)) << k << ", row " << r;
    }
  }
}

// Of int8 every byte is a number.
TEST_P(QuantBytesTest, ACodeThatIsNoNumberMakesItsOutputNone) {
  constexpr int32_t kDepth = 1120, kWidth = 40;  // the last columns of a warp are some of the one's before
  draw_x(kDepth);
  MixedMatrix m(type(), kWidth, kDepth, kDepth, 15);
  m.data[5 * kDepth + 3] = 0x7f, m.data[17 * kDepth + 900] = 0xff, m.data[30 * kDepth + kDepth - 1] = 0x7f;
  OnDevice w(m, false);
  Linear linear;
  prepare(linear, kDepth, Numerics::bf16);
  linear.run(params({w.weight()}, 2, kDepth), queue());
  const std::vector<float> out = w.out.download();
  for (int32_t i = 0; i < 2 * kWidth; ++i) {
    const int32_t n = i % kWidth;
    const bool has_one = type() == WeightType::fp8_e4m3 && (n == 5 || n == 17 || n == 30);
    EXPECT_EQ(std::isnan(out[static_cast<size_t>(i)]), has_one) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, QuantBytesTest,
                         ::testing::Values(static_cast<int>(WeightType::fp8_e4m3), static_cast<int>(WeightType::int8)));

}  // namespace
}  // namespace fovea::cuda
